//! What the kernel tells of our process. Floor 7.

use crate::{
    stats::{Process, Throttled},
    topology::Quota,
};
use std::{fs, path::Path};

/// Reads it from below `root`, but for `cpu_ns` and `started_unix_s`. Some ten system calls; nothing here waits for a disk.
pub(super) fn read(root: &Path, quota: Option<&Quota>) -> Process {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let status = read("proc/self/status");
    let in_status = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    Process {
        pid: std::process::id(),
        rss_bytes: 1024 * in_status("VmRSS:"),
        threads: in_status("Threads:"),
        cpu_ns: 0,
        started_unix_s: 0,
        fds: count_files(&root.join("proc/self/fd")),
        fds_max: files_max(&read("proc/self/limits")).unwrap_or(0),
        quota_millicores: quota.map(|quota| (quota.cores * 1000.0) as u64),
        throttling: quota.and_then(Quota::throttling).map(|throttling| Throttled {
            periods: throttling.periods,
            throttled_periods: throttling.throttled_periods,
            throttled_ns: u64::try_from(throttling.throttled.as_nanos()).unwrap_or(u64::MAX),
        }),
        listen_overflows: in_netstat(&read("proc/self/net/netstat"), "TcpExt:", "ListenOverflows"),
    }
}

/// Since Linux 6.2 the folder's size is their number; before, they have to be counted one by one.
fn count_files(folder: &Path) -> u64 {
    match fs::metadata(folder).map(|folder| folder.len()) {
        Ok(count @ 1..) => count,
        _ => fs::read_dir(folder).map_or(0, |files| files.count() as u64),
    }
}

/// The soft limit on open files: `Max open files            1024                 4096                 files`.
fn files_max(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// One number of `/proc/net/netstat`: a line of names and one of numbers, both of which begin with `group`.
fn in_netstat(netstat: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = netstat.lines().filter(|line| line.starts_with(group));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let index = names.split(' ').position(|word| word == name)?;
    numbers.split(' ').nth(index)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_read_as_the_kernel_writes_it() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join("proc/self").join(path);
            fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        write("status", "Name:\teverycore\nVmHWM:\t    9999 kB\nVmRSS:\t    4321 kB\nThreads:\t7\n");
        write("limits", "Limit      Soft Limit   Hard Limit   Units\nMax open files            1024   4096   files\n");
        write("net/netstat", "TcpExt: A ListenOverflows ListenDrops\nTcpExt: 1 22 333\nIpExt: A\nIpExt: 5\n");
        let process = read(root.path(), None);
        assert_eq!((process.rss_bytes, process.threads), (4321 * 1024, 7));
        assert_eq!((process.fds_max, process.listen_overflows), (1024, Some(22)));
        assert_eq!((process.throttling, process.quota_millicores), (None, None));
    }

    #[test]
    fn what_is_not_there_is_none_or_zero() {
        let root = tempfile::tempdir().expect("a folder");
        let process = read(root.path(), None);
        assert_eq!((process.rss_bytes, process.fds, process.fds_max, process.listen_overflows), (0, 0, 0, None));
        for (netstat, expected) in
            [("TcpExt: A B\n", None), ("TcpExt: A B\nTcpExt: 1\n", None), ("TcpExt: B\nTcpExt: x\n", None)]
        {
            assert_eq!(in_netstat(netstat, "TcpExt:", "B"), expected, "{netstat:?}");
        }
    }

    #[test]
    fn this_process_has_memory_threads_and_files() {
        let before = read(Path::new("/"), None);
        let files: Vec<_> = (0..3).map(|_| fs::File::open("/dev/null").expect("a file")).collect();
        assert!(before.rss_bytes > 0 && before.threads > 0 && before.fds > 0);
        assert!(before.fds_max >= before.fds + files.len() as u64);
    }
}
