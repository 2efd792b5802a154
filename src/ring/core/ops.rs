//! What the core is asked for: sockets, listeners, deadlines, the tick and the doorbell. Floor 3.

use super::{Core, Timer};
use crate::{
    limits::RECV_BUFFER_BYTES,
    ring::{
        buffers::GROUP,
        sock::{Census, Sock},
        token::{Generation, Op, Token, next_generation},
    },
};
use io_uring::{opcode, squeue, types};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    task::Waker,
    time::Duration,
};

impl Core {
    // ---- sockets ---------------------------------------------------------------------------------

    #[cfg(test)]
    pub(in crate::ring) fn slots(&self) -> usize {
        self.socks.len()
    }

    pub(in crate::ring) fn sock(&mut self, slot: u32) -> &mut Sock {
        &mut self.socks[slot as usize]
    }

    /// Takes a connected descriptor in; it is closed with its slot.
    pub(in crate::ring) fn adopt(&mut self, fd: OwnedFd) -> (u32, Generation) {
        self.stats.sockets += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.socks.push(Sock::default());
            (self.socks.len() - 1) as u32
        });
        let sock = &mut self.socks[slot as usize];
        sock.open(fd, self.now.ms.get());
        (slot, sock.generation)
    }

    /// Begins to receive, in the way that fits the backlog.
    pub(in crate::ring) fn arm_recv(&mut self, slot: u32) {
        let sock = &mut self.socks[slot as usize];
        sock.pending += 1;
        let token = Token { op: Op::Recv, generation: sock.generation, slot };
        let fd = types::Fd(sock.raw_fd());
        let entry = if sock.arm_recv() {
            opcode::RecvMulti::new(fd, GROUP).build()
        } else {
            opcode::Recv::new(fd, std::ptr::null_mut(), RECV_BUFFER_BYTES as u32)
                .buf_group(GROUP)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT)
        };
        self.push(entry, token);
    }

    /// Submits what the slot's send still has to send.
    pub(in crate::ring) fn submit_send(&mut self, slot: u32) {
        let turn = self.stats.turns;
        let sock = &mut self.socks[slot as usize];
        sock.pending += 1;
        let token = Token { op: Op::Send, generation: sock.generation, slot };
        let fd = types::Fd(sock.raw_fd());
        let (entry, completes_at_once) = sock.send_entry(fd, turn);
        self.sends_expected += usize::from(completes_at_once);
        self.push(entry, token);
    }

    /// Takes in how many bytes of a file the kernel took, of `len`, and waits for room if that is fewer.
    pub(in crate::ring) fn note_sent_file(&mut self, slot: u32, sent: usize, len: usize) {
        self.stats.bytes_out += sent as u64;
        let sock = &mut self.socks[slot as usize];
        if !sock.on_send_file(sent, len) {
            return;
        }
        sock.pending += 1;
        let token = Token { op: Op::Room, generation: sock.generation, slot };
        let fd = types::Fd(sock.raw_fd());
        self.push(opcode::PollAdd::new(fd, libc::POLLOUT as u32).build(), token);
    }

    pub(in crate::ring) fn submit_connect(&mut self, slot: u32) {
        let sock = &mut self.socks[slot as usize];
        sock.pending += 1;
        let token = Token { op: Op::Connect, generation: sock.generation, slot };
        let fd = types::Fd(sock.raw_fd());
        let (address, len) = sock.connect_address();
        self.push(opcode::Connect::new(fd, address.cast(), len).build(), token);
    }

    /// Begins to close: cancels what is in flight; the descriptor and the slot go with the last completion.
    pub(in crate::ring) fn close(&mut self, slot: u32) {
        let sock = &mut self.socks[slot as usize];
        let generation = sock.generation;
        let cancels = sock.begin_close();
        if let Some(key) = sock.deadline.take() {
            self.wheel.remove(key);
        }
        for op in cancels.into_iter().flatten() {
            self.cancel(Token { op, generation, slot });
        }
        self.close_if_idle(slot);
    }

    /// Wakes whoever reads from a socket.
    pub(in crate::ring) fn take_readers(&mut self) -> Vec<Waker> {
        self.socks.iter_mut().filter_map(|sock| sock.reader.take()).collect()
    }

    pub(in crate::ring) fn close_if_idle(&mut self, slot: u32) {
        let sock = &mut self.socks[slot as usize];
        if sock.pending > 0 {
            return;
        }
        let Some(fd) = sock.take_closing_fd() else { return };
        sock.generation = next_generation(sock.generation);
        self.free.push(slot);
        self.stats.sockets -= 1;
        // The number is free only when this runs, and no other operation names it any more.
        self.push_untracked(opcode::Close::new(types::Fd(fd)).build(), Op::Close);
    }

    pub(in crate::ring) fn cancel(&mut self, token: Token) {
        self.push_untracked(opcode::AsyncCancel::new(token.encode()).build(), Op::Cancel);
    }

    // ---- listeners -------------------------------------------------------------------------------

    pub(in crate::ring) fn arm_accept(&mut self, slot: u32) {
        let listen = &mut self.listens[slot as usize];
        listen.is_armed = true;
        let fd = types::Fd(listen.fd.as_raw_fd());
        let entry = opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build();
        self.push(entry, Token { op: Op::Accept, generation: 0, slot });
    }

    /// Stops accepting; what was accepted stays queued.
    pub(in crate::ring) fn cancel_accept(&mut self, slot: u32) {
        if self.listens[slot as usize].is_armed {
            self.cancel(Token { op: Op::Accept, generation: 0, slot });
        }
    }

    pub(in crate::ring) fn drop_listen(&mut self, slot: u32) {
        let listen = &mut self.listens[slot as usize];
        listen.is_dropped = true;
        listen.waker = None;
        listen.accepted.clear();
        if listen.is_armed {
            self.cancel_accept(slot);
        } else {
            self.listens.remove(slot as usize);
        }
    }

    // ---- time ------------------------------------------------------------------------------------

    /// Reads the clock. What is due fires with the next [`Core::advance`], when bytes that came before are in too.
    pub(in crate::ring) fn catch_up(&mut self) {
        let now_ns = self.read_clock_ns();
        self.now.ns.set(now_ns);
        self.now.ms.set(now_ns / 1_000_000);
    }

    pub(in crate::ring) fn read_clock_ns(&self) -> u64 {
        let elapsed = self.started.elapsed(); // two multiplications fewer than as_nanos
        elapsed.as_secs() * 1_000_000_000 + u64::from(elapsed.subsec_nanos())
    }

    /// Reads the clock after an entering that waited, or did not, and fires what is due.
    pub(in crate::ring) fn advance(&mut self, has_waited: bool) {
        self.catch_up();
        if !has_waited {
            self.entered_ns = self.now.ns.get();
        }
        let turn_ns = self.entered_ns.saturating_sub(self.turn_since_ns);
        self.stats.turn_ns_max_this_second = self.stats.turn_ns_max_this_second.max(turn_ns);
        self.turn_since_ns = self.now.ns.get();
        if self.now.ms.get() == self.fired_ms {
            return;
        }
        self.end_seconds(self.fired_ms / 1000, self.now.ms.get() / 1000);
        self.fired_ms = self.now.ms.get();
        let Core { wheel, socks, wakes, .. } = self;
        wheel.advance(self.now.ms.get(), &mut |_, timer| match timer {
            Timer::Sleep(waker) => wakes.push(waker),
            Timer::Socket { slot, generation } => {
                let sock = &mut socks[slot as usize];
                if sock.is_open(generation) {
                    sock.expire(wakes);
                }
            }
        });
    }

    /// Tells whoever asked that a second began, if one did. Nothing was counted since the last look, so that the
    /// counts are right for the seconds that a parked shard slept through, too.
    fn end_seconds(&mut self, last: u64, now: u64) {
        self.stats.turn_ns_max = self.stats.turn_ns_max.max(self.stats.turn_ns_max_this_second);
        if now == last {
            return;
        }
        if let Some(each_second) = &mut self.each_second {
            each_second(now, &self.stats, self.service_times.all());
        }
        self.stats.turn_ns_max_this_second = 0;
    }

    /// The shard slept since the last look: that is no turn.
    pub(in crate::ring) fn wake_up(&mut self) {
        let now_ns = self.read_clock_ns();
        self.stats.parked_ns += now_ns.saturating_sub(self.now.ns.get());
        self.turn_since_ns = now_ns;
    }

    /// The open sockets, counted one by one.
    pub(in crate::ring) fn census(&self) -> Census {
        let mut census = Census::default();
        self.socks.iter().for_each(|sock| sock.count_in(&mut census, self.now.ms.get()));
        census
    }

    /// See [`Transport::note_answered`](crate::transport::Transport::note_answered).
    pub(in crate::ring) fn note_answered(&mut self, slot: u32, since_ns: u64) {
        self.socks[slot as usize].note_answered(since_ns, self.now.ns.get(), &self.service_times);
    }

    /// Sets a socket's deadline.
    pub(in crate::ring) fn set_deadline(&mut self, slot: u32, at_ms: u64) {
        let sock = &mut self.socks[slot as usize];
        sock.is_expired = false;
        match sock.deadline {
            Some(key) => {
                self.wheel.reset(key, at_ms);
            }
            None if at_ms == u64::MAX => {}
            None => {
                let timer = Timer::Socket { slot, generation: sock.generation };
                sock.deadline = Some(self.wheel.insert(at_ms, timer));
            }
        }
    }

    /// Keeps the tick going.
    pub(in crate::ring) fn start_tick(&mut self) {
        if self.is_ticking {
            return;
        }
        self.is_ticking = true;
        let mut entry = opcode::Timeout::new(&raw const *self.tick);
        if self.has_multishot_timeout {
            entry = entry.flags(types::TimeoutFlags::MULTISHOT);
        }
        self.push_tick(entry.build());
    }

    fn push_tick(&mut self, entry: squeue::Entry) {
        self.outstanding += 1;
        self.push_silent(entry.user_data(Token::single(Op::Tick).encode()));
    }

    /// Asks for the tick's end. To be repeated until `is_ticking` is false: a repeating timeout that has
    /// fired, but whose deferred work has not run yet, is not found by a removal nor a cancellation.
    pub(in crate::ring) fn stop_tick(&mut self) {
        if self.is_ticking {
            self.push_untracked(opcode::TimeoutRemove::new(Token::single(Op::Tick).encode()).build(), Op::Cancel);
        }
    }

    /// Arms the one timeout of a parked shard, for the wheel's next deadline.
    pub(in crate::ring) fn start_park_timer(&mut self) -> bool {
        let Some(deadline) = self.wheel.next_deadline() else { return false };
        let elapsed = self.started.elapsed();
        let wait = Duration::from_millis(deadline.saturating_add(1)).saturating_sub(elapsed);
        *self.park = wait.into();
        self.outstanding += 1;
        let entry = opcode::Timeout::new(&raw const *self.park).build();
        self.push_silent(entry.user_data(Token::single(Op::ParkTimer).encode()));
        true
    }

    pub(in crate::ring) fn stop_park_timer(&mut self) {
        self.push_untracked(opcode::TimeoutRemove::new(Token::single(Op::ParkTimer).encode()).build(), Op::Cancel);
    }

    /// Wakes `waker` after `wait`. One alarm is armed at a time; a waker that comes while it is waits for that one.
    pub(in crate::ring) fn set_alarm(&mut self, wait: Duration, waker: &Waker) {
        match &self.alarm_waker {
            Some(old) if old.will_wake(waker) => {}
            _ => self.alarm_waker = Some(waker.clone()),
        }
        if !self.is_alarm_armed {
            self.is_alarm_armed = true;
            *self.alarm = wait.into();
            let entry = opcode::Timeout::new(&raw const *self.alarm).build();
            self.push(entry, Token::single(Op::Alarm));
        }
    }

    /// Takes the alarm back, if it is armed.
    pub(in crate::ring) fn cancel_alarm(&mut self) {
        self.alarm_waker = None;
        if self.is_alarm_armed {
            self.push_untracked(opcode::TimeoutRemove::new(Token::single(Op::Alarm).encode()).build(), Op::Cancel);
        }
    }

    /// Reads the doorbell once, into the core's own word.
    pub(in crate::ring) fn arm_bell(&mut self, fd: RawFd) {
        self.bell_rang = false;
        self.outstanding += 1;
        let word = (&raw mut *self.bell).cast();
        let entry = opcode::Read::new(types::Fd(fd), word, size_of::<u64>() as u32).build();
        self.push_silent(entry.user_data(Token::single(Op::Bell).encode()));
    }

    pub(in crate::ring) fn register_eventfd(&self, fd: RawFd) -> io::Result<()> {
        self.ring.submitter().register_eventfd(fd)
    }

    pub(in crate::ring) fn unregister_eventfd(&self) -> io::Result<()> {
        self.ring.submitter().unregister_eventfd()
    }
}
