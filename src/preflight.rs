//! Whether this host lets us run, told before any executor starts; and if not, why and the cure.
//!
//! Floor 3. glommio answers a blocked ring with "kernel too old" and insists on locked memory without a word of how
//! much is needed: so limits are raised, a ring is tried ([`ring::probe`](crate::ring::probe)) and its error is read
//! together with what the host tells. Nothing is started, nothing but soft limits is changed.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::limits::{CONNECTIONS_FEW, MEMLOCK_BYTES_MIN, MEMLOCK_BYTES_PER_PROCESS, MEMLOCK_BYTES_PER_SHARD};
use crate::ring::probe::{Features, probe};
use crate::ring::rlimit::{Limits, files_for, raise_limits};

mod platform;

pub use platform::Platform;

/// What a host that can serve has to offer.
#[derive(Clone, Debug, Serialize)]
pub struct Preflight {
    /// The kernel's release, such as `6.18.44`.
    pub kernel: String,
    /// What runs around us.
    pub platform: Platform,
    /// What the ring can do.
    pub features: Features,
    /// The limits, raised.
    pub limits: Limits,
    /// Whether they suffice for the shards.
    pub memlock: Memlock,
}

impl fmt::Display for Preflight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "io_uring on Linux {} ({}): {}; {}", self.kernel, self.platform, self.features, self.limits)
    }
}

impl Preflight {
    /// What to tell an operator whose limit on open files allows few of the connections wanted.
    ///
    /// One that allows fewer than wanted, but many, is told by `everycore doctor` only.
    pub fn nofile_warning(&self, wanted: usize, shards: usize) -> Option<String> {
        let connections = self.limits.connections_max(wanted, shards);
        let plural = if connections == 1 { "" } else { "s" };
        let cure = self.platform.nofile_cure(files_for(wanted, shards));
        (connections < wanted.min(CONNECTIONS_FEW)).then(|| {
            format!("{} open files allow {connections} connection{plural} at a time; {cure}", self.limits.nofile.soft)
        })
    }
}

/// Raises the limits and tries io_uring for a server of so many shards.
///
/// Locked memory that looks short is no error here, as old kernels do not charge rings to it:
/// see [`Memlock::warning`].
///
/// # Errors
/// No shard can start; with the cure for the platform at hand. The process should end with code 69.
pub fn preflight(shards: usize) -> Result<Preflight, RingUnavailable> {
    preflight_for(shards, None)
}

/// The same, with cures for another platform than the one around us (`None`: that one).
///
/// # Errors
/// As [`preflight`].
pub fn preflight_for(shards: usize, platform: Option<Platform>) -> Result<Preflight, RingUnavailable> {
    let host = HostFacts::read_here(platform);
    let limits = raise_limits().map_err(|error| host.explain(&error, shards, None))?;
    let memlock =
        Memlock { limit: limits.memlock.soft, needed: memlock_needed(shards), is_exempt: host.is_memlock_exempt };
    // glommio refuses to start below this, whoever we are.
    if memlock.limit < MEMLOCK_BYTES_MIN {
        return Err(RingUnavailable { cause: Cause::ShortOfMemory(memlock), host });
    }
    let features = probe().map_err(|error| host.explain(&error, shards, Some(limits)))?;
    let missing = features.missing();
    if !missing.is_empty() {
        return Err(RingUnavailable { cause: Cause::Missing(missing), host });
    }
    Ok(Preflight { kernel: host.kernel, platform: host.platform, features, limits, memlock })
}

/// Explains an error of opening a ring or an executor later, when a shard starts.
pub fn explain(error: &io::Error, shards: usize) -> RingUnavailable {
    let host = HostFacts::read_here(None);
    host.explain(error, shards, crate::ring::rlimit::read_limits().ok())
}

// ---- locked memory -------------------------------------------------------------------------------

