//! The load generator against small servers of std threads: exact counts, and each kind of error.

#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used)]

use everycore::load::{self, Arrivals, Fault, LoadError, Model, Outcome, Plan, Report};
use socket2::SockRef;
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixListener,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// What a connection of the test server sees.
struct Conn<S> {
    stream: S,
    input: Vec<u8>,
    served: u64,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    requests: AtomicU64,
    /// Connections that carried a request.
    connections: AtomicU64,
    heads: Mutex<Vec<String>>,
}

impl<S: Read + Write> Conn<S> {
    /// The head of the next request; its body is read and dropped. `None` at the end.
    fn request(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.input.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8(self.input[..end + 4].to_vec()).unwrap();
                let length = head
                    .to_ascii_lowercase()
                    .split_once("content-length: ")
                    .map_or(0, |(_, rest)| rest.split("\r\n").next().unwrap().parse::<usize>().unwrap());
                if self.input.len() >= end + 4 + length {
                    self.input.drain(..end + 4 + length);
                    self.seen.requests.fetch_add(1, Ordering::Relaxed);
                    self.seen.connections.fetch_add(u64::from(self.served == 0), Ordering::Relaxed);
                    self.served += 1;
                    self.seen.heads.lock().unwrap().push(head.clone());
                    return Some(head);
                }
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) | Err(_) => return None,
                Ok(n) => self.input.extend_from_slice(&buffer[..n]),
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }
}

/// A server that treats each connection as `behave` says, on a thread of its own, until the process ends.
fn server(behave: impl Fn(&mut Conn<TcpStream>) + Send + Sync + 'static) -> (Plan, Arc<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let seen = Arc::new(Seen::default());
    let plan = plan(&format!("http://{}/", listener.local_addr().unwrap()));
    let (shared, behave) = (seen.clone(), Arc::new(behave));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (seen, behave) = (shared.clone(), behave.clone());
            thread::spawn(move || behave(&mut Conn { stream: stream.unwrap(), input: Vec::new(), served: 0, seen }));
        }
    });
    (plan, seen)
}

/// Answers every request with the same bytes.
fn answering(answer: &'static [u8]) -> (Plan, Arc<Seen>) {
    server(move |conn| {
        while conn.request().is_some() {
            conn.send(answer);
        }
    })
}

fn plan(url: &str) -> Plan {
    let mut plan = Plan::new(url.parse().unwrap());
    plan.connections = 4;
    plan.extent.duration = None;
    plan.extent.requests = Some(100);
    plan
}

fn run(plan: Plan) -> Outcome {
    let plan = plan.validate().unwrap();
    load::run(&plan, &Arc::new(AtomicBool::new(false)), &mut |_, _| {}).unwrap()
}

fn faults(outcome: &Outcome) -> Vec<(Fault, u64)> {
    outcome.figures.faults().map(|(fault, tally)| (fault, tally.count)).collect()
}

fn served(outcome: &Outcome) -> u64 {
    outcome.shards.iter().flat_map(|shard| &shard.served).sum()
}

#[test]
fn closed_run_makes_exactly_its_requests() {
    for (connections, shards, pipeline, requests) in [(1, 1, 1, 1), (5, 2, 1, 101), (3, 1, 4, 100), (64, 1, 1, 10)] {
        let (mut plan, seen) = answering(OK);
        (plan.connections, plan.shards, plan.pipeline) = (connections, shards, pipeline);
        plan.extent.requests = Some(requests);
        let outcome = run(plan);
        let case = format!("{connections} connections, {pipeline} pipelined, {requests} requests");
        assert_eq!(outcome.figures.answers, requests, "{case}");
        assert_eq!(outcome.figures.body_bytes, 2 * requests, "{case}");
        assert_eq!(outcome.figures.received, OK.len() as u64 * requests, "{case}");
        assert_eq!(outcome.figures.statuses().collect::<Vec<_>>(), [(200, requests)], "{case}");
        assert_eq!(faults(&outcome), [], "{case}");
        assert_eq!(served(&outcome), requests, "{case}");
        assert_eq!(outcome.figures.latency().len(), requests, "{case}");
        assert_eq!(seen.requests.load(Ordering::Relaxed), requests, "{case}");
        assert_eq!(outcome.series.iter().map(|row| row.answers).sum::<u64>(), requests, "{case}");
        assert!(seen.connections.load(Ordering::Relaxed) <= connections as u64, "{case}");
    }
}

