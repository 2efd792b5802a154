//! What the kernel is set to, as far as it bounds a server: read from `/proc` and `/sys`.

use super::{Check, read};
use crate::{
    limits::{BACKLOG, LOCAL_PORTS_MIN},
    preflight::Platform,
    topology::{CpuList, ShardPlan},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Clocks that are read without a system call.
const FAST_CLOCKS: [&str; 4] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];

pub(super) fn checks(root: &Path, platform: Platform, plan: Option<&ShardPlan>) -> Vec<Check> {
    let mut checks = vec![
        backlog(root, platform, "somaxconn", "net.core.somaxconn", "the kernel cuts every accept queue to it"),
        backlog(
            root,
            platform,
            "tcp_max_syn_backlog",
            "net.ipv4.tcp_max_syn_backlog",
            "connections that have not finished their handshake; beyond it SYN cookies are sent, or SYNs dropped",
        ),
        migrate_requests(root, platform),
        local_ports(root, platform),
        huge_pages(root),
        clock(root),
    ];
    checks.extend(cards(root, plan));
    checks
}

/// A parameter by its name with dots.
fn sysctl(root: &Path, name: &str) -> Option<String> {
    read(root, format!("proc/sys/{}", name.replace('.', "/")))
}

const HIDDEN: &str = "not shown here";

fn backlog(root: &Path, platform: Platform, short: &'static str, name: &'static str, why: &'static str) -> Check {
    let Some(value) = sysctl(root, name) else { return Check::ok(short, why, HIDDEN) };
    let is_less = value.parse().is_ok_and(|value: u32| value < BACKLOG);
    let found = if is_less { format!("{value}, of {BACKLOG} that serve asks for (--backlog)") } else { value };
    Check::ok(short, why, found).warn_if(is_less, || platform.network_sysctl_cure(name, &BACKLOG.to_string()))
}

fn migrate_requests(root: &Path, platform: Platform) -> Check {
    let name = "net.ipv4.tcp_migrate_req";
    let why = "on a restart with --share-port, connections that wait in the old server's queue are reset unless the \
               kernel moves them to the new one's";
    let check = |found: &str| Check::ok("tcp_migrate_req", why, found);
    match sysctl(root, name).as_deref() {
        None => check(HIDDEN),
        Some("0") => check("0").warn_if(true, || platform.network_sysctl_cure(name, "1")),
        Some(value) => check(value),
    }
}

fn local_ports(root: &Path, platform: Platform) -> Check {
    let name = "net.ipv4.ip_local_port_range";
    let why = "each connection out to one address (a proxy on this host, bench) takes one of these ports";
    let check = |found: String| Check::ok("ip_local_port_range", why, found);
    let Some(text) = sysctl(root, name) else { return check(HIDDEN.into()) };
    let mut ends = text.split_whitespace().filter_map(|end| end.parse::<u32>().ok());
    match (ends.next(), ends.next()) {
        (Some(first), Some(last)) => {
            let count = (last + 1).saturating_sub(first);
            check(format!("{first}-{last}: {count} ports"))
                .warn_if(count < LOCAL_PORTS_MIN, || platform.network_sysctl_cure(name, "10240 65535"))
        }
        _ => check(text),
    }
}

fn huge_pages(root: &Path) -> Check {
    let path = "sys/kernel/mm/transparent_hugepage/enabled";
    let why = "with always, memory grows by 2 MiB at a time and is compacted while requests wait";
    let text = read(root, path).unwrap_or_else(|| HIDDEN.into());
    let is_always = text.contains("[always]");
    let chosen = text.split(['[', ']']).nth(1).unwrap_or(&text);
    Check::ok("transparent hugepages", why, chosen).warn_if(is_always, || {
        format!("`echo madvise | sudo tee /{path}` (keep it by transparent_hugepage=madvise at boot)")
    })
}

fn clock(root: &Path) -> Check {
    let path = "sys/devices/system/clocksource/clocksource0/current_clocksource";
    let why = "a shard reads the clock several times a turn; a slow source makes each a system call, and more";
    let name = read(root, path).unwrap_or_else(|| HIDDEN.into());
    let is_slow = name != HIDDEN && !FAST_CLOCKS.contains(&&*name);
    Check::ok("time source", why, name).warn_if(is_slow, || {
        format!(
            "`echo tsc | sudo tee /{path}`, or clocksource=tsc at boot; on a virtual machine, see its host's advice"
        )
    })
}

