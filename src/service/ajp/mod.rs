//! AJP/1.3 on one connection: reads packets, calls the application, writes answers. Floor 5.
//!
//! Generic over [`Transport`], and beside HTTP/1 on the same [`Context`]: the same application, limits, deadlines and
//! drain, and so the same answers. A proxy sends one request at a time on a connection.
//!
//! ```text
//!     Waiting ──whole FORWARD_REQUEST──▶ respond ──END_RESPONSE──▶ Waiting     CPING: answered while waiting
//!                                          │ handler waits, a body streams or is still to come
//!                                          ▼
//!                                      Exchange     exchange.rs
//! ```
//!
//! Whatever is wrong with a request, its proxy gets a whole answer and END_RESPONSE before the connection ends: it takes
//! a bare close for a dead server, and sends it nothing for a minute. An answer that breaks off is the exception: it ends
//! without END_RESPONSE, so that the client does not take a part for the whole.

mod exchange;
mod incoming;
mod logging;
#[cfg(test)]
mod tests;
mod waiting;

use self::{exchange::Exchange, incoming::Incoming};
use super::http1::Context;
use crate::{
    access_log::Entry,
    ajp::{
        self, CPONG, Fault, Forward, Forwarded, HeadersTooLarge, Message, body_chunk_start, chunk_bytes_max,
        end_response, split_packet,
    },
    app::ErrorInfo,
    config::AjpOptions,
    handler::Reply,
    http::{Body, BodyFraming, ConnInfo, Framing, Method, PooledHead, Request, Response, StatusCode, Version},
    limits::{ANSWERS_HELD_BYTES, COPIED_BODY_BYTES_MAX, RETRY_AFTER_S},
    stats::{CloseCause, Count},
    transport::{Outgoing, Phase, Transport, give_buffer, take_buffer},
};
use bytes::Bytes;
use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    task::{self, Poll, Waker},
};

/// Serves `io` until either side ends it, and counts why. `listener` is the number of the listener that accepted it.
pub async fn serve<T: Transport>(io: T, context: Rc<Context>, options: Rc<AjpOptions>, listener: usize) {
    let mut connection = Connection::new(io, context, options, listener, Admission::Served);
    connection.cause = connection.run().await;
}

/// Answers the first request of a connection over the limit with 503.
pub async fn refuse<T: Transport>(io: T, context: Rc<Context>, options: Rc<AjpOptions>, listener: usize) {
    let mut connection = Connection::new(io, context, options, listener, Admission::OverLimit);
    connection.cause = connection.run().await;
}

/// Whether a connection was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    Served,
    /// CPING is still answered: without CPONG its proxy would take the server for dead, not for busy.
    OverLimit,
}

/// How to go on after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Request,
    Close(CloseCause),
}