#[test]
fn warm_up_is_not_counted() {
    let (mut plan, seen) = answering(OK);
    plan.warmup = Duration::from_millis(30);
    let outcome = run(plan);
    assert_eq!(outcome.figures.answers, 100);
    assert!(seen.requests.load(Ordering::Relaxed) > 100);

    let (mut plan, seen) = answering(OK);
    open(&mut plan, 1_000.0, Duration::from_millis(100));
    plan.warmup = Duration::from_millis(30);
    let outcome = run(plan);
    assert_eq!((outcome.figures.answers, outcome.figures.latency().len()), (100, 100));
    assert_eq!(seen.requests.load(Ordering::Relaxed), 130);
}

#[test]
fn connection_a_request_opens_as_many() {
    let (mut plan, seen) = answering(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
    (plan.requests_per_connection, plan.batch) = (Some(1), 7);
    let outcome = run(plan);
    assert_eq!((outcome.figures.answers, outcome.figures.errors()), (100, 0));
    assert_eq!(seen.connections.load(Ordering::Relaxed), 100);
    assert_eq!(outcome.figures.connect.len(), 100);
    assert!(seen.heads.lock().unwrap().iter().all(|head| head.contains("\r\nConnection: close\r\n")));
    // The opening is part of the latency.
    assert!(outcome.figures.service.min() >= outcome.figures.connect.min());
}

#[test]
fn connection_is_renewed_after_its_requests() {
    let (mut plan, seen) = answering(OK);
    (plan.requests_per_connection, plan.pipeline, plan.connections) = (Some(10), 3, 2);
    let outcome = run(plan);
    assert_eq!((outcome.figures.answers, outcome.figures.errors()), (100, 0));
    assert!((10..=11).contains(&seen.connections.load(Ordering::Relaxed)));
}

#[test]
fn requests_behind_an_announced_close_are_sent_again() {
    let (mut plan, seen) = server(|conn| {
        for _ in 0..2 {
            conn.request();
            conn.send(OK);
        }
        conn.request();
        conn.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    });
    (plan.connections, plan.pipeline, plan.extent.requests) = (1, 4, Some(30));
    let outcome = run(plan);
    assert_eq!((outcome.figures.answers, faults(&outcome)), (30, vec![]));
    assert_eq!(seen.requests.load(Ordering::Relaxed), 30);
    assert_eq!(outcome.figures.connect.len(), 10);
    assert_eq!(outcome.figures.resent, 9, "one of four behind each close but the last");
}

#[test]
fn every_framing_is_read() {
    for (answer, method, body_bytes) in [
        (&b"HTTP/1.1 204 No Content\r\n\r\n"[..], "GET", 0),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n", "HEAD", 0),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n", "GET", 4),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", "POST", 1),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\nabc", "GET", 3),
    ] {
        let (mut plan, seen) = answering(answer);
        plan.common.method = method.parse().unwrap();
        plan.common.body = (method == "POST").then(|| vec![b'x'; 100_000].into());
        let outcome = run(plan);
        assert_eq!((outcome.figures.answers, faults(&outcome)), (100, vec![]), "{method}");
        assert_eq!(outcome.figures.body_bytes, 100 * body_bytes, "{method}");
        assert!(seen.connections.load(Ordering::Relaxed) <= 4);
    }
    let (plan, seen) = server(|conn| {
        conn.request();
        conn.send(b"HTTP/1.0 200 OK\r\n\r\nuntil the end");
    });
    let outcome = run(plan);
    assert_eq!((outcome.figures.answers, faults(&outcome)), (100, vec![]));
    assert_eq!(outcome.figures.body_bytes, 1_300);
    assert_eq!(seen.connections.load(Ordering::Relaxed), 100);
}

