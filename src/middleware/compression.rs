//! Answers compressed on their way out: gzip or brotli, as the client likes. Floor 4.
//!
//! For: text that handlers make or stream. Not for: files that were compressed beforehand, and types that are compressed
//! by themselves (images, archives), which pass untouched.
//!
//! zstd is not among the codings: the C library would end the promise that no C compiler is needed, and the encoders in
//! Rust either cannot be flushed or take 2 MiB a stream and minutes to compile. Browsers that take zstd take brotli.

mod encoder;
mod stream;

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};

use self::encoder::Encoder;
use crate::handler::Reply;
use crate::http::{AcceptedCodings, Body, Coding, Request, Response};
use crate::limits::{COMPRESS_BYTES_MIN, COMPRESS_ON_SHARD_BYTES_MAX, COMPRESS_STREAMS_MAX, COMPRESS_WHOLE_BYTES_MAX};
use crate::middleware::Next;
use crate::ring::Ring;

/// How hard to try. The highest qualities of brotli are left out: from 6 on a stream takes 34 MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Least time: brotli 2, gzip 2.
    Fast,
    /// What pays off for most answers: brotli 3, gzip 5. A stream takes 1.2 MiB or 0.5 MiB.
    #[default]
    Balanced,
    /// Fewer bytes for three times the time: brotli 5, gzip 9. A stream takes 2.6 MiB or 0.5 MiB.
    Small,
}

/// A middleware that compresses answers.
///
/// It looks at the type (text, JSON, JavaScript, XML, SVG, WebAssembly and the like), at Accept-Encoding (RFC 9110
/// §12.5.3), and leaves alone what has a Content-Encoding or a digest, says `Cache-Control: no-transform`, is a part
/// (206) or has no body. What could have been compressed gets `Vary: Accept-Encoding` in any case; what is compressed
/// gets a weak ETag, and loses Accept-Ranges, since ranges would be of the plain bytes.
///
/// - A body in memory is compressed whole and keeps a Content-Length, up to 1 MiB; above
///   [`limits::COMPRESS_ON_SHARD_BYTES_MAX`](crate::limits::COMPRESS_ON_SHARD_BYTES_MAX) not on the shard but on
///   glommio's blocking thread. One that does not become smaller goes out as it is.
/// - A larger one, and a stream, is compressed piece by piece as the client takes it. What a stream has yielded when it
///   pauses is flushed: the client can decode it.
/// - A shard compresses [`limits::COMPRESS_STREAMS_MAX`](crate::limits::COMPRESS_STREAMS_MAX) streams at a time; more
///   go out as they are, as memory is bounded.
/// - HEAD is answered as GET.
///
/// An answer over TLS that holds a secret beside what the client chose must not be compressed: its length tells the
/// secret (the BREACH attack). Wrap the routes that have none, or say `no-transform`.
///
/// ```
/// use everycore::{Router, middleware::{Compression, Level}, testing::Client};
///
/// let client = Client::new(|| {
///     Router::new()
///         .get("/long", |_| "all work and no play\n".repeat(100))
///         .wrap(Compression::new().level(Level::Small).min_bytes(200).layer())
/// })?;
/// let answer = client.get("/long").header("Accept-Encoding", "gzip, br").send();
/// assert_eq!(answer.header("content-encoding"), Some("br"));
/// assert!(answer.bytes().len() < 100);
/// # Ok::<(), everycore::RouterError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Compression {
    level: Level,
    bytes_min: usize,
}

impl Default for Compression {
    fn default() -> Self {
        Compression { level: Level::default(), bytes_min: COMPRESS_BYTES_MIN }
    }
}

impl Compression {
    /// With [`Level::Balanced`], for bodies of [`limits::COMPRESS_BYTES_MIN`](crate::limits::COMPRESS_BYTES_MIN) and
    /// more.
    pub fn new() -> Self {
        Compression::default()
    }

    /// How hard to try.
    pub fn level(self, level: Level) -> Self {
        Compression { level, ..self }
    }

    /// Leaves bodies of fewer bytes as they are, unless the client refuses just that. Streams of unknown length count as
    /// long.
    pub fn min_bytes(self, bytes_min: usize) -> Self {
        Compression { bytes_min, ..self }
    }

