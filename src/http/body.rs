//! One body type for requests and answers.
//!
//! For: bodies in memory, as a stream, or as they arrive. Not for: framing them on the wire, deadlines. Floor 1.

use super::{Reject, feed::Consumer};
use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use http::{HeaderName, HeaderValue, StatusCode};
use pin_project_lite::pin_project;
use std::{
    borrow::Cow,
    fmt,
    future::poll_fn,
    ops::Range,
    os::fd::BorrowedFd,
    pin::Pin,
    task::{Context, Poll},
};

/// Fields in the order they came.
pub type FieldPairs = Vec<(HeaderName, HeaderValue)>;

/// The body of a request or of an answer.
///
/// Made from what a handler has at hand; read with [`chunk`](Body::chunk) or [`bytes`](Body::bytes).
///
/// ```
/// use everycore::http::Body;
/// assert_eq!(Body::from("Hey!").len(), Some(4));
/// assert_eq!(Body::from(vec![1, 2]).as_slice(), Some(&[1, 2][..]));
/// ```
#[derive(Default)]
pub struct Body(Kind);

#[derive(Default)]
enum Kind {
    #[default]
    Empty,
    /// A stream that is read to its end, and the trailer fields that it had.
    Ended(FieldPairs),
    Static(&'static [u8]),
    Owned(Vec<u8>),
    Bytes(Bytes),
    Feed(Consumer),
    Stream {
        stream: BoxStream,
        /// What the maker announced and has not delivered yet.
        remaining: Option<u64>,
    },
}

type BoxStream = Pin<Box<dyn Chunks>>;

/// A stream of bytes, of which some may be in an open file: a connection can have them sent from there, uncopied.
pub(crate) trait Chunks: Stream<Item = Result<Bytes, BodyError>> {
    /// The bytes that come next, where they are. `None`: they are to be polled for.
    fn in_file(self: Pin<&mut Self>) -> Option<(BorrowedFd<'_>, Range<u64>)> {
        None
    }

    /// Fields that follow its end.
    fn trailers(self: Pin<&mut Self>) -> FieldPairs {
        FieldPairs::new()
    }

    /// So many of those bytes were sent, and do not come again; 0: the file ends before them.
    ///
    /// # Errors
    /// The body breaks off here.
    fn sent_from_file(self: Pin<&mut Self>, _count: usize) -> Result<(), BodyError> {
        Ok(())
    }
}

pin_project! {
    /// A stream of which nothing is in a file.
    struct Plain<S> {
        #[pin]
        stream: S,
    }
}

impl<S: Stream<Item = Result<Bytes, BodyError>>> Stream for Plain<S> {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.project().stream.poll_next(cx)
    }
}

impl<S: Stream<Item = Result<Bytes, BodyError>>> Chunks for Plain<S> {}

impl Body {
    /// What a service feeds.
    pub(super) fn fed(consumer: Consumer) -> Body {
        Body(Kind::Feed(consumer))
    }

    /// A body without bytes.
    pub const fn empty() -> Body {
        Body(Kind::Empty)
    }

    /// A body whose length is not known beforehand: it goes out in chunks.
    pub fn stream(stream: impl Stream<Item = Result<Bytes, BodyError>> + 'static) -> Body {
        Body(Kind::Stream { stream: Box::pin(Plain { stream }), remaining: None })
    }

    /// A stream of exactly `len` bytes; one that yields more or fewer ends in [`BodyError::WrongLength`].
    pub fn sized_stream(len: u64, stream: impl Stream<Item = Result<Bytes, BodyError>> + 'static) -> Body {
        Body(Kind::Stream { stream: Box::pin(Plain { stream }), remaining: Some(len) })
    }

    /// A stream, of so many bytes if that is known, which may be in a file and have trailer fields.
    pub(crate) fn chunks(len: Option<u64>, chunks: impl Chunks + 'static) -> Body {
        Body(Kind::Stream { stream: Box::pin(chunks), remaining: len })
    }

