//! AJP/1.3 over sockets, by a proxy written by hand: exact bytes to the server and from it.

mod common;

use common::{
    live::{Live, get, server, wait_until},
    raw::Raw,
    server::Server as Binary,
};
use everycore::{
    Request, Response, Router,
    ajp::Forwarded,
    config::{AjpOptions, Balance},
};
use std::{fs, net::SocketAddr, process::Command};

const PING: &[u8] = b"\x12\x34\0\x01\x0a";
const PONG: &[u8] = b"AB\0\x01\x09";

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes()[..], text.as_bytes(), b"\0"].concat()
}

fn packet(payload: &[u8]) -> Vec<u8> {
    [b"\x12\x34", &(payload.len() as u16).to_be_bytes()[..], payload].concat()
}

/// FORWARD_REQUEST from 203.0.113.7 by TLS; `headers` and `attributes` as they go out.
fn forward(method: u8, uri: &str, headers: &[&[u8]], attributes: &[u8]) -> Vec<u8> {
    let head = [&[2, method][..], &string("HTTP/1.1"), &string(uri), &string("203.0.113.7"), b"\xff\xff"].concat();
    let from = [&string("example.org")[..], b"\x01\xbb\x01"].concat();
    let count = (headers.len() as u16 + 1).to_be_bytes();
    let host = [b"\xa0\x0b", &string("example.org")[..]].concat();
    packet(&[&head[..], &from, &count, &host, &headers.concat(), attributes, b"\xff"].concat())
}

fn secret(text: &str) -> Vec<u8> {
    [b"\x0c", &string(text)[..]].concat()
}

fn attribute(name: &str, value: &str) -> Vec<u8> {
    [b"\x0a", &string(name)[..], &string(value)].concat()
}

/// One packet's payload.
fn read(connection: &mut Raw) -> Vec<u8> {
    let header = connection.octets(4);
    assert_eq!(&header[..2], b"AB");
    connection.octets(usize::from(u16::from_be_bytes([header[2], header[3]])))
}

/// A whole answer: status, body, whether the connection may be used again.
fn answer(connection: &mut Raw) -> (u16, String, bool) {
    let headers = read(connection);
    assert_eq!(headers[0], 4, "SEND_HEADERS comes first");
    let mut body = Vec::new();
    loop {
        match &read(connection)[..] {
            [3, high, low, data @ .., 0] => {
                assert_eq!(usize::from(u16::from_be_bytes([*high, *low])), data.len());
                body.extend_from_slice(data);
            }
            [5, reuse] => {
                let body = String::from_utf8(body).expect("text");
                return (u16::from_be_bytes([headers[1], headers[2]]), body, *reuse == 1);
            }
            other => panic!("{}", other.escape_ascii()),
        }
    }
}

/// What this server is told of its clients.
fn routes() -> Router {
    Router::new()
        .get("/", |_| "hello")
        .get("/who", |req: Request| {
            let said = Forwarded::of(&req);
            Response::text(format!(
                "{} {} {} {} {}",
                req.scheme(),
                req.peer_addr().map(|addr| addr.to_string()).unwrap_or_default(),
                req.authority().unwrap_or_default(),
                said.and_then(|said| said.remote_user.as_deref()).unwrap_or("nobody"),
                said.and_then(|said| said.attribute("ROLE")).unwrap_or("-"),
            ))
        })
        .post("/echo", |req: Request| Response::stream(req.into_body()))
}

fn live(options: AjpOptions) -> (Live, SocketAddr) {
    let live = Live::with(server(2).ajp("127.0.0.1:0", options), |_| routes());
    let ajp = live.address(1);
    (live, ajp)
}

#[test]
fn answer_of_the_program_is_exact() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("secret");
    fs::write(&file, "S=cret\n").expect("a file");
    let mut server = Binary::start(&["--ajp", "127.0.0.1:0", "--ajp-secret-file", file.to_str().expect("UTF-8")]);
    let line = server.await_line(|line| line.starts_with("AJP on "));
    let ajp: SocketAddr = line["AJP on ".len()..].parse().expect("an address");
    let mut proxy = Raw::connect(ajp);
    for _ in 0..2 {
        proxy.send(PING);
        assert_eq!(proxy.octets(PONG.len()), PONG);
        proxy.send(forward(2, "/yo", &[], &[&secret("S=cret")[..], b"\x05", &string("name=X")].concat()));
        let head = [
            &b"AB\0\x65\x04\0\xc8\0\x02OK\0\0\x04"[..],
            b"\xa0\x01",
            &string("text/plain; charset=utf-8"),
            b"\xa0\x03",
            &string("6"),
        ]
        .concat();
        assert_eq!(proxy.octets(head.len()), head);
        let server_and_date = [&string("Server")[..], &string("everycore"), b"\xa0\x04", &29u16.to_be_bytes()].concat();
        assert_eq!(proxy.octets(server_and_date.len()), server_and_date);
        proxy.octets(29 + 1);
        assert_eq!(proxy.octets(20), b"AB\0\x0a\x03\0\x06Hey X!\0AB\0\x02\x05\x01");
    }
    // Who does not know it gets a whole answer, and the server goes on.
    proxy.send(forward(2, "/yo", &[], &secret("S=crets")));
    let (status, _, is_reusable) = answer(&mut proxy);
    assert_eq!((status, is_reusable), (403, false));
    assert_eq!(proxy.until_close(), b"");
    assert_eq!(get(server.http, "/yo").body, b"Hey!");
}

