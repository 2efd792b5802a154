//! Which shard gets a connection, by each policy: the spread as the stats show it.

mod common;

use common::live::{Live, server, wait_until};
use everycore::{Router, config::Balance};
use std::net::TcpStream;

const SHARDS: usize = 4;
const CONNECTIONS: usize = 200;

/// Opens connections one after another, each waiting until the one before is served, and gives the number that each
/// shard serves.
fn spread(balance: Balance) -> (Vec<u64>, Live) {
    let live = Live::with(server(SHARDS).configure(|config| config.balance = balance), |_| Router::new());
    let connections: Vec<TcpStream> = (1..=CONNECTIONS)
        .map(|count| {
            let connection = TcpStream::connect(live.http).expect("it listens");
            wait_until("the connection is served", || live.stats().total.connections.active == count as u64);
            connection
        })
        .collect();
    let stats = live.stats();
    assert_eq!(stats.shards.len(), SHARDS);
    assert_eq!(stats.total.connections.accepted, CONNECTIONS as u64);
    assert_eq!(stats.total.connections.handoffs_in, stats.total.connections.handoffs_out);
    let active = stats.shards.iter().map(|shard| shard.counters.connections.active).collect();
    drop(connections);
    wait_until("all are closed", || live.stats().total.connections.active == 0);
    assert_eq!(live.stats().total.connections.closed.peer_closed, CONNECTIONS as u64);
    (active, live)
}

/// With 200 connections thrown at four shards, one gets fewer than 20 or more than 100 once in more than 10^7 runs.
#[track_caller]
fn is_spread_by_chance(active: &[u64]) {
    assert!(active.iter().all(|count| (20..=100).contains(count)), "{active:?}");
}

#[test]
fn kernel_spreads_by_its_hash() {
    let (active, live) = spread(Balance::Kernel);
    is_spread_by_chance(&active);
    assert_eq!(live.stats().total.connections.handoffs_in, 0);
}

#[test]
fn random_spreads_by_chance() {
    let (active, live) = spread(Balance::Random);
    is_spread_by_chance(&active);
    assert_eq!(live.stats().total.connections.handoffs_in, 0);
}

#[test]
fn cpu_gives_every_connection_to_some_shard_without_hand_over() {
    // Shards that are not tied to cores have none to go by: by number of the core, then.
    let (active, live) = spread(Balance::Cpu);
    assert_eq!(active.iter().sum::<u64>(), CONNECTIONS as u64);
    assert_eq!(live.stats().total.connections.handoffs_in, 0);
}

#[test]
fn round_robin_gives_every_shard_its_turn() {
    let (active, live) = spread(Balance::RoundRobin);
    // Each of the four accepting shards goes round by itself: exact up to one for each of them.
    let even = (CONNECTIONS / SHARDS) as u64;
    assert!(active.iter().all(|count| count.abs_diff(even) <= SHARDS as u64), "{active:?}");
    assert!(live.stats().total.connections.handoffs_in > 0);
}

#[test]
fn least_conn_is_exact() {
    let (active, _live) = spread(Balance::LeastConn);
    assert_eq!(active, [(CONNECTIONS / SHARDS) as u64; SHARDS]);
}

#[test]
fn least_conn_fills_the_shard_that_lost_its_connections() {
    let live = Live::with(server(2).configure(|config| config.balance = Balance::LeastConn), |shard| {
        let id = shard.id().to_string();
        Router::new().get("/", move |_| id.clone())
    });
    let mut by_shard = [Vec::new(), Vec::new()];
    let open = |by_shard: &mut [Vec<common::raw::Raw>; 2]| {
        let mut connection = common::raw::Raw::connect(live.http);
        let id = connection.exchange(common::live::request("/")).body[0] - b'0';
        by_shard[usize::from(id)].push(connection);
    };
    for _ in 0..20 {
        open(&mut by_shard);
    }
    assert_eq!(by_shard.each_ref().map(Vec::len), [10, 10]);
    by_shard[1].clear();
    wait_until("they are gone", || live.stats().total.connections.active == 10);
    for _ in 0..10 {
        open(&mut by_shard);
    }
    assert_eq!(by_shard.each_ref().map(Vec::len), [10, 10], "all ten went to the empty shard");
}

#[test]
fn hand_over_works_on_unix_sockets_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s");
    let server = server(3).listen(format!("unix:{}", path.display()));
    let server = server.configure(|config| config.balance = Balance::LeastConn);
    let live = Live::with(server, |_| Router::new());
    let connections: Vec<_> = (1..=9)
        .map(|count| {
            let connection = std::os::unix::net::UnixStream::connect(&path).expect("it listens");
            wait_until("the connection is served", || live.stats().total.connections.active == count);
            connection
        })
        .collect();
    let active: Vec<_> = live.stats().shards.iter().map(|shard| shard.counters.connections.active).collect();
    assert_eq!(active, [3, 3, 3]);
    drop(connections);
}
