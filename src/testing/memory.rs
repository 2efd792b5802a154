//! A connection in memory: the service has one end as a [`Transport`], a test holds the other. Imports from floor 3 down.
//!
//! Nothing happens by itself. Bytes move and sends complete between two polls of the service, in [`Wire::run`], as
//! they do in the shard's ring between two runs of a task; time passes in [`Peer::advance`]. The service is polled
//! when it was woken and not otherwise, so that a forgotten waker shows as silence. No threads, no executor, no clock.
//!
//! ```
//! use everycore::{testing::memory::Wire, transport::{Outgoing, Transport}};
//! use std::future::poll_fn;
//!
//! let mut wire = Wire::new(|mut io| async move {
//!     let mut input = Vec::new();
//!     while let Ok(1..) = poll_fn(|cx| io.poll_read(cx, &mut input)).await {
//!         if poll_fn(|cx| io.poll_sent(cx)).await.is_err() {
//!             return;
//!         }
//!         let mut out = Outgoing::default();
//!         out.buf.append(&mut input);
//!         io.send(&mut out);
//!     }
//! });
//! wire.send(b"hello");
//! wire.run();
//! assert_eq!(wire.take_received(), b"hello");
//! wire.end();
//! wire.run();
//! assert!(wire.is_closed());
//! ```

use crate::{
    http::{ConnAddrs, ConnInfo, PeerAddr},
    limits::{INBOX_HIGH_BYTES, TEST_READ_BYTES_MAX, TEST_TURNS_MAX},
    transport::{Outgoing, Transport},
};
use std::{
    cell::{RefCell, RefMut},
    future::Future,
    io,
    net::{Ipv4Addr, SocketAddr},
    ops::Deref,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
};

/// Both ends of a new connection. [`Wire`] is usually what you want.
pub fn pair() -> (Peer, Memory) {
    let state = Rc::new(RefCell::new(State {
        now_ms: 0,
        deadline_ms: u64::MAX,
        is_expired: false,
        inbox: Vec::new(),
        inbox_at: 0,
        read_bytes_max: TEST_READ_BYTES_MAX,
        end: None,
        sending: None,
        is_broken: false,
        sends: 0,
        sent_bytes: 0,
        window_bytes: usize::MAX,
        received: Vec::new(),
        closing: Closing::Open,
        reader: None,
        writer: None,
        addrs: ConnAddrs {
            peer: Some(PeerAddr::Ip(SocketAddr::from((Ipv4Addr::LOCALHOST, 50_000)))),
            local: Some(PeerAddr::Ip(SocketAddr::from((Ipv4Addr::LOCALHOST, 80)))),
        },
    }));
    (Peer(state.clone()), Memory(state))
}

struct State {
    now_ms: u64,
    deadline_ms: u64,
    is_expired: bool,
    /// From the peer; those before `inbox_at` were read.
    inbox: Vec<u8>,
    inbox_at: usize,
    read_bytes_max: usize,
    end: Option<End>,
    /// The send on its way, and how much of it has left.
    sending: Option<(Vec<u8>, usize)>,
    /// A send met a reset.
    is_broken: bool,
    sends: u64,
    sent_bytes: u64,
    window_bytes: usize,
    received: Vec<u8>,
    closing: Closing,
    reader: Option<Waker>,
    writer: Option<Waker>,
    addrs: ConnAddrs,
}

/// How the peer's stream ended.
#[derive(Clone, Copy)]
enum End {
    Finished,
    Reset,
}

/// How far the service's end is from closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// It may still send.
    Open,
    /// It has sent its end and may still read.
    Shut,
    /// It was dropped, with all that was received read and all that was sent gone out.
    Closed,
    /// It was dropped over bytes it had not read or sent: TCP would send a reset, which can destroy what is on its way.
    Cut,
}

impl State {
    fn unread(&self) -> usize {
        self.inbox.len() - self.inbox_at
    }

    /// Moves what the window takes of the send on its way.
    fn turn(&mut self) -> Option<Waker> {
        let (bytes, at) = self.sending.as_mut()?;
        if matches!(self.end, Some(End::Reset)) {
            self.is_broken = true;
        } else {
            let len = (bytes.len() - *at).min(self.window_bytes);
            self.received.extend_from_slice(&bytes[*at..*at + len]);
            *at += len;
            self.sent_bytes += len as u64;
            if self.window_bytes != usize::MAX {
                self.window_bytes -= len;
            }
            if *at < bytes.len() {
                return None;
            }
        }
        self.sending = None;
        self.writer.take()
    }
}

