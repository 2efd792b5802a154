//! What a host does for a server and what it withholds, each with why it matters and the cure. Floor 8.
//!
//! For: `everycore doctor`. Tries what can be tried (a ring, a whole server on a port of its own), reads the rest from
//! `/proc` and `/sys`, and changes nothing but its own process's soft limits. What cannot be read is told as such and
//! is no fault: containers hide much of it.

use crate::{
    Error, Router, Server,
    config::{Address, ServerConfig},
    limits::{CONNECTIONS_MAX, HEALTHCHECK_TIMEOUT, MEMLOCK_BYTES_ADVISED},
    preflight::{Platform, Preflight, RingUnavailable, memlock_needed, preflight_for},
    ring::{
        probe::Features,
        rlimit::{files_for, read_limits},
    },
    topology::{Host, PinMode, ShardPlan},
};
use serde::Serialize;
use std::{
    fmt, fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    path::Path,
    thread,
};

mod cores;
mod kernel;

// ---- the report ----------------------------------------------------------------------------------

/// How a thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Nothing to do.
    Ok,
    /// It serves, but worse than it could.
    Warning,
    /// It does not serve.
    Broken,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Broken => "broken",
        })
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What, in a word: does not change from version to version.
    pub name: &'static str,
    /// How it stands.
    pub state: State,
    /// What was found.
    pub found: String,
    /// Why it matters.
    pub why: &'static str,
    /// What to do; `None` if there is nothing to do.
    pub cure: Option<String>,
}

impl Check {
    fn ok(name: &'static str, why: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: State::Ok, found: found.into(), why, cure: None }
    }

    /// This check with a cure, and so no longer ok.
    fn or(self, state: State, cure: impl Into<String>) -> Self {
        Self { state, cure: Some(cure.into()), ..self }
    }

    /// A warning if `is_bad`.
    fn warn_if(self, is_bad: bool, cure: impl FnOnce() -> String) -> Self {
        if is_bad { self.or(State::Warning, cure()) } else { self }
    }
}

/// All that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Of everycore.
    pub version: &'static str,
    /// The kernel's release.
    pub kernel: String,
    /// Whose words the cures are in.
    pub platform: Platform,
    /// Shards that a server would start here.
    pub shards: usize,
    /// The worst of `checks`.
    pub state: State,
    /// Each by itself.
    pub checks: Vec<Check>,
    /// How to start it on the platform, so that nothing above is in the way.
    pub start: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "everycore {} on Linux {} ({})\n", self.version, self.kernel, self.platform)?;
        for check in &self.checks {
            writeln!(f, "{:8} {:22} {}", check.state, check.name, check.found)?;
            if let Some(cure) = &check.cure {
                writeln!(f, "{:8}   why: {}\n{:8}   cure: {cure}", "", check.why, "")?;
            }
        }
        let count = |state| self.checks.iter().filter(|check| check.state == state).count();
        let warnings = count(State::Warning);
        let verdict = if self.state == State::Broken { "cannot serve here" } else { "can serve here" };
        let plural = if warnings == 1 { "" } else { "s" };
        write!(
            f,
            "\n{verdict}: {} broken, {warnings} warning{plural}\nto start it: {}",
            count(State::Broken),
            self.start
        )
    }
}

/// What to look at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Examination {
    /// Shards that are to run; `None`: as many as `serve` would choose.
    pub shards: Option<usize>,
    /// Whose words the cures are in; `None`: what is found around us.
    pub platform: Option<Platform>,
}

