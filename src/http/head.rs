//! One request head: parsed once, checked strictly, kept in buffers that are used again.
//!
//! For: grammar (by `httparse`), framing, the Host rule, persistence. Not for: reading bytes, deadlines,
//! what to answer. Floor 1.

use super::{
    HeadLimits, Reject,
    diagnose::{diagnose, is_tchar},
    scan,
    semantics::{Semantics, known_method, trim},
    target::{self, TargetForm},
};
use crate::limits;
use http::Method;
use std::{cell::Cell, fmt, mem::MaybeUninit, ops::Range};

/// How the end of a request's body is found (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body; also `Content-Length: 0`, which [`Head::has_content_length`] remembers.
    None,
    /// So many bytes, at least one.
    Length(u64),
    /// Chunked coding.
    Chunked,
}

/// The version of a request. HTTP/1.2 and later 1.x count as 1.1 (RFC 9110 §2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
}

/// One request head. Its buffers are kept from request to request.
///
/// ```
/// use everycore::http::{Head, HeadLimits};
/// let mut head = Head::new();
/// let input = b"GET /yo?name=X HTTP/1.1\r\nHost: localhost\r\n\r\nGET ";
/// assert_eq!(head.parse(&input[..20], &HeadLimits::default()), Ok(None)); // more is needed
/// assert_eq!(head.parse(input, &HeadLimits::default()), Ok(Some(input.len() - 4)));
/// assert_eq!((head.path(), head.query()), ("/yo", Some("name=X")));
/// assert_eq!(head.header("host"), Some(&b"localhost"[..]));
/// ```
pub struct Head {
    method: Method,
    version: Version,
    target: String,
    form: TargetForm,
    authority: Range<u16>,
    path: Range<u16>,
    query: Option<Range<u16>>,
    /// The head as it came; [`Field`]s point into it.
    bytes: Vec<u8>,
    /// Set while `self` is what parsing `bytes` under these limits gives.
    parsed_under: Option<HeadLimits>,
    fields: Vec<Field>,
    /// Index into `fields`.
    host: Option<usize>,
    framing: Framing,
    has_content_length: bool,
    keep_alive: bool,
    expect_continue: bool,
    /// What an application remembers of this head: who, and what. Forgotten with the next parse.
    memo: Cell<(u32, u32)>,
}

/// Where a field is in [`Head::bytes`].
#[derive(Clone, Copy, Debug)]
struct Field {
    name_at: u16,
    name_len: u16,
    value_at: u16,
    value_len: u16,
}

impl Head {
    /// An empty head, for [`parse`](Head::parse) to fill.
    pub fn new() -> Head {
        Head {
            method: Method::GET,
            version: Version::Http11,
            target: String::new(),
            form: TargetForm::Origin,
            authority: 0..0,
            path: 0..0,
            query: None,
            bytes: Vec::new(),
            parsed_under: None,
            fields: Vec::new(),
            host: None,
            framing: Framing::None,
            has_content_length: false,
            keep_alive: true,
            expect_continue: false,
            memo: Cell::default(),
        }
    }

    /// Reads one head from the start of `input`.
    ///
    /// `Ok(Some(n))`: the head was the first `n` bytes and `self` holds a copy of its meaning.
    /// `Ok(None)`: more bytes are needed. `Err`: answer and close; of `self` only [`method`](Head::method)
    /// means anything: HEAD where the refused request asked for an answer without a body, else GET.
    pub fn parse(&mut self, input: &[u8], limits: &HeadLimits) -> Result<Option<usize>, Reject> {
        self.parse_from(input, 0, limits)
    }

    /// As [`parse`](Head::parse), for input whose first `seen` bytes were given before and got `Ok(None)`.
    ///
    /// A peer that sends byte by byte then costs one parse a line, not one a byte.
    pub fn parse_from(&mut self, input: &[u8], seen: usize, limits: &HeadLimits) -> Result<Option<usize>, Reject> {
        let skipped = scan::skip_empty_lines(input)?;
        let rest = &input[skipped..];
        let window = &rest[..rest.len().min(scan::bytes_max(limits))];
        // The same head as this object's last one: clients repeat themselves, and pools hand out the last head first.
        if self.parsed_under.as_ref() == Some(limits) && window.starts_with(&self.bytes) {
            return Ok(Some(skipped + self.bytes.len()));
        }
        let seen = seen.saturating_sub(skipped).min(window.len());
        if seen > 0 && !scan::is_worth_parsing(window, seen) {
            return scan::unfinished(window, limits);
        }
        self.parsed_under = None;
        match self.parse_window(window, limits) {
            Ok(length) => Ok(length.map(|length| skipped + length)),
            Err(reject) => {
                // RFC 9110 §9.3.2: even a refusal has no content when the method was HEAD.
                self.method = if window.starts_with(b"HEAD ") { Method::HEAD } else { Method::GET };
                Err(reject)
            }
        }
    }