    /// The middleware, for [`Router::wrap`](crate::Router::wrap) and [`wrapped`](crate::middleware::wrapped).
    pub fn layer(self) -> impl Fn(Request, Next) -> Reply + 'static {
        let shared = Rc::new(Shared { settings: self, streams: Cell::new(0) });
        move |request, next| {
            let fields = request.headers().filter(|(name, _)| name.eq_ignore_ascii_case("accept-encoding"));
            let accepted = AcceptedCodings::parse(fields.map(|(_, value)| value));
            let asked = Asked { accepted, is_head: *request.method() == Method::HEAD };
            match next.run(request) {
                Reply::Ready(response) => shared.answer(response, asked),
                Reply::Later(handler) => {
                    let shared = shared.clone();
                    Reply::Later(Box::pin(async move { shared.answer(handler.await, asked).await }))
                }
            }
        }
    }
}

/// What has to be known of a request once its handler has it.
#[derive(Clone, Copy)]
struct Asked {
    accepted: AcceptedCodings,
    is_head: bool,
}

impl Asked {
    /// The coding of those that can be made here that the client likes best, unless it likes none better.
    fn coding(&self) -> Option<Coding> {
        let can_be_made = |coding: &&Coding| encoder::can_make(**coding) || **coding == Coding::Identity;
        let best = self.accepted.as_slice().iter().find(can_be_made).copied();
        best.filter(|coding| *coding != Coding::Identity)
    }
}

/// A layer on its shard.
struct Shared {
    settings: Compression,
    /// Streams that are being compressed.
    streams: Cell<usize>,
}

impl Shared {
    fn answer(self: &Rc<Self>, mut response: Response, asked: Asked) -> Reply {
        let coding = asked.coding();
        if response.status() == StatusCode::NOT_MODIFIED {
            // RFC 9110 §15.4.5: with the Vary and the ETag that the 200 would have. What type it would be is not known;
            // a weak ETag matches the client's strong one too (RFC 9111 §4.3.4).
            add_vary(&mut response);
            if coding.is_some() {
                weaken_etag(&mut response);
            }
            return Reply::Ready(response);
        }
        if !is_open_to_change(&response) {
            return Reply::Ready(response);
        }
        add_vary(&mut response);
        let length = match response.body().len() {
            Some(0) if asked.is_head => response.stated_length(),
            Some(0) => None,
            length => Some(length.unwrap_or(u64::MAX)),
        };
        let bytes_min = if asked.accepted.refuses_identity() { 1 } else { self.settings.bytes_min as u64 };
        let (Some(coding), true) = (coding, length.is_some_and(|length| length >= bytes_min)) else {
            return Reply::Ready(response);
        };
        self.compress(response, coding, asked)
    }

    fn compress(self: &Rc<Self>, mut response: Response, coding: Coding, asked: Asked) -> Reply {
        let level = self.settings.level;
        let whole = match std::mem::take(response.body_mut()).into_memory() {
            Ok(whole) if !whole.is_empty() && whole.len() <= COMPRESS_WHOLE_BYTES_MAX => whole,
            // Of HEAD only: GET would have streamed.
            Ok(none) if none.is_empty() => {
                let body = Body::stream(futures_lite::stream::empty());
                return Reply::Ready(encoded(response, coding, body));
            }
            Ok(large) => return self.stream(response, coding, asked, large.into()),
            Err(stream) => return self.stream(response, coding, asked, stream),
        };
        if whole.len() <= COMPRESS_ON_SHARD_BYTES_MAX || !Ring::is_here() {
            let compressed = encoder::whole(coding, level, &whole);
            return Reply::Ready(smaller(response, coding, asked, whole, compressed));
        }
        Reply::Later(Box::pin(async move {
            let input = whole.clone();
            let compressed = glommio::executor().spawn_blocking(move || encoder::whole(coding, level, &input)).await;
            smaller(response, coding, asked, whole, compressed)
        }))
    }

    fn stream(self: &Rc<Self>, mut response: Response, coding: Coding, asked: Asked, body: Body) -> Reply {
        if self.streams.get() >= COMPRESS_STREAMS_MAX && !asked.accepted.refuses_identity() {
            *response.body_mut() = body;
            return Reply::Ready(response);
        }
        let encoder = Encoder::new(coding, self.settings.level);
        let stream = stream::Compressed::new(body, encoder, Permit::new(self.clone()));
        Reply::Ready(encoded(response, coding, Body::chunks(None, stream)))
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("streams", &self.streams).finish_non_exhaustive()
    }
}

/// Counts a stream for as long as it is there.
#[derive(Debug)]
struct Permit(Rc<Shared>);

impl Permit {
    fn new(shared: Rc<Shared>) -> Self {
        shared.streams.set(shared.streams.get() + 1);
        Permit(shared)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get() - 1);
    }
}

