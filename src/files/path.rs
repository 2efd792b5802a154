//! From the part of a request's path that is beneath a mount to a path beneath its directory. Pure.
//!
//! What is served has one spelling up to percent-encoding, so that what a middleware checked is what is served: empty
//! and dot segments are redirected, not resolved.

use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use std::borrow::Cow;

/// Bytes that are no part of a segment as it stands: all but RFC 3986's `pchar`.
const NOT_PCHAR: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// The only names with a dot at their beginning that are served (RFC 8615).
const WELL_KNOWN: &[u8] = b".well-known";

/// What a path names, without slashes at its ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted<'a> {
    /// A file, or a directory that lacks its slash.
    File(Cow<'a, [u8]>),
    /// What stands for a directory; empty: the root.
    Directory(Cow<'a, [u8]>),
}

/// Why a path names nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unnamed {
    /// Its escapes are broken, it holds a NUL, or it leads above the root.
    Malformed,
    /// No file can have the name, or it is hidden.
    Absent,
    /// It has empty or dot segments; without them it is this.
    Otherwise(String),
}

/// Reads `tail`, which begins behind the mount's slash.
pub(super) fn resolve(tail: &str) -> Result<Wanted<'_>, Unnamed> {
    if is_plain(tail) {
        return Ok(match tail.strip_suffix('/') {
            Some(directory) => Wanted::Directory(Cow::Borrowed(directory.as_bytes())),
            None if tail.is_empty() => Wanted::Directory(Cow::Borrowed(b"")),
            None => Wanted::File(Cow::Borrowed(tail.as_bytes())),
        });
    }
    let mut segments: Vec<Cow<'_, [u8]>> = Vec::new();
    let (mut is_normal, mut is_directory) = (true, false);
    let mut left = tail.split('/').peekable();
    while let Some(escaped) = left.next() {
        let is_last = left.peek().is_none();
        let segment = decode(escaped)?;
        match &*segment {
            b"" if is_last => is_directory = true,
            b"" => is_normal = false,
            b"." => (is_normal, is_directory) = (false, is_last),
            b".." => {
                segments.pop().ok_or(Unnamed::Malformed)?;
                (is_normal, is_directory) = (false, is_last);
            }
            _ => segments.push(segment),
        }
    }
    let is_hidden =
        |(at, segment): (usize, &Cow<'_, [u8]>)| segment.starts_with(b".") && !(at == 0 && **segment == *WELL_KNOWN);
    if segments.iter().enumerate().any(is_hidden) {
        return Err(Unnamed::Absent);
    }
    let path = segments.join(&b'/');
    match (is_normal, is_directory) {
        (true, true) => Ok(Wanted::Directory(Cow::Owned(path))),
        (true, false) => Ok(Wanted::File(Cow::Owned(path))),
        (false, _) => {
            let slash = if is_directory && !path.is_empty() { "/" } else { "" };
            Err(Unnamed::Otherwise(encode(&path) + slash))
        }
    }
}

/// Whether a path needs no second look: no escape, no empty segment, no dot at the beginning of one.
fn is_plain(tail: &str) -> bool {
    let bytes = tail.as_bytes();
    !bytes.contains(&b'%')
        && !bytes.contains(&0)
        && !matches!(bytes.first(), Some(b'/' | b'.'))
        && !bytes.windows(2).any(|pair| pair[0] == b'/' && matches!(pair[1], b'/' | b'.'))
}

/// Without its escapes.
fn decode(segment: &str) -> Result<Cow<'_, [u8]>, Unnamed> {
    let mut parts = segment.as_bytes().split(|&b| b == b'%');
    let is_whole = parts.next().is_some()
        && parts.all(|after| after.get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)));
    if !is_whole {
        return Err(Unnamed::Malformed);
    }
    let decoded: Cow<'_, [u8]> = percent_encoding::percent_decode_str(segment).into();
    match memchr::memchr2(0, b'/', &decoded) {
        None => Ok(decoded),
        Some(at) if decoded[at] == 0 => Err(Unnamed::Malformed),
        Some(_) => Err(Unnamed::Absent), // a slash that was escaped, to be one for nobody else
    }
}

/// A path's one spelling in a URL.
pub(super) fn encode(path: &[u8]) -> String {
    let mut encoded = String::with_capacity(path.len());
    for (at, segment) in path.split(|&b| b == b'/').enumerate() {
        if at > 0 {
            encoded.push('/');
        }
        encoded.extend(percent_encode(segment, NOT_PCHAR));
    }
    encoded
}

