//! HTTP/1.x on one connection: reads heads, calls the application, writes answers in order. Floor 5.
//!
//! Generic over [`Transport`]; knows no sockets, no threads and no clock of its own. Grammar is `crate::http`'s.
//!
//! ```text
//!        ┌──────────── Waiting ◀────────────────┐   flush answers, await bytes, deadlines: waiting.rs
//!        │ bytes                                │ nothing whole left
//!        ▼                                      │
//!     Reading ──── answered at once ────────────┤   synchronous handler, body in memory: no await at all
//!        │ handler waits, or a body streams     │
//!        ▼                                      │
//!     Answering: Handling ▶ Streaming ▶ Discarding  exchange.rs
//!        │ refused, panicked, Connection: close, timed out
//!        ▼
//!     Flushing ──▶ Lingering (if bytes may still come: FIN, read to the end) ──▶ close
//! ```
//!
//! A client that half-closes gets its answers. A handler whose client reset the connection is dropped at its
//! next await. A streamed answer that breaks off closes the connection without its last chunk.

mod context;
mod exchange;
mod incoming;
mod logging;
#[cfg(test)]
mod tests;
mod waiting;

pub use context::{Context, Http1Config};
pub(crate) use waiting::linger;

use self::{
    exchange::Exchange,
    incoming::Incoming,
    waiting::{Linger, Stall},
};
use crate::{
    access_log::Entry,
    app::ErrorInfo,
    handler::Reply,
    http::{Body, BodyFraming, ConnInfo, Framing, Method, PooledHead, Reject, Request, Response, StatusCode, Version},
    limits::{ANSWERS_HELD_BYTES, COPIED_BODY_BYTES_MAX, INPUT_AHEAD_BYTES_MAX},
    stats::{CloseCause, Count},
    transport::{Outgoing, Phase, Transport, take_buffer},
};
use bytes::Bytes;
use std::{
    future::poll_fn,
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    rc::Rc,
    task::{self, Poll, Waker, ready},
};

/// Serves `io` until either side ends it, and counts why.
///
/// `listener` is the number of the listener that accepted it, for the request to tell; `held` is dropped last.
// A state machine by hand, since it is what an idle connection costs: an async function would keep its arguments
// beside what became of them, and the locals of the end while it is open.
pub fn serve<T: Transport>(
    io: T,
    context: Rc<Context>,
    listener: usize,
    held: impl Sized + 'static,
) -> impl Future<Output = ()> {
    let mut state = (Connection::new(io, context, listener), held); // dropped in this order
    poll_fn(move |cx| {
        let (connection, _) = &mut state; // all of it is captured
        connection.cause = ready!(connection.poll(cx));
        Poll::Ready(())
    })
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
    /// The client will send nothing more: it announced the close, or asked with HTTP/1.0.
    is_clients_last: bool,
}

/// What a connection is at; drawn at the top of this file.
#[derive(Default)]
enum State {
    /// Looking for a whole head in the input.
    #[default]
    Reading,
    /// There is none: for the peer's bytes.
    Waiting,
    /// A handler or a streamed body is at work.
    Answering(Box<Exchange>),
    /// It will end once all that is written is sent.
    Flushing { cause: CloseCause, lingers: bool },
    /// All is sent; the peer may still send.
    Lingering(CloseCause, Linger),
}

struct Connection<T: Transport> {
    io: T,
    state: State,
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
    broken: Option<CloseCause>,
    /// A part of a head is here, and its deadline runs.
    is_partial: bool,
    listener: usize,
    info: Option<Rc<ConnInfo>>,
    /// It waited when it saw the drain: the grace runs from then, however long it had been idle.
    is_in_grace: bool,
    /// When the present wait began, for the idle and the header deadline.
    waiting_since: u64,
    /// When the head of the request at work was complete, in ns.
    head_ns: u64,
    /// What the transport was told last.
    phase: Phase,
    stall: Stall,
    /// The request at work, for the access log; made with the first one if there is a log.
    entry: Option<Box<Entry>>,
    /// Why it ended; as long as it has not, why it would have if its task were dropped now.
    cause: CloseCause,
}

/// Counts the end of a connection, also when its task is dropped.
impl<T: Transport> Drop for Connection<T> {
    fn drop(&mut self) {
        if self.entry.is_some() {
            self.close_entry();
        }
        let connections = &self.context.counters.connections;
        connections.active.sub(1);
        connections.closed.by(self.cause).add(1);
    }
}

