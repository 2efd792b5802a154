//! Every cap, default and timeout, with its reason. Floor 0: imports nothing.
//!
//! No literal bound stands anywhere else. Relations between bounds are checked at compile time at the
//! end of this file, so that a changed constant that breaks another does not build.

use std::time::Duration;

// ---- request heads -------------------------------------------------------------------------------

/// Bytes of a request head (request line, fields, the empty line). nginx: 4 × 8 KiB, Apache: 8 KiB a line.
pub const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Field lines in a head. Apache and httparse users: 100.
pub const HEADERS_MAX: usize = 100;
/// Bytes of a request target; more is 414. RFC 9110 §4.1 asks for at least 8,000.
pub const URI_BYTES_MAX: usize = 8 * 1024;
/// Empty lines tolerated before a request line (RFC 9112 §2.2).
pub const LEADING_EMPTY_LINES_MAX: usize = 4;

// ---- bodies --------------------------------------------------------------------------------------

/// Bytes of a request body a handler may collect in memory without asking for more.
pub const BODY_BUFFERED_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Bytes of one chunk-size line, extensions included.
pub const CHUNK_LINE_BYTES_MAX: usize = 256;
/// Bytes of all chunk extensions of one body (an endless-extension attack otherwise streams for ever).
pub const CHUNK_EXTENSION_BYTES_MAX: usize = 16 * 1024;
/// Bytes of a trailer section.
pub const TRAILER_BYTES_MAX: usize = 8 * 1024;
/// Field lines of a trailer section.
pub const TRAILERS_MAX: usize = 32;
/// Unread request body that is read and thrown away so that the connection can be kept.
pub const DISCARD_BYTES_MAX: usize = 64 * 1024;
/// Response bodies up to this size are copied behind their head into one send; larger ones are
/// sent as a second vector, uncopied.
pub const COPIED_BODY_BYTES_MAX: usize = 32 * 1024;

const _: () = {
    assert!(URI_BYTES_MAX < HEAD_BYTES_MAX);
    assert!(HEAD_BYTES_MAX <= u16::MAX as usize + 1, "spans in a head are 16-bit");
    assert!(CHUNK_LINE_BYTES_MAX < CHUNK_EXTENSION_BYTES_MAX);
    assert!(TRAILERS_MAX <= HEADERS_MAX);
};

// ---- deadlines -----------------------------------------------------------------------------------

/// From the first byte of a request head to its last.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

// ---- the ring ------------------------------------------------------------------------------------

/// Submission queue entries of a shard's ring; more operations in one turn are submitted in between.
pub const RING_SQ_ENTRIES: u32 = 1024;
/// Completion queue entries; what does not fit is kept by the kernel and counted as an overflow.
pub const RING_CQ_ENTRIES: u32 = 8192;
/// Buffers the kernel may pick from when bytes arrive (a power of two).
pub const RECV_BUFFERS: usize = 256;
/// Bytes of each of them: one receive completion carries at most so many. A cache line more than a power of two,
/// so that the beginnings of the buffers do not all fall into the same cache set.
pub const RECV_BUFFER_BYTES: usize = 8 * 1024 + 64;
/// Received bytes nobody has read yet at which a socket stops receiving.
pub const INBOX_HIGH_BYTES: usize = 64 * 1024;
/// Completions handled in one turn before tasks run again.
pub const TURN_COMPLETIONS_MAX: usize = 1024;
/// Task runs in one turn before the ring is looked at again.
pub const TURN_TASK_RUNS_MAX: usize = 1024;
/// How often a busy shard looks after glommio, and a wheel turns.
pub const TICK: Duration = Duration::from_millis(1);
/// Events between two ticks up to which a shard is quiet: it then sleeps where a handler waits.
pub const QUIET_EVENTS_A_TICK: u64 = 20;
/// Vectors of one send (the kernel's own bound, UIO_MAXIOV, is 1,024).
pub const SEND_VECTORS_MAX: usize = 64;
/// Ring enters a shard's end may take to reap what it cancelled; then memory is leaked rather than freed.
pub const CLOSE_ENTERS_MAX: usize = 10_000;
/// Spare buffers a shard keeps for reuse.
pub const BUFFERS_KEPT_MAX: usize = 512;
/// Capacity above which a spare buffer is freed, not kept.
pub const BUFFER_BYTES_KEPT_MAX: usize = 32 * 1024;

