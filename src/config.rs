//! What a server is told to do: plain values, checked, with defaults from [`limits`](crate::limits).
//!
//! Floor 2. No flags and no environment (`cli/` turns those into this), and nothing of the host is looked at
//! ([`topology`](crate::topology) does, with the shard fields of this).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use crate::http::TrustedProxy;
use crate::limits::*;
use crate::topology::{CpuList, PinMode};

mod address;
mod ajp;

pub use address::{Address, address_or_port};
pub use ajp::{AjpOptions, NamePatterns};

// ---- choices -------------------------------------------------------------------------------------

/// Which shard gets a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// The kernel's hash of addresses and ports: free, uneven with few connections.
    #[default]
    Kernel,
    /// The shard of the core that received the first packet.
    Cpu,
    /// By chance, in the kernel: even with many connections.
    Random,
    /// Each shard in turn: accepted by one shard, handed to the next.
    RoundRobin,
    /// The shard with the fewest open connections: counted, handed over.
    LeastConn,
}

impl Balance {
    /// Whether a program in the kernel chooses among the listeners of a port.
    pub fn is_kernel_program(self) -> bool {
        matches!(self, Self::Cpu | Self::Random)
    }
}

/// Who may read the stats endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StatsPolicy {
    /// Those that come in by a listener that only this host can reach ([`Address::is_local`]).
    #[default]
    Auto,
    /// Everyone.
    On,
    /// Nobody.
    Off,
}

impl StatsPolicy {
    /// Whether a listener at this address answers the stats endpoints.
    pub fn is_on_at(self, address: &Address) -> bool {
        match self {
            Self::Auto => address.is_local(),
            Self::On => true,
            Self::Off => false,
        }
    }
}

/// How the lines of the access log look; docs/operations.md has examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// The combined format that Apache made common, then the duration in seconds and the shard.
    Combined,
    /// A JSON object each.
    Json,
}

/// Paths of the endpoints that are always there; `None`: switched off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// 200 if every shard answers in time.
    pub livez: Option<String>,
    /// 200, or 503 while draining.
    pub readyz: Option<String>,
    /// Both in one.
    pub healthz: Option<String>,
    /// The stats page and its JSON, as far as [`StatsPolicy`] lets them.
    pub stats: Option<String>,
    /// Prometheus' text, under the same policy.
    pub metrics: Option<String>,
}

impl Default for Endpoints {
    fn default() -> Self {
        Self {
            livez: Some("/livez".into()),
            readyz: Some("/readyz".into()),
            healthz: Some("/healthz".into()),
            stats: Some("/__stats".into()),
            metrics: Some("/metrics".into()),
        }
    }
}

impl Endpoints {
    /// Each with the name of its flag.
    pub fn named(&self) -> [(&'static str, Option<&str>); 5] {
        [
            ("livez", self.livez.as_deref()),
            ("readyz", self.readyz.as_deref()),
            ("healthz", self.healthz.as_deref()),
            ("stats-path", self.stats.as_deref()),
            ("metrics", self.metrics.as_deref()),
        ]
    }
}

// ---- the whole -----------------------------------------------------------------------------------

/// Everything a server is told. Build it from `default()`, change fields, and [`validate`](Self::validate).
///
/// ```
/// # use everycore::config::ServerConfig;
/// let config = ServerConfig { shards: Some(2), ..ServerConfig::default() };
/// config.validate()?;
/// # Ok::<(), everycore::config::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ServerConfig {
    /// Addresses for HTTP, one or more.
    pub listen: Vec<Address>,
    /// Addresses of a plain TCP echo service.
    pub echo: Vec<Address>,
    /// Addresses for AJP/1.3, and how each treats its proxies.
    pub ajp: Vec<(Address, AjpOptions)>,
    /// Number of shards; `None`: as the host allows.
    pub shards: Option<usize>,
    /// Cores to use; `None`: all that are allowed.
    pub cpus: Option<CpuList>,
    /// Whether shards are tied to cores.
    pub pin: PinMode,
    /// Which shard gets a new connection.
    pub balance: Balance,
    /// Open connections, all shards together. The limit on open files may lower it.
    pub connections_max: usize,
    /// Requests answered on one connection before it is closed; `None`: no bound.
    pub requests_per_connection_max: Option<u64>,

