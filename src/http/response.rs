//! Answers, and the encoder of their heads.
//!
//! For: what a handler returns, and the bytes of its head. Framing is decided here alone: a handler's
//! own Content-Length, Transfer-Encoding or Connection can neither repeat ours nor lie. Not for: sending. Floor 1.

use super::{Body, BodyError, HeaderName, HeaderValue, ReadyFields, Reject, StatusCode, Version};
use http::header;
use std::rc::Rc;

/// What a handler answers with. Small to move; without extra fields it owns no heap beyond its body.
///
/// ```
/// use everycore::http::{Response, StatusCode};
/// let response = Response::text("gone").with_status(StatusCode::GONE).with_header("cache-control", "no-store");
/// assert_eq!(response.status(), 410);
/// assert_eq!(response.header("cache-control"), Some(&b"no-store"[..]));
/// ```
#[derive(Debug)]
pub struct Response {
    status: StatusCode,
    content_type: ContentType,
    fields: Fields,
    /// What a handler stated; used only where no body says otherwise (HEAD, 304).
    stated_length: Option<u64>,
    is_closing: bool,
    body: Body,
}

/// The fields beyond Content-Type and framing.
#[derive(Debug)]
enum Fields {
    None,
    Own(Vec<(HeaderName, HeaderValue)>),
    /// Shared with other answers until one is added.
    Ready(Rc<ReadyFields>),
}

/// The common ones are precomputed lines.
#[derive(Debug)]
enum ContentType {
    /// None, or that of the ready fields.
    None,
    Text,
    Html,
    Json,
    Other(HeaderValue),
}

impl Response {
    /// An answer without a body.
    pub fn new(status: StatusCode) -> Response {
        Response::with_body(status, ContentType::None, Body::empty())
    }

    /// 200, `text/plain; charset=utf-8`.
    pub fn text(text: impl Into<Body>) -> Response {
        Response::with_body(StatusCode::OK, ContentType::Text, text.into())
    }

    /// 200, `text/html; charset=utf-8`.
    pub fn html(html: impl Into<Body>) -> Response {
        Response::with_body(StatusCode::OK, ContentType::Html, html.into())
    }

    /// 200, `application/json`. A value that cannot be serialised becomes a 500.
    #[cfg(feature = "json")]
    pub fn json<T: serde::Serialize + ?Sized>(value: &T) -> Response {
        match serde_json::to_vec(value) {
            Ok(json) => Response::with_body(StatusCode::OK, ContentType::Json, json.into()),
            Err(error) => {
                tracing::error!("a handler's value cannot be serialised: {error}");
                Response::from(StatusCode::INTERNAL_SERVER_ERROR)
            }
        }
    }

    /// 200 with JSON that is text already.
    pub fn json_text(json: impl Into<Body>) -> Response {
        Response::with_body(StatusCode::OK, ContentType::Json, json.into())
    }

    /// 200 with a media type of your choice, e.g. `"image/png"`. A bad one makes it a 500, as in
    /// [`with_header`](Response::with_header).
    pub fn bytes(content_type: impl TryInto<HeaderValue>, body: impl Into<Body>) -> Response {
        Response::with_body(StatusCode::OK, ContentType::None, body.into())
            .with_header(header::CONTENT_TYPE, content_type)
    }

    /// 200 with a body and no media type; chunked where the body's length is unknown.
    pub fn stream(body: Body) -> Response {
        Response::with_body(StatusCode::OK, ContentType::None, body)
    }

    /// A redirection to `location`, e.g. with [`StatusCode::SEE_OTHER`].
    pub fn redirect(status: StatusCode, location: impl TryInto<HeaderValue>) -> Response {
        Response::new(status).with_header(header::LOCATION, location)
    }

    fn with_body(status: StatusCode, content_type: ContentType, body: Body) -> Response {
        Response { status, content_type, fields: Fields::None, stated_length: None, is_closing: false, body }
    }

