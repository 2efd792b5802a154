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
/// Bytes of each of them: one receive completion carries at most so many.
pub const RECV_BUFFER_BYTES: usize = 8 * 1024;
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
pub const BUFFERS_KEPT_MAX: usize = 1024;
/// Capacity above which a spare buffer is freed, not kept.
pub const BUFFER_BYTES_KEPT_MAX: usize = 64 * 1024;
/// Connections waiting to be accepted; the kernel caps it at net.core.somaxconn.
pub const BACKLOG: i32 = 4096;

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

// ---- routing and extraction ----------------------------------------------------------------------

/// Characters of a wrong Content-Type that a 415 repeats; the longest registered ones have about 80.
pub const ECHOED_CONTENT_TYPE_CHARS_MAX: usize = 128;

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
/// Descriptors a run needs besides one a connection: a few a shard, and the process's own.
pub const LOAD_SPARE_DESCRIPTORS: u64 = 64;
/// Descriptors of one shard's rings, eventfds and executor.
pub const LOAD_SHARD_DESCRIPTORS: u64 = 16;
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
/// Share of a core above which a shard of the load generator is called the bottleneck.
pub const LOAD_BUSY_WARN: f64 = 0.9;

const _: () = {
    assert!(RESPONSE_HEAD_BYTES_MAX >= HEAD_BYTES_MAX);
    assert!(LATENCY_MAX.as_secs() > LOAD_REQUEST_TIMEOUT.as_secs());
};
