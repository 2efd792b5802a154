//! Listening sockets that a service manager opened for us: systemd's socket activation, sd_listen_fds(3).
//!
//! Floor 3. Takes them and sees that they are what a server can accept from. Without them nothing happens.
#![allow(unsafe_code)]

use std::env;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::{Socket, Type};

use crate::config::Address;
use crate::limits::LISTEN_ADDRESSES_MAX;

/// The descriptor after standard error: the first that is passed.
const FIRST: RawFd = 3;

/// The sockets that were passed to this process, each with its address. The second call finds none.
///
/// # Errors
/// A descriptor that is not a listening TCP or unix stream socket, or too many of them.
pub fn take_passed() -> io::Result<Vec<(OwnedFd, Address)>> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    let count = passed_count(|name| env::var(name).ok(), process::id())?;
    if count == 0 || IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    (FIRST..FIRST + count).map(take).collect()
}

/// 0 if the variables are not there, or are for another process (our parent's, left in the environment).
fn passed_count(env: impl Fn(&str) -> Option<String>, pid: u32) -> io::Result<RawFd> {
    let (Some(count), Some(meant)) = (env("LISTEN_FDS"), env("LISTEN_PID")) else { return Ok(0) };
    if meant.parse() != Ok(pid) {
        return Ok(0);
    }
    let fits = |count: &RawFd| (0..=LISTEN_ADDRESSES_MAX as RawFd).contains(count);
    let bad = || invalid(format!("LISTEN_FDS: expected a number up to {LISTEN_ADDRESSES_MAX}, got {count:?}"));
    count.parse().ok().filter(fits).ok_or_else(bad)
}

fn take(fd: RawFd) -> io::Result<(OwnedFd, Address)> {
    let expected = || invalid(format!("descriptor {fd} of LISTEN_FDS: expected a listening TCP or unix stream socket"));
    // SAFETY: asks for a descriptor's flags, of an open one or not.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(expected());
    }
    // SAFETY: it is open, and ours alone: whoever set LISTEN_PID to this process passed it, nothing else of this
    // process opened it (it was there before `main`), and it is taken once (`IS_TAKEN`).
    let socket = Socket::from(unsafe { OwnedFd::from_raw_fd(fd) });
    if !socket.is_listener().unwrap_or(false) || socket.r#type()? != Type::STREAM {
        return Err(expected());
    }
    let name = socket.local_addr()?;
    let address = match (name.as_socket(), name.as_pathname()) {
        (Some(address), _) => {
            socket.set_tcp_nodelay(true)?;
            Address::Tcp(address)
        }
        (None, Some(path)) => Address::Unix { path: path.to_owned(), mode: None },
        (None, None) => return Err(expected()),
    };
    socket.set_cloexec(true)?;
    // A ring answers EAGAIN at once for a non-blocking listener, instead of waiting.
    socket.set_nonblocking(false)?;
    Ok((socket.into(), address))
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_count_only_if_they_are_ours() {
        #[track_caller]
        fn check(fds: Option<&str>, pid: Option<&str>, expected: Option<RawFd>) {
            let env = |name: &str| if name == "LISTEN_FDS" { fds } else { pid }.map(str::to_owned);
            assert_eq!(passed_count(env, 77).ok(), expected, "{fds:?} {pid:?}");
        }
        check(Some("2"), Some("77"), Some(2));
        check(Some("64"), Some("77"), Some(64));
        check(Some("0"), Some("77"), Some(0));
        check(Some("2"), Some("78"), Some(0));
        check(Some("x"), Some("78"), Some(0));
        check(Some("2"), None, Some(0));
        check(None, Some("77"), Some(0));
        for wrong in ["65", "-1", "x", "", "99999999999"] {
            check(Some(wrong), Some("77"), None);
        }
    }

    #[test]
    fn descriptor_that_is_not_open_is_refused() {
        let error = take(1 << 20).unwrap_err().to_string();
        assert_eq!(error, "descriptor 1048576 of LISTEN_FDS: expected a listening TCP or unix stream socket");
    }
}
