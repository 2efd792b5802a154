//! The end of a server under load, as the process that a supervisor signals.

mod common;

use common::{
    live::{Live, get, request, server, wait_until},
    raw::Raw,
    response::Response,
    server::Server as Binary,
};
use everycore::{Router, config::Balance};
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

/// What a keep-alive client went through until its connection was closed.
struct Ended {
    answers: u64,
    /// Whether the last answer announced the close.
    was_announced: bool,
}

/// Sends requests one after another until an answer says that the connection will close.
///
/// # Panics
/// When a request is not answered.
fn client(address: SocketAddr, target: &str, answers: &AtomicU64) -> Ended {
    let mut connection = Raw::connect(address);
    let request = request(target);
    let mut ended = Ended { answers: 0, was_announced: false };
    while !ended.was_announced {
        let answer = connection.exchange(&request);
        assert_eq!(answer.status, 200);
        ended.answers += 1;
        answers.fetch_add(1, Ordering::Relaxed);
        ended.was_announced = answer.has_token("connection", "close");
    }
    assert_eq!(connection.until_close(), b"", "the announced close comes");
    ended
}

/// The process ends by itself, with that code.
#[track_caller]
fn ends(server: &mut Binary, code: i32) {
    wait_until("the process ends", || server.ended().is_some());
    assert_eq!(server.wait().code(), Some(code));
}

fn drain_under_load(more: &[&str], target: &'static str) {
    let mut server = Binary::start(more);
    let (address, answers) = (server.http, &AtomicU64::new(0));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..32).map(|_| scope.spawn(move || client(address, target, answers))).collect();
        wait_until("the load runs", || answers.load(Ordering::Relaxed) > 500);
        server.signal("TERM");
        let ended: Vec<Ended> = clients.into_iter().map(|client| client.join().expect("nothing was lost")).collect();
        assert!(ended.iter().all(|client| client.answers > 0 && client.was_announced));
    });
    ends(&mut server, 0);
}

#[test]
fn sigterm_under_load_loses_no_request() {
    drain_under_load(&[], "/yo");
}

#[test]
fn sigterm_under_load_loses_no_request_with_hand_over() {
    drain_under_load(&["--balance", "round-robin"], "/yo");
}

#[test]
fn sigterm_under_load_of_larger_answers_loses_no_request() {
    drain_under_load(&["--balance", "least-conn"], "/fast");
}

#[test]
fn sigterm_under_pipelined_load_answers_what_it_read() {
    let mut server = Binary::start(&[]);
    let (address, answers) = (server.http, &AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(move || {
                let mut connection = Raw::connect(address);
                loop {
                    // Those after the announced close are not answered, and known not to be (RFC 9112 §9.3.2).
                    if connection.try_send(request("/yo").repeat(16)).is_err() {
                        return;
                    }
                    for _ in 0..16 {
                        let answer = connection.response("GET");
                        answers.fetch_add(1, Ordering::Relaxed);
                        if answer.has_token("connection", "close") {
                            return;
                        }
                    }
                }
            });
        }
        wait_until("the load runs", || answers.load(Ordering::Relaxed) > 1000);
        server.signal("TERM");
    });
    ends(&mut server, 0);
}

#[test]
fn connections_that_wait_for_accept_are_served_by_a_drain() {
    // In this process: the shard is kept busy while they arrive, and told to drain meanwhile.
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(Some(held));
    let live = Live::with(server(1).configure(|config| config.balance = Balance::LeastConn), move |_| {
        let held = held.lock().expect("one shard").take().expect("one shard");
        Router::new().get("/", |_| "ok").get("/hold", move |_| held.recv().map_or("gone", |()| "held"))
    });
    let mut holding = Raw::connect(live.http);
    holding.send(request("/hold"));
    wait_until("the shard is busy", || live.stats().missing == [0]);
    let mut waiting: Vec<Raw> = (0..50).map(|_| Raw::connect(live.http)).collect();
    waiting.iter_mut().for_each(|connection| connection.send(request("/")));
    live.handle.shutdown();
    release.send(()).expect("it waits");
    assert_eq!(holding.response("GET").body, b"held");
    for connection in &mut waiting {
        let answer = connection.response("GET");
        assert_eq!(answer.body, b"ok");
        assert!(answer.has_token("connection", "close"));
    }
    live.wait().expect("it drains");
}