/// Every request fails in the same way.
#[track_caller]
fn check_fault(
    expected: &[(Fault, u64)],
    change: impl FnOnce(&mut Plan),
    behave: impl Fn(&mut Conn<TcpStream>) + Send + Sync + 'static,
) {
    let (mut plan, _) = server(behave);
    plan.extent.requests = Some(12);
    change(&mut plan);
    let outcome = run(plan.clone());
    assert_eq!(faults(&outcome), expected);
    assert_eq!(outcome.figures.answers, 0);
    let report = Report::new(&plan, &outcome);
    assert!(report.warnings[0].contains("no answer at all"), "{:?}", report.warnings);
    assert!(report.errors.iter().all(|error| !error.example.is_empty() && !error.what.is_empty()));
}

#[test]
fn each_error_is_counted_as_its_kind() {
    check_fault(&[(Fault::Closed, 12)], |_| {}, |conn| drop(conn.request()));
    check_fault(
        &[(Fault::Short, 12)],
        |_| {},
        |conn| {
            conn.request();
            conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
        },
    );
    check_fault(
        &[(Fault::Short, 12)],
        |_| {},
        |conn| {
            conn.request();
            conn.send(b"HTTP/1.1 200");
        },
    );
    check_fault(
        &[(Fault::Malformed, 12)],
        |_| {},
        |conn| {
            conn.request();
            conn.send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n");
        },
    );
    check_fault(
        &[(Fault::Broken(libc::ECONNRESET), 12)],
        |_| {},
        |conn| {
            conn.request();
            conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
            SockRef::from(&conn.stream).set_linger(Some(Duration::ZERO)).unwrap();
        },
    );
    check_fault(
        &[(Fault::Timeout, 12)],
        |plan| plan.timeout = Duration::from_millis(20),
        |conn| while conn.request().is_some() {},
    );
    // Behind a pipelined request that failed.
    check_fault(
        &[(Fault::Timeout, 4), (Fault::Lost, 8)],
        |plan| (plan.timeout, plan.pipeline) = (Duration::from_millis(20), 3),
        |conn| while conn.request().is_some() {},
    );
}

#[test]
fn answers_that_are_not_as_expected_are_errors_and_answers() {
    let (mut plan, _) = answering(OK);
    plan.expect_status = Some("3xx,404".parse().unwrap());
    let outcome = run(plan);
    assert_eq!((outcome.figures.answers, faults(&outcome)), (100, vec![(Fault::Status, 100)]));
    for (body, wrong) in [("ok", 0), ("OK", 100), ("o", 100), ("okay", 100), ("", 100)] {
        let (mut plan, _) = answering(OK);
        plan.expect_body = Some(body.as_bytes().into());
        let outcome = run(plan);
        assert_eq!((outcome.figures.answers, outcome.figures.errors()), (100, wrong), "{body}");
    }
}

#[test]
fn bytes_nobody_asked_for_are_an_error() {
    let (mut plan, _) = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nok");
    (plan.connections, plan.extent.requests) = (1, Some(5));
    let outcome = run(plan);
    assert_eq!((outcome.figures.answers, faults(&outcome)), (5, vec![(Fault::Malformed, 5)]));
}

#[test]
fn refused_connection_is_told_before_the_run() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let plan = plan(&format!("http://127.0.0.1:{port}/")).validate().unwrap();
    let error = load::run(&plan, &Arc::new(AtomicBool::new(false)), &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, LoadError::Connect { .. }) && error.to_string().contains("refused"), "{error}");
}

#[test]
fn server_that_goes_away_costs_each_request_left_one_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plan = plan(&format!("http://{}/", listener.local_addr().unwrap()));
    thread::spawn(move || drop(listener.accept()));
    let outcome = run(plan);
    assert_eq!((outcome.figures.answers, outcome.figures.errors()), (0, 100));
    assert!(faults(&outcome).iter().any(|(fault, _)| *fault == Fault::Connect(libc::ECONNREFUSED)));
}

