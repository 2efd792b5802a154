-- One script for all profiles: `wrk … -s wrk.lua URL -- DEPTH BODY_BYTES`. Ends with one line for a program to read.
function init(args)
   local depth, body_bytes = tonumber(args[1]), tonumber(args[2])
   if body_bytes > 0 then
      wrk.method = "POST"
      wrk.body = string.rep("y", body_bytes)
   end
   if depth > 1 then
      local batch = string.rep(wrk.format(), depth)
      request = function() return batch end
   end
end

function done(summary, latency, requests)
   local errors = summary.errors
   io.write(string.format("RESULT %d %d %d %d connect=%d read=%d write=%d timeout=%d status=%d\n",
      summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
      errors.connect, errors.read, errors.write, errors.timeout, errors.status))
end
