//! Waiting for the peer: for its bytes, for its taking of ours, and at the end. Floor 5.

use super::{Connection, Next, State, broken};
use crate::{
    http::Reject,
    limits::{ANSWERS_HELD_BYTES, DRAIN_IDLE_GRACE_MS, LINGER_TIMEOUT_MS},
    stats::CloseCause,
    transport::{Phase, Transport, give_buffer},
};
use std::{
    future::poll_fn,
    task::{self, Poll},
};

/// Whether the peer takes what it is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stall {
    sent_bytes: u64,
    since: u64,
}

impl<T: Transport> Connection<T> {
    /// From now on [`poll_fill`](Self::poll_fill) is to be asked.
    pub(super) fn start_waiting(&mut self) {
        self.compact();
        let is_partial = !self.unread().is_empty();
        if !(is_partial && self.is_partial) {
            self.waiting_since = self.io.now_ms();
            self.is_partial = is_partial;
        }
        self.set_phase(if is_partial { Phase::ReadingHead } else { Phase::Idle });
        self.state = State::Waiting;
    }

    /// Sends what is written and waits for more to read. An answer that waits for the peer holds up reading only
    /// when it is as large as answers may be.
    pub(super) fn poll_fill(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<Next, CloseCause>> {
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
            // Empty lines after the last request are no request (RFC 9112 §2.2).
            if self.unread().iter().any(|byte| !b"\r\n".contains(byte)) {
                return Poll::Ready(Ok(self.refuse(Reject::Incomplete, false)));
            }
            // Not before it has all its answers: what is handed over but not sent would be lost.
            return Poll::Ready(Ok(Next::Close(CloseCause::PeerClosed)));
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
        if is_idle && self.context.is_draining() && !std::mem::replace(&mut self.is_in_grace, true) {
            self.waiting_since = self.io.now_ms();
        }
        let (timeout, cause) = match (is_idle, self.context.is_draining()) {
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
            self.waiting_since = self.io.now_ms();
            return self.poll_stall(cx).map(Err);
        }
        if is_idle {
            return Poll::Ready(Err(cause));
        }
        Poll::Ready(Ok(self.refuse(Reject::HeadTimedOut, false)))
    }

    /// Hands what is written to the transport. Pending: an earlier send is still on its way.
    pub(super) fn poll_flush(&mut self, cx: &mut task::Context<'_>) -> Result<Poll<()>, CloseCause> {
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

    /// Drops the bytes that are done with; an idle connection owns nothing that it can get again.
    pub(super) fn compact(&mut self) {
        if self.at == self.input.len() {
            give_buffer(std::mem::take(&mut self.input));
            self.context.spare_info(&mut self.info);
        } else {
            self.input.drain(..self.at);
        }
        self.at = 0;
    }

    // ---- ending ----------------------------------------------------------------------------------

    /// From now on it only ends: what is written is sent, and it is closed so that the peer can read it.
    pub(super) fn start_ending(&mut self, cause: CloseCause, lingers: bool) {
        self.set_phase(Phase::Writing);
        let lingers = (lingers || !self.unread().is_empty()) && !self.is_eof;
        self.state = State::Flushing { cause, lingers };
    }

    /// Ready when all that is written is sent.
    pub(super) fn poll_flush_all(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), CloseCause>> {
        loop {
            if self.poll_flush(cx)?.is_pending() {
                return self.poll_stall(cx).map(Err);
            }
            if self.out.is_empty() {
                return match self.io.poll_sent(cx) {
                    Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
                    Poll::Ready(Err(error)) => Poll::Ready(Err(broken(&error))),
                    Poll::Pending => self.poll_stall(cx).map(Err),
                };
            }
        }
    }
}

/// Sends what is on its way, ends our stream and throws away what the peer still sends, until its end or for a
/// while: a close with bytes unread would be a reset, which can destroy the answer on its way (RFC 9112 §9.6).
pub(crate) async fn linger<T: Transport>(io: &mut T) {
    let mut linger = Linger::new(io);
    poll_fn(|cx| linger.poll(io, cx)).await
}

/// See [`linger`].
pub(super) struct Linger {
    deadline: u64,
    is_shut: bool,
}

impl Linger {
    pub(super) fn new<T: Transport>(io: &mut T) -> Self {
        let deadline = io.now_ms() + LINGER_TIMEOUT_MS;
        io.set_deadline(deadline);
        Linger { deadline, is_shut: false }
    }

    pub(super) fn poll<T: Transport>(&mut self, io: &mut T, cx: &mut task::Context<'_>) -> Poll<()> {
        let mut thrown_away = Vec::new();
        loop {
            if io.now_ms() >= self.deadline {
                return Poll::Ready(());
            }
            match io.poll_sent(cx) {
                Poll::Ready(Ok(())) if !self.is_shut => {
                    self.is_shut = true;
                    io.shutdown();
                }
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                _ => {}
            }
            thrown_away.clear();
            match io.poll_read(cx, &mut thrown_away) {
                Poll::Ready(Ok(1..)) => {}
                // Its end is here, but it has not taken all of ours.
                Poll::Ready(Ok(0)) if !self.is_shut && io.poll_sent(cx).is_pending() => return io.poll_deadline(cx),
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return io.poll_deadline(cx),
            }
        }
    }
}
