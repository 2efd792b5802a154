//! A request and its answer when they take time: the handler waits, a body streams, or one is still to come. Floor 5.
//!
//! ```text
//! Handling ──answer──▶ Streaming ──last byte──▶ Settling (the body packet that is on its way) ──▶ END_RESPONSE
//!     └───────answer in memory─────────────────────▲
//! ```
//! A proxy sends of a request's body what it is asked for: back-pressure is to ask later. What nobody asked for never
//! comes, so that of a body without a reader one packet at most is thrown away.

use super::{
    CloseCause, Connection, Next,
    incoming::{Arrived, Incoming},
};
use crate::{
    ajp::{PACKET_HEADER_BYTES, body_data, get_body_chunk, split_packet},
    handler::Reply,
    http::{Body, BodyError, Response, StatusCode},
    limits::{ANSWERS_HELD_BYTES, INPUT_AHEAD_BYTES_MAX},
    ring::HandlerWait,
    stats::Count,
    transport::{self, Transport},
};
use std::{
    future::Future,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{self, Poll},
};

pub(super) struct Exchange {
    phase: Phase,
    /// The request's body, until its last byte was read.
    incoming: Option<Incoming>,
    head_only: bool,
    handler_since: u64,
}

enum Phase {
    Handling { handler: Pin<Box<dyn Future<Output = Response>>>, wait: HandlerWait },
    Ready(Option<Response>),
    Streaming { body: Body, is_closing: bool, wait: HandlerWait },
    Settling { is_closing: bool },
}

/// How a streamed answer ended.
enum Streamed {
    Whole,
    Broken,
}

/// What became of a look at the request's body.
enum Pumped {
    /// The reader has something, or its end.
    Some,
    /// More bytes are needed.
    NeedsInput,
    /// The reader does not ask, or has all.
    Unwanted,
}

impl Exchange {
    pub(super) fn new(reply: Reply, incoming: Option<Incoming>, head_only: bool, now: u64) -> Self {
        let phase = match reply {
            Reply::Ready(response) => Phase::Ready(Some(response)),
            Reply::Later(handler) => Phase::Handling { handler, wait: HandlerWait::default() },
        };
        Exchange { phase, incoming, head_only, handler_since: now }
    }