impl<T: Transport> Connection<T> {
    fn new(io: T, context: Rc<Context>, listener: usize) -> Self {
        context.counters.connections.active.add(1);
        let waiting_since = io.now_ms();
        Connection {
            io,
            state: State::Reading,
            context,
            input: Vec::new(),
            at: 0,
            seen: 0,
            out: Outgoing::default(),
            requests: 0,
            is_eof: false,
            broken: None,
            is_partial: false,
            listener,
            info: None,
            is_in_grace: false,
            waiting_since,
            head_ns: 0,
            phase: Phase::Idle,
            stall: Stall::default(),
            entry: None,
            cause: CloseCause::Error,
        }
    }

    fn set_phase(&mut self, phase: Phase) {
        if phase != self.phase {
            self.phase = phase;
            self.io.set_phase(phase);
        }
    }

    /// The request at work is answered: all is written, and some of it may be sent already.
    #[inline]
    fn note_answered(&mut self) {
        match self.out.is_empty() {
            true => self.io.note_answered(self.head_ns),
            false => self.out.note_answered(self.head_ns),
        }
        if self.entry.is_some() {
            self.close_entry();
        }
    }

    /// Ready when it has ended.
    fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<CloseCause> {
        loop {
            let next = match &mut self.state {
                State::Reading => match self.next_head() {
                    Ok(Some(head)) => match self.respond(head) {
                        Responded::Now(next) => next,
                        Responded::Later(exchange) => {
                            self.state = State::Answering(exchange);
                            continue;
                        }
                    },
                    Ok(None) => {
                        self.start_waiting();
                        continue;
                    }
                    Err((reject, head_only)) => self.refuse(reject, head_only),
                },
                State::Waiting => match ready!(self.poll_fill(cx)) {
                    Ok(next) => next,
                    Err(cause) => return Poll::Ready(cause),
                },
                State::Answering(_) => match ready!(self.poll_answering(cx)) {
                    Ok(next) => next,
                    Err(cause) => return Poll::Ready(cause),
                },
                State::Flushing { cause, lingers } => {
                    let (cause, lingers) = (*cause, *lingers);
                    if let Err(broken) = ready!(self.poll_flush_all(cx)) {
                        return Poll::Ready(broken);
                    }
                    if !lingers {
                        return Poll::Ready(cause);
                    }
                    self.state = State::Lingering(cause, Linger::new(&mut self.io));
                    continue;
                }
                State::Lingering(cause, linger) => {
                    ready!(linger.poll(&mut self.io, cx));
                    return Poll::Ready(*cause);
                }
            };
            match next {
                Next::Request => self.state = State::Reading,
                Next::Close(cause) => self.start_ending(cause, false),
                Next::Linger(cause) => self.start_ending(cause, true),
            }
        }
    }