#[test]
fn unix_socket_is_reached() {
    let path = std::env::temp_dir().join(format!("everycore-load-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let seen = Arc::new(Seen::default());
    let shared = seen.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let seen = shared.clone();
            thread::spawn(move || {
                let mut conn = Conn { stream: stream.unwrap(), input: Vec::new(), served: 0, seen };
                while conn.request().is_some() {
                    conn.send(OK);
                }
            });
        }
    });
    let mut plan = plan("http://some.host/path");
    plan.unix = Some(path.clone());
    let outcome = run(plan);
    std::fs::remove_file(path).unwrap();
    assert_eq!((outcome.figures.answers, faults(&outcome)), (100, vec![]));
    assert_eq!(seen.heads.lock().unwrap()[0], "GET /path HTTP/1.1\r\nHost: some.host\r\n\r\n");
}

#[test]
fn tcp_takes_one_read_for_an_answer_and_an_empty_one_for_an_error() {
    for (answer, expected) in [(&b"anything"[..], (100, vec![])), (b"", (0, vec![(Fault::Closed, 100)]))] {
        let (http, _) = server(move |conn| {
            let mut buffer = [0; 64];
            let n = conn.stream.read(&mut buffer).unwrap();
            assert!(n == 0 || &buffer[..n] == b"GET /\r\n\r\n");
            conn.send(answer);
        });
        let mut plan = plan(&format!("tcp://{}", http.url.authority));
        plan.batch = 3;
        let outcome = run(plan);
        assert_eq!((outcome.figures.answers, faults(&outcome)), expected);
    }
}

#[test]
fn mix_keeps_its_weights() {
    let (mut plan, seen) = answering(OK);
    plan.wanted = load::parse_urls("3 /a\n1 POST /b\n").unwrap().1;
    plan.extent.requests = Some(1_000);
    let outcome = run(plan);
    assert_eq!(outcome.figures.answers, 1_000);
    let heads = seen.heads.lock().unwrap();
    let posts = heads.iter().filter(|head| head.starts_with("POST /b ")).count();
    assert!((180..320).contains(&posts), "{posts}");
    assert_eq!(heads.iter().filter(|head| head.starts_with("GET /a ")).count(), 1_000 - posts);
}

#[test]
fn stop_ends_the_run_with_its_figures() {
    let (mut plan, seen) = answering(OK);
    plan.extent.requests = None;
    plan.extent.duration = Some(Duration::from_secs(600));
    plan.interval = Duration::from_millis(10);
    let stop = Arc::new(AtomicBool::new(false));
    let plan = plan.validate().unwrap();
    let outcome = load::run(&plan, &stop, &mut |row, _| {
        stop.store(row.answers > 0 || stop.load(Ordering::Relaxed), Ordering::Relaxed)
    })
    .unwrap();
    assert!(outcome.was_stopped && outcome.figures.answers > 0);
    assert!(outcome.figures.answers <= seen.requests.load(Ordering::Relaxed));
    assert!(Report::new(&plan, &outcome).warnings.iter().any(|warning| warning.contains("ended early")));
}

// ---- the open model ------------------------------------------------------------------------------

fn open(plan: &mut Plan, rate: f64, duration: Duration) {
    plan.model = Model::Open { rate, arrivals: Arrivals::Constant };
    plan.extent = load::Extent { duration: Some(duration), requests: None };
}

#[test]
fn open_run_makes_exactly_what_its_rate_says() {
    for (shards, pipeline) in [(1, 1), (3, 1), (1, 4)] {
        let (mut plan, seen) = answering(OK);
        open(&mut plan, 300.0, Duration::from_millis(500));
        (plan.shards, plan.connections, plan.pipeline) = (shards, 6, pipeline);
        let outcome = run(plan);
        assert_eq!((outcome.figures.answers, faults(&outcome)), (150, vec![]));
        assert_eq!(seen.requests.load(Ordering::Relaxed), 150);
        let response = outcome.figures.response.as_ref().unwrap();
        assert_eq!(response.len(), 150);
        assert!(response.mean() >= outcome.figures.service.mean());
    }
}

