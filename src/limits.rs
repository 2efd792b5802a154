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
    assert!(
        HEAD_BYTES_MAX <= u16::MAX as usize + 1,
        "spans in a head are 16-bit"
    );
    assert!(CHUNK_LINE_BYTES_MAX < CHUNK_EXTENSION_BYTES_MAX);
    assert!(TRAILERS_MAX <= HEADERS_MAX);
};

// ---- deadlines -----------------------------------------------------------------------------------

/// From the first byte of a request head to its last.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

// ---- host: shards, listeners, process ------------------------------------------------------------

/// Shards of one server, and core ids that can be named: `CPU_SETSIZE` of the C library.
pub const SHARDS_MAX: usize = 1024;
/// Addresses one server listens on. Each costs every shard a descriptor.
pub const LISTEN_ADDRESSES_MAX: usize = 64;
/// Connections that wait for `accept`, a listener; `net.core.somaxconn` caps it (4096 since Linux 5.4).
pub const BACKLOG: u32 = 4096;
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
/// The most that `--max-connections` takes: slots are numbered with fewer than 32 bits.
pub const CONNECTIONS_MAX_CEILING: usize = 16 * 1024 * 1024;
/// Descriptors kept from connections, a process: standard streams, logs, files being served.
pub const FILES_RESERVED: usize = 256;
/// Descriptors of one shard beside its connections: own ring, three rings of glommio and their
/// eventfds, doorbell, blocking pool, listeners.
pub const FILES_PER_SHARD: usize = 24;

/// Submission entries of a shard's ring; a full queue is submitted early, so it bounds a batch only.
pub const RING_SUBMISSIONS: u32 = 1024;
/// Completion entries of a shard's ring. Beyond it the kernel keeps an overflow list, which is slow.
pub const RING_COMPLETIONS: u32 = 8192;
/// Entries of the rings that the preflight opens: small, since a closed ring stays charged to
/// `RLIMIT_MEMLOCK` for a moment, when the real ones are about to be opened.
pub const PROBE_RING_ENTRIES: u32 = 8;
/// Longest wait for a completion while io_uring is tried; each is due at once.
pub const PROBE_WAIT: Duration = Duration::from_secs(2);
/// Locked memory of one shard: its ring of `RING_SUBMISSIONS` and `RING_COMPLETIONS` (200 KiB), a ring of 1024
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
/// How often a busy shard visits its executor (files, timers, channels).
pub const TICK: Duration = Duration::from_millis(1);
/// Shortest tick: below it the timer costs more than what it finds.
pub const TICK_MIN: Duration = Duration::from_micros(100);
/// Longest tick: the slots of the timer wheel.
pub const TICK_MAX: Duration = Duration::from_millis(100);

const _: () = {
    assert!(MEMLOCK_BYTES_PER_SHARD + MEMLOCK_BYTES_PER_PROCESS <= MEMLOCK_BYTES_MIN);
    assert!(RING_SUBMISSIONS <= RING_COMPLETIONS);
    assert!(RING_SUBMISSIONS.is_power_of_two() && RING_COMPLETIONS.is_power_of_two());
    assert!(HEAD_BYTES_MIN <= HEAD_BYTES_MAX && HEAD_BYTES_MAX <= HEAD_BYTES_CEILING);
    assert!(HEADERS_MAX <= HEADERS_CEILING);
    assert!(CONNECTIONS_MAX <= CONNECTIONS_MAX_CEILING);
    assert!(CONNECTIONS_MAX_CEILING < u32::MAX as usize);
    assert!(TICK_MIN.as_nanos() <= TICK.as_nanos() && TICK.as_nanos() <= TICK_MAX.as_nanos());
    assert!(HEADER_TIMEOUT.as_nanos() < IDLE_TIMEOUT.as_nanos());
    assert!(IDLE_TIMEOUT.as_nanos() < DEADLINE_MAX.as_nanos());
    assert!(
        DRAIN_DELAY.as_secs() + DRAIN_TIMEOUT.as_secs() < 10,
        "docker stop"
    );
};