#[test]
fn handler_learns_what_the_proxy_says() {
    let said =
        [&secret("s")[..], b"\x03", &string("jo"), &attribute("AJP_REMOTE_PORT", "4711"), &attribute("ROLE", "admin")]
            .concat();
    let options = || AjpOptions::with_secret("s").allow_attributes("ROLE");
    for (options, expected) in [(options(), "nobody"), (options().trust_user(), "jo")] {
        let (_live, ajp) = live(options);
        let mut proxy = Raw::connect(ajp);
        proxy.send(forward(2, "/who", &[], &said));
        let body = format!("https 203.0.113.7:4711 example.org {expected} admin");
        assert_eq!(answer(&mut proxy), (200, body, true));
    }
    let (live, _) = live(options());
    let body = String::from_utf8(live.get("/who").body).expect("text");
    assert!(body.starts_with("http 127.0.0.1:") && body.ends_with(" localhost nobody -"), "{body}");
}

#[test]
fn stats_are_not_shown_to_those_behind_a_proxy() {
    let (live, ajp) = live(AjpOptions::without_secret());
    let mut proxy = Raw::connect(ajp);
    for path in ["/__stats", "/metrics"] {
        proxy.send(forward(2, path, &[], b""));
        assert_eq!(answer(&mut proxy).0, 404, "{path}");
        assert_eq!(live.get(path).status, 200, "{path}");
    }
    proxy.send(forward(2, "/readyz", &[], b""));
    assert_eq!(answer(&mut proxy), (200, "ready\n".to_owned(), true));
    let seen = live.stats().total.ajp;
    assert_eq!((seen.accepted, seen.active, seen.requests, seen.malformed), (1, 1, 3, 0));
    let metrics = String::from_utf8(live.get("/metrics").body).expect("text");
    assert!(metrics.contains("# TYPE everycore_ajp_requests_total counter\n"), "{metrics}");
    drop(proxy);
    wait_until("the connection is gone", || live.stats().total.ajp.active == 0);
}

#[test]
fn body_streams_both_ways() {
    let (_live, ajp) = live(AjpOptions::without_secret());
    let mut proxy = Raw::connect(ajp);
    proxy.send(forward(4, "/echo", &[&[b"\xa0\x08", &string("1000000")[..]].concat()], b""));
    let (mut sent, mut received, mut is_wanted) = (0usize, 0usize, true);
    while received < 1_000_000 {
        if is_wanted && sent < 1_000_000 {
            let len = 8186.min(1_000_000 - sent);
            let data: Vec<u8> = (sent..sent + len).map(|at| (at % 251) as u8).collect();
            proxy.send(packet(&[&(len as u16).to_be_bytes()[..], &data].concat()));
            sent += len;
            is_wanted = false;
        }
        match &read(&mut proxy)[..] {
            [3, _, _, data @ .., 0] => {
                assert!(data.iter().enumerate().all(|(at, byte)| *byte == ((received + at) % 251) as u8));
                received += data.len();
            }
            [4, ..] => {}
            [6, 0x1f, 0xfa] => is_wanted = true,
            other => panic!("{}", other.escape_ascii()),
        }
    }
    assert_eq!(proxy.octets(6), b"AB\0\x02\x05\x01");
    proxy.send(forward(2, "/", &[], b""));
    assert_eq!(answer(&mut proxy), (200, "hello".to_owned(), true));
}

#[test]
fn connections_are_handed_over_like_those_of_http() {
    let server = server(2).ajp("127.0.0.1:0", AjpOptions::without_secret());
    let live = Live::with(server.configure(|config| config.balance = Balance::RoundRobin), |_| routes());
    let mut proxies: Vec<Raw> = (0..4).map(|_| Raw::connect(live.address(1))).collect();
    for proxy in &mut proxies {
        proxy.send(forward(2, "/", &[], b""));
        assert_eq!(answer(proxy), (200, "hello".to_owned(), true));
    }
    let stats = live.stats();
    assert_eq!(stats.shards.iter().map(|shard| shard.counters.ajp.active).sum::<u64>(), 4);
    assert!(stats.shards.iter().all(|shard| shard.counters.ajp.active > 0));
}

