//! The counters against what the clients counted themselves.

mod common;

use common::{
    live::{Live, get, request, server, wait_until},
    raw::Raw,
    server::Server as Binary,
};
use everycore::{
    Request, Response, Router, Server,
    config::{Balance, StatsPolicy},
    http::StatusCode,
    stats::{ServerSnapshot, ShardSnapshot},
};
use std::{sync::mpsc, thread};

fn app(_: everycore::Shard) -> Router {
    Router::new()
        .get("/ok", |_| "ok")
        .get("/missing", |_| StatusCode::NOT_FOUND)
        .get("/moved", |_| Response::redirect(StatusCode::FOUND, "/ok"))
        .get("/broken", |_| StatusCode::INTERNAL_SERVER_ERROR)
        .post("/echo", |req: Request| async move { Response::stream(req.into_body()) })
}

/// What one client sent and got.
#[derive(Default)]
struct Counted {
    requests: u64,
    connections: u64,
    by_class: [u64; 6],
    sent: u64,
    received: u64,
}

/// Talks on `connections` connections, several requests each.
fn talk(address: std::net::SocketAddr, connections: u64) -> Counted {
    let mut counted = Counted::default();
    for _ in 0..connections {
        counted.connections += 1;
        let mut connection = Raw::connect(address);
        for target in ["/ok", "/missing", "/moved", "/broken", "/nowhere", "/ok?x=1"] {
            let request = request(target);
            counted.sent += request.len() as u64;
            counted.requests += 1;
            let answer = connection.exchange(&request);
            counted.by_class[usize::from(answer.status / 100)] += 1;
        }
        let request = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
        counted.sent += request.len() as u64;
        counted.requests += 1;
        let answer = connection.exchange(request);
        assert_eq!(answer.body, b"hello");
        counted.by_class[usize::from(answer.status / 100)] += 1;
        assert_eq!(connection.until_close(), b"");
        counted.received += connection.received_bytes();
    }
    counted
}

fn sum(stats: &ServerSnapshot) -> ShardSnapshot {
    let mut sum = ShardSnapshot::default();
    stats.shards.iter().for_each(|shard| sum.merge(&shard.counters));
    sum
}

fn check_totals(balance: Balance) {
    let live = Live::with(server(3).configure(|config| config.balance = balance), app);
    let address = live.http;
    let clients: Vec<_> = (0..4).map(|_| thread::spawn(move || talk(address, 10))).collect();
    let clients: Vec<Counted> = clients.into_iter().map(|client| client.join().expect("the client counts")).collect();
    let of = |count: fn(&Counted) -> u64| clients.iter().map(count).sum::<u64>();
    wait_until("all are closed", || live.stats().total.connections.active == 0);
    let stats = live.stats();
    assert_eq!(stats.total, sum(&stats), "the total is the sum of the shards");
    assert_eq!(stats.missing, [0; 0]);
    let total = &stats.total;
    assert_eq!(total.requests, of(|counted| counted.requests));
    assert_eq!(total.connections.accepted, of(|counted| counted.connections));
    assert_eq!(total.connections.closed.server_closed, of(|counted| counted.connections));
    assert_eq!(total.responses.informational, 0);
    assert_eq!(total.responses.successful, of(|counted| counted.by_class[2]));
    assert_eq!(total.responses.redirection, of(|counted| counted.by_class[3]));
    assert_eq!(total.responses.client_error, of(|counted| counted.by_class[4]));
    assert_eq!(total.responses.server_error, of(|counted| counted.by_class[5]));
    assert_eq!(total.bytes.received, of(|counted| counted.sent));
    assert_eq!(total.bytes.sent, of(|counted| counted.received));
    assert_eq!((total.handler_panics, total.handlers_dropped), (0, 0));
}

#[test]
fn totals_are_what_the_clients_counted() {
    check_totals(Balance::Kernel);
}

#[test]
fn totals_are_what_the_clients_counted_with_hand_over() {
    check_totals(Balance::RoundRobin);
}