    fn parse_window(&mut self, window: &[u8], limits: &HeadLimits) -> Result<Option<usize>, Reject> {
        let mut slots = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; limits::HEADERS_MAX];
        let mut more = Vec::new(); // for those who asked for more than the default
        let slots = match slots.get_mut(..limits.headers_max) {
            Some(slots) => slots,
            None => {
                more.resize(limits.headers_max.min(limits::HEADERS_CEILING), MaybeUninit::uninit());
                &mut more[..]
            }
        };
        let mut request = httparse::Request::new(&mut []);
        match request.parse_with_uninit_headers(window, slots) {
            Ok(httparse::Status::Complete(length)) => {
                self.take(&request, &window[..length], limits)?;
                self.parsed_under = Some(*limits);
                Ok(Some(length))
            }
            Ok(httparse::Status::Partial) if scan::has_bare_lf(window) => Err(Reject::BadLineEnd),
            Ok(httparse::Status::Partial) => scan::unfinished(window, limits),
            Err(httparse::Error::Version) => self.parse_other_version(window, limits),
            Err(error) => Err(diagnose(error, window)),
        }
    }

    /// `httparse` knows 1.0 and 1.1 only. Rare, so a copy that says 1.1 is made and parsed for 1.2 to 1.9.
    #[cold]
    fn parse_other_version(&mut self, window: &[u8], limits: &HeadLimits) -> Result<Option<usize>, Reject> {
        let mut spaces = memchr::memchr_iter(b' ', window);
        let at = spaces.nth(1).map_or(window.len(), |space| space + 1);
        let version = &window[at..window.len().min(at + b"HTTP/1.1".len())];
        match version {
            [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9'] => {
                let mut copy = window.to_vec();
                copy[at + version.len() - 1] = b'1';
                let parsed = self.parse_window(&copy, limits);
                self.parsed_under = None; // `bytes` is not what came
                parsed
            }
            [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => Err(Reject::VersionNotSupported),
            _ if at + version.len() == window.len() && scan::is_version_prefix(version) => {
                scan::unfinished(window, limits)
            }
            _ => Err(Reject::BadRequestLine),
        }
    }

    /// Copies what `httparse` found in `head` and applies the rules that it leaves to us.
    fn take(&mut self, request: &httparse::Request<'_, '_>, head: &[u8], limits: &HeadLimits) -> Result<(), Reject> {
        let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
            return Err(Reject::BadRequestLine);
        };
        if target.len() > limits.uri_bytes_max {
            return Err(Reject::UriTooLong);
        }
        // RFC 9112 §2.2 lets a bare LF end a line; peers that do not take it so would see another request.
        if !head.ends_with(b"\r\n\r\n") {
            return Err(Reject::BadLineEnd);
        }
        self.method = known_method(method)?;
        self.version = if minor == 0 { Version::Http10 } else { Version::Http11 };
        self.set_target(target)?;
        self.take_fields(request.headers, head)
    }

    pub(super) fn set_target(&mut self, target: &str) -> Result<(), Reject> {
        let parts = target::split(&self.method, target)?;
        let narrow = |range: Range<usize>| range.start as u16..range.end as u16;
        self.memo.take();
        self.target.clear();
        self.target.push_str(target);
        self.form = parts.form;
        self.authority = narrow(parts.authority);
        self.path = narrow(parts.path);
        self.query = parts.query.map(narrow);
        Ok(())
    }

    fn take_fields(&mut self, headers: &[httparse::Header<'_>], head: &[u8]) -> Result<(), Reject> {
        let offset = |part: *const u8| part as usize - head.as_ptr() as usize;
        self.bytes.clear();
        self.parsed_under = None;
        self.bytes.extend_from_slice(head);
        self.fields.clear();
        let mut semantics = Semantics::default();
        for header in headers {
            let name_at = offset(header.name.as_ptr());
            // The line before this one must have ended in CRLF; the last line was checked by the caller.
            if head[name_at - 2] != b'\r' {
                return Err(Reject::BadLineEnd);
            }
            semantics.read(self.fields.len(), header.name, header.value)?;
            self.fields.push(Field {
                name_at: name_at as u16,
                name_len: header.name.len() as u16,
                value_at: offset(header.value.as_ptr()) as u16,
                value_len: header.value.len() as u16,
            });
        }
        self.apply(semantics)
    }

    fn apply(&mut self, semantics: Semantics) -> Result<(), Reject> {
        let is_11 = self.version == Version::Http11;
        // RFC 9112 §3.2: also when the target names the authority itself.
        if semantics.host.is_none() && is_11 {
            return Err(Reject::MissingHost);
        }
        self.host = semantics.host;
        self.has_content_length = semantics.content_length.is_some();
        self.framing = match (semantics.coding, semantics.content_length) {
            // RFC 9112 §6.1: the framing of such a 1.0 message is faulty.
            (Some(_), _) if !is_11 => return Err(Reject::CodingInHttp10),
            (Some(_), Some(_)) => return Err(Reject::LengthAndCoding),
            (Some(coding), None) => coding.map(|()| Framing::Chunked)?,
            (None, None | Some(0)) => Framing::None,
            (None, Some(length)) if length > limits::BODY_BYTES_MAX => {
                return Err(Reject::BodyTooLarge);
            }
            (None, Some(length)) => Framing::Length(length),
        };
        // RFC 9112 §9.3: close wins, 1.1 persists, 1.0 persists when asked to.
        self.keep_alive = !semantics.close && (is_11 || semantics.keep_alive);
        // RFC 9110 §10.1.1: ignored in 1.0, and without content there is nothing to wait for.
        self.expect_continue = semantics.expect_continue && is_11 && self.framing != Framing::None;
        Ok(())
    }

    /// What `owner` (not 0) remembers of this head since it was parsed: clients repeat themselves, and what follows from a
    /// head alone need not be found out again.
    #[inline]
    pub(crate) fn memo(&self, owner: u32) -> Option<u32> {
        let (who, what) = self.memo.get();
        (who == owner).then_some(what)
    }

    /// Remembers; one owner at a time.
    pub(crate) fn set_memo(&self, owner: u32, what: u32) {
        self.memo.set((owner, what));
    }

    /// The method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// The request target as it came, e.g. `/yo?name=X`.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Which form the target has.
    pub fn form(&self) -> TargetForm {
        self.form
    }

    /// The path as it came, percent-encoded; `*` for the asterisk-form, empty for CONNECT.
    pub fn path(&self) -> &str {
        match self.part(&self.path) {
            // RFC 9110 §4.2.3: an empty path is the path "/".
            "" if self.form == TargetForm::Absolute => "/",
            path => path,
        }
    }

    /// The query as it came, without its question mark.
    pub fn query(&self) -> Option<&str> {
        self.query.as_ref().map(|query| self.part(query))
    }

    /// `host` or `host:port` of the target, or of the Host field where the target has none (RFC 9112 §3.2.2).
    pub fn authority(&self) -> Option<&str> {
        match self.part(&self.authority) {
            "" => str::from_utf8(self.value(&self.fields[self.host?])).ok(),
            authority => Some(authority),
        }
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// How the body's end is found.
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// Whether there is a Content-Length field, be it zero.
    pub fn has_content_length(&self) -> bool {
        self.has_content_length
    }

    /// Whether the connection may serve another request after this one, as far as the peer says.
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// Whether the peer waits for `100 Continue` before it sends the body.
    pub fn expect_continue(&self) -> bool {
        self.expect_continue
    }

    /// The value of the first field called `name`, whatever the case of its letters.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let field = self.fields.iter().find(|field| self.name(field).eq_ignore_ascii_case(name.as_bytes()))?;
        Some(self.value(field))
    }

    /// All fields in the order they came.
    pub fn headers(&self) -> impl ExactSizeIterator<Item = (&str, &[u8])> {
        self.fields.iter().map(|field| {
            let name = str::from_utf8(self.name(field)).expect("a field name is a token");
            (name, self.value(field))
        })
    }

    fn part(&self, range: &Range<u16>) -> &str {
        &self.target[range.start as usize..range.end as usize]
    }

    fn name(&self, field: &Field) -> &[u8] {
        &self.bytes[field.name_at as usize..][..field.name_len as usize]
    }

    fn value(&self, field: &Field) -> &[u8] {
        &self.bytes[field.value_at as usize..][..field.value_len as usize]
    }

    /// Fills the head from a request that did not come as HTTP/1 text, under the rules of [`parse`](Head::parse).
    pub(crate) fn fill<'a>(
        &mut self,
        method: &[u8],
        target: &str,
        version: Version,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        limits: &HeadLimits,
    ) -> Result<(), Reject> {
        if target.len() > limits.uri_bytes_max {
            return Err(Reject::UriTooLong);
        }
        let method = str::from_utf8(method).map_err(|_| Reject::BadMethod)?;
        self.assemble(known_method(method)?, target)?;
        self.version = version;
        let mut semantics = Semantics::default();
        for (index, (name, value)) in fields.enumerate() {
            if index == limits.headers_max.min(limits::HEADERS_CEILING) {
                return Err(Reject::TooManyFields);
            }
            let name = str::from_utf8(name).map_err(|_| Reject::BadFieldName)?;
            let value = trim(value);
            self.push_field(name, value)?;
            semantics.read(index, name, value)?;
            if self.bytes.len() > limits.head_bytes_max {
                return Err(Reject::HeadTooLarge);
            }
        }
        self.apply(semantics)
    }

    /// Starts a head that was not parsed from bytes. The target and the fields pass the same checks.
    pub(super) fn assemble(&mut self, method: Method, target: &str) -> Result<(), Reject> {
        self.version = Version::Http11;
        self.bytes.clear();
        self.parsed_under = None;
        self.fields.clear();
        self.host = None;
        self.keep_alive = true;
        self.expect_continue = false;
        self.set_framing(Some(0));
        if !target.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Reject::BadTarget);
        }
        self.method = method;
        self.set_target(target)
    }

    /// Adds a field to an assembled head.
    pub(super) fn push_field(&mut self, name: &str, value: &[u8]) -> Result<(), Reject> {
        if name.is_empty() || !name.bytes().all(is_tchar) {
            return Err(Reject::BadFieldName);
        }
        if value.iter().any(|&b| (b < b' ' && b != b'\t') || b == 0x7f) {
            return Err(Reject::BadFieldValue);
        }
        let name_at = self.bytes.len();
        let value_at = name_at + name.len();
        if value_at + value.len() > usize::from(u16::MAX) {
            return Err(Reject::HeadTooLarge);
        }
        if name.eq_ignore_ascii_case("host") && self.host.replace(self.fields.len()).is_some() {
            return Err(Reject::RepeatedHost);
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(value);
        self.fields.push(Field {
            name_at: name_at as u16,
            name_len: name.len() as u16,
            value_at: value_at as u16,
            value_len: value.len() as u16,
        });
        Ok(())
    }

    /// The version of an assembled head.
    pub(super) fn set_version(&mut self, version: Version) {
        self.version = version;
        self.keep_alive = version == Version::Http11;
    }

    /// The framing of an assembled head whose body has `len` bytes.
    pub(super) fn set_framing(&mut self, len: Option<u64>) {
        self.has_content_length = len.is_some();
        self.framing = match len {
            Some(0) => Framing::None,
            Some(len) => Framing::Length(len),
            None => Framing::Chunked,
        };
    }

    /// Bytes of heap that the buffers hold, for pools to decide on.
    #[inline]
    pub(super) fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.target.capacity() + self.fields.capacity() * size_of::<Field>()
    }
}

