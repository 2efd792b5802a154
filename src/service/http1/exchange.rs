//! A request and its answer when they take time: the handler waits, or a body streams. Floor 5.
//!
//! ```text
//! Handling ──answer──▶ Streaming ──last byte──▶ Discarding (what is left of the request's body) ──▶ done
//!     └───────answer in memory──────────────────────▲
//! ```
//! The request's body is pumped to its reader all the while, when the reader asks for it: back-pressure is the
//! peer's TCP window.

use super::{Asked, CloseCause, Connection, Next, broken, incoming::Incoming, reads_ahead};
use crate::{
    handler::Reply,
    http::{Body, BodyError, BodyFraming, Response, StatusCode, encode_chunk_prefix},
    limits::{ANSWERS_HELD_BYTES, COPIED_BODY_BYTES_MAX, DISCARD_BYTES_MAX, INPUT_AHEAD_BYTES_MAX},
    ring::HandlerWait,
    stats::Count,
    transport::{self, FileSent, Transport, take_buffer},
};
use bytes::Bytes;
use std::{
    future::Future,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{self, Poll, ready},
};

pub(super) struct Exchange {
    phase: Phase,
    asked: Asked,
    /// The request's body, until its last byte was read.
    incoming: Option<Incoming>,
    handler_since: u64,
}

enum Phase {
    Handling { handler: Pin<Box<dyn Future<Output = Response>>>, wait: HandlerWait },
    Ready(Option<Response>),
    Streaming { body: Body, framing: BodyFraming, next: Next, wait: HandlerWait },
    Discarding { next: Next, budget: usize },
}

impl Phase {
    /// As an operator sees it.
    fn shown(&self) -> transport::Phase {
        match self {
            Phase::Handling { .. } | Phase::Ready(_) => transport::Phase::InHandler,
            Phase::Streaming { .. } | Phase::Discarding { .. } => transport::Phase::Writing,
        }
    }
}

/// How a streamed answer ended.
enum Streamed {
    Whole,
    Broken,
}

/// Where a body's pump stands.
enum Pumped {
    /// Handed something on; the reader may go on.
    Some,
    /// The last byte was read.
    End,
    /// The input is used up.
    NeedsInput,
    /// The reader does not ask.
    Unwanted,
}

impl Exchange {
    pub(super) fn new(reply: Reply, asked: Asked, incoming: Option<Incoming>, now: u64) -> Self {
        let phase = match reply {
            Reply::Ready(response) => Phase::Ready(Some(response)),
            Reply::Later(handler) => Phase::Handling { handler, wait: HandlerWait::default() },
        };
        Exchange { phase, asked, incoming, handler_since: now }
    }

    pub(super) fn streaming(body: Body, framing: BodyFraming, next: Next, asked: Asked) -> Self {
        let phase = Phase::Streaming { body, framing, next, wait: HandlerWait::default() };
        Exchange { phase, asked, incoming: None, handler_since: 0 }
    }
}

