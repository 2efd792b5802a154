//! What io_uring can do here, by trying it.
//!
//! Floor 3. Opens the smallest ring with the flags of the real one, asks for the operations, and runs once what
//! no list tells (multishot variants). It starts no executor and explains nothing: a failure is an
//! `io::Error`, and [`preflight`](crate::preflight) tells its cause and cure.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use io_uring::types::{BufRingEntry, Fd, SubmitArgs, TimeoutFlags, Timespec};
use io_uring::{Builder, IoUring, Probe, cqueue, opcode, squeue};
use serde::Serialize;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::limits::{MEMLOCK_RETRY, MEMLOCK_RETRY_PAUSE, PROBE_RING_ENTRIES, PROBE_WAIT};

// ---- opening rings -------------------------------------------------------------------------------

/// A ring's builder with the flags that a shard's ring has, so that what is tried is what is used.
pub fn ring_builder(completions: u32) -> Builder<squeue::Entry, cqueue::Entry> {
    let mut builder = IoUring::builder();
    builder
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_clamp()
        .setup_cqsize(completions);
    builder
}

/// Opens a ring for the calling thread, which alone may submit to it.
///
/// Blocks for up to two seconds where locked memory is short: call it before a shard serves.
///
/// # Errors
/// As `io_uring_setup` says.
pub fn open_ring(submissions: u32, completions: u32) -> io::Result<IoUring> {
    retry_short_of_memory(MEMLOCK_RETRY, || ring_builder(completions).build(submissions))
}

/// Calls `open` again while it ends with `ENOMEM`, for as long as `patience`: the rings of a process that ended a
/// moment ago (a restart) may still be charged to this user's `RLIMIT_MEMLOCK`. For glommio's executors too.
///
/// # Errors
/// The last one.
pub fn retry_short_of_memory<T>(patience: Duration, mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let give_up = Instant::now() + patience;
    loop {
        match open() {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && Instant::now() < give_up => {
                thread::sleep(MEMLOCK_RETRY_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

// ---- what there is -------------------------------------------------------------------------------

/// What the ring can do here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Features {
    /// One accept operation for many connections (5.19). Needed.
    pub multishot_accept: bool,
    /// Ring of buffers that the kernel picks from (5.19). Needed.
    pub buffer_ring: bool,
    /// One receive operation for many packets (6.0). Needed.
    pub multishot_receive: bool,
    /// One timeout that fires again and again (6.4). Without it a busy shard waits for one event at a time.
    pub multishot_timeout: bool,
    /// Messages from ring to ring (5.18).
    pub ring_messages: bool,
    /// Send without a copy (6.0).
    pub zero_copy_send: bool,
    /// Receives and sends of several buffers at once (6.10).
    pub bundles: bool,
    /// Operations that are needed and not there, by their names.
    pub missing_operations: Vec<&'static str>,
}

/// Operations without which a shard cannot work.
const NEEDED: [(&str, u8); 11] = [
    ("accept", opcode::Accept::CODE),
    ("recv", opcode::Recv::CODE),
    ("send", opcode::Send::CODE),
    ("sendmsg", opcode::SendMsg::CODE),
    ("connect", opcode::Connect::CODE),
    ("shutdown", opcode::Shutdown::CODE),
    ("close", opcode::Close::CODE),
    ("async_cancel", opcode::AsyncCancel::CODE),
    ("timeout", opcode::Timeout::CODE),
    ("timeout_remove", opcode::TimeoutRemove::CODE),
    ("read", opcode::Read::CODE),
];

impl Features {
    /// Each with its name, and whether a shard can do without.
    fn named(&self) -> [(&'static str, bool, bool); 7] {
        [
            ("multishot accept", self.multishot_accept, false),
            ("provided buffer ring", self.buffer_ring, false),
            ("multishot receive", self.multishot_receive, false),
            ("multishot timeout", self.multishot_timeout, true),
            ("ring messages", self.ring_messages, true),
            ("zero-copy send", self.zero_copy_send, true),
            ("bundles", self.bundles, true),
        ]
    }

    /// The names of those that are there.
    pub fn names(&self) -> Vec<&'static str> {
        self.named().into_iter().filter(|&(_, is_there, _)| is_there).map(|(name, ..)| name).collect()
    }

    /// The names of those that a shard makes use of: what it needs, and multishot timeouts where there are such.
    pub fn in_use(&self) -> Vec<&'static str> {
        let is_used = |name, is_optional: bool| !is_optional || name == "multishot timeout";
        let used =
            self.named().into_iter().filter(|&(name, is_there, is_optional)| is_there && is_used(name, is_optional));
        used.map(|(name, ..)| name).collect()
    }

    /// What is needed and not there.
    pub fn missing(&self) -> Vec<&'static str> {
        let needed = self.named().into_iter().filter(|&(_, is_there, is_optional)| !is_there && !is_optional);
        needed.map(|(name, ..)| name).chain(self.missing_operations.iter().copied()).collect()
    }
}

impl fmt::Display for Features {
    /// One line: `multishot accept, provided buffer ring; without bundles`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |wanted: bool| {
            let named = self.named().into_iter().filter(|&(_, is_there, _)| is_there == wanted);
            let names: Vec<_> = named.map(|(name, ..)| name).collect();
            names
        };
        f.write_str(&names(true).join(", "))?;
        let without = [names(false), self.missing_operations.clone()].concat();
        match without.is_empty() {
            true => Ok(()),
            false => write!(f, "; without {}", without.join(", ")),
        }
    }
}

