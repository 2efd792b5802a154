//! What is measured: an `http://` or `tcp://` address, perhaps reached over a unix socket. Floor 6.
//!
//! Host names are looked up with std's resolver. In a static binary too: since 2.34 glibc carries its `files` and
//! `dns` lookups inside itself, so no NSS library is needed (tried in an empty root with only /etc/hosts, and with
//! only /etc/resolv.conf). Sources of names that are plug-ins (mDNS, LDAP) do not work there.

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

/// What is spoken to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// HTTP/1.
    Http,
    /// One read a request, whatever it brings: `tcp://`.
    Tcp,
}

/// A parsed address.
///
/// ```
/// let url: everycore::load::Url = "http://localhost:8080/a?b#c".parse()?;
/// assert_eq!((url.host.as_str(), url.port, url.path.as_str()), ("localhost", 8080, "/a?b"));
/// # Ok::<(), everycore::load::LoadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// What is spoken.
    pub scheme: Scheme,
    /// A name or an address, without brackets.
    pub host: String,
    /// 80 where none is named.
    pub port: u16,
    /// Host and port as a Host field has them.
    pub authority: String,
    /// Path and query: the request target.
    pub path: String,
}

/// Why a run cannot begin, or went wrong as a whole.
#[derive(Debug)]
pub enum LoadError {
    /// The arguments do not make sense: which, what was expected, what was given.
    Usage {
        /// The argument's name.
        argument: &'static str,
        /// What was expected, and what came.
        problem: String,
    },
    /// The host name is unknown.
    Resolve {
        /// The name.
        host: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// No connection to the server.
    Connect {
        /// Where to.
        address: String,
        /// What connecting failed with.
        source: io::Error,
    },
    /// Too few descriptors are allowed.
    Descriptors {
        /// How many the run needs.
        needed: u64,
        /// The hard limit.
        allowed: u64,
    },
    /// This host does not give us what a shard needs.
    Shard(io::Error),
    /// A file cannot be read or written.
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl LoadError {
    pub(crate) fn usage(argument: &'static str, problem: impl Into<String>) -> Self {
        LoadError::Usage { argument, problem: problem.into() }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Usage { argument, problem } => write!(f, "{argument}: {problem}"),
            LoadError::Resolve { host, source } => write!(f, "cannot look up the host name {host}: {source}"),
            LoadError::Connect { address, source } => match source.kind() {
                io::ErrorKind::ConnectionRefused => {
                    write!(f, "connection to {address} refused: is the server running, and listening there?")
                }
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => write!(f, "connecting to {address} timed out"),
                io::ErrorKind::AddrNotAvailable => write!(
                    f,
                    "no local address and port to connect to {address} from: if earlier connections hold them, wait a minute, or \
                     widen net.ipv4.ip_local_port_range"
                ),
                _ => write!(f, "cannot connect to {address}: {source}"),
            },
            LoadError::Descriptors { needed, allowed } => write!(
                f,
                "the run needs about {needed} file descriptors, {allowed} are allowed: raise the hard limit (ulimit -Hn, \
                 LimitNOFILE=, docker --ulimit nofile=) or use fewer connections"
            ),
            LoadError::Shard(source) => write!(f, "cannot start a shard: {source}"),
            LoadError::File { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoadError::Resolve { source, .. } | LoadError::Connect { source, .. } | LoadError::File { source, .. } => {
                Some(source)
            }
            LoadError::Shard(source) => Some(source),
            LoadError::Usage { .. } | LoadError::Descriptors { .. } => None,
        }
    }
}

impl FromStr for Url {
    type Err = LoadError;

    fn from_str(text: &str) -> Result<Self, LoadError> {
        let bad = |why: &str| LoadError::usage("URL", format!("expected http://host[:port][/path], got {text:?}{why}"));
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad(""))?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "tcp" => Scheme::Tcp,
            "https" => return Err(bad(" (TLS is not supported)")),
            _ => return Err(bad("")),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let path_at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(path_at);
        if authority.contains('@') {
            return Err(bad(" (credentials go into --header 'Authorization: …')"));
        }
        let parsed: http::uri::Authority = authority.parse().map_err(|_| bad(""))?;
        let host = parsed.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let has_port = authority.trim_start_matches('[').ends_with(parsed.host().trim_start_matches('['));
        let port = match parsed.port_u16() {
            Some(0) => return Err(bad(" (port 0)")),
            Some(port) => port,
            None if has_port && scheme == Scheme::Http => 80,
            None => return Err(bad(" (a port is missing)")),
        };
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let _: http::uri::PathAndQuery =
            path.parse().map_err(|_| bad(" (the path has a character to be percent-encoded)"))?;
        if host.is_empty() || !path.is_ascii() {
            return Err(bad(""));
        }
        Ok(Url { scheme, host, port, authority: authority.to_owned(), path })
    }
}

/// Where connections go: every address that answers the name, or a unix socket.
#[derive(Clone, Debug)]
pub struct Address {
    address: SockAddr,
    text: String,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Address {
    /// Looks the name up and finds the first address that takes a connection. Blocks.
    ///
    /// # Errors
    /// The name is unknown, or no address takes a connection: the reason of the first.
    pub fn find(url: &Url, unix: Option<&PathBuf>, timeout: Duration) -> Result<Address, LoadError> {
        let mut first_error = None;
        for address in candidates(url, unix)? {
            match address.socket().and_then(|socket| socket.connect_timeout(&address.address, timeout)) {
                Ok(()) => return Ok(address),
                Err(source) => {
                    first_error.get_or_insert(LoadError::Connect { address: address.text, source });
                }
            }
        }
        let none = || io::Error::new(io::ErrorKind::NotFound, "it has no address");
        Err(first_error.unwrap_or_else(|| LoadError::Resolve { host: url.host.clone(), source: none() }))
    }

    /// A new socket for it, not yet connected.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn socket(&self) -> io::Result<Socket> {
        let domain = Domain::from(i32::from(self.address.family()));
        if domain == Domain::UNIX {
            return Socket::new(domain, Type::STREAM.cloexec(), None);
        }
        let socket = Socket::new(domain, Type::STREAM.cloexec(), Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        Ok(socket)
    }

    /// As the kernel takes it.
    pub fn sock_addr(&self) -> &SockAddr {
        &self.address
    }
}

fn candidates(url: &Url, unix: Option<&PathBuf>) -> Result<Vec<Address>, LoadError> {
    if let Some(path) = unix {
        let address = SockAddr::unix(path)
            .map_err(|source| LoadError::Connect { address: path.display().to_string(), source })?;
        return Ok(vec![Address { address, text: format!("unix:{}", path.display()) }]);
    }
    let host = url.host.as_str();
    let addresses: Vec<SocketAddr> = if host.eq_ignore_ascii_case("localhost") {
        // RFC 6761 §6.3: never asked of a name server, and it works where there is no /etc/hosts.
        [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].map(|ip| SocketAddr::new(ip, url.port)).into()
    } else {
        let found = (host, url.port).to_socket_addrs();
        found.map_err(|source| LoadError::Resolve { host: host.to_owned(), source })?.collect()
    };
    Ok(addresses.into_iter().map(|to| Address { address: to.into(), text: to.to_string() }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_taken_apart() {
        #[track_caller]
        fn check(text: &str, host: &str, port: u16, authority: &str, path: &str) {
            let url: Url = text.parse().unwrap();
            let got = (url.host.as_str(), url.port, url.authority.as_str(), url.path.as_str());
            assert_eq!(got, (host, port, authority, path), "{text}");
        }
        check("http://127.0.0.1:8080/", "127.0.0.1", 8080, "127.0.0.1:8080", "/");
        check("http://127.0.0.1:8080", "127.0.0.1", 8080, "127.0.0.1:8080", "/");
        check("HTTP://example.org/a/b?c=d%20e#f", "example.org", 80, "example.org", "/a/b?c=d%20e");
        check("http://h?q", "h", 80, "h", "/?q");
        check("http://[::1]:81/x", "::1", 81, "[::1]:81", "/x");
        check("http://[::1]/", "::1", 80, "[::1]", "/");
        check("tcp://h:7", "h", 7, "h:7", "/");
    }

    #[test]
    fn bad_url_says_what_was_expected() {
        for (text, why) in [
            ("", "expected http://host"),
            ("127.0.0.1:8080", "expected http://host"),
            ("ftp://h/", "expected http://host"),
            ("https://h/", "TLS is not supported"),
            ("http://", "expected http://host"),
            ("http:///x", "expected http://host"),
            ("http://:80/", "expected http://host"),
            ("http://h:0/", "port 0"),
            ("http://h:99999/", "expected http://host"),
            ("http://h:x/", "expected http://host"),
            ("http://h:/", "a port is missing"),
            ("http://u:p@h/", "credentials"),
            ("http://h/a b", "percent-encoded"),
            ("tcp://h", "a port is missing"),
        ] {
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert!(error.starts_with("URL: ") && error.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn localhost_is_found_without_a_resolver() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url: Url = format!("http://LOCALHOST:{}/", listener.local_addr().unwrap().port()).parse().unwrap();
        let address = Address::find(&url, None, Duration::from_secs(5)).unwrap();
        assert_eq!(address.to_string(), listener.local_addr().unwrap().to_string());
        drop(listener);
        let error = Address::find(&url, None, Duration::from_secs(5)).unwrap_err().to_string();
        assert!(error.contains("refused") && error.contains("is the server running"), "{error}");
    }

    #[test]
    fn exhausted_ports_are_told_with_their_cure() {
        let source = io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
        let error = LoadError::Connect { address: "h:7".into(), source }.to_string();
        assert!(error.contains("h:7") && error.contains("widen net.ipv4.ip_local_port_range"), "{error}");
    }

    #[test]
    fn missing_unix_socket_is_named() {
        let url: Url = "http://h/".parse().unwrap();
        let error = Address::find(&url, Some(&"/nonexistent/s".into()), Duration::from_secs(5)).unwrap_err();
        assert!(error.to_string().starts_with("cannot connect to unix:/nonexistent/s: "), "{error}");
    }
}
