//! The state of one socket slot: what is in flight, what was received, what is being sent. Floor 3.
//!
//! ```text
//! receiving:  Idle ──arm──▶ Multishot ──high-water──▶ Cancelling ──completion──▶ Idle (backlogged)
//!              ▲  ◀─ended──────┘                                                  │ arm
//!              └──completion── Single ◀────────────────────────────────────────────┘
//! life:       Free ──open──▶ Open ──begin_close──▶ Closing ──last completion──▶ Free (next generation)
//! ```

use super::token::{Generation, Op};
use super::wheel::Key;
use crate::{
    limits::{AGES_MS, INBOX_HIGH_BYTES, RECV_BUFFER_BYTES, SEND_VECTORS_MAX},
    stats::Batched,
    transport::{Outgoing, Phase, give_buffer, take_buffer},
};
use io_uring::{opcode, squeue, types};
use socket2::SockAddr;
use std::{
    io, mem,
    os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd},
    task::Waker,
};

/// What the core has to do after a receive completion.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Recv {
    Keep,
    Rearm,
    Cancel,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Receiving {
    #[default]
    Idle,
    Multishot,
    Single,
    /// A multishot receive whose cancellation is on its way.
    Cancelling,
}

#[derive(Debug, Default)]
enum Life {
    #[default]
    Free,
    Open(OwnedFd),
    Closing(OwnedFd),
}

/// How the peer's stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Eof,
    Error(i32),
}

/// A send. While `is_in_flight`, the kernel reads the heap memory of `out` and `vectors`.
#[derive(Debug, Default)]
struct Sending {
    is_in_flight: bool,
    out: Outgoing,
    sent: usize,
    /// Turn it was last submitted in.
    turn: u64,
    vectors: Option<Box<Vectors>>,
}

/// A message of several pieces, as sendmsg wants it.
struct Vectors {
    header: libc::msghdr,
    pieces: Vec<libc::iovec>,
}

impl std::fmt::Debug for Vectors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vectors").field("pieces", &self.pieces.len()).finish()
    }
}

/// The open sockets of a ring at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// How many, by [`Phase`].
    pub by_phase: [u64; 4],
    /// How many, by age: below each of [`AGES_MS`], and older than all of them.
    pub by_age: [u64; AGES_MS.len() + 1],
    /// Buffers that hold bytes: received and not read, or not yet sent.
    pub buffers: u64,
    /// Those bytes.
    pub buffer_bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Sock {
    pub(super) generation: Generation,
    life: Life,
    /// Operations whose last completion is still to come.
    pub(super) pending: u16,
    receiving: Receiving,
    /// The inbox passed its mark: receive singly until the kernel has no more waiting.
    is_backlogged: bool,
    /// The last send was short or late: do not wait for the next one.
    pub(super) is_lagging: bool,
    /// What its owner is about, and since when it is open: for the census.
    pub(super) phase: Phase,
    opened_ms: u64,
    pub(super) is_expired: bool,
    is_connecting: bool,
    /// A file's bytes found no room: a poll for it is in flight.
    waits_for_room: bool,
    end: Option<End>,
    write_error: Option<i32>,
    inbox: Vec<u8>,
    sending: Sending,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
    pub(super) deadline: Option<Key>,
    pub(super) sent_bytes: u64,
    peer: Option<Box<SockAddr>>,
}

impl Sock {
    pub(super) fn open(&mut self, fd: OwnedFd, now_ms: u64) {
        *self = Sock { generation: self.generation, life: Life::Open(fd), opened_ms: now_ms, ..Sock::default() };
    }

    pub(super) fn is_open(&self, generation: Generation) -> bool {
        matches!(self.life, Life::Open(_)) && self.generation == generation
    }

    pub(super) fn is_in_use(&self) -> bool {
        matches!(self.life, Life::Open(_))
    }