/// Tries io_uring on the calling thread.
///
/// # Errors
/// No ring with our flags can be opened, or one does not answer. What a ring lacks is not an error but
/// [`Features::missing`].
pub fn probe() -> io::Result<Features> {
    let ring = open_ring(PROBE_RING_ENTRIES, 2 * PROBE_RING_ENTRIES)?;
    let mut operations = Probe::new();
    ring.submitter().register_probe(&mut operations)?;
    let missing = NEEDED.into_iter().filter(|&(_, code)| !operations.is_supported(code));
    let mut features = Features {
        ring_messages: operations.is_supported(opcode::MsgRingData::CODE),
        zero_copy_send: operations.is_supported(opcode::SendZc::CODE),
        bundles: ring.params().is_feature_recvsend_bundle(),
        missing_operations: missing.map(|(name, _)| name).collect(),
        ..Features::default()
    };
    if !features.missing_operations.is_empty() {
        return Ok(features);
    }
    let mut trial = Trial { ring };
    features.multishot_timeout = trial.multishot_timeout()?;
    features.multishot_accept = trial.multishot_accept()?;
    (features.buffer_ring, features.multishot_receive) = trial.multishot_receive()?;
    Ok(features)
}

// ---- trials --------------------------------------------------------------------------------------

/// User data of the operation on trial, and of the one that ends it.
const TRIED: u64 = 1;
const ENDING: u64 = 2;

struct Trial {
    ring: IoUring,
}

impl Trial {
    /// Submits one operation and waits for the next completion of the one on trial.
    ///
    /// # Safety
    /// What the operation points to stays valid until it has completed.
    unsafe fn submit(&mut self, operation: squeue::Entry) -> io::Result<cqueue::Entry> {
        // SAFETY: as this function's own.
        unsafe { self.ring.submission().push(&operation) }.map_err(io::Error::other)?;
        self.next()
    }

    /// The next completion of the operation on trial; never waits for long, whatever the kernel does.
    fn next(&mut self) -> io::Result<cqueue::Entry> {
        let deadline = Timespec::from(PROBE_WAIT);
        let wait = SubmitArgs::new().timespec(&deadline);
        loop {
            let tried = |completion: &cqueue::Entry| completion.user_data() == TRIED;
            if let Some(completion) = self.ring.completion().find(tried) {
                return Ok(completion);
            }
            match self.ring.submitter().submit_with_args(1, &wait) {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                outcome => drop(outcome?),
            }
        }
    }

    /// Waits until the operation on trial is over: nothing of it may be left when its memory goes.
    fn drain(&mut self, mut last: cqueue::Entry) -> io::Result<()> {
        while cqueue::more(last.flags()) {
            last = self.next()?;
        }
        Ok(())
    }