/// Bytes of `RLIMIT_MEMLOCK` for so many shards: what was measured, or what glommio insists on.
///
/// ```
/// # use everycore::preflight::memlock_needed;
/// assert_eq!(memlock_needed(1), 512 * 1024);
/// assert!(memlock_needed(16) < 8 * 1024 * 1024);
/// ```
pub fn memlock_needed(shards: usize) -> u64 {
    let shards = (shards as u64).saturating_mul(MEMLOCK_BYTES_PER_SHARD);
    shards.saturating_add(MEMLOCK_BYTES_PER_PROCESS).max(MEMLOCK_BYTES_MIN)
}

/// Locked memory: what may be, what is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memlock {
    /// Bytes that all processes of this user may lock together; `u64::MAX`: no limit.
    pub limit: u64,
    /// Bytes for our shards.
    pub needed: u64,
    /// Whether the limit does not bind us (CAP_IPC_LOCK outside user namespaces).
    pub is_exempt: bool,
}

impl Memlock {
    /// Whether a kernel that charges rings (6.18 does) would refuse some.
    pub fn is_short(&self) -> bool {
        !self.is_exempt && self.limit < self.needed
    }

    /// What to tell an operator if it is short.
    pub fn warning(&self) -> Option<String> {
        self.is_short().then(|| format!("{self}: some kernels will refuse a shard's ring"))
    }
}

impl fmt::Display for Memlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (needed, limit) = (self.needed.div_ceil(1024), self.limit / 1024);
        write!(f, "{needed} KiB of locked memory are needed, this user may lock {limit} KiB in all")
    }
}

// ---- the host ------------------------------------------------------------------------------------

/// What is read to explain an error.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HostFacts {
    kernel: String,
    platform: Platform,
    /// `kernel.io_uring_disabled`, since 6.6.
    disabled: Option<u8>,
    /// Whether a seccomp filter is on this process.
    is_filtered: bool,
    is_memlock_exempt: bool,
}

impl HostFacts {
    fn read_here(platform: Option<Platform>) -> Self {
        let host = Self::read(Path::new("/"), |name| std::env::var(name).ok());
        Self { platform: platform.unwrap_or(host.platform), ..host }
    }

    fn read(root: &Path, env: impl Fn(&str) -> Option<String>) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let kernel = read("proc/sys/kernel/osrelease").trim().to_owned();
        // A filter binds a thread: ask for the one that is about to try.
        let status = read("proc/thread-self/status");
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let capabilities = field("CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
        // A capability of a user namespace (rootless containers) does not lift the limit.
        let is_first_namespace = read("proc/self/uid_map").split_whitespace().eq(["0", "0", "4294967295"]);
        const CAP_IPC_LOCK: u32 = 14;
        Self {
            platform: Platform::detect(root, env, &kernel),
            kernel,
            disabled: read("proc/sys/kernel/io_uring_disabled").trim().parse().ok(),
            is_filtered: field("Seccomp:") == Some("2"),
            is_memlock_exempt: is_first_namespace && capabilities >> CAP_IPC_LOCK & 1 == 1,
        }
    }

    fn explain(&self, error: &io::Error, shards: usize, limits: Option<Limits>) -> RingUnavailable {
        let cause = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => match self.disabled {
                Some(value @ 1..) => Cause::Disabled(value),
                _ => Cause::Forbidden,
            },
            Some(libc::ENOSYS) => Cause::NotThere,
            Some(libc::EINVAL) if !self.is_kernel_at_least(6, 1) => Cause::TooOld,
            Some(libc::ENOMEM) if limits.is_some() && !self.is_memlock_exempt => Cause::ShortOfMemory(Memlock {
                limit: limits.map_or(0, |limits| limits.memlock.soft),
                needed: memlock_needed(shards),
                is_exempt: self.is_memlock_exempt,
            }),
            _ => Cause::Other(error.to_string()),
        };
        RingUnavailable { cause, host: self.clone() }
    }

    /// A release that cannot be read counts as old.
    fn is_kernel_at_least(&self, major: u32, minor: u32) -> bool {
        let mut numbers = self.kernel.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse::<u32>().ok());
        let found = (numbers.next().flatten(), numbers.next().flatten());
        found >= (Some(major), Some(minor))
    }
}