/// The test's end.
#[derive(Clone)]
pub struct Peer(Rc<RefCell<State>>);

impl Peer {
    fn state(&self) -> RefMut<'_, State> {
        self.0.borrow_mut()
    }

    /// Sends `bytes`: the service can read them at once.
    pub fn send(&self, bytes: impl AsRef<[u8]>) {
        let mut state = self.state();
        assert!(state.end.is_none(), "nothing follows the end of a stream");
        state.inbox.extend_from_slice(bytes.as_ref());
        if state.closing == Closing::Closed && !bytes.as_ref().is_empty() {
            state.closing = Closing::Cut;
        }
        wake(state.reader.take());
    }

    /// Has the service read at most `bytes_max` bytes at once; 1 for byte by byte.
    pub fn set_read_bytes_max(&self, bytes_max: usize) {
        self.state().read_bytes_max = bytes_max.max(1);
    }

    /// Sends the end of the stream; what the service sends still arrives.
    pub fn end(&self) {
        self.finish(End::Finished);
    }

    /// Breaks the connection: what was received can still be read, then reads fail, and so does every send.
    pub fn reset(&self) {
        self.finish(End::Reset);
        wake(self.0.borrow_mut().writer.take());
    }

    fn finish(&self, end: End) {
        let mut state = self.state();
        state.end = Some(end);
        wake(state.reader.take());
    }

    /// Takes `bytes` more of what the service sends, and then nothing; `usize::MAX` (as at first): all.
    pub fn set_window(&self, bytes: usize) {
        self.state().window_bytes = bytes;
    }

    /// Lets time pass; a deadline that is reached wakes the service.
    pub fn advance(&self, ms: u64) {
        let mut state = self.state();
        state.now_ms += ms;
        if state.now_ms >= state.deadline_ms {
            state.deadline_ms = u64::MAX;
            state.is_expired = true;
            let wakers = [state.reader.take(), state.writer.take()];
            drop(state);
            wakers.into_iter().for_each(wake);
        }
    }

    /// Milliseconds since the connection was made.
    pub fn now_ms(&self) -> u64 {
        self.state().now_ms
    }

    /// Wakes the service if it waits for bytes, as a shard does when it begins to drain.
    pub fn wake(&self) {
        let reader = self.state().reader.take();
        wake(reader);
    }

    /// What the service sent and was not taken here before.
    pub fn take_received(&self) -> Vec<u8> {
        std::mem::take(&mut self.state().received)
    }

    /// Bytes that [`take_received`](Self::take_received) would give.
    pub fn received_bytes(&self) -> usize {
        self.state().received.len()
    }

    /// Bytes the service was sent and has not read.
    pub fn unread_bytes(&self) -> usize {
        self.state().unread()
    }

    /// Bytes the service handed over that the window does not take.
    pub fn unsent_bytes(&self) -> usize {
        self.state().sending.as_ref().map_or(0, |(bytes, at)| bytes.len() - at)
    }

    /// How often the service sent: system calls, in life.
    pub fn sends(&self) -> u64 {
        self.state().sends
    }

    /// How far the service's end is from closed.
    pub fn closing(&self) -> Closing {
        self.state().closing
    }

    /// Whether no more will come: the service sent its end or was dropped.
    pub fn is_ended(&self) -> bool {
        self.closing() != Closing::Open
    }

    /// Whether the service dropped its end.
    pub fn is_closed(&self) -> bool {
        matches!(self.closing(), Closing::Closed | Closing::Cut)
    }

    /// The addresses that the service is told.
    pub fn set_addrs(&self, addrs: ConnAddrs) {
        self.state().addrs = addrs;
    }

    /// What the kernel does between two runs of a task; says whether anything moved.
    fn turn(&self) -> bool {
        let mut state = self.state();
        let before = (state.sent_bytes, state.sending.is_some());
        let writer = state.turn();
        let has_moved = before != (state.sent_bytes, state.sending.is_some());
        drop(state);
        wake(writer);
        has_moved
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.0.borrow();
        f.debug_struct("Peer").field("now_ms", &state.now_ms).field("closing", &state.closing).finish_non_exhaustive()
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The service's end.
#[derive(Debug)]
pub struct Memory(Rc<RefCell<State>>);

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("closing", &self.closing).finish_non_exhaustive()
    }
}

