//! The access log of the built binary: what its lines say, that none is lost or torn, and that lost ones are counted.

mod common;

use common::{
    live::{get, request, wait_until},
    raw::Raw,
    server::Server as Binary,
};
use regex_lite::Regex;
use serde_json::Value;
use std::{
    fs,
    io::Read,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

fn lines(path: &Path) -> Vec<String> {
    // It is there from before the server says that it listens.
    fs::read_to_string(path).expect("the log is there").lines().map(str::to_owned).collect()
}

/// The stats of a server; the look is a request itself.
fn stats(address: SocketAddr) -> Value {
    serde_json::from_slice(&get(address, "/__stats?format=json").body).expect("JSON")
}

/// Ends it in good order, so that all lines are written.
fn end(mut server: Binary) {
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("UTF-8").to_owned()
    }
}

const TIME: &str = r"\[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d \+0000\]";

#[test]
fn combined_lines_say_what_was_asked_and_answered() {
    let folder = Folder::new();
    let path = folder.path("log");
    let server = Binary::start(&["--access-log", "combined", "--access-log-file", &path]);
    let mut raw = Raw::connect(server.http);
    let agent = "User-Agent: a \"quoted\" \\ \u{fc}\r\nReferer: http://x/y";
    raw.exchange(format!("GET /yo?name=X HTTP/1.1\r\nHost: x\r\n{agent}\r\n\r\n"));
    raw.exchange("HEAD /small HTTP/1.1\r\nHost: x\r\n\r\n");
    raw.exchange("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello");
    raw.exchange("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    raw.exchange("GET /nowhere HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n");
    raw.exchange("GET  /two HTTP/1.1\r\nHost: x\r\n\r\n");
    drop(raw);
    end(server);

    let expected = [
        r#""GET /yo\?name=X HTTP/1\.1" 200 6 "http://x/y" "a \\x22quoted\\x22 \\x5C \\xC3\\xBC""#,
        r#""HEAD /small HTTP/1\.1" 200 0 "-" "-""#,
        r#""POST /echo HTTP/1\.1" 200 5 "-" "-""#,
        r#""POST /echo HTTP/1\.1" 200 3 "-" "-""#,
        r#""GET /nowhere HTTP/1\.1" 404 \d+ "-" "-""#,
        r#""GET  /two HTTP/1\.1" 400 \d+ "-" "-""#,
    ];
    let lines = lines(Path::new(&path));
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        let pattern = format!(r"^127\.0\.0\.1 - - {TIME} {expected} \d+\.\d{{6}} [01]$");
        assert!(Regex::new(&pattern).expect("a pattern").is_match(line), "{line:?} is not {pattern}");
    }
}

