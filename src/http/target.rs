//! Request targets and authorities (RFC 9112 §3.2, RFC 9110 §4.2). Not for routing. Floor 1.

use super::Reject;
use http::Method;
use memchr::memchr2;
use std::{net::Ipv6Addr, ops::Range};

/// Which of the four forms a request target has (RFC 9112 §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetForm {
    /// `/path?query`
    Origin,
    /// `http://host/path?query`
    Absolute,
    /// `host:port`, for CONNECT only
    Authority,
    /// `*`, for OPTIONS only
    Asterisk,
}

/// Where the parts of a target are, in bytes from its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TargetParts {
    pub(super) form: TargetForm,
    pub(super) authority: Range<usize>,
    pub(super) path: Range<usize>,
    /// Without the question mark.
    pub(super) query: Option<Range<usize>>,
}

/// Splits a target, or refuses it.
///
/// Bytes that RFC 3986 does not allow but browsers send unescaped (`|`, `{`, `"` …) pass; a fragment and
/// bytes outside ASCII do not: servers differ on what they mean.
pub(super) fn split(method: &Method, target: &str) -> Result<TargetParts, Reject> {
    let bytes = target.as_bytes();
    let end = bytes.len();
    if !bytes.is_ascii() {
        return Err(Reject::BadTarget);
    }
    if *method == Method::CONNECT {
        // RFC 9112 §3.2.3: CONNECT takes the authority-form only, with a port.
        return match is_authority(bytes, Port::Required) {
            true => Ok(TargetParts {
                form: TargetForm::Authority,
                authority: 0..end,
                path: 0..0,
                query: None,
            }),
            false => Err(Reject::BadTarget),
        };
    }
    if bytes.first() == Some(&b'/') {
        let (path, query) = split_query(bytes, 0)?;
        return Ok(TargetParts {
            form: TargetForm::Origin,
            authority: 0..0,
            path,
            query,
        });
    }
    if bytes == b"*" && *method == Method::OPTIONS {
        return Ok(TargetParts {
            form: TargetForm::Asterisk,
            authority: 0..0,
            path: 0..end,
            query: None,
        });
    }
    let start = ["http://", "https://"]
        .into_iter()
        .find(|scheme| {
            bytes
                .get(..scheme.len())
                .is_some_and(|s| s.eq_ignore_ascii_case(scheme.as_bytes()))
        })
        .map(str::len)
        .ok_or(Reject::BadTarget)?;
    let path_at = memchr2(b'/', b'?', &bytes[start..]).map_or(end, |at| start + at);
    // RFC 9110 §4.2.1, §4.2.4: an empty host is invalid, and user information is treated as an error.
    if !is_authority(&bytes[start..path_at], Port::Optional) {
        return Err(Reject::BadTarget);
    }
    let (path, query) = split_query(bytes, path_at)?;
    Ok(TargetParts {
        form: TargetForm::Absolute,
        authority: start..path_at,
        path,
        query,
    })
}

type PathAndQuery = (Range<usize>, Option<Range<usize>>);

fn split_query(bytes: &[u8], from: usize) -> Result<PathAndQuery, Reject> {
    let end = bytes.len();
    let Some(at) = memchr2(b'?', b'#', &bytes[from..]).map(|at| from + at) else {
        return Ok((from..end, None));
    };
    if bytes[at] == b'#' || memchr::memchr(b'#', &bytes[at..]).is_some() {
        return Err(Reject::BadTarget);
    }
    Ok((from..at, Some(at + 1..end)))
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Port {
    Optional,
    Required,
}

/// Whether `bytes` is `host` or `host:port` with a host that is not empty (RFC 3986 §3.2.2, without
/// user information). A comma is refused although the grammar has it: a proxy may take it for a list.
pub(super) fn is_authority(bytes: &[u8], port: Port) -> bool {
    let rest = match bytes {
        [b'[', inside @ ..] => {
            let Some(close) = memchr::memchr(b']', inside) else {
                return false;
            };
            match str::from_utf8(&inside[..close]) {
                Ok(literal) if literal.parse::<Ipv6Addr>().is_ok() => &inside[close + 1..],
                _ => return false,
            }
        }
        _ => {
            let host = bytes
                .iter()
                .position(|&b| !is_host_byte(b))
                .unwrap_or(bytes.len());
            if host == 0 || !has_whole_escapes(&bytes[..host]) {
                return false;
            }
            &bytes[host..]
        }
    };
    match rest {
        [] => port == Port::Optional,
        [b':'] => port == Port::Optional,
        [b':', digits @ ..] => {
            digits.iter().all(u8::is_ascii_digit)
                && str::from_utf8(digits).is_ok_and(|digits| digits.parse::<u16>().is_ok())
        }
        _ => false,
    }
}

/// RFC 3986 §2.2, §2.3: unreserved, sub-delims without the comma, and the percent of an escape.
fn is_host_byte(b: u8) -> bool {
    matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'A'..=b'Z' | b'_' | b'~' | b'%'
        | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b';' | b'=')
}