    /// An answer with fields that others have, too: costs no allocation.
    pub(crate) fn ready(status: StatusCode, fields: &Rc<ReadyFields>, body: Body) -> Response {
        let answer = Response::with_body(status, ContentType::None, body);
        Response { fields: Fields::Ready(fields.clone()), ..answer }
    }

    /// The same answer, which states the length of a body that it does not have: to HEAD.
    pub(crate) fn with_stated_length(mut self, length: u64) -> Response {
        self.stated_length = Some(length);
        self
    }

    /// The same answer with another status.
    pub fn with_status(mut self, status: StatusCode) -> Response {
        self.status = status;
        self
    }

    /// Adds a field; beside others of its name, but Content-Type, Date and Server replace.
    ///
    /// Framing is not the handler's: Transfer-Encoding is ignored; Content-Length counts only for an answer
    /// to HEAD or a 304 whose body is empty; of Connection, `close` is honoured and the rest ignored.
    ///
    /// A name or value that is not allowed (a line break, say) turns the answer into a bare 500 and
    /// is logged: the alternative is to panic, or to send half of what was meant.
    pub fn with_header(mut self, name: impl TryInto<HeaderName>, value: impl TryInto<HeaderValue>) -> Response {
        match (name.try_into(), value.try_into()) {
            (Ok(name), Ok(value)) => {
                self.add_header(name, value);
                self
            }
            (Ok(name), Err(_)) => refused_field(name.as_str()),
            (Err(_), _) => refused_field("of a bad name"),
        }
    }

    /// As [`with_header`](Response::with_header), for parts that are valid already.
    pub fn add_header(&mut self, name: HeaderName, value: HeaderValue) {
        match name {
            header::CONTENT_TYPE => self.content_type = ContentType::Other(value),
            header::CONTENT_LENGTH => self.stated_length = value.to_str().ok().and_then(|length| length.parse().ok()),
            header::TRANSFER_ENCODING => {}
            header::CONNECTION => {
                let mut options = value.as_bytes().split(|&b| b == b',');
                self.is_closing |= options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"));
            }
            header::DATE | header::SERVER => {
                let fields = self.own_fields();
                fields.retain(|(other, _)| *other != name);
                fields.push((name, value));
            }
            _ => self.own_fields().push((name, value)),
        }
    }

    fn own_fields(&mut self) -> &mut Vec<(HeaderName, HeaderValue)> {
        match &self.fields {
            Fields::None => self.fields = Fields::Own(Vec::new()),
            Fields::Own(_) => {}
            Fields::Ready(ready) => {
                if let (ContentType::None, Some(value)) = (&self.content_type, ready.content_type()) {
                    self.content_type = ContentType::Other(value.clone());
                }
                self.fields = Fields::Own(ready.pairs().to_vec());
            }
        }
        match &mut self.fields {
            Fields::Own(fields) => fields,
            _ => unreachable!("made own above"),
        }
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The first field called `name`, which is lower-case; Content-Type included.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        if name == "content-type" {
            return self.content_type();
        }
        self.headers().iter().find(|(other, _)| other.as_str() == name).map(|(_, value)| value.as_bytes())
    }

    /// The media type.
    pub fn content_type(&self) -> Option<&[u8]> {
        match &self.content_type {
            ContentType::None => match &self.fields {
                Fields::Ready(ready) => ready.content_type().map(HeaderValue::as_bytes),
                _ => None,
            },
            ContentType::Text => Some(b"text/plain; charset=utf-8"),
            ContentType::Html => Some(b"text/html; charset=utf-8"),
            ContentType::Json => Some(b"application/json"),
            ContentType::Other(value) => Some(value.as_bytes()),
        }
    }

