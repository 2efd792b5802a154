//! What the fields of a head mean for this server: framing, host, persistence, and the known methods.
//!
//! Not for: the grammar of fields, which is checked before. Floor 1.

use super::{
    Reject,
    target::{self, Port},
};
use http::Method;

/// What the fields say together, gathered in one walk over them.
#[derive(Default)]
pub(super) struct Semantics {
    pub(super) host: Option<usize>,
    pub(super) content_length: Option<u64>,
    /// A Transfer-Encoding was there: usable, or why not.
    pub(super) coding: Option<Result<(), Reject>>,
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    pub(super) expect_continue: bool,
}

impl Semantics {
    /// The length of a name rules out nearly all fields before a letter is compared.
    #[inline]
    pub(super) fn read(&mut self, index: usize, name: &str, value: &[u8]) -> Result<(), Reject> {
        match name.len() {
            4 if name.eq_ignore_ascii_case("host") => {
                if self.host.replace(index).is_some() {
                    return Err(Reject::RepeatedHost);
                }
                if !target::is_authority(value, Port::Optional) {
                    return Err(Reject::BadHost);
                }
            }
            6 if name.eq_ignore_ascii_case("expect") => {
                self.expect_continue |= list(value).any(|item| item.eq_ignore_ascii_case(b"100-continue"));
            }
            10 if name.eq_ignore_ascii_case("connection") => {
                for option in list(value) {
                    self.close |= option.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            14 if name.eq_ignore_ascii_case("content-length") => {
                let earlier = self.content_length.replace(parse_length(value)?);
                // RFC 9112 §6.3 would allow equal repetitions; nobody sends them but who probes.
                earlier.map_or(Ok(()), |_| Err(Reject::RepeatedContentLength))?;
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                let repeated = self.coding.is_some();
                self.coding = Some(if repeated { Err(Reject::BadCoding) } else { check_coding(value) });
            }
            _ => {}
        }
        Ok(())
    }
}

/// RFC 9110 §8.6: `1*DIGIT`, decimal. Lists, signs, white space and overflow are errors.
fn parse_length(value: &[u8]) -> Result<u64, Reject> {
    if value.is_empty() {
        return Err(Reject::BadContentLength);
    }
    value
        .iter()
        .try_fold(0u64, |length, byte| {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            length.checked_mul(10)?.checked_add(u64::from(digit))
        })
        .ok_or(Reject::BadContentLength)
}

/// RFC 9112 §6.1, §6.3: `chunked` must be last and only once; we know no coding to go before it.
fn check_coding(value: &[u8]) -> Result<(), Reject> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    let (mut count, mut chunked, mut last) = (0, 0, false);
    for coding in list(value) {
        last = coding.eq_ignore_ascii_case(b"chunked");
        chunked += usize::from(last);
        count += usize::from(!coding.is_empty());
    }
    match (last, chunked) {
        (true, 1) if count > 1 => Err(Reject::UnsupportedCoding),
        _ => Err(Reject::BadCoding),
    }
}

/// The elements of a comma-separated list without the white space around them; empty ones too.
pub(super) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&b| b == b',').map(trim)
}

/// Without the optional white space around it, which is SP and HTAB and nothing else (RFC 9110 §5.6.3).
pub(super) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// The method, if a registry has it (RFC 9110 §9.1 asks for 501 otherwise).
pub(super) fn known_method(token: &str) -> Result<Method, Reject> {
    /// IANA's registry beyond what the `http` crate has constants for.
    const REGISTERED: [&str; 30] = [
        "ACL",
        "BASELINE-CONTROL",
        "BIND",
        "CHECKIN",
        "CHECKOUT",
        "COPY",
        "LABEL",
        "LINK",
        "LOCK",
        "MERGE",
        "MKACTIVITY",
        "MKCALENDAR",
        "MKCOL",
        "MKREDIRECTREF",
        "MKWORKSPACE",
        "MOVE",
        "ORDERPATCH",
        "PROPFIND",
        "PROPPATCH",
        "QUERY",
        "REBIND",
        "REPORT",
        "SEARCH",
        "UNBIND",
        "UNCHECKOUT",
        "UNLINK",
        "UNLOCK",
        "UPDATE",
        "UPDATEREDIRECTREF",
        "VERSION-CONTROL",
    ];
    match token {
        "GET" => Ok(Method::GET),
        "POST" => Ok(Method::POST),
        "HEAD" => Ok(Method::HEAD),
        "PUT" => Ok(Method::PUT),
        "DELETE" => Ok(Method::DELETE),
        "OPTIONS" => Ok(Method::OPTIONS),
        "PATCH" => Ok(Method::PATCH),
        "CONNECT" => Ok(Method::CONNECT),
        "TRACE" => Ok(Method::TRACE),
        _ if REGISTERED.contains(&token) => Method::from_bytes(token.as_bytes()).map_err(|_| Reject::BadMethod),
        _ => Err(Reject::UnknownMethod),
    }
}