/// Without the fields' values: they hold credentials, and requests end up in logs.
impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Head")
            .field("method", &self.method)
            .field("target", &self.target)
            .field("version", &self.version)
            .field("fields", &self.headers().map(|(name, _)| name).collect::<Vec<_>>())
            .field("framing", &self.framing)
            .field("keep_alive", &self.keep_alive)
            .field("expect_continue", &self.expect_continue)
            .finish_non_exhaustive()
    }
}

impl Default for Head {
    fn default() -> Head {
        Head::new()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::reference::{self, Verdict},
        *,
    };

    const GET: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

    /// Heads of every kind that is accepted.
    const GOOD: [&str; 14] = [
        GET,
        "GET /yo?name=X HTTP/1.1\r\nHost: localhost:8080\r\nUser-Agent: a b\r\nAccept: */*\r\n\r\n",
        "\r\n\r\nGET / HTTP/1.1\r\nhost:x\r\nX-A:\r\nX-B: \t \r\nX-C: \t 1 \u{e9} \t\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: [::1]:80\r\nContent-Length: 12\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\ntRANSFER-eNCODING: ChUnKeD\r\n\r\n",
        "POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nHost: x\r\nContent-Length: 5\r\nConnection: a, close\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        "GET http://localhost/yo?x HTTP/1.1\r\nHost: other.example\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        "CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n",
        "HEAD /%2e%2e/a HTTP/1.2\r\nHost: x\r\n\r\n",
        "PROPFIND / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n",
        "LOCK //a|b HTTP/1.9\r\nHost: a%20b\r\n\r\n",
    ];

