//! HTTP/1.x on one connection: reads heads, calls the application, writes answers in order. Floor 5.
//!
//! Generic over [`Transport`]; knows no sockets, no threads and no clock of its own. Grammar is `crate::http`'s.
//!
//! ```text
//!        ┌──────────── Waiting ◀────────────────┐   fill(): flush answers, await bytes, deadlines
//!        │ whole head                           │ nothing whole left
//!        ▼                                      │
//!     respond at once ──────────────────────────┤   synchronous handler, body in memory: no await at all
//!        │ handler waits, or a body streams     │
//!        ▼                                      │
//!     Exchange: Handling ▶ Streaming ▶ Discarding   exchange.rs
//!        │ refused, panicked, Connection: close, timed out
//!        ▼
//!     ending: flush, then (if bytes may still come) FIN, read to the end, close
//! ```
//!
//! A client that half-closes gets its answers. A handler whose client reset the connection is dropped at its
//! next await. A streamed answer that breaks off closes the connection without its last chunk.

mod context;
mod exchange;
#[cfg(test)]
mod tests;

pub use context::{Context, Http1Config};

use self::exchange::{Exchange, Incoming};
use crate::{
    app::ErrorInfo,
    handler::Reply,
    http::{
        Body, BodyFraming, ConnInfo, Encoding, Framing, Method, PooledHead, Reject, Request, Response, StatusCode,
        Version, encode_head,
    },
    limits::{
        ANSWERS_HELD_BYTES, COPIED_BODY_BYTES_MAX, DRAIN_IDLE_GRACE_MS, INPUT_AHEAD_BYTES_MAX, LINGER_TIMEOUT_MS,
    },
    stats::{CloseCause, Count},
    transport::{Outgoing, Phase, Transport, give_buffer, take_buffer},
};
use bytes::Bytes;
use std::{
    future::poll_fn,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    task::{self, Poll, Waker},
};

/// Serves `io` until either side ends it, and counts why.
///
/// `listener` is the number of the listener that accepted it, for the request to tell.
pub async fn serve<T: Transport>(io: T, context: Rc<Context>, listener: usize) {
    context.counters.connections.active.add(1);
    let guard = ActiveGuard { context: context.clone(), cause: CloseCause::Error };
    let cause = Connection::new(io, context, listener).run().await;
    let mut guard = guard;
    guard.cause = cause;
}

/// Counts the end of a connection, also when its task is dropped.
struct ActiveGuard {
    context: Rc<Context>,
    cause: CloseCause,
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        let connections = &self.context.counters.connections;
        connections.active.sub(1);
        connections.closed.by(self.cause).add(1);
    }
}

/// How to go on after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// With the next request.
    Request,
    /// Close; everything the client sent was read.
    Close(CloseCause),
    /// Close; the client may still be sending, so an abrupt end could destroy the answer (RFC 9112 §9.6).
    Linger(CloseCause),
}

/// What of a request its answer depends on.
#[derive(Clone, Copy, Debug)]
struct Asked {
    version: Version,
    head_only: bool,
    keep_alive: bool,
}

struct Connection<T> {
    io: T,
    context: Rc<Context>,
    /// Received bytes; those before `at` are done with.
    input: Vec<u8>,
    at: usize,
    /// Bytes of an unfinished head that the parser has seen.
    seen: usize,
    out: Outgoing,
    requests: u64,
    is_eof: bool,
    /// A request body turned out malformed, too large or late: nothing after it is trusted.
    is_broken: bool,
    /// A part of a head is here, and its deadline runs.
    is_partial: bool,
    listener: usize,
    info: Option<Rc<ConnInfo>>,
    /// When the present wait began, for the idle and the header deadline.
    waiting_since: u64,
    /// When the head of the request at work was complete, in ns.
    head_ns: u64,
    /// What the transport was told last.
    phase: Phase,
    stall: Stall,
}

/// Whether the peer takes what it is sent.
#[derive(Clone, Copy, Debug, Default)]
struct Stall {
    sent_bytes: u64,
    since: u64,
}