    /// # Panics
    /// On a free slot.
    pub(super) fn raw_fd(&self) -> RawFd {
        match &self.life {
            Life::Open(fd) | Life::Closing(fd) => fd.as_raw_fd(),
            Life::Free => unreachable!("operations are made on open sockets only"),
        }
    }

    // ---- receiving -------------------------------------------------------------------------------

    /// Notes that a receive is submitted; says whether it is to be a multishot one.
    pub(super) fn arm_recv(&mut self) -> bool {
        debug_assert_eq!(self.receiving, Receiving::Idle);
        self.receiving = if self.is_backlogged { Receiving::Single } else { Receiving::Multishot };
        !self.is_backlogged
    }

    /// Whether a reader that found nothing has to submit a receive.
    pub(super) fn needs_recv(&self) -> bool {
        self.receiving == Receiving::Idle
            && self.end.is_none()
            && self.inbox.len() < INBOX_HIGH_BYTES
            && !self.is_connecting
    }

    pub(super) fn inbox_extend(&mut self, bytes: &[u8]) {
        if self.inbox.capacity() == 0 {
            self.inbox = take_buffer();
        }
        self.inbox.extend_from_slice(bytes);
    }

    pub(super) fn on_recv(&mut self, result: i32, has_more: bool, wakes: &mut Vec<Waker>) -> Recv {
        let was = self.receiving;
        if !has_more {
            self.receiving = Receiving::Idle;
        }
        match result {
            1.. => {
                if was == Receiving::Single && (result as usize) < RECV_BUFFER_BYTES {
                    self.is_backlogged = false;
                }
                wakes.extend(self.reader.take());
                if self.receiving == Receiving::Multishot && self.inbox.len() >= INBOX_HIGH_BYTES {
                    self.receiving = Receiving::Cancelling;
                    self.is_backlogged = true;
                    return Recv::Cancel;
                }
                Recv::Keep
            }
            0 => {
                self.end = Some(End::Eof);
                wakes.extend(self.reader.take());
                Recv::Keep
            }
            // Not an end: the shared buffers were all in use; by the next submission they are back.
            _ if result == -libc::ENOBUFS || result == -libc::EINTR => Recv::Rearm,
            _ if result == -libc::ECANCELED => {
                // A reader that drained the inbox while the cancellation was under way waits for bytes.
                if self.reader.is_some() && self.needs_recv() { Recv::Rearm } else { Recv::Keep }
            }
            _ => {
                self.end = Some(End::Error(-result));
                wakes.extend(self.reader.take());
                wakes.extend(self.writer.take());
                Recv::Keep
            }
        }
    }

    /// Moves what was received to the end of `into`. `None`: nothing yet.
    pub(super) fn read_into(&mut self, into: &mut Vec<u8>) -> Option<io::Result<usize>> {
        if !self.inbox.is_empty() {
            let len = self.inbox.len();
            if into.is_empty() {
                mem::swap(into, &mut self.inbox);
                give_buffer(mem::take(&mut self.inbox));
            } else {
                into.extend_from_slice(&self.inbox);
                give_buffer(mem::take(&mut self.inbox));
            }
            return Some(Ok(len));
        }
        self.ended()
    }

    /// Moves received bytes into a slice. `None`: nothing yet.
    pub(super) fn read_slice(&mut self, into: &mut [u8]) -> Option<io::Result<usize>> {
        if self.inbox.is_empty() {
            return self.ended();
        }
        let len = into.len().min(self.inbox.len());
        into[..len].copy_from_slice(&self.inbox[..len]);
        self.inbox.drain(..len);
        if self.inbox.is_empty() {
            give_buffer(mem::take(&mut self.inbox));
        }
        Some(Ok(len))
    }

    fn ended(&self) -> Option<io::Result<usize>> {
        match self.end? {
            End::Eof => Some(Ok(0)),
            End::Error(errno) => Some(Err(io::Error::from_raw_os_error(errno))),
        }
    }

