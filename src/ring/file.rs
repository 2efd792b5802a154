//! Files as futures of the ring: opened beneath a directory, read into memory the core owns meanwhile. Floor 3.
//!
//! What is in the page cache is read while the ring is entered; what is not, by the kernel's own workers, so that no
//! shard waits for a disk. Not for: writing, directories' contents, what a path may name (that is the caller's).

use super::{Ring, interest};
use bytes::BytesMut;
use io_uring::types::OpenHow;
use rustix::fs::{OFlags, ResolveFlags};
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
    ///
    /// Not with `O_NONBLOCK` what is to be read: the ring then takes every file system for one that reads without
    /// blocking, and one that does not (NFS, FUSE, overlays) would block this thread instead of a worker.
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

    /// The ring that it is read by.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Its descriptor alone: closing it is a system call then.
    pub fn into_fd(mut self) -> Rc<OwnedFd> {
        self.fd.take().expect("present until dropped")
    }

    /// Begins to read at `offset`, as many bytes as `into` has spare capacity for, behind what is in it.
    pub fn read(&self, offset: u64, into: BytesMut) -> Reading {
        let errand = Errand::Read { file: self.fd().clone(), offset, into };
        Reading(Pending::submit(&self.ring, errand))
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
pub struct Reading(Pending);

impl Future for Reading {
    type Output = (io::Result<usize>, BytesMut);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let Poll::Ready((errand, result)) = self.0.poll(cx) else { return Poll::Pending };
            let Errand::Read { file, offset, into } = errand else { unreachable!("a read was submitted") };
            if -result == libc::EINTR {
                self.0 = Pending::submit(&self.0.ring, Errand::Read { file, offset, into });
                continue;
            }
            self.0.ring.core().close_file(file);
            let read = if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as usize) };
            return Poll::Ready((read, into));
        }
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reading")
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::shard, *};
    use rustix::fs::Mode;
    use std::{fs, path::Path};

    const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);

    fn directory(path: &Path) -> Rc<OwnedFd> {
        Rc::new(rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap())
    }

    fn open(ring: &Ring, beneath: &Rc<OwnedFd>, path: &str) -> Opening {
        ring.open(beneath, CString::new(path).unwrap(), READ, ResolveFlags::BENEATH)
    }

    /// Files of this process that are open beneath `path`.
    fn open_files(path: &Path) -> usize {
        let links = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        links.filter(|link| link.starts_with(path) && link != path).count()
    }

    #[test]
    fn file_is_read_in_pieces_up_to_its_end() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a"), "0123456789").unwrap();
        let path = root.path().to_owned();
        shard(move |ring| async move {
            let beneath = directory(&path);
            let file = open(&ring, &beneath, "a").await.unwrap();
            let mut buffer = BytesMut::with_capacity(6);
            buffer.extend_from_slice(b">>");
            let (result, buffer) = file.read(3, buffer).await;
            assert_eq!((result.unwrap(), &buffer[..], buffer.capacity()), (4, &b">>3456"[..], 6));
            let (result, buffer) = file.read(8, BytesMut::with_capacity(100)).await;
            assert_eq!((result.unwrap(), &buffer[..]), (2, &b"89"[..]));
            let (result, buffer) = file.read(10, BytesMut::with_capacity(100)).await;
            assert_eq!((result.unwrap(), buffer.len()), (0, 0));
            // Two at once, taken in the other order.
            let (first, second) = (file.read(0, BytesMut::with_capacity(1)), file.read(1, BytesMut::with_capacity(1)));
            assert_eq!((&second.await.1[..], &first.await.1[..]), (&b"1"[..], &b"0"[..]));
            // A reading outlives its file.
            let reading = file.read(9, BytesMut::with_capacity(5));
            drop(file);
            assert_eq!(&reading.await.1[..], b"9");
        });
        assert_eq!(open_files(root.path()), 0);
    }

    #[test]
    fn what_cannot_be_opened_or_read_says_why() {
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.path().join("out")).unwrap();
        let path = root.path().to_owned();
        shard(move |ring| async move {
            let beneath = directory(&path);
            let errno = |result: io::Result<File>| result.unwrap_err().raw_os_error().unwrap();
            assert_eq!(errno(open(&ring, &beneath, "nope").await), libc::ENOENT);
            assert_eq!(errno(open(&ring, &beneath, "..").await), libc::EXDEV);
            assert_eq!(errno(open(&ring, &beneath, "out").await), libc::EXDEV);
            let itself = open(&ring, &beneath, ".").await.unwrap();
            let (result, _) = itself.read(0, BytesMut::with_capacity(1)).await;
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EISDIR));
        });
    }

    #[test]
    fn what_nobody_waits_for_is_closed_and_freed() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a"), vec![7; 1 << 20]).unwrap();
        let path = root.path().to_owned();
        shard(move |ring| async move {
            let beneath = directory(&path);
            let file = open(&ring, &beneath, "a").await.unwrap();
            for _ in 0..100 {
                // Dropped before and after its completion, and with its file still open or not.
                drop(open(&ring, &beneath, "a"));
                drop(file.read(0, BytesMut::with_capacity(1 << 20)));
                let late = (open(&ring, &beneath, "a"), file.read(0, BytesMut::with_capacity(10)));
                let (result, _) = file.read(5, BytesMut::with_capacity(1)).await;
                assert_eq!(result.unwrap(), 1);
                drop(late);
            }
            drop(file);
            while !ring.core().jobs.is_empty() || open_files(&path) > 0 {
                ring.sleep(std::time::Duration::from_millis(1)).await;
            }
            // The shard ends with these in flight.
            let file = open(&ring, &beneath, "a").await.unwrap();
            let ends = (open(&ring, &beneath, "a"), file.read(0, BytesMut::with_capacity(1 << 20)));
            ring.spawn(async move {
                std::future::pending::<()>().await;
                drop((file, ends));
            });
        });
        assert_eq!(open_files(root.path()), 0);
    }

    #[test]
    fn file_system_without_asynchronous_reads_is_read_all_the_same() {
        // A worker of the kernel's reads /proc.
        let (result, text) = shard(|ring| async move {
            let file = open(&ring, &directory(Path::new("/proc")), "version").await.unwrap();
            file.read(0, BytesMut::with_capacity(4096)).await
        });
        assert!(result.unwrap() > 0);
        assert_eq!(text, fs::read("/proc/version").unwrap());
    }
}
