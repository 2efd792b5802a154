//! Sleeping on the shard's wheel. Floor 3.

use super::{Ring, core::Timer, interest, tasks::wake_parked_driver, wheel::Key};
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

/// Completes when its time has come, to the millisecond and the shard's turn. Dropping it forgets it.
#[derive(Debug)]
#[must_use = "a sleep does nothing unless awaited"]
pub struct Sleep {
    ring: Ring,
    deadline_ms: u64,
    timer: Option<(Key, Waker)>,
}

impl Sleep {
    pub(super) fn new(ring: Ring, duration: Duration) -> Self {
        // Rounded up, and counted from a clock that may be most of a turn old: never early.
        let now = ring.core().read_clock_ns() / 1_000_000;
        let wait = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        Sleep { ring, deadline_ms: now.saturating_add(wait), timer: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.ring.now_ms() >= this.deadline_ms {
            return Poll::Ready(());
        }
        let mut core = this.ring.core();
        if !matches!(&this.timer, Some((_, waker)) if waker.will_wake(cx.waker())) {
            let old = this.timer.take().map(|(key, waker)| (core.wheel.remove(key), waker));
            let key = core.wheel.insert(this.deadline_ms, Timer::Sleep(cx.waker().clone()));
            this.timer = Some((key, cx.waker().clone()));
            std::mem::drop(core);
            wake_parked_driver(); // a task of glommio's may sleep here too, and this deadline may be the next
            std::mem::drop(old); // outside the borrow: a waker may own anything
        }
        interest::note();
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((key, _)) = self.timer.take() {
            let timer = self.ring.core().wheel.remove(key);
            drop(timer); // outside the borrow: a waker may own anything
        }
    }
}
