//! What comes back. Floor 6.

use super::{
    client::Client,
    memory::{Alarm, Wire},
    reader::{AnswerHead, BodyReader, read_head},
};
use crate::{
    http::{Body, BodyError, FieldPairs, HeaderMap, Method, StatusCode, encode_chunk_prefix},
    limits::{TEST_PATIENCE, TEST_WINDOW_BYTES},
};
use bytes::Bytes;
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, Waker},
    thread,
    time::Instant,
};

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    trailers: FieldPairs,
    interims: Vec<StatusCode>,
    closes: bool,
}

impl Answer {
    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The first field called `name`, whatever the case; `None` also where it is no visible ASCII.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// All fields.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The body.
    pub fn bytes(&self) -> &Bytes {
        &self.body
    }

    /// The body as text.
    ///
    /// # Panics
    /// If it is not UTF-8.
    #[track_caller]
    pub fn text(&self) -> &str {
        str::from_utf8(&self.body).unwrap_or_else(|error| panic!("the answer is no text: {error}"))
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If `T` cannot be made of it.
    #[cfg(feature = "json")]
    #[track_caller]
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("the answer is other JSON: {error} in {:?}", String::from_utf8_lossy(&self.body))
        })
    }

    /// The fields after a chunked body.
    pub fn trailers(&self) -> &FieldPairs {
        &self.trailers
    }

    /// Interim answers that came before it, e.g. `100 Continue`.
    pub fn interims(&self) -> &[StatusCode] {
        &self.interims
    }

    /// Whether it ended its connection.
    pub fn closes(&self) -> bool {
        self.closes
    }
}

/// An answer whose body is still coming. Dropping it before its end breaks the connection, as a browser does whose tab
/// is closed.
pub struct LiveAnswer<'a> {
    client: &'a Client,
    /// Until the answer's end.
    wire: Option<Wire>,
    /// Received and not yet read.
    input: Vec<u8>,
    upload: Upload,
    interims: Vec<StatusCode>,
    head: AnswerHead,
    body: BodyReader,
    trailers: FieldPairs,
    /// It ended with its connection.
    is_closed: bool,
}

impl<'a> LiveAnswer<'a> {
    /// Reads the head of the answer to what `wire` was sent.
    pub(super) fn open(client: &'a Client, wire: Wire, method: &Method, upload: Upload) -> Result<Self, AnswerError> {
        let mut answer = LiveAnswer {
            client,
            wire: Some(wire),
            input: Vec::new(),
            upload,
            interims: Vec::new(),
            head: AnswerHead::default(),
            body: BodyReader::UntilClose,
            trailers: FieldPairs::new(),
            is_closed: false,
        };
        loop {
            let (head, len) = answer.wait_for(|input, _| read_head(input))?;
            answer.input.drain(..len);
            if head.status.is_informational() {
                answer.upload.is_held = false;
                answer.interims.push(head.status);
                continue;
            }
            answer.body = BodyReader::new(&head, method).map_err(AnswerError::Malformed)?;
            answer.head = head;
            if answer.body.is_ended() {
                answer.end();
            }
            return Ok(answer);
        }
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    /// All fields of the head.
    pub fn headers(&self) -> &HeaderMap {
        &self.head.fields
    }

    /// The first field called `name`, whatever the case; `None` also where it is no visible ASCII.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.fields.get(name)?.to_str().ok()
    }

    /// The next bytes of the body, `None` at its end.
    ///
    /// # Errors
    /// The body broke off, or nothing comes.
    pub fn chunk(&mut self) -> Result<Option<Bytes>, AnswerError> {
        if self.wire.is_none() {
            return Ok(None);
        }
        let (mut body, mut trailers) = (std::mem::replace(&mut self.body, BodyReader::Ended), FieldPairs::new());
        let chunk = self.wait_for(|input, is_closed| {
            let chunk = body.read(input, is_closed, &mut trailers)?;
            Ok(if chunk.is_none() && !body.is_ended() { None } else { Some(chunk) })
        })?;
        self.body = body;
        self.trailers = trailers;
        if self.body.is_ended() {
            self.end();
        }
        Ok(chunk)
    }