const _: () = {
    assert!(RECV_BUFFERS.is_power_of_two() && RECV_BUFFERS <= 1 << 15);
    assert!(RING_SQ_ENTRIES <= RING_CQ_ENTRIES);
    assert!(INBOX_HIGH_BYTES >= HEAD_BYTES_MAX, "a whole head fits in an inbox");
};

// ---- timer wheel, histogram ----------------------------------------------------------------------

/// Levels of the timer wheel, of 64 slots each, the finest of 1 ms.
pub const WHEEL_LEVELS: usize = 6;
/// How far ahead the timer wheel sorts, in ms (783 days); an entry further away is looked at again then.
/// One slot less than the coarsest level spans, so that a slot never stands for two times.
pub const WHEEL_HORIZON_MS: u64 = 63 << (6 * (WHEEL_LEVELS - 1));
/// A histogram tells durations below 2 to this power of ns (137 s) apart; longer ones share its last bucket.
pub const HISTOGRAM_NS_BITS: u32 = 37;
/// Bytes the buckets of one histogram may take.
pub const HISTOGRAM_BYTES_MAX: usize = 16 * 1024;

const _: () = assert!(WHEEL_HORIZON_MS > 2 * 366 * 86_400_000, "the wheel sorts two years");

// ---- http codec ----------------------------------------------------------------------------------

/// Bytes of a method token before it is taken for unknown; the longest registered one has 17.
pub const METHOD_BYTES_MAX: usize = 32;
/// Largest announced body or chunk: 1 PiB. More is a probe for overflow, and 413 at once.
pub const BODY_BYTES_MAX: u64 = 1 << 50;
/// Heads kept for later requests on a shard.
pub const POOLED_HEADS_MAX: usize = 256;
/// Heap bytes of a head above which it is freed instead of kept: one long request must not hold memory.
pub const POOLED_HEAD_BYTES_MAX: usize = 8 * 1024;
/// Parameters in one route's path.
pub const PARAMS_MAX: usize = 8;

const _: () = {
    assert!(METHOD_BYTES_MAX < HEAD_BYTES_MAX);
    assert!(PARAMS_MAX <= u8::MAX as usize);
};

// ---- demo ----------------------------------------------------------------------------------------

/// Bytes of a request body that the demo's `/echo` reads before it starts to answer.
pub const ECHO_COLLECTED_BYTES_MAX: usize = 64 * 1024;

// ---- routing and extraction ----------------------------------------------------------------------

/// Characters of a wrong Content-Type that a 415 repeats; the longest registered ones have about 80.
pub const ECHOED_CONTENT_TYPE_CHARS_MAX: usize = 128;

// ---- host: shards, listeners, process ------------------------------------------------------------

/// Shards of one server, and core ids that can be named: `CPU_SETSIZE` of the C library.
pub const SHARDS_MAX: usize = 1024;
/// Addresses one server listens on. Each costs every shard a descriptor.
pub const LISTEN_ADDRESSES_MAX: usize = 64;
/// Connections that wait for `accept`, a listener; `net.core.somaxconn` caps it (4096 since Linux 5.4).
pub const BACKLOG: u32 = 4096;
/// Bytes of answers that the kernel takes of a connection ahead of what the peer's window lets it send. Without this bound it
/// takes up to `net.ipv4.tcp_wmem`, 4 MiB: a thousand slow downloads were 2.3 GiB, with which Linux ran out of memory for
/// TCP and reset other connections.
pub const UNSENT_BYTES_MAX: u32 = 128 * 1024;
/// Seconds the kernel keeps a connection that sent nothing before it is given to `accept` all the
/// same (`TCP_DEFER_ACCEPT`, off by default).
pub const DEFER_ACCEPT_SECONDS: u32 = 5;
/// Connections in the TCP Fast Open state, a listener (off by default).
pub const FAST_OPEN_QUEUE: u32 = 256;
/// Bytes of a unix socket's path: `sun_path` less its final zero.
pub const UNIX_PATH_BYTES_MAX: usize = 107;
/// Bytes of the path of a built-in endpoint.
pub const ENDPOINT_PATH_BYTES_MAX: usize = 256;