impl Transport for Memory {
    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        let state = &mut *self.0.borrow_mut();
        let len = state.unread().min(state.read_bytes_max);
        if len > 0 {
            into.extend_from_slice(&state.inbox[state.inbox_at..state.inbox_at + len]);
            state.inbox_at += len;
            if state.unread() == 0 || state.inbox_at >= INBOX_HIGH_BYTES {
                state.inbox.drain(..state.inbox_at);
                state.inbox_at = 0;
            }
            return Poll::Ready(Ok(len));
        }
        match state.end {
            Some(End::Finished) => Poll::Ready(Ok(0)),
            Some(End::Reset) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            None => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = &mut *self.0.borrow_mut();
        if state.is_broken {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if state.sending.is_none() {
            return Poll::Ready(Ok(()));
        }
        state.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    fn send(&mut self, out: &mut Outgoing) {
        let state = &mut *self.0.borrow_mut();
        assert!(state.sending.is_none(), "a service sends only when poll_sent was ready");
        assert!(state.closing == Closing::Open, "a service sends nothing after the end of its stream");
        if out.is_empty() {
            return;
        }
        let bytes: Vec<u8> = out.slices(0).flatten().copied().collect();
        out.clear();
        state.sending = Some((bytes, 0));
        state.sends += 1;
    }

    fn shutdown(&mut self) {
        let state = &mut *self.0.borrow_mut();
        assert!(state.sending.is_none(), "a service ends its stream when all was sent");
        state.closing = Closing::Shut;
    }

    fn sent_bytes(&self) -> u64 {
        self.0.borrow().sent_bytes
    }

    fn now_ms(&self) -> u64 {
        self.0.borrow().now_ms
    }

    fn set_deadline(&mut self, at_ms: u64) {
        let state = &mut *self.0.borrow_mut();
        state.deadline_ms = at_ms;
        state.is_expired = at_ms <= state.now_ms;
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let state = &mut *self.0.borrow_mut();
        if state.is_expired {
            return Poll::Ready(());
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn conn_info(&self) -> ConnInfo {
        ConnInfo::known(self.0.borrow().addrs)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        let is_cut = state.unread() > 0 || state.sending.is_some();
        state.closing = if is_cut { Closing::Cut } else { Closing::Closed };
        state.sending = None;
        (state.reader, state.writer) = (None, None);
    }
}

/// A connection and the service that runs on it. Everything of [`Peer`]'s is its own.
pub struct Wire {
    peer: Peer,
    /// Until it ends.
    service: Option<Pin<Box<dyn Future<Output = ()>>>>,
    alarm: Arc<Alarm>,
}

/// Notes that somebody was woken, by whatever thread.
pub(super) struct Alarm {
    is_woken: AtomicBool,
    thread: Thread,
}

impl Alarm {
    /// One that has gone off: there is something to do at first.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Alarm { is_woken: AtomicBool::new(true), thread: std::thread::current() })
    }

    /// Whether it went off since the last [`take`](Self::take).
    pub(super) fn is_woken(&self) -> bool {
        self.is_woken.load(Ordering::Acquire)
    }

    pub(super) fn take(&self) -> bool {
        self.is_woken.swap(false, Ordering::Acquire)
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Wire {
    /// A new connection, served by `serve`, which has not begun.
    pub fn new<F: Future<Output = ()> + 'static>(serve: impl FnOnce(Memory) -> F) -> Self {
        let (peer, memory) = pair();
        Wire { peer, service: Some(Box::pin(serve(memory))), alarm: Alarm::new() }
    }

    /// Runs the service until it waits for the peer, for time or for something else. Says whether it is still there.
    ///
    /// # Panics
    /// If the service does, or when it wakes itself without end.
    pub fn run(&mut self) -> bool {
        for _ in 0..TEST_TURNS_MAX {
            if !self.step() && !self.peer.turn() {
                return self.service.is_some();
            }
        }
        panic!("the service wakes itself without end");
    }

    /// Polls the service if it was woken.
    fn step(&mut self) -> bool {
        let Some(service) = &mut self.service else { return false };
        if !self.alarm.take() {
            return false;
        }
        let waker = Waker::from(self.alarm.clone());
        if service.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            self.service = None;
        }
        true
    }

    /// Whether the service was woken since it was last polled.
    pub fn is_woken(&self) -> bool {
        self.alarm.is_woken()
    }

    /// Drops the service where it stands, as a shard does that ends.
    pub fn stop(&mut self) {
        self.service = None;
    }
}

impl Deref for Wire {
    type Target = Peer;

    fn deref(&self) -> &Peer {
        &self.peer
    }
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("peer", &self.peer).field("is_running", &self.service.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noop() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    fn outgoing(bytes: &[u8]) -> Outgoing {
        let mut out = Outgoing::default();
        out.buf.extend_from_slice(bytes);
        out
    }

    #[test]
    fn reads_are_as_short_as_asked_for_and_end_in_order() {
        let (peer, mut io) = pair();
        let mut into = Vec::new();
        assert!(io.poll_read(&mut noop(), &mut into).is_pending());
        peer.send(b"abc");
        peer.set_read_bytes_max(2);
        for len in [2, 1] {
            assert!(matches!(io.poll_read(&mut noop(), &mut into), Poll::Ready(Ok(n)) if n == len));
        }
        peer.end();
        assert!(matches!(io.poll_read(&mut noop(), &mut into), Poll::Ready(Ok(0))));
        assert_eq!(into, b"abc");
        peer.reset();
        assert!(matches!(io.poll_read(&mut noop(), &mut into), Poll::Ready(Err(_))));
    }

    #[test]
    fn window_holds_a_send_up_until_it_opens() {
        let (peer, mut io) = pair();
        peer.set_window(3);
        io.send(&mut outgoing(b"hello"));
        assert!(io.poll_sent(&mut noop()).is_pending(), "no send is complete before the next turn");
        assert!(peer.turn() && !peer.turn());
        assert!(io.poll_sent(&mut noop()).is_pending());
        assert_eq!((peer.take_received(), io.sent_bytes(), peer.unsent_bytes()), (b"hel".to_vec(), 3, 2));
        peer.set_window(2);
        assert!(peer.turn());
        assert!(io.poll_sent(&mut noop()).is_ready());
        assert_eq!((peer.take_received(), peer.sends()), (b"lo".to_vec(), 1));
    }

    #[test]
    fn reset_fails_the_send_on_its_way() {
        let (peer, mut io) = pair();
        io.send(&mut outgoing(b"hello"));
        peer.reset();
        assert!(peer.turn());
        assert!(matches!(io.poll_sent(&mut noop()), Poll::Ready(Err(_))));
        assert!(peer.take_received().is_empty());
    }

    #[test]
    fn deadline_passes_at_its_millisecond() {
        let mut wire = Wire::new(|mut io| async move {
            io.set_deadline(10);
            std::future::poll_fn(|cx| io.poll_deadline(cx)).await;
        });
        assert!(wire.run());
        wire.advance(9);
        assert!(wire.run());
        wire.advance(1);
        assert!(!wire.run());
        assert_eq!(wire.closing(), Closing::Closed);
    }

    #[test]
    fn closing_over_unread_or_unsent_bytes_is_a_cut() {
        for (sends, receives, expected) in
            [(false, false, Closing::Closed), (true, false, Closing::Cut), (false, true, Closing::Cut)]
        {
            let (peer, mut io) = pair();
            if sends {
                io.send(&mut outgoing(b"x"));
            }
            if receives {
                peer.send(b"x");
            }
            drop(io);
            assert_eq!(peer.closing(), expected);
        }
    }

    #[test]
    fn service_is_polled_only_when_woken() {
        let polls = Rc::new(std::cell::Cell::new(0));
        let counted = polls.clone();
        let mut wire = Wire::new(|io| async move {
            let _io = io;
            std::future::poll_fn(|_| {
                counted.set(counted.get() + 1);
                Poll::<()>::Pending
            })
            .await;
        });
        wire.run();
        wire.send(b"nobody reads");
        wire.run();
        assert_eq!(polls.get(), 1);
        wire.alarm.wake_by_ref();
        assert!(wire.is_woken());
        wire.run();
        assert_eq!(polls.get(), 2);
        wire.stop();
        assert!(wire.is_closed());
    }
}