// ---- network cards -------------------------------------------------------------------------------

/// Which cores take the packets of each card. A virtual one (a container's) has none of its own.
fn cards(root: &Path, plan: Option<&ShardPlan>) -> Vec<Check> {
    let why = "packets are taken by the cores of the card's queues; with fewer queues than shards, those cores do the \
               kernel's work for all, unless RPS spreads it";
    let found = fs::read_dir(root.join("sys/class/net")).into_iter().flatten().flatten();
    let mut cards: Vec<PathBuf> = found.map(|entry| entry.path()).filter(|path| path.join("device").exists()).collect();
    cards.sort();
    if cards.is_empty() {
        return vec![Check::ok("network queues", why, "no card of its own here: see the host's")];
    }
    let shards = plan.map_or(1, ShardPlan::shards);
    let cores = plan.map(|plan| plan.cores().to_string()).unwrap_or_default();
    let check = |card: &PathBuf| {
        let name = card.file_name().unwrap_or_default().to_string_lossy();
        let queues = receive_queues(card);
        let spread = queues.iter().filter(|queue| is_spread(queue)).count();
        let count = queues.len();
        let plural = if count == 1 { "" } else { "s" };
        let irq_cores = interrupt_cores(root, card);
        let interrupts = match irq_cores.is_empty() {
            true => "interrupts not shown here".to_owned(),
            false => format!("interrupts on cores {irq_cores}"),
        };
        let found =
            format!("{name}: {count} receive queue{plural}, RPS on {spread}, {interrupts}; shards on cores {cores}");
        let is_narrow = count < shards && spread < count;
        Check::ok("network queues", why, found).warn_if(is_narrow, || {
            format!(
                "`sudo ethtool -L {name} combined {shards}`; or, if it has no more queues, `echo {} | sudo tee \
                 /sys/class/net/{name}/queues/rx-*/rps_cpus`",
                mask(plan)
            )
        })
    };
    cards.iter().map(check).collect()
}

fn receive_queues(card: &Path) -> Vec<PathBuf> {
    let queues = fs::read_dir(card.join("queues")).into_iter().flatten().flatten();
    queues.filter(|entry| entry.file_name().to_string_lossy().starts_with("rx-")).map(|entry| entry.path()).collect()
}

/// Whether RPS is on: its mask, `0,00000000`, has a bit.
fn is_spread(queue: &Path) -> bool {
    let mask = fs::read_to_string(queue.join("rps_cpus")).unwrap_or_default();
    mask.trim().chars().any(|digit| digit != '0' && digit != ',')
}

/// The cores that a card's interrupts go to. Cards on a virtio bus have them listed one folder up.
fn interrupt_cores(root: &Path, card: &Path) -> CpuList {
    let device = fs::canonicalize(card.join("device")).unwrap_or_default();
    let folders = [Some(device.as_path()), device.parent()];
    let irqs = folders.into_iter().flatten().filter_map(|folder| fs::read_dir(folder.join("msi_irqs")).ok()).next();
    let irqs = irqs.into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let cores = irqs.filter_map(|irq| {
        let at = |name: &str| read(root, format!("proc/irq/{irq}/{name}"));
        at("effective_affinity_list").or_else(|| at("smp_affinity_list"))?.parse::<CpuList>().ok()
    });
    cores.flat_map(|list| list.ids().to_vec()).collect()
}

