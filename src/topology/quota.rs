//! The CPU quota of our cgroup, and how often it stopped us.
//!
//! Floor 2. Both cgroup versions, since hosts with the first are still met, and hosts with both.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

/// A CPU bandwidth limit (CFS quota) of a cgroup, version 1 or 2.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quota {
    /// Cores' worth of time in each period: 1.5 is one and a half cores.
    pub cores: f64,
    /// Folder of the cgroup that sets it.
    pub group: PathBuf,
}

/// How often the quota stopped the group. Counted since the group was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Throttling {
    /// Periods in which the group ran.
    pub periods: u64,
    /// Those of them in which it used up its quota and was stopped (`nr_throttled`).
    pub throttled_periods: u64,
    /// How long its threads were stopped, added up.
    pub throttled: Duration,
}

impl Quota {
    /// The smallest quota on the way from our cgroup up to its mount, in either version: a hybrid host has
    /// both mounted, and each ancestor binds too.
    pub(super) fn read_from(root: &Path) -> Option<Self> {
        let ours = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
        let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
        let mut tightest: Option<Self> = None;
        for mount in mounts.lines().filter_map(Mount::parse) {
            let Some(path) = mount.group_path(&ours) else {
                continue;
            };
            let top = root.join(mount.point.trim_start_matches('/'));
            // A path outside the mount (`/../x`: no cgroup namespace) leaves only the mount's own folder to us.
            let relative = Path::new(path).strip_prefix(mount.root).ok();
            let relative = relative.filter(|path| !path.starts_with("..")).unwrap_or(Path::new(""));
            for below in relative.ancestors() {
                let group = top.join(below);
                let Some(cores) = read_quota(&group) else {
                    continue;
                };
                if tightest.as_ref().is_none_or(|quota| cores < quota.cores) {
                    tightest = Some(Self { cores, group });
                }
            }
        }
        tightest
    }

    /// Reads `cpu.stat` afresh; `None` when it is not there any more or says nothing of throttling.
    pub fn throttling(&self) -> Option<Throttling> {
        let stat = fs::read_to_string(self.group.join("cpu.stat")).ok()?;
        let field = |name: &str| {
            let value = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.and_then(|value| value.trim().parse::<u64>().ok())
        };
        let throttled = field("throttled_usec").map(Duration::from_micros); // version 2
        let throttled = throttled.or_else(|| field("throttled_time").map(Duration::from_nanos)); // version 1
        Some(Throttling {
            periods: field("nr_periods")?,
            throttled_periods: field("nr_throttled")?,
            throttled: throttled?,
        })
    }
}

/// `cpu.max` of version 2 (`max 100000`, `150000 100000`), or the two files of version 1 (quota −1: none).
fn read_quota(group: &Path) -> Option<f64> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    let (quota, period) = match read("cpu.max") {
        Some(line) => {
            let mut words = line.split_whitespace();
            (words.next()?.parse::<f64>().ok()?, words.next()?.parse::<f64>().ok()?)
        }
        None => (
            read("cpu.cfs_quota_us")?.trim().parse::<f64>().ok()?,
            read("cpu.cfs_period_us")?.trim().parse::<f64>().ok()?,
        ),
    };
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// A mounted cgroup hierarchy that can hold a CPU quota.
struct Mount<'a> {
    /// The cgroup that the mount shows at its top.
    root: &'a str,
    point: &'a str,
    is_v2: bool,
}

