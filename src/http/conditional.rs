//! Conditional requests: preconditions in their order, and If-Range (RFC 9110 §13). Floor 1.
//!
//! For: representations that have a strong entity tag and a modification time. Not for: making these.

use super::{Head, semantics::trim};
use std::time::{Duration, UNIX_EPOCH};

/// What of a request's head its answer may depend on when it is for a file; found in one pass over the fields.
#[derive(Clone, Debug)]
pub struct Conditions<'a> {
    head: &'a Head,
    /// The first value of each field in `FIELDS`.
    first: [Option<&'a [u8]>; FIELDS.len()],
    is_repeated: [bool; FIELDS.len()],
}

const FIELDS: [&str; 7] =
    ["if-match", "if-unmodified-since", "if-none-match", "if-modified-since", "if-range", "range", "accept-encoding"];
const IF_MATCH: usize = 0;
const IF_UNMODIFIED_SINCE: usize = 1;
const IF_NONE_MATCH: usize = 2;
const IF_MODIFIED_SINCE: usize = 3;
const IF_RANGE: usize = 4;
const RANGE: usize = 5;
const ACCEPT_ENCODING: usize = 6;

/// By what the selected representation can be told from others.
#[derive(Clone, Copy, Debug)]
pub struct Validators<'a> {
    /// The strong entity tag, with its quotation marks.
    pub etag: &'a [u8],
    /// When it was modified, in seconds since the epoch.
    pub modified_s: u64,
}

/// What the preconditions of a request come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Answer as if there were none.
    Proceed,
    /// The client has it: 304 to GET and HEAD.
    NotModified,
    /// 412.
    Failed,
}

impl<'a> Conditions<'a> {
    /// Looks through the fields of a head once.
    pub fn of(head: &'a Head) -> Self {
        let mut found = Conditions { head, first: [None; FIELDS.len()], is_repeated: [false; FIELDS.len()] };
        for (name, value) in head.headers() {
            let index = match name.len() {
                5 => RANGE,
                8 if name.as_bytes()[3].eq_ignore_ascii_case(&b'm') => IF_MATCH,
                8 => IF_RANGE,
                13 => IF_NONE_MATCH,
                15 => ACCEPT_ENCODING,
                17 => IF_MODIFIED_SINCE,
                19 => IF_UNMODIFIED_SINCE,
                _ => continue,
            };
            if name.eq_ignore_ascii_case(FIELDS[index]) {
                found.is_repeated[index] |= found.first[index].replace(value).is_some();
            }
        }
        found
    }

