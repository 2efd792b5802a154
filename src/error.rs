//! Why a server could not start or go on. Floor 4: names the errors of the floors below.

use crate::{
    config::ConfigError, preflight::RingUnavailable, ring::listen::BindError, router::RouterError,
    topology::TopologyError,
};
use std::{fmt, io, path::PathBuf};

/// Why a server could not start, or ended before it was asked to.
#[non_exhaustive]
pub enum Error {
    /// A setting cannot be used.
    Config(ConfigError),
    /// The shards do not fit this host's cores.
    Topology(TopologyError),
    /// io_uring is not to be had here.
    RingUnavailable(Box<RingUnavailable>),
    /// The limit on open files is too low for the shards.
    FewFiles {
        /// The limit.
        limit: u64,
        /// What the shards need.
        needed: u64,
    },
    /// An address cannot be listened at.
    Bind(BindError),
    /// The application's routes contradict each other.
    Router(RouterError),
    /// A shard's thread cannot be tied to its core.
    Pin {
        /// That core.
        core: usize,
    },
    /// A shard's executor cannot be made.
    Executor(io::Error),
    /// A shard's ring cannot be made, or failed.
    Ring(io::Error),
    /// The access log cannot be opened.
    AccessLog {
        /// Its file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The server did not come to its end in good order: connections were still open when the time for it was over, or a
    /// second signal came.
    DrainCut {
        /// So many.
        connections: usize,
        /// It was the signal.
        by_signal: bool,
    },
    /// Threads, channels or descriptors have run out.
    Host(io::Error),
    /// The closure that builds a shard's application panicked, or a shard did.
    ShardPanicked,
    /// A shard did not end when told to: a handler blocks its thread. That thread is left behind.
    ShardStuck,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Topology(error) => error.fmt(f),
            Self::RingUnavailable(error) => error.fmt(f),
            Self::FewFiles { limit, needed } => {
                write!(f, "open files: expected a limit of {needed} or more, got {limit}; {RAISE_FILES}")
            }
            Self::Bind(error) => error.fmt(f),
            Self::Router(error) => error.fmt(f),
            Self::Pin { core } => {
                write!(
                    f,
                    "cannot tie a shard to core {core}: the kernel refuses it; name other cores (--cpus) or use --pin off"
                )
            }
            Self::Executor(error) => {
                write!(f, "cannot make a shard's executor: {error}; {}", cure(error))
            }
            Self::Ring(error) => write!(f, "a shard's ring failed: {error}; {}", cure(error)),
            Self::AccessLog { path, cause } => {
                let path = path.display();
                write!(
                    f,
                    "access log: expected a file that can be written, got {path}: {cause}; name another (--access-log-file)"
                )
            }
            Self::DrainCut { connections, by_signal } => {
                let open = if *connections == 1 { "connection was" } else { "connections were" };
                let (who, cure) = match by_signal {
                    true => ("a second signal", ""),
                    false => ("its deadline", "; give it more time (--drain-timeout)"),
                };
                write!(f, "drain cut short by {who}: {connections} {open} still open{cure}")
            }
            Self::Host(error) => write!(f, "cannot start the shards: {error}; {}", cure(error)),
            Self::ShardPanicked => f.write_str("a shard panicked; its message is above"),
            Self::ShardStuck => f.write_str(
                "a shard did not end: a handler blocks its thread; let such work run in spawn_blocking of its executor",
            ),
        }
    }
}

const RAISE_FILES: &str =
    "raise the limit on open files (ulimit -n, docker --ulimit nofile=, systemd LimitNOFILE=) or run fewer shards";

fn cure(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => RAISE_FILES,
        _ => "`everycore doctor` says what this host lacks",
    }
}

/// As `Display`: what a `main` that returns this prints has to name the cause and the cure, too.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Config(error) => Some(error),
            Self::Topology(error) => Some(error),
            Self::RingUnavailable(error) => Some(error),
            Self::Bind(error) => Some(error),
            Self::Router(error) => Some(error),
            Self::Executor(error) | Self::Ring(error) | Self::Host(error) => Some(error),
            Self::AccessLog { cause, .. } => Some(cause),
            Self::DrainCut { .. }
            | Self::FewFiles { .. }
            | Self::Pin { .. }
            | Self::ShardPanicked
            | Self::ShardStuck => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_out_of_main_names_the_cure() {
        let printed = format!("{:?}", Error::Pin { core: 7 });
        assert!(printed.contains("core 7") && printed.contains("--pin off"), "{printed}");
    }
}
