//! Which handlers wait for something outside the ring. Floor 3.
//!
//! A shard that has nothing to do waits in its ring, and looks at glommio once a tick. A handler that
//! awaits something of glommio's (a file, `spawn_blocking`, a timer) would be answered a tick late; so
//! the driver counts such handlers and, while there is one and the shard is quiet, sleeps in glommio
//! instead. A handler counts when its last poll returned `Pending` and no future of the ring was
//! polled to `Pending` meanwhile.

use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

thread_local! {
    /// How often a future of this thread's ring has returned `Pending`.
    static NOTED: Cell<u64> = const { Cell::new(0) };
    /// Handlers of this thread that wait outside the ring.
    static OUTSIDE: Cell<usize> = const { Cell::new(0) };
}

/// A future of the ring returns `Pending`: its wake will come through the ring.
pub(super) fn note() {
    NOTED.set(NOTED.get().wrapping_add(1));
}

/// Handlers of this shard that wait for something outside the ring.
pub(super) fn outside() -> usize {
    OUTSIDE.get()
}

/// Polls one handler's future and keeps count of whether it waits outside the ring. Dropping it stops counting.
#[derive(Debug, Default)]
pub struct HandlerWait {
    is_outside: bool,
}

impl HandlerWait {
    /// Polls `handler` once.
    pub fn poll<F: Future + ?Sized>(&mut self, handler: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let before = NOTED.get();
        let poll = handler.poll(cx);
        self.set(poll.is_pending() && NOTED.get() == before);
        poll
    }

    fn set(&mut self, is_outside: bool) {
        match (self.is_outside, is_outside) {
            (false, true) => OUTSIDE.set(OUTSIDE.get() + 1),
            (true, false) => OUTSIDE.set(OUTSIDE.get() - 1),
            _ => {}
        }
        self.is_outside = is_outside;
    }
}

impl Drop for HandlerWait {
    fn drop(&mut self) {
        self.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{future::poll_fn, pin::pin, task::Waker};

    #[test]
    fn handler_counts_only_while_it_waits_outside_the_ring() {
        let cx = &mut Context::from_waker(Waker::noop());
        let mut step = 0;
        let mut handler = pin!(poll_fn(|_| {
            step += 1;
            match step {
                1 => Poll::Pending, // a file, say
                2 => {
                    note();
                    Poll::Pending // a socket of the ring
                }
                3 => Poll::Pending,
                _ => Poll::Ready(()),
            }
        }));
        let mut wait = HandlerWait::default();
        for (round, count) in [1, 0, 1, 0].into_iter().enumerate() {
            assert_eq!(wait.poll(handler.as_mut(), cx).is_ready(), round == 3);
            assert_eq!(outside(), count, "after poll {round}");
        }
    }

    #[test]
    fn dropped_handler_counts_no_more() {
        let cx = &mut Context::from_waker(Waker::noop());
        let mut wait = HandlerWait::default();
        assert!(wait.poll(pin!(std::future::pending::<()>()), cx).is_pending());
        assert_eq!(outside(), 1);
        drop(wait);
        assert_eq!(outside(), 0);
    }
}
