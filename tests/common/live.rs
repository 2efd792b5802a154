//! A server of the library inside the test's own process, and ways to look at what happens without sleeping blindly.

use super::{raw::Raw, response::Response};
use everycore::{
    Error, Handle, Router, Running, Server, Shard, config::Address, stats::ServerSnapshot, topology::PinMode,
};
use std::{
    fs,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

/// Whatever is awaited and has not come by then will not come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at what is awaited.
const LOOK: Duration = Duration::from_millis(2);

/// A running server; dropping it ends it.
pub(crate) struct Live {
    running: Option<Running>,
    pub(crate) handle: Handle,
    /// Its first TCP address.
    pub(crate) http: SocketAddr,
}

impl Live {
    /// So many shards on whatever cores there are, at a port of loopback that the kernel chose.
    pub(crate) fn start(shards: usize, app: impl Fn(Shard) -> Router + Send + Sync + 'static) -> Self {
        Self::with(server(shards), app)
    }

    /// # Panics
    /// When it does not start.
    pub(crate) fn with(server: Server, app: impl Fn(Shard) -> Router + Send + Sync + 'static) -> Self {
        let running = server.start(app).unwrap_or_else(|error| panic!("cannot start: {error}"));
        let tcp = running.addresses().iter().find_map(tcp);
        let http = tcp.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
        Self { handle: running.handle(), running: Some(running), http }
    }

    /// All its addresses.
    pub(crate) fn addresses(&self) -> &[Address] {
        self.running.as_ref().expect("taken at the end only").addresses()
    }

    /// The TCP address of that number.
    pub(crate) fn address(&self, index: usize) -> SocketAddr {
        tcp(&self.addresses()[index]).expect("a TCP address")
    }

    pub(crate) fn get(&self, target: &str) -> Response {
        get(self.http, target)
    }

    pub(crate) fn stats(&self) -> ServerSnapshot {
        self.handle.stats()
    }

    /// What it ended with.
    pub(crate) fn wait(mut self) -> Result<(), Error> {
        self.running.take().expect("taken at the end only").wait()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.handle.stop();
        // A test that failed is not to hang as well.
        if let (Some(running), false) = (self.running.take(), thread::panicking()) {
            running.wait().expect("the server ends in good order");
        }
    }
}

/// So many shards, not tied to cores, at a port of loopback that the kernel chooses.
pub(crate) fn server(shards: usize) -> Server {
    Server::bind("127.0.0.1:0").shards(shards).configure(|config| config.pin = PinMode::Off)
}

fn tcp(address: &Address) -> Option<SocketAddr> {
    match address {
        Address::Tcp(address) => Some(*address),
        Address::Unix { .. } => None,
    }
}

/// One request on a connection of its own.
pub(crate) fn get(address: SocketAddr, target: &str) -> Response {
    Raw::connect(address).exchange(request(target))
}

/// A GET that keeps its connection.
pub(crate) fn request(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

/// Looks again and again until `is_so`.
///
/// # Panics
/// When it is not so for long.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "still waiting: {what}");
        thread::sleep(LOOK);
    }
}

// ---- what a process takes -------------------------------------------------------------------------

/// Resident memory in KiB.
pub(crate) fn rss_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a user process has memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Open descriptors.
pub(crate) fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs").count()
}

/// Time on the CPU so far, all threads together, user and system. In steps of 10 ms.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let (_, after_name) = stat.rsplit_once(") ").expect("the name is in brackets");
    // proc_pid_stat(5): fields 14 and 15; the third follows the name. USER_HZ is 100 on every Linux we run on.
    let ticks: u64 = after_name.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(10 * ticks)
}