impl<T: Transport> Connection<T> {
    fn new(io: T, context: Rc<Context>, listener: usize) -> Self {
        let waiting_since = io.now_ms();
        Connection {
            io,
            context,
            input: Vec::new(),
            at: 0,
            seen: 0,
            out: Outgoing::default(),
            requests: 0,
            is_eof: false,
            is_broken: false,
            is_partial: false,
            listener,
            info: None,
            waiting_since,
            head_ns: 0,
            phase: Phase::Idle,
            stall: Stall::default(),
        }
    }

    fn set_phase(&mut self, phase: Phase) {
        if phase != self.phase {
            self.phase = phase;
            self.io.set_phase(phase);
        }
    }

    /// The request at work is answered: all is written, and some of it may be sent already.
    fn note_answered(&mut self) {
        match self.out.is_empty() {
            true => self.io.note_answered(self.head_ns),
            false => self.out.note_answered(self.head_ns),
        }
    }

    async fn run(mut self) -> CloseCause {
        loop {
            let next = match self.next_head() {
                Ok(Some(head)) => match self.respond(head) {
                    Responded::Now(next) => next,
                    Responded::Later(mut exchange) => match poll_fn(|cx| self.poll_exchange(&mut exchange, cx)).await {
                        Ok(next) => next,
                        Err(cause) => return cause,
                    },
                },
                Ok(None) => match self.fill().await {
                    Ok(next) => next,
                    Err(cause) => return cause,
                },
                Err((reject, head_only)) => self.refuse(reject, head_only),
            };
            match next {
                Next::Request => {}
                Next::Close(cause) => return self.finish(cause, false).await,
                Next::Linger(cause) => return self.finish(cause, true).await,
            }
        }
    }

    fn unread(&self) -> &[u8] {
        &self.input[self.at..]
    }

    /// The next whole head in the input, if there is one and room for its answer.
    fn next_head(&mut self) -> Result<Option<PooledHead>, (Reject, bool)> {
        let unread = &self.input[self.at..];
        if unread.is_empty() || self.out.len() >= ANSWERS_HELD_BYTES {
            return Ok(None);
        }
        let mut head = PooledHead::take();
        match head.parse_from(unread, self.seen, &self.context.config.head) {
            Ok(Some(len)) => {
                self.at += len;
                self.seen = 0;
                self.is_partial = false;
                Ok(Some(head))
            }
            Ok(None) => {
                self.seen = unread.len();
                Ok(None)
            }
            Err(reject) => Err((reject, *head.method() == Method::HEAD)),
        }
    }

    /// Calls the handler. Without a body that is still arriving, and with an answer at once, all is done here.
    fn respond(&mut self, head: PooledHead) -> Responded {
        let counters = &self.context.counters;
        counters.requests.add(1);
        self.requests += 1;
        self.head_ns = self.io.now_ns();
        let is_last = self.context.is_draining()
            || self.context.config.requests_per_connection_max.is_some_and(|max| self.requests >= max);
        let asked = Asked {
            version: head.version(),
            head_only: *head.method() == Method::HEAD,
            keep_alive: head.keep_alive() && !is_last,
        };
        let (body, incoming) = match head.framing() {
            Framing::None => (Body::empty(), None),
            Framing::Length(length) if length <= self.unread().len() as u64 => {
                let end = self.at + length as usize;
                let bytes = Bytes::copy_from_slice(&self.input[self.at..end]);
                self.at = end;
                (Body::from(bytes), None)
            }
            _ => {
                let (incoming, body) = Incoming::new(&head, self.io.now_ms());
                (body, Some(incoming))
            }
        };
        let request = Request::new(head, body, Some(self.info()));
        let app = &self.context.app;
        match catch_unwind(AssertUnwindSafe(|| app.handle(request))) {
            Ok(Reply::Ready(response)) if incoming.is_none() => self.answer(response, asked),
            Ok(reply) => Responded::Later(Box::new(Exchange::new(reply, asked, incoming, self.io.now_ms()))),
            Err(_) => Responded::Now(self.answer_panic(asked)),
        }
    }

