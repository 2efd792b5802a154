//! The ring itself: submitting, reaping and handing each completion to its slot. Floor 3.
//!
//! Ownership: memory that the kernel may touch (send buffers, vectors, the buffer ring, timespecs) lives
//! here, in slots that are freed only when every completion that names them is in. Tasks hold keys, never memory.

mod files;
mod ops;

pub(super) use self::files::opened;
use super::{
    RingOptions,
    buffers::Buffers,
    clock::Now,
    file::Job,
    probe::open_ring,
    sock::{Recv, Sock},
    token::{Generation, Op, Token},
    wheel::Wheel,
};
use crate::{
    limits::CLOSE_ENTERS_MAX,
    stats::{Batched, Histogram},
    transport::give_buffer,
};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::{
    collections::VecDeque,
    io, mem,
    os::fd::{FromRawFd, OwnedFd},
    rc::Rc,
    task::Waker,
    time::Instant,
};

/// Counts of one ring since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingStats {
    /// `io_uring_enter` calls.
    pub enters: u64,
    /// Turns of the driver.
    pub turns: u64,
    /// Completions handled, ticks not counted.
    pub events: u64,
    /// Ticks seen.
    pub ticks: u64,
    /// Looks at glommio while busy.
    pub visits: u64,
    /// Times the shard slept in glommio.
    pub parks: u64,
    /// Receives that found no provided buffer.
    pub enobufs: u64,
    /// Turns that found the completion queue overflown.
    pub cq_overflows: u64,
    /// Sends the kernel took only in part.
    pub short_sends: u64,
    /// Receives cancelled at the high-water mark.
    pub throttles: u64,
    /// Provided buffers the kernel filled.
    pub buffers_filled: u64,
    /// Most of them that were filled at once: found by one look into the ring.
    pub buffers_filled_peak: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes the kernel took for sending.
    pub bytes_out: u64,
    /// Sockets open now.
    pub sockets: u64,
    /// Panics that escaped a task.
    pub task_panics: u64,
    /// Time slept in glommio, in ns.
    pub parked_ns: u64,
    /// Longest time between two looks into the ring in which tasks or glommio ran, in ns, since the start.
    pub turn_ns_max: u64,
    /// The same since the last full second; see [`Ring::each_second`](super::Ring::each_second).
    pub turn_ns_max_this_second: u64,
}

/// Called with the number of the second that began, and the counts up to then.
pub(super) type EachSecond = Box<dyn FnMut(u64, &RingStats, &Histogram)>;

/// Whom a timer of the wheel wakes.
pub(super) enum Timer {
    /// The deadline of a socket.
    Socket { slot: u32, generation: Generation },
    /// A sleep.
    Sleep(Waker),
}

/// A listening descriptor and what it accepted.
pub(super) struct Listen {
    pub(super) fd: OwnedFd,
    pub(super) accepted: VecDeque<OwnedFd>,
    pub(super) failed: Option<i32>,
    pub(super) is_armed: bool,
    /// Its owner is gone: free the slot with the last completion.
    pub(super) is_dropped: bool,
    pub(super) waker: Option<Waker>,
}