/// The shards' cores as the kernel takes a mask: words of 32 bits, the highest first.
fn mask(plan: Option<&ShardPlan>) -> String {
    let cores = plan.map(|plan| plan.cores().ids().to_vec()).unwrap_or_default();
    let words = cores.last().map_or(1, |last| last / 32 + 1);
    let word = |index: usize| {
        cores.iter().filter(|core| *core / 32 == index).fold(0_u32, |word, core| word | 1 << (core % 32))
    };
    let mut text: Vec<String> = (0..words).rev().map(|index| format!("{:08x}", word(index))).collect();
    text[0] = text[0].trim_start_matches('0').to_owned();
    text.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        doctor::State,
        topology::{Host, PinMode, tests::fixture},
    };

    fn plan(cores: &str) -> ShardPlan {
        let root = fixture(&[]);
        let host = Host::read_from(root.path(), cores.parse().unwrap());
        ShardPlan::decide(None, None, PinMode::Auto, &host).unwrap()
    }

    #[track_caller]
    fn check(files: &[(&str, &str)], name: &str, state: State, found: &str, cure: &str) {
        let root = fixture(files);
        let checks = checks(root.path(), Platform::Host, Some(&plan("0-3")));
        let check = checks.iter().find(|check| check.name == name).expect("it is looked at");
        assert_eq!((check.state, &*check.found), (state, found));
        let told = check.cure.as_deref().unwrap_or_default();
        assert!(told.contains(cure) && told.is_empty() == cure.is_empty(), "{told}");
    }

    #[test]
    fn parameters_are_compared_with_what_serve_asks_for() {
        use State::{Ok, Warning};
        let somaxconn = "proc/sys/net/core/somaxconn";
        let cure = "`sudo sysctl -w net.core.somaxconn=\"4096\"`";
        let less = "4095, of 4096 that serve asks for (--backlog)";
        check(&[(somaxconn, "4095\n")], "somaxconn", Warning, less, cure);
        check(&[(somaxconn, "4096\n")], "somaxconn", Ok, "4096", "");
        check(&[], "somaxconn", Ok, HIDDEN, "");
        let migrate = "proc/sys/net/ipv4/tcp_migrate_req";
        check(&[(migrate, "0\n")], "tcp_migrate_req", Warning, "0", "net.ipv4.tcp_migrate_req=\"1\"");
        check(&[(migrate, "1\n")], "tcp_migrate_req", Ok, "1", "");
        let range = "proc/sys/net/ipv4/ip_local_port_range";
        check(&[(range, "32768\t60999\n")], "ip_local_port_range", Ok, "32768-60999: 28232 ports", "");
        check(&[(range, "50000 60999\n")], "ip_local_port_range", Warning, "50000-60999: 11000 ports", "10240 65535");
        check(&[(range, "junk\n")], "ip_local_port_range", Ok, "junk", "");
        let pages = "sys/kernel/mm/transparent_hugepage/enabled";
        check(&[(pages, "[always] madvise never\n")], "transparent hugepages", Warning, "always", "echo madvise");
        check(&[(pages, "always [madvise] never\n")], "transparent hugepages", Ok, "madvise", "");
        let clock = "sys/devices/system/clocksource/clocksource0/current_clocksource";
        check(&[(clock, "hpet\n")], "time source", Warning, "hpet", "clocksource=tsc");
        check(&[(clock, "kvm-clock\n")], "time source", Ok, "kvm-clock", "");
        check(&[], "time source", Ok, HIDDEN, "");
    }

    #[test]
    fn cards_with_few_queues_are_told() {
        use State::{Ok, Warning};
        let card = "sys/class/net/eth7";
        let device = ("sys/class/net/eth7/device/msi_irqs/37", "");
        let (irq, rps) = (("proc/irq/37/effective_affinity_list", "1\n"), format!("{card}/queues/rx-0/rps_cpus"));
        let name = "network queues";
        check(&[], name, Ok, "no card of its own here: see the host's", "");
        let found = "eth7: 1 receive queue, RPS on 0, interrupts on cores 1; shards on cores 0-3";
        check(&[device, irq, (&rps, "0,00000000\n")], name, Warning, found, "echo f | sudo tee");
        let found = "eth7: 1 receive queue, RPS on 1, interrupts on cores 1; shards on cores 0-3";
        check(&[device, irq, (&rps, "0,0000000f\n")], name, Ok, found, "");
        let queues: Vec<String> = (0..4).map(|queue| format!("{card}/queues/rx-{queue}/rps_cpus")).collect();
        let mut files = vec![device];
        files.extend(queues.iter().map(|queue| (&**queue, "0\n")));
        let found = "eth7: 4 receive queues, RPS on 0, interrupts not shown here; shards on cores 0-3";
        check(&files, name, Ok, found, "");
    }

    #[test]
    fn mask_has_words_of_32_bits() {
        let shown = |cores: &str| mask(Some(&plan(cores)));
        assert_eq!(
            [shown("0-3"), shown("31"), shown("1,32"), shown("64")],
            ["f", "80000000", "1,00000002", "1,00000000,00000000"]
        );
    }
}