// ---- the error -----------------------------------------------------------------------------------

/// io_uring cannot be used here. Says what was tried, what came, and the cure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingUnavailable {
    /// Why.
    pub cause: Cause,
    host: HostFacts,
}

/// Why io_uring cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// EPERM, and the value of `kernel.io_uring_disabled` that explains it: 1 all but privileged, 2 nobody.
    Disabled(u8),
    /// EPERM otherwise: a seccomp profile or a security module.
    Forbidden,
    /// ENOSYS: a runtime's profile, another kernel, or a kernel built without.
    NotThere,
    /// EINVAL on a kernel before 6.1, which lacks our flags.
    TooOld,
    /// ENOMEM for two seconds under a limit that binds us, or less than what glommio insists on.
    ShortOfMemory(Memlock),
    /// The ring opens, but lacks these.
    Missing(Vec<&'static str>),
    /// Anything else.
    Other(String),
}

impl RingUnavailable {
    /// What runs around us.
    pub fn platform(&self) -> Platform {
        self.host.platform
    }

    /// What is in the way, without the cure.
    pub fn reason(&self) -> String {
        let kernel = &self.host.kernel;
        match &self.cause {
            Cause::Disabled(value) => format!("the sysctl kernel.io_uring_disabled is {value}"),
            Cause::Forbidden if self.host.is_filtered => "a seccomp profile forbids it (EPERM)".into(),
            Cause::Forbidden => "the system forbids it (EPERM)".into(),
            Cause::NotThere if self.host.is_filtered => "a seccomp profile hides it (ENOSYS)".into(),
            Cause::NotThere => "the kernel does not know it (ENOSYS)".into(),
            Cause::TooOld => format!("expected Linux 6.1 or later, got {kernel} (EINVAL)"),
            Cause::ShortOfMemory(memlock) => memlock.to_string(),
            Cause::Missing(names) => format!("Linux {kernel} lacks {}", names.join(", ")),
            Cause::Other(error) => error.clone(),
        }
    }

    /// What to do.
    pub fn cure(&self) -> String {
        self.cure_for(self.host.platform)
    }

    /// What to do, in the words of another platform.
    pub fn cure_for(&self, platform: Platform) -> String {
        let kernel = &self.host.kernel;
        match &self.cause {
            Cause::Disabled(1) => "set the sysctl kernel.io_uring_disabled=0, or add this user's group to it by \
                                   kernel.io_uring_group (on the host, as root)"
                .into(),
            Cause::Disabled(_) => "set the sysctl kernel.io_uring_disabled=0 (on the host, as root; in \
                                   /etc/sysctl.d to keep it)"
                .into(),
            Cause::Forbidden => platform.seccomp_cure(),
            Cause::NotThere if self.host.is_filtered || platform != Platform::Host => platform.seccomp_cure(),
            Cause::NotThere => {
                format!("Linux {kernel} was built without io_uring (CONFIG_IO_URING); boot another kernel")
            }
            Cause::TooOld | Cause::Missing(_) => "boot Linux 6.1 or later".into(),
            Cause::ShortOfMemory(memlock) if memlock.limit >= memlock.needed => format!(
                "end other io_uring programs of this user (the limit is shared), or double it: {}",
                platform.memlock_cure(memlock.limit.saturating_mul(2))
            ),
            Cause::ShortOfMemory(memlock) => platform.memlock_cure(memlock.needed),
            Cause::Other(_) => "run `everycore doctor` and report what it says".into(),
        }
    }
}

impl fmt::Display for RingUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "io_uring is not available: {}; {}", self.reason(), self.cure())
    }
}

impl std::error::Error for RingUnavailable {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests::fixture;

    fn facts(platform: Platform) -> HostFacts {
        HostFacts {
            kernel: "6.18.44-x".into(),
            platform,
            disabled: Some(0),
            is_filtered: false,
            is_memlock_exempt: false,
        }
    }

