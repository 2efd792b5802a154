//! A point in time met to the microsecond, for schedules finer than the wheel's millisecond. Floor 3.

use super::{Ring, interest};
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

/// Completes once its time has come. Dropping it takes the kernel's timeout back.
#[derive(Debug)]
#[must_use = "an alarm does nothing unless awaited"]
pub struct Alarm {
    ring: Ring,
    at: Instant,
    is_set: bool,
}

impl Alarm {
    pub(super) fn new(ring: Ring, at: Instant) -> Self {
        Alarm { ring, at, is_set: false }
    }
}

impl Future for Alarm {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let wait = self.at.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            return Poll::Ready(());
        }
        self.is_set = true;
        self.ring.core().set_alarm(wait, cx.waker());
        interest::note();
        Poll::Pending
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if self.is_set && self.at > Instant::now() {
            self.ring.core().cancel_alarm();
        }
    }
}