/// Least `--max-head`: a request line and a few fields.
pub const HEAD_BYTES_MIN: usize = 256;
/// Most `--max-head`: spans in a head are 16-bit.
pub const HEAD_BYTES_CEILING: usize = u16::MAX as usize;
/// Most `--max-headers`: each field costs a span in every pooled head.
pub const HEADERS_CEILING: usize = 1000;

/// Open connections of one server, all shards together. What the limit on open files allows, less
/// `FILES_RESERVED`, lowers it.
pub const CONNECTIONS_MAX: usize = 65_536;
/// A server whose limit on open files allows fewer (and fewer than it was told to take) says so at the start.
pub const CONNECTIONS_FEW: usize = 1024;
/// The most that `--max-connections` takes: slots are numbered with fewer than 32 bits.
pub const CONNECTIONS_MAX_CEILING: usize = 16 * 1024 * 1024;
/// Descriptors kept from connections, a process: standard streams, logs, files being served.
pub const FILES_RESERVED: usize = 256;
/// Descriptors of one shard beside its connections: own ring, three rings of glommio and their
/// eventfds, doorbell, blocking pool, listeners.
pub const FILES_PER_SHARD: usize = 24;

/// Descriptors of a process without which it does not start, beside those of its shards: standard streams, signals,
/// the preflight's, a connection.
pub const FILES_PER_PROCESS: usize = 16;

/// Entries of the rings that the preflight opens: small, since a closed ring stays charged to
/// `RLIMIT_MEMLOCK` for a moment, when the real ones are about to be opened.
pub const PROBE_RING_ENTRIES: u32 = 8;
/// Longest wait for a completion while io_uring is tried; each is due at once.
pub const PROBE_WAIT: Duration = Duration::from_secs(2);
/// Locked memory of one shard: its ring of `RING_SQ_ENTRIES` and `RING_CQ_ENTRIES` (200 KiB), a ring of 1024
/// provided buffers (16 KiB), a glommio executor with 64 KiB of `io_memory` and ring depth 128 (240 KiB).
/// Measured on Linux 6.18 as the least RLIMIT_MEMLOCK, by bisection and under a user id not used before,
/// with which 1, 2, 4 and 8 such shards start: 888 KiB for two, 1768 for four, 3528 for eight without the
/// provided buffers. Kernels from 5.12 on to some before 6.18 charge only registered buffers.
pub const MEMLOCK_BYTES_PER_SHARD: u64 = 456 * 1024;
/// Locked memory of a process beside its shards: the ring with which glommio looks for operations, and the preflight's.
pub const MEMLOCK_BYTES_PER_PROCESS: u64 = 32 * 1024;
/// glommio starts no executor below this limit, whatever it needs.
pub const MEMLOCK_BYTES_MIN: u64 = 512 * 1024;
/// How long to try again when a ring does not fit into `RLIMIT_MEMLOCK`: the limit is a user's, and the
/// rings of a process that just ended stay charged for a moment.
pub const MEMLOCK_RETRY: Duration = Duration::from_secs(2);
/// Pause between two such tries.
pub const MEMLOCK_RETRY_PAUSE: Duration = Duration::from_millis(20);

/// How long to try again when an address is in use: the kernel closes the listeners of a killed process with its rings,
/// 6 to 24 ms after the process is gone (Linux 6.18), and a supervisor restarts at once.
pub const PORT_RETRY: Duration = Duration::from_millis(500);
/// Pause between two such tries.
pub const PORT_RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Longest wait for the next bytes of a request body, and the time a body may take before
/// `BODY_RATE_MIN` counts. Apache's RequestReadTimeout: 20 s.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes a second that a request body must reach on average once `BODY_TIMEOUT` is over. Apache: 500.
pub const BODY_RATE_MIN: u32 = 500;
/// Longest time in which a peer takes no byte of an answer. nginx `send_timeout`: 60 s, HAProxy's examples: 30 s.
pub const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Quiet time of a kept connection. Longer than the 60 s after which the usual load balancers close
/// theirs, so that it is not our close that meets their next request.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// The longest deadline that can be asked for: more is a typing mistake, and would not fit the timer wheel.
pub const DEADLINE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a draining server goes on accepting.
pub const DRAIN_DELAY: Duration = Duration::ZERO;
/// How long requests in flight may take once a drain began: less than the 10 s after which `docker stop` kills.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(8);
/// Shortest tick: below it the timer costs more than what it finds.
pub const TICK_MIN: Duration = Duration::from_micros(100);
/// Longest tick: the slots of the timer wheel.
pub const TICK_MAX: Duration = Duration::from_millis(100);

