//! The arguments of the `everycore` binary, and how they become a [`ServerConfig`].
//!
//! Floor 8. Every flag of `serve` can come from the environment too, as `EVERYCORE_` and its name; a flag wins.
//! Nothing is done here but reading a token's file and AJP's secret, and the host is not looked at.

mod values;

pub use values::*;

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use tracing_subscriber::filter::Targets;

use super::ajp::AjpArgs;
use super::diagnostics::LogFormat;
use crate::config::{AccessLogFormat, Address, ConfigError, Endpoints, Secret, ServerConfig, address_or_port};
use crate::http::TrustedProxy;
use crate::limits::*;
use crate::preflight::Platform;
use crate::topology::CpuList;

/// What the process tells its parent when it ends.
pub mod exit {
    /// Ended as told; or, of `doctor` and `healthcheck`, all is well.
    pub const OK: u8 = 0;
    /// Could not start (a port in use, say), or failed while running.
    pub const RUNTIME: u8 = 1;
    /// The arguments do not make sense; clap's own code for that.
    pub const USAGE: u8 = 2;
    /// io_uring cannot be used on this host (`EX_UNAVAILABLE` of sysexits.h).
    pub const UNAVAILABLE: u8 = 69;
}

/// HTTP server runtime for Linux: one pinned executor, one listener and one io_uring per core.
#[derive(Debug, Parser)]
#[command(name = "everycore", version, about, max_term_width = 100, subcommand_required = true)]
#[command(
    after_help = "Exit codes: 0 ended as told, 1 could not start or failed, 2 wrong usage, 69 io_uring unavailable; of bench, 3: a --fail-if held."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve until SIGTERM or SIGINT, then drain. A second signal ends at once.
    Serve(Box<ServeArgs>),
    /// Measure an HTTP/1 server: throughput, latency, errors.
    Bench(Box<super::bench::BenchArgs>),
    /// Ask a server whether it is well: exit code 0 or 1.
    Healthcheck(HealthcheckArgs),
    /// Tell whether this host can serve, what limits it, and the cure: exit code 0 or 69.
    Doctor(DoctorArgs),
    /// Print the seccomp profile that lets a container use io_uring, and little else.
    Seccomp(SeccompArgs),
    /// Watch the shards of a running server in the terminal.
    Top(TopArgs),
}

/// Arguments of `top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// The server, or its stats if they are elsewhere than at /__stats.
    #[arg(default_value = "http://127.0.0.1:8080", env = "EVERYCORE_TOP_URL")]
    pub url: String,
    /// How often to ask
    #[arg(long, short, value_name = "TIME", value_parser = duration, default_value = "1s")]
    pub interval: Duration,
    /// The server's --stats-token; @FILE reads it
    #[arg(long, value_name = "TOKEN|@FILE", env = "EVERYCORE_STATS_TOKEN", hide_env_values = true)]
    #[arg(value_parser = secret)]
    pub token: Option<Secret>,
}

/// Arguments of `healthcheck`.
#[derive(Debug, Args)]
pub struct HealthcheckArgs {
    /// An http:// address that answers 200 if all is well. A unix socket cannot be asked: listen on a port of 127.0.0.1 too.
    #[arg(default_value = "http://127.0.0.1:8080/healthz", env = "EVERYCORE_HEALTHCHECK_URL")]
    pub url: String,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Take warnings for failures: exit code 1.
    #[arg(long)]
    pub strict: bool,
    /// Give cures in the words of this platform; default: the one around this process.
    #[arg(long = "for", value_name = "PLATFORM")]
    pub platform: Option<PlatformArg>,
    /// Number of shards that are to run, or auto.
    #[arg(long, value_name = "N|auto", env = "EVERYCORE_SHARDS", default_value = "auto", value_parser = shards)]
    pub shards: Auto<usize>,
}

/// A [`Platform`] that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlatformArg {
    /// Docker Engine.
    Docker,
    /// Podman.
    Podman,
    /// A pod.
    Kubernetes,
    /// A systemd service.
    Systemd,
    /// No container.
    Host,
}

impl From<PlatformArg> for Platform {
    fn from(arg: PlatformArg) -> Self {
        match arg {
            PlatformArg::Docker => Self::Docker,
            PlatformArg::Podman => Self::Podman,
            PlatformArg::Kubernetes => Self::Kubernetes,
            PlatformArg::Systemd => Self::Systemd,
            PlatformArg::Host => Self::Host,
        }
    }
}

