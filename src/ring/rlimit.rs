//! The two process limits that a server of this kind runs into: open files and locked memory.
//!
//! Floor 3 (system calls). Says what the limits are and lifts the soft ones to the hard ones; what a server
//! needs of locked memory is computed in [`probe`](super::probe).
#![allow(unsafe_code)]

use std::fmt;
use std::io;

use serde::Serialize;

use crate::limits::{FILES_PER_PROCESS, FILES_PER_SHARD, FILES_RESERVED};

/// A soft limit that binds, and the hard one up to which it may be lifted. `u64::MAX`: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limit {
    /// Binds.
    pub soft: u64,
    /// Only root lifts it.
    pub hard: u64,
}

/// The limits of this process after [`raise_limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Open files (`RLIMIT_NOFILE`).
    pub nofile: Limit,
    /// Bytes of locked memory of this user's processes (`RLIMIT_MEMLOCK`).
    pub memlock: Limit,
}

impl Limits {
    /// Connections that the open files allow, `wanted` at most, 1 at least.
    pub fn connections_max(&self, wanted: usize, shards: usize) -> usize {
        let allowed = self.nofile.soft.saturating_sub(files_for(0, shards)).max(1);
        usize::try_from(allowed).map_or(wanted, |allowed| allowed.min(wanted))
    }
}

/// Open files that so many connections and shards take, the reserve included.
pub fn files_for(connections: usize, shards: usize) -> u64 {
    (connections + FILES_RESERVED + FILES_PER_SHARD * shards) as u64
}

/// Open files without which a server of so many shards does not start.
pub fn files_needed(shards: usize) -> u64 {
    (FILES_PER_PROCESS + FILES_PER_SHARD * shards) as u64
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nofile.soft {
            u64::MAX => write!(f, "open files unlimited")?,
            files => write!(f, "open files {files}")?,
        }
        match self.memlock.soft {
            u64::MAX => write!(f, ", locked memory unlimited"),
            bytes => write!(f, ", locked memory {} KiB", bytes / 1024),
        }
    }
}

/// Lifts the soft limits to the hard ones and tells what then holds.
///
/// A limit that cannot be lifted (a sandbox that forbids it) stays: the report shows it.
///
/// # Errors
/// The limits cannot even be read.
pub fn raise_limits() -> io::Result<Limits> {
    Ok(Limits { nofile: raise(libc::RLIMIT_NOFILE)?, memlock: raise(libc::RLIMIT_MEMLOCK)? })
}

/// Reads the limits and changes nothing.
///
/// # Errors
/// As the system says.
pub fn read_limits() -> io::Result<Limits> {
    Ok(Limits { nofile: read(libc::RLIMIT_NOFILE)?, memlock: read(libc::RLIMIT_MEMLOCK)? })
}

fn raise(resource: libc::__rlimit_resource_t) -> io::Result<Limit> {
    let limit = read(resource)?;
    if limit.soft >= limit.hard {
        return Ok(limit);
    }
    let lifted = libc::rlimit { rlim_cur: limit.hard, rlim_max: limit.hard };
    // SAFETY: the call reads one `rlimit`, which lives on this frame.
    match unsafe { libc::setrlimit(resource, &lifted) } {
        0 => read(resource),
        _ => Ok(limit),
    }
}

fn read(resource: libc::__rlimit_resource_t) -> io::Result<Limit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes one `rlimit`, which lives on this frame.
    match unsafe { libc::getrlimit(resource, &mut limit) } {
        // RLIM_INFINITY is u64::MAX on 64-bit Linux, which io_uring servers run on.
        0 => Ok(Limit { soft: limit.rlim_cur, hard: limit.rlim_max }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_raised_to_the_hard_ones() {
        let limits = raise_limits().unwrap();
        assert_eq!(limits.nofile.soft, limits.nofile.hard);
        assert_eq!(limits.memlock.soft, limits.memlock.hard);
        assert_eq!(read_limits().unwrap(), limits);
    }

    #[test]
    fn connections_leave_files_for_the_rest() {
        let limit = |soft| Limit { soft, hard: soft };
        let most =
            |files, wanted, shards| Limits { nofile: limit(files), memlock: limit(0) }.connections_max(wanted, shards);
        let reserved = (FILES_RESERVED + 2 * FILES_PER_SHARD) as u64;
        assert_eq!(most(reserved + 99, 100, 2), 99);
        assert_eq!(most(reserved + 100, 100, 2), 100);
        assert_eq!(most(reserved + 101, 100, 2), 100);
        assert_eq!(most(u64::MAX, 100, 2), 100);
        assert_eq!(most(3, 100, 2), 1);
    }

    #[test]
    fn limits_are_shown_in_one_line() {
        let limit = |soft| Limit { soft, hard: u64::MAX };
        let shown = |nofile, memlock| Limits { nofile: limit(nofile), memlock: limit(memlock) }.to_string();
        assert_eq!(shown(1024, 8 << 20), "open files 1024, locked memory 8192 KiB");
        assert_eq!(shown(u64::MAX, u64::MAX), "open files unlimited, locked memory unlimited");
    }
}