const _: () = {
    assert!(MEMLOCK_BYTES_PER_SHARD + MEMLOCK_BYTES_PER_PROCESS <= MEMLOCK_BYTES_MIN);
    assert!(HEAD_BYTES_MIN <= HEAD_BYTES_MAX && HEAD_BYTES_MAX <= HEAD_BYTES_CEILING);
    assert!(HEADERS_MAX <= HEADERS_CEILING);
    assert!(HEAD_BYTES_CEILING <= INBOX_HIGH_BYTES, "the largest head that can be asked for fits in an inbox");
    assert!(DEADLINE_MAX.as_millis() <= WHEEL_HORIZON_MS as u128);
    assert!(CONNECTIONS_FEW <= CONNECTIONS_MAX && CONNECTIONS_MAX <= CONNECTIONS_MAX_CEILING);
    assert!(CONNECTIONS_MAX_CEILING < u32::MAX as usize);
    assert!(TICK_MIN.as_nanos() <= TICK.as_nanos() && TICK.as_nanos() <= TICK_MAX.as_nanos());
    assert!(HEADER_TIMEOUT.as_nanos() < IDLE_TIMEOUT.as_nanos());
    assert!(IDLE_TIMEOUT.as_nanos() < DEADLINE_MAX.as_nanos());
    assert!(DRAIN_DELAY.as_secs() + DRAIN_TIMEOUT.as_secs() < 10, "docker stop");
};

// ---- the HTTP/1 service --------------------------------------------------------------------------

/// Bytes of answers a connection holds while an earlier send is on its way; then it stops reading.
pub const ANSWERS_HELD_BYTES: usize = 64 * 1024;
/// Bytes read ahead of a handler that does not ask for its body, or for its successors.
pub const INPUT_AHEAD_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a request body handed to its reader at once.
pub const BODY_READ_BYTES_MAX: usize = 64 * 1024;
/// How long a draining server waits for the next request of a connection that may just be sending one.
pub const DRAIN_IDLE_GRACE_MS: u64 = 1000;
/// How long a refused client may go on sending before its connection is closed under it.
pub const LINGER_TIMEOUT_MS: u64 = 2000;

const _: () = {
    assert!(COPIED_BODY_BYTES_MAX <= ANSWERS_HELD_BYTES);
    assert!(DRAIN_IDLE_GRACE_MS < DRAIN_TIMEOUT.as_millis() as u64);
};

// ---- compression ---------------------------------------------------------------------------------

/// Bodies below this are not compressed: they fit in one packet either way.
pub const COMPRESS_BYTES_MIN: usize = 1024;
/// Bytes compressed at once on the shard: some tenths of a millisecond. A job on the blocking thread costs a tenth of one.
pub const COMPRESS_ON_SHARD_BYTES_MAX: usize = 16 * 1024;
/// Bytes of a stream that the blocking thread compresses at once; what a connection holds of it, twice.
pub const COMPRESS_PIECE_BYTES_MAX: usize = 64 * 1024;
/// Bytes compressed on the shard for one connection before the others have a turn.
pub const COMPRESS_TURN_BYTES_MAX: usize = 64 * 1024;
/// Bodies in memory up to this are compressed whole and have a length; larger ones go out as they are compressed.
pub const COMPRESS_WHOLE_BYTES_MAX: usize = 1024 * 1024;
/// Streams that a layer compresses at a time on a shard; an encoder of brotli takes 1.2 MiB at the default level.
pub const COMPRESS_STREAMS_MAX: usize = 64;
/// Window of brotli, as a power of two: 256 KiB. The larger ones of its default take 16 times the memory a stream.
pub const BROTLI_WINDOW_BITS: i32 = 18;
/// Bytes that brotli puts out at once.
pub const BROTLI_BUFFER_BYTES: usize = 4096;

const _: () = {
    assert!(COMPRESS_BYTES_MIN < COMPRESS_ON_SHARD_BYTES_MAX);
    assert!(COMPRESS_ON_SHARD_BYTES_MAX <= COMPRESS_TURN_BYTES_MAX);
    assert!(COMPRESS_ON_SHARD_BYTES_MAX < COMPRESS_PIECE_BYTES_MAX);
    assert!(COMPRESS_PIECE_BYTES_MAX <= COMPRESS_WHOLE_BYTES_MAX);
};

