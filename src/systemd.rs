//! What systemd is told: ready, stopping, alive. Floor 7.
//!
//! The protocol of sd_notify(3): datagrams to the socket named in the environment. Without that variable nothing is
//! told. The watchdog is fed only if every shard answers, so that a shard that hangs gets the service restarted.

use crate::server::Handle;
use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    process,
    sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::Duration,
};

/// Somebody to tell.
#[derive(Debug)]
pub(crate) struct Notifier {
    socket: UnixDatagram,
}

impl Notifier {
    /// `None` if nobody asked to be told, or cannot be reached: a server does not fail for that.
    pub(crate) fn from_env() -> Option<Self> {
        let name = env::var_os("NOTIFY_SOCKET")?;
        Self::connect(name.to_str()?).map_err(|error| tracing::warn!("NOTIFY_SOCKET {name:?}: {error}")).ok()
    }

    fn connect(name: &str) -> io::Result<Self> {
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        // Whoever does not read must not stop us.
        socket.set_nonblocking(true)?;
        Ok(Self { socket })
    }

    /// Lines such as `READY=1`.
    pub(crate) fn tell(&self, lines: &str) {
        if let Err(error) = self.socket.send(lines.as_bytes()) {
            tracing::warn!("systemd is not told {lines:?}: {error}");
        }
    }

    /// Feeds the watchdog, if there is one, until the sender that comes back is dropped.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(crate) fn start_watchdog(handle: Handle) -> io::Result<Option<SyncSender<()>>> {
        let Some(period) = watchdog_period(|name| env::var(name).ok(), process::id()) else { return Ok(None) };
        let Some(notifier) = Self::from_env() else { return Ok(None) };
        let (sender, ended) = sync_channel::<()>(0);
        thread::Builder::new().name("watchdog".into()).spawn(move || {
            // Twice a period, as sd_watchdog_enabled(3) advises.
            while ended.recv_timeout(period / 2) == Err(RecvTimeoutError::Timeout) {
                let silent = handle.stats().missing;
                match silent.is_empty() {
                    true => notifier.tell("WATCHDOG=1"),
                    false => tracing::warn!("the watchdog is not fed: no answer from shards {silent:?}"),
                }
            }
        })?;
        Ok(Some(sender))
    }
}

/// How often the watchdog wants food; `None`: there is none, or it is another process's.
fn watchdog_period(env: impl Fn(&str) -> Option<String>, pid: u32) -> Option<Duration> {
    let micros: u64 = env("WATCHDOG_USEC")?.parse().ok()?;
    let is_ours = env("WATCHDOG_PID").is_none_or(|meant| meant.parse() == Ok(pid));
    (is_ours && micros > 0).then(|| Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_is_ours_or_none() {
        let period = |micros: Option<&str>, pid: Option<&str>| {
            let env = |name: &str| if name == "WATCHDOG_USEC" { micros } else { pid }.map(str::to_owned);
            watchdog_period(env, 77).map(|period| period.as_millis())
        };
        assert_eq!(period(Some("30000000"), Some("77")), Some(30_000));
        assert_eq!(period(Some("30000000"), None), Some(30_000));
        assert_eq!(period(Some("30000000"), Some("78")), None);
        assert_eq!(period(Some("0"), None), None);
        assert_eq!(period(Some("x"), None), None);
        assert_eq!(period(None, Some("77")), None);
    }

    #[test]
    fn both_kinds_of_socket_names_are_reached() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let abstract_name = format!("everycore-test-{}", process::id());
        for (name, address) in [
            (path.to_str().unwrap().to_owned(), SocketAddr::from_pathname(&path).unwrap()),
            (format!("@{abstract_name}"), SocketAddr::from_abstract_name(&abstract_name).unwrap()),
        ] {
            let socket = UnixDatagram::bind_addr(&address).unwrap();
            Notifier::connect(&name).unwrap().tell("READY=1");
            let mut buffer = [0; 64];
            let count = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..count], b"READY=1");
        }
        assert!(Notifier::connect("/nowhere/at/all").is_err());
    }
}
