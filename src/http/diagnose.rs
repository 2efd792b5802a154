//! From an error of `httparse` to the refusal that names the fault. Cold: runs once a connection at most. Floor 1.

use super::Reject;

/// Turns `httparse`'s error into ours by looking for the first fault.
#[cold]
pub(super) fn diagnose(error: httparse::Error, window: &[u8]) -> Reject {
    match error {
        httparse::Error::Token => {
            let method = window
                .iter()
                .position(|&b| !is_tchar(b))
                .unwrap_or(window.len());
            match window.get(method) {
                Some(b' ') if method > 0 => {}
                _ => return Reject::BadMethod,
            }
            let target = window[method + 1..]
                .iter()
                .find(|&&b| b <= b' ' || b == 0x7f);
            if matches!(target, Some(b'\r' | b'\n')) {
                Reject::BadRequestLine
            } else {
                Reject::BadTarget
            }
        }
        httparse::Error::HeaderName => diagnose_field_name(window),
        httparse::Error::HeaderValue => Reject::BadFieldValue,
        httparse::Error::TooManyHeaders => Reject::TooManyFields,
        _ => {
            let line = memchr::memchr2(b'\r', b'\n', window).unwrap_or(window.len());
            match window[..line].ends_with(b"HTTP/1.1") || window[..line].ends_with(b"HTTP/1.0") {
                true => Reject::BadLineEnd,
                false => Reject::BadRequestLine,
            }
        }
    }
}

fn diagnose_field_name(window: &[u8]) -> Reject {
    for line in window.split(|&b| b == b'\n').skip(1) {
        if matches!(line.first(), Some(b' ' | b'\t')) {
            return Reject::FoldedField;
        }
        let name = line
            .iter()
            .position(|&b| !is_tchar(b))
            .unwrap_or(line.len());
        match line[name..] {
            [b':', ..] if name > 0 => {}
            [b' ' | b'\t', ..] if name > 0 => return Reject::SpaceBeforeColon,
            _ => return Reject::BadFieldName,
        }
    }
    Reject::BadFieldName
}

/// RFC 9110 §5.6.2.
pub(super) fn is_tchar(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}