// ---- AJP -----------------------------------------------------------------------------------------

/// Bytes of an AJP packet with its header, unless both sides agree on more: the protocol's own number.
pub const AJP_PACKET_BYTES: usize = 8 * 1024;
/// The most that `--ajp-packet-size` takes, and Apache's `ProxyIOBufferSize`: lengths have 16 bits.
pub const AJP_PACKET_BYTES_MAX: usize = 64 * 1024;
/// Bytes of the secret that a proxy proves itself with: it fits into the smallest packet beside a request.
pub const AJP_SECRET_BYTES_MAX: usize = 1024;

const _: () = {
    assert!(AJP_PACKET_BYTES_MAX <= INBOX_HIGH_BYTES, "a whole packet fits in an inbox");
    assert!(AJP_PACKET_BYTES_MAX - 4 <= u16::MAX as usize, "a payload's length has 16 bits");
    assert!(AJP_SECRET_BYTES_MAX < AJP_PACKET_BYTES);
};

// ---- workers -------------------------------------------------------------------------------------

/// Messages that wait in a shard's mailbox, or in an author's inbox of one type.
pub const MAILBOX_MAX: usize = 4096;
/// How long accepting pauses when no descriptor is left.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often a draining shard looks whether its last connection has ended.
pub const DRAIN_LOOK: Duration = Duration::from_millis(5);
/// Connections over the limit that a shard answers with 503 at once; more are closed without a word.
pub const REFUSALS_MAX: usize = 256;
/// What `Retry-After` says to a refused client, in seconds.
pub const RETRY_AFTER_S: u32 = 1;
/// Memory glommio registers for file I/O, an executor: its least.
pub const GLOMMIO_IO_MEMORY: usize = 64 * 1024;
/// How long a shard may take to answer for its counters before it is listed as missing.
pub const ANSWER_PATIENCE: Duration = Duration::from_millis(500);
/// What the kernel tells of the process is read again for the stats after so long.
pub const PROCESS_READ_EVERY: Duration = Duration::from_secs(1);
/// How long the shards may take to end once told to; then one is stuck in a handler that blocks, and is left behind.
/// Together with the drain's default less than the 10 s of `docker stop`.
pub const STOP_PATIENCE: Duration = Duration::from_secs(1);
/// How long the shards may take to start.
pub const START_PATIENCE: Duration = Duration::from_secs(20);

const _: () = assert!((DRAIN_DELAY.as_secs() + DRAIN_TIMEOUT.as_secs() + STOP_PATIENCE.as_secs()) < 10, "docker stop");

// ---- the command line ----------------------------------------------------------------------------

/// Bytes that `--echo` reads from a connection, once.
pub const ECHO_ONCE_BYTES_MAX: usize = 1024;
/// How long `healthcheck` waits for the answer.
pub const HEALTHCHECK_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes of an answer that `healthcheck` reads in search of its status.
pub const HEALTHCHECK_ANSWER_BYTES_MAX: usize = 8 * 1024;

// ---- load generator ------------------------------------------------------------------------------