    #[test]
    fn head_object_used_again_forgets_nothing_and_keeps_nothing() {
        let mut used = Head::new();
        let tight = HeadLimits { headers_max: 1, ..HeadLimits::default() };
        for first in GOOD {
            for second in GOOD {
                let _ = used.parse(first.as_bytes(), &HeadLimits::default());
                let input = [second, "GET "].concat();
                let (fresh_result, fresh) = parse(input.as_bytes());
                assert_eq!(used.parse(input.as_bytes(), &HeadLimits::default()), fresh_result);
                assert_eq!(format!("{used:?}"), format!("{fresh:?}"));
                assert!(used.headers().eq(fresh.headers()));
                assert_eq!(
                    (used.path(), used.query(), used.authority()),
                    (fresh.path(), fresh.query(), fresh.authority())
                );
                assert_eq!(used.parse(&input.as_bytes()[..second.len() - 1], &HeadLimits::default()), Ok(None));
                let under_tight = Head::new().parse(input.as_bytes(), &tight);
                assert_eq!(used.parse(input.as_bytes(), &tight), under_tight, "other limits are obeyed");
            }
        }
    }

    fn parse(input: &[u8]) -> (Result<Option<usize>, Reject>, Head) {
        let mut head = Head::new();
        (head.parse(input, &HeadLimits::default()), head)
    }

    #[track_caller]
    fn good(input: &str) -> Head {
        let (result, head) = parse(input.as_bytes());
        assert_eq!(result, Ok(Some(input.len())), "{input:?}");
        head
    }

    #[track_caller]
    fn check(input: impl AsRef<[u8]>, expected: Reject) {
        let input = input.as_ref();
        assert_eq!(parse(input).0, Err(expected), "{:?}", String::from_utf8_lossy(input));
        // The same refusal when what follows is there too, and no acceptance on the way.
        for end in 0..input.len() {
            let result = parse(&input[..end]).0;
            assert!(matches!(result, Ok(None) | Err(_)), "prefix of {end}: {result:?}");
        }
    }

    /// A request that differs from a good one in `fields` only.
    #[track_caller]
    fn check_fields(fields: &str, expected: Reject) {
        check(format!("POST /echo HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n5\r\nhello\r\n0\r\n\r\n"), expected);
    }

    #[test]
    fn good_heads_need_every_byte_and_no_more() {
        for input in GOOD {
            good(input);
            for end in 0..input.len() {
                assert_eq!(parse(&input.as_bytes()[..end]).0, Ok(None), "{input:?} up to {end}");
            }
            let more = [input, "GET /smuggled"].concat();
            assert_eq!(parse(more.as_bytes()).0, Ok(Some(input.len())), "{input:?} and more");
        }
    }

