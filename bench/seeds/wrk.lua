-- Ends wrk's report with one line for a program to read.
function done(summary, latency, requests)
   local errors = summary.errors
   io.write(string.format("RESULT %d %d %d %d %d connect=%d read=%d write=%d timeout=%d status=%d\n",
      summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), latency.max,
      errors.connect, errors.read, errors.write, errors.timeout, errors.status))
end
