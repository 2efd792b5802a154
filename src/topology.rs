//! Which cores this process may use, and how many shards to put on them.
//!
//! Floor 2. Reads the host once, at start: the affinity mask, `/sys` for NUMA nodes and sibling threads, the
//! cgroup for a CPU quota. Decides without starting or pinning anything. What the host does not tell is `None`.
//! `CpuSet::online()` of glommio is not used, since it lists the machine's cores, not ours.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use serde::Serialize;

use crate::limits::SHARDS_MAX;

mod quota;

pub use quota::{Quota, Throttling};

// ---- lists of cores ------------------------------------------------------------------------------

/// A set of core ids, ascending. Written and read as the kernel does: `0-3,6`.
///
/// ```
/// # use everycore::topology::CpuList;
/// let list: CpuList = "6,0-3".parse()?;
/// assert_eq!(list.ids(), [0, 1, 2, 3, 6]);
/// assert_eq!(list.to_string(), "0-3,6");
/// # Ok::<(), everycore::topology::TopologyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct CpuList(Vec<usize>);

impl CpuList {
    /// The ids, ascending and each once.
    pub fn ids(&self) -> &[usize] {
        &self.0
    }

    /// Number of cores.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no core in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `core` is in it.
    pub fn contains(&self, core: usize) -> bool {
        self.0.binary_search(&core).is_ok()
    }
}

impl FromIterator<usize> for CpuList {
    fn from_iter<I: IntoIterator<Item = usize>>(ids: I) -> Self {
        let mut ids: Vec<usize> = ids.into_iter().collect();
        ids.sort_unstable();
        ids.dedup();
        Self(ids)
    }
}

impl FromStr for CpuList {
    type Err = TopologyError;

    /// Fails on anything but ids below 1024 and ascending ranges of them, separated by commas.
    fn from_str(text: &str) -> Result<Self, TopologyError> {
        let bad = || TopologyError::BadList { text: text.to_owned() };
        let id = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            let id = if is_number { digits.parse().ok() } else { None };
            id.filter(|&id: &usize| id < SHARDS_MAX).ok_or_else(bad)
        };
        let mut ids = Vec::new();
        for part in text.trim().split(',') {
            let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
            let (first, last) = (id(first)?, id(last)?);
            if first > last {
                return Err(bad());
            }
            ids.extend(first..=last);
        }
        Ok(ids.into_iter().collect())
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for run in self.0.chunk_by(|a, b| a + 1 == *b) {
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [a, b] => write!(f, "{comma}{a},{b}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
            comma = ",";
        }
        Ok(())
    }
}

// ---- the host ------------------------------------------------------------------------------------

/// One core that this process may run on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Core {
    /// The kernel's number of it.
    pub id: usize,
    /// Its NUMA node.
    pub node: Option<usize>,
    /// The hardware threads of the same physical core, itself included.
    pub siblings: Option<CpuList>,
}

/// What the host allows this process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Host {
    /// The cores of the affinity mask, ascending by id.
    pub cores: Vec<Core>,
    /// The CPU quota of the cgroup that bounds us most.
    pub quota: Option<Quota>,
}

impl Host {
    /// Reads this machine. Without an affinity mask (a host that forbids the call) there is no core in it, and
    /// [`ShardPlan::decide`] says so.
    pub fn read() -> Self {
        let allowed = core_affinity::get_core_ids().unwrap_or_default();
        Self::read_from(Path::new("/"), allowed.into_iter().map(|core| core.id).collect())
    }

    /// Reads the `/proc` and `/sys` beneath `root`, for the cores `allowed`.
    pub fn read_from(root: &Path, allowed: CpuList) -> Self {
        let nodes = node_lists(root);
        let core = |&id: &usize| Core {
            id,
            node: nodes.iter().find(|(_, list)| list.contains(id)).map(|(node, _)| *node),
            siblings: read_list(&root.join(format!("sys/devices/system/cpu/cpu{id}/topology/thread_siblings_list"))),
        };
        Self { cores: allowed.ids().iter().map(core).collect(), quota: Quota::read_from(root) }
    }

    /// The ids of its cores.
    pub fn allowed(&self) -> CpuList {
        self.cores.iter().map(|core| core.id).collect()
    }
}

fn read_list(path: &Path) -> Option<CpuList> {
    fs::read_to_string(path).ok()?.parse().ok()
}