// Fields drop in order: the ring is closed before the memory it uses is freed.
pub(super) struct Core {
    ring: IoUring,
    buffers: Buffers,
    /// Never shrinks, so that generations survive; free slots are in `free`.
    socks: Vec<Sock>,
    free: Vec<u32>,
    pub(super) listens: slab::Slab<Listen>,
    pub(super) jobs: slab::Slab<Job>,
    pub(super) wheel: Wheel<Timer>,
    /// Entries that found the submission queue full.
    overflow: VecDeque<squeue::Entry>,
    /// Whom the completions at hand wake; woken outside any borrow of the core.
    wakes: Vec<Waker>,
    /// Operations whose last completion is still to come.
    outstanding: usize,
    /// Sends submitted this turn that will complete at once.
    pub(super) sends_expected: usize,
    /// The wheel's and the tick's clock.
    started: Instant,
    pub(super) now: Rc<Now>,
    /// Up to when the wheel has fired.
    fired_ms: u64,
    /// When the ring was entered last: what was sent was handed over then.
    entered_ns: u64,
    /// When the ring was last looked into, or the shard woke: the turn runs since then.
    turn_since_ns: u64,
    /// From a request's head to its answer's last byte.
    pub(super) service_times: Batched,
    pub(super) each_second: Option<EachSecond>,
    tick: Box<types::Timespec>,
    park: Box<types::Timespec>,
    bell: Box<u64>,
    alarm: Box<types::Timespec>,
    is_alarm_armed: bool,
    alarm_waker: Option<Waker>,
    pub(super) is_ticking: bool,
    pub(super) ticked: bool,
    pub(super) bell_rang: bool,
    /// The bell rang since somebody last asked.
    pub(super) is_called: bool,
    pub(super) called: Option<Waker>,
    pub(super) has_multishot_timeout: bool,
    pub(super) stats: RingStats,
}

impl Core {
    /// # Errors
    /// The kernel refuses the ring or its buffers; see `probe` for what each errno means.
    pub(super) fn new(options: &RingOptions) -> io::Result<Self> {
        let ring = open_ring(options.sq_entries, options.cq_entries)?;
        let buffers = Buffers::register(&ring)?;
        Ok(Core {
            ring,
            buffers,
            socks: Vec::new(),
            free: Vec::new(),
            listens: slab::Slab::new(),
            jobs: slab::Slab::new(),
            wheel: Wheel::new(0),
            overflow: VecDeque::new(),
            wakes: Vec::new(),
            outstanding: 0,
            sends_expected: 0,
            started: Instant::now(),
            now: Rc::default(),
            fired_ms: 0,
            tick: Box::new(options.tick.into()),
            entered_ns: 0,
            turn_since_ns: 0,
            service_times: Batched::default(),
            each_second: None,
            park: Box::default(),
            bell: Box::new(0),
            alarm: Box::default(),
            is_alarm_armed: false,
            alarm_waker: None,
            is_ticking: false,
            ticked: false,
            bell_rang: false,
            is_called: false,
            called: None,
            has_multishot_timeout: options.has_multishot_timeout,
            stats: RingStats::default(),
        })
    }

    // ---- submitting ------------------------------------------------------------------------------

    /// Queues an operation whose completion is awaited.
    pub(super) fn push(&mut self, entry: squeue::Entry, token: Token) {
        self.outstanding += 1;
        self.push_silent(entry.user_data(token.encode()));
        super::tasks::wake_parked_driver();
    }

    /// Queues an operation that completes silently unless it fails, and whose failure means nothing.
    pub(super) fn push_untracked(&mut self, entry: squeue::Entry, op: Op) {
        self.push_silent(entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(Token::single(op).encode()));
        super::tasks::wake_parked_driver();
    }

    fn push_silent(&mut self, entry: squeue::Entry) {
        if self.overflow.is_empty() && self.try_push(&entry) {
            return;
        }
        self.overflow.push_back(entry);
        self.flush_overflow();
    }