    #[cfg(test)]
    pub(super) fn inbox_len(&self) -> usize {
        self.inbox.len()
    }

    pub(super) fn take_inbox(&mut self) -> Vec<u8> {
        mem::take(&mut self.inbox)
    }

    // ---- sending ---------------------------------------------------------------------------------

    /// Takes what is to be sent; the caller submits it.
    pub(super) fn start_send(&mut self, out: &mut Outgoing) {
        debug_assert!(!self.sending.is_in_flight, "one send at a time");
        mem::swap(&mut self.sending.out, out);
        self.sending.sent = 0;
        self.sending.is_in_flight = true;
    }

    /// The entry that sends what is left, and whether it is expected to complete at once.
    pub(super) fn send_entry(&mut self, fd: types::Fd, turn: u64) -> (squeue::Entry, bool) {
        let completes_at_once = !self.is_lagging && !self.is_connecting;
        let sending = &mut self.sending;
        sending.turn = turn;
        let more = if sending.out.is_continued { libc::MSG_MORE } else { 0 };
        let flags = libc::MSG_NOSIGNAL | more;
        let entry = if sending.out.is_contiguous() {
            let rest = &sending.out.buf[sending.sent..];
            let len = rest.len().min(i32::MAX as usize) as u32;
            opcode::Send::new(fd, rest.as_ptr(), len).flags(flags).build()
        } else {
            let vectors = sending.vectors.get_or_insert_with(|| Box::new(Vectors::new()));
            let header = vectors.fill(&sending.out, sending.sent);
            opcode::SendMsg::new(fd, header).flags(flags as u32).build()
        };
        (entry, completes_at_once)
    }

    /// Takes a send's completion in; says whether something is left to send.
    pub(super) fn on_send(&mut self, result: i32, turn: u64, wakes: &mut Vec<Waker>) -> bool {
        let sending = &mut self.sending;
        if result >= 0 {
            sending.sent += result as usize;
            self.sent_bytes += result as u64;
        }
        // Queued between two turns, it completes at best in the next one.
        let is_late = turn > sending.turn + 1;
        let is_interrupted = result == -libc::EINTR || result == -libc::EAGAIN;
        if result < 0 && !is_interrupted {
            self.write_error = Some(-result);
        } else if sending.sent < sending.out.len() {
            self.is_lagging = true;
            return true;
        }
        self.is_lagging = is_late;
        wakes.extend(self.writer.take());
        false
    }

    /// Ends a send that has no more to send: times the requests it answers, unless it failed, and frees its memory.
    pub(super) fn end_send(&mut self, is_sent: bool, at_ns: u64, service_times: &Batched) {
        let sending = &mut self.sending;
        sending.is_in_flight = false;
        if is_sent {
            sending.out.record_answered(at_ns, service_times);
        }
        give_buffer(mem::take(&mut sending.out.buf));
        sending.out.clear();
    }

    /// A request is answered whose last bytes were handed over before this was known.
    pub(super) fn note_answered(&mut self, since_ns: u64, now_ns: u64, service_times: &Batched) {
        match self.sending.is_in_flight {
            true => self.sending.out.note_answered(since_ns),
            false => service_times.record_many(now_ns.saturating_sub(since_ns), 1),
        }
    }

    /// Adds an open socket to a census.
    pub(super) fn count_in(&self, census: &mut Census, now_ms: u64) {
        if !self.is_in_use() {
            return;
        }
        let phase = match self.phase {
            Phase::Idle if self.sending.is_in_flight => Phase::Writing,
            phase => phase,
        };
        census.by_phase[phase as usize] += 1;
        let age_ms = now_ms.saturating_sub(self.opened_ms);
        let older_than = AGES_MS.iter().filter(|bound| age_ms >= **bound).count();
        census.by_age[older_than] += 1;
        let unsent = if self.sending.is_in_flight { self.sending.out.len() - self.sending.sent } else { 0 };
        census.buffers += u64::from(!self.inbox.is_empty()) + u64::from(unsent > 0);
        census.buffer_bytes += (self.inbox.len() + unsent) as u64;
    }