#[test]
fn connection_handed_to_a_shard_that_has_drained_is_served() {
    // Shard 0 is kept busy; meanwhile shard 1 drains and has nothing left. Then shard 0 finds connections in its queue
    // and hands every other one to shard 1, where they take a while.
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(Some(held));
    let live = Live::with(server(2).configure(|config| config.balance = Balance::RoundRobin), move |shard| {
        let id = shard.id();
        let held = (id == 0).then(|| held.lock().expect("one shard").take().expect("one shard"));
        Router::new()
            .get("/id", move |_| id.to_string())
            .get("/hold", move |_| held.as_ref().map(|held| held.recv().map_or("gone", |()| "held")))
            .get("/", move |_| {
                let shard = shard.clone();
                async move {
                    if shard.id() == 1 {
                        shard.sleep(Duration::from_millis(300)).await;
                    }
                    "ok"
                }
            })
    });
    let mut holding = loop {
        let mut connection = Raw::connect(live.http);
        if connection.exchange(request("/id")).body == b"0" {
            break connection;
        }
    };
    holding.send(request("/hold"));
    wait_until("shard 0 is busy", || live.stats().missing == [0]);
    let mut waiting: Vec<Raw> = (0..40).map(|_| Raw::connect(live.http)).collect();
    waiting.iter_mut().for_each(|connection| connection.send(request("/")));
    // Those that shard 1 serves have their answers; the others wait for shard 0.
    let own = |live: &Live| live.stats().shards.first().map_or(0, |shard| shard.counters.connections.active);
    wait_until("shard 1 has its own", || own(&live) > 0);
    live.handle.shutdown();
    wait_until("shard 1 has none left", || own(&live) == 0);
    release.send(()).expect("it waits");
    for connection in &mut waiting {
        assert_eq!(connection.response("GET").body, b"ok");
    }
    live.wait().expect("it drains");
}

#[test]
fn readiness_ends_before_service_does() {
    let mut server = Binary::start(&["--drain-delay", "1s"]);
    let mut kept = Raw::connect(server.http);
    assert_eq!(kept.exchange(request("/readyz")).status, 200);
    server.signal("TERM");
    wait_until("it is unready", || kept.exchange(request("/readyz")).status == 503);
    // Still: accepting, serving, keeping connections, alive.
    assert_eq!(get(server.http, "/readyz").status, 503);
    assert_eq!(get(server.http, "/healthz").status, 503);
    assert_eq!(get(server.http, "/livez").status, 200);
    let answer = get(server.http, "/yo");
    assert_eq!((answer.status, answer.has_token("connection", "close")), (200, false));
    ends(&mut server, 0);
}

#[test]
fn idle_connections_are_closed_by_a_drain() {
    let mut server = Binary::start(&[]);
    let mut idle: Vec<Raw> = (0..20)
        .map(|index| {
            let mut connection = Raw::connect(server.http);
            if index % 2 == 0 {
                assert_eq!(connection.exchange(request("/yo")).status, 200);
            }
            connection
        })
        .collect();
    wait_until("all are accepted", || {
        let seen: serde_json::Value = serde_json::from_slice(&get(server.http, "/__stats").body).expect("JSON");
        seen["total"]["connections"]["active"].as_u64() >= Some(20)
    });
    server.signal("INT");
    for connection in &mut idle {
        assert_eq!(connection.until_close(), b"", "an end in good order");
    }
    ends(&mut server, 0);
}

#[test]
fn answer_that_a_client_takes_slowly_is_sent_to_its_end() {
    let mut server = Binary::start(&["--drain-timeout", "10m"]);
    let size = 20_000_000;
    let mut connection = Raw::connect(server.http);
    connection.send(format!("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"));
    let mut writing = connection.stream().try_clone().expect("a copy");
    let writer = thread::spawn(move || writing.write_all(&vec![7; size]).expect("it reads"));
    connection.octets(100_000);
    server.signal("TERM");
    wait_until("it stops accepting", || TcpStream::connect(server.http).is_err());
    let rest = connection.until_close();
    writer.join().expect("all was read");
    assert!(rest.len() > size - 100_000 && rest.ends_with(&[7; 1000]), "{} of {size}", rest.len());
    ends(&mut server, 0);
}