    /// The fields beyond Content-Type and framing, in the order they will go out.
    pub fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        match &self.fields {
            Fields::None => &[],
            Fields::Own(fields) => fields,
            Fields::Ready(ready) => ready.pairs(),
        }
    }

    /// Takes all fields called `name` out, beyond Content-Type and framing; gives the first.
    pub fn remove_header(&mut self, name: &HeaderName) -> Option<HeaderValue> {
        let at = self.headers().iter().position(|(other, _)| other == name)?;
        let fields = self.own_fields();
        let (_, value) = fields.remove(at);
        fields.retain(|(other, _)| other != name);
        Some(value)
    }

    /// The Content-Length that a handler stated, for an answer to HEAD or a 304 without a body.
    pub fn stated_length(&self) -> Option<u64> {
        self.stated_length
    }

    /// Whether the handler asked for the connection to be closed (`Connection: close`).
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// What the head depends on, if it has no fields of its own and one body of known length.
    #[inline]
    pub(super) fn plain(&self) -> Option<Plain> {
        let content_type = match self.content_type {
            ContentType::None => 0,
            ContentType::Text => 1,
            ContentType::Html => 2,
            ContentType::Json => 3,
            ContentType::Other(_) => return None,
        };
        match (framing(self, Version::Http11), &self.fields) {
            (BodyFraming::Length(length @ 1..), Fields::None) if !self.is_closing => {
                Some(Plain { status: self.status, content_type, length })
            }
            _ => None,
        }
    }

    /// The body.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// The body, to read from or to replace.
    pub fn body_mut(&mut self) -> &mut Body {
        &mut self.body
    }

    /// The body alone.
    pub fn into_body(self) -> Body {
        self.body
    }
}

/// See [`Response::plain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plain {
    status: StatusCode,
    content_type: u8,
    pub(super) length: u64,
}

#[cold]
fn refused_field(what: &str) -> Response {
    tracing::error!("a handler set a response field {what} that HTTP does not allow");
    Response::from(StatusCode::INTERNAL_SERVER_ERROR)
}

/// A plain-text answer that names the status, e.g. `404 Not Found`.
impl From<StatusCode> for Response {
    fn from(status: StatusCode) -> Response {
        match status.canonical_reason() {
            Some(reason) => Response::text(format!("{} {reason}\n", status.as_u16())),
            None => Response::text(format!("{}\n", status.as_u16())),
        }
        .with_status(status)
    }
}

/// The answer to a refused request; closes the connection.
impl From<Reject> for Response {
    fn from(reject: Reject) -> Response {
        let mut response = Response::text(reject.reason()).with_status(reject.status());
        response.is_closing = true;
        response
    }
}

/// The answer of a handler that could not read its body; closes the connection, whose rest may be unread.
impl From<BodyError> for Response {
    fn from(error: BodyError) -> Response {
        let status = error.status();
        let mut response = match status.is_server_error() {
            true => Response::from(status), // What went wrong inside is no business of the peer.
            false => Response::text(error.to_string()).with_status(status),
        };
        response.is_closing = true;
        response
    }
}

/// What [`encode_head`] has to know beside the answer.
#[derive(Clone, Copy, Debug)]
pub struct Encoding<'a> {
    /// Of the request.
    pub version: Version,
    /// The request was HEAD: fields as for GET, no body.
    pub head_only: bool,
    /// Whether the connection stays open as far as the service is concerned.
    pub keep_alive: bool,
    /// From [`DateCache`](super::DateCache); may be empty.
    pub server_and_date: &'a [u8],
}

/// What must follow the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// Nothing, whatever the body holds: HEAD, 1xx, 204, 304.
    None,
    /// Exactly so many bytes.
    Length(u64),
    /// Chunks.
    Chunked,
    /// The bytes, then the end of the connection (HTTP/1.0 and unknown length).
    UntilClose,
}