/// What a packet was, once it is taken from the input.
enum Taken {
    Request { request: Box<Request>, incoming: Option<Incoming> },
    Refused { status: StatusCode, reason: &'static str, head_only: bool },
    OverLimit { head_only: bool },
    Ping,
    Stray,
    Unwanted,
}

struct Connection<T: Transport> {
    io: T,
    context: Rc<Context>,
    options: Rc<AjpOptions>,
    listener: usize,
    admission: Admission,
    /// Received bytes; those before `at` are done with.
    input: Vec<u8>,
    at: usize,
    out: Outgoing,
    requests: u64,
    is_eof: bool,
    /// A request body turned out malformed, cut off or late: the connection ends with this answer.
    broken: Option<CloseCause>,
    /// A part of a packet is here, and its deadline runs.
    is_partial: bool,
    /// It waited when it saw the drain: the grace runs from then, however long it had been idle.
    is_in_grace: bool,
    /// When the present wait began.
    waiting_since: u64,
    /// When the request at work was complete, in ns.
    head_ns: u64,
    /// What the transport was told last.
    phase: Phase,
    stall: Stall,
    /// What the next line of the access log will say; none without a log.
    entry: Option<Box<Entry>>,
    /// Why it ended; as long as it has not, why it would have if its task were dropped now.
    cause: CloseCause,
}

/// Counts the end of a connection, also when its task is dropped.
impl<T: Transport> Drop for Connection<T> {
    fn drop(&mut self) {
        self.close_entry(); // an answer that broke off, or never began
        let counters = &self.context.counters;
        counters.connections.active.sub(1);
        counters.connections.closed.by(self.cause).add(1);
        counters.ajp.active.sub(1);
        counters.ajp.closed.by(self.cause).add(1);
    }
}

/// Whether the peer takes what it is sent.
#[derive(Clone, Copy, Debug, Default)]
struct Stall {
    sent_bytes: u64,
    since: u64,
}

impl<T: Transport> Connection<T> {
    fn new(io: T, context: Rc<Context>, options: Rc<AjpOptions>, listener: usize, admission: Admission) -> Self {
        context.counters.connections.active.add(1);
        context.counters.ajp.accepted.add(1);
        context.counters.ajp.active.add(1);
        let waiting_since = io.now_ms();
        Connection {
            io,
            context,
            options,
            listener,
            admission,
            input: Vec::new(),
            at: 0,
            out: Outgoing::default(),
            requests: 0,
            is_eof: false,
            broken: None,
            is_partial: false,
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

    async fn run(&mut self) -> CloseCause {
        loop {
            let next = match self.take_packet() {
                None => match self.fill().await {
                    Ok(next) => next,
                    Err(cause) => return cause,
                },
                Some(Taken::Request { request, incoming }) => match self.respond(*request, incoming) {
                    Responded::Now(next) => next,
                    Responded::Later(mut exchange) => {
                        let result = poll_fn(|cx| self.poll_exchange(&mut exchange, cx)).await;
                        self.let_go(exchange);
                        match result {
                            Ok(next) => next,
                            Err(cause) => return cause,
                        }
                    }
                },
                Some(Taken::Refused { status, reason, head_only }) => {
                    self.begin_refused_entry();
                    self.context.counters.rejects.by_status(status.as_u16()).add(1);
                    self.end_with_error(status, reason, head_only, CloseCause::Rejected)
                }
                Some(Taken::OverLimit { head_only }) => {
                    let busy = Response::text("too many connections; try again later\n")
                        .with_status(StatusCode::SERVICE_UNAVAILABLE)
                        .with_header("retry-after", RETRY_AFTER_S);
                    self.write_answer(busy, head_only);
                    self.broken = Some(CloseCause::Rejected);
                    self.end_answer(true)
                }
                Some(Taken::Ping) => {
                    self.out.buf.extend_from_slice(&CPONG);
                    self.context.counters.ajp.pings.add(1);
                    self.waiting_since = self.io.now_ms();
                    Next::Request
                }
                Some(Taken::Stray) => Next::Request,
                Some(Taken::Unwanted) => Next::Close(CloseCause::Rejected),
            };
            if let Next::Close(cause) = next {
                return self.finish(cause).await;
            }
        }
    }

    fn unread(&self) -> &[u8] {
        &self.input[self.at..]
    }

    /// The next whole packet in the input, if there is one and room for its answer.
    fn take_packet(&mut self) -> Option<Taken> {
        if self.unread().is_empty() || self.out.len() >= ANSWERS_HELD_BYTES {
            return None;
        }
        // What is read points into the input while the connection is written to.
        let input = std::mem::take(&mut self.input);
        let payload = split_packet(&input[self.at..], self.options.packet_bytes_max).transpose();
        let taken = payload.map(|payload| match payload.and_then(|payload| Ok((payload, Message::decode(payload)?))) {
            Ok((payload, message)) => {
                self.at += ajp::PACKET_HEADER_BYTES + payload.len();
                self.is_partial = false;
                match message {
                    Message::Forward(forward) => self.take_request(&forward, &input),
                    Message::Ping => Taken::Ping,
                    Message::Stray => Taken::Stray,
                    Message::Unwanted => Taken::Unwanted,
                }
            }
            Err(fault) => self.malformed(fault),
        });
        self.input = input;
        taken
    }

    fn malformed(&self, fault: Fault) -> Taken {
        self.context.counters.ajp.malformed.add(1);
        Taken::Refused { status: StatusCode::BAD_REQUEST, reason: fault.reason(), head_only: false }
    }

    /// Checks who forwards the request and what it says, and takes its body if that is here.
    fn take_request(&mut self, forward: &Forward<'_>, input: &[u8]) -> Taken {
        let head_only = forward.method == b"HEAD";
        let refused = |status, reason| Taken::Refused { status, reason, head_only };
        if self.admission == Admission::OverLimit {
            return Taken::OverLimit { head_only };
        }
        if let Err(reason) = self.admit(forward) {
            self.context.counters.ajp.forbidden.add(1);
            return refused(StatusCode::FORBIDDEN, reason);
        }
        let mut head = PooledHead::take();
        if let Err(reject) = forward.read_into(&mut head, &self.context.config.head) {
            return refused(reject.status(), reject.reason());
        }
        let now = self.io.now_ms();
        let (body, incoming) = match head.framing() {
            Framing::None => (Body::empty(), None),
            Framing::Chunked => {
                let (incoming, body) = Incoming::new(None, now);
                (body, Some(incoming))
            }
            Framing::Length(length) => match self.whole_body(length, input) {
                Err(fault) => return self.malformed(fault),
                Ok(Some(bytes)) => (Body::from(bytes), None),
                Ok(None) => {
                    let (incoming, body) = Incoming::new(Some(length), now);
                    (body, Some(incoming))
                }
            },
        };
        let info = ConnInfo::known(forward.addrs())
            .on_listener(self.listener)
            .with_body_bytes_max(self.context.config.body_bytes_max)
            .with_tls(forward.is_tls);
        let mut request = Request::new(head, body, Some(Rc::new(info)));
        if let Some(forwarded) = Forwarded::read(forward, self.options.trusts_user) {
            request.extensions_mut().insert(forwarded);
        }
        Taken::Request { request: Box::new(request), incoming }
    }

    /// Whether this proxy may forward, and say all that it says.
    fn admit(&self, forward: &Forward<'_>) -> Result<(), &'static str> {
        if let Some(secret) = &self.options.secret {
            let given = forward.secret.and_then(|given| str::from_utf8(given).ok());
            if !given.is_some_and(|given| secret.is(given)) {
                return Err("expected the secret that the server was told (secret= of ProxyPass, worker.NAME.secret)");
            }
        }
        let is_allowed = |name: &[u8]| Forward::OWN_ATTRIBUTES.contains(&name) || self.options.attributes.matches(name);
        match forward.attributes().all(|(name, _)| is_allowed(name)) {
            true => Ok(()),
            false => Err("expected attributes that the server allows (see --ajp-attributes)"),
        }
    }

    /// A body that came whole, in the packet that a proxy sends unasked.
    fn whole_body(&mut self, length: u64, input: &[u8]) -> Result<Option<Bytes>, Fault> {
        let Some(payload) = split_packet(&input[self.at..], self.options.packet_bytes_max)? else { return Ok(None) };
        let data = ajp::body_data(payload)?;
        if data.len() as u64 != length {
            return Ok(None); // only a part of it, or what `Incoming` has to say something about
        }
        self.at += ajp::PACKET_HEADER_BYTES + payload.len();
        Ok(Some(Bytes::copy_from_slice(data)))
    }

    // ---- answering -------------------------------------------------------------------------------

    /// Calls the handler. Without a body that is still to come, and with an answer at once, all is done here.
    fn respond(&mut self, request: Request, incoming: Option<Incoming>) -> Responded {
        let counters = &self.context.counters;
        counters.request(request.method());
        counters.ajp.requests.add(1);
        self.requests += 1;
        self.head_ns = self.io.now_ns();
        self.begin_entry(&request);
        let head_only = *request.method() == Method::HEAD;
        let app = &self.context.app;
        match catch_unwind(AssertUnwindSafe(|| app.handle(request))) {
            Ok(Reply::Ready(response)) if incoming.is_none() => {
                let is_closing = response.is_closing();
                match self.write_answer(response, head_only) {
                    None => Responded::Now(self.end_answer(is_closing)),
                    Some(body) => Responded::Later(Box::new(Exchange::streaming(body, is_closing, head_only))),
                }
            }
            Ok(reply) => Responded::Later(Box::new(Exchange::new(reply, incoming, head_only, self.io.now_ms()))),
            Err(_) => Responded::Now(self.end_with_panic(head_only)),
        }
    }

    /// Writes an answer up to its end, which is [`end_answer`](Self::end_answer)'s; gives a body back that has to be
    /// streamed.
    fn write_answer(&mut self, response: Response, head_only: bool) -> Option<Body> {
        match self.write_headers(&response, head_only) {
            Ok(framing) => self.write_body(response.into_body(), framing),
            Err(HeadersTooLarge) => {
                log::error!("the fields of an answer do not fit into one AJP packet (see --ajp-packet-size)");
                self.let_go(response);
                self.write_error(StatusCode::INTERNAL_SERVER_ERROR, "the answer's fields are too large", head_only);
                None
            }
        }
    }

    fn write_headers(&mut self, response: &Response, head_only: bool) -> Result<BodyFraming, HeadersTooLarge> {
        if self.out.buf.capacity() == 0 {
            self.out.buf = take_buffer();
        }
        let mut head = take_buffer();
        let now = self.io.now_ms();
        let framing = self.context.encode_head(&mut head, response, Version::Http11, head_only, true, now);
        let encoded = ajp::encode_headers(&mut self.out.buf, response.status(), &head, self.options.packet_bytes_max);
        give_buffer(head);
        encoded?;
        self.context.counters.responses.by_status(response.status().as_u16()).add(1);
        if let Some(entry) = &mut self.entry {
            entry.answer(response.status().as_u16(), 0); // bytes are counted as they are written
        }
        Ok(framing)
    }

    /// Writes a body that is in memory; gives one back that has to be streamed.
    fn write_body(&mut self, mut body: Body, framing: BodyFraming) -> Option<Body> {
        if matches!(framing, BodyFraming::None | BodyFraming::Length(0)) {
            self.let_go(body);
            return None;
        }
        if body.as_slice().is_none() {
            return Some(body);
        }
        // In memory: the one chunk is there at once.
        let cx = &mut task::Context::from_waker(Waker::noop());
        if let Poll::Ready(Some(Ok(bytes))) = body.poll_chunk(cx) {
            self.write_data(&bytes);
        }
        None
    }

    /// Writes a piece of a body, in as many packets as it takes.
    fn write_data(&mut self, bytes: &Bytes) {
        if self.out.buf.capacity() == 0 {
            self.out.buf = take_buffer();
        }
        if let Some(entry) = &mut self.entry {
            entry.add_bytes(bytes.len());
        }
        let piece_max = chunk_bytes_max(self.options.packet_bytes_max);
        let is_copied = bytes.len() <= COPIED_BODY_BYTES_MAX;
        let mut at = 0;
        while at < bytes.len() {
            let end = (at + piece_max).min(bytes.len());
            self.out.buf.extend_from_slice(&body_chunk_start(end - at));
            match is_copied {
                true => self.out.buf.extend_from_slice(&bytes[at..end]),
                false => self.out.push_shared(bytes.slice(at..end)),
            }
            self.out.buf.push(0);
            at = end;
        }
    }

    /// Writes END_RESPONSE after a whole answer; says how to go on.
    fn end_answer(&mut self, is_closing: bool) -> Next {
        let is_over = self.context.config.requests_per_connection_max.is_some_and(|max| self.requests >= max);
        let cause = match self.broken {
            Some(cause) => Some(cause),
            None if self.context.is_draining() => Some(CloseCause::Drained),
            None if is_over => Some(CloseCause::RequestsMax),
            None => is_closing.then_some(CloseCause::ServerClosed),
        };
        self.out.buf.extend_from_slice(&end_response(cause.is_none()));
        self.note_answered();
        self.waiting_since = self.io.now_ms();
        cause.map_or(Next::Request, Next::Close)
    }

    /// The request at work is answered: all is written, and some of it may be sent already.
    fn note_answered(&mut self) {
        if self.head_ns > 0 {
            self.out.note_answered(std::mem::take(&mut self.head_ns));
        }
        self.close_entry();
    }

    /// Answers with an error of the server's own, and ends the connection.
    fn end_with_error(&mut self, status: StatusCode, reason: &'static str, head_only: bool, cause: CloseCause) -> Next {
        self.write_error(status, reason, head_only);
        self.out.buf.extend_from_slice(&end_response(false));
        self.note_answered();
        Next::Close(cause)
    }

    fn end_with_panic(&mut self, head_only: bool) -> Next {
        self.context.counters.handler_panics.add(1);
        log::error!("a handler panicked; the client got 500");
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        self.end_with_error(status, "the handler of this request failed", head_only, CloseCause::Error)
    }

    /// Writes an answer of the server's own, as the application's error page has it, up to its end.
    fn write_error(&mut self, status: StatusCode, reason: &'static str, head_only: bool) {
        let info = ErrorInfo { status, reason: reason.into(), request: None };
        let app = &self.context.app;
        let plain = || Response::text(format!("{status}: {reason}\n")).with_status(status);
        // A page that panics, or that streams, is not worth waiting for.
        let page = catch_unwind(AssertUnwindSafe(|| app.error_answer(&info))).ok();
        let page = page.filter(|page| page.body().as_slice().is_some()).unwrap_or_else(plain);
        let (framing, page) = match self.write_headers(&page, head_only) {
            Ok(framing) => (framing, page),
            Err(HeadersTooLarge) => {
                let page = plain();
                // One type and one length fit into every packet.
                (self.write_headers(&page, head_only).unwrap_or(BodyFraming::None), page)
            }
        };
        self.write_body(page.into_body(), framing);
    }

    /// Drops what is an author's; a destructor that panics is counted.
    fn let_go<A>(&self, value: A) {
        if catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
            self.context.counters.handler_panics.add(1);
            log::error!("a destructor of a handler's panicked");
        }
    }
}

/// What a call of the handler came to.
enum Responded {
    Now(Next),
    Later(Box<Exchange>),
}