fn node_lists(root: &Path) -> Vec<(usize, CpuList)> {
    let Ok(entries) = fs::read_dir(root.join("sys/devices/system/node")) else {
        return Vec::new();
    };
    let node = |entry: fs::DirEntry| {
        let id = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        // A node of memory alone has an empty list, which does not parse and is no loss.
        Some((id, read_list(&entry.path().join("cpulist"))?))
    };
    entries.flatten().filter_map(node).collect()
}

// ---- the plan ------------------------------------------------------------------------------------

/// Whether a shard's thread is tied to one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PinMode {
    /// Where the cores are ours: no quota smaller than the cores we may use.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never: the scheduler places the threads.
    Off,
}

/// How many shards there are and where they run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShardPlan {
    shards: usize,
    cores: CpuList,
    is_pinned: bool,
    quota_cores: Option<f64>,
}

impl ShardPlan {
    /// Decides from what was asked (`None`: choose) and what the host allows.
    ///
    /// Shards by default: one a core, no more than the quota's whole cores, at least one. Of more cores than
    /// shards, physical cores come before their second threads, and cores of one NUMA node before the next one's.
    ///
    /// # Errors
    /// No shard or too many asked for; a core that this process may not use; more shards than cores, unless
    /// `pin` is off: two shards on one core only take turns.
    pub fn decide(
        requested: Option<usize>,
        cpus: Option<CpuList>,
        pin: PinMode,
        host: &Host,
    ) -> Result<Self, TopologyError> {
        let allowed = host.allowed();
        if allowed.is_empty() {
            return Err(TopologyError::NoCore);
        }
        let cores = cpus.unwrap_or_else(|| allowed.clone());
        let refused: CpuList = cores.ids().iter().copied().filter(|&core| !allowed.contains(core)).collect();
        if !refused.is_empty() || cores.is_empty() {
            return Err(TopologyError::NotAllowed { refused, allowed });
        }
        let quota_cores = host.quota.as_ref().map(|quota| quota.cores);
        let by_quota = quota_cores.map_or(usize::MAX, |cores| (cores.floor() as usize).max(1));
        let shards = requested.unwrap_or(cores.len().min(by_quota));
        if !(1..=SHARDS_MAX).contains(&shards) {
            return Err(TopologyError::ShardCount { requested: shards });
        }
        if shards > cores.len() && pin != PinMode::Off {
            return Err(TopologyError::MoreShardsThanCores { requested: shards, cores });
        }
        let is_pinned = match pin {
            PinMode::On => true,
            PinMode::Off => false,
            PinMode::Auto => quota_cores.is_none_or(|quota| quota >= cores.len() as f64),
        };
        let cores = if is_pinned { best(host, &cores, shards) } else { cores };
        Ok(Self { shards, cores, is_pinned, quota_cores })
    }

    /// Number of shards, 1 or more.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// The core that this shard is tied to; `None`: it may run on all [`cores`](Self::cores).
    pub fn core_of(&self, shard: usize) -> Option<usize> {
        if self.is_pinned { self.cores.ids().get(shard).copied() } else { None }
    }

    /// The cores in use: pinned, one a shard; else those that all shards' threads may run on.
    pub fn cores(&self) -> &CpuList {
        &self.cores
    }

    /// Whether each shard is tied to a core.
    pub fn is_pinned(&self) -> bool {
        self.is_pinned
    }
}

/// The `count` cores of `cores` that get in each other's way least.
fn best(host: &Host, cores: &CpuList, count: usize) -> CpuList {
    let mut ranked: Vec<_> = host.cores.iter().filter(|core| cores.contains(core.id)).collect();
    let is_second_thread = |core: &Core| {
        let siblings = core.siblings.iter().flat_map(|list| list.ids());
        siblings.clone().any(|&sibling| sibling < core.id && cores.contains(sibling))
    };
    ranked.sort_by_key(|core| (is_second_thread(core), core.node, core.id));
    ranked.into_iter().take(count).map(|core| core.id).collect()
}

impl fmt::Display for ShardPlan {
    /// One line: `2 shards on cores 0,1 (pinned)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |n: usize| if n == 1 { "" } else { "s" };
        let (shards, cores) = (self.shards, &self.cores);
        write!(f, "{shards} shard{} on core{} {cores} ", plural(shards), plural(cores.len()))?;
        match self.quota_cores {
            _ if self.is_pinned => write!(f, "(pinned)"),
            Some(quota) => write!(f, "(not pinned, quota of {quota:.2} cores)"),
            None => write!(f, "(not pinned)"),
        }
    }
}