/// Arguments of `seccomp`.
#[derive(Debug, Args)]
pub struct SeccompArgs {
    /// In the form of containerd, CRI-O and Kubernetes, not of Docker and Podman.
    #[arg(long)]
    pub oci: bool,
    /// Write it to this file, in one step.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Arguments of `serve`. Times: 10 or 10s, 250ms, 500us, 2m, 1h.
#[derive(Debug, Args)]
#[command(next_line_help = false)]
pub struct ServeArgs {
    #[allow(rustdoc::broken_intra_doc_links)] // it is help, where brackets are brackets
    /// IP:PORT, [IPv6]:PORT, :PORT (every IPv4 interface) or unix:/path?mode=660; may come again, or as
    /// a list with commas
    #[arg(long, short, value_name = "ADDR", env = "EVERYCORE_LISTEN", value_delimiter = ',')]
    #[arg(default_value = "127.0.0.1:8080", help_heading = LISTENING)]
    pub listen: Vec<Address>,
    /// Static files, in place of the demo.
    #[command(flatten)]
    pub site: super::site::SiteArgs,
    /// Serve TCP echo at this address too, or at this port of 127.0.0.1; may come again, or as a list with commas
    #[arg(long, value_name = "ADDR|PORT", env = "EVERYCORE_ECHO", value_delimiter = ',')]
    #[arg(value_parser = address_or_port, help_heading = LISTENING)]
    pub echo: Vec<Address>,
    /// AJP.
    #[command(flatten)]
    pub ajp: AjpArgs,
    /// Connections that wait for accept, each listener
    #[arg(long, value_name = "N", env = "EVERYCORE_BACKLOG", default_value_t = BACKLOG, help_heading = LISTENING)]
    #[arg(value_parser = number::<u32>)]
    pub backlog: u32,
    /// Let another process listen on the same ports, for a restart without a gap
    #[arg(long, env = "EVERYCORE_SHARE_PORT", value_parser = yes_or_no, help_heading = LISTENING)]
    pub share_port: bool,
    /// Believe Forwarded and X-Forwarded-For of this network, or of unix sockets; may come again, or with commas
    #[arg(long, value_name = "NET|unix", env = "EVERYCORE_TRUSTED_PROXY", value_delimiter = ',')]
    #[arg(help_heading = LISTENING)]
    pub trusted_proxy: Vec<TrustedProxy>,
    /// Accept a connection once its first bytes are there (TCP_DEFER_ACCEPT)
    #[arg(long, env = "EVERYCORE_DEFER_ACCEPT", value_parser = yes_or_no, help_heading = LISTENING)]
    pub defer_accept: bool,
    /// Take data in the first packet (TCP_FASTOPEN)
    #[arg(long, env = "EVERYCORE_FAST_OPEN", value_parser = yes_or_no, help_heading = LISTENING)]
    pub fast_open: bool,

    /// Number of shards, or auto: as many as cores and quota allow
    #[arg(long, value_name = "N|auto", env = "EVERYCORE_SHARDS", default_value = "auto", help_heading = CORES)]
    #[arg(value_parser = shards)]
    pub shards: Auto<usize>,
    /// Cores to use, such as 0-3,6; default: all that are allowed
    #[arg(long, value_name = "LIST", env = "EVERYCORE_CPUS", help_heading = CORES)]
    pub cpus: Option<CpuList>,
    /// Tie each shard to a core; auto: unless a quota is smaller than the cores
    #[arg(long, value_name = "WHEN", env = "EVERYCORE_PIN", default_value = "auto", help_heading = CORES)]
    pub pin: Switch,
    /// Which shard gets a new connection
    #[arg(long, value_name = "HOW", env = "EVERYCORE_BALANCE", default_value = "kernel", help_heading = CORES)]
    pub balance: BalanceArg,
    /// How often a busy shard visits its executor, in microseconds
    #[arg(long, value_name = "US", env = "EVERYCORE_TICK", help_heading = CORES)]
    #[arg(value_parser = number::<u64>, default_value_t = TICK.as_micros() as u64)]
    pub tick: u64,