    fn try_push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: what the entry points to (send buffers, vectors, paths, read buffers, timespecs, the bell word) is
        // owned by this core, in a slot or box that stays until the operation's last completion is in.
        unsafe { self.ring.submission().push(entry).is_ok() }
    }

    /// Submits until what did not fit is queued, or the kernel takes no more for now.
    fn flush_overflow(&mut self) {
        while let Some(entry) = self.overflow.pop_front() {
            if self.try_push(&entry) {
                continue;
            }
            let is_submitted = self.ring.submit().is_ok_and(|count| count > 0);
            self.stats.enters += 1;
            if !(is_submitted && self.try_push(&entry)) {
                self.overflow.push_front(entry);
                return;
            }
        }
    }

    /// Submits what is queued, runs the kernel's deferred work, and waits for `want` completions.
    ///
    /// # Errors
    /// What `io_uring_enter` says, other than EINTR, EBUSY and EAGAIN, which the next turn retries.
    pub(super) fn enter(&mut self, want: u32) -> io::Result<()> {
        const GETEVENTS: u32 = 1; // IORING_ENTER_GETEVENTS: needed to run deferred work
        self.flush_overflow();
        self.stats.enters += 1;
        self.sends_expected = 0;
        if want > 0 {
            self.entered_ns = self.read_clock_ns(); // before the wait: the turn ends here, not when an event comes
        }
        let queued = self.ring.submission().len() as u32;
        // SAFETY: no argument is passed; the flag is a valid one; entries are valid as `try_push` says.
        match unsafe { self.ring.submitter().enter::<libc::sigset_t>(queued, want, GETEVENTS, None) } {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Whether completions are left that a bounded reap did not get to.
    pub(super) fn has_unreaped(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Whether the kernel holds work of ours that the next enter would run.
    pub(super) fn has_deferred_work(&mut self) -> bool {
        self.ring.submission().taskrun() || !self.ring.completion().is_empty() || !self.overflow.is_empty()
    }

    // ---- reaping ---------------------------------------------------------------------------------

    /// Handles at most `max` completions. Wakers to wake are left in [`Core::take_wakes`].
    pub(super) fn reap(&mut self, max: usize) -> usize {
        if self.ring.submission().cq_overflow() {
            self.stats.cq_overflows += 1;
        }
        let mut reaped = 0;
        let filled_before = self.stats.buffers_filled;
        while reaped < max {
            // One at a time: dispatching needs the whole core. The queue's head is written back each time,
            // a plain store on x86.
            let Some(entry) = self.ring.completion().next() else { break };
            self.dispatch(&entry);
            reaped += 1;
        }
        let filled = self.stats.buffers_filled - filled_before;
        self.stats.buffers_filled_peak = self.stats.buffers_filled_peak.max(filled);
        reaped
    }

    fn dispatch(&mut self, entry: &cqueue::Entry) {
        let token = Token::decode(entry.user_data());
        let result = entry.result();
        let has_more = cqueue::more(entry.flags());
        if !has_more && !matches!(token.op, Op::Cancel | Op::Close) {
            self.outstanding -= 1;
        }
        match token.op {
            Op::Recv => {
                self.stats.events += 1;
                self.on_recv(token, result, cqueue::buffer_select(entry.flags()), has_more);
            }
            Op::Send | Op::Connect | Op::Room => {
                self.stats.events += 1;
                self.on_socket_op(token, result);
            }
            Op::Accept => {
                self.stats.events += 1;
                self.on_accept(token, result, has_more);
            }
            Op::File => {
                self.stats.events += 1;
                self.on_file(token, result);
            }
            Op::Tick => {
                self.stats.ticks += 1;
                self.ticked = true;
                self.is_ticking = has_more;
            }
            Op::Bell => {
                self.stats.events += 1;
                self.bell_rang = true;
                self.is_called = true;
                self.wakes.extend(self.called.take());
            }
            Op::Alarm => {
                self.stats.events += 1;
                self.is_alarm_armed = false;
                self.wakes.extend(self.alarm_waker.take());
            }
            Op::ParkTimer | Op::Cancel | Op::Close => {}
        }
    }

    fn on_recv(&mut self, token: Token, result: i32, buffer: Option<u16>, has_more: bool) {
        let sock = &mut self.socks[token.slot as usize];
        let is_ours = sock.is_open(token.generation);
        if let Some(id) = buffer {
            self.stats.buffers_filled += 1;
            // Copied first and given back at once, so that no slow reader holds the shared buffers.
            if is_ours && result > 0 {
                sock.inbox_extend(self.buffers.filled(id, result as usize));
                self.stats.bytes_in += result as u64;
            }
            self.buffers.give_back(id);
        }
        if result == -libc::ENOBUFS {
            self.stats.enobufs += 1;
        }
        if !has_more {
            sock.pending -= 1;
        }
        if !is_ours {
            self.close_if_idle(token.slot);
            return;
        }
        let step = sock.on_recv(result, has_more, &mut self.wakes);
        match step {
            Recv::Keep => {}
            Recv::Rearm => self.arm_recv(token.slot),
            Recv::Cancel => {
                self.stats.throttles += 1;
                self.cancel(token);
            }
        }
    }

    fn on_socket_op(&mut self, token: Token, result: i32) {
        let turn = self.stats.turns;
        let sock = &mut self.socks[token.slot as usize];
        sock.pending -= 1;
        let is_ours = sock.is_open(token.generation);
        match token.op {
            Op::Send => {
                self.stats.bytes_out += result.max(0) as u64;
                let is_short = sock.on_send(result, turn, &mut self.wakes);
                if !is_short {
                    // A late one was handed over piece by piece; one that was not, with the ring's last entering.
                    let at_ns = if sock.is_lagging { self.now.ns.get() } else { self.entered_ns };
                    sock.end_send(result >= 0, at_ns, &self.service_times);
                }
                if is_short {
                    self.stats.short_sends += 1;
                    if is_ours {
                        self.submit_send(token.slot);
                        return;
                    }
                }
            }
            Op::Connect => sock.on_connect(result, &mut self.wakes),
            Op::Room => sock.on_room(&mut self.wakes),
            _ => {}
        }
        if !is_ours {
            self.close_if_idle(token.slot);
        }
    }

    fn on_accept(&mut self, token: Token, result: i32, has_more: bool) {
        let accepted = (result >= 0).then(|| {
            // SAFETY: a non-negative result is a new descriptor that nobody else owns.
            unsafe { OwnedFd::from_raw_fd(result) }
        });
        let Some(listen) = self.listens.get_mut(token.slot as usize) else { return };
        listen.is_armed = has_more;
        match accepted {
            Some(fd) => listen.accepted.push_back(fd),
            None if result == -libc::ECANCELED => {}
            None => listen.failed = Some(-result),
        }
        self.wakes.extend(listen.waker.take());
        if listen.is_dropped && !has_more {
            self.listens.remove(token.slot as usize);
        }
    }

    /// Whom to wake for what was reaped. Give the emptied list back with [`Core::return_wakes`].
    pub(super) fn take_wakes(&mut self) -> Vec<Waker> {
        mem::take(&mut self.wakes)
    }

    pub(super) fn return_wakes(&mut self, mut wakes: Vec<Waker>) {
        wakes.clear();
        self.wakes = wakes;
    }

    // ---- the end ---------------------------------------------------------------------------------

    /// Cancels everything and reaps until nothing is in flight and every descriptor is closed.
    /// Says whether it got there.
    pub(super) fn drain(&mut self) -> bool {
        for slot in 0..self.socks.len() as u32 {
            if self.socks[slot as usize].is_in_use() {
                self.close(slot);
            }
        }
        let any = types::CancelBuilder::any();
        let cancel_all = opcode::AsyncCancel2::new(any).build().user_data(Token::single(Op::Cancel).encode());
        self.push_silent(cancel_all);
        for _ in 0..CLOSE_ENTERS_MAX {
            if self.outstanding == 0 && self.overflow.is_empty() && self.ring.submission().is_empty() {
                return true;
            }
            self.stop_tick();
            if self.enter(u32::from(self.outstanding > 0)).is_err() {
                return false;
            }
            self.reap(usize::MAX);
            self.wakes.clear();
        }
        false
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if !self.drain() {
            // The kernel may still write to these: lose the memory rather than free it.
            mem::forget(mem::take(&mut self.socks));
            mem::forget(mem::take(&mut self.jobs));
            mem::forget(mem::take(&mut self.tick));
            mem::forget(mem::take(&mut self.park));
            mem::forget(mem::take(&mut self.bell));
            mem::forget(mem::take(&mut self.alarm));
            self.buffers.leak();
        }
        for sock in &mut self.socks {
            give_buffer(sock.take_inbox());
        }
    }
}