    fn poll_answering(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<Next, CloseCause>> {
        let State::Answering(mut exchange) = std::mem::take(&mut self.state) else {
            unreachable!("called in this state only")
        };
        let polled = self.poll_exchange(&mut exchange, cx);
        match polled {
            Poll::Pending => self.state = State::Answering(exchange),
            Poll::Ready(_) => {
                self.let_go(exchange);
                if self.entry.is_some() {
                    self.close_entry(); // an answer that broke off, or never began
                }
            }
        }
        polled
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
        self.context.counters.request(head.method());
        self.requests += 1;
        self.head_ns = self.io.now_ns();
        if self.context.access_log.is_some() {
            self.begin_entry(&head);
        }
        let is_last = self.context.is_draining()
            || self.context.config.requests_per_connection_max.is_some_and(|max| self.requests >= max);
        let asked = Asked {
            version: head.version(),
            head_only: *head.method() == Method::HEAD,
            keep_alive: head.keep_alive() && !is_last,
            is_clients_last: !head.keep_alive(),
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
        let written = self.out.len();
        let responded = catch_unwind(AssertUnwindSafe(|| {
            // Answered in here, where its handler left it: to move a response stalls on its bytes, just written.
            let mut reply = self.context.app.handle(request);
            match &mut reply {
                Reply::Ready(response) if incoming.is_none() => self.answer(response, asked),
                _ => Responded::Later(Box::new(Exchange::new(reply, asked, incoming, self.io.now_ms()))),
            }
        }));
        match responded {
            Ok(responded) => responded,
            Err(_) if self.out.len() == written => Responded::Now(self.answer_panic(asked)),
            // Ours, not the handler's: half an answer cannot be mended.
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Writes a response whose request was read to its end.
    fn answer(&mut self, response: &mut Response, asked: Asked) -> Responded {
        let (framing, next) = self.write_head(response, asked);
        match self.write_body(response.body_mut(), framing) {
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
        // Asked again: the drain may have begun while the handler was at work.
        let keep_alive = asked.keep_alive && !self.context.is_draining();
        let (Asked { version, head_only, .. }, now) = (asked, self.io.now_ms());
        let framing = self.context.encode_head(&mut self.out.buf, response, version, head_only, keep_alive, now);
        if let Some(entry) = &mut self.entry {
            let bytes = if let BodyFraming::Length(bytes) = framing { bytes } else { 0 };
            entry.answer(response.status().as_u16(), bytes);
        }
        let closes = !keep_alive || response.is_closing() || framing == BodyFraming::UntilClose;
        if !closes {
            return (framing, Next::Request);
        }
        let is_over = self.context.config.requests_per_connection_max.is_some_and(|max| self.requests >= max);
        let cause = match self.context.is_draining() {
            true => CloseCause::Drained,
            false if is_over => CloseCause::RequestsMax,
            false => CloseCause::ServerClosed,
        };
        // A client that did not announce the close may have sent its next requests before it hears of it.
        (framing, if asked.is_clients_last { Next::Close(cause) } else { Next::Linger(cause) })
    }

    /// Writes a body that is in memory; gives one back that has to be streamed.
    fn write_body(&mut self, body: &mut Body, framing: BodyFraming) -> Option<Body> {
        match framing {
            BodyFraming::None | BodyFraming::Length(0) => {
                self.let_go(std::mem::take(body));
                None
            }
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
                None => self.will_stream(std::mem::take(body)),
            },
            BodyFraming::Chunked | BodyFraming::UntilClose => self.will_stream(std::mem::take(body)),
        }
    }

    fn will_stream(&mut self, body: Body) -> Option<Body> {
        if let Some(entry) = &mut self.entry {
            entry.set_bytes(0); // they are counted as they are written
        }
        Some(body)
    }

    /// Answers a request that cannot be read; nothing after it on this connection is trusted.
    fn refuse(&mut self, reject: Reject, head_only: bool) -> Next {
        let status = reject.status();
        if self.context.access_log.is_some() {
            self.begin_refused_entry();
        }
        self.context.counters.rejects.by_status(status.as_u16()).add(1);
        self.answer_error(
            status,
            reject.reason(),
            Asked { version: Version::Http11, head_only, keep_alive: false, is_clients_last: false },
        );
        if self.entry.is_some() {
            self.close_entry();
        }
        Next::Linger(match reject {
            Reject::HeadTimedOut => CloseCause::HeaderTimeout,
            _ => CloseCause::Rejected,
        })
    }

    fn answer_panic(&mut self, asked: Asked) -> Next {
        self.context.counters.handler_panics.add(1);
        tracing::error!("a handler panicked; the client got 500");
        let asked = Asked { keep_alive: false, ..asked };
        self.answer_error(StatusCode::INTERNAL_SERVER_ERROR, "the handler of this request failed", asked);
        self.note_answered();
        Next::Linger(CloseCause::Error)
    }

    /// Drops what is an author's; a destructor that panics is counted.
    fn let_go<A>(&self, value: A) {
        if catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
            self.context.counters.handler_panics.add(1);
            tracing::error!("a destructor of a handler's panicked");
        }
    }

    /// Writes an answer of the server's own, as the application's error page has it.
    fn answer_error(&mut self, status: StatusCode, reason: &'static str, asked: Asked) {
        let info = ErrorInfo { status, reason: reason.into(), request: None };
        let app = &self.context.app;
        // A page that panics, or that streams, is not worth waiting for.
        let response = catch_unwind(AssertUnwindSafe(|| app.error_answer(&info)))
            .ok()
            .filter(|page| page.body().as_slice().is_some())
            .unwrap_or_else(|| Response::text(format!("{status}: {reason}\n")).with_status(status));
        let (framing, _) = self.write_head(&response, asked);
        self.write_body(&mut response.into_body(), framing);
    }

    fn info(&mut self) -> Rc<ConnInfo> {
        let (io, listener, context) = (&self.io, self.listener, &self.context);
        let info = || {
            let info = io.conn_info().on_listener(listener).with_body_bytes_max(context.config.body_bytes_max);
            info.with_trusted_proxies(context.config.trusted_proxies.clone())
        };
        self.info.get_or_insert_with(|| context.share_info(info())).clone()
    }
}

/// What a call of the handler came to.
enum Responded {
    Now(Next),
    Later(Box<Exchange>),
}

pub(crate) fn broken(error: &io::Error) -> CloseCause {
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
