//! Writing answers: heads, bodies that are in memory, and the server's own refusals. Sends nothing. Floor 5.

use super::{Asked, Connection, Next, Read, exchange::Exchange};
use crate::{
    app::ErrorInfo,
    http::{Body, BodyFraming, Reject, Response, StatusCode, Version},
    limits::COPIED_BODY_BYTES_MAX,
    stats::{CloseCause, Count},
    transport::{Transport, take_buffer},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    task::{self, Poll, Waker},
};

impl<T: Transport> Connection<T> {
    /// Writes a response whose request was read to its end.
    pub(super) fn answer(&mut self, response: &mut Response, asked: Asked) -> Read {
        let (framing, next) = self.write_head(response, asked);
        match self.write_body(response.body_mut(), framing) {
            None => {
                self.note_answered();
                Read::Answered(next)
            }
            Some(body) => Read::Begun(Box::new(Exchange::streaming(body, framing, next, asked))),
        }
    }

    /// Writes a response's head; says how the body must follow, and how to go on after it.
    pub(super) fn write_head(&mut self, response: &Response, asked: Asked) -> (BodyFraming, Next) {
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
    pub(super) fn write_body(&mut self, body: &mut Body, framing: BodyFraming) -> Option<Body> {
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
    pub(super) fn refuse(&mut self, reject: Reject, head_only: bool) -> Next {
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

    pub(super) fn answer_panic(&mut self, asked: Asked) -> Next {
        self.context.counters.handler_panics.add(1);
        tracing::error!("a handler panicked; the client got 500");
        let asked = Asked { keep_alive: false, ..asked };
        self.answer_error(StatusCode::INTERNAL_SERVER_ERROR, "the handler of this request failed", asked);
        self.note_answered();
        Next::Linger(CloseCause::Error)
    }

    /// Drops what is an author's; a destructor that panics is counted.
    pub(super) fn let_go<A>(&self, value: A) {
        if catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
            self.context.counters.handler_panics.add(1);
            tracing::error!("a destructor of a handler's panicked");
        }
    }

    /// Writes an answer of the server's own, as the application's error page has it.
    pub(super) fn answer_error(&mut self, status: StatusCode, reason: &'static str, asked: Asked) {
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
}
