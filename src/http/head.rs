//! One request head: parsed once, checked strictly, kept in buffers that are used again.
//!
//! For: grammar (by `httparse`), framing, the Host rule, persistence. Not for: reading bytes, deadlines,
//! what to answer. Floor 1.

use super::{
    Reject,
    target::{self, Port, TargetForm},
};
use crate::limits;
use http::Method;
use memchr::memchr;
use std::{mem::MaybeUninit, ops::Range};

/// Bounds of one request head.
#[derive(Clone, Debug)]
pub struct HeadLimits {
    /// Bytes from the request line to the empty line; above 65,535 the limit is 65,535.
    pub head_bytes_max: usize,
    /// Field lines; above [`limits::HEADERS_MAX`] the limit is that.
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
#[derive(Debug)]
pub struct Head {
    method: Method,
    version: Version,
    target: String,
    form: TargetForm,
    authority: Range<u16>,
    path: Range<u16>,
    query: Option<Range<u16>>,
    /// The field section; [`Field`]s point into it.
    bytes: Vec<u8>,
    fields: Vec<Field>,
    /// Index into `fields`.
    host: Option<usize>,
    framing: Framing,
    has_content_length: bool,
    keep_alive: bool,
    expect_continue: bool,
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
            fields: Vec::new(),
            host: None,
            framing: Framing::None,
            has_content_length: false,
            keep_alive: true,
            expect_continue: false,
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
    pub fn parse_from(
        &mut self,
        input: &[u8],
        seen: usize,
        limits: &HeadLimits,
    ) -> Result<Option<usize>, Reject> {
        let skipped = skip_empty_lines(input)?;
        let rest = &input[skipped..];
        let window = &rest[..rest.len().min(bytes_max(limits))];
        let seen = seen.saturating_sub(skipped).min(window.len());
        if seen > 0 && !is_worth_parsing(window, seen) {
            return unfinished(window, limits);
        }
        match self.parse_window(window, limits) {
            Ok(length) => Ok(length.map(|length| skipped + length)),
            Err(reject) => {
                // RFC 9110 §9.3.2: even a refusal has no content when the method was HEAD.
                self.method = if window.starts_with(b"HEAD ") {
                    Method::HEAD
                } else {
                    Method::GET
                };
                Err(reject)
            }
        }
    }

    fn parse_window(
        &mut self,
        window: &[u8],
        limits: &HeadLimits,
    ) -> Result<Option<usize>, Reject> {
        let mut slots =
            [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; limits::HEADERS_MAX];
        let slots = &mut slots[..limits.headers_max.min(limits::HEADERS_MAX)];
        let mut request = httparse::Request::new(&mut []);
        match request.parse_with_uninit_headers(window, slots) {
            Ok(httparse::Status::Complete(length)) => {
                self.take(&request, &window[..length], limits)?;
                Ok(Some(length))
            }
            Ok(httparse::Status::Partial) => unfinished(window, limits),
            Err(httparse::Error::Version) => self.parse_other_version(window, limits),
            Err(error) => Err(diagnose(error, window)),
        }
    }

    /// `httparse` knows 1.0 and 1.1 only. Rare, so a copy that says 1.1 is made and parsed for 1.2 to 1.9.
    #[cold]
    fn parse_other_version(
        &mut self,
        window: &[u8],
        limits: &HeadLimits,
    ) -> Result<Option<usize>, Reject> {
        let mut spaces = memchr::memchr_iter(b' ', window);
        let at = spaces.nth(1).map_or(window.len(), |space| space + 1);
        let version = &window[at..window.len().min(at + b"HTTP/1.1".len())];
        match version {
            [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9'] => {
                let mut copy = window.to_vec();
                copy[at + version.len() - 1] = b'1';
                self.parse_window(&copy, limits)
            }
            [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
                Err(Reject::VersionNotSupported)
            }
            _ if at + version.len() == window.len() && is_version_prefix(version) => {
                unfinished(window, limits)
            }
            _ => Err(Reject::BadRequestLine),
        }
    }