impl Examination {
    /// Looks at this host. Takes a fraction of a second; where locked memory is short, two seconds.
    pub fn run(self) -> Report {
        let root = Path::new("/");
        let host = Host::read();
        // With fewer cores than shards they cannot be pinned: that is told, and the rest is looked at all the same.
        let plan = ShardPlan::decide(self.shards, None, PinMode::Auto, &host);
        let shards = plan.as_ref().map_or_else(|_| self.shards.unwrap_or(1), ShardPlan::shards);
        // On a thread of its own: rings tried on this one would go on interrupting its system calls (EINTR).
        let checked = thread::scope(|scope| scope.spawn(|| preflight_for(shards, self.platform)).join());
        let checked = checked.expect("the preflight does not panic");
        let platform = match &checked {
            Ok(checked) => checked.platform,
            Err(error) => error.platform(),
        };

        let mut checks = vec![platform_check(platform), ring_check(&checked)];
        if let Ok(checked) = &checked {
            checks.extend(feature_checks(&checked.features));
            checks.push(trial_check(&checks_config(self.shards), shards, platform));
        }
        checks.push(memlock_check(&checked, shards, platform, is_served(&checks)));
        checks.push(nofile_check(shards, platform));
        checks.extend(cores::checks(&plan, &host, platform));
        checks.extend(kernel::checks(root, platform, plan.as_ref().ok()));
        Report {
            version: env!("CARGO_PKG_VERSION"),
            kernel: read(root, "proc/sys/kernel/osrelease").unwrap_or_else(|| "of unknown release".into()),
            platform,
            shards,
            state: checks.iter().map(|check| check.state).max().unwrap_or(State::Ok),
            checks,
            start: start(platform, shards),
        }
    }
}