/// The Location for `tail` beneath a mount whose part of the request's path is `mount`: a path of this server, whatever
/// the mount's parameters made of it. (A browser reads `//host` and `/\host` as another server.)
pub(super) fn location(mount: &str, tail: &str, query: Option<&str>) -> String {
    const NOT_PATH: &AsciiSet = &NOT_PCHAR.remove(b'/').remove(b'%');
    let mount = mount.trim_matches(['/', '\\']);
    let mut location = String::from("/");
    location.extend(percent_encode(mount.as_bytes(), NOT_PATH));
    if !mount.is_empty() {
        location.push('/');
    }
    location.push_str(tail);
    if let Some(query) = query {
        location.push('?');
        location.push_str(query);
    }
    location
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> Result<Wanted<'_>, Unnamed> {
        Ok(Wanted::File(Cow::Borrowed(path.as_bytes())))
    }

    fn directory(path: &str) -> Result<Wanted<'_>, Unnamed> {
        Ok(Wanted::Directory(Cow::Borrowed(path.as_bytes())))
    }

    fn otherwise(tail: &str) -> Result<Wanted<'static>, Unnamed> {
        Err(Unnamed::Otherwise(tail.to_owned()))
    }

    #[track_caller]
    fn check(tail: &str, expected: Result<Wanted<'_>, Unnamed>) {
        assert_eq!(resolve(tail), expected, "{tail:?}");
    }

    #[test]
    fn names_are_decoded_once() {
        check("", directory(""));
        check("a", file("a"));
        check("a/", directory("a"));
        check("a/b.css", file("a/b.css"));
        check("a/b/", directory("a/b"));
        check("a.b/c..d", file("a.b/c..d"));
        check("a%20b/%C3%A9", file("a b/é"));
        check("%61", file("a"));
        check("a%2525", file("a%25"));
        check("a+b", file("a+b"));
        check("a\\b", file("a\\b"));
        check("a%5C..%5Cb", file("a\\..\\b"));
        check("...x/a", Err(Unnamed::Absent));
        assert_eq!(resolve("%ff%FE"), Ok(Wanted::File(Cow::Borrowed(b"\xff\xfe"))));
    }

    #[test]
    fn empty_and_dot_segments_are_elsewhere() {
        check("/", otherwise(""));
        check("//", otherwise(""));
        check("/evil.example", otherwise("evil.example"));
        check("/evil.example/", otherwise("evil.example/"));
        check("a//b", otherwise("a/b"));
        check("a//", otherwise("a/"));
        check("./a", otherwise("a"));
        check("a/.", otherwise("a/"));
        check("a/./b", otherwise("a/b"));
        check("a/..", otherwise(""));
        check("a/../", otherwise(""));
        check("a/b/..", otherwise("a/"));
        check("a/../b", otherwise("b"));
        check("a/%2e%2E/b c", otherwise("b%20c"));
        check("a/../%5Cb%3F", otherwise("%5Cb%3F"));
    }

    #[test]
    fn what_leads_out_or_is_broken_is_malformed() {
        for tail in [
            "..",
            "../",
            "../a",
            "%2e%2e",
            "%2e%2e/a",
            ".%2e/a",
            "a/../..",
            "a/../../b",
            "/..",
            "./..",
            "a/%2e./../../c",
            "%",
            "%4",
            "a%zz",
            "%%41",
            "a/%2",
            "%00",
            "a%00.html",
            "a/%00/../b",
            "a\0b",
        ] {
            check(tail, Err(Unnamed::Malformed));
        }
    }

    #[test]
    fn escaped_slashes_and_dotfiles_name_nothing() {
        for tail in [
            "a%2Fb",
            "%2f",
            "..%2f..%2fetc",
            "a/..%2fb",
            ".git",
            ".git/config",
            "a/.htaccess",
            "%2egit",
            "a/%2Ex",
            "..a",
            ".well-known2/x",
            "a/.well-known/x",
            ".well-known/.x",
            "/.git",
            "b/../.git",
        ] {
            check(tail, Err(Unnamed::Absent));
        }
        check(".well-known/acme-challenge/x", file(".well-known/acme-challenge/x"));
        check(".well-known/", directory(".well-known"));
        check("%2ewell-known/x", file(".well-known/x"));
    }

    #[test]
    fn encoding_has_one_spelling() {
        assert_eq!(encode(b"a b/\xff%/c?d#e\\f:@!$&'()*+,;=-._~"), "a%20b/%FF%25/c%3Fd%23e%5Cf:@!$&'()*+,;=-._~");
        for path in ["", "a", "a/b", "\"<>`{|}[]^\u{7f}\n"] {
            let encoded = encode(path.as_bytes());
            assert!(encoded.bytes().all(|b| b.is_ascii_graphic()));
            let expected = if path.is_empty() { directory("") } else { file(path) };
            assert_eq!(resolve(&encoded), expected);
        }
    }

    #[test]
    fn locations_stay_on_this_server() {
        #[track_caller]
        fn check(mount: &str, tail: &str, query: Option<&str>, expected: &str) {
            assert_eq!(location(mount, tail, query), expected);
        }
        check("/", "a/", None, "/a/");
        check("/", "", None, "/");
        check("/static/", "a/", Some("b=c?d"), "/static/a/?b=c?d");
        check("/static", "", Some(""), "/static/?");
        check("//evil.example/", "a/", None, "/evil.example/a/");
        check("/\\evil.example/", "a/", None, "/evil.example/a/");
        check("/\\/evil.example/", "a/", None, "/evil.example/a/");
        check("/a\\b%5C/", "a/", None, "/a%5Cb%5C/a/");
    }
}