impl<T: Transport> Connection<T> {
    /// Takes the exchange as far as it goes.
    pub(super) fn poll_exchange(
        &mut self,
        exchange: &mut Exchange,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<Next, CloseCause>> {
        loop {
            self.set_phase(exchange.phase.shown());
            match &mut exchange.phase {
                Phase::Handling { handler, wait } => {
                    match catch_unwind(AssertUnwindSafe(|| wait.poll(handler.as_mut(), cx))) {
                        Ok(Poll::Ready(response)) => {
                            let handled = mem::replace(&mut exchange.phase, Phase::Ready(Some(response)));
                            self.let_go(handled);
                            continue;
                        }
                        Ok(Poll::Pending) => {}
                        Err(_) => return Poll::Ready(Ok(self.answer_panic(exchange.asked))),
                    }
                }
                Phase::Ready(response) => {
                    let response = response.take().expect("taken once, and replaced below");
                    exchange.phase = self.begin_answer(response, exchange.asked, exchange.incoming.as_mut());
                    continue;
                }
                Phase::Streaming { body, framing, next, wait } => match self.poll_streaming(body, *framing, wait, cx) {
                    Poll::Ready(Ok(Streamed::Whole)) => {
                        self.note_answered();
                        let discarding = Phase::Discarding { next: *next, budget: DISCARD_BYTES_MAX };
                        let streamed = mem::replace(&mut exchange.phase, discarding);
                        self.let_go(streamed);
                        continue;
                    }
                    // What there was of it is sent: the client is to see it end early, not never begin.
                    Poll::Ready(Ok(Streamed::Broken)) => return Poll::Ready(Ok(Next::Linger(CloseCause::Error))),
                    Poll::Ready(Err(cause)) => return Poll::Ready(Err(cause)),
                    Poll::Pending => {}
                },
                Phase::Discarding { next, budget } => match self.poll_discard(&mut exchange.incoming, budget, cx) {
                    Poll::Ready(Ok(true)) => return Poll::Ready(Ok(*next)),
                    Poll::Ready(Ok(false)) => {
                        let cause = self.broken.unwrap_or(CloseCause::ServerClosed);
                        return Poll::Ready(Ok(Next::Linger(cause)));
                    }
                    Poll::Ready(Err(cause)) => return Poll::Ready(Err(cause)),
                    Poll::Pending => return self.poll_exchange_deadline(exchange, cx),
                },
            }
            match self.poll_incoming(&mut exchange.incoming, cx) {
                Poll::Ready(Ok(())) => continue, // the reader has something: let it run
                Poll::Ready(Err(cause)) => {
                    if matches!(exchange.phase, Phase::Handling { .. }) {
                        self.context.counters.handlers_dropped.add(1);
                    }
                    return Poll::Ready(Err(cause));
                }
                Poll::Pending => {}
            }
            if matches!(exchange.phase, Phase::Handling { .. }) && !self.out.is_empty() {
                // Answers to earlier requests do not wait for this one's handler.
                if let Err(cause) = self.poll_flush(cx) {
                    self.context.counters.handlers_dropped.add(1);
                    return Poll::Ready(Err(cause));
                }
            }
            return self.poll_exchange_deadline(exchange, cx);
        }
    }

    /// Writes the answer's head, and its body if that is in memory.
    fn begin_answer(&mut self, response: Response, mut asked: Asked, incoming: Option<&mut Incoming>) -> Phase {
        let mut is_unread = self.broken.is_some();
        asked.keep_alive &= !is_unread;
        match incoming {
            Some(body) if body.feed.is_abandoned() => {
                is_unread = true;
                asked.keep_alive &= body.is_discardable();
            }
            // The answer's own body reads the request's: an interim response can only come before it.
            Some(body) => self.write_continue(body),
            None => {}
        }
        let (framing, mut next) = self.write_head(&response, asked);
        if let (true, Next::Close(cause) | Next::Linger(cause)) = (is_unread, next) {
            next = Next::Linger(self.broken.unwrap_or(cause));
        }
        match self.write_body(&mut response.into_body(), framing) {
            Some(body) => Phase::Streaming { body, framing, next, wait: HandlerWait::default() },
            None => {
                self.note_answered();
                Phase::Discarding { next, budget: DISCARD_BYTES_MAX }
            }
        }
    }

    /// Moves the answer's body to the transport, until it is written to its end.
    fn poll_streaming(
        &mut self,
        body: &mut Body,
        framing: BodyFraming,
        wait: &mut HandlerWait,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<Streamed, CloseCause>> {
        loop {
            if self.out.len() >= ANSWERS_HELD_BYTES && self.poll_flush(cx)?.is_pending() {
                return Poll::Pending;
            }
            if framing != BodyFraming::Chunked
                && let Some(streamed) = ready!(self.poll_send_file(body, cx)?)
            {
                return Poll::Ready(Ok(streamed));
            }
            let mut chunk = std::pin::pin!(std::future::poll_fn(|cx| body.poll_chunk(cx)));
            match catch_unwind(AssertUnwindSafe(|| wait.poll(chunk.as_mut(), cx))) {
                Ok(Poll::Ready(Some(Ok(bytes)))) => self.write_chunk(bytes, framing),
                Ok(Poll::Ready(None)) => {
                    if framing == BodyFraming::Chunked {
                        self.out.buf.extend_from_slice(b"0\r\n");
                        for (name, value) in body.trailers() {
                            self.out.buf.extend_from_slice(name.as_str().as_bytes());
                            self.out.buf.extend_from_slice(b": ");
                            self.out.buf.extend_from_slice(value.as_bytes());
                            self.out.buf.extend_from_slice(b"\r\n");
                        }
                        self.out.buf.extend_from_slice(b"\r\n");
                    }
                    return Poll::Ready(Ok(Streamed::Whole));
                }
                // Too late for another status: end without the last chunk, which the client must notice.
                Ok(Poll::Ready(Some(Err(error)))) => {
                    tracing::debug!("an answer broke off: {error}");
                    return Poll::Ready(Ok(Streamed::Broken));
                }
                Ok(Poll::Pending) => {
                    let _ = self.poll_flush(cx)?;
                    return Poll::Pending;
                }
                Err(_) => {
                    self.context.counters.handler_panics.add(1);
                    return Poll::Ready(Ok(Streamed::Broken));
                }
            }
        }
    }

    /// Sends what comes next of the body from its file, as long as it is in one and the transport can. Ready(None): what
    /// comes next is to be polled for.
    fn poll_send_file(
        &mut self,
        body: &mut Body,
        cx: &mut task::Context<'_>,
    ) -> Result<Poll<Option<Streamed>>, CloseCause> {
        let Some((file, range)) = body.in_file() else { return Ok(Poll::Ready(None)) };
        if !self.out.is_empty() {
            self.out.is_continued = true;
            if self.poll_flush(cx)?.is_pending() {
                return Ok(Poll::Pending);
            }
        }
        if self.poll_flush(cx)?.is_pending() {
            return Ok(Poll::Pending);
        }
        let sent = match self.io.send_file(file, range) {
            Some(Ok(sent)) => sent,
            Some(Err(error)) => return Err(broken(&error)),
            None => return Ok(Poll::Ready(None)),
        };
        let count = match sent {
            FileSent::Bytes(count) => Some(count),
            FileSent::Ended => Some(0),
            FileSent::Full => None,
        };
        if let Some(count) = count {
            if let Some(entry) = &mut self.entry {
                entry.add_bytes(count);
            }
            if body.sent_from_file(count).is_err() {
                return Ok(Poll::Ready(Some(Streamed::Broken)));
            }
            if body.is_empty() {
                return Ok(Poll::Ready(Some(Streamed::Whole)));
            }
        }
        if self.poll_flush(cx)?.is_ready() {
            cx.waker().wake_by_ref(); // it is the others' turn
        }
        Ok(Poll::Pending)
    }

    fn write_chunk(&mut self, bytes: Bytes, framing: BodyFraming) {
        if bytes.is_empty() {
            return; // an empty chunk would end a chunked body
        }
        if let Some(entry) = &mut self.entry {
            entry.add_bytes(bytes.len());
        }
        if self.out.buf.capacity() == 0 {
            self.out.buf = take_buffer();
        }
        if framing == BodyFraming::Chunked {
            encode_chunk_prefix(&mut self.out.buf, bytes.len());
        }
        if bytes.len() <= COPIED_BODY_BYTES_MAX {
            self.out.buf.extend_from_slice(&bytes);
        } else {
            self.out.push_shared(bytes);
        }
        if framing == BodyFraming::Chunked {
            self.out.buf.extend_from_slice(b"\r\n");
        }
    }

    /// Brings the reader of the request's body what it asks for, and notices a client that is gone. Ready: go on.
    fn poll_incoming(
        &mut self,
        incoming: &mut Option<Incoming>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<(), CloseCause>> {
        loop {
            let pumped = incoming.as_mut().map_or(Pumped::Unwanted, |body| self.pump(body));
            match pumped {
                Pumped::Some => return Poll::Ready(Ok(())),
                Pumped::End => {
                    *incoming = None;
                    return Poll::Ready(Ok(()));
                }
                Pumped::Unwanted if !reads_ahead(self.unread().len()) => return Poll::Pending,
                Pumped::Unwanted | Pumped::NeedsInput => {}
            }
            if let (Pumped::NeedsInput, Some(body)) = (&pumped, incoming.as_mut()) {
                self.write_continue(body);
                let _ = self.poll_flush(cx)?;
                if self.is_eof {
                    body.feed.fail(BodyError::PeerGone);
                    *incoming = None;
                    return Poll::Ready(Ok(()));
                }
            }
            if self.is_eof {
                return Poll::Pending; // half-closed: the handler goes on
            }
            // Where the client is faster than the reader, the input is never used up.
            if self.at == self.input.len() || self.at >= INPUT_AHEAD_BYTES_MAX {
                self.compact();
            }
            match self.io.poll_read(cx, &mut self.input) {
                Poll::Ready(Ok(0)) => self.is_eof = true,
                Poll::Ready(Ok(_)) => {
                    if let Some(body) = incoming {
                        body.pace.progress = self.io.now_ms();
                    }
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(broken(&error))),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn write_continue(&mut self, body: &mut Incoming) {
        if mem::take(&mut body.owes_continue) {
            self.context.counters.responses.by_status(100).add(1);
            self.out.buf.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
    }

    /// Decodes the next piece of the body if its reader waits for one.
    fn pump(&mut self, body: &mut Incoming) -> Pumped {
        if !body.feed.is_wanted() {
            return Pumped::Unwanted;
        }
        loop {
            let unread = &self.input[self.at..];
            let decoded = match body.decode(unread) {
                Ok(decoded) => decoded,
                Err(reject) => {
                    self.context.counters.rejects.by_status(reject.status().as_u16()).add(1);
                    body.feed.fail(BodyError::Malformed(reject));
                    self.broken = Some(CloseCause::Rejected);
                    return Pumped::End;
                }
            };
            let data = &unread[decoded.data.clone()];
            body.pace.received += data.len() as u64;
            let has_data = !data.is_empty();
            if has_data {
                body.feed.push(Bytes::copy_from_slice(data));
            }
            self.at += decoded.used;
            if decoded.is_end {
                let trailers = body.trailers();
                body.feed.end(trailers);
                return Pumped::End;
            }
            if has_data {
                return Pumped::Some;
            }
            if decoded.used == 0 {
                return Pumped::NeedsInput;
            }
        }
    }

    /// Reads what is left of the request's body. Ready(true): to its end; Ready(false): it is not worth it.
    fn poll_discard(
        &mut self,
        incoming: &mut Option<Incoming>,
        budget: &mut usize,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<bool, CloseCause>> {
        if self.broken.is_some() {
            return Poll::Ready(Ok(false));
        }
        let Some(body) = incoming else { return Poll::Ready(Ok(true)) };
        if !body.is_discardable() {
            return Poll::Ready(Ok(false));
        }
        loop {
            let Ok(decoded) = body.decode(&self.input[self.at..]) else { return Poll::Ready(Ok(false)) };
            self.at += decoded.used;
            if decoded.is_end {
                return Poll::Ready(Ok(true));
            }
            if decoded.used > 0 {
                match budget.checked_sub(decoded.used) {
                    Some(left) => *budget = left,
                    None => return Poll::Ready(Ok(false)),
                }
                continue;
            }
            self.compact();
            let _ = self.poll_flush(cx)?;
            match self.io.poll_read(cx, &mut self.input) {
                Poll::Ready(Ok(0)) => {
                    self.is_eof = true;
                    return Poll::Ready(Ok(false));
                }
                Poll::Ready(Ok(_)) => body.pace.progress = self.io.now_ms(),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(broken(&error))),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// The deadlines of an exchange: the handler's, the body's, the peer's taking of the answer.
    fn poll_exchange_deadline(
        &mut self,
        exchange: &mut Exchange,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<Next, CloseCause>> {
        let now = self.io.now_ms();
        let config = &self.context.config;
        let mut deadline = u64::MAX;
        if let Phase::Handling { .. } = exchange.phase {
            let due = exchange.handler_since.saturating_add(config.handler_timeout_ms);
            if now >= due {
                self.context.counters.handlers_dropped.add(1);
                let asked = Asked { keep_alive: false, ..exchange.asked };
                self.answer_error(StatusCode::SERVICE_UNAVAILABLE, "the handler did not answer in time", asked);
                self.note_answered();
                return Poll::Ready(Ok(Next::Linger(CloseCause::HandlerTimeout)));
            }
            deadline = due;
        }
        let waits_for_body = match (&exchange.incoming, &exchange.phase) {
            (Some(body), phase) => body.feed.is_wanted() || matches!(phase, Phase::Discarding { .. }),
            _ => false,
        };
        if let Some(body) = &mut exchange.incoming {
            body.pace.set_awaited(waits_for_body, now);
        }
        if let (true, Some(body)) = (waits_for_body, &mut exchange.incoming) {
            let due = body.pace.deadline(config.body_timeout_ms, config.body_rate_min);
            if now >= due {
                if matches!(exchange.phase, Phase::Discarding { .. }) {
                    return Poll::Ready(Ok(Next::Linger(CloseCause::BodyTimeout)));
                }
                self.context.counters.rejects.by_status(408).add(1);
                body.feed.fail(BodyError::TimedOut);
                self.broken = Some(CloseCause::BodyTimeout);
                exchange.incoming = None;
                return self.poll_exchange(exchange, cx);
            }
            deadline = deadline.min(due);
        }
        if matches!(exchange.phase, Phase::Streaming { .. }) && self.io.poll_sent(cx).is_pending() {
            let due = self.stall_deadline();
            if now >= due {
                return Poll::Ready(Err(CloseCause::WriteStall));
            }
            deadline = deadline.min(due);
        }
        self.wait_until(deadline, cx);
        Poll::Pending
    }
}