#[test]
fn rejects_are_counted_by_kind() {
    let live = Live::start(2, app);
    let mut wrong = 0;
    let mut check = |request: String, status: u16, count: fn(&ShardSnapshot) -> u64| {
        let before = count(&live.stats().total);
        assert_eq!(Raw::connect(live.http).exchange(&request).status, status, "{request:.60}");
        assert_eq!(count(&live.stats().total), before + 1, "{request:.60}");
        wrong += 1;
    };
    check("GET /ok HTTP/1.1\r\n\r\n".into(), 400, |total| total.rejects.bad_request);
    check(request(&"/a".repeat(8000)), 414, |total| total.rejects.uri_too_long);
    check(format!("GET / HTTP/1.1\r\nHost: x\r\nA: {}\r\n\r\n", "b".repeat(40_000)), 431, |total| {
        total.rejects.head_too_large
    });
    check("GET / HTTP/3.0\r\nHost: x\r\n\r\n".into(), 505, |total| total.rejects.version);
    let stats = live.stats();
    assert_eq!(stats.total.requests, 0, "none of them was a request");
    assert_eq!(stats.total.responses.client_error + stats.total.responses.server_error, wrong);
    wait_until("all are closed", || live.stats().total.connections.closed.rejected == wrong);
}

#[test]
fn deadlines_are_counted_by_kind() {
    let server = server(1).configure(|config| {
        let soon = std::time::Duration::from_millis(100);
        config.idle_timeout = soon;
        config.header_timeout = soon;
        config.body_timeout = soon;
        config.handler_timeout = Some(10 * soon);
    });
    let live = Live::with(server, |_| {
        Router::new()
            .get("/never", |_| std::future::pending::<&str>())
            .post("/body", |mut req: Request| async move { req.take_body().bytes(100).await.map(|_| "all") })
    });
    let check = |sent: &str, status: Option<u16>, count: fn(&ShardSnapshot) -> u64| {
        let mut connection = Raw::connect(live.http);
        connection.send(sent);
        if let Some(status) = status {
            assert_eq!(connection.response("GET").status, status, "{sent:?}");
        }
        assert_eq!(connection.until_close(), b"", "{sent:?}");
        drop(connection);
        wait_until("it is counted", || count(&live.stats().total) == 1);
        wait_until("it is gone", || live.stats().total.connections.active == 0);
    };
    check("", None, |total| total.connections.closed.idle_timeout);
    check("GET / HT", Some(408), |total| total.connections.closed.header_timeout);
    check(&request("/never"), Some(503), |total| total.connections.closed.handler_timeout);
    let body = "POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n12";
    check(body, Some(408), |total| total.connections.closed.body_timeout);
    let total = live.stats().total;
    assert_eq!((total.handlers_dropped, total.rejects.timeout), (1, 2));
}

#[test]
fn shard_that_is_stuck_is_missing_and_not_waited_for() {
    let (release, held) = mpsc::channel::<()>();
    let held = std::sync::Mutex::new(Some(held));
    let server = server(2).configure(|config| config.balance = Balance::RoundRobin);
    let live = Live::with(server, move |shard| {
        let held = (shard.id() == 1).then(|| held.lock().expect("one shard").take().expect("one shard"));
        let id = shard.id().to_string();
        Router::new().get("/id", move |_| id.clone()).get("/stuck", move |_| {
            if let Some(held) = &held {
                let _ = held.recv(); // blocks the shard, as no handler should
            }
            "at last"
        })
    });
    // One connection of each shard, whichever comes first.
    let mut ours: [Option<Raw>; 2] = [None, None];
    while ours.iter().any(Option::is_none) {
        let mut connection = Raw::connect(live.http);
        let id = connection.exchange(request("/id")).body[0] - b'0';
        ours[usize::from(id)] = Some(connection);
    }
    let [mut free, mut stuck] = ours.map(|connection| connection.expect("one of each"));
    stuck.send(request("/stuck"));
    wait_until("the shard is stuck", || live.stats().missing == [1]);
    // The other one answers, by itself and for both.
    let seen: ServerSnapshot = serde_json::from_slice(&free.exchange(request("/__stats")).body).expect("JSON");
    assert_eq!((seen.missing, seen.shards.len(), seen.shards[0].shard), (vec![1], 1, 0));
    let live_answer = free.exchange(request("/livez"));
    assert_eq!((live_answer.status, &live_answer.body[..]), (503, &b"no answer from shard 1\n"[..]));
    assert_eq!(free.exchange(request("/healthz")).status, 503);
    assert_eq!(free.exchange(request("/readyz")).status, 200, "it takes requests still");
    drop(release);
    assert_eq!(stuck.response("GET").body, b"at last");
    let seen = live.stats();
    assert_eq!((seen.missing, seen.shards.len()), (vec![], 2));
    assert_eq!(free.exchange(request("/livez")).status, 200);
}