/// Bytes of a response head, interim ones not counted with it.
pub const RESPONSE_HEAD_BYTES_MAX: usize = 64 * 1024;
/// Field lines of a response head.
pub const RESPONSE_HEADERS_MAX: usize = 128;
/// Connections of one run.
pub const LOAD_CONNECTIONS_MAX: usize = 1_000_000;
/// Shards of one run.
pub const LOAD_SHARDS_MAX: usize = 1024;
/// Requests in flight on one connection.
pub const PIPELINE_MAX: usize = 4096;
/// Requests of a URL file.
pub const LOAD_URLS_MAX: usize = 10_000;
/// Requests a second of an open model.
pub const LOAD_RATE_MAX: f64 = 1e8;
/// Longest run, and the longest latency told apart.
pub const LOAD_TIME_MAX: Duration = Duration::from_secs(7 * 86_400);
/// Latencies above this are recorded as this.
pub const LATENCY_MAX: Duration = Duration::from_secs(3600);
/// Descriptors a run needs besides its connections' and its shards' (`FILES_PER_SHARD`).
pub const LOAD_SPARE_DESCRIPTORS: u64 = 64;
/// Connections a shard begins to open in one millisecond at the start, so that no backlog overflows.
pub const LOAD_CONNECTS_A_MS: usize = 256;
/// Wait before a connection that failed is opened again: doubled from 1 ms with each failure in a row, up to this.
pub const RECONNECT_WAIT_MAX: Duration = Duration::from_millis(128);
/// Until a connection is established. More than the 1 + 2 + 4 s of three lost SYNs, so that they show.
pub const LOAD_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// From sending a request to the last byte of its answer.
pub const LOAD_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// After an open model's end, wait so long for requests that were due before it.
pub const LOAD_DRAIN: Duration = Duration::from_secs(2);
/// How often a shard of the load generator looks whether it is to stop.
pub const LOAD_STOP_LOOK: Duration = Duration::from_millis(50);
/// Arrivals closer than this share a timer: bounds the timers a second, and how late a request is sent.
pub const ALARM_WAIT_MIN: Duration = Duration::from_micros(20);
/// Interval figures on their way to the collector; a shard that finds no room adds to what it has.
pub const LOAD_INTERVALS_QUEUED: usize = 64;
/// Shortest interval of the time series.
pub const LOAD_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Batches that a comparison puts the intervals of a run into: more resemble their neighbours.
pub const COMPARE_BATCHES_MAX: usize = 10;
/// Fewer tell nothing of the spread.
pub const COMPARE_BATCHES_MIN: usize = 3;
/// Points of one line in a plot over time; longer runs are shown coarser.
pub const PLOT_POINTS_MAX: usize = 800;
/// Share of a core above which a shard of the load generator is called the bottleneck.
pub const LOAD_BUSY_WARN: f64 = 0.9;
/// Share of the time above which it is said that a shard of the load generator waited for its core.
pub const LOAD_DELAYED_WARN: f64 = 0.1;

const _: () = {
    assert!(RESPONSE_HEAD_BYTES_MAX >= HEAD_BYTES_MAX);
    assert!(LATENCY_MAX.as_secs() > LOAD_REQUEST_TIMEOUT.as_secs());
};

// ---- files ---------------------------------------------------------------------------------------

/// Parts of one answer to a Range field with several ranges; more are a flood, and the whole is sent.
pub const RANGES_MAX: usize = 32;
/// Bytes of a file read at once while it is sent. The service holds up to twice as many, and one more is read ahead.
pub const FILE_READ_BYTES: usize = 64 * 1024;
/// Bytes of a file sent at once from the page cache, before others have a turn.
pub const FILE_SEND_BYTES: usize = 1024 * 1024;
/// Bytes of a file for which one look tells whether they still are in the page cache.
pub const FILE_LOOK_BYTES: u64 = 256 * 1024;
/// How long parts of a file that were read or sent are taken to be in the page cache, at least; at most twice as long.
pub const FILE_CACHED_BY_KERNEL_MS: u64 = 10_000;
/// Bytes of a file of which it is remembered; what is behind them is always read. 32 KiB of memory, twice.
pub const FILE_REMEMBERED_BYTES_MAX: u64 = 16 * 1024 * 1024 * 1024;
/// Memory of one download, whatever the size of its file: what a slow client costs.
pub const DOWNLOAD_BYTES_MAX: usize = 256 * 1024;
/// Bytes of contents that a shard keeps of the files beneath one root, unless it is told otherwise.
pub const FILE_CACHE_BYTES: u64 = 32 * 1024 * 1024;
/// Bytes of a file above which it is streamed, and never kept: a slow client holds what it is sent, evicted or not.
pub const FILE_CACHED_BYTES_MAX: u64 = DOWNLOAD_BYTES_MAX as u64;
/// Bytes that a kept file costs besides its contents and its path: fields, tags, its place.
pub const FILE_CACHED_OVERHEAD_BYTES: u64 = 1024;
/// How long a kept file is served without a look at the disk.
pub const FILE_FRESH_MS: u64 = 1000;
/// How much older than the reading of it a file must be to be known by its time of modification: the clocks of file
/// systems tick coarsely, and a second change in the same tick would not show.
pub const FILE_SETTLED: Duration = Duration::from_secs(2);
/// Readings of a file that changes each time it is read, after which it is sent as found.
pub const FILE_TRIES_MAX: usize = 3;
/// Entries of a directory's listing; a note says so where there are more.
pub const LISTING_ENTRIES_MAX: usize = 10_000;