    #[test]
    fn good_heads_byte_by_byte_give_the_same() {
        let mut head = Head::new(); // used again and again: nothing of one head may stay for the next
        for input in GOOD {
            let whole = good(input);
            for end in 1..=input.len() {
                let result = head.parse_from(&input.as_bytes()[..end], end - 1, &HeadLimits::default());
                assert_eq!(result, Ok((end == input.len()).then_some(end)), "{input:?} up to {end}");
            }
            assert_eq!(format!("{head:?}"), format!("{whole:?}"), "{input:?}");
            assert!(head.headers().eq(whole.headers()), "{input:?}");
            assert_eq!((head.path(), head.query()), (whole.path(), whole.query()));
            assert_eq!(head.authority(), whole.authority());
        }
    }

    #[test]
    fn mutated_heads_get_the_verdict_of_the_reference() {
        let bytes = b"\0\t\n\r !\"#%*,-./0159:;=?@AXa[\\]|~\x0b\x7f\x80\xff";
        let same = |input: &[u8]| {
            let (result, head) = parse(input);
            let shown = String::from_utf8_lossy(input);
            match reference::judge(input) {
                Verdict::Accept { len, body } => {
                    assert_eq!(result, Ok(Some(len)), "{shown:?}");
                    let framing = match body {
                        reference::Body::None => Framing::None,
                        reference::Body::Length(length) => Framing::Length(length),
                        reference::Body::Chunked => Framing::Chunked,
                    };
                    assert_eq!(head.framing(), framing, "{shown:?}");
                }
                Verdict::Refuse => assert!(result.is_err(), "{shown:?}: {result:?}"),
                Verdict::More => {
                    assert!(matches!(result, Ok(None) | Err(_)), "{shown:?}: {result:?}")
                }
            }
        };
        for input in GOOD {
            same(input.as_bytes());
            for at in 0..input.len() {
                let (before, after) = input.as_bytes().split_at(at);
                same(&[before, &after[1..]].concat()); // a byte less
                same(&[before, &after[..1], after].concat()); // a byte twice
                for byte in bytes {
                    same(&[before, &[*byte], &after[1..]].concat()); // another byte
                    same(&[before, &[*byte], after].concat()); // a byte more
                }
            }
        }
    }

