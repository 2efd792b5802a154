//! Sockets of the ring as futures: the [`Transport`] services use, and futures-io for everybody else. Floor 3.

use super::{Inner, Ring, interest, token::Generation};
use crate::{
    http::{AddrBook, ConnAddrs, ConnInfo, PeerAddr},
    transport::{FileSent, Outgoing, Phase, Transport, take_buffer},
};
use futures_io::{AsyncRead, AsyncWrite};
use rustix::{
    fs::sendfile,
    io::{Errno, ioctl_fionbio, retry_on_intr},
};
use socket2::SockRef;
use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    ops::Range,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
    pin::Pin,
    task::{Context, Poll},
};

/// A connected stream socket (TCP or unix) of this shard's ring.
///
/// Dropping it cancels what is in flight and closes the descriptor once the kernel has let go of it; bytes
/// handed over but not yet sent may be lost. To end a stream in order: wait for
/// [`poll_sent`](Transport::poll_sent), call [`shutdown`](Transport::shutdown), read to the end, drop.
#[derive(Debug)]
pub struct Socket {
    ring: Ring,
    slot: u32,
    generation: Generation,
    fd: RawFd,
}

impl Socket {
    pub(super) fn new(ring: Ring, fd: OwnedFd) -> Self {
        let raw = fd.as_raw_fd();
        let (slot, generation) = ring.core().adopt(fd);
        Socket { ring, slot, generation, fd: raw }
    }

    /// Starts to connect `fd` to `address`.
    pub(super) async fn connect(ring: Ring, fd: OwnedFd, address: socket2::SockAddr) -> io::Result<Self> {
        let socket = Socket::new(ring, fd);
        socket.ring.core().sock(socket.slot).start_connect(address);
        socket.ring.core().submit_connect(socket.slot);
        let mut socket = socket;
        poll_fn(|cx| socket.poll_sent(cx)).await?;
        Ok(socket)
    }

    /// The descriptor, for options and addresses. Never read, written or closed through this.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the slot keeps the descriptor open as long as this Socket lives.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// The peer's address; none on a unix socket. A system call.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        SockRef::from(&self.as_fd()).peer_addr().ok()?.as_socket()
    }

    /// Our address on this connection; none on a unix socket. A system call.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        SockRef::from(&self.as_fd()).local_addr().ok()?.as_socket()
    }

    /// Whether bytes that were handed over are not all with the kernel.
    pub(crate) fn is_sending(&self) -> bool {
        self.ring.core().sock(self.slot).sent().is_none()
    }

    /// Moves received bytes into `into`; `Ok(0)`: the peer sent its end.
    fn poll_recv<R>(
        &mut self,
        cx: &mut Context<'_>,
        read: impl FnOnce(&mut super::sock::Sock) -> Option<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        let mut core = self.ring.core();
        let sock = core.sock(self.slot);
        debug_assert!(sock.is_open(self.generation));
        if let Some(result) = read(sock) {
            return Poll::Ready(result);
        }
        keep_waker(&mut sock.reader, cx);
        if sock.needs_recv() {
            core.arm_recv(self.slot);
        }
        interest::note();
        Poll::Pending
    }
}

/// sendfile(2) that does not wait for the peer. It asks the descriptor whether to wait, and there is no flag for one call;
/// but the ring's operations want a descriptor that waits, or they fail where they should poll.
fn send_file_now(socket: BorrowedFd<'_>, file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<usize, Errno> {
    ioctl_fionbio(socket, true)?;
    let mut offset = offset;
    let sent = retry_on_intr(|| sendfile(socket, file, Some(&mut offset), len));
    ioctl_fionbio(socket, false)?;
    sent
}

fn keep_waker(slot: &mut Option<std::task::Waker>, cx: &mut Context<'_>) {
    match slot {
        Some(waker) if waker.will_wake(cx.waker()) => {}
        _ => *slot = Some(cx.waker().clone()),
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.ring.core().close(self.slot);
    }
}