// ---- errors --------------------------------------------------------------------------------------

/// Why no plan can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopologyError {
    /// A list of cores that cannot be read.
    BadList {
        /// What came.
        text: String,
    },
    /// The host told no core.
    NoCore,
    /// Cores were named that this process may not use, or none at all.
    NotAllowed {
        /// Those.
        refused: CpuList,
        /// The ones to choose from.
        allowed: CpuList,
    },
    /// 0, or more than [`SHARDS_MAX`].
    ShardCount {
        /// What came.
        requested: usize,
    },
    /// Some cores would carry two shards.
    MoreShardsThanCores {
        /// What came.
        requested: usize,
        /// The cores there are for them.
        cores: CpuList,
    },
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadList { text } => {
                write!(f, "expected cores below {SHARDS_MAX} such as 0-3,6, got {text:?}")
            }
            Self::NoCore => {
                write!(f, "expected a list of cores from sched_getaffinity, got none; let the sandbox allow this call")
            }
            Self::NotAllowed { refused, allowed } if refused.is_empty() => {
                write!(f, "expected at least one core; this process may use {allowed}")
            }
            Self::NotAllowed { refused, allowed } => write!(
                f,
                "this process may not run on core {refused}, only on {allowed}; choose among these with --cpus, or widen \
                 the set (taskset, docker --cpuset-cpus, systemd CPUAffinity=)"
            ),
            Self::ShardCount { requested } => {
                write!(f, "expected 1 to {SHARDS_MAX} shards, got {requested}")
            }
            Self::MoreShardsThanCores { requested, cores } => write!(
                f,
                "{requested} shards asked for, but there are only cores {cores}; ask for {} at most (--shards), or add --pin off",
                cores.len()
            ),
        }
    }
}