    /// Open connections, all shards together
    #[arg(long, value_name = "N", env = "EVERYCORE_MAX_CONNECTIONS", help_heading = LIMITS)]
    #[arg(value_parser = number::<usize>, default_value_t = CONNECTIONS_MAX)]
    pub max_connections: usize,
    /// Requests answered on one connection, or off
    #[arg(long, value_name = "N|off", env = "EVERYCORE_MAX_REQUESTS", default_value = "off", help_heading = LIMITS)]
    #[arg(value_parser = number_or_off)]
    pub max_requests: Off<u64>,
    /// Bytes of a request head
    #[arg(long, value_name = "BYTES", env = "EVERYCORE_MAX_HEAD", default_value_t = HEAD_BYTES_MAX, help_heading = LIMITS)]
    #[arg(value_parser = number::<usize>)]
    pub max_head: usize,
    /// Fields of a request head
    #[arg(long, value_name = "N", env = "EVERYCORE_MAX_HEADERS", default_value_t = HEADERS_MAX, help_heading = LIMITS)]
    #[arg(value_parser = number::<usize>)]
    pub max_headers: usize,
    /// Bytes of a request target
    #[arg(long, value_name = "BYTES", env = "EVERYCORE_MAX_URI", default_value_t = URI_BYTES_MAX, help_heading = LIMITS)]
    #[arg(value_parser = number::<usize>)]
    pub max_uri: usize,
    /// Bytes of a request body that is collected in memory
    #[arg(long, value_name = "BYTES", env = "EVERYCORE_MAX_BODY", help_heading = LIMITS)]
    #[arg(value_parser = number::<usize>, default_value_t = BODY_BUFFERED_BYTES_MAX)]
    pub max_body: usize,

    /// From the first byte of a request head to its last
    #[arg(long, value_name = "TIME", env = "EVERYCORE_HEADER_TIMEOUT", help_heading = DEADLINES)]
    #[arg(value_parser = duration, default_value = "10s")]
    pub header_timeout: Duration,
    /// Wait for the next bytes of a request body; after it the least rate counts
    #[arg(long, value_name = "TIME", env = "EVERYCORE_BODY_TIMEOUT", help_heading = DEADLINES)]
    #[arg(value_parser = duration, default_value = "20s")]
    pub body_timeout: Duration,
    /// Bytes a second that a request body must reach on average, 0: no such bound
    #[arg(long, value_name = "BYTES", env = "EVERYCORE_MIN_BODY_RATE", help_heading = DEADLINES)]
    #[arg(value_parser = number::<u32>, default_value_t = BODY_RATE_MIN)]
    pub min_body_rate: u32,
    /// Wait for a peer that takes no byte of an answer
    #[arg(long, value_name = "TIME", env = "EVERYCORE_WRITE_TIMEOUT", help_heading = DEADLINES)]
    #[arg(value_parser = duration, default_value = "30s")]
    pub write_timeout: Duration,
    /// Wait for the next request on a kept connection
    #[arg(long, value_name = "TIME", env = "EVERYCORE_IDLE_TIMEOUT", help_heading = DEADLINES)]
    #[arg(value_parser = duration, default_value = "75s")]
    pub idle_timeout: Duration,
    /// Time until a handler has an answer, or off
    #[arg(long, value_name = "TIME|off", env = "EVERYCORE_HANDLER_TIMEOUT", help_heading = DEADLINES)]
    #[arg(value_parser = duration_or_off, default_value = "off")]
    pub handler_timeout: Off<Duration>,
    /// Go on accepting for so long once told to end, with readyz at 503
    #[arg(long, value_name = "TIME", env = "EVERYCORE_DRAIN_DELAY", help_heading = DEADLINES)]
    #[arg(value_parser = duration, default_value = "0")]
    pub drain_delay: Duration,
    /// Time for the requests in flight after that
    #[arg(long, value_name = "TIME", env = "EVERYCORE_DRAIN_TIMEOUT", help_heading = DEADLINES)]
    #[arg(value_parser = duration, default_value = "8s")]
    pub drain_timeout: Duration,

    /// Compress answers as they are made, for clients that take it: those of handlers, or files too
    #[arg(long, value_name = "WHAT", env = "EVERYCORE_COMPRESS", default_value = "off", help_heading = CONTENT)]
    pub compress: CompressArg,