    /// Reads the rest.
    ///
    /// # Errors
    /// The body broke off, or nothing comes.
    pub fn finish(mut self) -> Result<Answer, AnswerError> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk()? {
            body.extend_from_slice(&chunk);
        }
        let head = std::mem::take(&mut self.head);
        Ok(Answer {
            status: head.status,
            headers: head.fields,
            body: body.into(),
            trailers: std::mem::take(&mut self.trailers),
            interims: std::mem::take(&mut self.interims),
            closes: head.closes || self.is_closed,
        })
    }

    /// Runs the connection until `read` finds what it looks for.
    fn wait_for<R>(
        &mut self,
        mut read: impl FnMut(&mut Vec<u8>, bool) -> Result<Option<R>, String>,
    ) -> Result<R, AnswerError> {
        let since = Instant::now();
        loop {
            let Some(wire) = &mut self.wire else { return Err(AnswerError::Closed) };
            wire.set_window(TEST_WINDOW_BYTES.saturating_sub(self.input.len()));
            let has_uploaded = self.upload.run(wire).map_err(AnswerError::Upload)?;
            let unread = wire.unread_bytes();
            wire.run();
            let has_read = wire.unread_bytes() < unread;
            let received = wire.take_received();
            self.input.extend_from_slice(&received);
            let waiting = self.input.len();
            if let Some(found) = read(&mut self.input, wire.is_ended()).map_err(AnswerError::Malformed)? {
                return Ok(found);
            }
            let has_moved = has_uploaded || has_read || !received.is_empty() || self.input.len() < waiting;
            if has_moved {
                continue;
            }
            if wire.is_ended() {
                return Err(AnswerError::Closed);
            }
            while !wire.is_woken() && !self.upload.alarm.is_woken() {
                let left = TEST_PATIENCE.checked_sub(since.elapsed()).ok_or(AnswerError::Stuck)?;
                thread::park_timeout(left);
            }
        }
    }

    /// The answer was read: keeps its connection for the next request if it may.
    fn end(&mut self) {
        let Some(mut wire) = self.wire.take() else { return };
        wire.set_window(usize::MAX);
        if !self.head.closes {
            // A service that keeps the connection reads the rest of the body, or closes after all.
            while matches!(self.upload.run(&wire), Ok(true)) {
                wire.run();
            }
        }
        wire.run();
        if self.head.closes || wire.is_ended() || !self.upload.is_done() {
            self.is_closed = true;
            wire.end();
            wire.run();
        } else {
            self.client.keep_wire(wire);
        }
    }
}

impl Drop for LiveAnswer<'_> {
    fn drop(&mut self) {
        if let Some(wire) = &mut self.wire {
            wire.reset();
            wire.run();
        }
    }
}

impl fmt::Debug for LiveAnswer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveAnswer").field("status", &self.head.status).finish_non_exhaustive()
    }
}

/// A request's body on its way.
pub(super) struct Upload {
    body: Option<Body>,
    is_chunked: bool,
    /// Until the service says `100 Continue`.
    is_held: bool,
    alarm: Arc<Alarm>,
}

impl Upload {
    pub(super) fn new(body: Body, is_chunked: bool, is_held: bool) -> Self {
        let body = (!body.is_empty()).then_some(body);
        Upload { body, is_chunked, is_held, alarm: Alarm::new() }
    }

    fn is_done(&self) -> bool {
        self.body.is_none()
    }

    /// Sends what there is, when the service has read what it was sent before. Says whether it sent anything.
    fn run(&mut self, wire: &Wire) -> Result<bool, BodyError> {
        let Some(body) = &mut self.body else { return Ok(false) };
        if self.is_held || wire.unread_bytes() > 0 || wire.is_ended() {
            return Ok(false);
        }
        let mut out = Vec::new();
        self.alarm.take();
        let waker = Waker::from(self.alarm.clone());
        match body.poll_chunk(&mut Context::from_waker(&waker)) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Some(Ok(bytes))) if bytes.is_empty() => {} // would end a chunked body
            Poll::Ready(Some(Ok(bytes))) if self.is_chunked => {
                encode_chunk_prefix(&mut out, bytes.len());
                out.extend_from_slice(&bytes);
                out.extend_from_slice(b"\r\n");
            }
            Poll::Ready(Some(Ok(bytes))) => out.extend_from_slice(&bytes),
            Poll::Ready(Some(Err(error))) => return Err(error),
            Poll::Ready(None) => {
                self.body = None;
                if self.is_chunked {
                    out.extend_from_slice(b"0\r\n\r\n");
                }
            }
        }
        wire.send(out);
        Ok(true)
    }
}

/// Why there is no whole answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum AnswerError {
    /// The service closed the connection before its end: a stream of a handler's failed, say.
    Closed,
    /// Nothing goes on: the handler waits for something that does not come.
    Stuck,
    /// It is no HTTP: a bug of this crate, unless a handler sent it.
    Malformed(String),
    /// The stream that was to be the request's body failed.
    Upload(BodyError),
}

impl fmt::Display for AnswerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnswerError::Closed => f.write_str("expected a whole answer, the service closed the connection before"),
            AnswerError::Stuck => write!(
                f,
                "expected an answer, the handler still waits after {TEST_PATIENCE:?}; sleeps, files and messages of a \
                 shard's need a running server"
            ),
            AnswerError::Malformed(what) => f.write_str(what),
            AnswerError::Upload(error) => write!(f, "the request's body failed: {error}"),
        }
    }
}

impl std::error::Error for AnswerError {}