/// Whether the answer may be sent in another coding.
fn is_open_to_change(response: &Response) -> bool {
    let status = response.status();
    let has_content = !status.is_informational()
        && ![StatusCode::NO_CONTENT, StatusCode::RESET_CONTENT, StatusCode::PARTIAL_CONTENT].contains(&status);
    has_content
        && response.content_type().is_some_and(is_compressible)
        && !response.headers().iter().any(|(name, value)| match *name {
            header::CONTENT_ENCODING => true,
            header::CACHE_CONTROL => lists(value.as_bytes(), b"no-transform"), // RFC 9111 §5.2.2.6
            // A digest is of the content as it is sent, or of the representation with its coding (RFC 9530).
            _ => ["content-digest", "repr-digest", "digest", "content-md5"].contains(&name.as_str()),
        })
}

/// Types that become much smaller. Parameters play no part.
fn is_compressible(content_type: &[u8]) -> bool {
    let essence = content_type.split(|&b| b == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
    match essence.as_slice() {
        [b't', b'e', b'x', b't', b'/', ..] => true,
        name if name.ends_with(b"+json") || name.ends_with(b"+xml") || name.ends_with(b"+yaml") => true,
        name => COMPRESSIBLE.contains(&name),
    }
}

/// Beside `text/*` and the suffixes of RFC 6839.
const COMPRESSIBLE: &[&[u8]] = &[
    b"application/ecmascript",
    b"application/graphql",
    b"application/javascript",
    b"application/json",
    b"application/rtf",
    b"application/sql",
    b"application/toml",
    b"application/vnd.ms-fontobject",
    b"application/wasm",
    b"application/x-javascript",
    b"application/x-ndjson",
    b"application/x-sh",
    b"application/xml",
    b"application/yaml",
    b"font/collection",
    b"font/otf",
    b"font/sfnt",
    b"font/ttf",
    b"image/bmp",
    b"image/vnd.microsoft.icon",
    b"image/x-icon",
];

/// Whether a comma-separated list has this element.
fn lists(value: &[u8], wanted: &[u8]) -> bool {
    value.split(|&b| b == b',').any(|item| item.trim_ascii().eq_ignore_ascii_case(wanted))
}

/// RFC 9110 §12.5.5: also where this client gets the plain bytes, since another would not.
fn add_vary(response: &mut Response) {
    let says_so = response.headers().iter().any(|(name, value)| {
        *name == header::VARY && (lists(value.as_bytes(), b"accept-encoding") || lists(value.as_bytes(), b"*"))
    });
    if !says_so {
        response.add_header(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    }
}

/// The bytes are others than those that a strong validator names (RFC 9110 §8.8.1).
fn weaken_etag(response: &mut Response) {
    let strong = response.header("etag").filter(|etag| etag.starts_with(b"\""));
    if let Some(weak) = strong.and_then(|etag| HeaderValue::from_bytes(&[b"W/", etag].concat()).ok()) {
        response.remove_header(&header::ETAG);
        response.add_header(header::ETAG, weak);
    }
}

/// The compressed body, unless that is no smaller.
fn smaller(mut response: Response, coding: Coding, asked: Asked, plain: Bytes, compressed: Vec<u8>) -> Response {
    if compressed.len() < plain.len() || asked.accepted.refuses_identity() {
        return encoded(response, coding, compressed.into());
    }
    *response.body_mut() = plain.into();
    response
}

fn encoded(mut response: Response, coding: Coding, body: Body) -> Response {
    *response.body_mut() = body;
    weaken_etag(&mut response);
    response.remove_header(&header::ACCEPT_RANGES);
    response.add_header(header::CONTENT_ENCODING, HeaderValue::from_static(coding.token()));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_told_apart() {
        for yes in [
            "text/plain",
            "TEXT/HTML; charset=utf-8",
            "text/event-stream",
            "application/json",
            "application/problem+json ; charset=x",
            "image/svg+xml",
            "application/wasm",
            "font/ttf",
        ] {
            assert!(is_compressible(yes.as_bytes()), "{yes}");
        }
        for no in [
            "",
            "text",
            "image/png",
            "video/mp4",
            "application/octet-stream",
            "font/woff2",
            "application/zip",
            "x/json",
        ] {
            assert!(!is_compressible(no.as_bytes()), "{no}");
        }
    }

    #[test]
    fn etag_is_weakened_once() {
        for (before, after) in [("\"a\"", "W/\"a\""), ("W/\"a\"", "W/\"a\""), ("odd", "odd")] {
            let mut response = Response::text("x").with_header("etag", before).with_header("x-a", "1");
            weaken_etag(&mut response);
            let etags = response.headers().iter().filter(|(name, _)| *name == header::ETAG);
            assert_eq!(etags.map(|(_, value)| value.as_bytes()).collect::<Vec<_>>(), [after.as_bytes()]);
        }
    }
}