#[test]
fn connections_over_the_limit_are_told_so() {
    let server = server(1).ajp("127.0.0.1:0", AjpOptions::without_secret());
    let live = Live::with(server.configure(|config| config.connections_max = 1), |_| routes());
    let mut first = Raw::connect(live.address(1));
    first.send(PING);
    assert_eq!(first.octets(PONG.len()), PONG);
    let mut second = Raw::connect(live.address(1));
    second.send([PING, &forward(2, "/", &[], b"")].concat());
    assert_eq!(second.octets(PONG.len()), PONG);
    assert_eq!(answer(&mut second), (503, "too many connections; try again later\n".to_owned(), false));
    assert_eq!(second.until_close(), b"");
    drop(second);
    first.send(forward(2, "/", &[], b""));
    assert_eq!(answer(&mut first), (200, "hello".to_owned(), true));
    wait_until("the second is gone", || live.stats().total.ajp.active == 1);
    assert_eq!(live.stats().total.rejects.overload, 1);
}

#[test]
fn drain_ends_waiting_connections_and_announces_the_last_answer() {
    let (live, ajp) = live(AjpOptions::without_secret());
    let mut busy = Raw::connect(ajp);
    busy.send(forward(4, "/echo", &[&[b"\xa0\x08", &string("2")[..]].concat()], b""));
    assert_eq!(read(&mut busy)[0], 4, "its answer has begun");
    let mut idle = Raw::connect(ajp);
    idle.send(PING);
    assert_eq!(idle.octets(PONG.len()), PONG);
    live.handle.shutdown();
    assert_eq!(idle.until_close(), b"");
    busy.send(packet(b"\0\x02ok"));
    assert_eq!(busy.until_close(), b"AB\0\x06\x03\0\x02ok\0AB\0\x02\x05\0");
    live.wait().expect("it ends in good order");
}

#[test]
fn access_log_tells_of_requests_by_ajp() {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, file) = (folder.path().join("log"), folder.path().join("secret"));
    fs::write(&file, "S").expect("it can be written");
    let (log_path, file) = (log.to_str().expect("UTF-8"), file.to_str().expect("UTF-8"));
    let flags = ["--access-log", "combined", "--access-log-file", log_path, "--ajp", "127.0.0.1:0"];
    let mut server = Binary::start(&[&flags[..], &["--ajp-secret-file", file]].concat());
    let line = server.await_line(|line| line.starts_with("AJP on "));
    let mut proxy = Raw::connect(line["AJP on ".len()..].parse().expect("an address"));
    proxy.send(forward(2, "/yo", &[], &secret("S")));
    assert_eq!(answer(&mut proxy).0, 200);
    proxy.send(forward(2, "/fast", &[], &secret("S")));
    assert_eq!(answer(&mut proxy).0, 200);
    proxy.send(forward(2, "/yo", &[], &secret("wrong")));
    assert_eq!(answer(&mut proxy).0, 403);
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let text = fs::read_to_string(log).expect("the log is there");
    let told: Vec<_> = text
        .lines()
        .map(|line| (line.split(' ').next().unwrap_or_default(), line.split('"').nth(1), line.split('"').nth(2)))
        .collect();
    let expected = [
        ("203.0.113.7", Some("GET /yo HTTP/1.1"), Some(" 200 4 ")),
        ("203.0.113.7", Some("GET /fast HTTP/1.1"), Some(" 200 16294 ")),
    ];
    assert_eq!(told[..2], expected, "{text}");
    let (client, _, status) = told[2];
    assert_eq!((client, told.len()), ("127.0.0.1", 3), "{text}");
    assert!(status.is_some_and(|status| status.starts_with(" 403 ")), "{text}");
}

#[test]
fn listener_without_a_word_on_the_secret_does_not_start() {
    #[track_caller]
    fn check(flags: &[&str], expected: &str) {
        let output =
            Command::new(env!("CARGO_BIN_EXE_everycore")).arg("serve").args(flags).output().expect("it starts");
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(expected), "{error}");
    }
    check(&["--ajp", "8009"], "ajp: expected either --ajp-secret-file or --ajp-no-secret with it, got neither");
    check(
        &["--ajp", ":8009", "--ajp-no-secret"],
        "expected a loopback address or a unix socket where no secret is asked for",
    );
    check(
        &["--ajp", ":8009", "--ajp-secret-file", "/dev/null"],
        "ajp-secret-file: expected a secret, in bytes, 1 to 1024, got 0",
    );
}