    #[test]
    fn parts_are_found() {
        let head = good("GET /a%20b?c=d HTTP/1.1\r\nHost: x:1\r\nX-A: \t 1  2 \t\r\nx-a: second\r\nEmpty:\r\n\r\n");
        assert_eq!(head.method(), Method::GET);
        assert_eq!((head.target(), head.path(), head.query()), ("/a%20b?c=d", "/a%20b", Some("c=d")));
        assert_eq!((head.form(), head.version()), (TargetForm::Origin, Version::Http11));
        assert_eq!(head.header("x-A"), Some(&b"1  2"[..]));
        assert_eq!(head.header("empty"), Some(&b""[..]));
        assert_eq!(head.header("absent"), None);
        assert_eq!(head.authority(), Some("x:1"));
        let fields: Vec<_> = head.headers().collect();
        assert_eq!(fields, [("Host", &b"x:1"[..]), ("X-A", b"1  2"), ("x-a", b"second"), ("Empty", b"")]);

        let head = good("GET HTTP://Local:80?q HTTP/1.1\r\nHost: other\r\n\r\n");
        assert_eq!((head.path(), head.query(), head.authority()), ("/", Some("q"), Some("Local:80")));
        let head = good("CONNECT h:443 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!((head.path(), head.query(), head.authority()), ("", None, Some("h:443")));
        let head = good("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!((head.path(), head.authority()), ("*", Some("x")));
        assert_eq!(good("GET / HTTP/1.0\r\n\r\n").authority(), None);
        assert_eq!(good("GET / HTTP/1.7\r\nHost: x\r\n\r\n").version(), Version::Http11);
        assert_eq!(good("GET / HTTP/1.0\r\n\r\n").version(), Version::Http10);
    }

    #[test]
    fn persistence_table() {
        #[track_caller]
        fn check(version: &str, fields: &str, expected: bool) {
            let head = good(&format!("GET / {version}\r\nHost: x\r\n{fields}\r\n"));
            assert_eq!(head.keep_alive(), expected, "{version} {fields:?}");
        }
        check("HTTP/1.1", "", true);
        check("HTTP/1.1", "Connection: close\r\n", false);
        check("HTTP/1.1", "Connection: CLOSE\r\n", false);
        check("HTTP/1.1", "Connection: keep-alive, close\r\n", false);
        check("HTTP/1.1", "Connection: close ,keep-alive\r\n", false);
        check("HTTP/1.1", "Connection: keep-alive\r\nConnection: close\r\n", false);
        check("HTTP/1.1", "Connection: close\r\nConnection: keep-alive\r\n", false);
        check("HTTP/1.1", "Connection: closed, x-close, close-x\r\n", true);
        check("HTTP/1.1", "Connection: Upgrade\r\nUpgrade: h2c\r\n", true);
        check("HTTP/1.2", "", true);
        check("HTTP/1.0", "", false);
        check("HTTP/1.0", "Connection: Keep-Alive\r\n", true);
        check("HTTP/1.0", "Connection: foo,\tkeep-alive\r\n", true);
        check("HTTP/1.0", "Connection: keep-alive, close\r\n", false);
    }

    #[test]
    fn expectation_table() {
        #[track_caller]
        fn check(version: &str, fields: &str, expected: bool) {
            let head = good(&format!("POST / {version}\r\nHost: x\r\n{fields}\r\n"));
            assert_eq!(head.expect_continue(), expected, "{version} {fields:?}");
        }
        check("HTTP/1.1", "Expect: 100-Continue\r\nContent-Length: 1\r\n", true);
        check("HTTP/1.1", "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n", true);
        check("HTTP/1.1", "Expect: x, 100-continue\r\nContent-Length: 1\r\n", true);
        check("HTTP/1.1", "Expect: 100-continue\r\n", false);
        check("HTTP/1.1", "Expect: 100-continue\r\nContent-Length: 0\r\n", false);
        check("HTTP/1.1", "Expect: y 100-continue\r\nContent-Length: 1\r\n", false);
        check("HTTP/1.0", "Expect: 100-continue\r\nContent-Length: 1\r\n", false);
    }

    #[test]
    fn framing_is_read_strictly() {
        #[track_caller]
        fn ok(fields: &str, framing: Framing, has_content_length: bool) {
            let head = good(&format!("POST / HTTP/1.1\r\nHost: x\r\n{fields}\r\n"));
            assert_eq!((head.framing(), head.has_content_length()), (framing, has_content_length), "{fields:?}");
        }
        ok("", Framing::None, false);
        ok("Content-Length: 0\r\n", Framing::None, true);
        ok("Content-Length: 5\r\n", Framing::Length(5), true);
        ok("content-length:010 \t\r\n", Framing::Length(10), true);
        ok("Content-Length: 1125899906842624\r\n", Framing::Length(limits::BODY_BYTES_MAX), true);
        ok("X: Content-Length: 99\r\n", Framing::None, false);
        ok("Transfer-Encoding: chunked\r\n", Framing::Chunked, false);
        ok("transfer-encoding:\tCHUNKED \r\n", Framing::Chunked, false);

        check_fields("Content-Length: 1125899906842625", Reject::BodyTooLarge);
        check_fields("Content-Length: 18446744073709551615", Reject::BodyTooLarge);
        let bad_lengths = [
            "",
            " ",
            "+5",
            "-5",
            "-0",
            "5x",
            "0x5",
            "5 5",
            "5,5",
            "5, 5",
            "5,",
            ",5",
            "5.0",
            "5e0",
            "\"5\"",
            "18446744073709551616",
            "99999999999999999999999",
            "5;",
            "٥",
            "½",
            "_5",
            "5_0",
        ];
        for length in bad_lengths {
            check_fields(&format!("Content-Length: {length}"), Reject::BadContentLength);
        }
        for (first, second) in [("5", "5"), ("0", "43"), ("5", "0")] {
            let fields = format!("Content-Length: {first}\r\nX: y\r\nCONTENT-LENGTH: {second}");
            check_fields(&fields, Reject::RepeatedContentLength);
        }
        let bad_codings = [
            "",
            " ",
            "chunked, gzip",
            "xchunked",
            "chunkedx",
            "identity",
            "gzip",
            ",chunked",
            "chunked,",
            "chunked, chunked",
            "chunked;q=1",
            "\"chunked\"",
            "chunked identity",
            "chun ked",
            "chunked\u{a0}",
            "gzip, chunked, chunked",
        ];
        for coding in bad_codings {
            check_fields(&format!("Transfer-Encoding: {coding}"), Reject::BadCoding);
        }
        check_fields("Transfer-Encoding: gzip, chunked", Reject::UnsupportedCoding);
        check_fields("Transfer-Encoding: identity,chunked", Reject::UnsupportedCoding);
        check_fields("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", Reject::BadCoding);
        check_fields("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", Reject::BadCoding);
        check_fields("Transfer-Encoding: \x0bchunked", Reject::BadFieldValue);
        check_fields("Transfer-Encoding: chunked\r\nContent-Length: 5", Reject::LengthAndCoding);
        check_fields("Content-Length: 0\r\nTransfer-Encoding: chunked", Reject::LengthAndCoding);
        check_fields("Content-Length: 5\r\nTransfer-Encoding: gzip", Reject::LengthAndCoding);
        check("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", Reject::CodingInHttp10);
        check("POST / HTTP/1.0\r\nTransfer-Encoding: x\r\nContent-Length: 5\r\n\r\n", Reject::CodingInHttp10);
    }

    #[test]
    fn request_lines_are_read_strictly() {
        use Reject::*;
        let table: [(&str, Reject); 47] = [
            ("\x16\x03\x01\0a\x01", BadMethod),
            ("\u{81}\u{ca}\x13", BadMethod),
            (" GET / HTTP/1.1", BadMethod),
            ("G\0ET / HTTP/1.1", BadMethod),
            ("GET\t/ HTTP/1.1", BadMethod),
            ("G[T / HTTP/1.1", BadMethod),
            ("(GET) / HTTP/1.1", BadMethod),
            ("GET\r\n", BadMethod),
            ("GE\r\nT / HTTP/1.1\r\n", BadMethod),
            ("get / HTTP/1.1", UnknownMethod),
            ("BREW / HTTP/1.1", UnknownMethod),
            ("GET / HTTP/1.1 ", BadRequestLine),
            ("GET / HTTP/1.1\t", BadRequestLine),
            ("GET / HTTP/1.1 extra", BadRequestLine),
            ("GET / HTTP/1.10", BadRequestLine),
            ("GET / HTTP/1.12", BadRequestLine),
            ("GET /yo foo HTTP/1.1", BadRequestLine),
            ("GET / http/1.1", BadRequestLine),
            ("GET / HTTP/11", BadRequestLine),
            ("GET / HTTP/1", BadRequestLine),
            ("GET / HTTP/1.", BadRequestLine),
            ("GET / HTTP 1.1", BadRequestLine),
            ("GET / HTTP/1,1", BadRequestLine),
            ("GET / HTTP/a.1", BadRequestLine),
            ("GET / ", BadRequestLine),
            ("GET /  HTTP/1.1", BadRequestLine),
            ("GET /", BadRequestLine),
            ("GET /\r\n", BadRequestLine),
            ("GET / HTTP/1.1\rHost: x\r\r\n", BadLineEnd),
            ("GET / HTTP/0.9", VersionNotSupported),
            ("GET / HTTP/2.0", VersionNotSupported),
            ("GET / HTTP/9.9 x", VersionNotSupported),
            ("PRI * HTTP/2.0\r\n\r\nSM", VersionNotSupported),
            ("GET  / HTTP/1.1", BadTarget),
            ("GET \t/ HTTP/1.1", BadTarget),
            ("GET /\tyo HTTP/1.1", BadTarget),
            ("GET /yo\0 HTTP/1.1", BadTarget),
            ("GET /yo\x7f HTTP/1.1", BadTarget),
            ("GET /yo#frag HTTP/1.1", BadTarget),
            ("GET /\u{e9} HTTP/1.1", BadTarget),
            ("GET * HTTP/1.1", BadTarget),
            ("PRI * HTTP/1.1", UnknownMethod),
            ("GET yo HTTP/1.1", BadTarget),
            ("GET http:///yo HTTP/1.1", BadTarget),
            ("GET http://u@h/yo HTTP/1.1", BadTarget),
            ("GET ftp://h/yo HTTP/1.1", BadTarget),
            ("CONNECT / HTTP/1.1", BadTarget),
        ];
        for (line, expected) in table {
            check(format!("{line}\r\nHost: x\r\n\r\n"), expected);
        }
        check(b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", BadTarget);
        for http09 in ["GET /\r\n", "GET /\r\n\r\n", "GET /\n", "GET /\r"] {
            check(http09, BadRequestLine);
        }
    }

    #[test]
    fn field_lines_are_read_strictly() {
        use Reject::*;
        for (fields, expected) in [
            ("X-A: 1\r\n 2", FoldedField),
            ("X-A: 1\r\n\t2", FoldedField),
            ("X-A: 1\r\n Content-Length: 37", FoldedField),
            ("Transfer-Encoding:\r\n chunked", FoldedField),
            ("X-A: 1\r\n ", FoldedField),
            ("X-A : 1", SpaceBeforeColon),
            ("X-A\t: 1", SpaceBeforeColon),
            ("Content-Length : 43", SpaceBeforeColon),
            ("X A: 1", SpaceBeforeColon),
            (": 1", BadFieldName),
            ("X-A", BadFieldName),
            ("X[A]: 1", BadFieldName),
            ("X\u{e9}: 1", BadFieldName),
            ("Content-Length\u{85}: 5", BadFieldName),
            ("X\0: 1", BadFieldName),
            ("X(A): 1", BadFieldName),
            ("\"X\": 1", BadFieldName),
            ("X-A: a\0b", BadFieldValue),
            ("X-A: \x0b", BadFieldValue),
            ("X-A: a\x7fb", BadFieldValue),
            ("X-A: a\x1b[0m", BadFieldValue),
            ("X-A: a\rHost: y", BadFieldValue),
            ("X-A: 1\rTransfer-Encoding: chunked", BadFieldValue),
            ("X-A: \r\r\nX-B: 1", BadFieldValue),
            ("X-A: 1\nX-B: 2", BadLineEnd),
            ("X-A:\nX-B: 2", BadLineEnd),
            ("\rZGET /smuggled: HTTP/1.1", BadLineEnd),
            ("X-A: 1\n", BadLineEnd),
            ("X-A: 1\r\n\n", BadLineEnd),
        ] {
            check_fields(fields, expected);
        }
        check("GET / HTTP/1.1\r\n Host: x\r\n\r\n", FoldedField);
        check("GET / HTTP/1.1\r\n \r\nHost: x\r\n\r\n", FoldedField);
        for bare in [
            "GET / HTTP/1.1\nHost: x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\n\n",
            "GET / HTTP/1.1\nHost: x\n\n",
            "GET / HTTP/1.1\nHost: x\n",
            "GET / HTTP/1.0\n\n",
            "GET / HTTP/1.0\n\r\n",
            "\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "\r\n\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "\rGET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "\r\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        ] {
            check(bare, BadLineEnd);
        }
    }

    #[test]
    fn host_is_checked() {
        use Reject::*;
        let table = [
            ("", MissingHost),
            ("Host: x\r\nHost: x\r\n", RepeatedHost),
            ("Host: x\r\nX: y\r\nhost: z\r\n", RepeatedHost),
            ("Host:\r\n", BadHost),
            ("Host: x/yo\r\n", BadHost),
            ("Host: local host\r\n", BadHost),
            ("Host: a, b\r\n", BadHost),
            ("Host: u@x\r\n", BadHost),
            ("Host: x:a\r\n", BadHost),
            ("Host: http://x\r\n", BadHost),
            ("Host: local\0host\r\n", BadFieldValue),
        ];
        for (fields, expected) in table {
            check(format!("GET / HTTP/1.1\r\n{fields}\r\n"), expected);
            check(format!("GET http://x/ HTTP/1.1\r\n{fields}\r\n"), expected);
            if expected != MissingHost {
                check(format!("GET / HTTP/1.0\r\n{fields}\r\n"), expected);
            }
        }
    }

    #[test]
    fn limits_hold_to_the_byte() {
        #[track_caller]
        fn check(limits: &HeadLimits, input: &[u8], expected: Result<Option<usize>, Reject>) {
            assert_eq!(Head::new().parse(input, limits), expected, "{} bytes", input.len());
        }
        let limits = HeadLimits { head_bytes_max: 60, headers_max: 3, uri_bytes_max: 10 };
        for (uri, fits) in [(9, true), (10, true), (11, false)] {
            let input = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(uri - 1));
            check(&limits, input.as_bytes(), if fits { Ok(Some(input.len())) } else { Err(Reject::UriTooLong) });
            let unfinished = &input.as_bytes()[..4 + uri];
            check(&limits, unfinished, if fits { Ok(None) } else { Err(Reject::UriTooLong) });
        }
        for (bytes, fits) in [(59, true), (60, true), (61, false)] {
            let input = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "a".repeat(bytes - 32));
            assert_eq!(input.len(), bytes);
            check(&limits, input.as_bytes(), if fits { Ok(Some(bytes)) } else { Err(Reject::HeadTooLarge) });
            check(&limits, &input.as_bytes()[..59], if bytes == 59 { Ok(Some(59)) } else { Ok(None) });
        }
        for (fields, fits) in [(2, true), (3, true), (4, false)] {
            let input = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "X: y\r\n".repeat(fields - 1));
            check(&limits, input.as_bytes(), if fits { Ok(Some(input.len())) } else { Err(Reject::TooManyFields) });
        }
        for (empty, fits) in [(3, true), (4, true), (5, false)] {
            let input = "\r\n".repeat(empty) + GET;
            let expected = if fits { Ok(Some(input.len())) } else { Err(Reject::BadLineEnd) };
            check(&HeadLimits::default(), input.as_bytes(), expected);
        }
        let most = HeadLimits { head_bytes_max: usize::MAX, headers_max: usize::MAX, uri_bytes_max: usize::MAX };
        for (bytes, fits) in [(65_534, true), (65_535, true), (65_536, false)] {
            let input = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(bytes - GET.len()));
            check(&most, input.as_bytes(), if fits { Ok(Some(bytes)) } else { Err(Reject::HeadTooLarge) });
        }
        let ceiling = limits::HEADERS_CEILING;
        for (fields, fits) in [(limits::HEADERS_MAX + 1, true), (ceiling, true), (ceiling + 1, false)] {
            let input = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "X: y\r\n".repeat(fields - 1));
            check(&most, input.as_bytes(), if fits { Ok(Some(input.len())) } else { Err(Reject::TooManyFields) });
        }
        check(&most, &[b'A'; limits::METHOD_BYTES_MAX], Ok(None));
        check(&most, &[b'A'; limits::METHOD_BYTES_MAX + 1], Err(Reject::UnknownMethod));
    }

    #[test]
    fn other_version_is_refused_when_it_is_whole() {
        let line = "GET / HTTP/2.0";
        for end in 0..line.len() {
            assert_eq!(parse(&line.as_bytes()[..end]).0, Ok(None), "up to {end}");
        }
        assert_eq!(parse(line.as_bytes()).0, Err(Reject::VersionNotSupported));
        for (wrong, expected) in [("GET / X", Reject::BadRequestLine), ("GET / HTTP/x", Reject::BadRequestLine)] {
            assert_eq!(parse(wrong.as_bytes()).0, Err(expected), "{wrong}");
        }
    }

    #[test]
    fn debug_text_keeps_values_to_itself() {
        let head = good("GET / HTTP/1.1\r\nHost: x\r\nCookie: secret=42\r\n\r\n");
        let text = format!("{head:?}");
        assert!(text.contains("Cookie") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn refused_head_request_is_remembered_as_such() {
        for (input, method) in [
            ("HEAD /yo HTTP/1.1\r\n\r\n", Method::HEAD),
            ("HEAD /yo HTTP/1.1\r\nX : 1\r\n\r\n", Method::HEAD),
            ("HEADX /yo HTTP/1.1\r\n\r\n", Method::GET),
            ("\x16\x03", Method::GET),
        ] {
            let (result, head) = parse(input.as_bytes());
            assert!(result.is_err(), "{input:?}");
            assert_eq!(head.method(), method, "{input:?}");
        }
    }

    #[test]
    fn registered_methods_are_known() {
        for method in ["GET", "QUERY", "UPDATEREDIRECTREF", "M-SEARCH", "VERSION-CONTROL", "GETS", "GE"] {
            let (result, head) = parse(format!("{method} / HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
            match method {
                "M-SEARCH" | "GETS" | "GE" => {
                    assert_eq!(result, Err(Reject::UnknownMethod), "{method}")
                }
                _ => assert_eq!(head.method().as_str(), method),
            }
        }
    }
}