    /// Writes a response whose request was read to its end.
    fn answer(&mut self, response: Response, asked: Asked) -> Responded {
        let (framing, next) = self.write_head(&response, asked);
        match self.write_body(response.into_body(), framing) {
            None => {
                self.note_answered();
                Responded::Now(next)
            }
            Some(body) => Responded::Later(Box::new(Exchange::streaming(body, framing, next, asked))),
        }
    }

    /// Writes a response's head; says how the body must follow, and how to go on after it.
    fn write_head(&mut self, response: &Response, asked: Asked) -> (BodyFraming, Next) {
        self.context.counters.responses.by_status(response.status().as_u16()).add(1);
        if self.out.buf.capacity() == 0 {
            self.out.buf = take_buffer();
        }
        let date = self.context.date_lines(self.io.now_ms());
        let how = Encoding {
            version: asked.version,
            head_only: asked.head_only,
            keep_alive: asked.keep_alive,
            server_and_date: &date,
        };
        let framing = encode_head(&mut self.out.buf, response, &how);
        let closes = !asked.keep_alive || response.is_closing() || framing == BodyFraming::UntilClose;
        let next = match closes {
            false => Next::Request,
            true if self.context.is_draining() => Next::Close(CloseCause::Drained),
            true if self.context.config.requests_per_connection_max.is_some_and(|max| self.requests >= max) => {
                Next::Close(CloseCause::RequestsMax)
            }
            true => Next::Close(CloseCause::ServerClosed),
        };
        (framing, next)
    }

    /// Writes a body that is in memory; gives one back that has to be streamed.
    fn write_body(&mut self, mut body: Body, framing: BodyFraming) -> Option<Body> {
        match framing {
            BodyFraming::None | BodyFraming::Length(0) => None,
            BodyFraming::Length(_) => match body.as_slice() {
                Some(bytes) if bytes.len() <= COPIED_BODY_BYTES_MAX => {
                    self.out.buf.extend_from_slice(bytes);
                    None
                }
                Some(_) => {
                    // In memory: the one chunk is there at once.
                    let cx = &mut task::Context::from_waker(Waker::noop());
                    if let Poll::Ready(Some(Ok(bytes))) = body.poll_chunk(cx) {
                        self.out.push_shared(bytes);
                    }
                    None
                }
                None => Some(body),
            },
            BodyFraming::Chunked | BodyFraming::UntilClose => Some(body),
        }
    }

    /// Answers a request that cannot be read; nothing after it on this connection is trusted.
    fn refuse(&mut self, reject: Reject, head_only: bool) -> Next {
        let status = reject.status();
        self.context.counters.rejects.by_status(status.as_u16()).add(1);
        self.answer_error(status, reject.reason(), Asked { version: Version::Http11, head_only, keep_alive: false });
        Next::Linger(match reject {
            Reject::HeadTimedOut => CloseCause::HeaderTimeout,
            _ => CloseCause::Rejected,
        })
    }

    fn answer_panic(&mut self, asked: Asked) -> Next {
        self.context.counters.handler_panics.add(1);
        log::error!("a handler panicked; the client got 500");
        let asked = Asked { keep_alive: false, ..asked };
        self.answer_error(StatusCode::INTERNAL_SERVER_ERROR, "the handler of this request failed", asked);
        self.note_answered();
        Next::Linger(CloseCause::Error)
    }

    /// Writes an answer of the server's own, as the application's error page has it.
    fn answer_error(&mut self, status: StatusCode, reason: &'static str, asked: Asked) {
        let info = ErrorInfo { status, reason: reason.into(), request: None };
        let app = &self.context.app;
        let response = catch_unwind(AssertUnwindSafe(|| app.error_answer(&info)))
            .unwrap_or_else(|_| Response::text(reason).with_status(status));
        let (framing, _) = self.write_head(&response, asked);
        let body = response.into_body();
        // A page that streams is not worth waiting for: its length was announced as chunked, so end it.
        if self.write_body(body, framing).is_some() && framing == BodyFraming::Chunked {
            self.out.buf.extend_from_slice(b"0\r\n\r\n");
        }
    }

