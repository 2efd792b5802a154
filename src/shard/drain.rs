//! Word of the drain: told once to a shard, heard by all who wait for it. Floor 4.

use slab::Slab;
use std::{
    cell::{Cell, RefCell},
    fmt,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

/// Whether the server drains, as one shard knows it.
#[derive(Default)]
pub(crate) struct DrainSignal {
    began_ms: Cell<Option<u64>>,
    waiting: RefCell<Slab<Waker>>,
}

impl DrainSignal {
    /// The drain begins now, on the shard's clock. Wakes all who wait.
    pub(crate) fn set(&self, now_ms: u64) {
        self.began_ms.set(Some(now_ms));
        for waker in self.waiting.take() {
            waker.1.wake();
        }
    }

    /// When it began, on the shard's clock.
    pub(crate) fn began_ms(&self) -> Option<u64> {
        self.began_ms.get()
    }

    pub(crate) fn wait(self: &Rc<Self>) -> Draining {
        Draining { signal: self.clone(), key: None }
    }
}

/// Completes when the server begins to drain, at once if it has; see [`Shard::draining`](crate::Shard::draining).
/// Dropping it costs nothing and loses nothing.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Draining {
    signal: Rc<DrainSignal>,
    /// Of its waker, as long as the signal has one.
    key: Option<usize>,
}

impl Future for Draining {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.signal.began_ms.get().is_some() {
            self.key = None; // all wakers were taken
            return Poll::Ready(());
        }
        match self.key {
            Some(key) => self.signal.waiting.borrow_mut()[key].clone_from(cx.waker()),
            None => {
                let key = self.signal.waiting.borrow_mut().insert(cx.waker().clone());
                self.key = Some(key);
            }
        }
        Poll::Pending
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.signal.waiting.borrow_mut().try_remove(key);
        }
    }
}

impl fmt::Debug for Draining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Draining")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn signal_wakes_those_that_wait_and_holds_no_others() {
        let signal = Rc::new(DrainSignal::default());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        let (mut waits, mut leaves) = (signal.wait(), signal.wait());
        for _ in 0..3 {
            assert!(Pin::new(&mut waits).poll(&mut cx).is_pending());
            assert!(Pin::new(&mut leaves).poll(&mut cx).is_pending());
        }
        assert_eq!(signal.waiting.borrow().len(), 2, "one waker each, however often they look");
        drop(leaves);
        assert_eq!(signal.waiting.borrow().len(), 1);
        signal.set(7);
        assert_eq!((woken.0.load(Ordering::Relaxed), signal.began_ms()), (1, Some(7)));
        assert!(Pin::new(&mut waits).poll(&mut cx).is_ready());
        assert!(Pin::new(&mut signal.wait()).poll(&mut cx).is_ready(), "who comes late hears it at once");
    }
}