#[test]
fn poisson_run_has_about_its_rate() {
    let (mut plan, seen) = answering(OK);
    open(&mut plan, 1_000.0, Duration::from_millis(500));
    plan.model = Model::Open { rate: 1_000.0, arrivals: Arrivals::Poisson };
    let outcome = run(plan);
    assert!((400..600).contains(&outcome.figures.answers), "{}", outcome.figures.answers);
    assert_eq!(seen.requests.load(Ordering::Relaxed), outcome.figures.answers);
}

#[test]
fn open_run_ends_after_its_requests() {
    let (mut plan, seen) = answering(OK);
    open(&mut plan, 1_000.0, Duration::from_secs(600));
    plan.extent.requests = Some(50);
    let outcome = run(plan);
    assert_eq!((outcome.figures.answers, seen.requests.load(Ordering::Relaxed)), (50, 50));
}

#[test]
fn open_run_tells_of_connections_each_of_which_opens_for_one_request() {
    let (mut plan, seen) = answering(OK);
    open(&mut plan, 300.0, Duration::from_millis(300));
    plan.requests_per_connection = Some(1);
    let outcome = run(plan);
    assert_eq!((outcome.figures.answers, faults(&outcome)), (90, vec![]));
    assert_eq!(seen.connections.load(Ordering::Relaxed), 90);
}

/// Coordinated omission: what was due while the server stood still has waited, and is recorded as having waited.
#[test]
fn stall_of_the_server_is_seen_by_all_that_was_due_meanwhile() {
    let stalled = Arc::new(RwLock::new(()));
    let gate = stalled.clone();
    let (mut plan, _) = server(move |conn| {
        while conn.request().is_some() {
            drop(gate.read().unwrap());
            conn.send(OK);
        }
    });
    // All of the run but its end, so that nothing depends on when the stall begins.
    let stall = Duration::from_millis(600);
    open(&mut plan, 500.0, stall);
    let held = stalled.write().unwrap();
    let begun = Instant::now();
    let running = thread::spawn(move || run(plan));
    thread::sleep(stall + Duration::from_millis(100)); // the stall itself
    drop(held);
    let stalled_for = begun.elapsed();
    let outcome = running.join().unwrap();
    assert_eq!((outcome.figures.answers, faults(&outcome)), (300, vec![]), "nothing that was due is left out");
    let response = outcome.figures.response.as_ref().unwrap();
    // Due evenly over the stall: the first waited for all of it, the median for half, and four connections hide nothing.
    let ms = |q: f64| Duration::from_nanos(response.value_at_quantile(q)).as_millis();
    assert!(ms(0.5) >= 350 && ms(0.9) >= 600, "p50 {} ms, p90 {} ms", ms(0.5), ms(0.9));
    assert!(Duration::from_nanos(response.max()) + Duration::from_millis(200) >= stalled_for.min(2 * stall));
    // Only what was sent before the stall's end shows it in the service time: one request a connection.
    let slow = outcome.figures.service.count_between(300_000_000, u64::MAX);
    assert!(slow <= 4, "{slow} of 300");
}

#[test]
fn requests_that_could_not_be_sent_are_told() {
    let (mut plan, _) = server(|conn| while conn.request().is_some() {});
    open(&mut plan, 100.0, Duration::from_millis(300));
    plan.connections = 2;
    let plan = plan.validate().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let outcome = load::run(&plan, &stop, &mut |_, _| {}).unwrap();
    let (unanswered, unsent) = (outcome.shards[0].unanswered, outcome.shards[0].unsent);
    assert_eq!((outcome.figures.answers, unanswered, unsent), (0, 2, 28));
    let report = Report::new(&plan, &outcome);
    assert!(report.warnings.iter().any(|warning| warning.contains("28 requests were due and could not be sent")));
}
