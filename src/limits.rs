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
