//! HTTP/1.x conformance: every case of `tests/cases/` byte for byte against the built binary.
//!
//! `EVERYCORE_CASES_ADDR=127.0.0.1:8080 cargo test --test http_cases` asks a server that runs already.

mod common;

use common::{case::Case, judge, response::Response, server::Server, talk};
use std::{
    env,
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// Cases at a time; they wait more than they work.
const THREADS: usize = 16;

#[test]
fn http1_cases_all_hold() {
    check(include_str!("cases/http1.jsonl"));
}

#[test]
fn http1_more_cases_all_hold() {
    check(include_str!("cases/http1-more.jsonl"));
}

/// Runs the cases of a file and fails with the reason of each one that failed.
fn check(jsonl: &str) {
    let mut cases = Case::read_all(jsonl);
    // Stable: the order of the file otherwise.
    cases.sort_by_key(|case| !case.is_slow());
    let (_server, address) = server();
    let before = talk::alive(address);
    assert!(before.is_ok(), "plain GET /yo fails before the run: {before:?}");
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = judge::run(case, address) {
                        let line = format!("FAIL {} [{}] {why}\n     rule: {}", case.id, case.level, case.why);
                        failures.lock().expect("no thread panicked").push(line);
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().expect("no thread panicked");
    failures.sort();
    if let Err(why) = talk::alive(address) {
        failures.push(format!("FAIL server does not answer GET /yo after the run: {why}"));
    }
    assert!(failures.is_empty(), "{} of {} failed\n{}", failures.len(), cases.len(), failures.join("\n"));
}

/// The server to ask: the one given, or the built binary, which lives as long as the value.
fn server() -> (Option<Server>, SocketAddr) {
    if let Ok(address) = env::var("EVERYCORE_CASES_ADDR") {
        let address: SocketAddr = address.parse().expect("EVERYCORE_CASES_ADDR is IP:PORT");
        assert!(address.ip().is_loopback(), "the cases are for loopback only");
        return (None, address);
    }
    let server = Server::start(&[]);
    let address = server.http;
    (Some(server), address)
}

/// The reader that judges others is itself strict: what it reads, or why not.
#[test]
fn response_parse_takes_exact_messages_only() {
    let check = |input: &str, method: &str, wanted: Result<Option<&str>, &str>| {
        let got = Response::parse(input.as_bytes(), method, false);
        let got = got
            .map(|done| done.map(|(r, used)| format!("{} {:?} {used}", r.status, r.body.escape_ascii().to_string())));
        match (&got, wanted) {
            (Ok(got), Ok(wanted)) => assert_eq!(got.as_deref(), wanted, "{input:?}"),
            (Err(why), Err(part)) => assert!(why.contains(part), "{input:?}: {why}"),
            _ => panic!("{input:?}: {got:?}"),
        }
    };
    let plain = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP";
    check(plain, "GET", Ok(Some("200 \"ok\" 40")));
    check(plain, "HEAD", Ok(Some("200 \"\" 38")));
    for end in 0..40 {
        check(&plain[..end], "GET", Ok(None));
    }
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n0\r\nA: b\r\n\r\n";
    check(chunked, "GET", Ok(Some("200 \"ok\" 69")));
    for end in 0..chunked.len() {
        check(&chunked[..end], "GET", Ok(None));
    }
    check("HTTP/1.1 200 OK\r\n\r\nuntil close", "GET", Ok(None));
    check("HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", "GET", Ok(Some("304 \"\" 48")));
    check("HTTP/2 200 OK\r\n\r\n", "GET", Err("bad status-line"));
    check("HTTP/1.1 200\r\n\r\n", "GET", Err("bad status-line"));
    check("SSH-2.0-x", "GET", Err("not a status-line"));
    check("HTTP/1.1 200 OK\nA: b\n\n", "GET", Err("bare LF"));
    check("HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n", "GET", Err("bare LF"));
    check("HTTP/1.1 200 OK\r\nA : b\r\n\r\n", "GET", Err("bad field name"));
    check("HTTP/1.1 200 OK\r\nA: b\u{1}\r\n\r\n", "GET", Err("control octet"));
    check("HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n", "GET", Err("framing field"));
    check("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", "GET", Err("repeated"));
    check("HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\nx", "GET", Err("bad Content-Length"));
    check("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "GET", Err("both"));
    check("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "GET", Err("Transfer-Encoding"));
    check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokk\r\n", "GET", Err("not followed"));
}
