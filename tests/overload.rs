//! More than there is room for: connections over the limit, no descriptors left, thousands of slow clients, churn.

mod common;

use common::{
    live::{Live, cpu_time, descriptors, get, request, rss_kib, server, wait_until},
    raw::Raw,
    server::Server as Binary,
};
use everycore::{Router, ring::rlimit::raise_limits};
use std::{
    env, fs,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    process::Command,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

/// The tests with thousands of connections share the limit on descriptors: one at a time.
static MANY: Mutex<()> = Mutex::new(());

/// As many connections as are wanted, or as the descriptors of this process allow.
fn connections_wanted(wanted: usize) -> usize {
    let limit = raise_limits().expect("limits can be read").nofile.soft;
    let wanted = wanted.min(usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(1000));
    if wanted < 10_000 {
        println!("with {wanted} connections only: the limit on open files is {limit}");
    }
    wanted
}

// ---- more connections than wanted ------------------------------------------------------------------

#[test]
fn connection_over_the_limit_gets_503_and_the_next_is_served() {
    let live =
        Live::with(server(2).configure(|config| config.connections_max = 3), |_| Router::new().get("/", |_| "ok"));
    let mut served: Vec<Raw> = (0..3).map(|_| Raw::connect(live.http)).collect();
    for connection in &mut served {
        assert_eq!(connection.exchange(request("/")).status, 200);
    }
    for count in 1..=5 {
        let mut refused = Raw::connect(live.http);
        refused.send(request("/")); // whether it is read or not: the answer is not lost to a reset
        let answer = refused.response("GET");
        assert_eq!((answer.status, answer.values("retry-after").next()), (503, Some("1")));
        assert!(answer.has_token("connection", "close"));
        assert!(answer.values("date").next().is_some());
        assert_eq!(refused.until_close(), b"");
        let total = live.stats().total;
        assert_eq!((total.rejects.overload, total.connections.closed.rejected), (count, count));
    }
    // Who only listens gets it too.
    assert!(Raw::connect(live.http).until_close().starts_with(b"HTTP/1.1 503 "));
    for connection in &mut served {
        assert_eq!(connection.exchange(request("/")).status, 200, "who was there before is served on");
    }
    served.pop();
    wait_until("there is room again", || live.stats().total.connections.active == 2);
    assert_eq!(live.get("/").status, 200);
    let total = live.stats().total;
    assert_eq!(total.connections.accepted, total.connections.active + closed(&total.connections.closed));
}

fn closed(closed: &everycore::stats::ClosedSnapshot) -> u64 {
    let all = serde_json::to_value(closed).expect("plain data");
    all.as_object().expect("an object").values().filter_map(serde_json::Value::as_u64).sum()
}

#[test]
fn crowd_over_the_limit_leaves_no_trace() {
    let live =
        Live::with(server(2).configure(|config| config.connections_max = 10), |_| Router::new().get("/", |_| "ok"));
    let address = live.http;
    let crowd: Vec<_> = (0..8)
        .map(|_| {
            thread::spawn(move || {
                let mut served = 0;
                for _ in 0..100 {
                    let mut connection = TcpStream::connect(address).expect("it listens");
                    let mut answer = String::new();
                    let asked = connection.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
                    // Of those that are too many even for a refusal, the connection is closed without a word.
                    if asked.and_then(|()| connection.read_to_string(&mut answer)).is_ok() {
                        let is_known =
                            ["", "HTTP/1.1 200 ", "HTTP/1.1 503 "].iter().any(|start| answer.starts_with(start));
                        assert!(is_known, "{answer:?}");
                        served += u64::from(answer.starts_with("HTTP/1.1 200 "));
                    }
                }
                served
            })
        })
        .collect();
    let served: u64 = crowd.into_iter().map(|client| client.join().expect("it asks")).sum();
    assert!(served > 0);
    wait_until("all are gone", || {
        let connections = live.stats().total.connections;
        connections.active == 0 && connections.accepted == closed(&connections.closed)
    });
    let mut again: Vec<Raw> = (0..10).map(|_| Raw::connect(live.http)).collect();
    for connection in &mut again {
        assert_eq!(connection.exchange(request("/")).status, 200, "all ten places are free again");
    }
}

// ---- no descriptors left ---------------------------------------------------------------------------

/// Set in the process that is to run out of descriptors: where to tell its address.
const STARVED: &str = "EVERYCORE_TEST_STARVED";
/// Its limit on open files; beside what is reserved it leaves room for some 300 connections.
const STARVED_FILES: u64 = 600;

/// Not a test of its own: the server that the next test starts as another process.
#[test]
fn starved_server() {
    let Ok(file) = env::var(STARVED) else { return };
    let live = Live::start(1, |_| {
        let hoard = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let emptied = hoard.clone();
        Router::new()
            .get("/hoard", move |_| {
                // Until none is left.
                while let Ok(file) = fs::File::open("/dev/null") {
                    hoard.borrow_mut().push(file);
                }
                hoard.borrow().len().to_string()
            })
            .get("/release", move |_| {
                emptied.borrow_mut().clear();
                "released"
            })
            .get("/ok", |_| "ok")
    });
    fs::write(format!("{file}.new"), live.http.to_string()).expect("the folder is there");
    fs::rename(format!("{file}.new"), file).expect("the folder is there");
    // Until we are killed, or by then the test has failed.
    thread::sleep(Duration::from_secs(60));
}

struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn accepting_pauses_without_descriptors_and_resumes_by_itself() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("address");
    let child = Command::new("sh")
        .args(["-c", &format!("ulimit -n {STARVED_FILES}; exec \"$0\" --exact starved_server")])
        .arg(env::current_exe().expect("this program"))
        .env(STARVED, &file)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn();
    let child = Killed(child.expect("sh is there"));
    wait_until("the server listens", || file.exists());
    let address: SocketAddr = fs::read_to_string(&file).expect("it was written").parse().expect("an address");

    let mut there = Raw::connect(address);
    assert_eq!(there.exchange(request("/ok")).body, b"ok");
    assert_ne!(there.exchange(request("/hoard")).body, b"0");
    let pauses = |there: &mut Raw| {
        let seen: serde_json::Value = serde_json::from_slice(&there.exchange(request("/__stats")).body).expect("JSON");
        seen["total"]["connections"]["accept_pauses"].as_u64().expect("a number")
    };
    // They wait in the kernel's queue; one of them at least meets the lack.
    let mut waiting: Vec<Raw> = (0..5).map(|_| Raw::connect(address)).collect();
    waiting.iter_mut().for_each(|connection| connection.send(request("/ok")));
    wait_until("accepting pauses", || pauses(&mut there) >= 2);
    // It tries again a few times a second, and does not spin.
    let (pauses_before, since) = (pauses(&mut there), Instant::now());
    wait_until("it has tried again and again", || pauses(&mut there) >= pauses_before + 10);
    let elapsed = since.elapsed();
    assert!(elapsed >= Duration::from_millis(300), "ten tries in {elapsed:?}");
    // Left alone, it sleeps between its tries: a spin would take the whole time.
    let (cpu_before, since) = (cpu_time(child.0.id()), Instant::now());
    thread::sleep(Duration::from_millis(500));
    let (elapsed, cpu) = (since.elapsed(), cpu_time(child.0.id()) - cpu_before);
    assert!(cpu < elapsed / 2, "{cpu:?} of CPU in {elapsed:?}");
    // Who is there is served.
    for _ in 0..10 {
        assert_eq!(there.exchange(request("/ok")).body, b"ok");
    }
    assert_eq!(there.exchange(request("/release")).body, b"released");
    for connection in &mut waiting {
        assert_eq!(connection.response("GET").body, b"ok", "who waited is served");
    }
    assert_eq!(get(address, "/ok").body, b"ok");
}