    /// Where stats and metrics are shown: on every address, nowhere, at an address of their own, which answers under
    /// overload and while draining, too; auto: on loopback addresses and unix sockets
    #[arg(long, value_name = "on|off|auto|ADDR", env = "EVERYCORE_STATS", default_value = "auto")]
    #[arg(value_parser = stats, help_heading = ENDPOINTS)]
    pub stats: StatsArg,
    /// What readers of stats and metrics must send as a bearer token; @FILE reads it
    #[arg(long, value_name = "TOKEN|@FILE", env = "EVERYCORE_STATS_TOKEN", hide_env_values = true)]
    #[arg(value_parser = secret, help_heading = ENDPOINTS)]
    pub stats_token: Option<Secret>,
    /// A line for each answer, or off
    #[arg(long, value_name = "off|combined|json", env = "EVERYCORE_ACCESS_LOG", default_value = "off", help_heading = LOGS)]
    #[arg(value_parser = access_log)]
    pub access_log: Off<AccessLogFormat>,
    /// The file it is appended to, opened anew on SIGHUP; default: standard output
    #[arg(long, value_name = "FILE", env = "EVERYCORE_ACCESS_LOG_FILE", help_heading = LOGS)]
    pub access_log_file: Option<PathBuf>,

    /// Which diagnostics go to standard error, such as info or warn,everycore=debug; default: RUST_LOG, or else
    /// warn,everycore=info,glommio=error
    #[arg(long, value_name = "FILTER", env = "EVERYCORE_LOG", help_heading = LOGS)]
    pub log: Option<Targets>,
    /// How they look
    #[arg(long, value_name = "FORMAT", env = "EVERYCORE_LOG_FORMAT", default_value = "text", help_heading = LOGS)]
    pub log_format: LogFormat,

    /// Path of the stats page, or off
    #[arg(long, value_name = "PATH|off", env = "EVERYCORE_STATS_PATH", help_heading = ENDPOINTS)]
    #[arg(value_parser = path_or_off, default_value = "/__stats")]
    pub stats_path: Off<String>,
    /// Path of Prometheus' metrics, or off
    #[arg(long, visible_alias = "metrics-path", value_name = "PATH|off", env = "EVERYCORE_METRICS", help_heading = ENDPOINTS)]
    #[arg(value_parser = path_or_off, default_value = "/metrics")]
    pub metrics: Off<String>,
    /// Path that tells whether every shard answers, or off
    #[arg(long, value_name = "PATH|off", env = "EVERYCORE_LIVEZ", help_heading = ENDPOINTS)]
    #[arg(value_parser = path_or_off, default_value = "/livez")]
    pub livez: Off<String>,
    /// Path that tells whether to send requests here, or off
    #[arg(long, value_name = "PATH|off", env = "EVERYCORE_READYZ", help_heading = ENDPOINTS)]
    #[arg(value_parser = path_or_off, default_value = "/readyz")]
    pub readyz: Off<String>,
    /// Path that tells both, or off
    #[arg(long, value_name = "PATH|off", env = "EVERYCORE_HEALTHZ", help_heading = ENDPOINTS)]
    #[arg(value_parser = path_or_off, default_value = "/healthz")]
    pub healthz: Off<String>,
}

const LISTENING: &str = "Listening";
const CORES: &str = "Cores";
const LIMITS: &str = "Limits";
const DEADLINES: &str = "Deadlines (10 or 10s, 250ms, 500us, 2m, 1h)";
const CONTENT: &str = "Content";
const ENDPOINTS: &str = "Endpoints";
const LOGS: &str = "Logs";

impl TryFrom<ServeArgs> for ServerConfig {
    type Error = ConfigError;