    /// From the first byte of a request head to its last.
    pub header_timeout: Duration,
    /// Longest wait for the next bytes of a request body, and the time a body may take before
    /// [`body_rate_min`](Self::body_rate_min) counts.
    pub body_timeout: Duration,
    /// Bytes a second: after `body_timeout`, a body of which fewer have come than
    /// (time − `body_timeout`) × this is given up. 0: no such bound.
    pub body_rate_min: u32,
    /// Longest time in which a peer takes no byte of an answer, or of what a raw TCP handler writes.
    pub write_stall_timeout: Duration,
    /// Longest time without a request on a kept connection, or before the first; and of one read of a raw TCP handler.
    pub idle_timeout: Duration,
    /// Longest time that a handler takes until it has an answer; `None`: no bound.
    pub handler_timeout: Option<Duration>,
    /// How long a draining server goes on accepting, answering `readyz` with 503.
    pub drain_delay: Duration,
    /// How long requests in flight may take after that.
    pub drain_timeout: Duration,
    /// How often a busy shard visits its executor.
    pub tick: Duration,

    /// Bytes of a request head; more is 431.
    pub head_bytes_max: usize,
    /// Field lines of a request head; more is 431.
    pub headers_max: usize,
    /// Bytes of a request target; more is 414.
    pub uri_bytes_max: usize,
    /// Bytes of a request body that is collected in memory; more is 413.
    pub body_bytes_max: usize,

    /// Peers whose Forwarded and X-Forwarded-For fields are believed; see
    /// [`Request::client_addr`](crate::Request::client_addr).
    pub trusted_proxies: Vec<TrustedProxy>,

    /// Connections waiting for `accept`, each listener.
    pub backlog: u32,
    /// Let another process listen on the same ports (hot restart). Otherwise a port in use is refused.
    pub share_port: bool,
    /// Accept a connection only when its first bytes are there (`TCP_DEFER_ACCEPT`).
    pub defer_accept: bool,
    /// Take data in the first packet (`TCP_FASTOPEN`).
    pub fast_open: bool,

    /// Paths of the built-in endpoints.
    pub endpoints: Endpoints,
    /// Who may read the stats by the listeners for HTTP.
    pub stats: StatsPolicy,
    /// A listener for the stats and the health endpoints alone. It answers also when no connection is left for others,
    /// and while the server drains.
    pub stats_listen: Option<Address>,
    /// What a reader of the stats must know: `Authorization: Bearer` and this.
    pub stats_token: Option<Secret>,

    /// A line for each answer; `None`: no log.
    pub access_log: Option<AccessLogFormat>,
    /// The file that it is appended to; `None`: standard output.
    pub access_log_file: Option<PathBuf>,
}

/// Text that no message shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl Secret {
    /// Whether `given` is the same, in a time that does not tell where they differ.
    pub fn is(&self, given: &str) -> bool {
        let (own, given) = (self.0.as_bytes(), given.as_bytes());
        let difference = own.iter().zip(given).fold(0, |difference, (a, b)| difference | (a ^ b));
        own.len() == given.len() && std::hint::black_box(difference) == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The port of a server that is told none.
const DEFAULT_PORT: u16 = 8080;

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: vec![Address::Tcp((IpAddr::from(Ipv4Addr::LOCALHOST), DEFAULT_PORT).into())],
            echo: Vec::new(),
            ajp: Vec::new(),
            shards: None,
            cpus: None,
            pin: PinMode::Auto,
            balance: Balance::Kernel,
            connections_max: CONNECTIONS_MAX,
            requests_per_connection_max: None,
            header_timeout: HEADER_TIMEOUT,
            body_timeout: BODY_TIMEOUT,
            body_rate_min: BODY_RATE_MIN,
            write_stall_timeout: WRITE_STALL_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
            handler_timeout: None,
            drain_delay: DRAIN_DELAY,
            drain_timeout: DRAIN_TIMEOUT,
            tick: TICK,
            head_bytes_max: HEAD_BYTES_MAX,
            headers_max: HEADERS_MAX,
            uri_bytes_max: URI_BYTES_MAX,
            body_bytes_max: BODY_BUFFERED_BYTES_MAX,
            trusted_proxies: Vec::new(),
            backlog: BACKLOG,
            share_port: false,
            defer_accept: false,
            fast_open: false,
            endpoints: Endpoints::default(),
            stats: StatsPolicy::Auto,
            stats_listen: None,
            stats_token: None,
            access_log: None,
            access_log_file: None,
        }
    }
}