#[test]
fn json_lines_go_to_standard_output_and_tell_the_client_behind_a_proxy() {
    let more = ["--access-log", "json", "--trusted-proxy", "127.0.0.0/8,10.0.0.0/8"];
    let mut server = Binary::start(&more);
    let mut raw = Raw::connect(server.http);
    raw.exchange(
        "GET /yo HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 6.6.6.6, 192.0.2.1, 10.0.0.1\r\nUser-Agent: \u{fc}\r\n\r\n",
    );
    raw.exchange("GET /yo HTTP/1.1\r\nHost: x\r\nForwarded: for=\"[2001:db8::1]:80\"\r\n\r\n");
    raw.exchange("GET /yo HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: bogus\r\n\r\n");
    raw.exchange("BAD\r\n\r\n");
    // They come without the end of the server.
    for (client, status, agent) in [
        ("192.0.2.1", 200, Value::from("\u{fc}")),
        ("2001:db8::1", 200, Value::Null),
        ("127.0.0.1", 200, Value::Null),
        ("127.0.0.1", 400, Value::Null),
    ] {
        let line: Value = serde_json::from_str(&server.await_line(|line| line.starts_with('{'))).expect("JSON");
        assert_eq!(
            (&line["remote_addr"], &line["status"], &line["user_agent"]),
            (&client.into(), &status.into(), &agent)
        );
        let time = line["time"].as_str().expect("a time");
        assert!(Regex::new(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$").expect("a pattern").is_match(time), "{time}");
        let asked = if status == 200 {
            let request = ["method", "target", "protocol"].map(|field| line[field].as_str().unwrap_or("missing"));
            request.join(" ")
        } else {
            line["request"].as_str().unwrap_or("missing").to_owned()
        };
        assert_eq!(asked, if status == 200 { "GET /yo HTTP/1.1" } else { "BAD" });
        assert!(line["duration_us"].is_u64() && line["shard"].is_u64() && line["bytes"].as_u64() > Some(0), "{line}");
    }
    end(server);
}

#[test]
fn line_of_a_quiet_server_is_written_without_another_request() {
    let folder = Folder::new();
    let path = folder.path("log");
    let server = Binary::start(&["--access-log", "combined", "--access-log-file", &path]);
    get(server.http, "/yo");
    wait_until("the line is in the file", || lines(Path::new(&path)).len() == 1);
    get(server.http, "/yo");
    wait_until("so is the next", || lines(Path::new(&path)).len() == 2);
    end(server);
}

#[test]
fn rotation_under_load_loses_and_tears_no_line() {
    let folder = Folder::new();
    let path = folder.path("log");
    let server = Binary::start(&["--access-log", "combined", "--access-log-file", &path]);
    let (address, answers, is_over) = (server.http, AtomicU64::new(0), AtomicBool::new(false));
    let rotations = 5;
    thread::scope(|scope| {
        for client in 0..8 {
            let (answers, is_over) = (&answers, &is_over);
            scope.spawn(move || {
                let mut raw = Raw::connect(address);
                for number in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    raw.exchange(request(&format!("/yo?name={client}-{number}")));
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for rotation in 0..rotations {
            let before = answers.load(Ordering::Relaxed);
            wait_until("the load runs", || answers.load(Ordering::Relaxed) > before + 500);
            fs::rename(&path, folder.path(&format!("log.{rotation}"))).expect("it is there");
            server.signal("HUP");
            wait_until("the file is there anew", || fs::metadata(&path).is_ok_and(|file| file.len() > 0));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    end(server);
    let files = (0..rotations).map(|rotation| folder.path(&format!("log.{rotation}"))).chain([path.clone()]);
    let all: Vec<String> = files.flat_map(|file| lines(Path::new(&file))).collect();
    let pattern =
        format!(r#"^127\.0\.0\.1 - - {TIME} "GET /yo\?name=(\d+-\d+) HTTP/1\.1" 200 \d+ "-" "-" \d+\.\d{{6}} [01]$"#);
    let pattern = Regex::new(&pattern).expect("a pattern");
    let mut asked: Vec<String> = all
        .iter()
        .map(|line| pattern.captures(line).unwrap_or_else(|| panic!("torn: {line:?}"))[1].to_owned())
        .collect();
    assert_eq!(asked.len() as u64, answers.load(Ordering::Relaxed), "a line for each answer");
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked.len(), all.len(), "each once");
}

#[test]
fn moved_file_that_cannot_be_made_anew_is_written_on() {
    let folder = Folder::new();
    let inner = folder.0.path().join("inner");
    fs::create_dir(&inner).expect("a folder");
    let path = inner.join("log").to_str().expect("UTF-8").to_owned();
    let server = Binary::start(&["--access-log", "combined", "--access-log-file", &path]);
    let moved = folder.0.path().join("moved");
    fs::rename(&inner, &moved).expect("it is there");
    server.signal("HUP");
    for _ in 0..3 {
        get(server.http, "/yo");
    }
    end(server);
    assert_eq!(lines(&moved.join("log")).len(), 3);
}

/// A server whose standard output nobody reads yet.
fn unread() -> (Child, SocketAddr, impl Read) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everycore"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--shards", "1", "--pin", "off", "--access-log", "combined"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the built binary starts");
    let mut stdout = child.stdout.take().expect("piped");
    // The start's lines alone: byte by byte, so that nothing behind them is taken.
    let mut said = String::new();
    while !said.ends_with("at most\n") {
        let mut byte = [0];
        assert_eq!(stdout.read(&mut byte).expect("it says something"), 1, "it ended: {said}");
        said.push(char::from(byte[0]));
    }
    let address = said.lines().find_map(|line| line.strip_prefix("listening on http://")).expect("an address");
    (child, address.parse().expect("an address"), stdout)
}

#[test]
fn lines_are_lost_and_counted_when_nobody_reads_and_no_client_waits_for_that() {
    let (mut child, address, mut stdout) = unread();
    let mut raw = Raw::connect(address);
    // More than the pipe and the queue hold.
    let long = format!("GET /yo HTTP/1.1\r\nHost: x\r\nUser-Agent: {}\r\n\r\n", "a".repeat(8000));
    for _ in 0..500 {
        assert_eq!(raw.exchange(&long).status, 200);
    }
    drop(raw);
    let lost = || stats(address)["access_log_dropped"].as_u64().expect("a number");
    wait_until("lines are lost", || lost() > 0);
    let reader = thread::spawn(move || {
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).map(|_| rest).expect("UTF-8")
    });
    // Read again, it takes lines again.
    let mut last = stats(address);
    wait_until("no more are lost", || {
        let before = std::mem::replace(&mut last, stats(address));
        before["access_log_dropped"] == last["access_log_dropped"]
    });
    let signalled = Command::new("sh").arg("-c").arg(format!("kill -TERM {}", child.id())).status();
    assert!(signalled.is_ok_and(|status| status.success()));
    assert_eq!(child.wait().expect("a child").code(), Some(0));
    let said = reader.join().expect("it reads");
    let written = said.lines().filter(|line| line.starts_with("127.0.0.1 - - [")).count() as u64;
    let all = last["total"]["requests"].as_u64().expect("a number");
    assert_eq!(written + last["access_log_dropped"].as_u64().expect("a number"), all);
    assert!(said.ends_with('\n'));
}

#[test]
fn end_does_not_wait_for_a_pipe_that_nobody_reads() {
    let (mut child, address, stdout) = unread();
    let mut raw = Raw::connect(address);
    let long = format!("GET /yo HTTP/1.1\r\nHost: x\r\nUser-Agent: {}\r\n\r\n", "a".repeat(8000));
    for _ in 0..50 {
        assert_eq!(raw.exchange(&long).status, 200);
    }
    drop(raw);
    let signalled = Command::new("sh").arg("-c").arg(format!("kill -TERM {}", child.id())).status();
    assert!(signalled.is_ok_and(|status| status.success()));
    assert_eq!(child.wait().expect("a child").code(), Some(0));
    drop(stdout);
}