    #[track_caller]
    fn check(errno: i32, host: HostFacts, expected: &[&str]) {
        let limit = crate::ring::rlimit::Limit { soft: 1 << 20, hard: 1 << 20 };
        let limits = Limits { nofile: limit, memlock: limit };
        let error = host.explain(&io::Error::from_raw_os_error(errno), 4, Some(limits)).to_string();
        assert!(error.starts_with("io_uring is not available: "), "{error}");
        for part in expected {
            assert!(error.contains(part), "expected {part:?} in {error:?}");
        }
    }

    #[test]
    fn eperm_is_the_sysctl_if_that_is_set() {
        for (value, cure) in [(1, "kernel.io_uring_group"), (2, "kernel.io_uring_disabled=0")] {
            for platform in [Platform::Docker, Platform::Host] {
                let host = HostFacts { disabled: Some(value), ..facts(platform) };
                check(libc::EPERM, host, &[&format!("kernel.io_uring_disabled is {value}"), cure]);
            }
        }
    }

    #[test]
    fn few_open_files_are_told_with_the_cure() {
        let told = |files, wanted| {
            let limit = crate::ring::rlimit::Limit { soft: files, hard: files };
            let limits = Limits { nofile: limit, memlock: limit };
            let memlock = Memlock { limit: 0, needed: 0, is_exempt: true };
            let (kernel, platform, features) = ("6.1".into(), Platform::Systemd, Features::default());
            Preflight { kernel, platform, features, limits, memlock }.nofile_warning(wanted, 2)
        };
        let cure = "set `LimitNOFILE=2304` in the service";
        assert_eq!(told(64, 2000), Some(format!("64 open files allow 1 connection at a time; {cure}")));
        assert_eq!(told(1327, 2000), Some(format!("1327 open files allow 1023 connections at a time; {cure}")));
        assert_eq!(told(1328, 2000), None);
        assert!(told(403, 100).is_some() && told(404, 100).is_none(), "fewer than 1024 may be all that is wanted");
    }

    #[test]
    fn eperm_is_a_profile_otherwise_and_the_cure_fits_the_platform() {
        let docker = "`--security-opt seccomp=docker/seccomp.json` (`everycore seccomp` prints";
        check(libc::EPERM, HostFacts { disabled: None, ..facts(Platform::Docker) }, &[docker]);
        check(libc::EPERM, facts(Platform::Docker), &["the system forbids it (EPERM)", docker]);
        let filtered = |platform| HostFacts { is_filtered: true, ..facts(platform) };
        check(libc::EPERM, filtered(Platform::Docker), &["a seccomp profile forbids it (EPERM)", docker]);
        check(libc::EPERM, filtered(Platform::DockerDesktop), &["Docker Engine on Linux"]);
        check(libc::EPERM, filtered(Platform::Podman), &["podman run --security-opt seccomp="]);
        check(libc::EPERM, filtered(Platform::Kubernetes), &["type: Localhost"]);
        check(libc::EPERM, filtered(Platform::Fargate), &["ECS on EC2"]);
        check(libc::EPERM, filtered(Platform::Systemd), &["SystemCallFilter=@system-service io_uring_setup"]);
        check(libc::EPERM, filtered(Platform::Container), &["docker/seccomp-oci.json"]);
        check(libc::EPERM, facts(Platform::Host), &["security module"]);
    }

    #[test]
    fn enosys_is_a_profile_in_a_container_and_the_kernel_outside() {
        check(libc::ENOSYS, facts(Platform::Podman), &["ENOSYS", "podman run"]);
        check(libc::ENOSYS, facts(Platform::Gvisor), &["gVisor has no io_uring"]);
        check(libc::ENOSYS, HostFacts { is_filtered: true, ..facts(Platform::Host) }, &["hides it", "whoever started"]);
        check(libc::ENOSYS, facts(Platform::Host), &["does not know it", "6.18.44-x was built without"]);
    }