#[test]
fn second_signal_ends_at_once() {
    let mut server = Binary::start(&["--drain-timeout", "1h"]);
    let mut stuck = Raw::connect(server.http);
    stuck.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12");
    wait_until("it reads the body", || {
        let seen: serde_json::Value = serde_json::from_slice(&get(server.http, "/__stats").body).expect("JSON");
        seen["total"]["requests"].as_u64() >= Some(2)
    });
    server.signal("TERM");
    wait_until("it stops accepting", || TcpStream::connect(server.http).is_err());
    assert!(server.ended().is_none(), "it waits for the request");
    server.signal("TERM");
    ends(&mut server, 0);
}

#[test]
fn second_signal_ends_the_delay_too() {
    let mut server = Binary::start(&["--drain-delay", "1h"]);
    server.signal("TERM");
    wait_until("it is unready", || get(server.http, "/readyz").status == 503);
    server.signal("INT");
    ends(&mut server, 0);
}

#[test]
fn drain_timeout_ends_what_does_not_end_by_itself() {
    let mut server = Binary::start(&["--drain-timeout", "300ms"]);
    let mut stuck = Raw::connect(server.http);
    stuck.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12");
    wait_until("it reads the body", || {
        let seen: serde_json::Value = serde_json::from_slice(&get(server.http, "/__stats").body).expect("JSON");
        seen["total"]["requests"].as_u64() >= Some(2)
    });
    server.signal("TERM");
    ends(&mut server, 0);
    assert_eq!(stuck.until_close(), b"");
}

#[test]
fn killed_server_restarts_on_its_port() {
    let probe = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    let address = probe.local_addr().expect("it is bound").to_string();
    drop(probe);
    let launch = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_everycore"));
        command.args(["serve", "--listen", &address, "--shards", "2", "--pin", "off"]);
        Binary::launch(command)
    };
    let mut server = launch();
    for round in 0..5 {
        let mut open: Vec<Raw> = (0..20).map(|_| Raw::connect(server.http)).collect();
        for connection in &mut open {
            assert_eq!(connection.exchange(request("/yo")).status, 200, "round {round}");
        }
        server.signal("KILL");
        server.wait();
        server = launch();
    }
    assert_eq!(get(server.http, "/yo").status, 200);
}

#[test]
fn churn_during_a_drain_ends_in_answers_or_refusals() {
    // Of clients that connect anew each time, a connection that completes while its listener closes is reset by the
    // kernel. All others: a whole answer, or no connection.
    let mut server = Binary::start(&[]);
    let (address, answers) = (server.http, &AtomicU64::new(0));
    let cut: u64 = thread::scope(|scope| {
        let clients = (0..8).map(|_| {
            scope.spawn(move || {
                let mut cut = 0;
                loop {
                    let Ok(mut stream) = TcpStream::connect(address) else { return cut };
                    let mut answer = Vec::new();
                    let asked = stream.write_all(b"GET /yo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
                    match asked.and_then(|()| stream.read_to_end(&mut answer)) {
                        Ok(_) => {
                            let parsed = Response::parse(&answer, "GET", true);
                            assert!(matches!(parsed, Ok(Some(_))), "{}", answer.escape_ascii());
                            answers.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe));
                            assert!(answer.is_empty());
                            cut += 1;
                        }
                    }
                }
            })
        });
        let clients: Vec<_> = clients.collect();
        wait_until("the load runs", || answers.load(Ordering::Relaxed) > 200);
        server.signal("TERM");
        clients.into_iter().map(|client| client.join().expect("it ends")).sum()
    });
    println!("{cut} connections met the closing of their listener");
    assert!(cut <= 16, "{cut} connections were reset");
    ends(&mut server, 0);
}