    /// Takes in how many bytes of a file the kernel took, of `len`; says whether to wait until it takes more.
    pub(super) fn on_send_file(&mut self, sent: usize, len: usize) -> bool {
        self.sent_bytes += sent as u64;
        self.waits_for_room = sent < len;
        self.waits_for_room
    }

    pub(super) fn on_room(&mut self, wakes: &mut Vec<Waker>) {
        self.waits_for_room = false;
        wakes.extend(self.writer.take());
    }

    /// `None`: a send is still in flight, or there is no room for another.
    pub(super) fn sent(&self) -> Option<io::Result<()>> {
        if let Some(errno) = self.write_error {
            return Some(Err(io::Error::from_raw_os_error(errno)));
        }
        (!self.sending.is_in_flight && !self.is_connecting && !self.waits_for_room).then_some(Ok(()))
    }

    // ---- connecting ------------------------------------------------------------------------------

    pub(super) fn start_connect(&mut self, address: SockAddr) {
        self.is_connecting = true;
        self.peer = Some(Box::new(address));
    }

    pub(super) fn connect_address(&self) -> (*const libc::sockaddr_storage, libc::socklen_t) {
        let address = self.peer.as_ref().expect("a connect was started");
        (address.as_ptr().cast(), address.len())
    }

    pub(super) fn on_connect(&mut self, result: i32, wakes: &mut Vec<Waker>) {
        self.is_connecting = false;
        if result < 0 {
            self.write_error = Some(-result);
            self.end = Some(End::Error(-result));
        }
        wakes.extend(self.writer.take());
        wakes.extend(self.reader.take());
    }

    // ---- the deadline and the end ----------------------------------------------------------------

    pub(super) fn expire(&mut self, wakes: &mut Vec<Waker>) {
        self.deadline = None;
        self.is_expired = true;
        wakes.extend(self.reader.take());
        wakes.extend(self.writer.take());
    }

    /// Marks the slot as closing and says which of its operations are to be cancelled.
    pub(super) fn begin_close(&mut self) -> [Option<Op>; 4] {
        if let Life::Open(fd) = mem::take(&mut self.life) {
            self.life = Life::Closing(fd);
        }
        self.reader = None;
        self.writer = None;
        give_buffer(mem::take(&mut self.inbox));
        let is_receiving = matches!(self.receiving, Receiving::Multishot | Receiving::Single);
        [
            is_receiving.then_some(Op::Recv),
            self.sending.is_in_flight.then_some(Op::Send),
            self.is_connecting.then_some(Op::Connect),
            self.waits_for_room.then_some(Op::Room),
        ]
    }

    /// Frees a closing slot; the caller closes the descriptor.
    pub(super) fn take_closing_fd(&mut self) -> Option<RawFd> {
        match mem::take(&mut self.life) {
            Life::Closing(fd) => {
                self.sending = Sending::default();
                self.peer = None;
                Some(fd.into_raw_fd())
            }
            other => {
                self.life = other;
                None
            }
        }
    }
}

impl Vectors {
    fn new() -> Self {
        // SAFETY: an all-zero msghdr is a valid, empty one.
        let header = unsafe { mem::zeroed() };
        Vectors { header, pieces: Vec::new() }
    }

    /// Points at what `out` has left after `skip` bytes, as far as one call takes it.
    fn fill(&mut self, out: &Outgoing, skip: usize) -> *const libc::msghdr {
        self.pieces.clear();
        self.pieces.extend(
            out.slices(skip)
                .take(SEND_VECTORS_MAX)
                .map(|piece| libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() }),
        );
        self.header.msg_iov = self.pieces.as_mut_ptr();
        self.header.msg_iovlen = self.pieces.len();
        &raw const self.header
    }
}
