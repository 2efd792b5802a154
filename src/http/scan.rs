//! The bounds of a head, and what can be said of one before it is parsed, or before it is whole.
//!
//! Not for: the grammar, which is `httparse`'s. Floor 1.

use super::Reject;
use crate::limits;
use memchr::memchr;

/// Bounds of one request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Bytes from the request line to the empty line; above 65,535 the limit is 65,535.
    pub head_bytes_max: usize,
    /// Field lines; above [`limits::HEADERS_CEILING`] the limit is that.
    pub headers_max: usize,
    /// Bytes of the request target.
    pub uri_bytes_max: usize,
}

impl Default for HeadLimits {
    fn default() -> HeadLimits {
        HeadLimits {
            head_bytes_max: limits::HEAD_BYTES_MAX,
            headers_max: limits::HEADERS_MAX,
            uri_bytes_max: limits::URI_BYTES_MAX,
        }
    }
}

pub(super) fn bytes_max(limits: &HeadLimits) -> usize {
    limits.head_bytes_max.min(usize::from(u16::MAX))
}

/// RFC 9112 §2.2: some empty lines before the request line are ignored. A CR without its LF yet is
/// left alone.
pub(super) fn skip_empty_lines(input: &[u8]) -> Result<usize, Reject> {
    let mut at = 0;
    while let [b'\r' | b'\n', ..] = input[at..] {
        match input[at..] {
            [b'\r'] => break,
            [b'\r', b'\n', ..] if at < 2 * limits::LEADING_EMPTY_LINES_MAX => at += 2,
            _ => return Err(Reject::BadLineEnd),
        }
    }
    Ok(at)
}

/// Only a whole new line, or a request line that is still coming, can change the verdict.
pub(super) fn is_worth_parsing(window: &[u8], seen: usize) -> bool {
    memchr(b'\n', &window[seen..]).is_some() || memchr(b'\n', &window[..seen]).is_none()
}

/// `httparse` takes a bare LF for a line end; found here, the peer does not wait for a deadline.
pub(super) fn has_bare_lf(window: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', window).any(|at| at == 0 || window[at - 1] != b'\r')
}

/// No error in `window`, but no end either: whether it can still become a head within the limits.
pub(super) fn unfinished(window: &[u8], limits: &HeadLimits) -> Result<Option<usize>, Reject> {
    let method = memchr(b' ', window);
    if method.unwrap_or(window.len()) > limits::METHOD_BYTES_MAX {
        return Err(Reject::UnknownMethod);
    }
    if let Some(space) = method {
        let target = &window[space + 1..];
        if memchr(b' ', target).unwrap_or(target.len()) > limits.uri_bytes_max {
            return Err(Reject::UriTooLong);
        }
    }
    if window.len() == bytes_max(limits) {
        return Err(Reject::HeadTooLarge);
    }
    Ok(None)
}

pub(super) fn is_version_prefix(bytes: &[u8]) -> bool {
    bytes.iter().zip(b"HTTP/0.0").all(|(&got, &model)| if model == b'0' { got.is_ascii_digit() } else { got == model })
}
