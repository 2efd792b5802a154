//! What `/__stats` and `/metrics` say against what was done, through the built binary.

mod common;

use common::{raw::Raw, response::Response, server::Server};
use serde_json::Value;
use std::net::SocketAddr;

fn get(address: SocketAddr, target: &str, fields: &str) -> Response {
    Raw::connect(address).exchange(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"))
}

fn field<'a>(response: &'a Response, name: &'a str) -> &'a str {
    response.values(name).next().unwrap_or_default()
}

fn json(response: &Response) -> Value {
    assert_eq!((response.status, field(response, "content-type")), (200, "application/json"));
    serde_json::from_slice(&response.body).expect("JSON")
}

fn stats(address: SocketAddr) -> Value {
    json(&get(address, "/__stats", ""))
}

/// Asks until `is_so`: what is counted when the kernel reports back is counted a moment later.
fn stats_until(address: SocketAddr, is_so: impl Fn(&Value) -> bool) -> Value {
    let mut connection = Raw::connect(address);
    loop {
        let seen = json(&connection.exchange("GET /__stats HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        if is_so(&seen) {
            return seen;
        }
    }
}

#[test]
fn every_answered_request_is_timed_once() {
    let server = Server::start(&[]);
    let mut connection = Raw::connect(server.http);
    let one = |request_line: &str| format!("{request_line} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    // Pipelined in one go; one after the other; without a body; not found; larger than a buffer; streamed.
    connection.send(one("GET /yo").repeat(10));
    (0..10).for_each(|_| assert_eq!(connection.response("GET").status, 200));
    let mut exchange = |request: String, status: u16| assert_eq!(connection.exchange(request).status, status);
    exchange(one("GET /small"), 200);
    exchange(one("HEAD /fast"), 200);
    exchange(one("GET /nowhere"), 404);
    exchange(one("GET /fast"), 200);
    exchange("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello".into(), 200);
    exchange("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".into(), 200);
    // Refused: no request, so not timed.
    exchange("GET / HTTP/1.1\r\n\r\n".into(), 400);
    let seen = stats_until(server.http, |seen| seen["service_time"]["count"].as_u64() >= Some(16));
    let asked = seen["total"]["requests"].as_u64().expect("a number") - 16;
    assert_eq!(seen["service_time"]["count"], 16 + asked - 1, "all but the one that asks");
    let methods = &seen["total"]["methods"];
    assert_eq!((&methods["head"], &methods["post"], &methods["put"]), (&1.into(), &2.into(), &0.into()));
    assert_eq!(methods["get"], 16 + asked - 3);
    let buckets = seen["service_time"]["buckets"].as_array().expect("a list");
    let counted: u64 = buckets.iter().filter_map(|bucket| bucket[1].as_u64()).sum();
    assert_eq!(counted, 16 + asked - 1);
    let of_shards = seen["shards"].as_array().expect("a list").iter();
    assert_eq!(of_shards.filter_map(|shard| shard["service_time"]["count"].as_u64()).sum::<u64>(), counted);
    assert!(seen["shards"][0]["service_time"].get("buckets").is_none(), "only when asked for");
    let all = json(&get(server.http, "/__stats?buckets=all", ""));
    assert!(all["shards"].as_array().expect("a list").iter().any(|s| s["service_time"]["buckets"].is_array()));
}

#[test]
fn connections_are_told_apart_by_what_they_do() {
    let server = Server::start(&["--balance", "round-robin"]);
    let idle: Vec<Raw> = (0..3).map(|_| Raw::connect(server.http)).collect();
    let mut reading = Raw::connect(server.http);
    reading.send("GET / HT");
    let mut handled = Raw::connect(server.http);
    handled.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhel");
    let seen = stats_until(server.http, |seen| {
        let connections = &seen["total"]["connections"];
        connections["active"] == 6 && connections["reading_head"] == 1 && connections["in_handler"] == 2
    });
    let connections = &seen["total"]["connections"];
    assert_eq!((&connections["idle"], &connections["writing"]), (&3.into(), &0.into()));
    let ages = connections["ages"].as_object().expect("a table").values().filter_map(Value::as_u64);
    assert_eq!(ages.sum::<u64>(), 6);
    handled.send("lo");
    assert_eq!(handled.response("POST").body, b"hello");
    let seen = stats_until(server.http, |seen| seen["total"]["connections"]["in_handler"] == 1);
    assert!(seen["total"]["connections"]["idle"].as_u64() >= Some(4));
    drop((idle, reading));
}

#[test]
fn listeners_tell_the_room_of_their_queues() {
    let server = Server::start(&["--backlog", "77"]);
    assert_eq!(stats(server.http)["total"]["accept_queue"]["room"], 2 * 77);
}

#[test]
fn time_of_a_shard_is_busy_waiting_or_parked() {
    let server = Server::start(&[]);
    let clock = |seen: &Value| -> Vec<u64> {
        let shards = seen["shards"].as_array().expect("a list").iter();
        let ns = |shard: &Value, part: &str| shard["loop"][part].as_u64().expect("a number");
        shards.map(|shard| ["busy_ns", "waiting_ns", "parked_ns"].iter().map(|part| ns(shard, part)).sum()).collect()
    };
    let (before, after) = (stats(server.http), stats(server.http));
    assert!(clock(&before).iter().zip(clock(&after)).all(|(before, after)| *before < after));
    let parked = |seen: &Value| seen["shards"][0]["loop"]["parked_ns"].as_u64();
    let idle = stats_until(server.http, |seen| parked(seen) > Some(0));
    assert!(idle["shards"][0]["loop"]["turn_max_ns"].as_u64() > Some(0));
}

#[test]
fn format_is_named_or_negotiated() {
    let server = Server::start(&[]);
    let check = |target: &str, accept: &str, status: u16, content_type: &str| {
        let accept = if accept.is_empty() { String::new() } else { format!("Accept: {accept}\r\n") };
        let response = get(server.http, target, &accept);
        assert_eq!((response.status, field(&response, "content-type")), (status, content_type), "{target} {accept}");
        if status == 200 {
            assert_eq!((field(&response, "cache-control"), field(&response, "vary")), ("no-store", "accept"));
        }
    };
    let (text, open) =
        ("text/plain; version=0.0.4; charset=utf-8", "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let (page, csv) = ("text/html; charset=utf-8", "text/csv; charset=utf-8; header=present");
    check("/__stats", "", 200, "application/json");
    check("/__stats", "text/html,*/*;q=0.8", 200, page);
    check("/__stats?format=json", "text/html", 200, "application/json");
    check("/__stats?format=html", "", 200, page);
    check("/__stats?format=csv", "", 200, csv);
    check("/__stats?format=prometheus", "", 200, text);
    check("/__stats?format=openmetrics", "", 200, open);
    check("/__stats?format=xml", "", 400, "text/plain; charset=utf-8");
    check("/metrics", "", 200, text);
    check("/metrics", "text/html", 200, text);
    check("/metrics", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5", 200, open);
}

#[test]
fn prometheus_and_csv_say_what_the_json_says() {
    let server = Server::start(&[]);
    let mut connection = Raw::connect(server.http);
    (0..7).for_each(|_| assert_eq!(connection.exchange("GET /yo HTTP/1.1\r\nHost: x\r\n\r\n").status, 200));
    let requests = stats(server.http)["total"]["requests"].as_u64().expect("a number");
    let metrics = String::from_utf8(get(server.http, "/metrics", "").body).expect("UTF-8");
    let samples =
        metrics.lines().filter_map(|line| line.strip_prefix("http_server_requests_total{shard=\"")?.split_once("\"} "));
    assert_eq!(samples.filter_map(|(_, number)| number.parse::<u64>().ok()).sum::<u64>(), requests + 1);
    let csv = String::from_utf8(get(server.http, "/__stats?format=csv", "").body).expect("UTF-8");
    let rows: Vec<Vec<&str>> = csv.lines().map(|row| row.split(',').collect()).collect();
    let column = rows[0].iter().position(|name| *name == "requests").expect("a column");
    let (first, total) = (rows.iter().map(|row| row[0]).collect::<Vec<_>>(), rows[3][column]);
    assert_eq!((first, total), (vec!["shard", "0", "1", "total"], (requests + 2).to_string().as_str()));
}

#[test]
fn token_is_asked_for_figures_but_not_for_the_page() {
    let server = Server::start(&["--stats-token", "s3cret"]);
    let check = |target: &str, fields: &str, status: u16| {
        assert_eq!(get(server.http, target, fields).status, status, "{target} {fields}");
    };
    for target in ["/__stats", "/metrics", "/__stats?format=csv"] {
        check(target, "", 401);
        check(target, "Authorization: Bearer s3cre\r\n", 401);
        check(target, "Authorization: Bearer s3crets\r\n", 401);
        check(target, "Authorization: Basic s3cret\r\n", 401);
        check(target, "Authorization: Bearer s3cret\r\n", 200);
        check(target, "Authorization: bearer  s3cret\r\n", 200);
    }
    check("/__stats?format=html", "", 200);
    check("/livez", "", 200);
    assert!(field(&get(server.http, "/metrics", ""), "www-authenticate").starts_with("Bearer"));
}

/// The address of the listener for the stats.
fn stats_address(server: &mut Server) -> SocketAddr {
    let line = server.await_line(|line| line.starts_with("stats on http://"));
    line.trim_start_matches("stats on http://").parse().expect("an address")
}

#[test]
fn own_listener_shows_stats_and_nothing_else_does() {
    let mut server = Server::start(&["--stats", "127.0.0.1:0"]);
    let own = stats_address(&mut server);
    assert_eq!(get(server.http, "/__stats", "").status, 404);
    assert_eq!(get(server.http, "/metrics", "").status, 404);
    assert_eq!(get(server.http, "/yo", "").status, 200);
    assert_eq!(get(own, "/yo", "").status, 404, "the application is elsewhere");
    assert_eq!(get(own, "/metrics", "").status, 200);
    assert_eq!(get(own, "/readyz", "").status, 200);
    let to_stats = get(own, "/", "");
    assert_eq!((to_stats.status, field(&to_stats, "location")), (302, "/__stats"));
    assert_eq!(stats(own)["shards"].as_array().map(Vec::len), Some(2));
}

#[test]
fn own_listener_answers_when_no_connection_is_left() {
    let mut server = Server::start(&["--stats", "127.0.0.1:0", "--max-connections", "2"]);
    let own = stats_address(&mut server);
    let held: Vec<Raw> = (0..2).map(|_| Raw::connect(server.http)).collect();
    stats_until(own, |seen| seen["total"]["connections"]["active"] == 3);
    assert_eq!(get(server.http, "/yo", "").status, 503);
    let seen = stats(own);
    assert_eq!((&seen["total"]["rejects"]["overload"], &seen["connections_max"]), (&1.into(), &2.into()));
    assert_eq!(get(server.http, "/yo", "").status, 503, "readers take no place of clients', and give none back");
    drop(held);
}

#[test]
fn own_listener_answers_while_the_server_drains() {
    let mut server = Server::start(&["--stats", "127.0.0.1:0"]);
    let own = stats_address(&mut server);
    let mut in_flight = Raw::connect(server.http);
    in_flight.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhel");
    stats_until(own, |seen| seen["total"]["connections"]["in_handler"] == 2);
    server.signal("TERM");
    stats_until(own, |seen| seen["is_draining"] == true);
    assert_eq!(get(own, "/readyz", "").status, 503);
    assert_eq!(get(own, "/metrics", "").status, 200);
    in_flight.send("lo");
    assert_eq!(in_flight.response("POST").body, b"hello");
    drop(in_flight);
    assert_eq!(server.wait().code(), Some(0), "readers do not hold it up");
}
