//! The shard's ring: sockets, sleeps and tasks driven by one io_uring inside one glommio executor. Floor 3.
//!
//! The only place with `unsafe`. Nothing here knows HTTP. What it guarantees:
//! - memory the kernel may touch is owned by the core's slots, never by tasks, and freed after the last completion;
//! - every operation carries its slot's generation, so a late completion never reaches the slot's next owner;
//! - every queue is bounded by `limits.rs`, and what overflows is counted;
//! - no borrow of the core is held while a waker is called or a task polled.
//!
//! Start with [`Ring::new`] on the thread of a glommio executor and run [`Ring::drive`] in it.

mod alarm;
mod buffers;
mod clock;
mod core;
mod doorbell;
mod driver;
mod file;
mod interest;
pub mod listen;
mod listener;
pub mod passed;
pub mod probe;
pub mod rlimit;
mod sleep;
mod sock;
mod socket;
mod tasks;
#[cfg(test)]
mod tests;
mod token;
pub mod wheel;

pub use self::{
    alarm::Alarm,
    clock::{ThreadTime, process_cpu_ns},
    core::RingStats,
    doorbell::Doorbell,
    file::{File, Opening, Reading},
    interest::HandlerWait,
    listener::{AcceptQueue, Listener},
    sleep::Sleep,
    sock::Census,
    socket::Socket,
};

use self::{core::Core, tasks::Tasks};
use crate::limits::{RING_CQ_ENTRIES, RING_SQ_ENTRIES};
use crate::stats::Histogram;
use std::{
    cell::{RefCell, RefMut},
    fmt,
    future::Future,
    io,
    os::fd::OwnedFd,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

/// How a ring is made.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// Submission queue entries.
    pub sq_entries: u32,
    /// Completion queue entries, no fewer than the submission queue's.
    pub cq_entries: u32,
    /// How often a busy shard looks after glommio; at least 100 us.
    pub tick: Duration,
    /// Whether the kernel repeats timeouts by itself (6.4 and later).
    pub has_multishot_timeout: bool,
    /// Whether the shard's tasks await nothing but the ring: then it never looks at glommio, and waits in the ring
    /// even when it has nothing to do. For programs that measure; a server sleeps in glommio instead.
    pub is_ring_only: bool,
}

impl Default for RingOptions {
    fn default() -> Self {
        RingOptions {
            sq_entries: RING_SQ_ENTRIES,
            cq_entries: RING_CQ_ENTRIES,
            tick: crate::limits::TICK,
            has_multishot_timeout: true,
            is_ring_only: false,
        }
    }
}

/// A handle to the shard's ring. Cloning is cheap; it never leaves its thread.
#[derive(Clone)]
pub struct Ring(Rc<Inner>);

struct Inner {
    // Dropped in order: tasks hold sockets, sockets name slots of the core.
    tasks: Tasks,
    core: RefCell<Core>,
    bell: Doorbell,
    is_ring_only: bool,
}

impl Ring {
    /// Makes the ring of this thread.
    ///
    /// # Errors
    /// The kernel refuses it, or descriptors have run out.
    ///
    /// # Panics
    /// If this thread has one already.
    pub fn new(options: &RingOptions) -> io::Result<Self> {
        Self::with_doorbell(options, Doorbell::new()?)
    }

    /// As [`Ring::new`], for a doorbell that others have already.
    ///
    /// # Errors
    /// The kernel refuses the ring.
    ///
    /// # Panics
    /// If this thread has one already.
    pub fn with_doorbell(options: &RingOptions, bell: Doorbell) -> io::Result<Self> {
        let core = Core::new(options)?;
        let tasks = Tasks::new(bell.clone());
        Ok(Ring(Rc::new(Inner { tasks, core: RefCell::new(core), bell, is_ring_only: options.is_ring_only })))
    }

    /// Never held across a wake or a poll.
    fn core(&self) -> RefMut<'_, Core> {
        self.0.core.borrow_mut()
    }

    /// Takes in a connected stream socket, accepted here or by another shard.
    pub fn adopt(&self, fd: OwnedFd) -> Socket {
        Socket::new(self.clone(), fd)
    }

    /// Connects a new socket descriptor.
    ///
    /// # Errors
    /// What connecting failed with.
    pub async fn connect(&self, fd: OwnedFd, address: socket2::SockAddr) -> io::Result<Socket> {
        Socket::connect(self.clone(), fd, address).await
    }

    /// Takes in a listening socket.
    pub fn listen(&self, fd: OwnedFd) -> Listener {
        Listener::new(self.clone(), fd)
    }

    /// Completes after `duration`, never early. Kept on the shard's wheel: cheap to make and to drop.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::new(self.clone(), duration)
    }

    /// Completes at `at`, to some microseconds: a timeout of the kernel's own, so dearer than [`Ring::sleep`].
    /// One at a time a shard: a second one completes with the first, perhaps too early, and has to be awaited again.
    pub fn alarm(&self, at: Instant) -> Alarm {
        Alarm::new(self.clone(), at)
    }

    /// Runs `future` on this shard until it completes, or until the shard ends and drops it.
    /// A panic ends the task alone.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        self.0.tasks.spawn(future);
    }

    /// What other threads wake this shard with.
    pub fn doorbell(&self) -> Doorbell {
        self.0.bell.clone()
    }

    /// Milliseconds since the ring was made, as of the current turn.
    pub fn now_ms(&self) -> u64 {
        self.core().now_ms()
    }

    /// Ready if the doorbell rang since this was last ready. For one task at a time.
    pub fn poll_bell(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut core = self.core();
        if std::mem::take(&mut core.is_called) {
            return Poll::Ready(());
        }
        core.called = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Wakes every task that reads from a socket, so that it looks around.
    pub fn wake_sockets(&self) {
        let readers = self.core().take_readers();
        readers.into_iter().for_each(Waker::wake);
    }

    /// Nanoseconds since the ring was made, as of the current turn.
    pub fn now_ns(&self) -> u64 {
        self.core().now_ns()
    }

    /// Counts so far.
    pub fn stats(&self) -> RingStats {
        let mut stats = self.core().stats;
        stats.turn_ns_max = stats.turn_ns_max.max(stats.turn_ns_max_this_second);
        stats.task_panics = self.0.tasks.panics();
        stats
    }

    /// How long the requests took that were answered so far: from the turn that completed the head to the moment that the
    /// answer's last byte was handed to the kernel.
    pub fn service_times(&self) -> Histogram {
        self.core().service_times.clone()
    }

    /// The open sockets by what they are about and how old they are. Looks at every one.
    pub fn census(&self) -> Census {
        self.core().census()
    }

    /// What waits to be accepted at this ring's listeners. A system call each.
    pub fn accept_queue(&self) -> AcceptQueue {
        self.core().accept_queue()
    }

    /// Calls `hook` in the first turn of each second of the ring's clock, with the second's number and the counts and
    /// service times up to then: before anything of that turn is counted. Seconds that the shard slept through are left out.
    /// The hook must not use the ring.
    pub fn each_second(&self, hook: impl FnMut(u64, &RingStats, &Histogram) + 'static) {
        self.core().each_second = Some(Box::new(hook));
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ring")
    }
}