#[test]
fn stats_are_shown_by_listener() {
    let check = |policy: StatsPolicy, on_loopback: u16, on_any: u16| {
        // Reachable from elsewhere, as far as the server knows.
        let server = server(1).listen("0.0.0.0:0").configure(|config| config.stats = policy);
        let live = Live::with(server, |_| Router::new());
        let any = std::net::SocketAddr::from(([127, 0, 0, 1], live.address(1).port()));
        assert_eq!(get(live.http, "/__stats").status, on_loopback, "{policy:?}");
        assert_eq!(get(any, "/__stats").status, on_any, "{policy:?}");
        assert_eq!(get(any, "/livez").status, 200, "health is no secret");
    };
    check(StatsPolicy::Auto, 200, 404);
    check(StatsPolicy::On, 200, 200);
    check(StatsPolicy::Off, 404, 404);
}

#[test]
fn endpoints_move_and_go_away() {
    let server = server(1).configure(|config| {
        config.endpoints.stats = Some("/in/side".into());
        config.endpoints.livez = None;
    });
    let live = Live::with(server, |_| Router::new().get("/__stats", |_| "mine"));
    assert_eq!(live.get("/__stats").body, b"mine");
    assert_eq!(live.get("/in/side").status, 200);
    assert_eq!(live.get("/livez").status, 404);
    assert_eq!(live.get("/healthz").status, 200);
}

#[test]
fn application_may_not_take_an_endpoint_but_may_have_the_rest() {
    // The built-in endpoints come first, even before a route that takes everything.
    let live = Live::start(1, |_| Router::new().get("/{*rest}", |_| "all"));
    assert_eq!(live.get("/x/y").body, b"all");
    assert_eq!(live.get("/livez").body, b"ok\n");
}

#[test]
fn stats_json_of_the_command_has_every_part() {
    let server = Binary::start(&[]);
    let answer = get(server.http, "/__stats");
    assert_eq!(answer.values("content-type").next(), Some("application/json"));
    assert_eq!(answer.values("cache-control").next(), Some("no-store"));
    let seen: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(seen["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(seen["engine"]["name"], "io_uring");
    let features = seen["engine"]["features"].as_array().expect("a list");
    // Those in use, not those that the kernel offers beside them.
    for (feature, is_used) in
        [("DEFER_TASKRUN", true), ("MULTISHOT_RECEIVE", true), ("ZERO-COPY_SEND", false), ("BUNDLES", false)]
    {
        assert_eq!(features.iter().any(|name| name == feature), is_used, "{features:?}");
    }
    assert_eq!(seen["shards"].as_array().map(Vec::len), Some(2));
    assert_eq!(seen["total"]["requests"], 1, "the request that asks is counted already");
    assert!(seen["uptime_s"].is_u64() && seen["missing"].as_array().is_some_and(Vec::is_empty));
}

#[test]
fn library_without_own_pages_answers_unknown_targets_with_404() {
    let live = Live::with(Server::bind("127.0.0.1:0").shards(1), app);
    assert_eq!(live.get("/none").status, 404);
}