/// Appends status line, fields and the empty line to `out`, and says how the body must follow.
///
/// `Connection: close` goes out where [`Encoding::keep_alive`] is false, where the handler asked for it, and
/// with [`BodyFraming::UntilClose`]: the service must close then.
pub fn encode_head(out: &mut Vec<u8>, response: &Response, how: &Encoding<'_>) -> BodyFraming {
    let framing = framing(response, how.version);
    encode_status_and_type(out, response);
    encode_framing(out, response, how, framing);
    match &response.fields {
        Fields::None => out.extend_from_slice(how.server_and_date),
        Fields::Own(fields) => encode_fields(out, fields, how),
        Fields::Ready(ready) => {
            out.extend_from_slice(how.server_and_date);
            out.extend_from_slice(ready.lines());
        }
    }
    let close = !how.keep_alive || response.is_closing || framing == BodyFraming::UntilClose;
    match (close, how.version) {
        (true, _) => out.extend_from_slice(b"Connection: close\r\n\r\n"),
        // RFC 9112 §9.3: a 1.0 connection persists only when the answer says so too.
        (false, Version::Http10) => out.extend_from_slice(b"Connection: keep-alive\r\n\r\n"),
        (false, Version::Http11) => out.extend_from_slice(b"\r\n"),
    }
    if how.head_only { BodyFraming::None } else { framing }
}

/// RFC 9112 §6.3, from the sender's side.
fn framing(response: &Response, version: Version) -> BodyFraming {
    match response.status.as_u16() {
        100..=199 | 204 | 304 => return BodyFraming::None,
        // RFC 9110 §15.3.6: no content, but framed as usual.
        205 => return BodyFraming::Length(0),
        _ => {}
    }
    match (response.body.len(), version) {
        (Some(length), _) => BodyFraming::Length(length),
        (None, Version::Http11) => BodyFraming::Chunked,
        (None, Version::Http10) => BodyFraming::UntilClose,
    }
}

const TEXT: &[u8] = b"Content-Type: text/plain; charset=utf-8\r\n";
const HTML: &[u8] = b"Content-Type: text/html; charset=utf-8\r\n";
const JSON: &[u8] = b"Content-Type: application/json\r\n";