    /// See [`Chunks::in_file`].
    pub(crate) fn in_file(&mut self) -> Option<(BorrowedFd<'_>, Range<u64>)> {
        match &mut self.0 {
            Kind::Stream { stream, .. } => stream.as_mut().in_file(),
            _ => None,
        }
    }

    /// See [`Chunks::sent_from_file`].
    pub(crate) fn sent_from_file(&mut self, count: usize) -> Result<(), BodyError> {
        let Kind::Stream { stream, remaining } = &mut self.0 else { return Ok(()) };
        *remaining = remaining.map(|remaining| remaining.saturating_sub(count as u64));
        stream.as_mut().sent_from_file(count)
    }

    /// Bytes that are still to come, if that is known.
    pub fn len(&self) -> Option<u64> {
        match &self.0 {
            Kind::Feed(consumer) => consumer.remaining(),
            Kind::Stream { remaining, .. } => *remaining,
            _ => self.as_slice().map(|bytes| bytes.len() as u64),
        }
    }

    /// Whether it is known that no byte is to come.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// The whole body, if it is in memory already.
    pub fn as_slice(&self) -> Option<&[u8]> {
        match &self.0 {
            Kind::Empty | Kind::Ended(_) => Some(&[]),
            Kind::Static(bytes) => Some(bytes),
            Kind::Owned(bytes) => Some(bytes),
            Kind::Bytes(bytes) => Some(bytes),
            Kind::Feed(_) | Kind::Stream { .. } => None,
        }
    }

    /// The whole body without a copy, if it is in memory already; else the body back.
    ///
    /// # Errors
    /// The body itself: it is a stream.
    pub fn into_memory(self) -> Result<Bytes, Body> {
        match self.0 {
            Kind::Empty | Kind::Ended(_) => Ok(Bytes::new()),
            Kind::Static(bytes) => Ok(Bytes::from_static(bytes)),
            Kind::Owned(bytes) => Ok(Bytes::from(bytes)),
            Kind::Bytes(bytes) => Ok(bytes),
            stream @ (Kind::Feed(_) | Kind::Stream { .. }) => Err(Body(stream)),
        }
    }

    /// The next bytes, `None` at the end. Dropping the future loses nothing.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, BodyError>> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// As [`chunk`](Body::chunk), for hand-written futures.
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let polled = match &mut self.0 {
            Kind::Feed(consumer) => return consumer.poll_chunk(cx),
            Kind::Stream { stream, remaining } => {
                let polled = stream.as_mut().poll_next(cx).map(|next| check_length(next, remaining));
                match polled {
                    Poll::Ready(Some(Ok(_))) | Poll::Pending => return polled,
                    Poll::Ready(_) => {
                        self.0 = Kind::Ended(stream.as_mut().trailers());
                        return polled;
                    }
                }
            }
            Kind::Empty | Kind::Ended(_) => return Poll::Ready(None),
            Kind::Static(bytes) => whole(Bytes::from_static(bytes)),
            Kind::Owned(bytes) => whole(Bytes::from(std::mem::take(bytes))),
            Kind::Bytes(bytes) => whole(std::mem::take(bytes)),
        };
        // Nothing comes after the last bytes, and an ended stream must not be polled again.
        self.0 = Kind::Empty;
        polled
    }

    /// The whole body, at most `max` bytes of it.
    ///
    /// # Errors
    /// [`BodyError::TooLarge`] before a byte is read where the announced length is above `max`; otherwise
    /// whatever [`chunk`](Body::chunk) yields.
    pub async fn bytes(mut self, max: usize) -> Result<Bytes, BodyError> {
        let too_large = BodyError::TooLarge { max };
        if self.len().is_some_and(|len| len > max as u64) {
            return Err(too_large);
        }
        let Some(first) = self.chunk().await.transpose()? else {
            return Ok(Bytes::new());
        };
        if first.len() > max {
            return Err(too_large);
        }
        // Often one chunk is all: then nothing is copied. Its end must still be seen: a feed may have failed.
        let Some(second) = self.chunk().await.transpose()? else {
            return Ok(first);
        };
        let announced = self.len().map_or(0, |rest| usize::try_from(rest).unwrap_or(0));
        let mut whole = BytesMut::with_capacity((first.len() + second.len() + announced).min(max));
        whole.extend_from_slice(&first);
        let mut next = Some(second);
        while let Some(chunk) = next {
            if chunk.len() > max - whole.len() {
                return Err(too_large);
            }
            whole.extend_from_slice(&chunk);
            next = self.chunk().await.transpose()?;
        }
        Ok(whole.freeze())
    }

    /// The trailer fields of a chunked body, once it was read to the end; taken out.
    pub fn trailers(&mut self) -> FieldPairs {
        match &mut self.0 {
            Kind::Ended(trailers) => std::mem::take(trailers),
            Kind::Feed(consumer) => consumer.take_trailers(),
            _ => FieldPairs::new(),
        }
    }
}

