//! The driver: one glommio task a shard that turns the ring. Floor 3.
//!
//! ```text
//!            ┌────────────────────────── turn ──────────────────────────┐
//!            │ run ready tasks → submit and wait for one event more than │
//!            │ the sends just submitted → reap → wake                    │
//!            └──┬────────────────────────▲─────────────────────▲─────────┘
//!   tick, and events since the last      │                     │
//!               ├──────▶ visit glommio ──┘                     │
//!   tick, and none; or quiet while a handler waits outside     │
//!               └──────▶ park: sleep in glommio until the ring's eventfd or a wake
//! ```
//!
//! Every figure behind this shape is in ARCHITECTURE.md.

use super::{Doorbell, Ring, interest};
use crate::limits::{QUIET_EVENTS_A_TICK, TURN_COMPLETIONS_MAX, TURN_TASK_RUNS_MAX};
use glommio::io::{PollState, PollableFd};
use std::{
    cell::Cell,
    future::{Future, poll_fn},
    io,
    os::fd::AsRawFd,
    rc::Rc,
    task::Poll,
};

/// How the driver reaches its executor: an eventfd that glommio polls and the ring signals while parked.
struct Glommio {
    parker: Doorbell,
    pollable: PollableFd<Doorbell>,
    /// Kept across waits, so that a wait that ended by a wake leaves its poll armed for the next.
    state: PollState,
}

impl Glommio {
    fn new() -> io::Result<Self> {
        let parker = Doorbell::new()?;
        let pollable = PollableFd::new(parker.clone()).map_err(io::Error::other)?;
        Ok(Glommio { parker, pollable, state: PollState::default() })
    }

    /// Lets the executor look at its own rings and run its tasks once.
    async fn visit(&mut self) -> io::Result<()> {
        self.parker.ring();
        poll_fn(|cx| self.pollable.poll_readable(cx, &mut self.state)).await.map_err(io::Error::other)?;
        self.parker.take();
        Ok(())
    }
}

impl Ring {
    /// Runs `main` and all that is spawned on the ring until `main` completes; then drops every task, closes
    /// every socket, and returns once nothing is in flight. Await it in the shard's glommio executor.
    ///
    /// # Errors
    /// The ring itself fails (not: a connection).
    pub async fn drive(self, main: impl Future<Output = ()> + 'static) -> io::Result<()> {
        let is_done = Rc::new(Cell::new(false));
        let flag = is_done.clone();
        self.spawn(async move {
            let _done = OnDrop(flag); // also when it panics
            main.await;
        });
        let result = self.turn_until(&is_done).await;
        self.0.tasks.drop_all();
        if !self.core().drain() {
            return Err(io::Error::other("the ring did not return all operations at its end"));
        }
        result
    }

    async fn turn_until(&self, is_done: &Cell<bool>) -> io::Result<()> {
        let mut glommio = Glommio::new()?;
        let bell = self.0.bell.as_raw_fd();
        self.core().arm_bell(bell);
        self.core().advance(false);
        let mut events_at_tick = 0;
        let mut events_last_tick = 0;
        loop {
            let ran = self.0.tasks.run(TURN_TASK_RUNS_MAX);
            if is_done.get() {
                return Ok(());
            }
            let events_this_tick = self.core().stats.events - events_at_tick;
            let is_quiet = events_this_tick.max(events_last_tick) <= QUIET_EVENTS_A_TICK;
            let sleeps_outside = is_quiet && interest::outside() > 0;
            self.core().start_tick();
            let reaped = self.turn(sleeps_outside)?;

            if self.core().bell_rang {
                self.core().arm_bell(bell);
                self.0.tasks.take_remote();
                continue;
            }
            let has_ticked = std::mem::take(&mut self.core().ticked);
            if self.0.is_ring_only {
                continue;
            }
            let events_this_tick = self.core().stats.events - events_at_tick;
            let is_idle = !self.0.tasks.has_ready();
            if has_ticked {
                events_last_tick = events_this_tick;
                events_at_tick += events_this_tick;
                if events_this_tick > 0 || !is_idle || ran > 0 {
                    self.core().stats.visits += 1;
                    glommio.visit().await?;
                } else {
                    self.park(&mut glommio).await?;
                }
            } else if sleeps_outside && reaped == 0 && is_idle {
                self.park(&mut glommio).await?;
            }
        }
    }

    /// One look into the ring. Says how many completions it handled.
    fn turn(&self, only_look: bool) -> io::Result<usize> {
        let has_ready = self.0.tasks.has_ready();
        let (reaped, mut wakes) = {
            let mut core = self.core();
            core.stats.turns += 1;
            let want = if has_ready || only_look || core.has_unreaped() {
                0
            } else if core.has_multishot_timeout {
                1 + core.sends_expected as u32
            } else {
                1 // without a repeating tick a miscounted send would be waited for without end
            };
            core.enter(want)?;
            core.advance(want > 0);
            let reaped = core.reap(TURN_COMPLETIONS_MAX);
            (reaped, core.take_wakes())
        };
        for waker in wakes.drain(..) {
            waker.wake();
        }
        self.core().return_wakes(wakes);
        Ok(reaped)
    }

    /// Sleeps in glommio until the ring has something, a deadline comes, or somebody queues work here.
    async fn park(&self, glommio: &mut Glommio) -> io::Result<()> {
        // The tick must be out of the ring, its last completion too, or it would end the sleep at once.
        while self.core().is_ticking {
            self.core().stop_tick();
            self.look()?;
        }
        let has_timer = self.core().start_park_timer();
        self.core().register_eventfd(glommio.parker.as_raw_fd())?;
        let mut slept = Ok(());
        // One enter may run a part of the deferred work only: look until the ring is really empty.
        let mut reaped = 0;
        loop {
            reaped += self.look()?;
            if !self.core().has_deferred_work() {
                break;
            }
        }
        if reaped == 0 && !self.0.tasks.has_ready() && !self.core().bell_rang {
            self.core().stats.parks += 1;
            let mut is_registered = false;
            slept = poll_fn(|cx| {
                if is_registered && !self.0.tasks.is_parked() {
                    return Poll::Ready(Ok(())); // somebody queued work
                }
                is_registered = true;
                self.0.tasks.park(cx.waker());
                glommio.pollable.poll_readable(cx, &mut glommio.state)
            })
            .await
            .map_err(io::Error::other);
            self.0.tasks.unpark();
            self.core().wake_up();
        }
        self.core().unregister_eventfd()?;
        glommio.parker.take();
        if has_timer {
            self.core().stop_park_timer();
        }
        self.core().catch_up(); // before tasks that were woken there run
        slept
    }

    /// Submits, runs deferred work and reaps, without waiting.
    fn look(&self) -> io::Result<usize> {
        self.turn(true)
    }
}

struct OnDrop(Rc<Cell<bool>>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.set(true);
    }
}