impl Transport for Socket {
    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        self.poll_recv(cx, |sock| sock.read_into(into))
    }

    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut core = self.ring.core();
        let sock = core.sock(self.slot);
        if let Some(result) = sock.sent() {
            return Poll::Ready(result);
        }
        keep_waker(&mut sock.writer, cx);
        interest::note();
        Poll::Pending
    }

    fn send(&mut self, out: &mut Outgoing) {
        if out.is_empty() {
            return;
        }
        let mut core = self.ring.core();
        core.sock(self.slot).start_send(out);
        core.submit_send(self.slot);
    }

    fn send_file(&mut self, file: BorrowedFd<'_>, range: Range<u64>) -> Option<io::Result<FileSent>> {
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let result = send_file_now(self.as_fd(), file, range.start, len);
        let sent = match result {
            Ok(0) => FileSent::Ended,
            Ok(sent) => FileSent::Bytes(sent),
            Err(Errno::AGAIN) => FileSent::Full,
            // A file that cannot be mapped; a seccomp profile that has no sendfile.
            Err(Errno::INVAL | Errno::NOSYS | Errno::PERM | Errno::OPNOTSUPP) => return None,
            Err(errno) => return Some(Err(errno.into())),
        };
        match sent {
            FileSent::Bytes(sent) => self.ring.core().note_sent_file(self.slot, sent, len),
            FileSent::Full => self.ring.core().note_sent_file(self.slot, 0, len),
            FileSent::Ended => {}
        }
        Some(Ok(sent))
    }

    fn shutdown(&mut self) {
        // A system call, since the ring would hand it to a worker thread. It fails only when the peer is gone.
        let _ = SockRef::from(&self.as_fd()).shutdown(std::net::Shutdown::Write);
    }

    fn sent_bytes(&self) -> u64 {
        self.ring.core().sock(self.slot).sent_bytes
    }

    fn now_ms(&self) -> u64 {
        self.ring.now_ms()
    }

    fn now_ns(&self) -> u64 {
        self.ring.now_ns()
    }

    fn note_answered(&mut self, since_ns: u64) {
        self.ring.core().note_answered(self.slot, since_ns);
    }

    fn set_phase(&mut self, phase: Phase) {
        self.ring.core().sock(self.slot).phase = phase;
    }

    fn set_deadline(&mut self, at_ms: u64) {
        self.ring.core().set_deadline(self.slot, at_ms);
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut core = self.ring.core();
        let sock = core.sock(self.slot);
        if sock.is_expired {
            return Poll::Ready(());
        }
        keep_waker(&mut sock.reader, cx);
        Poll::Pending
    }

    fn conn_info(&self) -> ConnInfo {
        ConnInfo::looked_up(self.ring.0.clone(), u64::from(self.slot) << 32 | u64::from(self.generation))
    }
}

/// Keys are slot and generation: a request may outlive its connection, and the slot may be another's by then.
impl AddrBook for Inner {
    fn addrs(&self, key: u64) -> ConnAddrs {
        let fd = match self.core.borrow_mut().sock((key >> 32) as u32) {
            sock if sock.is_open(key as Generation) => sock.raw_fd(),
            _ => return ConnAddrs::default(),
        };
        // SAFETY: the slot is open in the same generation, so the descriptor is, and nothing here closes it.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let end = |address: io::Result<socket2::SockAddr>| match address {
            Ok(address) if address.is_unix() => Some(PeerAddr::Unix),
            Ok(address) => address.as_socket().map(PeerAddr::Ip),
            Err(_) => None,
        };
        let socket = SockRef::from(&fd);
        ConnAddrs { peer: end(socket.peer_addr()), local: end(socket.local_addr()) }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_recv(cx, |sock| sock.read_slice(buf))
    }
}

impl AsyncWrite for Socket {
    /// Takes all of `buf` once nothing is in flight; the bytes are copied.
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.poll_sent(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        }
        let mut out = Outgoing::default();
        out.buf = take_buffer();
        out.buf.extend_from_slice(buf);
        self.send(&mut out);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_sent(cx)
    }

    /// Sends the end of the stream once everything written was sent.
    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.poll_sent(cx) {
            Poll::Ready(Ok(())) => {
                self.shutdown();
                Poll::Ready(Ok(()))
            }
            other => other,
        }
    }
}