const _: () = {
    assert!(FILE_READ_BYTES > COPIED_BODY_BYTES_MAX, "what is read is sent uncopied");
    assert!(2 * FILE_READ_BYTES.next_multiple_of(ANSWERS_HELD_BYTES) + FILE_READ_BYTES <= DOWNLOAD_BYTES_MAX);
    assert!(FILE_CACHED_BYTES_MAX <= FILE_CACHE_BYTES / 8, "one file does not push all others out");
};

// ---- testing -------------------------------------------------------------------------------------

/// Bytes that a service reads at once of a connection in memory: what a buffer of the ring brings.
pub const TEST_READ_BYTES_MAX: usize = RECV_BUFFER_BYTES;
/// Polls of a service in memory without anything new from outside, after which it is called a loop.
pub const TEST_TURNS_MAX: usize = 1_000_000;
/// Bytes of an answer that the test client takes ahead of its reader.
pub const TEST_WINDOW_BYTES: usize = 64 * 1024;
/// How long the test client waits for a handler that nothing in the test wakes; longer than any thread takes to.
pub const TEST_PATIENCE: Duration = Duration::from_secs(5);

// ---- doctor --------------------------------------------------------------------------------------

/// Locked memory that is advised, or a multiple of it: what systems since 2021 give by default, and room for a second
/// server of the same user while the first one drains.
pub const MEMLOCK_BYTES_ADVISED: u64 = 8 * 1024 * 1024;
/// Part of the periods, in percent, in which a quota may stop a server before that is told.
pub const THROTTLED_PERCENT_MAX: u64 = 1;
/// Local ports below which a client, or a proxy on this host, soon runs out: Linux' own default gives 28,232.
pub const LOCAL_PORTS_MIN: u32 = 28_000;

// ---- stats ---------------------------------------------------------------------------------------

/// Ages by which open connections are counted, in ms: a second, ten, a minute, ten, an hour; and older.
pub const AGES_MS: [u64; 5] = [1_000, 10_000, 60_000, 600_000, 3_600_000];
/// Seconds back that a shard keeps its counts, for the rates of the last 1, 10 and 60 s.
pub const RECENT_SECONDS_MAX: usize = 60;
/// How often a shard puts its service times aside, so that those of the last one to two such spans can be told.
pub const RECENT_TIMES_SECONDS: u64 = 10;
/// Counters and histograms that an author may name on a shard.
pub const METRICS_MAX: usize = 256;
/// Bytes of the name of one.
pub const METRIC_NAME_BYTES_MAX: usize = 128;
/// Open connections of the listener for the stats, a shard.
pub const STATS_CONNECTIONS_MAX: usize = 32;

const _: () = assert!(STATS_CONNECTIONS_MAX < FILES_RESERVED);

// ---- access log ----------------------------------------------------------------------------------

/// Bytes of lines that a shard collects before it hands them over.
pub const ACCESS_LOG_BATCH_BYTES: usize = 64 * 1024;
/// Batches that wait for the file, for each shard; what comes to more is lost, and counted.
pub const ACCESS_LOG_BATCHES_QUEUED: usize = 16;
/// How long a line waits for its batch to fill.
pub const ACCESS_LOG_DELAY: Duration = Duration::from_millis(500);
/// Bytes of one field of a line; what a client sends beyond is left out.
pub const ACCESS_LOG_FIELD_BYTES_MAX: usize = 8 * 1024;
/// How long the end of the server waits for the file to take the last lines. A pipe may have no reader.
pub const ACCESS_LOG_CLOSE_PATIENCE: Duration = Duration::from_millis(500);

const _: () = assert!(
    (DRAIN_DELAY.as_millis()
        + DRAIN_TIMEOUT.as_millis()
        + STOP_PATIENCE.as_millis()
        + ACCESS_LOG_CLOSE_PATIENCE.as_millis())
        < 10_000,
    "docker stop"
);

// ---- top -----------------------------------------------------------------------------------------

/// Bytes of an answer that `top` reads: a thousand shards are 3 MB.
pub const FETCH_ANSWER_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// How long `top` waits for the server to go on.
pub const FETCH_TIMEOUT: Duration = Duration::from_secs(3);
/// How often `top` asks at most.
pub const TOP_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Rates of the past that `top` keeps for each shard.
pub const TOP_HISTORY_MAX: usize = 60;
