//! Waiting for the proxy: for its packets, for its taking of ours, and at the end. Floor 5.

use super::{Admission, Connection, Next, Stall};
use crate::{
    http::Reject,
    limits::{ANSWERS_HELD_BYTES, DRAIN_IDLE_GRACE_MS, LINGER_TIMEOUT_MS},
    service::http1::{broken, linger},
    stats::{CloseCause, Count},
    transport::{Phase, Transport, give_buffer},
};
use std::{
    future::poll_fn,
    task::{self, Poll},
};

impl<T: Transport> Connection<T> {
    /// Sends what is written and waits for a packet.
    pub(super) async fn fill(&mut self) -> Result<Next, CloseCause> {
        self.compact();
        let is_partial = !self.unread().is_empty();
        // What begins no packet begins no new wait: an answer did, or the connection itself.
        if is_partial && !std::mem::replace(&mut self.is_partial, is_partial) {
            self.waiting_since = self.io.now_ms();
        }
        self.set_phase(if is_partial { Phase::ReadingHead } else { Phase::Idle });
        poll_fn(|cx| self.poll_fill(cx)).await
    }

    fn poll_fill(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<Next, CloseCause>> {
        let flushed = self.poll_flush(cx)?;
        if self.out.len() >= ANSWERS_HELD_BYTES {
            return self.poll_stall(cx).map(Err);
        }
        if !self.is_eof {
            match self.poll_input(cx) {
                Poll::Ready(Ok(())) if self.is_eof => {}
                Poll::Ready(Ok(())) => return Poll::Ready(Ok(Next::Request)),
                Poll::Ready(Err(cause)) => return Poll::Ready(Err(cause)),
                Poll::Pending => {}
            }
        }
        if self.is_eof {
            let next = match self.unread().is_empty() {
                true => Next::Close(CloseCause::PeerClosed),
                false => self.refuse_packet(Reject::Incomplete, CloseCause::Rejected),
            };
            return Poll::Ready(Ok(next));
        }
        if flushed.is_pending() {
            return self.poll_stall(cx).map(Err);
        }
        self.poll_waiting(cx)
    }

    /// The deadlines of a connection that waits for its proxy to send.
    fn poll_waiting(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<Next, CloseCause>> {
        let config = &self.context.config;
        let is_idle = self.unread().is_empty();
        if is_idle && self.context.is_draining() && !std::mem::replace(&mut self.is_in_grace, true) {
            self.waiting_since = self.io.now_ms();
        }
        let (timeout, cause) = match (is_idle, self.context.is_draining()) {
            _ if self.admission == Admission::OverLimit => (LINGER_TIMEOUT_MS, CloseCause::Rejected),
            (false, _) => (config.header_timeout_ms, CloseCause::HeaderTimeout),
            (true, true) => (DRAIN_IDLE_GRACE_MS, CloseCause::Drained),
            (true, false) => (config.idle_timeout_ms, CloseCause::IdleTimeout),
        };
        let deadline = self.waiting_since.saturating_add(timeout);
        let now = self.io.now_ms();
        if now < deadline {
            // The last answer was handed over unwatched: the flush looks after it when its time is up.
            let stall = self.stall.since.saturating_add(self.context.config.write_stall_ms);
            self.wait_until(if now < stall { stall.min(deadline) } else { deadline }, cx);
            return Poll::Pending;
        }
        if is_idle && self.io.poll_sent(cx).is_pending() {
            // Not idle: it is still taking its answer. The wait begins anew with each look.
            self.waiting_since = now;
            return self.poll_stall(cx).map(Err);
        }
        if is_idle {
            return Poll::Ready(Err(cause));
        }
        Poll::Ready(Ok(self.refuse_packet(Reject::HeadTimedOut, cause)))
    }

    /// Answers a packet that did not come whole.
    fn refuse_packet(&mut self, reject: Reject, cause: CloseCause) -> Next {
        let status = reject.status();
        self.context.counters.rejects.by_status(status.as_u16()).add(1);
        self.end_with_error(status, reject.reason(), false, cause)
    }

    /// Reads what has come, or the end.
    pub(super) fn poll_input(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), CloseCause>> {
        match self.io.poll_read(cx, &mut self.input) {
            Poll::Ready(Ok(count)) => {
                self.is_eof |= count == 0;
                self.context.counters.ajp.received.add(count as u64);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(broken(&error))),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Hands what is written to the transport. Pending: an earlier send is still on its way.
    pub(super) fn poll_flush(&mut self, cx: &mut task::Context<'_>) -> Result<Poll<()>, CloseCause> {
        match self.io.poll_sent(cx) {
            Poll::Ready(Ok(())) => {
                if !self.out.is_empty() {
                    self.context.counters.ajp.sent.add(self.out.len() as u64);
                    self.io.send(&mut self.out);
                    self.stall = Stall { sent_bytes: self.io.sent_bytes(), since: self.io.now_ms() };
                }
                // Known to be on its way: most sends are complete before anybody asks again.
                Ok(Poll::Ready(()))
            }
            Poll::Ready(Err(error)) => Err(broken(&error)),
            Poll::Pending => Ok(Poll::Pending),
        }
    }

    /// Ready when the peer has taken nothing for too long.
    pub(super) fn poll_stall(&mut self, cx: &mut task::Context<'_>) -> Poll<CloseCause> {
        let deadline = self.stall_deadline();
        if self.io.now_ms() >= deadline {
            return Poll::Ready(CloseCause::WriteStall);
        }
        self.wait_until(deadline, cx);
        Poll::Pending
    }

    /// When the peer is given up if it takes nothing more of what it is sent.
    pub(super) fn stall_deadline(&mut self) -> u64 {
        let sent_bytes = self.io.sent_bytes();
        if sent_bytes != self.stall.sent_bytes {
            self.stall = Stall { sent_bytes, since: self.io.now_ms() };
        }
        self.stall.since.saturating_add(self.context.config.write_stall_ms)
    }

    /// Has the task woken at `deadline`, at the latest.
    pub(super) fn wait_until(&mut self, deadline: u64, cx: &mut task::Context<'_>) {
        self.io.set_deadline(deadline);
        if self.io.poll_deadline(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }

    /// Drops the bytes that are done with; an idle connection owns no buffer.
    pub(super) fn compact(&mut self) {
        if self.at == self.input.len() {
            give_buffer(std::mem::take(&mut self.input));
        } else {
            self.input.drain(..self.at);
        }
        self.at = 0;
    }

    /// Sends what is written, and closes so that the proxy can read it: it may be sending a body meanwhile.
    pub(super) async fn finish(&mut self, cause: CloseCause) -> CloseCause {
        self.set_phase(Phase::Writing);
        let sent = poll_fn(|cx| {
            loop {
                let has_rest = !self.out.is_empty();
                match self.poll_flush(cx)? {
                    Poll::Ready(()) if has_rest => {} // handed over: look again
                    Poll::Ready(()) => return Poll::Ready(Ok(())),
                    Poll::Pending => return self.poll_stall(cx).map(Err),
                }
            }
        });
        if let Err(broken) = sent.await {
            return broken;
        }
        if !self.is_eof {
            linger(&mut self.io).await;
        }
        cause
    }
}