impl<'a> Mount<'a> {
    /// One line of `mountinfo` (proc(5)): id, parent, device, root, point, options, tags, `-`, type, source, options.
    fn parse(line: &'a str) -> Option<Self> {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ').skip(3);
        let mut back = back.split(' ');
        let is_v2 = match back.next()? {
            "cgroup2" => true,
            "cgroup" if back.nth(1)?.split(',').any(|option| option == "cpu") => false,
            _ => return None,
        };
        Some(Self { root: front.next()?, point: front.next()?, is_v2 })
    }

    /// Our path in this hierarchy, from `/proc/self/cgroup` (`0::/path`, or `4:cpu,cpuacct:/path`).
    fn group_path<'b>(&self, ours: &'b str) -> Option<&'b str> {
        ours.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let is_this = match self.is_v2 {
                true => controllers.is_empty(),
                false => controllers.split(',').any(|name| name == "cpu"),
            };
            is_this.then_some(path)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixture;
    use super::*;

    const V1_MOUNT: &str = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n";
    const V2_MOUNT: &str = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn quota_is_read_from_both_versions() {
        #[track_caller]
        fn check(name: &str, files: &[(&str, &str)], expected: Option<f64>) {
            let root = fixture(files);
            let quota = Quota::read_from(root.path());
            assert_eq!(quota.map(|quota| quota.cores), expected, "{name}");
        }
        let (group, mounts) = ("proc/self/cgroup", "proc/self/mountinfo");
        check("nothing to read", &[], None);
        check("no mount", &[(group, "0::/\n"), (mounts, "")], None);
        check(
            "v2 unlimited",
            &[(group, "0::/a\n"), (mounts, V2_MOUNT), ("sys/fs/cgroup/a/cpu.max", "max 100000\n")],
            None,
        );
        check(
            "v2 one and a half",
            &[(group, "0::/a\n"), (mounts, V2_MOUNT), ("sys/fs/cgroup/a/cpu.max", "150000 100000\n")],
            Some(1.5),
        );
        check(
            "v2 an ancestor is tighter",
            &[
                (group, "0::/a/b\n"),
                (mounts, V2_MOUNT),
                ("sys/fs/cgroup/a/b/cpu.max", "400000 100000\n"),
                ("sys/fs/cgroup/a/cpu.max", "200000 100000\n"),
            ],
            Some(2.0),
        );
        check(
            "v2 in a cgroup namespace",
            &[(group, "0::/\n"), (mounts, V2_MOUNT), ("sys/fs/cgroup/cpu.max", "50000 100000\n")],
            Some(0.5),
        );
        check(
            "v2 outside the mount",
            &[(group, "0::/../x\n"), (mounts, V2_MOUNT), ("sys/fs/cgroup/cpu.max", "50000 100000\n")],
            Some(0.5),
        );
        check(
            "v1 unlimited",
            &[
                (group, "2:cpuacct,cpu:/\n"),
                (mounts, V1_MOUNT),
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ],
            None,
        );
        let docker = V1_MOUNT.replace(" / ", " /docker/abc ");
        check(
            "v1 container without a cgroup namespace",
            &[
                (group, "3:cpuset:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/x\n"),
                (mounts, &docker),
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ],
            Some(2.5),
        );
        check(
            "hybrid: the tighter of both",
            &[
                (group, "1:cpu:/a\n0::/a\n"),
                (mounts, &format!("{V1_MOUNT}{}", V2_MOUNT.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified "))),
                ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "300000\n"),
                ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"),
                ("sys/fs/cgroup/unified/a/cpu.max", "200000 100000\n"),
            ],
            Some(2.0),
        );
        check(
            "garbage",
            &[(group, "0::/\nx\n:\n"), (mounts, &format!("x - y\n{V2_MOUNT}")), ("sys/fs/cgroup/cpu.max", "x y\n")],
            None,
        );
    }

    #[test]
    fn throttling_is_read_in_the_units_of_each_version() {
        #[track_caller]
        fn check(stat: Option<&str>, expected: Option<Throttling>) {
            let root = fixture(&[("here", "")]);
            if let Some(stat) = stat {
                fs::write(root.path().join("cpu.stat"), stat).unwrap();
            }
            let quota = Quota { cores: 1.0, group: root.path().to_owned() };
            assert_eq!(quota.throttling(), expected, "{stat:?}");
        }
        let expected = Throttling { periods: 7, throttled_periods: 3, throttled: Duration::from_micros(1500) };
        check(
            Some("usage_usec 9\nuser_usec 5\nnr_periods 7\nnr_throttled 3\nthrottled_usec 1500\nnr_bursts 0\n"),
            Some(expected),
        );
        check(Some("nr_periods 7\nnr_throttled 3\nthrottled_time 1500000\n"), Some(expected));
        check(Some("usage_usec 9\n"), None);
        check(None, None);
    }
}