    fn multishot_timeout(&mut self) -> io::Result<bool> {
        // Far away, so that the removal always comes first.
        let far = Timespec::new().sec(3600);
        let timeout = opcode::Timeout::new(&far).flags(TimeoutFlags::MULTISHOT);
        let timeout = timeout.build().user_data(TRIED);
        let removal = opcode::TimeoutRemove::new(TRIED).build().user_data(ENDING);
        // SAFETY: the kernel copies the time when it takes the operation, which `submit` below does.
        unsafe { self.ring.submission().push(&timeout) }.map_err(io::Error::other)?;
        // SAFETY: the removal points to nothing.
        let end = unsafe { self.submit(removal) }?;
        Ok(end.result() == -libc::ECANCELED)
    }

    fn multishot_accept(&mut self) -> io::Result<bool> {
        // A unix socket that the kernel names (an empty path): this needs no network and leaves no file.
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        listener.bind(&SockAddr::unix("")?)?;
        listener.listen(1)?;
        let client = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        client.connect(&listener.local_addr()?)?;
        let accept = opcode::AcceptMulti::new(Fd(listener.as_raw_fd())).build().user_data(TRIED);
        // SAFETY: the operation holds a descriptor only, which is open until `drain` has seen its end.
        let first = unsafe { self.submit(accept) }?;
        let is_there = first.result() >= 0 && cqueue::more(first.flags());
        if first.result() >= 0 {
            // SAFETY: the descriptor was just made for us by the accept and nobody else has it.
            drop(unsafe { OwnedFd::from_raw_fd(first.result()) });
        }
        if is_there {
            let cancel = opcode::AsyncCancel::new(TRIED).build().user_data(ENDING);
            // SAFETY: the cancel points to nothing.
            let next = unsafe { self.submit(cancel) }?;
            self.drain(next)?;
        }
        Ok(is_there)
    }

    /// Whether there are provided buffer rings, and multishot receives with them.
    fn multishot_receive(&mut self) -> io::Result<(bool, bool)> {
        let mut buffers = OneBuffer::new();
        // SAFETY: the page outlives the registration: it is freed below after unregistering, or not at all.
        let registered = unsafe {
            let address = buffers.page.as_ptr() as u64;
            self.ring.submitter().register_buf_ring_with_flags(address, 1, BUFFER_GROUP, 0)
        };
        if registered.is_err() {
            buffers.free();
            return Ok((false, false));
        }
        buffers.provide();
        let (ours, mut theirs) = UnixStream::pair()?;
        theirs.write_all(b"x")?;
        let receive = opcode::RecvMulti::new(Fd(ours.as_raw_fd()), BUFFER_GROUP).build().user_data(TRIED);
        // SAFETY: the descriptor and the buffers live until `drain` has seen the operation's end. When that fails the
        // page is leaked.
        let first = unsafe { self.submit(receive) }?;
        let is_there = first.result() == 1 && cqueue::more(first.flags());
        drop(theirs); // the end of the stream ends the receive
        self.drain(first)?;
        self.ring.submitter().unregister_buf_ring(BUFFER_GROUP)?;
        buffers.free();
        Ok((true, is_there))
    }
}

const BUFFER_GROUP: u16 = 0;

/// A page with a ring of one provided buffer at its start and that buffer behind it. Leaks unless [`free`](Self::free)
/// is called: so no early return can take memory from under the kernel.
struct OneBuffer {
    page: NonNull<u8>,
}

impl OneBuffer {
    /// As large and aligned as the largest page of the kernels we run on; the kernel asks for one page.
    const LAYOUT: Layout = match Layout::from_size_align(64 * 1024, 64 * 1024) {
        Ok(layout) => layout,
        Err(_) => panic!("a power of two"),
    };
    /// Where the buffer begins, and how long it is.
    const BUFFER: usize = 4096;

    fn new() -> Self {
        // SAFETY: the layout's size is not 0.
        let page = unsafe { alloc_zeroed(Self::LAYOUT) };
        Self { page: NonNull::new(page).unwrap_or_else(|| handle_alloc_error(Self::LAYOUT)) }
    }