impl ServerConfig {
    /// Checks every value by itself and those that depend on each other.
    ///
    /// # Errors
    /// The first value that does not fit, with what was expected and how to cure it.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_for(self.listen.len() + self.echo.len() + self.ajp.len())
    }

    /// The same for a server of so many addresses: some may not be named here, such as those of listeners that the
    /// caller made.
    pub(crate) fn validate_for(&self, addresses: usize) -> Result<(), ConfigError> {
        within("listen", "a number of addresses", 1, LISTEN_ADDRESSES_MAX as u64, addresses as u64)?;
        self.validate_addresses()?;
        self.ajp.iter().try_for_each(|(address, options)| options.validate_at(address))?;
        self.validate_deadlines()?;
        self.validate_limits()?;
        self.validate_endpoints()?;
        if let (None, Some(file)) = (self.access_log, &self.access_log_file) {
            return Err(ConfigError::new("access-log-file", "access-log to be combined or json", file.display()));
        }
        if let Some(shards) = self.shards {
            within("shards", "a number of shards", 1, SHARDS_MAX as u64, shards as u64)?;
        }
        if self.share_port && self.balance.is_kernel_program() {
            return Err(ConfigError::new(
                "balance",
                "kernel, round-robin or least-conn together with share-port: a program in the kernel numbers \
                 the listeners of a port, those of the other process included",
                self.balance,
            ));
        }
        Ok(())
    }

    fn validate_addresses(&self) -> Result<(), ConfigError> {
        let ajp = self.ajp.iter().map(|(address, _)| address);
        let all: Vec<&Address> = self.listen.iter().chain(&self.echo).chain(ajp).chain(&self.stats_listen).collect();
        for (index, address) in all.iter().enumerate() {
            let is_chosen_by_kernel = matches!(address, Address::Tcp(address) if address.port() == 0);
            let is_same = |other: &&&Address| match (other, address) {
                (Address::Unix { path: a, .. }, Address::Unix { path: b, .. }) => a == b,
                (a, b) => *a == b,
            };
            if !is_chosen_by_kernel && all[..index].iter().any(|other| is_same(&other)) {
                return Err(ConfigError::new("listen", "each address once", address));
            }
        }
        Ok(())
    }

    fn validate_deadlines(&self) -> Result<(), ConfigError> {
        let deadlines = [
            ("header-timeout", Some(self.header_timeout)),
            ("body-timeout", Some(self.body_timeout)),
            ("write-timeout", Some(self.write_stall_timeout)),
            ("idle-timeout", Some(self.idle_timeout)),
            ("handler-timeout", self.handler_timeout),
        ];
        for (name, deadline) in deadlines {
            let Some(deadline) = deadline else { continue };
            if deadline.is_zero() || deadline > DEADLINE_MAX {
                return Err(ConfigError::new(name, "more than 0 and 24 hours at most", Shown(deadline)));
            }
        }
        for (name, time) in [("drain-delay", self.drain_delay), ("drain-timeout", self.drain_timeout)] {
            if time > DEADLINE_MAX {
                return Err(ConfigError::new(name, "24 hours at most", Shown(time)));
            }
        }
        if !(TICK_MIN..=TICK_MAX).contains(&self.tick) {
            return Err(ConfigError::new("tick", "100 us to 100 ms", Shown(self.tick)));
        }
        Ok(())
    }

    fn validate_limits(&self) -> Result<(), ConfigError> {
        let head = self.head_bytes_max as u64;
        let checks = [
            (
                "max-connections",
                "a number of connections",
                1,
                CONNECTIONS_MAX_CEILING as u64,
                self.connections_max as u64,
            ),
            ("max-requests", "a number of requests", 1, u64::MAX, self.requests_per_connection_max.unwrap_or(1)),
            ("max-head", "bytes", HEAD_BYTES_MIN as u64, HEAD_BYTES_CEILING as u64, head),
            ("max-headers", "a number of fields", 1, HEADERS_CEILING as u64, self.headers_max as u64),
            ("max-uri", "bytes, fewer than max-head", 1, head.saturating_sub(1), self.uri_bytes_max as u64),
            ("max-body", "bytes", 0, isize::MAX as u64, self.body_bytes_max as u64),
            ("backlog", "a number of connections", 1, i32::MAX as u64, u64::from(self.backlog)),
        ];
        checks.into_iter().try_for_each(|(name, what, least, most, got)| within(name, what, least, most, got))
    }

    fn validate_endpoints(&self) -> Result<(), ConfigError> {
        // What RFC 6750 §2.1 allows, so that any client can send it.
        let is_token = |Secret(token): &Secret| {
            !token.is_empty() && token.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~+/=".contains(&b))
        };
        if !self.stats_token.as_ref().is_none_or(is_token) {
            return Err(ConfigError::new("stats-token", "letters, digits and -._~+/= only", "another"));
        }
        let named = self.endpoints.named();
        for (index, (name, path)) in named.into_iter().enumerate() {
            let Some(path) = path else { continue };
            let is_path = path.starts_with('/')
                && path.len() <= ENDPOINT_PATH_BYTES_MAX
                && path.bytes().all(|b| b.is_ascii_graphic() && !b"?#%{}\\".contains(&b));
            if !is_path {
                return Err(ConfigError::new(name, "a path such as /healthz, or off", path));
            }
            if let Some((other, _)) = named[..index].iter().find(|(_, other)| *other == Some(path)) {
                return Err(ConfigError::new(name, format!("another path than {other}'s, or off"), path));
            }
        }
        Ok(())
    }
}

