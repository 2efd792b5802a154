//! Opening and reading beneath a directory: by the shard's ring, or, where there is none (tests in memory), blocking.

use crate::{
    limits::{FILE_FRESH_MS, FILE_TRIES_MAX},
    ring::{self, Ring},
};
use bytes::BytesMut;
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2},
    io::{ReadWriteFlags, pread, preadv2},
};
use std::{
    cell::{Cell, RefCell},
    ffi::CString,
    future::Future,
    io::{self, IoSliceMut},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Instant,
};

/// How files are read.
#[derive(Debug)]
pub(super) enum Disk {
    Ring(Ring),
    /// Since when its clock runs.
    Blocking(Instant),
}

/// Why something cannot be had.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing that is served has this name.
    Absent,
    /// It is there, and not for us.
    Forbidden,
    /// Descriptors or memory have run out: it may be better in a moment.
    Exhausted(io::Error),
    /// The disk, most likely.
    Broken(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            // EXDEV, ELOOP: a link out of the root, or one where none is allowed. ENXIO, ENODEV: a socket, a dead device.
            Some(
                libc::ENOENT
                | libc::ENOTDIR
                | libc::ENAMETOOLONG
                | libc::ELOOP
                | libc::EXDEV
                | libc::ENXIO
                | libc::ENODEV
                | libc::EILSEQ,
            ) => Failure::Absent,
            Some(libc::EACCES | libc::EPERM) => Failure::Forbidden,
            // EAGAIN: the directories above were renamed while the path was resolved, again and again.
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN) => Failure::Exhausted(error),
            _ => Failure::Broken(error),
        }
    }
}

/// What is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Open {
    /// Anything, to see what it is: of a FIFO or a device nobody notices.
    Look,
    /// What was looked at, a file to read. (Without `O_NONBLOCK`, for the ring's sake; what becomes a FIFO between the two
    /// looks holds up its own request. What becomes a terminal does not become ours.)
    Read,
    /// A directory to look into.
    List,
    /// A directory, to find things beneath it.
    Directory,
}

impl Open {
    fn flags(self) -> OFlags {
        OFlags::CLOEXEC
            | match self {
                Open::Look => OFlags::PATH,
                Open::Read => OFlags::RDONLY | OFlags::NOCTTY,
                Open::List => OFlags::RDONLY | OFlags::DIRECTORY,
                Open::Directory => OFlags::PATH | OFlags::DIRECTORY,
            }
    }
}

impl Disk {
    pub(super) fn new(ring: Option<&Ring>) -> Self {
        ring.map_or_else(|| Disk::Blocking(Instant::now()), |ring| Disk::Ring(ring.clone()))
    }

    /// Milliseconds on a clock of its own; on a shard as of the current turn.
    pub(super) fn now_ms(&self) -> u64 {
        match self {
            Disk::Ring(ring) => ring.now_ms(),
            Disk::Blocking(since) => since.elapsed().as_millis() as u64,
        }
    }

    async fn open(
        &self,
        beneath: &Rc<OwnedFd>,
        path: &[u8],
        what: Open,
        resolve: ResolveFlags,
    ) -> Result<Handle, Failure> {
        let path = CString::new(path).map_err(|_| Failure::Absent)?;
        let mut tries = 0;
        loop {
            tries += 1;
            let opened = match self {
                Disk::Ring(ring) => ring.open(beneath, path.clone(), what.flags(), resolve).await.map(Handle::Ring),
                Disk::Blocking(_) => openat2(beneath, &path, what.flags(), Mode::empty(), resolve)
                    .map(|fd| Handle::Blocking(Rc::new(fd)))
                    .map_err(io::Error::from),
            };
            match opened {
                // openat2(2): something above was renamed meanwhile, or a signal came.
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) && tries < FILE_TRIES_MAX => {}
                opened => return Ok(opened?),
            }
        }
    }

    /// Runs what blocks where it holds up no shard.
    pub(super) async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        match self {
            Disk::Ring(_) => glommio::executor().spawn_blocking(work).await,
            Disk::Blocking(_) => work(),
        }
    }
}

/// The directory that all is beneath.
#[derive(Debug)]
pub(super) struct Root {
    path: PathBuf,
    resolve: ResolveFlags,
    fd: RefCell<Rc<OwnedFd>>,
    opened_ms: Cell<u64>,
}