    /// All values of a field that is a list.
    fn values(&self, index: usize) -> impl Iterator<Item = &'a [u8]> {
        let is_named = move |name: &str| name.eq_ignore_ascii_case(FIELDS[index]);
        self.head.headers().filter(move |(name, _)| is_named(name)).map(|(_, value)| value)
    }

    /// The value of a field that is no list, unless it comes twice: then it says nothing.
    fn value(&self, index: usize) -> Option<&'a [u8]> {
        self.first[index].filter(|_| !self.is_repeated[index])
    }

    /// The values of Accept-Encoding, if there is one.
    pub fn accept_encoding(&self) -> Option<impl Iterator<Item = &'a [u8]>> {
        self.first[ACCEPT_ENCODING].map(|_| self.values(ACCEPT_ENCODING))
    }

    /// Evaluates the preconditions in the order of RFC 9110 §13.2.2, for GET and HEAD.
    pub fn evaluate(&self, is: Validators<'_>) -> Verdict {
        // Step 1 and 2: the client wants to be refused if it is not what it knows. Strong comparison (§13.1.1).
        if self.first[IF_MATCH].is_some() {
            if !self.values(IF_MATCH).any(|list| has_tag(list, is.etag, Comparison::Strong)) {
                return Verdict::Failed;
            }
        } else if let Some(since) = self.value(IF_UNMODIFIED_SINCE).and_then(seconds)
            && is.modified_s > since
        {
            return Verdict::Failed;
        }
        // Step 3 and 4: the client has it already. Weak comparison (§13.1.2); the date counts without tags only.
        if self.first[IF_NONE_MATCH].is_some() {
            if self.values(IF_NONE_MATCH).any(|list| has_tag(list, is.etag, Comparison::Weak)) {
                return Verdict::NotModified;
            }
        } else if let Some(since) = self.value(IF_MODIFIED_SINCE).and_then(seconds)
            && is.modified_s <= since
        {
            return Verdict::NotModified;
        }
        Verdict::Proceed
    }

    /// Step 5: the Range field, if it is to be honoured. Without effect on anything but GET, says RFC 9110 §14.2.
    pub fn range(&self, is: Validators<'_>) -> Option<&'a [u8]> {
        let range = self.value(RANGE)?;
        let applies = match self.first[IF_RANGE] {
            None => true,
            Some(_) if self.is_repeated[IF_RANGE] => false,
            // §13.1.5: strong comparison of a tag, or the exact date.
            Some(tag) if tag.contains(&b'"') => trim(tag) == is.etag,
            Some(date) => seconds(date) == Some(is.modified_s),
        };
        applies.then_some(range)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Comparison {
    Strong,
    Weak,
}

/// Whether a list of entity tags, or `*`, has this one (RFC 9110 §8.8.3.2). It is read up to what is malformed.
fn has_tag(list: &[u8], etag: &[u8], comparison: Comparison) -> bool {
    let mut rest = trim(list);
    if rest == b"*" {
        return true;
    }
    loop {
        while let [b',' | b' ' | b'\t', after @ ..] = rest {
            rest = after;
        }
        let (is_weak, opaque) = match rest {
            [b'W', b'/', opaque @ ..] => (true, opaque),
            opaque => (false, opaque),
        };
        let [b'"', inside @ ..] = opaque else { return false };
        let Some(len) = memchr::memchr(b'"', inside).map(|at| at + 2) else { return false };
        if opaque[..len] == *etag && !(is_weak && comparison == Comparison::Strong) {
            return true;
        }
        rest = &opaque[len..];
    }
}

/// A date in any of the three forms (RFC 9110 §5.6.7), in seconds since the epoch.
fn seconds(date: &[u8]) -> Option<u64> {
    let date = httpdate::parse_http_date(str::from_utf8(date).ok()?).ok()?;
    date.duration_since(UNIX_EPOCH).ok().as_ref().map(Duration::as_secs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{Method, Request};

    const ETAG: &[u8] = b"\"a,b\"";
    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const LATER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";
    const IS: Validators<'static> = Validators { etag: ETAG, modified_s: 784_111_777 };

    fn request(fields: &[(&str, &str)]) -> Request {
        let builder = Request::builder(Method::GET, "/");
        fields.iter().fold(builder, |builder, (name, value)| builder.header(name, value)).body(()).unwrap()
    }

    #[track_caller]
    fn check(fields: &[(&str, &str)], expected: Verdict) {
        assert_eq!(Conditions::of(request(fields).head()).evaluate(IS), expected, "{fields:?}");
    }

    #[test]
    fn each_precondition_alone() {
        use Verdict::*;
        check(&[], Proceed);
        for (value, is_match, is_none_match) in [
            ("\"a,b\"", Proceed, NotModified),
            ("\"x\", \"a,b\"", Proceed, NotModified),
            ("\"x\",\"a,b\" , \"y\"", Proceed, NotModified),
            ("W/\"a,b\"", Failed, NotModified),
            ("W/\"x\", W/\"a,b\"", Failed, NotModified),
            ("*", Proceed, NotModified),
            (" * ", Proceed, NotModified),
            ("\"x\"", Failed, Proceed),
            ("", Failed, Proceed),
            ("a,b", Failed, Proceed),
            ("\"a", Failed, Proceed),
            ("w/\"a,b\"", Failed, Proceed),
            ("\"a\", \"b\"", Failed, Proceed),
            ("\"x\" junk \"a,b\"", Failed, Proceed),
            ("*, \"x\"", Failed, Proceed),
        ] {
            check(&[("If-Match", value)], is_match);
            check(&[("If-None-Match", value)], is_none_match);
        }
        for (value, unmodified, modified) in [
            (DATE, Proceed, NotModified),
            (EARLIER, Failed, Proceed),
            (LATER, Proceed, NotModified),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Proceed, NotModified),
            ("Sun Nov  6 08:49:37 1994", Proceed, NotModified),
            ("yesterday", Proceed, Proceed),
            ("", Proceed, Proceed),
        ] {
            check(&[("If-Unmodified-Since", value)], unmodified);
            check(&[("If-Modified-Since", value)], modified);
        }
    }

    #[test]
    fn preconditions_have_an_order() {
        use Verdict::*;
        let (good, bad) = ("\"a,b\"", "\"x\"");
        // If-Match silences If-Unmodified-Since; If-None-Match silences If-Modified-Since.
        check(&[("If-Match", good), ("If-Unmodified-Since", EARLIER)], Proceed);
        check(&[("If-Match", bad), ("If-Unmodified-Since", LATER)], Failed);
        check(&[("If-None-Match", bad), ("If-Modified-Since", LATER)], Proceed);
        check(&[("If-None-Match", good), ("If-Modified-Since", EARLIER)], NotModified);
        // A failed one of the first pair hides the second pair, a passed one does not.
        check(&[("If-None-Match", good), ("If-Match", bad)], Failed);
        check(&[("If-None-Match", good), ("If-Match", good)], NotModified);
        check(&[("If-Modified-Since", LATER), ("If-Unmodified-Since", EARLIER)], Failed);
        check(&[("If-Modified-Since", LATER), ("If-Unmodified-Since", LATER)], NotModified);
        check(&[("If-Match", good), ("If-Modified-Since", LATER)], NotModified);
    }

    #[test]
    fn repeated_lists_are_one_and_repeated_dates_none() {
        use Verdict::*;
        check(&[("If-None-Match", "\"x\""), ("If-None-Match", "\"a,b\"")], NotModified);
        check(&[("If-Match", "\"a,b\""), ("if-match", "\"x\"")], Proceed);
        check(&[("If-Modified-Since", LATER), ("If-Modified-Since", LATER)], Proceed);
        check(&[("If-Unmodified-Since", EARLIER), ("If-Unmodified-Since", EARLIER)], Proceed);
    }

    #[test]
    fn range_depends_on_if_range() {
        #[track_caller]
        fn check(fields: &[(&str, &str)], applies: bool) {
            let request = request(fields);
            let range = Conditions::of(request.head()).range(IS);
            assert_eq!(range.is_some(), applies, "{fields:?}");
        }
        const RANGE: (&str, &str) = ("Range", "bytes=0-1");
        check(&[RANGE], true);
        check(&[], false);
        check(&[RANGE, RANGE], false);
        for (value, applies) in [
            ("\"a,b\"", true),
            ("W/\"a,b\"", false),
            ("\"x\"", false),
            (DATE, true),
            (LATER, false),
            (EARLIER, false),
            ("yesterday", false),
            ("", false),
            ("*", false),
        ] {
            check(&[RANGE, ("If-Range", value)], applies);
        }
        check(&[RANGE, ("If-Range", "\"a,b\""), ("If-Range", "\"a,b\"")], false);
    }

    #[test]
    fn accept_encoding_is_found_with_all_its_values() {
        let request = request(&[("Accept-Encoding", "gzip"), ("accept-encoding", "br"), ("Accept-Language", "de")]);
        let values: Vec<_> = Conditions::of(request.head()).accept_encoding().unwrap().collect();
        assert_eq!(values, [b"gzip".as_slice(), b"br"]);
    }
}