    #[test]
    fn einval_is_an_old_kernel_and_says_which() {
        let on = |kernel: &str| HostFacts { kernel: kernel.into(), ..facts(Platform::Host) };
        let old = "expected Linux 6.1 or later, got ";
        check(libc::EINVAL, on("5.15.0-91-generic"), &[&format!("{old}5.15.0-91-generic"), "boot Linux 6.1"]);
        check(libc::EINVAL, on("6.0.19"), &[old]);
        check(libc::EINVAL, on("4.4"), &[old]);
        check(libc::EINVAL, on(""), &[old]);
        check(libc::EINVAL, on("6.1.0"), &["Invalid argument", "everycore doctor"]);
        check(libc::EINVAL, on("10.0"), &["Invalid argument"]);
    }

    #[test]
    fn enomem_gives_the_numbers_and_the_flag() {
        let needed = memlock_needed(4);
        let numbers = format!("{} KiB of locked memory are needed, this user may lock 1024 KiB in all", needed / 1024);
        check(libc::ENOMEM, facts(Platform::Docker), &[&numbers, &format!("`--ulimit memlock={needed}`")]);
        check(libc::ENOMEM, facts(Platform::Systemd), &[&numbers, &format!("`LimitMEMLOCK={needed}`")]);
        check(libc::ENOMEM, facts(Platform::Kubernetes), &[&numbers, "containerd.service"]);
        check(libc::ENOMEM, facts(Platform::Host), &[&numbers, &format!("`ulimit -l {}`", needed / 1024)]);
        // Enough for us alone: somebody else of this user has the rest.
        let host = facts(Platform::Docker);
        let memlock = Memlock { limit: 1 << 20, needed: 1 << 20, is_exempt: false };
        let cure = RingUnavailable { cause: Cause::ShortOfMemory(memlock), host }.cure();
        assert!(cure.contains("the limit is shared") && cure.contains("memlock=2097152"), "{cure}");
        // Root is not bound by it, so it is memory itself that is short.
        check(
            libc::ENOMEM,
            HostFacts { is_memlock_exempt: true, ..facts(Platform::Host) },
            &["Cannot allocate memory"],
        );
    }

    #[test]
    fn memlock_is_what_glommio_insists_on_or_what_shards_cost() {
        assert_eq!(memlock_needed(1), MEMLOCK_BYTES_MIN);
        assert_eq!(memlock_needed(8), 8 * MEMLOCK_BYTES_PER_SHARD + MEMLOCK_BYTES_PER_PROCESS);
        let memlock = |limit, is_exempt| Memlock { limit, needed: 1000, is_exempt };
        assert!(memlock(999, false).is_short() && memlock(999, false).warning().is_some());
        assert!(!memlock(999, true).is_short());
        assert!(!memlock(1000, false).is_short());
    }

    /// A folder tree with these files, and what is read from it.
    fn read(files: &[(&str, &str)], env: &[(&str, &str)]) -> HostFacts {
        let root = fixture(files);
        let find = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        HostFacts::read(root.path(), find)
    }

    #[test]
    fn facts_are_read_from_proc() {
        let status = "Name:\tx\nCapEff:\t0000000000004000\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        let uid_map = |line| ("proc/self/uid_map", line);
        let files = [
            ("proc/sys/kernel/osrelease", "6.6.1\n"),
            ("proc/sys/kernel/io_uring_disabled", "2\n"),
            ("proc/thread-self/status", status),
            uid_map("         0          0 4294967295\n"),
        ];
        let expected = HostFacts {
            kernel: "6.6.1".into(),
            platform: Platform::Host,
            disabled: Some(2),
            is_filtered: true,
            is_memlock_exempt: true,
        };
        assert_eq!(read(&files, &[]), expected);
        let rootless = [files[0], files[1], files[2], uid_map("0 1000 1\n")];
        assert!(!read(&rootless, &[]).is_memlock_exempt);
        let nothing = read(&[], &[]);
        assert_eq!((nothing.disabled, nothing.is_filtered, nothing.is_memlock_exempt), (None, false, false));
    }

    #[test]
    fn preflight_of_this_host_succeeds_or_says_why() {
        match preflight(1) {
            Ok(preflight) => assert!(preflight.to_string().starts_with("io_uring on Linux "), "{preflight}"),
            Err(error) => println!("skipped: {error}"),
        }
    }
}