fn whole(bytes: Bytes) -> Poll<Option<Result<Bytes, BodyError>>> {
    Poll::Ready((!bytes.is_empty()).then_some(Ok(bytes)))
}

fn check_length(
    next: Option<Result<Bytes, BodyError>>,
    remaining: &mut Option<u64>,
) -> Option<Result<Bytes, BodyError>> {
    match (next, remaining) {
        (Some(Ok(chunk)), Some(remaining)) => match remaining.checked_sub(chunk.len() as u64) {
            Some(rest) => {
                *remaining = rest;
                Some(Ok(chunk))
            }
            None => Some(Err(BodyError::WrongLength)),
        },
        (None, Some(1..)) => Some(Err(BodyError::WrongLength)),
        (next, _) => next,
    }
}

impl Stream for Body {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_chunk(cx)
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Kind::Empty | Kind::Ended(_) => "empty",
            Kind::Static(_) => "static",
            Kind::Owned(_) => "owned",
            Kind::Bytes(_) => "bytes",
            Kind::Feed(_) => "feed",
            Kind::Stream { .. } => "stream",
        };
        f.debug_struct("Body").field("kind", &kind).field("len", &self.len()).finish()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Body {
        Body(Kind::Static(text.as_bytes()))
    }
}

impl From<&'static [u8]> for Body {
    fn from(bytes: &'static [u8]) -> Body {
        Body(Kind::Static(bytes))
    }
}

impl From<String> for Body {
    fn from(text: String) -> Body {
        Body(Kind::Owned(text.into_bytes()))
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Body(Kind::Owned(bytes))
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        Body(Kind::Bytes(bytes))
    }
}

impl From<Cow<'static, str>> for Body {
    fn from(text: Cow<'static, str>) -> Body {
        match text {
            Cow::Borrowed(text) => text.into(),
            Cow::Owned(text) => text.into(),
        }
    }
}

impl From<()> for Body {
    fn from((): ()) -> Body {
        Body::empty()
    }
}

/// Why a body could not be read to its end.
#[derive(Debug)]
pub enum BodyError {
    /// More bytes than the reader takes.
    TooLarge {
        /// Bytes that the reader takes.
        max: usize,
    },
    /// The peer's framing is broken: answer and close.
    Malformed(Reject),
    /// The peer went away before the end.
    PeerGone,
    /// The peer was too slow.
    TimedOut,
    /// A stream of announced length yielded more or fewer bytes: a bug of who made it.
    WrongLength,
    /// What a handler's own stream failed with.
    Other(Box<dyn std::error::Error>),
}