impl Root {
    /// # Errors
    /// It is no directory, or not ours to search.
    pub(super) fn open(path: &Path, follows_links: bool) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        // Not `open`, which seccomp profiles written today leave out, ours among them.
        let fd = openat(CWD, &path, Open::Directory.flags(), Mode::empty())?;
        let links = if follows_links { ResolveFlags::empty() } else { ResolveFlags::NO_SYMLINKS };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | links;
        Ok(Root { path, resolve, fd: RefCell::new(Rc::new(fd)), opened_ms: Cell::new(0) })
    }

    /// Opens what is beneath it; empty: itself.
    pub(super) async fn get(&self, disk: &Disk, path: &[u8], what: Open) -> Result<Handle, Failure> {
        let beneath = self.current(disk).await?;
        let path = if path.is_empty() { b"." } else { path };
        disk.open(&beneath, path, what, self.resolve).await
    }

    /// The directory that has its name now: a release is often put in place by renaming, or by a link.
    async fn current(&self, disk: &Disk) -> Result<Rc<OwnedFd>, Failure> {
        let now_ms = disk.now_ms();
        let known = self.fd.borrow().clone();
        if now_ms < self.opened_ms.get() + FILE_FRESH_MS {
            return Ok(known);
        }
        let path = self.path.as_os_str().as_bytes();
        let opened = disk.open(&known, path, Open::Directory, ResolveFlags::empty()).await?;
        let fd = opened.into_fd();
        self.opened_ms.set(now_ms);
        self.fd.replace(fd.clone());
        Ok(fd)
    }
}

/// Something that is open.
#[derive(Debug)]
pub(super) enum Handle {
    Ring(ring::File),
    Blocking(Rc<OwnedFd>),
}

impl Handle {
    /// What it is. A system call: the ring hands every statx to a worker, and an open file's state is in memory.
    pub(super) fn stat(&self) -> Result<Stat, Failure> {
        Ok(fstat(self).map_err(io::Error::from)?)
    }

    /// Begins to read at `offset`, as much as `into` has room for.
    pub(super) fn read(&self, offset: u64, mut into: BytesMut) -> Reading {
        match self {
            Handle::Ring(file) => Reading::Ring(file.read(offset, into)),
            Handle::Blocking(fd) => {
                let before = into.len();
                into.resize(into.capacity(), 0);
                let result = pread(fd, &mut into[before..], offset).map_err(io::Error::from);
                into.truncate(before + result.as_ref().map_or(0, |len| *len));
                Reading::Done(Some((result, into)))
            }
        }
    }

    /// Milliseconds on the shard's clock; `None`: there is no ring, and so no transport that sends files.
    pub(super) fn now_ms(&self) -> Option<u64> {
        match self {
            Handle::Ring(file) => Some(file.ring().now_ms()),
            Handle::Blocking(_) => None,
        }
    }

    /// Whether the byte at `offset` is in memory, on a file system that can tell (not: NFS, FUSE, tmpfs).
    pub(super) fn is_cached(&self, offset: u64) -> bool {
        let read = preadv2(self, &mut [IoSliceMut::new(&mut [0])], offset, ReadWriteFlags::NOWAIT);
        read.is_ok_and(|len| len > 0)
    }

    fn into_fd(self) -> Rc<OwnedFd> {
        match self {
            Handle::Ring(file) => file.into_fd(),
            Handle::Blocking(fd) => fd,
        }
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Handle::Ring(file) => file.as_fd(),
            Handle::Blocking(fd) => fd.as_fd(),
        }
    }
}

/// How many bytes a read brought, and the buffer with them behind what was in it.
#[derive(Debug)]
pub(super) enum Reading {
    Ring(ring::Reading),
    Done(Option<(io::Result<usize>, BytesMut)>),
}

impl Future for Reading {
    type Output = (io::Result<usize>, BytesMut);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Reading::Ring(reading) => Pin::new(reading).poll(cx),
            Reading::Done(result) => Poll::Ready(result.take().expect("not polled after it was ready")),
        }
    }
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    File,
    Directory,
    /// A FIFO, a device, a socket.
    Other,
}

pub(super) fn what(stat: &Stat) -> What {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => What::File,
        FileType::Directory => What::Directory,
        _ => What::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_by_what_the_kernel_says() {
        #[track_caller]
        fn check(errnos: &[i32], is_expected: impl Fn(&Failure) -> bool) {
            for errno in errnos {
                let failure = Failure::from(io::Error::from_raw_os_error(*errno));
                assert!(is_expected(&failure), "{errno}: {failure:?}");
            }
        }
        check(&[libc::ENOENT, libc::ENOTDIR, libc::ENAMETOOLONG, libc::ELOOP, libc::EXDEV, libc::ENXIO], |failure| {
            matches!(failure, Failure::Absent)
        });
        check(&[libc::EACCES, libc::EPERM], |failure| matches!(failure, Failure::Forbidden));
        check(&[libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN], |failure| {
            matches!(failure, Failure::Exhausted(_))
        });
        check(&[libc::EIO, libc::ESTALE, libc::EINVAL], |failure| matches!(failure, Failure::Broken(_)));
    }
}