// ---- slow clients ----------------------------------------------------------------------------------

#[test]
fn ten_thousand_slow_clients_cost_little_and_harm_nobody() {
    let _alone = MANY.lock();
    let wanted = connections_wanted(10_000);
    let server = Binary::start(&["--header-timeout", "3s"]);
    let before = rss_kib(server.pid());
    let part = b"GET /yo HTTP/1.1\r\nHost: localhost\r\nX-Slow: ";
    let slow: Vec<TcpStream> = (0..wanted)
        .map(|_| {
            let mut connection = TcpStream::connect(server.http).expect("it listens");
            connection.write_all(part).expect("it reads");
            connection
        })
        .collect();
    let mut other = Raw::connect(server.http);
    let mut longest = Duration::ZERO;
    for _ in 0..100 {
        let since = Instant::now();
        assert_eq!(other.exchange(request("/yo")).body, b"Hey!");
        longest = longest.max(since.elapsed());
    }
    assert!(longest < Duration::from_secs(2), "somebody else waited {longest:?}");
    let grown = rss_kib(server.pid()).saturating_sub(before);
    let each = grown as f64 / wanted as f64;
    println!("{each:.2} KiB for each of {wanted} slow clients");
    assert!(each < 16.0, "{each:.2} KiB for each slow client");
    // All are told so, and let go, at their deadline.
    let mut told = 0;
    for mut connection in slow {
        connection.set_read_timeout(Some(Duration::from_secs(20))).expect("it can be set");
        let mut answer = [0; 12];
        match connection.read_exact(&mut answer) {
            Ok(()) => assert_eq!(&answer, b"HTTP/1.1 408"),
            Err(error) => panic!("no answer after {told} answers: {error}"),
        }
        told += 1;
    }
    let stats = || -> serde_json::Value { serde_json::from_slice(&get(server.http, "/__stats").body).expect("JSON") };
    wait_until("all are gone", || stats()["total"]["connections"]["active"].as_u64() <= Some(2));
    assert_eq!(stats()["total"]["connections"]["closed"]["header_timeout"], told);
}