impl BodyError {
    /// The status to answer with, if it is not too late.
    pub fn status(&self) -> StatusCode {
        match self {
            BodyError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            BodyError::Malformed(reject) => reject.status(),
            BodyError::PeerGone => StatusCode::BAD_REQUEST,
            BodyError::TimedOut => StatusCode::REQUEST_TIMEOUT,
            BodyError::WrongLength | BodyError::Other(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BodyError::TooLarge { max } => write!(f, "expected a body of at most {max} bytes"),
            BodyError::Malformed(reject) => reject.fmt(f),
            BodyError::PeerGone => f.write_str("expected the rest of the body, got the end of the connection"),
            BodyError::TimedOut => f.write_str("the body was not complete in time"),
            BodyError::WrongLength => f.write_str("the body did not have the length announced for it"),
            BodyError::Other(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BodyError {}

#[cfg(test)]
mod tests {
    use super::{super::Feed, *};
    use futures_lite::{future::block_on, stream};
    use std::task::Waker;

    fn chunks(parts: &[&'static str]) -> impl Stream<Item = Result<Bytes, BodyError>> + 'static {
        stream::iter(parts.iter().map(|part| Ok(Bytes::from_static(part.as_bytes()))).collect::<Vec<_>>())
    }

    fn poll(body: &mut Body) -> Poll<Option<Result<Bytes, String>>> {
        let polled = body.poll_chunk(&mut Context::from_waker(Waker::noop()));
        polled.map_err(|error| error.to_string())
    }

    fn fed(parts: &[&'static str], len: Option<u64>) -> Body {
        let (feed, body) = Feed::new(len);
        for part in parts {
            feed.push(Bytes::from_static(part.as_bytes()));
        }
        feed.end(FieldPairs::new());
        body
    }

    #[test]
    fn every_kind_yields_its_bytes_once() {
        let kinds: [(Body, Option<u64>); 11] = [
            ("hello".into(), Some(5)),
            (b"hello"[..].into(), Some(5)),
            (String::from("hello").into(), Some(5)),
            (b"hello".to_vec().into(), Some(5)),
            (Bytes::from_static(b"hello").into(), Some(5)),
            (Cow::Borrowed("hello").into(), Some(5)),
            (Cow::<'static, str>::Owned("hello".into()).into(), Some(5)),
            (Body::stream(chunks(&["he", "llo"])), None),
            (Body::sized_stream(5, chunks(&["h", "ello"])), Some(5)),
            (fed(&["hel", "lo"], Some(5)), Some(5)),
            (fed(&["hello"], None), None),
        ];
        for (mut body, len) in kinds {
            assert_eq!(body.len(), len, "{body:?}");
            let mut all = Vec::new();
            while let Some(chunk) = block_on(body.chunk()) {
                all.extend_from_slice(&chunk.unwrap());
            }
            assert_eq!(all, b"hello");
            assert_eq!(poll(&mut body), Poll::Ready(None), "{body:?} after its end");
            assert!(body.len().is_none_or(|len| len == 0));
        }
        for mut empty in [Body::empty(), "".into(), Vec::new().into(), Body::default(), ().into()] {
            assert!(empty.is_empty());
            assert_eq!(empty.as_slice(), Some(&b""[..]));
            assert_eq!(poll(&mut empty), Poll::Ready(None));
        }
    }

    #[test]
    fn bytes_holds_its_limit_to_the_byte() {
        let makers: [fn() -> Body; 5] = [
            || "hello".into(),
            || Body::stream(chunks(&["he", "", "llo"])),
            || Body::sized_stream(5, chunks(&["hell", "o"])),
            || fed(&["h", "ello"], Some(5)),
            || fed(&["hello"], None),
        ];
        for make in makers {
            for (max, fits) in [(0, false), (1, false), (4, false), (5, true), (6, true), (usize::MAX, true)] {
                match block_on(make().bytes(max)) {
                    Ok(bytes) => assert!(fits && bytes == "hello", "{:?} at most {max}", make()),
                    Err(BodyError::TooLarge { max: told }) => {
                        assert!(!fits && told == max, "{:?}", make())
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        assert_eq!(block_on(Body::empty().bytes(0)).unwrap(), "");
    }

    #[test]
    fn bytes_refuses_an_announced_excess_before_reading() {
        let (feed, body) = Feed::new(Some(u64::MAX));
        let error = block_on(body.bytes(10)).unwrap_err();
        assert_eq!(error.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert!(feed.is_abandoned() && !feed.is_wanted());
    }

    #[test]
    fn bytes_of_a_feed_that_breaks_off_are_no_body() {
        for error in [BodyError::PeerGone, BodyError::Malformed(Reject::BadChunkSize), BodyError::TimedOut] {
            let (feed, body) = Feed::new(Some(10));
            feed.push(Bytes::from_static(b"hello"));
            let status = error.status();
            feed.fail(error);
            assert_eq!(block_on(body.bytes(10)).unwrap_err().status(), status);
        }
    }

    #[test]
    fn sized_stream_of_another_length_fails() {
        for parts in [&["hell"][..], &["hello", "o"], &["helloo"], &[]] {
            let body = Body::sized_stream(5, chunks(parts));
            assert!(matches!(block_on(body.bytes(100)), Err(BodyError::WrongLength)), "{parts:?}");
        }
    }

    #[test]
    fn feed_tells_what_the_consumer_wants() {
        let (feed, mut body) = Feed::new(Some(6));
        assert!(!feed.is_wanted() && !feed.is_abandoned());
        assert_eq!(poll(&mut body), Poll::Pending);
        assert!(feed.is_wanted());
        feed.push(Bytes::new()); // nothing: still wanted
        assert!(feed.is_wanted());
        feed.push(Bytes::from_static(b"ab"));
        feed.push(Bytes::from_static(b"cd"));
        assert!(!feed.is_wanted());
        assert_eq!((feed.queued_bytes(), body.len()), (4, Some(6)));
        assert_eq!(poll(&mut body), Poll::Ready(Some(Ok("ab".into()))));
        assert_eq!((feed.queued_bytes(), body.len()), (2, Some(4)));
        feed.end(vec![(http::header::ETAG, HeaderValue::from_static("x"))]);
        feed.push(Bytes::from_static(b"late"));
        assert_eq!(poll(&mut body), Poll::Ready(Some(Ok("cd".into()))));
        assert_eq!(poll(&mut body), Poll::Ready(None));
        assert_eq!(body.trailers().len(), 1);
        assert!(body.trailers().is_empty());
        assert!(!feed.is_abandoned());
        drop(body);
        assert!(feed.is_abandoned());
    }

    #[test]
    fn feed_without_a_consumer_keeps_nothing() {
        let (feed, body) = Feed::new(None);
        feed.push(Bytes::from_static(b"ab"));
        drop(body);
        feed.push(Bytes::from_static(b"cd"));
        assert_eq!(feed.queued_bytes(), 0);
        assert!(feed.poll_room(&mut Context::from_waker(Waker::noop()), 0).is_ready());
    }

    #[test]
    fn both_ends_wake_each_other() {
        struct Count(std::sync::atomic::AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let (consumer, service) = [0, 1].map(|_| std::sync::Arc::new(Count(Default::default()))).into();
        let (consumer_waker, service_waker) = (Waker::from(consumer.clone()), Waker::from(service.clone()));
        let (mut reads, mut writes) = (Context::from_waker(&consumer_waker), Context::from_waker(&service_waker));
        let woken = |count: &Count| count.0.load(std::sync::atomic::Ordering::Relaxed);

        let (feed, mut body) = Feed::new(None);
        assert!(body.poll_chunk(&mut reads).is_pending());
        feed.push(Bytes::from_static(b"ab"));
        feed.push(Bytes::from_static(b"cd"));
        assert_eq!(woken(&consumer), 1);
        for (max, ready) in [(3, false), (4, false), (5, true)] {
            assert_eq!(feed.poll_room(&mut writes, max).is_ready(), ready, "{max}");
        }
        assert!(body.poll_chunk(&mut reads).is_ready());
        assert_eq!(woken(&service), 1);
        assert!(feed.poll_room(&mut writes, 3).is_ready());
        assert!(body.poll_chunk(&mut reads).is_ready());
        assert!(body.poll_chunk(&mut reads).is_pending());
        feed.fail(BodyError::PeerGone);
        assert_eq!(woken(&consumer), 2);
        assert!(feed.poll_room(&mut writes, 0).is_pending());
        drop(body);
        assert_eq!(woken(&service), 2);
    }
}
