//! Files as futures of the ring: opened beneath a directory, read into memory the core owns meanwhile. Floor 3.
//!
//! What is in the page cache is read while the ring is entered; what is not, by the kernel's own workers, so that no
//! shard waits for a disk. Not for: writing, directories' contents, what a path may name (that is the caller's).

use super::{Ring, interest};
use bytes::BytesMut;
use io_uring::types::OpenHow;
use rustix::fs::{OFlags, ResolveFlags, fcntl_setfl};
use std::{
    ffi::CString,
    fmt,
    future::Future,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

/// An operation on a file, from its submission until its owner has taken the outcome. While it runs, the kernel reads
/// the path or fills the buffer; each has one completion, so that its slot needs no generation.
pub(super) struct Job {
    pub(super) errand: Errand,
    pub(super) state: State,
}

/// What an operation needs as long as it runs. Its descriptor stays open, too.
pub(super) enum Errand {
    Open { beneath: Rc<OwnedFd>, path: CString, how: Box<OpenHow> },
    Read { file: Rc<OwnedFd>, offset: u64, into: BytesMut },
}

pub(super) enum State {
    Running(Waker),
    /// What the completion said.
    Done(i32),
    /// Nobody waits for it any more.
    Abandoned,
}

/// A file that is open for reading. Dropping it closes it, once no read runs any more.
pub struct File {
    ring: Ring,
    fd: Option<Rc<OwnedFd>>,
}

impl Ring {
    /// Opens `path` beneath a directory, as openat2(2) does.
    pub fn open(&self, beneath: &Rc<OwnedFd>, path: CString, flags: OFlags, resolve: ResolveFlags) -> Opening {
        let how = OpenHow::new().flags(u64::from(flags.bits())).resolve(resolve.bits());
        let errand = Errand::Open { beneath: beneath.clone(), path, how: Box::new(how) };
        Opening(Pending::submit(self, errand))
    }
}

impl File {
    fn fd(&self) -> &Rc<OwnedFd> {
        self.fd.as_ref().expect("present until dropped")
    }

    /// Its descriptor alone: closing it is a system call then.
    pub fn into_fd(mut self) -> Rc<OwnedFd> {
        self.fd.take().expect("present until dropped")
    }

    /// Begins to read at `offset`, as many bytes as `into` has spare capacity for, behind what is in it.
    pub fn read(&self, offset: u64, into: BytesMut) -> Reading {
        let errand = Errand::Read { file: self.fd().clone(), offset, into };
        Reading { is_second: false, pending: Pending::submit(&self.ring, errand) }
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd().as_fd()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            self.ring.core().close_file(fd);
        }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("File").field(self.fd()).finish()
    }
}

/// A slot of the core that this side owns.
struct Pending {
    ring: Ring,
    slot: Option<u32>,
}

impl Pending {
    fn submit(ring: &Ring, errand: Errand) -> Self {
        let slot = ring.core().start_job(errand);
        Pending { ring: ring.clone(), slot: Some(slot) }
    }

    /// The errand and what its completion said. Not to be polled again after that.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Errand, i32)> {
        let slot = self.slot.expect("not polled after it was ready");
        let polled = self.ring.core().poll_job(slot, cx.waker());
        match polled {
            Poll::Ready(_) => self.slot = None,
            Poll::Pending => interest::note(),
        }
        polled
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.ring.core().abandon_job(slot);
        }
    }
}

/// The file, when it is open. Dropping this closes what may come yet.
#[must_use = "an opening does nothing unless awaited"]
pub struct Opening(Pending);

impl Future for Opening {
    type Output = io::Result<File>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready((_, result)) = self.0.poll(cx) else { return Poll::Pending };
        Poll::Ready(match result {
            0.. => {
                let fd = super::core::opened(result);
                Ok(File { ring: self.0.ring.clone(), fd: Some(Rc::new(fd)) })
            }
            _ => Err(io::Error::from_raw_os_error(-result)),
        })
    }
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opening")
    }
}

/// How many bytes a read brought, and the buffer with them. Dropping this leaves the buffer to the core until the
/// kernel has let go of it.
#[must_use = "a reading's bytes are lost unless it is awaited"]
pub struct Reading {
    /// The first try came back because the file was opened without waiting.
    is_second: bool,
    pending: Pending,
}

impl Future for Reading {
    type Output = (io::Result<usize>, BytesMut);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let Poll::Ready((errand, result)) = self.pending.poll(cx) else { return Poll::Pending };
            let Errand::Read { file, offset, into } = errand else { unreachable!("a read was submitted") };
            match result {
                0.. => {
                    self.pending.ring.core().close_file(file);
                    return Poll::Ready((Ok(result as usize), into));
                }
                // Some file systems (FUSE, NFS, overlays of old kernels) take O_NONBLOCK at its word instead of
                // leaving the read to a worker. It was there for the opening: what could block there is refused by now.
                _ if -result == libc::EAGAIN && !self.is_second => {
                    self.is_second = true;
                    let _ = fcntl_setfl(&*file, OFlags::empty()); // if it fails, so does the second read
                }
                _ if -result == libc::EINTR => {}
                _ => {
                    self.pending.ring.core().close_file(file);
                    return Poll::Ready((Err(io::Error::from_raw_os_error(-result)), into));
                }
            }
            self.pending = Pending::submit(&self.pending.ring, Errand::Read { file, offset, into });
        }
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reading")
    }
}
