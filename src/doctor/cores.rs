//! Cores: what the affinity mask and the cgroup leave to us, and how they lie to each other.

use super::{Check, State};
use crate::{
    limits::THROTTLED_PERCENT_MAX,
    preflight::Platform,
    topology::{CpuList, Host, ShardPlan, TopologyError},
};

pub(super) fn checks(
    plan: &Result<ShardPlan, TopologyError>,
    host: &Host,
    platform: Platform,
) -> impl Iterator<Item = Check> {
    let cores = match plan {
        Ok(plan) => plan.cores().clone(),
        Err(_) => host.allowed(),
    };
    let mut checks = vec![plan_check(plan)];
    checks.extend(quota_check(host, platform));
    checks.extend(smt_check(host, &cores));
    checks.extend(numa_check(host, &cores));
    checks.into_iter()
}

fn plan_check(plan: &Result<ShardPlan, TopologyError>) -> Check {
    let check = |found: String| Check::ok("cores", "each shard wants a core of its own", found);
    match plan {
        Ok(plan) => check(plan.to_string()),
        Err(error) => check(error.to_string()).or(State::Broken, "choose as many shards as cores, or `--pin off`"),
    }
}

fn quota_check(host: &Host, platform: Platform) -> Option<Check> {
    let quota = host.quota.as_ref()?;
    let (cores, allowed) = (quota.cores, host.cores.len());
    let throttling = quota.throttling().unwrap_or_default();
    let is_throttled = throttling.throttled_periods * 100 > throttling.periods * THROTTLED_PERCENT_MAX;
    let found = format!(
        "{cores:.2} of {allowed} cores; stopped in {} of {} periods",
        throttling.throttled_periods, throttling.periods
    );
    let why = "a group that has used up its quota is stopped for the rest of the period, up to 100 ms; and with fewer \
               cores than it may run on, shards are not pinned";
    let is_bad = cores < allowed as f64 || is_throttled;
    Some(Check::ok("cpu quota", why, found).warn_if(is_bad, || platform.cores_cure().into()))
}

fn smt_check(host: &Host, cores: &CpuList) -> Option<Check> {
    let used = host.cores.iter().filter(|core| cores.contains(core.id));
    // A physical core is known by its first hardware thread.
    let physical: Option<CpuList> = used.map(|core| core.siblings.as_ref()?.ids().first().copied()).collect();
    let (threads, physical) = (cores.len(), physical?.len());
    let found = match threads == physical {
        true => format!("{physical} physical cores, one thread of each"),
        false => format!("{threads} threads of {physical} physical cores: siblings share their core's speed"),
    };
    Some(Check::ok("smt", "two hardware threads of a core share it: both together do less than two cores", found))
}

fn numa_check(host: &Host, cores: &CpuList) -> Option<Check> {
    let used = host.cores.iter().filter(|core| cores.contains(core.id));
    let nodes: Option<CpuList> = used.map(|core| core.node).collect();
    let found = format!("cores of node {}", nodes?);
    Some(Check::ok("numa", "a shard's memory is its node's; packets from a card at another node cross over", found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{PinMode, tests::fixture};

    #[test]
    fn cores_are_told_from_files() {
        let list = |text: &str| text.parse::<CpuList>().unwrap();
        let mount = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n";
        let stat = "nr_periods 200\nnr_throttled 7\nthrottled_usec 1500\n";
        let siblings = |id: usize| format!("sys/devices/system/cpu/cpu{id}/topology/thread_siblings_list");
        let root = fixture(&[
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", mount),
            ("sys/fs/cgroup/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/cpu.stat", stat),
            ("sys/devices/system/node/node0/cpulist", "0-3\n"),
            (&siblings(0), "0,2\n"),
            (&siblings(1), "1,3\n"),
            (&siblings(2), "0,2\n"),
        ]);
        let host = Host::read_from(root.path(), list("0-2"));
        let plan = ShardPlan::decide(None, None, PinMode::Auto, &host);
        let checks: Vec<Check> = checks(&plan, &host, Platform::Docker).collect();
        let told =
            |name: &str| checks.iter().find(|check| check.name == name).map(|check| (check.state, &*check.found));
        assert_eq!(told("cores"), Some((State::Ok, "1 shard on cores 0-2 (not pinned, quota of 1.50 cores)")));
        assert_eq!(told("cpu quota"), Some((State::Warning, "1.50 of 3 cores; stopped in 7 of 200 periods")));
        let siblings = "3 threads of 2 physical cores: siblings share their core's speed";
        assert_eq!(told("smt"), Some((State::Ok, siblings)));
        assert_eq!(told("numa"), Some((State::Ok, "cores of node 0")));
        let cure = checks.iter().find_map(|check| check.cure.as_deref());
        assert!(cure.is_some_and(|cure| cure.contains("--cpuset-cpus")), "{cure:?}");
    }

    #[test]
    fn more_shards_than_cores_is_broken() {
        let root = fixture(&[]);
        let host = Host::read_from(root.path(), [0, 1].into_iter().collect());
        let plan = ShardPlan::decide(Some(3), None, PinMode::Auto, &host);
        let checks: Vec<Check> = checks(&plan, &host, Platform::Host).collect();
        assert_eq!((checks.len(), checks[0].state), (1, State::Broken));
    }
}