fn within(name: &'static str, what: &str, least: u64, most: u64, got: u64) -> Result<(), ConfigError> {
    if (least..=most).contains(&got) {
        return Ok(());
    }
    let expected = match most {
        u64::MAX => format!("{what}, {least} or more"),
        _ => format!("{what}, {least} to {most}"),
    };
    Err(ConfigError::new(name, expected, got))
}

/// A duration as a flag takes it.
struct Shown(Duration);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.as_secs(), self.0.subsec_micros()) {
            (seconds, 0) => write!(f, "{seconds}s"),
            (_, micros) if micros % 1000 == 0 => write!(f, "{}ms", self.0.as_millis()),
            _ => write!(f, "{}us", self.0.as_micros()),
        }
    }
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::Cpu => "cpu",
            Self::Random => "random",
            Self::RoundRobin => "round-robin",
            Self::LeastConn => "least-conn",
        })
    }
}

// ---- the error -----------------------------------------------------------------------------------

/// A value that does not fit. Shown as `header-timeout: expected more than 0 and 24 hours at most, got 0s`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The flag's name, without dashes in front.
    pub name: &'static str,
    /// What would fit, with the cure where it is not the same.
    pub expected: String,
    /// What came.
    pub got: String,
}

impl ConfigError {
    fn new(name: &'static str, expected: impl Into<String>, got: impl fmt::Display) -> Self {
        Self { name, expected: expected.into(), got: got.to_string() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, got {}", self.name, self.expected, self.got)
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_auto_answers_local_listeners_only() {
        let local: Address = "unix:/x".parse().unwrap();
        let open: Address = ":80".parse().unwrap();
        let shown = |policy: StatsPolicy| (policy.is_on_at(&local), policy.is_on_at(&open));
        assert_eq!(shown(StatsPolicy::Auto), (true, false));
        assert_eq!(shown(StatsPolicy::On), (true, true));
        assert_eq!(shown(StatsPolicy::Off), (false, false));
    }

    /// The error of a config that was changed so; "" if it is still good.
    fn error(change: impl FnOnce(&mut ServerConfig)) -> String {
        let mut config = ServerConfig::default();
        change(&mut config);
        config.validate().err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn defaults_are_valid() {
        assert_eq!(error(|_| ()), "");
    }

    #[test]
    fn numbers_are_bounded_on_both_sides() {
        #[track_caller]
        fn check(set: fn(&mut ServerConfig, u64), name: &str, good: &[u64], bad: &[u64]) {
            for &value in good {
                assert_eq!(error(|config| set(config, value)), "", "{name} {value}");
            }
            for &value in bad {
                let error = error(|config| set(config, value));
                assert!(error.starts_with(&format!("{name}: expected")), "{name} {value}: {error}");
            }
        }
        let most = SHARDS_MAX as u64;
        check(|c, n| c.shards = Some(n as usize), "shards", &[1, most], &[0, most + 1]);
        let most = CONNECTIONS_MAX_CEILING as u64;
        check(|c, n| c.connections_max = n as usize, "max-connections", &[1, most], &[0, most + 1]);
        check(|c, n| c.requests_per_connection_max = Some(n), "max-requests", &[1, u64::MAX], &[0]);
        let (least, most) = (HEAD_BYTES_MIN as u64, HEAD_BYTES_CEILING as u64);
        let set = |c: &mut ServerConfig, n| (c.head_bytes_max, c.uri_bytes_max) = (n as usize, 1);
        check(set, "max-head", &[least, most], &[0, least - 1, most + 1]);
        let most = HEADERS_CEILING as u64;
        check(|c, n| c.headers_max = n as usize, "max-headers", &[1, most], &[0, most + 1]);
        let most = HEAD_BYTES_MAX as u64 - 1;
        check(|c, n| c.uri_bytes_max = n as usize, "max-uri", &[1, most], &[0, most + 1]);
        let most = i32::MAX as u64;
        check(|c, n| c.backlog = n as u32, "backlog", &[1, most], &[0, most + 1]);
        let day = DEADLINE_MAX.as_micros() as u64;
        check(|c, n| c.header_timeout = Duration::from_micros(n), "header-timeout", &[1, day], &[0, day + 1]);
        check(|c, n| c.body_timeout = Duration::from_micros(n), "body-timeout", &[1, day], &[0, day + 1]);
        check(|c, n| c.write_stall_timeout = Duration::from_micros(n), "write-timeout", &[1, day], &[0, day + 1]);
        check(|c, n| c.idle_timeout = Duration::from_micros(n), "idle-timeout", &[1, day], &[0, day + 1]);
        check(|c, n| c.handler_timeout = Some(Duration::from_micros(n)), "handler-timeout", &[1, day], &[0, day + 1]);
        check(|c, n| c.drain_delay = Duration::from_micros(n), "drain-delay", &[0, day], &[day + 1]);
        check(|c, n| c.drain_timeout = Duration::from_micros(n), "drain-timeout", &[0, day], &[day + 1]);
        check(|c, n| c.tick = Duration::from_micros(n), "tick", &[100, 100_000], &[0, 99, 100_001]);
    }

    #[test]
    fn addresses_come_once_and_not_without_end() {
        let with = |listen: &[&str], echo: &[&str]| {
            let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
            error(|config| (config.listen, config.echo) = (parse(listen), parse(echo)))
        };
        assert_eq!(with(&["[::]:80", "0.0.0.0:80", "unix:/a"], &["unix:/b"]), "");
        assert_eq!(with(&[":0", ":0"], &[]), "");
        assert_eq!(with(&[], &[]), "listen: expected a number of addresses, 1 to 64, got 0");
        assert_eq!(with(&[":80", "0.0.0.0:80"], &[]), "listen: expected each address once, got 0.0.0.0:80");
        assert_eq!(with(&[":80"], &[":80"]), "listen: expected each address once, got 0.0.0.0:80");
        assert_eq!(
            with(&["unix:/a", "unix:/a?mode=600"], &[]),
            "listen: expected each address once, got unix:/a?mode=600"
        );
        assert_eq!(with(&[":0"; LISTEN_ADDRESSES_MAX], &[]), "");
        assert_ne!(with(&[":0"; LISTEN_ADDRESSES_MAX], &[":0"]), "");
    }

    #[test]
    fn endpoints_are_distinct_plain_paths() {
        let with = |path: &str| error(|config| config.endpoints.readyz = Some(path.to_owned()));
        assert_eq!(with("/a/b-c_d.e~"), "");
        for path in ["", "a", "/a b", "/a?b", "/a#", "/%61", "/{x}", "/a\\b", "/\u{e9}", "/a\r"] {
            let expected = format!("readyz: expected a path such as /healthz, or off, got {path}");
            assert_eq!(with(path), expected);
        }
        assert_eq!(with("/livez"), "readyz: expected another path than livez's, or off, got /livez");
        assert_eq!(with(&format!("/{}", "a".repeat(ENDPOINT_PATH_BYTES_MAX - 1))), "");
        assert_ne!(with(&format!("/{}", "a".repeat(ENDPOINT_PATH_BYTES_MAX))), "");
        assert_eq!(error(|config| (config.endpoints.livez, config.endpoints.readyz) = (None, None)), "");
    }

    #[test]
    fn kernel_programs_do_not_share_a_port() {
        let with = |balance, share_port| error(|c| (c.balance, c.share_port) = (balance, share_port));
        assert_eq!(with(Balance::Random, false), "");
        assert_eq!(with(Balance::LeastConn, true), "");
        assert!(with(Balance::Cpu, true).starts_with("balance: expected kernel, round-robin or least-conn together"));
    }

    #[test]
    fn durations_are_shown_in_whole_units() {
        let shown = |micros| Shown(Duration::from_micros(micros)).to_string();
        assert_eq!([0, 99, 1500, 2000, 3_000_000].map(shown), ["0s", "99us", "1500us", "2ms", "3s"]);
    }
}