    /// Gives the buffer to the kernel.
    fn provide(&mut self) {
        let entry = self.page.cast::<BufRingEntry>();
        // SAFETY: the page is ours, zeroed (a valid entry) and aligned; the buffer lies inside it.
        unsafe {
            (*entry.as_ptr()).set_addr(self.page.as_ptr().add(Self::BUFFER) as u64);
            (*entry.as_ptr()).set_len(Self::BUFFER as u32);
        }
        // SAFETY: the tail is a field of the first entry, aligned for u16; the kernel reads it, and only we write it.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(entry.as_ptr()).cast_mut()) };
        tail.store(1, Ordering::Release);
    }

    /// Frees the page, which the kernel must not know any more.
    fn free(self) {
        // SAFETY: allocated by `new` with this layout, and freed once, since `self` is taken.
        unsafe { dealloc(self.page.as_ptr(), Self::LAYOUT) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_finds_what_a_shard_needs() {
        match probe() {
            Ok(features) => assert_eq!(features.missing(), [""; 0], "{features}"),
            Err(error) => println!("skipped: no io_uring here ({error})"),
        }
    }

    #[test]
    fn features_are_shown_in_one_line() {
        let mut features = Features { multishot_accept: true, buffer_ring: true, ..Features::default() };
        features.missing_operations = vec!["recv"];
        let expected = "multishot accept, provided buffer ring; without multishot receive, multishot timeout, \
                        ring messages, zero-copy send, bundles, recv";
        assert_eq!(features.to_string(), expected);
        assert_eq!(features.missing(), ["multishot receive", "recv"]);
        assert_eq!(features.in_use(), ["multishot accept", "provided buffer ring"]);
        let all = Features {
            multishot_receive: true,
            multishot_timeout: true,
            ring_messages: true,
            zero_copy_send: true,
            bundles: true,
            missing_operations: Vec::new(),
            ..features
        };
        let expected = "multishot accept, provided buffer ring, multishot receive, multishot timeout, \
                        ring messages, zero-copy send, bundles";
        assert_eq!(all.to_string(), expected);
    }

    #[test]
    fn opening_is_tried_again_only_when_memory_is_short() {
        #[track_caller]
        fn check(errnos: &[i32], patience: Duration, calls: usize, expected: Result<(), i32>) {
            let mut made = 0;
            let outcome = retry_short_of_memory(patience, || {
                made += 1;
                match errnos.get(made - 1) {
                    Some(&errno) => Err(io::Error::from_raw_os_error(errno)),
                    None => Ok(()),
                }
            });
            let outcome = outcome.map_err(|error| error.raw_os_error().unwrap());
            assert_eq!((made, outcome), (calls, expected));
        }
        use libc::{ENOMEM, EPERM};
        let long = Duration::from_secs(60);
        check(&[], long, 1, Ok(()));
        check(&[ENOMEM, ENOMEM], long, 3, Ok(()));
        check(&[ENOMEM, EPERM], long, 2, Err(EPERM));
        check(&[EPERM], long, 1, Err(EPERM));
        check(&[ENOMEM, ENOMEM], Duration::ZERO, 1, Err(ENOMEM));
    }

    /// Lets `io_uring_setup` fail with `errno` on this thread from now on. False: filters are forbidden here.
    fn forbid_rings(errno: i32) -> bool {
        use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
        let op = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
        let mut filter = [
            op(BPF_LD | BPF_W | BPF_ABS, 0, 0), // the call's number is the first field
            op(BPF_JMP | BPF_JEQ | BPF_K, 1, libc::SYS_io_uring_setup as u32),
            op(BPF_RET | BPF_K, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
            op(BPF_RET | BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: both calls concern this thread only; the kernel copies the program, which lives on this frame.
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        }
    }

    #[test]
    fn forbidden_ring_is_explained() {
        for (errno, expected) in
            [(libc::EPERM, "(EPERM)"), (libc::ENOSYS, "(ENOSYS)"), (libc::EMFILE, "Too many open files")]
        {
            let attempt = thread::spawn(move || forbid_rings(errno).then(|| crate::preflight::preflight(1)));
            match attempt.join().unwrap() {
                Some(outcome) => {
                    let error = outcome.unwrap_err().to_string();
                    // Somebody may have set the sysctl on this machine, or given too little locked memory.
                    let is_expected = [expected, "sysctl", "locked memory"].iter().any(|part| error.contains(part));
                    assert!(is_expected, "{error}");
                }
                None => println!("skipped: seccomp filters cannot be set here"),
            }
        }
    }
}