impl std::error::Error for TopologyError {}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;

    use super::*;

    fn list(text: &str) -> CpuList {
        text.parse().unwrap()
    }

    /// A folder tree with these files.
    pub(crate) fn fixture(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    #[test]
    fn cpu_list_reads_and_writes_as_the_kernel_does() {
        #[track_caller]
        fn check(text: &str, ids: &[usize], shown: &str) {
            let list = list(text);
            assert_eq!((list.ids(), list.to_string().as_str()), (ids, shown), "{text}");
        }
        check("0", &[0], "0");
        check("0-3,6", &[0, 1, 2, 3, 6], "0-3,6");
        check("6,3,0-2\n", &[0, 1, 2, 3, 6], "0-3,6");
        check("1,0,0-1", &[0, 1], "0,1");
        check("0, 2", &[0, 2], "0,2");
        check("1022-1023", &[1022, 1023], "1022,1023");
    }

    #[test]
    fn cpu_list_refuses_what_it_cannot_read() {
        for text in ["", ",", "a", "1,", "3-1", "-1", "1-", "1-2-3", "+1", "1024", "0-1024", "99999999999999999999"] {
            let error = text.parse::<CpuList>().unwrap_err();
            assert_eq!(error, TopologyError::BadList { text: text.to_owned() });
        }
    }

    #[test]
    fn nodes_and_siblings_are_read_or_unknown() {
        let root = fixture(&[
            ("sys/devices/system/node/node0/cpulist", "0-1\n"),
            ("sys/devices/system/node/node1/cpulist", "2-3\n"),
            ("sys/devices/system/node/node2/cpulist", "\n"),
            ("sys/devices/system/node/online", "0-2\n"),
            ("sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "2-3\n"),
        ]);
        let host = Host::read_from(root.path(), list("1-2,5"));
        let core = |id, node, siblings| Core { id, node, siblings };
        assert_eq!(host.cores, [core(1, Some(0), None), core(2, Some(1), Some(list("2,3"))), core(5, None, None)]);
    }

    fn host(cores: &str, quota: Option<f64>) -> Host {
        let core = |&id: &usize| Core { id, node: None, siblings: None };
        Host {
            cores: list(cores).ids().iter().map(core).collect(),
            quota: quota.map(|cores| Quota { cores, group: PathBuf::new() }),
        }
    }

    #[test]
    fn plan_is_decided_by_cores_quota_and_flags() {
        #[track_caller]
        fn check(asked: (Option<usize>, Option<&str>, PinMode), host: &Host, expected: &str) {
            let shown = match ShardPlan::decide(asked.0, asked.1.map(list), asked.2, host) {
                Ok(plan) => plan.to_string(),
                Err(error) => format!("{error:?}"),
            };
            assert_eq!(shown, expected, "{asked:?}");
        }
        use PinMode::{Auto, Off, On};
        let four = host("0-3", None);
        check((None, None, Auto), &host("0,1", None), "2 shards on cores 0,1 (pinned)");
        check((None, None, Auto), &host("5", None), "1 shard on core 5 (pinned)");
        check((None, None, Off), &four, "4 shards on cores 0-3 (not pinned)");
        check((Some(2), None, Auto), &four, "2 shards on cores 0,1 (pinned)");
        check((Some(2), None, Off), &four, "2 shards on cores 0-3 (not pinned)");
        check((None, Some("1,3"), Auto), &four, "2 shards on cores 1,3 (pinned)");
        check((Some(1), Some("1,3"), Auto), &four, "1 shard on core 1 (pinned)");
        check((Some(5), None, Off), &four, "5 shards on cores 0-3 (not pinned)");
        // Quotas: whole cores, at least one; pinned only if as large as the cores.
        check((None, None, Auto), &host("0-3", Some(0.5)), "1 shard on cores 0-3 (not pinned, quota of 0.50 cores)");
        check((None, None, Auto), &host("0-3", Some(2.9)), "2 shards on cores 0-3 (not pinned, quota of 2.90 cores)");
        check((None, None, On), &host("0-3", Some(2.9)), "2 shards on cores 0,1 (pinned)");
        check((None, None, Auto), &host("0-3", Some(4.0)), "4 shards on cores 0-3 (pinned)");
        check((None, None, Auto), &host("0-3", Some(64.0)), "4 shards on cores 0-3 (pinned)");
        check(
            (Some(4), None, Auto),
            &host("0-3", Some(2.0)),
            "4 shards on cores 0-3 (not pinned, quota of 2.00 cores)",
        );
        check((None, Some("2,3"), Auto), &host("0-3", Some(2.0)), "2 shards on cores 2,3 (pinned)");
        // Refusals.
        check((None, None, Auto), &host("7", None), "1 shard on core 7 (pinned)");
        check((None, None, Auto), &Host::default(), "NoCore");
        check((Some(0), None, Auto), &four, "ShardCount { requested: 0 }");
        check((Some(1025), None, Off), &four, "ShardCount { requested: 1025 }");
        for pin in [Auto, On] {
            let expected = "MoreShardsThanCores { requested: 5, cores: CpuList([0, 1, 2, 3]) }";
            check((Some(5), None, pin), &four, expected);
        }
    }

    #[test]
    fn plan_refuses_a_foreign_core_and_names_the_allowed() {
        let error = ShardPlan::decide(None, Some(list("1,4-5")), PinMode::Off, &host("0-3", None)).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("this process may not run on core 4,5, only on 0-3; choose"), "{text}");
    }

    #[test]
    fn plan_prefers_physical_cores_then_one_node() {
        let core = |id, node, siblings: &str| Core { id, node: Some(node), siblings: Some(list(siblings)) };
        let host = Host {
            // Second threads are 4-7; cores 1 and 3 are on node 1.
            cores: (0..8).map(|id| core(id, id % 2, &format!("{},{}", id % 4, id % 4 + 4))).collect(),
            quota: None,
        };
        let cores = |shards, cpus: Option<&str>| {
            ShardPlan::decide(Some(shards), cpus.map(list), PinMode::Auto, &host).unwrap().cores().to_string()
        };
        assert_eq!(cores(2, None), "0,2");
        assert_eq!(cores(3, None), "0-2");
        assert_eq!(cores(4, None), "0-3");
        assert_eq!(cores(5, None), "0-4");
        assert_eq!(cores(2, Some("4-6")), "4,6");
    }

    #[test]
    fn plan_tells_the_core_of_each_shard() {
        let plan = ShardPlan::decide(None, Some(list("1,3")), PinMode::On, &host("0-3", None)).unwrap();
        assert_eq!([0, 1, 2].map(|shard| plan.core_of(shard)), [Some(1), Some(3), None]);
        let plan = ShardPlan::decide(None, None, PinMode::Off, &host("0-3", None)).unwrap();
        assert_eq!((plan.shards(), plan.core_of(0), plan.is_pinned()), (4, None, false));
    }

    #[test]
    fn this_host_has_a_core_and_a_plan() {
        let host = Host::read();
        let plan = ShardPlan::decide(None, None, PinMode::Auto, &host).unwrap();
        assert!(plan.shards() <= host.cores.len() && plan.shards() >= 1);
    }
}