    pub(super) fn streaming(body: Body, is_closing: bool, head_only: bool) -> Self {
        let phase = Phase::Streaming { body, is_closing, wait: HandlerWait::default() };
        Exchange { phase, incoming: None, head_only, handler_since: 0 }
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
            match &mut exchange.phase {
                Phase::Handling { handler, wait } => {
                    self.set_phase(transport::Phase::InHandler);
                    match catch_unwind(AssertUnwindSafe(|| wait.poll(handler.as_mut(), cx))) {
                        Ok(Poll::Ready(response)) => {
                            let handled = mem::replace(&mut exchange.phase, Phase::Ready(Some(response)));
                            self.let_go(handled);
                            continue;
                        }
                        Ok(Poll::Pending) => {}
                        Err(_) => return Poll::Ready(Ok(self.end_with_panic(exchange.head_only))),
                    }
                }
                Phase::Ready(response) => {
                    let response = response.take().expect("taken once, and replaced below");
                    let is_closing = response.is_closing();
                    exchange.phase = match self.write_answer(response, exchange.head_only) {
                        Some(body) => Phase::Streaming { body, is_closing, wait: HandlerWait::default() },
                        None => Phase::Settling { is_closing },
                    };
                    continue;
                }
                Phase::Streaming { body, is_closing, wait } => {
                    self.set_phase(transport::Phase::Writing);
                    match self.poll_streaming(body, wait, cx) {
                        Poll::Ready(Ok(Streamed::Whole)) => {
                            let settling = Phase::Settling { is_closing: *is_closing };
                            let streamed = mem::replace(&mut exchange.phase, settling);
                            self.let_go(streamed);
                            continue;
                        }
                        // No END_RESPONSE: the client is to see that it is not whole.
                        Poll::Ready(Ok(Streamed::Broken)) => return Poll::Ready(Ok(Next::Close(CloseCause::Error))),
                        Poll::Ready(Err(cause)) => return Poll::Ready(Err(cause)),
                        Poll::Pending => {}
                    }
                }
                Phase::Settling { is_closing } => {
                    let is_closing = *is_closing;
                    self.set_phase(transport::Phase::Writing);
                    match self.poll_settled(&mut exchange.incoming, cx) {
                        Poll::Ready(Ok(())) => return Poll::Ready(Ok(self.end_answer(is_closing))),
                        Poll::Ready(Err(cause)) => return Poll::Ready(Err(cause)),
                        Poll::Pending => return self.poll_exchange_deadline(exchange, cx),
                    }
                }
            }
            match self.poll_incoming(&mut exchange.incoming, cx) {
                Poll::Ready(Ok(())) => continue, // the reader has something: let it run
                Poll::Ready(Err(cause)) => {
                    if matches!(exchange.phase, Phase::Handling { .. }) {
                        self.context.counters.handlers_dropped.add(1);
                    }
                    return Poll::Ready(Err(cause));
                }
                Poll::Pending => return self.poll_exchange_deadline(exchange, cx),
            }
        }
    }

    /// Moves the answer's body to the transport, until it is written to its end.
    fn poll_streaming(
        &mut self,
        body: &mut Body,
        wait: &mut HandlerWait,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<Streamed, CloseCause>> {
        loop {
            if self.out.len() >= ANSWERS_HELD_BYTES && self.poll_flush(cx)?.is_pending() {
                return Poll::Pending;
            }
            let mut chunk = std::pin::pin!(std::future::poll_fn(|cx| body.poll_chunk(cx)));
            match catch_unwind(AssertUnwindSafe(|| wait.poll(chunk.as_mut(), cx))) {
                Ok(Poll::Ready(Some(Ok(bytes)))) => self.write_data(&bytes),
                Ok(Poll::Ready(None)) => return Poll::Ready(Ok(Streamed::Whole)),
                Ok(Poll::Ready(Some(Err(error)))) => {
                    log::debug!("an answer broke off: {error}");
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

    /// Brings the reader of the request's body what it asks for, and notices a proxy that is gone. Ready: go on.
    fn poll_incoming(
        &mut self,
        incoming: &mut Option<Incoming>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<(), CloseCause>> {
        loop {
            let pumped = match incoming {
                Some(body) if body.feed.is_wanted() => self.pump(incoming),
                _ => Pumped::Unwanted,
            };
            let _ = self.poll_flush(cx)?;
            match pumped {
                Pumped::Some => return Poll::Ready(Ok(())),
                Pumped::NeedsInput if self.is_eof => {
                    self.break_off(incoming, BodyError::PeerGone, CloseCause::PeerClosed);
                    return Poll::Ready(Ok(()));
                }
                Pumped::Unwanted if self.is_eof || self.unread().len() >= INPUT_AHEAD_BYTES_MAX => {
                    return Poll::Pending; // half-closed, or more than any packet that was asked for
                }
                _ => {}
            }
            match self.read(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(cause)) => return Poll::Ready(Err(cause)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Asks for the next packet of the body, or takes it.
    fn pump(&mut self, incoming: &mut Option<Incoming>) -> Pumped {
        let Some(body) = incoming else { return Pumped::Unwanted };
        if !body.is_owed {
            body.is_owed = true;
            self.out.buf.extend_from_slice(&get_body_chunk(self.options.packet_bytes_max));
        }
        let payload = split_packet(&self.input[self.at..], self.options.packet_bytes_max);
        let Some(payload) = payload.transpose() else { return Pumped::NeedsInput };
        let arrived = payload.and_then(|payload| {
            let data = body_data(payload)?;
            self.at += PACKET_HEADER_BYTES + payload.len();
            body.take(data, self.io.now_ms())
        });
        match arrived {
            Ok(Arrived::Some) => {}
            Ok(Arrived::End) => *incoming = None,
            Ok(Arrived::CutOff) => self.break_off(incoming, BodyError::PeerGone, CloseCause::PeerClosed),
            Err(_) => {
                self.context.counters.rejects.by_status(400).add(1);
                self.context.counters.ajp.malformed.add(1);
                body.fail();
                *incoming = None;
                self.broken = Some(CloseCause::Rejected);
            }
        }
        Pumped::Some
    }

    /// The body ends here for its reader, and the connection with this answer.
    fn break_off(&mut self, incoming: &mut Option<Incoming>, error: BodyError, cause: CloseCause) {
        if let Some(body) = incoming.take() {
            body.feed.fail(error);
        }
        self.broken = Some(cause);
    }

    /// Ready when no packet of the request's body is on its way any more.
    fn poll_settled(
        &mut self,
        incoming: &mut Option<Incoming>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<(), CloseCause>> {
        while let Some(body) = incoming
            && body.is_owed
            && self.broken.is_none()
        {
            match self.pump(incoming) {
                Pumped::NeedsInput if self.is_eof => self.broken = Some(CloseCause::PeerClosed),
                Pumped::NeedsInput => {
                    // The client reads its answer while its proxy waits for the rest of what it sends.
                    let _ = self.poll_flush(cx)?;
                    match self.read(cx) {
                        Poll::Ready(Ok(())) => {}
                        Poll::Ready(Err(cause)) => return Poll::Ready(Err(cause)),
                        Poll::Pending => return Poll::Pending,
                    }
                }
                Pumped::Some | Pumped::Unwanted => {}
            }
        }
        if let Some(body) = incoming.take() {
            // Some other task may still wait for it.
            body.feed.fail(BodyError::PeerGone);
        }
        Poll::Ready(Ok(()))
    }

    fn read(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), CloseCause>> {
        if self.at == self.input.len() || self.at >= INPUT_AHEAD_BYTES_MAX {
            self.compact();
        }
        self.poll_input(cx)
    }

    /// The deadlines of an exchange: the handler's, the body's, the proxy's taking of the answer.
    fn poll_exchange_deadline(
        &mut self,
        exchange: &mut Exchange,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<Next, CloseCause>> {
        let now = self.io.now_ms();
        let config = &self.context.config;
        let mut deadline = u64::MAX;
        if let Phase::Handling { .. } = exchange.phase {
            deadline = exchange.handler_since.saturating_add(config.handler_timeout_ms);
            if now >= deadline {
                self.context.counters.handlers_dropped.add(1);
                let (status, reason) = (StatusCode::SERVICE_UNAVAILABLE, "the handler did not answer in time");
                let next = self.end_with_error(status, reason, exchange.head_only, CloseCause::HandlerTimeout);
                return Poll::Ready(Ok(next));
            }
        }
        let is_settling = matches!(exchange.phase, Phase::Settling { .. });
        if let Some(body) = &mut exchange.incoming {
            let is_awaited = is_settling || body.feed.is_wanted();
            body.pace.set_awaited(is_awaited, now);
            let due = body.pace.deadline(config.body_timeout_ms, config.body_rate_min);
            if is_awaited && now >= due {
                self.context.counters.rejects.by_status(408).add(1);
                self.break_off(&mut exchange.incoming, BodyError::TimedOut, CloseCause::BodyTimeout);
                return self.poll_exchange(exchange, cx);
            }
            if is_awaited {
                deadline = deadline.min(due);
            }
        }
        if !matches!(exchange.phase, Phase::Handling { .. }) && self.io.poll_sent(cx).is_pending() {
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
