//! Accepting: one multishot accept a listener. Floor 3.

use super::{
    Ring,
    clock::tcp_info,
    core::{Core, Listen},
    interest,
};
use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    os::fd::{AsRawFd, OwnedFd},
    task::Poll,
};

/// Connections that wait to be accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptQueue {
    /// How many do.
    pub waiting: u64,
    /// How many may: more are refused, or have to try again.
    pub room: u64,
}

impl Core {
    /// TCP only: what waits at a unix socket is not told so cheaply.
    pub(super) fn accept_queue(&self) -> AcceptQueue {
        let mut queue = AcceptQueue::default();
        for (_, listen) in &self.listens {
            let Ok(info) = tcp_info(&listen.fd) else { continue };
            // Of a listening socket the kernel tells its queue in these two fields (net/ipv4/tcp.c, tcp_get_info).
            queue.waiting += u64::from(info.tcpi_unacked);
            queue.room += u64::from(info.tcpi_sacked);
        }
        queue
    }
}

/// A listening socket of this shard's ring.
#[derive(Debug)]
pub struct Listener {
    ring: Ring,
    slot: u32,
}

impl Listener {
    pub(super) fn new(ring: Ring, fd: OwnedFd) -> Self {
        let listen =
            Listen { fd, accepted: VecDeque::new(), failed: None, is_armed: false, is_dropped: false, waker: None };
        let slot = ring.core().listens.insert(listen) as u32;
        Listener { ring, slot }
    }

    /// The next connection. Dropping the future loses nothing.
    ///
    /// # Errors
    /// What accepting failed with, EMFILE for one. Calling again tries again; wait a moment before that.
    pub async fn accept(&self) -> io::Result<OwnedFd> {
        poll_fn(|cx| {
            let mut core = self.ring.core();
            let listen = &mut core.listens[self.slot as usize];
            if let Some(fd) = listen.accepted.pop_front() {
                return Poll::Ready(Ok(fd));
            }
            if let Some(errno) = listen.failed.take() {
                return Poll::Ready(Err(io::Error::from_raw_os_error(errno)));
            }
            listen.waker = Some(cx.waker().clone());
            if !listen.is_armed {
                core.arm_accept(self.slot);
            }
            interest::note();
            Poll::Pending
        })
        .await
    }

    /// Stops accepting and closes the listener; returns the connections that had arrived by then, those still
    /// in the kernel's queue included.
    pub async fn close(self) -> Vec<OwnedFd> {
        self.ring.core().cancel_accept(self.slot);
        poll_fn(|cx| {
            let mut core = self.ring.core();
            let listen = &mut core.listens[self.slot as usize];
            if !listen.is_armed {
                return Poll::Ready(());
            }
            listen.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        let mut core = self.ring.core();
        let listen = &mut core.listens[self.slot as usize];
        let mut arrived: Vec<OwnedFd> = listen.accepted.drain(..).collect();
        let raw = listen.fd.as_raw_fd();
        loop {
            // SAFETY: no address is asked for; the listener is open, and it is set non-blocking below.
            let fd = unsafe {
                libc::fcntl(raw, libc::F_SETFL, libc::O_NONBLOCK);
                libc::accept4(raw, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC)
            };
            if fd < 0 {
                break;
            }
            // SAFETY: a non-negative result is a new descriptor that nobody else owns.
            arrived.push(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) });
        }
        arrived
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.ring.core().drop_listen(self.slot);
    }
}