fn encode_status_and_type(out: &mut Vec<u8>, response: &Response) {
    let status = response.status;
    match (status.as_u16(), &response.content_type) {
        (200, ContentType::Text) => {
            return out.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n");
        }
        (200, _) => out.extend_from_slice(b"HTTP/1.1 200 OK\r\n"),
        (404, _) => out.extend_from_slice(b"HTTP/1.1 404 Not Found\r\n"),
        _ => {
            out.extend_from_slice(b"HTTP/1.1 ");
            out.extend_from_slice(status.as_str().as_bytes());
            out.push(b' ');
            out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
    match &response.content_type {
        ContentType::None => {
            if let Fields::Ready(ready) = &response.fields
                && let Some(value) = ready.content_type()
            {
                encode_field(out, "content-type", value.as_bytes());
            }
        }
        ContentType::Text => out.extend_from_slice(TEXT),
        ContentType::Html => out.extend_from_slice(HTML),
        ContentType::Json => out.extend_from_slice(JSON),
        ContentType::Other(value) => encode_field(out, "content-type", value.as_bytes()),
    }
}

fn encode_framing(out: &mut Vec<u8>, response: &Response, how: &Encoding<'_>, framing: BodyFraming) {
    let length = match framing {
        BodyFraming::Chunked => return out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        BodyFraming::UntilClose => return,
        BodyFraming::Length(0) if how.head_only => response.stated_length.unwrap_or(0),
        BodyFraming::Length(length) => length,
        // RFC 9110 §8.6: a 304 may state the length of the answer to GET; 1xx and 204 must not have the field.
        BodyFraming::None => match response.stated_length {
            Some(length) if response.status == StatusCode::NOT_MODIFIED && response.body.is_empty() => length,
            _ => return,
        },
    };
    out.extend_from_slice(b"Content-Length: ");
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The handler's fields, and those of our lines that no field of its replaces.
fn encode_fields(out: &mut Vec<u8>, fields: &[(HeaderName, HeaderValue)], how: &Encoding<'_>) {
    let has = |wanted: &HeaderName| fields.iter().any(|(name, _)| name == wanted);
    match (has(&header::SERVER), has(&header::DATE)) {
        (false, false) => out.extend_from_slice(how.server_and_date),
        (server, date) => {
            for line in how.server_and_date.split_inclusive(|&b| b == b'\n') {
                let replaced = (server && line.starts_with(b"Server:")) || (date && line.starts_with(b"Date:"));
                if !replaced {
                    out.extend_from_slice(line);
                }
            }
        }
    }
    for (name, value) in fields {
        encode_field(out, name.as_str(), value.as_bytes());
    }
}

/// `name: value` with the name's words capitalised: one style, and `ab` and other old clients
/// look for `Content-Length` and the like letter by letter.
pub(super) fn encode_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    let start = out.len();
    out.extend_from_slice(name.as_bytes());
    let mut after_dash = true;
    for byte in &mut out[start..] {
        if after_dash {
            byte.make_ascii_uppercase();
        }
        after_dash = *byte == b'-';
    }
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends the line before a chunk of `len` bytes, e.g. `1f\r\n`. A `len` of 0 would end the body.
pub fn encode_chunk_prefix(out: &mut Vec<u8>, len: usize) {
    let digits = (usize::BITS - len.leading_zeros()).div_ceil(4).max(1);
    for shift in (0..digits).rev() {
        out.push(b"0123456789abcdef"[(len >> (4 * shift)) & 0xf]);
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &[u8] = b"Server: everycore\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    const HTTP11: Encoding<'_> =
        Encoding { version: Version::Http11, head_only: false, keep_alive: true, server_and_date: b"S: d\r\n" };
    const CLOSING: Encoding<'_> = Encoding { keep_alive: false, ..HTTP11 };
    const HEAD: Encoding<'_> = Encoding { head_only: true, ..HTTP11 };
    const HTTP10: Encoding<'_> = Encoding { version: Version::Http10, keep_alive: false, ..HTTP11 };
    const HTTP10_KEPT: Encoding<'_> = Encoding { keep_alive: true, ..HTTP10 };

    #[track_caller]
    fn check(response: &Response, how: &Encoding<'_>, framing: BodyFraming, expected: &str) {
        let mut out = b"before".to_vec();
        assert_eq!(encode_head(&mut out, response, how), framing);
        assert_eq!(String::from_utf8(out).unwrap(), format!("before{expected}\r\n"));
    }

    fn stream() -> Response {
        Response::stream(Body::stream(futures_lite::stream::empty()))
    }

    #[test]
    fn heads_are_exact() {
        use BodyFraming::*;
        let text = Response::text("Hey!");
        let ok = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 4\r\nS: d\r\n";
        check(&text, &HTTP11, Length(4), ok);
        check(&text, &HEAD, None, ok);
        check(&text, &CLOSING, Length(4), &format!("{ok}Connection: close\r\n"));
        check(&text, &HTTP10, Length(4), &format!("{ok}Connection: close\r\n"));
        check(&text, &HTTP10_KEPT, Length(4), &format!("{ok}Connection: keep-alive\r\n"));
        let html = Response::html("<p>").with_status(StatusCode::NOT_FOUND);
        let expected =
            "HTTP/1.1 404 Not Found\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 3\r\nS: d\r\n";
        check(&html, &HTTP11, Length(3), expected);
        let json = Response::json_text("{}").with_status(StatusCode::CREATED);
        let expected = "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 2\r\nS: d\r\n";
        check(&json, &HTTP11, Length(2), expected);
        let png = Response::bytes("image/png", vec![0; 1234567])
            .with_header("www-authenticate", "x")
            .with_header("etag", "\"1\"");
        let expected = "HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 1234567\r\nS: d\r\n\
            Www-Authenticate: x\r\nEtag: \"1\"\r\n";
        check(&png, &HTTP11, Length(1234567), expected);
        let odd = Response::new(StatusCode::from_u16(299).unwrap());
        check(&odd, &HTTP11, Length(0), "HTTP/1.1 299 \r\nContent-Length: 0\r\nS: d\r\n");
        let see = Response::redirect(StatusCode::SEE_OTHER, "/yo");
        check(&see, &HTTP11, Length(0), "HTTP/1.1 303 See Other\r\nContent-Length: 0\r\nS: d\r\nLocation: /yo\r\n");
        let cookies = Response::new(StatusCode::OK).with_header("set-cookie", "a=1").with_header("set-cookie", "b=2");
        let expected = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nS: d\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n";
        check(&cookies, &HTTP11, Length(0), expected);
    }

    #[test]
    fn framing_follows_status_version_and_length() {
        use BodyFraming::*;
        check(&stream(), &HTTP11, Chunked, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nS: d\r\n");
        check(&stream(), &HEAD, None, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nS: d\r\n");
        for http10 in [HTTP10, HTTP10_KEPT] {
            check(&stream(), &http10, UntilClose, "HTTP/1.1 200 OK\r\nS: d\r\nConnection: close\r\n");
        }
        let sized = Response::stream(Body::sized_stream(7, futures_lite::stream::empty()));
        check(
            &sized,
            &HTTP10_KEPT,
            Length(7),
            "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nS: d\r\nConnection: keep-alive\r\n",
        );
        for (status, line) in
            [(100, "100 Continue"), (103, "103 Early Hints"), (204, "204 No Content"), (304, "304 Not Modified")]
        {
            for response in [Response::stream("body".into()), stream(), Response::new(StatusCode::OK)] {
                let response = response.with_status(StatusCode::from_u16(status).unwrap());
                check(&response, &HTTP11, None, &format!("HTTP/1.1 {line}\r\nS: d\r\n"));
            }
        }
        let reset = Response::stream("body".into()).with_status(StatusCode::RESET_CONTENT);
        check(&reset, &HTTP11, Length(0), "HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\nS: d\r\n");
    }

    #[test]
    fn framing_fields_of_handlers_cannot_lie() {
        use BodyFraming::*;
        let lying = |response: Response| {
            response
                .with_header("Content-Length", "999")
                .with_header("content-length", "5")
                .with_header("Transfer-Encoding", "chunked, gzip")
                .with_header("Connection", "keep-alive, upgrade")
        };
        let ok = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 4\r\nS: d\r\n";
        check(&lying(Response::text("Hey!")), &HTTP11, Length(4), ok);
        check(&lying(Response::text("Hey!")), &HEAD, None, ok);
        check(&lying(stream()), &HTTP11, Chunked, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nS: d\r\n");
        // Without a body the stated length is the one that GET would have; but only where no body follows.
        let empty = |status| lying(Response::new(status));
        check(&empty(StatusCode::OK), &HTTP11, Length(0), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nS: d\r\n");
        check(&empty(StatusCode::OK), &HEAD, None, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nS: d\r\n");
        let expected = "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nS: d\r\n";
        check(&empty(StatusCode::NOT_MODIFIED), &HTTP11, None, expected);
        check(&empty(StatusCode::NO_CONTENT), &HEAD, None, "HTTP/1.1 204 No Content\r\nS: d\r\n");
        for length in ["x", "-1", "5, 5", "18446744073709551616", ""] {
            let response = Response::new(StatusCode::NOT_MODIFIED).with_header("content-length", length);
            check(&response, &HTTP11, None, "HTTP/1.1 304 Not Modified\r\nS: d\r\n");
        }
        for close in ["close", "Close", "x, CLOSE"] {
            let response = Response::new(StatusCode::OK).with_header("connection", close);
            assert!(response.is_closing());
            check(
                &response,
                &HTTP11,
                Length(0),
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nS: d\r\nConnection: close\r\n",
            );
        }
    }

    #[test]
    fn date_and_server_of_handlers_replace_ours() {
        let how = Encoding { server_and_date: LINES, ..HTTP11 };
        let start = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n";
        let (server, date) = ("Server: everycore\r\n", "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
        let ok = || Response::new(StatusCode::OK);
        let check = |response: Response, fields: String| {
            check(&response, &how, BodyFraming::Length(0), &format!("{start}{fields}"))
        };
        check(ok(), format!("{server}{date}"));
        check(ok().with_header("x", "y"), format!("{server}{date}X: y\r\n"));
        check(ok().with_header("date", "a").with_header("date", "b"), format!("{server}Date: b\r\n"));
        check(ok().with_header("server", "z"), format!("{date}Server: z\r\n"));
        check(ok().with_header("server", "z").with_header("date", "b"), "Server: z\r\nDate: b\r\n".into());
    }

    #[test]
    fn bad_fields_become_a_500() {
        for response in [
            Response::text("x").with_header("a b", "c"),
            Response::text("x").with_header("", "c"),
            Response::text("x").with_header("a", "b\r\nc: d"),
            Response::text("x").with_header("a", "b\0"),
            Response::redirect(StatusCode::FOUND, "/a\nb"),
            Response::bytes("text/x\r\n", "x"),
        ] {
            assert_eq!(response.status(), 500);
            assert!(response.headers().is_empty());
            assert_eq!(response.body().as_slice(), Some(&b"500 Internal Server Error\n"[..]));
        }
    }

    #[test]
    fn content_type_of_handlers_replaces() {
        let response = Response::text("a,b").with_header("Content-Type", "text/csv");
        assert_eq!(response.header("content-type"), Some(&b"text/csv"[..]));
        assert!(response.headers().is_empty());
        assert_eq!(Response::new(StatusCode::OK).content_type(), None);
        #[cfg(feature = "json")]
        assert_eq!(Response::json(&[1, 2]).body().as_slice(), Some(&b"[1,2]"[..]));
    }

    #[test]
    fn refusals_answer_and_close() {
        let response = Response::from(Reject::UriTooLong);
        assert!(response.is_closing());
        assert_eq!(response.status(), 414);
        assert_eq!(response.into_body().as_slice(), Some(Reject::UriTooLong.reason().as_bytes()));
        let response = Response::from(BodyError::Other("secret".into()));
        assert_eq!(response.status(), 500);
        assert_eq!(response.body().as_slice(), Some(&b"500 Internal Server Error\n"[..]));
        assert_eq!(Response::from(BodyError::TooLarge { max: 5 }).status(), 413);
    }

    #[test]
    fn chunk_prefix_table() {
        for (len, expected) in [
            (0, "0\r\n"),
            (1, "1\r\n"),
            (15, "f\r\n"),
            (16, "10\r\n"),
            (31, "1f\r\n"),
            (255, "ff\r\n"),
            (256, "100\r\n"),
            (65536, "10000\r\n"),
            (usize::MAX, "ffffffffffffffff\r\n"),
        ] {
            let mut out = Vec::new();
            encode_chunk_prefix(&mut out, len);
            assert_eq!(out, expected.as_bytes(), "{len}");
        }
    }

    #[test]
    fn ready_fields_are_shared_until_one_is_added() {
        let ready = ReadyFields::new(vec![
            (header::CONTENT_TYPE, HeaderValue::from_static("image/png")),
            (header::ETAG, HeaderValue::from_static("\"1\"")),
        ]);
        let answer = || Response::ready(StatusCode::OK, &ready, Body::from("x"));
        let ok = "HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 1\r\nS: d\r\nEtag: \"1\"\r\n";
        check(&answer(), &HTTP11, BodyFraming::Length(1), ok);
        assert_eq!(answer().content_type(), Some(&b"image/png"[..]));
        assert_eq!(answer().header("etag"), Some(&b"\"1\""[..]));
        let more = answer().with_header("a", "b");
        check(&more, &HTTP11, BodyFraming::Length(1), &format!("{ok}A: b\r\n"));
        let other = answer().with_header("content-type", "a/b");
        check(&other, &HTTP11, BodyFraming::Length(1), &ok.replace("image/png", "a/b"));
        let head = Response::ready(StatusCode::OK, &ready, Body::empty()).with_stated_length(7);
        check(&head, &HEAD, BodyFraming::None, &ok.replace("Length: 1", "Length: 7"));
        assert_eq!(Rc::strong_count(&ready), 3, "those without a field of their own, and ours");
    }
}