/// A file's text without the white space around it; `None` if it is not to be read here, or is empty.
fn read(root: &Path, path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(root.join(path)).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

// ---- what is tried -------------------------------------------------------------------------------

fn platform_check(platform: Platform) -> Check {
    Check::ok("platform", "tells who can allow what is missing", platform.to_string())
}

fn ring_check(checked: &Result<Preflight, RingUnavailable>) -> Check {
    let check = |found: String| Check::ok("io_uring", "all of a shard's network I/O goes through its ring", found);
    match checked {
        Ok(_) => check("a ring opens, with the flags that a shard's has".into()),
        Err(error) => check(error.reason()).or(State::Broken, error.cure()),
    }
}

/// Each feature of the ring that a shard uses, and what is lost without it.
fn feature_checks(features: &Features) -> impl Iterator<Item = Check> {
    let newer = "boot Linux 6.4 or later";
    let features = [
        ("multishot accept", features.multishot_accept, "one operation accepts all connections; needed", None),
        ("buffer ring", features.buffer_ring, "idle connections own no buffer; needed", None),
        ("multishot receive", features.multishot_receive, "one operation receives a whole connection; needed", None),
        (
            "multishot timeout",
            features.multishot_timeout,
            "without it a busy shard waits for one event at a time: more system calls a request",
            Some(newer),
        ),
    ];
    features.into_iter().map(|(name, is_there, why, cure)| match (is_there, cure) {
        (true, _) => Check::ok(name, why, "there"),
        (false, Some(cure)) => Check::ok(name, why, "not there").or(State::Warning, cure),
        (false, None) => Check::ok(name, why, "not there").or(State::Broken, "boot Linux 6.1 or later"),
    })
}

/// A server on a port of loopback that nobody else has.
fn checks_config(shards: Option<usize>) -> ServerConfig {
    ServerConfig {
        listen: vec![Address::Tcp((Ipv4Addr::LOCALHOST, 0).into())],
        shards,
        // Whatever the number of cores: whether pinning works is told by them.
        pin: if shards.is_some() { PinMode::Off } else { PinMode::Auto },
        ..ServerConfig::default()
    }
}

/// The proof: a whole server is started, asked and ended.
fn trial_check(config: &ServerConfig, shards: usize, platform: Platform) -> Check {
    let plural = if shards == 1 { "" } else { "s" };
    let why = "nothing tells better whether it serves than a server";
    let running = match Server::new(config.clone()).start(|_| Router::new()) {
        Ok(running) => running,
        Err(error) => {
            let (found, cure) = match &error {
                Error::RingUnavailable(error) => (error.reason(), error.cure_for(platform)),
                error => (error.to_string(), "see above, or report this".into()),
            };
            return Check::ok(TRIAL, why, found).or(State::Broken, cure);
        }
    };
    let answer = running.addresses().first().map(ask);
    running.handle().stop();
    let ended = running.wait();
    match (answer, ended) {
        (Some(Ok(line)), Ok(())) if line.contains(" 200 ") => {
            Check::ok(TRIAL, why, format!("{shards} shard{plural} started, answered on loopback and ended"))
        }
        (answer, ended) => Check::ok(TRIAL, why, format!("it started, but: {answer:?}, {ended:?}"))
            .or(State::Broken, "see whether loopback is up (`ip address show lo`), or report this"),
    }
}

const TRIAL: &str = "trial";

fn is_served(checks: &[Check]) -> bool {
    checks.iter().any(|check| check.name == TRIAL && check.state == State::Ok)
}

/// The status line that the built-in health endpoint answers with.
fn ask(address: &Address) -> Result<String, std::io::Error> {
    let Address::Tcp(address) = address else { return Ok(String::new()) };
    let mut stream = TcpStream::connect_timeout(address, HEALTHCHECK_TIMEOUT)?;
    stream.set_read_timeout(Some(HEALTHCHECK_TIMEOUT))?;
    write!(stream, "GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

// ---- limits --------------------------------------------------------------------------------------

fn memlock_check(
    checked: &Result<Preflight, RingUnavailable>,
    shards: usize,
    platform: Platform,
    is_served: bool,
) -> Check {
    let why = "kernels charge rings to it, for all processes of a user together; a shard without a ring does not start";
    let name = "memlock";
    let kib = |bytes: u64| bytes.div_ceil(1024);
    match checked {
        Ok(checked) => {
            let memlock = checked.memlock;
            let limit = match memlock.limit {
                u64::MAX => "unlimited".to_owned(),
                bytes => format!("{} KiB", kib(bytes)),
            };
            let needed = format!("{limit}; {shards} shards need {} KiB", kib(memlock.needed));
            if memlock.is_exempt {
                return Check::ok(name, why, format!("{limit}, and this process is exempt (CAP_IPC_LOCK)"));
            }
            let is_short = memlock.is_short();
            let found = if is_short && is_served { format!("{needed}, but this kernel charges less") } else { needed };
            Check::ok(name, why, found)
                .warn_if(is_short && !is_served, || platform.memlock_cure(memlock_needed(shards)))
        }
        Err(_) => match read_limits() {
            Ok(limits) => {
                Check::ok(name, why, format!("{limits}; {shards} shards need {} KiB", kib(memlock_needed(shards))))
                    .warn_if(limits.memlock.soft < memlock_needed(shards), || {
                        platform.memlock_cure(memlock_needed(shards))
                    })
            }
            Err(error) => Check::ok(name, why, format!("cannot be read: {error}")),
        },
    }
}

fn nofile_check(shards: usize, platform: Platform) -> Check {
    let why = "each connection is an open file; with none left, new connections wait";
    match read_limits() {
        Ok(limits) => {
            let connections = limits.connections_max(CONNECTIONS_MAX, shards);
            let files = limits.nofile.soft;
            Check::ok("nofile", why, format!("{files}: enough for {connections} connections"))
                .warn_if(connections < CONNECTIONS_MAX, || platform.nofile_cure(files_for(CONNECTIONS_MAX, shards)))
        }
        Err(error) => Check::ok("nofile", why, format!("cannot be read: {error}")),
    }
}

// ---- how to start --------------------------------------------------------------------------------

fn start(platform: Platform, shards: usize) -> String {
    let memlock = memlock_needed(shards).next_multiple_of(MEMLOCK_BYTES_ADVISED);
    let files = files_for(CONNECTIONS_MAX, shards);
    match platform {
        Platform::Docker | Platform::DockerDesktop | Platform::Podman => {
            let command = if platform == Platform::Podman { "podman" } else { "docker" };
            format!(
                "{command} run --security-opt seccomp=docker/seccomp.json --ulimit memlock={memlock} --ulimit \
                 nofile={files} --read-only --cap-drop ALL --security-opt no-new-privileges -p 8080:8080 everycore"
            )
        }
        Platform::Kubernetes => {
            "kubectl apply -k deploy/kubernetes/base (a Deployment, and the seccomp profile for the nodes)".into()
        }
        Platform::Systemd => "install deploy/systemd/everycore.service, then `systemctl enable --now everycore`".into(),
        _ => "everycore serve".into(),
    }
}
