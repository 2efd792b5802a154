//! The time of a turn; what the kernel knows of this thread's time and of a listener's queue. Floor 3.

use std::{
    cell::Cell,
    fs, io, mem,
    os::fd::{AsRawFd, OwnedFd},
};

/// The time of the current turn, since the ring was made. Outside of the core, so that asking borrows nothing.
#[derive(Debug, Default)]
pub(super) struct Now {
    pub(super) ns: Cell<u64>,
    pub(super) ms: Cell<u64>,
}

/// Where a thread's time went, since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTime {
    /// On a core, in user space and in the kernel, in ns.
    pub running_ns: u64,
    /// Ready to run, but kept waiting for a core, in ns. 0 where the kernel does not tell (`CONFIG_SCHED_INFO`).
    pub delayed_ns: u64,
}

impl ThreadTime {
    /// This thread's. Some system calls: for those who ask, not for each request.
    pub fn read() -> Self {
        let schedstat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let delayed_ns = schedstat.split(' ').nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0);
        ThreadTime { running_ns: Self::running_ns(), delayed_ns }
    }

    /// The first part of it alone, with one system call.
    pub fn running_ns() -> u64 {
        read_clock(libc::CLOCK_THREAD_CPUTIME_ID)
    }
}

/// Time that all threads of this process were on a core, in ns.
pub fn process_cpu_ns() -> u64 {
    read_clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn read_clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the timespec it is given.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    if result == 0 { time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64 } else { 0 }
}

/// What the kernel tells of a TCP socket.
pub(super) fn tcp_info(fd: &OwnedFd) -> io::Result<libc::tcp_info> {
    // SAFETY: an all-zero tcp_info is a valid one: it holds numbers only.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `info`; a shorter answer leaves zeros.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut len)
    };
    if result == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
}