#[test]
fn idle_connections_own_no_buffers() {
    let _alone = MANY.lock();
    let wanted = connections_wanted(5_000);
    let server = Binary::start(&[]);
    drop(get(server.http, "/yo"));
    let before = rss_kib(server.pid());
    let connections: Vec<Raw> = (0..wanted)
        .map(|_| {
            let mut connection = Raw::connect(server.http);
            assert_eq!(connection.exchange(request("/yo")).body, b"Hey!");
            connection
        })
        .collect();
    let each = rss_kib(server.pid()).saturating_sub(before) as f64 / wanted as f64;
    println!("{each:.2} KiB for each of {wanted} idle connections");
    assert!(each < 3.0, "{each:.2} KiB for each idle connection");
    drop(connections);
}

/// Once every shard runs: the driver opens some after the server says that it listens.
fn descriptors_at_rest(server: &Binary) -> usize {
    assert_eq!(get(server.http, "/livez").status, 200);
    descriptors(server.pid())
}

// ---- churn -----------------------------------------------------------------------------------------

#[test]
fn ten_thousand_connections_leave_descriptors_and_memory_where_they_were() {
    let _alone = MANY.lock();
    let server = Binary::start(&[]);
    let wanted = connections_wanted(10_000);
    let round = |count: usize| {
        let mut open: Vec<TcpStream> = (0..count)
            .map(|index| {
                let mut connection = TcpStream::connect(server.http).expect("it listens");
                // Some in every state that a client may be in when it goes.
                match index % 4 {
                    0 => {}
                    1 => connection.write_all(b"GET /yo HT").expect("it reads"),
                    2 => connection.write_all(request("/yo").as_bytes()).expect("it reads"),
                    _ => connection.write_all(request("/fast").repeat(3).as_bytes()).expect("it reads"),
                }
                connection
            })
            .collect();
        for (index, connection) in open.iter_mut().enumerate() {
            if index % 8 == 2 {
                let mut answer = [0; 12];
                connection.read_exact(&mut answer).expect("it answers");
            }
            if index % 3 == 0 {
                let _ = connection.shutdown(Shutdown::Write);
            }
        }
    };
    let stats = || -> serde_json::Value { serde_json::from_slice(&get(server.http, "/__stats").body).expect("JSON") };
    let settle = || wait_until("all are gone", || stats()["total"]["connections"]["active"].as_u64() <= Some(1));
    let files_before = descriptors_at_rest(&server);
    // The first rounds take what is kept for reuse; the next ones must not take more.
    for _ in 0..2 {
        round(wanted);
        settle();
    }
    let at_first = rss_kib(server.pid());
    for _ in 0..2 {
        round(wanted);
        settle();
    }
    wait_until("its descriptors are closed", || descriptors(server.pid()) <= files_before);
    let grown = rss_kib(server.pid()).saturating_sub(at_first);
    println!("{at_first} KiB after two rounds, {grown} KiB more after four");
    // A kilobyte lost with each connection would be 20 MB.
    assert!(grown < 16 * 1024, "{at_first} KiB after two rounds, {grown} KiB more after four");
    let total = stats()["total"]["connections"].clone();
    let closed: u64 = total["closed"].as_object().expect("counters").values().filter_map(|count| count.as_u64()).sum();
    assert_eq!(total["accepted"].as_u64(), Some(closed + total["active"].as_u64().expect("a number")));
}

#[test]
fn clients_that_reset_at_every_step_leave_nothing() {
    let server = Binary::start(&[]);
    let files_before = descriptors_at_rest(&server);
    let body = format!("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n{}", "x".repeat(100_000));
    for round in 0..500 {
        let mut connection = TcpStream::connect(server.http).expect("it listens");
        socket2::SockRef::from(&connection).set_linger(Some(Duration::ZERO)).expect("it can be set");
        let sent = match round % 5 {
            0 => Ok(()),
            1 => connection.write_all(b"G"),
            2 => connection.write_all(request("/fast").repeat(50).as_bytes()),
            3 => connection.write_all(body.as_bytes()),
            _ => connection.write_all(request("/yo").as_bytes()).and_then(|()| connection.read(&mut [0; 4]).map(drop)),
        };
        match sent {
            Ok(()) => {}
            Err(error) => assert_ne!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    let stats = || -> serde_json::Value { serde_json::from_slice(&get(server.http, "/__stats").body).expect("JSON") };
    wait_until("all are gone", || stats()["total"]["connections"]["active"].as_u64() <= Some(1));
    wait_until("its descriptors are closed", || descriptors(server.pid()) <= files_before);
}