    /// Copies what `httparse` found in `head` and applies the rules that it leaves to us.
    fn take(
        &mut self,
        request: &httparse::Request<'_, '_>,
        head: &[u8],
        limits: &HeadLimits,
    ) -> Result<(), Reject> {
        let (Some(method), Some(target), Some(minor)) =
            (request.method, request.path, request.version)
        else {
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
        self.version = if minor == 0 {
            Version::Http10
        } else {
            Version::Http11
        };
        self.set_target(target)?;
        self.take_fields(request.headers, head)
    }

    pub(super) fn set_target(&mut self, target: &str) -> Result<(), Reject> {
        let parts = target::split(&self.method, target)?;
        let narrow = |range: Range<usize>| range.start as u16..range.end as u16;
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
        let section_at = headers
            .first()
            .map_or(head.len(), |first| offset(first.name.as_ptr()));
        self.bytes.clear();
        self.bytes.extend_from_slice(&head[section_at..]);
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
                name_at: (name_at - section_at) as u16,
                name_len: header.name.len() as u16,
                value_at: (offset(header.value.as_ptr()) - section_at) as u16,
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
        let field = self
            .fields
            .iter()
            .find(|field| self.name(field).eq_ignore_ascii_case(name.as_bytes()))?;
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

    /// Starts a head that was not parsed from bytes. The target and the fields pass the same checks.
    pub(super) fn assemble(&mut self, method: Method, target: &str) -> Result<(), Reject> {
        self.version = Version::Http11;
        self.bytes.clear();
        self.fields.clear();
        self.host = None;
        self.keep_alive = true;
        self.expect_continue = false;
        self.set_framing(Some(0));
        if target.len() > limits::URI_BYTES_MAX {
            return Err(Reject::UriTooLong);
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
    pub(super) fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.target.capacity() + self.fields.capacity() * size_of::<Field>()
    }
}

impl Default for Head {
    fn default() -> Head {
        Head::new()
    }
}

/// What the fields say together, gathered in one walk over them.
#[derive(Default)]
struct Semantics {
    host: Option<usize>,
    content_length: Option<u64>,
    /// A Transfer-Encoding was there: usable, or why not.
    coding: Option<Result<(), Reject>>,
    close: bool,
    keep_alive: bool,
    expect_continue: bool,
}

impl Semantics {
    /// The length of a name rules out nearly all fields before a letter is compared.
    #[inline]
    fn read(&mut self, index: usize, name: &str, value: &[u8]) -> Result<(), Reject> {
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
                self.expect_continue |=
                    list(value).any(|item| item.eq_ignore_ascii_case(b"100-continue"));
            }
            10 if name.eq_ignore_ascii_case("connection") => {
                for option in list(value) {
                    self.close |= option.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            14 if name.eq_ignore_ascii_case("content-length") => {
                // RFC 9112 §6.3 would allow equal repetitions; nobody sends them but who probes.
                if self.content_length.replace(parse_length(value)?).is_some() {
                    return Err(Reject::RepeatedContentLength);
                }
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                let repeated = self.coding.is_some();
                self.coding = Some(if repeated {
                    Err(Reject::BadCoding)
                } else {
                    check_coding(value)
                });
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
fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&b| b == b',').map(|item| {
        let start = item
            .iter()
            .position(|&b| b != b' ' && b != b'\t')
            .unwrap_or(item.len());
        let end = item
            .iter()
            .rposition(|&b| b != b' ' && b != b'\t')
            .map_or(start, |last| last + 1);
        &item[start..end]
    })
}

fn bytes_max(limits: &HeadLimits) -> usize {
    limits.head_bytes_max.min(usize::from(u16::MAX))
}

/// RFC 9112 §2.2: some empty lines before the request line are ignored. A CR without its LF yet is
/// left alone.
fn skip_empty_lines(input: &[u8]) -> Result<usize, Reject> {
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
fn is_worth_parsing(window: &[u8], seen: usize) -> bool {
    memchr(b'\n', &window[seen..]).is_some() || memchr(b'\n', &window[..seen]).is_none()
}

/// No error in `window`, but no end either: whether it can still become a head within the limits.
fn unfinished(window: &[u8], limits: &HeadLimits) -> Result<Option<usize>, Reject> {
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

/// The method, if a registry has it (RFC 9110 §9.1 asks for 501 otherwise).
fn known_method(token: &str) -> Result<Method, Reject> {
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
        _ if REGISTERED.contains(&token) => {
            Method::from_bytes(token.as_bytes()).map_err(|_| Reject::BadMethod)
        }
        _ => Err(Reject::UnknownMethod),
    }
}

fn is_version_prefix(bytes: &[u8]) -> bool {
    bytes.iter().zip(b"HTTP/0.0").all(|(&got, &model)| {
        if model == b'0' {
            got.is_ascii_digit()
        } else {
            got == model
        }
    })
}

/// Turns `httparse`'s error into ours by looking for the first fault.
#[cold]
fn diagnose(error: httparse::Error, window: &[u8]) -> Reject {
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