    fn info(&mut self) -> Rc<ConnInfo> {
        let (io, listener, max) = (&self.io, self.listener, self.context.config.body_bytes_max);
        let info = || Rc::new(io.conn_info().on_listener(listener).with_body_bytes_max(max));
        self.info.get_or_insert_with(info).clone()
    }

    // ---- waiting ---------------------------------------------------------------------------------

    /// Sends what is written and waits for more to read. An answer that waits for the peer holds up reading only
    /// when it is as large as answers may be.
    async fn fill(&mut self) -> Result<Next, CloseCause> {
        self.compact();
        let is_partial = !self.unread().is_empty();
        if !(is_partial && self.is_partial) {
            self.waiting_since = self.io.now_ms();
            self.is_partial = is_partial;
        }
        self.set_phase(if is_partial { Phase::ReadingHead } else { Phase::Idle });
        poll_fn(|cx| self.poll_fill(cx)).await
    }

    fn poll_fill(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<Next, CloseCause>> {
        let flushed = self.poll_flush(cx)?;
        if self.out.len() >= ANSWERS_HELD_BYTES {
            return self.poll_stall(cx).map(Err);
        }
        if self.unread().len() > self.seen {
            return Poll::Ready(Ok(Next::Request)); // answers had to wait, requests are there
        }
        if !self.is_eof {
            match self.io.poll_read(cx, &mut self.input) {
                Poll::Ready(Ok(0)) => self.is_eof = true,
                Poll::Ready(Ok(_)) => return Poll::Ready(Ok(Next::Request)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(broken(&error))),
                Poll::Pending => {}
            }
        }
        if self.is_eof {
            if !self.unread().is_empty() {
                return Poll::Ready(Ok(self.refuse(Reject::Incomplete, false)));
            }
            return match flushed {
                Poll::Ready(()) => Poll::Ready(Err(CloseCause::PeerClosed)),
                Poll::Pending => self.poll_stall(cx).map(Err),
            };
        }
        if flushed.is_pending() {
            return self.poll_stall(cx).map(Err);
        }
        self.poll_waiting(cx)
    }

    /// The deadlines of a connection that waits for its peer to send.
    fn poll_waiting(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<Next, CloseCause>> {
        let config = &self.context.config;
        let is_idle = self.unread().is_empty();
        let (timeout, cause) = match (is_idle, self.context.is_draining()) {
            (false, _) => (config.header_timeout_ms, CloseCause::HeaderTimeout),
            (true, true) => (DRAIN_IDLE_GRACE_MS, CloseCause::Drained),
            (true, false) => (config.idle_timeout_ms, CloseCause::IdleTimeout),
        };
        let deadline = self.waiting_since.saturating_add(timeout);
        if self.io.now_ms() < deadline {
            self.wait_until(deadline, cx);
            return Poll::Pending;
        }
        if is_idle && self.io.poll_sent(cx).is_pending() {
            // Not idle: it is still taking its answer. The wait begins anew with each look.
            self.waiting_since = self.io.now_ms();
            return self.poll_stall(cx).map(Err);
        }
        if is_idle {
            return Poll::Ready(Err(cause));
        }
        Poll::Ready(Ok(self.refuse(Reject::HeadTimedOut, false)))
    }

    /// Hands what is written to the transport. Pending: an earlier send is still on its way.
    fn poll_flush(&mut self, cx: &mut task::Context<'_>) -> Result<Poll<()>, CloseCause> {
        if self.out.is_empty() {
            return Ok(match self.io.poll_sent(cx) {
                Poll::Ready(Ok(())) => Poll::Ready(()),
                Poll::Ready(Err(error)) => return Err(broken(&error)),
                Poll::Pending => Poll::Pending,
            });
        }
        match self.io.poll_sent(cx) {
            Poll::Ready(Ok(())) => {
                self.io.send(&mut self.out);
                self.stall = Stall { sent_bytes: self.io.sent_bytes(), since: self.io.now_ms() };
                // Known to be on its way: most sends are complete before anybody asks again.
                Ok(Poll::Ready(()))
            }
            Poll::Ready(Err(error)) => Err(broken(&error)),
            Poll::Pending => Ok(Poll::Pending),
        }
    }

    /// Ready when the peer has taken nothing for too long.
    fn poll_stall(&mut self, cx: &mut task::Context<'_>) -> Poll<CloseCause> {
        let deadline = self.stall_deadline();
        if self.io.now_ms() >= deadline {
            return Poll::Ready(CloseCause::WriteStall);
        }
        self.wait_until(deadline, cx);
        Poll::Pending
    }

    /// When the peer is given up if it takes nothing more of what it is sent.
    fn stall_deadline(&mut self) -> u64 {
        let sent_bytes = self.io.sent_bytes();
        if sent_bytes != self.stall.sent_bytes {
            self.stall = Stall { sent_bytes, since: self.io.now_ms() };
        }
        self.stall.since.saturating_add(self.context.config.write_stall_ms)
    }

    /// Has the task woken at `deadline`, at the latest.
    fn wait_until(&mut self, deadline: u64, cx: &mut task::Context<'_>) {
        self.io.set_deadline(deadline);
        if self.io.poll_deadline(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }

    /// Drops the bytes that are done with; an idle connection owns no buffer.
    fn compact(&mut self) {
        if self.at == self.input.len() {
            give_buffer(std::mem::take(&mut self.input));
        } else {
            self.input.drain(..self.at);
        }
        self.at = 0;
    }

    // ---- ending ----------------------------------------------------------------------------------

    /// Sends what is written, and closes so that the peer can read it.
    async fn finish(mut self, cause: CloseCause, lingers: bool) -> CloseCause {
        self.set_phase(Phase::Writing);
        let lingers = (lingers || !self.unread().is_empty()) && !self.is_eof;
        let sent = poll_fn(|cx| {
            loop {
                if self.poll_flush(cx)?.is_pending() {
                    return self.poll_stall(cx).map(Err);
                }
                if self.out.is_empty() {
                    match self.io.poll_sent(cx) {
                        Poll::Ready(Ok(())) => return Poll::Ready(Ok(())),
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(broken(&error))),
                        Poll::Pending => return self.poll_stall(cx).map(Err),
                    }
                }
            }
        });
        if let Err(broken) = sent.await {
            return broken;
        }
        if lingers {
            linger(&mut self.io).await;
        }
        cause
    }
}

/// Sends what is on its way, ends our stream and throws away what the peer still sends, until its end or for a
/// while: a close with bytes unread would be a reset, which can destroy the answer on its way (RFC 9112 §9.6).
pub(crate) async fn linger<T: Transport>(io: &mut T) {
    let deadline = io.now_ms() + LINGER_TIMEOUT_MS;
    let mut thrown_away = Vec::new();
    let mut is_shut = false;
    poll_fn(|cx| {
        loop {
            if io.now_ms() >= deadline {
                return Poll::Ready(());
            }
            match io.poll_sent(cx) {
                Poll::Ready(Ok(())) if !is_shut => {
                    is_shut = true;
                    io.shutdown();
                }
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                _ => {}
            }
            thrown_away.clear();
            match io.poll_read(cx, &mut thrown_away) {
                Poll::Ready(Ok(1..)) => {}
                Poll::Ready(Ok(0)) if !is_shut => return io.poll_sent(cx).map(|_| ()),
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    io.set_deadline(deadline);
                    return io.poll_deadline(cx);
                }
            }
        }
    })
    .await;
}

/// What a call of the handler came to.
enum Responded {
    Now(Next),
    Later(Box<Exchange>),
}

fn broken(error: &io::Error) -> CloseCause {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => {
            CloseCause::Reset
        }
        _ => CloseCause::Error,
    }
}

/// Bytes that may be read ahead while a handler works.
const fn reads_ahead(unread: usize) -> bool {
    unread < INPUT_AHEAD_BYTES_MAX
}
