//! Where a server listens, as text and as a value.
//!
//! Floor 2. Looks up no names and opens nothing.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use super::ConfigError;
use crate::limits::UNIX_PATH_BYTES_MAX;

/// Where a server listens.
///
/// `127.0.0.1:8080`, `[::1]:8080`, `:8080` (every IPv4 interface), `unix:/run/x.sock`, `unix:/run/x.sock?mode=660`
/// (octal). Host names are refused: the server looks up none.
///
/// ```
/// # use everycore::config::Address;
/// let address: Address = ":8080".parse()?;
/// assert_eq!(address.to_string(), "0.0.0.0:8080");
/// # Ok::<(), everycore::config::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An IP address and a port; port 0 lets the kernel choose.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix {
        /// Its file.
        path: PathBuf,
        /// Permission bits of the file; `None`: what the umask leaves.
        mode: Option<u32>,
    },
}

impl Address {
    /// Whether only this host can reach it: a loopback address or a unix socket.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix { .. } => true,
        }
    }
}

impl FromStr for Address {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let bad = |expected| Err(ConfigError::new("address", expected, text));
        if let Some(rest) = text.strip_prefix("unix:") {
            let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
            let mode = query.strip_prefix("mode=").and_then(octal_mode);
            if mode.is_none() && rest.contains('?') {
                return bad("nothing but ?mode=660 (octal, 777 at most) after a unix socket's path");
            }
            if !path.starts_with('/') || path.ends_with('/') || path.contains('\0') {
                return bad("an absolute path after unix:, such as unix:/run/everycore.sock");
            }
            if path.len() > UNIX_PATH_BYTES_MAX {
                return bad("a unix socket's path of 107 bytes at most (the kernel's limit): choose a shorter one");
            }
            return Ok(Self::Unix { path: path.into(), mode });
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Tcp(address));
        }
        match text.strip_prefix(':').and_then(port) {
            Some(port) => Ok(Self::Tcp((Ipv4Addr::UNSPECIFIED, port).into())),
            None => {
                bad("IP:PORT, [IPv6]:PORT, :PORT (every IPv4 interface) or unix:/path; host names are not looked up")
            }
        }
    }
}

/// Up to 777, with a leading zero or without.
fn octal_mode(digits: &str) -> Option<u32> {
    let is_octal = (1..=4).contains(&digits.len()) && digits.bytes().all(|b| matches!(b, b'0'..=b'7'));
    let mode = if is_octal { u32::from_str_radix(digits, 8).ok() } else { None };
    mode.filter(|&mode| mode <= 0o777)
}

/// A port number as digits alone; `parse` would take a sign.
fn port(digits: &str) -> Option<u16> {
    let is_number = digits.bytes().all(|b| b.is_ascii_digit());
    if is_number { digits.parse().ok() } else { None }
}

/// An address, or a port alone, which means that port of 127.0.0.1.
pub fn address_or_port(text: &str) -> Result<Address, ConfigError> {
    match port(text) {
        Some(port) => Ok(Address::Tcp((Ipv4Addr::LOCALHOST, port).into())),
        None => text.parse(),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix { path, mode: None } => write!(f, "unix:{}", path.display()),
            Self::Unix { path, mode: Some(mode) } => write!(f, "unix:{}?mode={mode:o}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_reads_and_writes() {
        #[track_caller]
        fn check(text: &str, shown: &str, is_local: bool) {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.to_string().as_str(), address.is_local()), (shown, is_local));
            assert_eq!(shown.parse::<Address>().unwrap(), address, "its own text means the same");
        }
        check("127.0.0.1:8080", "127.0.0.1:8080", true);
        check("127.9.9.9:0", "127.9.9.9:0", true);
        check("0.0.0.0:80", "0.0.0.0:80", false);
        check(":8080", "0.0.0.0:8080", false);
        check("[::1]:8080", "[::1]:8080", true);
        check("[::ffff:127.0.0.1]:1", "[::ffff:127.0.0.1]:1", true);
        check("[::]:65535", "[::]:65535", false);
        check("192.0.2.1:1", "192.0.2.1:1", false);
        check("unix:/run/x.sock", "unix:/run/x.sock", true);
        check("unix:/x?mode=660", "unix:/x?mode=660", true);
        check("unix:/x?mode=0600", "unix:/x?mode=600", true);
        check("unix:/x?mode=0", "unix:/x?mode=0", true);
        let longest = format!("unix:/{}", "a".repeat(UNIX_PATH_BYTES_MAX - 1));
        check(&longest, &longest, true);
    }

    #[test]
    fn address_refuses_what_is_none() {
        let too_long = format!("unix:/{}", "a".repeat(UNIX_PATH_BYTES_MAX));
        let texts = [
            "",
            ":",
            "8080",
            "localhost:8080",
            "127.0.0.1",
            "127.0.0.1:65536",
            "::1:8080",
            ":-1",
            ":+1",
            ":65536",
            "http://127.0.0.1:80",
            "unix:",
            "unix:x",
            "unix:/",
            "unix:/a/",
            "unix:/a\0b",
            "unix:/x?mode=",
            "unix:/x?mode=8",
            "unix:/x?mode=1777",
            "unix:/x?mode=+60",
            "unix:/x?mode=00660",
            "unix:/x?",
            "unix:/x?user=1",
            &too_long,
        ];
        for text in texts {
            let error = text.parse::<Address>().expect_err(text);
            assert_eq!((error.name, error.got.as_str()), ("address", text));
        }
    }

    #[test]
    fn address_or_port_takes_a_port_of_loopback() {
        assert_eq!(address_or_port("7").unwrap().to_string(), "127.0.0.1:7");
        assert_eq!(address_or_port("0.0.0.0:7").unwrap().to_string(), "0.0.0.0:7");
        assert!(address_or_port("65536").is_err());
        assert!(address_or_port("").is_err());
    }
}