fn has_whole_escapes(host: &[u8]) -> bool {
    memchr::memchr_iter(b'%', host).all(|at| {
        host.get(at + 1..at + 3)
            .is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authority_table() {
        #[track_caller]
        fn check(authority: &str, optional: bool, required: bool) {
            assert_eq!(
                is_authority(authority.as_bytes(), Port::Optional),
                optional,
                "{authority:?}"
            );
            assert_eq!(
                is_authority(authority.as_bytes(), Port::Required),
                required,
                "{authority:?} with port"
            );
        }
        for both in [
            "localhost:80",
            "a:0",
            "a:65535",
            "[::1]:8080",
            "1.2.3.4:1",
            "a_b.c~d:00080",
            "%41b:1",
        ] {
            check(both, true, true);
        }
        for optional in [
            "localhost",
            "LOCALHOST",
            "a:",
            "[::1]",
            "[::ffff:1.2.3.4]",
            "a;b",
            "x%2fy",
        ] {
            check(optional, true, false);
        }
        for neither in [
            "",
            ":",
            ":80",
            "a b",
            "a,b",
            "a, b",
            "a/b",
            "a?b",
            "a#b",
            "u@a",
            "u:p@a",
            "a:b",
            "a:65536",
            "a:+1",
            "a:-1",
            "a:8 ",
            "a:80:80",
            "[::1",
            "::1",
            "[]",
            "[::1]x",
            "[::1]:x",
            "[1.2.3.4]",
            "[fe80::1%25eth0]",
            "a%",
            "a%4",
            "a%zz",
            "a\\b",
            "a\"b",
            "é",
            "a\0",
            "a\tb",
            "[v1.x]",
            "<a>",
        ] {
            check(neither, false, false);
        }
    }

    #[test]
    fn target_table() {
        #[track_caller]
        fn check(
            method: &str,
            target: &str,
            expected: Option<(TargetForm, &str, &str, Option<&str>)>,
        ) {
            let method = Method::from_bytes(method.as_bytes()).expect("token");
            let got = split(&method, target).ok();
            let got = got.map(|p| {
                (
                    p.form,
                    &target[p.authority],
                    &target[p.path],
                    p.query.map(|q| &target[q]),
                )
            });
            assert_eq!(got, expected, "{method} {target}");
        }
        use TargetForm::*;
        check("GET", "/", Some((Origin, "", "/", None)));
        check(
            "GET",
            "/a/b?c=d?e",
            Some((Origin, "", "/a/b", Some("c=d?e"))),
        );
        check("GET", "/?", Some((Origin, "", "/", Some(""))));
        check("GET", "//a/b", Some((Origin, "", "//a/b", None)));
        check("GET", "/a|b{c}\"", Some((Origin, "", "/a|b{c}\"", None)));
        check("GET", "/yo%", Some((Origin, "", "/yo%", None)));
        check(
            "GET",
            "http://h/yo?x",
            Some((Absolute, "h", "/yo", Some("x"))),
        );
        check("GET", "HTTPS://h:8", Some((Absolute, "h:8", "", None)));
        check("GET", "http://h?x", Some((Absolute, "h", "", Some("x"))));
        check(
            "GET",
            "http://[::1]:8/",
            Some((Absolute, "[::1]:8", "/", None)),
        );
        check("OPTIONS", "*", Some((Asterisk, "", "*", None)));
        check("OPTIONS", "/", Some((Origin, "", "/", None)));
        check("CONNECT", "h:443", Some((Authority, "h:443", "", None)));
        for bad in [
            "*",
            "yo",
            "h:443",
            "http:///yo",
            "http://",
            "http://u@h/",
            "ftp://h/",
            "http:/yo",
            "http:yo",
            "/#f",
            "/?a#f",
            "/é",
            "?x",
            "http://h#f",
            "http://h,i/",
            "http://h:x/",
            "javascript:1",
            "**",
            "",
        ] {
            check("GET", bad, None);
        }
        check("OPTIONS", "*?x", None);
        for bad in [
            "/",
            "h",
            "h:",
            "http://h:443/",
            "*",
            "h:443/",
            "u@h:443",
            ":443",
        ] {
            check("CONNECT", bad, None);
        }
    }
}