    /// Fails as [`ServerConfig::validate`] does.
    fn try_from(args: ServeArgs) -> Result<Self, ConfigError> {
        let config = Self {
            listen: args.listen,
            echo: args.echo,
            ajp: args.ajp.listeners()?,
            shards: args.shards.0,
            cpus: args.cpus,
            pin: args.pin.into(),
            balance: args.balance.into(),
            connections_max: args.max_connections,
            requests_per_connection_max: args.max_requests.0,
            header_timeout: args.header_timeout,
            body_timeout: args.body_timeout,
            body_rate_min: args.min_body_rate,
            write_stall_timeout: args.write_timeout,
            idle_timeout: args.idle_timeout,
            handler_timeout: args.handler_timeout.0,
            drain_delay: args.drain_delay,
            drain_timeout: args.drain_timeout,
            tick: Duration::from_micros(args.tick),
            head_bytes_max: args.max_head,
            headers_max: args.max_headers,
            uri_bytes_max: args.max_uri,
            body_bytes_max: args.max_body,
            trusted_proxies: args.trusted_proxy,
            backlog: args.backlog,
            share_port: args.share_port,
            defer_accept: args.defer_accept,
            fast_open: args.fast_open,
            endpoints: Endpoints {
                livez: args.livez.0,
                readyz: args.readyz.0,
                healthz: args.healthz.0,
                stats: args.stats_path.0,
                metrics: args.metrics.0,
            },
            stats: args.stats.policy,
            stats_listen: args.stats.listen,
            stats_token: args.stats_token,
            access_log: args.access_log.0,
            access_log_file: args.access_log_file,
        };
        config.validate()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::config::{AjpOptions, Balance, StatsPolicy};
    use crate::topology::PinMode;

    /// The config of `serve` with these flags; the process' environment must not speak of `EVERYCORE_`.
    fn config(flags: &str) -> Result<ServerConfig, String> {
        let args = ["everycore", "serve"].into_iter().chain(flags.split_whitespace());
        match Cli::try_parse_from(args).map_err(|error| error.to_string())?.command {
            Command::Serve(args) => ServerConfig::try_from(*args).map_err(|error| error.to_string()),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_flags_give_the_default_config() {
        assert_eq!(config("").unwrap(), ServerConfig::default());
    }

    #[test]
    fn every_flag_of_serve_has_its_variable() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        for arg in serve.get_arguments() {
            let Some(long) = arg.get_long().filter(|&long| long != "help") else {
                continue;
            };
            let expected = format!("EVERYCORE_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(arg.get_env().and_then(|name| name.to_str()), Some(expected.as_str()));
        }
    }

    #[test]
    fn flags_reach_the_config() {
        let all = config(
            "--listen :80 --listen unix:/a?mode=600,[::1]:1 --echo 7 --ajp 8009 --ajp-no-secret --ajp-packet-size 9000 \
             --ajp-trust-user --ajp-attributes A,B_* --shards 3 --cpus 0-2 --pin on --balance least-conn \
             --max-connections 9 --max-requests 8 --header-timeout 1 --body-timeout 2s --min-body-rate 7 \
             --write-timeout 250ms --idle-timeout 2m --handler-timeout 1h --drain-delay 4 --drain-timeout 5 --tick 500 \
             --max-head 4096 --max-headers 6 --max-uri 100 --max-body 0 --backlog 5 --share-port --defer-accept \
             --trusted-proxy 10.0.0.0/8,unix --trusted-proxy ::1 \
             --fast-open --livez off --readyz /r --healthz /h --stats-path /s --metrics off --stats on \
             --access-log json --access-log-file /l",
        );
        let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let expected = ServerConfig {
            listen: parse(&[":80", "unix:/a?mode=600", "[::1]:1"]),
            echo: parse(&["127.0.0.1:7"]),
            ajp: vec![(
                "127.0.0.1:8009".parse().unwrap(),
                AjpOptions::without_secret().packet_bytes_max(9000).trust_user().allow_attributes("A,B_*"),
            )],
            shards: Some(3),
            cpus: Some("0-2".parse().unwrap()),
            pin: PinMode::On,
            balance: Balance::LeastConn,
            connections_max: 9,
            requests_per_connection_max: Some(8),
            header_timeout: Duration::from_secs(1),
            body_timeout: Duration::from_secs(2),
            body_rate_min: 7,
            write_stall_timeout: Duration::from_millis(250),
            idle_timeout: Duration::from_secs(120),
            handler_timeout: Some(Duration::from_secs(3600)),
            drain_delay: Duration::from_secs(4),
            drain_timeout: Duration::from_secs(5),
            tick: Duration::from_micros(500),
            head_bytes_max: 4096,
            headers_max: 6,
            uri_bytes_max: 100,
            body_bytes_max: 0,
            trusted_proxies: ["10.0.0.0/8", "unix", "::1"].map(|proxy| proxy.parse().unwrap()).to_vec(),
            backlog: 5,
            share_port: true,
            defer_accept: true,
            fast_open: true,
            endpoints: Endpoints {
                livez: None,
                readyz: Some("/r".into()),
                healthz: Some("/h".into()),
                stats: Some("/s".into()),
                metrics: None,
            },
            stats: StatsPolicy::On,
            stats_listen: None,
            stats_token: None,
            access_log: Some(AccessLogFormat::Json),
            access_log_file: Some("/l".into()),
        };
        assert_eq!(all.unwrap(), expected);
    }

    #[test]
    fn wrong_values_say_what_was_expected() {
        #[track_caller]
        fn check(flags: &str, expected: &str) {
            let error = config(flags).unwrap_err();
            assert!(error.contains(expected), "{flags}: {error}");
        }
        check("--listen localhost:80", "host names are not looked up");
        check("--shards many", "expected a number, or auto");
        check("--shards 0", "shards: expected a number of shards, 1 to 1024, got 0");
        check("--cpus 3-1", "expected cores below 1024 such as 0-3,6, got \"3-1\"");
        check("--idle-timeout 5d", "expected a time such as 10, 10s, 250ms, 2m");
        check("--idle-timeout 0", "idle-timeout: expected more than 0 and 24 hours at most, got 0s");
        check("--balance fair", "[possible values: kernel, cpu, random, round-robin, least-conn]");
        check("--pin maybe", "[possible values: auto, on, off]");
        check("--livez health", "livez: expected a path such as /healthz, or off, got health");
        check("--access-log-file /l", "access-log-file: expected access-log to be combined or json, got /l");
        check("--access-log common", "expected off, combined or json");
        check("--log everycore=loud", "invalid");
        check("--log-format xml", "[possible values: text, json]");
        check("--trusted-proxy 10.0.0.0/33", "expected a network such as 10.0.0.0/8, an address, or unix");
        check("--ajp 8009", "ajp: expected either --ajp-secret-file or --ajp-no-secret with it, got neither");
        check("--ajp 8009 --ajp-no-secret --ajp-secret-file x", "with it, got both");
        check(
            "--ajp 8009 --ajp-secret-file /nowhere",
            "ajp-secret-file: expected a file that can be read, got /nowhere: ",
        );
        check(
            "--ajp :8009 --ajp-no-secret",
            "ajp: expected a loopback address or a unix socket where no secret is asked for",
        );
        check(
            "--ajp 8009 --ajp-no-secret --ajp-packet-size 8000",
            "ajp-packet-size: expected bytes, 8192 to 65536, got 8000",
        );
        check("--max-requests no", "expected a number, or off");
        check("--max-body 1M", "expected a whole number in digits, without a unit");
        check("--min-body-rate 1e3", "expected a whole number in digits, without a unit");
    }

    #[test]
    fn duration_reads_units() {
        let micros = |text| duration(text).map(|duration| duration.as_micros()).ok();
        for (text, expected) in [
            ("0", Some(0)),
            ("10", Some(10_000_000)),
            ("10s", Some(10_000_000)),
            ("250ms", Some(250_000)),
            ("7us", Some(7)),
            ("2m", Some(120_000_000)),
            ("1h", Some(3_600_000_000)),
            ("", None),
            ("s", None),
            ("-1", None),
            ("1.5s", None),
            ("1 s", None),
            ("1d", None),
            ("18446744073709551615", None),
            ("18446744073709551616us", None),
        ] {
            assert_eq!(micros(text), expected, "{text}");
        }
    }

    #[test]
    fn other_subcommands_parse() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' ')).map(|cli| cli.command);
        assert!(matches!(
            parse("everycore doctor --json --strict --for docker --shards 3"),
            Ok(Command::Doctor(DoctorArgs {
                json: true,
                strict: true,
                platform: Some(PlatformArg::Docker),
                shards: Auto(Some(3))
            }))
        ));
        let Ok(Command::Healthcheck(args)) = parse("everycore healthcheck") else { panic!("default address") };
        assert_eq!(args.url, "http://127.0.0.1:8080/healthz");
        assert_eq!(parse("everycore").unwrap_err().exit_code(), i32::from(exit::USAGE));
        assert_eq!(parse("everycore serve --nope").unwrap_err().exit_code(), i32::from(exit::USAGE));
    }
}
