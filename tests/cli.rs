//! The command: what it prints, what it refuses and how, what it leaves behind.

mod common;

use common::{
    live::{PATIENCE, get, request, wait_until},
    raw::Raw,
    server::Server,
};
use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::{UnixListener, UnixStream},
        process::CommandExt,
    },
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Instant,
};

fn everycore(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everycore"));
    command.args(args);
    command
}

/// How a command ended, and what it said.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs a command that is to end by itself.
///
/// # Panics
/// When it does not: a server that was to be refused has started.
#[track_caller]
fn run(mut command: Command) -> Ended {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the built binary starts");
    let (mut stdout, mut stderr) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let reader = thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    let until = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait().expect("a child can be waited for") {
            Some(status) => break status,
            None if Instant::now() < until => thread::sleep(std::time::Duration::from_millis(2)),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                panic!("it goes on: {command:?}");
            }
        }
    };
    let mut text = String::new();
    stdout.read_to_string(&mut text).expect("UTF-8");
    let stderr = reader.join().expect("it reads").expect("UTF-8");
    Ended { code: status.code(), stdout: text, stderr }
}

/// The command is refused with that code and a message that holds all of `parts`, before anything was started.
#[track_caller]
fn refused(command: Command, code: i32, parts: &[&str]) {
    let shown = format!("{command:?}");
    let ended = run(command);
    assert_eq!(ended.code, Some(code), "{shown}: {ended:?}");
    assert_eq!(ended.stdout, "", "{shown}");
    for part in parts {
        assert!(ended.stderr.contains(part), "{shown}: expected {part:?} in {:?}", ended.stderr);
    }
    assert!(!ended.stderr.contains("panicked"), "{shown}: {}", ended.stderr);
}

/// `everycore serve` with `flags` (separated by blanks) is refused as wrong usage.
#[track_caller]
fn usage(flags: &str, parts: &[&str]) {
    let mut command = everycore(&["serve"]);
    if !flags.contains("--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command.args(flags.split_whitespace());
    refused(command, 2, parts);
}

// ---- diagnostics -----------------------------------------------------------------------------------

/// What a server of these flags says on standard error between its start and its end in good order.
fn said(flags: &[&str], rust_log: Option<&str>) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("stderr");
    let mut command = everycore(&["serve", "--listen", "127.0.0.1:0", "--shards", "2", "--pin", "off"]);
    command.args(flags).env_remove("RUST_LOG").envs(rust_log.map(|filter| ("RUST_LOG", filter)));
    command.stderr(fs::File::create(&path).expect("a file"));
    let mut server = Server::launch(command);
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    fs::read_to_string(path).expect("UTF-8")
}

#[test]
fn diagnostics_are_filtered_and_text_or_json() {
    let drains = "draining: accepting no more; connections open: 0, which have 8s";
    let text = said(&[], None);
    let (line, end) = text.split_once('\n').expect("two lines");
    assert!(line.ends_with(&format!("Z  INFO everycore::server::keeper: {drains}")), "{text}");
    assert_eq!(end, "drained\n");
    for (flags, rust_log) in [
        (&["--log", "warn"][..], None),
        (&["--log", "warn"], Some("info")),
        (&[], Some("error")),
        (&["--log", "everycore=info,everycore::server::keeper=off"], None),
    ] {
        assert_eq!(said(flags, rust_log), "drained\n", "{flags:?} {rust_log:?}");
    }
    let json = said(&["--log-format", "json"], Some("everycore::server=info"));
    let line: serde_json::Value = serde_json::from_str(json.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&line["level"], &line["message"]), (&"INFO".into(), &drains.into()), "{json}");
    assert_eq!(line["target"], "everycore::server::keeper");
    assert!(line["timestamp"].is_string());
    let mut command = everycore(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("RUST_LOG", "everycore=loud");
    refused(command, 2, &["RUST_LOG", "expected a filter", "everycore=loud"]);
    usage("--log everycore=loud", &["--log", "everycore=loud"]);
}

#[test]
fn compression_that_compresses_nothing_is_a_warning() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().to_str().expect("temporary files have plain names");
    let warning =
        "--compress dynamic compresses nothing here: with --root all answers are files; expected --compress all";
    for (flags, is_warned) in [
        (&["--compress", "dynamic", "--root", root][..], true),
        (&["--compress", "all", "--root", root], false),
        (&["--compress", "off", "--root", root], false),
        (&["--compress", "dynamic"], false),
    ] {
        let told = said(flags, None);
        let line = told.lines().find(|line| line.ends_with(&format!(" WARN everycore::cli::serve: {warning}")));
        assert_eq!(line.is_some(), is_warned, "{flags:?}: {told}");
        assert_eq!(told.contains("compresses nothing"), is_warned, "{flags:?}: {told}");
    }
}

// ---- wrong usage -----------------------------------------------------------------------------------

#[test]
fn wrong_value_of_any_flag_is_refused_with_what_was_expected_and_came() {
    usage("--nonsense", &["--nonsense"]);
    usage("--listen localhost:80", &["--listen", "expected", "localhost:80", "not looked up"]);
    usage("--listen 127.0.0.1", &["--listen", "expected", "127.0.0.1"]);
    usage("--listen 127.0.0.1:99999", &["--listen", "expected", "99999"]);
    usage("--listen unix:relative", &["--listen", "expected", "absolute"]);
    usage("--listen unix:/tmp/x?mode=999", &["--listen", "expected", "octal"]);
    usage("--listen 127.0.0.1:8 --listen 127.0.0.1:8", &["listen", "expected", "once", "127.0.0.1:8"]);
    usage("--echo x:1", &["--echo", "expected", "x:1"]);
    usage("--backlog 0", &["backlog", "expected", "0"]);
    usage("--shards 0", &["shards", "expected", "0"]);
    usage("--shards many", &["--shards", "expected", "many"]);
    usage("--shards 100000 --pin off", &["shards", "expected", "100000"]);
    usage("--shards 1024", &["1024", "--pin off"]);
    usage("--cpus nine", &["--cpus", "expected", "nine"]);
    usage("--cpus 1023", &["1023"]);
    usage("--cpus 3-1", &["--cpus", "expected", "3-1"]);
    usage("--pin maybe", &["--pin", "maybe", "auto", "off"]);
    usage("--balance best", &["--balance", "best", "least-conn"]);
    usage("--tick 1", &["tick", "expected", "100 us"]);
    usage("--max-connections 0", &["max-connections", "expected", "0"]);
    usage("--max-requests 0", &["max-requests", "expected", "0"]);
    usage("--max-head 10", &["max-head", "expected", "10"]);
    usage("--max-headers 0", &["max-headers", "expected", "0"]);
    usage("--max-uri 40000", &["max-uri", "expected", "40000"]);
    usage("--header-timeout 0", &["header-timeout", "expected", "0"]);
    usage("--header-timeout 5x", &["--header-timeout", "expected", "5x"]);
    usage("--body-timeout 25h", &["body-timeout", "expected", "24 hours"]);
    usage("--write-timeout 0", &["write-timeout", "expected"]);
    usage("--idle-timeout -1", &["-1"]);
    usage("--handler-timeout 0", &["handler-timeout", "expected"]);
    usage("--drain-delay 48h", &["drain-delay", "expected"]);
    usage("--drain-timeout 1.5", &["--drain-timeout", "expected", "1.5"]);
    usage("--min-body-rate fast", &["--min-body-rate", "fast"]);
    usage("--stats perhaps", &["--stats", "perhaps", "auto"]);
    usage("--livez alive", &["livez", "expected", "alive", "off"]);
    usage("--stats-path /livez", &["stats-path", "expected", "/livez"]);
    usage("--livez /yo", &["GET /yo", "the server's own", "--healthz"]);
    usage("--max-body 1M", &["--max-body", "expected", "whole number", "1M"]);
    usage("--share-port --balance random", &["balance", "expected", "share-port"]);
    refused(everycore(&[]), 2, &["Usage"]);
    refused(everycore(&["fly"]), 2, &["fly"]);
}

#[test]
fn wrong_value_in_the_environment_is_refused_too() {
    let check = |name: &str, value: &str, parts: &[&str]| {
        let mut command = everycore(&["serve"]);
        command.env("EVERYCORE_LISTEN", "127.0.0.1:0").env(name, value);
        refused(command, 2, &[parts, &[name]].concat());
    };
    check("EVERYCORE_LISTEN", "here", &["expected", "here"]);
    check("EVERYCORE_SHARDS", "some", &["expected", "some"]);
    check("EVERYCORE_BALANCE", "best", &["best"]);
    check("EVERYCORE_IDLE_TIMEOUT", "0", &["idle-timeout", "expected"]);
    check("EVERYCORE_SHARE_PORT", "perhaps", &["perhaps", "expected true or false"]);
}

#[test]
fn help_and_version_are_no_errors() {
    let version = run(everycore(&["--version"]));
    assert_eq!((version.code, version.stdout), (Some(0), format!("everycore {}\n", env!("CARGO_PKG_VERSION"))));
    for args in [&["--help"][..], &["serve", "--help"], &["healthcheck", "--help"], &["doctor", "--help"]] {
        let help = run(everycore(args));
        assert_eq!(help.code, Some(0));
        assert!(help.stdout.contains("Usage: everycore"), "{}", help.stdout);
    }
}

// ---- what it prints --------------------------------------------------------------------------------

#[test]
fn start_prints_addresses_shards_engine_and_limits() {
    let mut server = Server::start(&["--listen", "127.0.0.1:0", "--echo", "0", "--max-connections", "77"]);
    let second = server.await_listener("http");
    assert!(server.http.port() != 0 && second.port() != 0 && second != server.http);
    let echo = server.await_line(|line| line.starts_with("echoing on 127.0.0.1:"));
    assert!(!echo.ends_with(":0"), "{echo}");
    server.await_line(|line| line.starts_with("shards: 2 shards on core"));
    server.await_line(|line| line.starts_with("engine: io_uring on Linux ") && line.contains("multishot"));
    server.await_line(|line| line.starts_with("limits: open files ") && line.ends_with("; 77 connections at most"));
    for address in [server.http, second] {
        assert_eq!(get(address, "/yo").body, b"Hey!");
    }
}

#[test]
fn one_connection_is_not_called_connections() {
    let mut server = Server::start(&["--max-connections", "1"]);
    server.await_line(|line| line.starts_with("limits: ") && line.ends_with("; 1 connection at most"));
}

#[test]
fn environment_is_read_and_flags_win() {
    let mut command = everycore(&["serve", "--shards", "3"]);
    command.env("EVERYCORE_LISTEN", "127.0.0.1:0,127.0.0.1:0").env("EVERYCORE_SHARDS", "2").env("EVERYCORE_PIN", "off");
    command.env("EVERYCORE_LIVEZ", "/alive").env("EVERYCORE_STATS", "off");
    command.env("EVERYCORE_DEFER_ACCEPT", "").env("EVERYCORE_FAST_OPEN", "No");
    let mut server = Server::launch(command);
    server.await_listener("http");
    server.await_line(|line| line.starts_with("shards: 3 shards"));
    assert_eq!(get(server.http, "/alive").status, 200);
    assert_eq!(get(server.http, "/livez").status, 404);
    assert_eq!(get(server.http, "/__stats").status, 404);
}

#[test]
fn server_goes_on_when_nobody_reads_what_it_prints() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s");
    let (reader, stdout) = io::pipe().expect("a pipe");
    let (reader_too, stderr) = io::pipe().expect("a pipe");
    drop((reader, reader_too));
    let mut child = everycore(&["serve", "--shards", "1", "--listen", &format!("unix:{}", path.display())])
        .stdout(stdout)
        .stderr(stderr)
        .spawn()
        .expect("the built binary starts");
    let mut connected = None;
    wait_until("it listens", || {
        connected = UnixStream::connect(&path).ok();
        connected.is_some()
    });
    let mut stream = connected.expect("just now");
    stream.write_all(b"GET /yo HTTP/1.1\r\nHost: x\r\n\r\n").expect("it reads");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("it answers");
    assert_eq!(&answer, b"HTTP/1.1 200");
    drop(stream);
    let killed = Command::new("sh").arg("-c").arg(format!("kill -TERM {}", child.id())).status();
    assert!(killed.is_ok_and(|status| status.success()));
    wait_until("it ends", || child.try_wait().expect("a child").is_some());
    assert_eq!(child.wait().expect("a child").code(), Some(0));
}

// ---- ports -----------------------------------------------------------------------------------------

#[test]
fn port_in_use_is_refused_with_the_cure() {
    let server = Server::start(&[]);
    let address = server.http.to_string();
    let parts = ["in use", &address, "--share-port", "ss -ltnp"];
    refused(everycore(&["serve", "--shards", "1", "--listen", &address]), 1, &parts);
    // Who shares joins only who shares, and nobody takes a part of the port by another name of the host.
    let all = format!("0.0.0.0:{}", server.http.port());
    refused(everycore(&["serve", "--shards", "1", "--listen", &all]), 1, &["in use"]);
    let foreign = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    let foreign = foreign.local_addr().map(|address| (foreign, address.to_string())).expect("it is bound");
    refused(everycore(&["serve", "--shards", "1", "--share-port", "--listen", &foreign.1]), 1, &["in use"]);
    for _ in 0..20 {
        assert_eq!(get(server.http, "/yo").status, 200);
    }
}

#[test]
fn shared_port_outlives_the_first_server() {
    let mut first = Server::start(&["--share-port"]);
    let address = first.http.to_string();
    let mut command = everycore(&["serve", "--shards", "1", "--pin", "off", "--share-port", "--listen", &address]);
    command.env_remove("EVERYCORE_LISTEN");
    let second = Server::launch(command);
    assert_eq!(second.http, first.http);
    first.signal("TERM");
    assert_eq!(first.wait().code(), Some(0));
    for _ in 0..20 {
        assert_eq!(get(second.http, "/yo").status, 200);
    }
}

#[test]
fn address_of_another_host_is_refused() {
    // TEST-NET-1 (RFC 5737): nobody has it.
    refused(
        everycore(&["serve", "--shards", "1", "--listen", "192.0.2.1:0"]),
        1,
        &["192.0.2.1", "does not have the address"],
    );
}

#[test]
fn ipv6_is_served_and_is_not_ipv4() {
    if TcpListener::bind("[::1]:0").is_err() {
        return println!("skipped: no IPv6 here");
    }
    let mut server = Server::start(&["--listen", "[::1]:0", "--listen", "[::]:0"]);
    let (loopback, any) = (server.await_listener("http"), server.await_listener("http"));
    assert!(loopback.is_ipv6() && any.is_ipv6());
    assert_eq!(get(loopback, "/__stats").status, 200, "loopback");
    let from_here = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, any.port()));
    assert_eq!(get(from_here, "/yo").status, 200);
    assert_eq!(get(from_here, "/__stats").status, 404, "whoever can reach it");
    assert!(TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, any.port())).is_err());
}

// ---- unix sockets ----------------------------------------------------------------------------------

fn ask_unix(path: &Path) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.write_all(b"GET /yo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn unix_socket_has_its_mode_serves_and_goes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s");
    for mode in [0o600, 0o666] {
        let mut server = Server::start(&["--listen", &format!("unix:{}?mode={mode:o}", path.display())]);
        server.await_line(|line| line.starts_with("listening on unix:"));
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, mode);
        for _ in 0..4 {
            let answer = ask_unix(&path).expect("it answers");
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("Hey!"), "{answer}");
        }
        server.signal("TERM");
        assert_eq!(server.wait().code(), Some(0));
        assert!(!path.exists());
    }
}

#[test]
fn unix_socket_left_behind_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s");
    drop(UnixListener::bind(&path).expect("it can be made"));
    let listen = format!("unix:{}", path.display());
    // By a listener that is gone; then by a server that was killed.
    for _ in 0..2 {
        assert!(path.exists());
        let mut server = Server::start(&["--listen", &listen]);
        server.await_line(|line| line.starts_with("listening on unix:"));
        assert!(ask_unix(&path).expect("it answers").ends_with("Hey!"));
        server.signal("KILL");
        server.wait();
    }
}

#[test]
fn unix_socket_of_a_live_server_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s");
    let listen = format!("unix:{}", path.display());
    let mut server = Server::start(&["--listen", &listen]);
    server.await_line(|line| line.starts_with("listening on unix:"));
    refused(everycore(&["serve", "--shards", "1", "--listen", &listen]), 1, &["in use", &listen, "another"]);
    assert!(ask_unix(&path).expect("it answers").ends_with("Hey!"));
}

#[test]
fn file_that_is_no_socket_is_never_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("precious");
    fs::write(&path, "precious").expect("it can be written");
    let listen = format!("unix:{}", path.display());
    // The address before it must be free again, too.
    let other = folder.path().join("s");
    let first = format!("unix:{}", other.display());
    let command = everycore(&["serve", "--shards", "1", "--listen", &first, "--listen", &listen]);
    refused(command, 1, &["no socket", &listen]);
    assert_eq!(fs::read_to_string(&path).expect("it is there"), "precious");
    assert!(!other.exists());
    refused(everycore(&["serve", "--shards", "1", "--listen", "unix:/nowhere/s"]), 1, &["/nowhere/s", "folder"]);
    assert!(!fs::metadata(&path).expect("it is there").file_type().is_socket());
}

// ---- limits of the process -------------------------------------------------------------------------

/// `everycore` run by a shell that sets a limit first.
fn limited(limit: &str, program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("ulimit {limit} && exec \"$0\" \"$@\"")).arg(program).args(args);
    command
}

const BINARY: &str = env!("CARGO_BIN_EXE_everycore");

#[test]
fn too_few_descriptors_are_an_error_with_the_cure() {
    let args = ["serve", "--listen", "127.0.0.1:0", "--shards", "2", "--pin", "off"];
    for files in [12, 32, 63] {
        let command = limited(&format!("-n {files}"), Path::new(BINARY), &args);
        refused(command, 1, &["files", "64", "ulimit -n"]);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let said = folder.path().join("said");
    let mut command = limited("-n 64", Path::new(BINARY), &args);
    command.env_remove("EVERYCORE_LOG").env_remove("RUST_LOG").stderr(fs::File::create(&said).expect("it is new"));
    let mut server = Server::launch(command);
    assert_eq!(get(server.http, "/yo").status, 200);
    server.signal("TERM");
    assert!(server.wait().success());
    let said = fs::read_to_string(said).expect("it is there");
    assert!(said.contains("64 open files allow 1 connection at a time; ") && said.contains("65840"), "{said}");
}

#[test]
fn descriptors_bound_the_connections() {
    let args = ["serve", "--listen", "127.0.0.1:0", "--shards", "1", "--pin", "off"];
    let mut server = Server::launch(limited("-n 400", Path::new(BINARY), &args));
    let line = server.await_line(|line| line.starts_with("limits: "));
    assert!(line.starts_with("limits: open files 400, ") && line.ends_with("; 120 connections at most"), "{line}");
    let mut served: Vec<Raw> = (0..120).map(|_| Raw::connect(server.http)).collect();
    for connection in &mut served {
        assert_eq!(connection.exchange(request("/yo")).status, 200);
    }
    assert_eq!(get(server.http, "/yo").status, 503);
}

#[test]
fn locked_memory_below_the_least_is_an_error_with_the_cure() {
    let command = limited("-l 100", Path::new(BINARY), &["serve", "--listen", "127.0.0.1:0", "--shards", "1"]);
    refused(command, 69, &["io_uring is not available", "locked memory", "100 KiB", "512 KiB"]);
    let doctor = run(limited("-l 100", Path::new(BINARY), &["doctor"]));
    assert_eq!(doctor.code, Some(69));
    assert!(
        doctor.stdout.contains("\nbroken   io_uring  ") && doctor.stdout.contains("locked memory"),
        "{}",
        doctor.stdout
    );
}

/// A user without privileges that nothing else runs as: locked memory is counted by user.
fn stranger(command: &mut Command) {
    let id = 100_000 + std::process::id() % 100_000;
    command.uid(id).gid(id);
}

/// The binary where every user may run it.
fn everybodys_binary(folder: &Path) -> std::path::PathBuf {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let binary = folder.join("everycore");
    fs::copy(BINARY, &binary).expect("it can be copied");
    binary
}

fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("proc is mounted");
    status.lines().any(|line| line.starts_with("Uid:\t0\t0\t"))
}

#[test]
fn locked_memory_too_small_for_the_shards_is_an_error_with_the_cure() {
    if !is_root() {
        return println!("skipped: not root, so no other user can be had");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let binary = everybodys_binary(folder.path());
    let args = ["serve", "--listen", "127.0.0.1:0", "--shards", "4", "--pin", "off"];
    let mut command = limited("-l 600", &binary, &args);
    stranger(&mut command);
    if !charges_rings(&binary) {
        return println!("skipped: this kernel does not charge rings to the limit");
    }
    refused(command, 69, &["1856 KiB of locked memory are needed", "600 KiB", "memlock"]);
}

/// Whether so small a limit keeps a server of many shards from starting at all, however it says so.
fn charges_rings(binary: &Path) -> bool {
    let mut command = limited("-l 520", binary, &["serve", "--listen", "127.0.0.1:0", "--shards", "8", "--pin", "off"]);
    command.uid(99_999).gid(99_999);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut first = [0];
    let has_started = child.stdout.take().expect("piped").read(&mut first).is_ok_and(|count| count > 0);
    let _ = child.kill();
    let _ = child.wait();
    !has_started
}

#[test]
fn user_without_privileges_serves_within_eight_mebibytes() {
    if !is_root() {
        return println!("skipped: not root, so no other user can be had");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let binary = everybodys_binary(folder.path());
    let args = ["serve", "--listen", "127.0.0.1:0", "--shards", "4", "--pin", "off"];
    let mut command = limited("-l 8192", &binary, &args);
    command.uid(99_998).gid(99_998);
    // Again and again: the rings of one that was killed stay charged for a moment.
    for _ in 0..3 {
        let mut again = limited("-l 2048", &binary, &args);
        again.uid(99_998).gid(99_998);
        let mut server = Server::launch(again);
        assert_eq!(get(server.http, "/yo").status, 200);
        server.signal("KILL");
        server.wait();
    }
    let server = Server::launch(command);
    assert_eq!(get(server.http, "/yo").status, 200);
}

// ---- healthcheck, doctor ---------------------------------------------------------------------------

#[test]
fn healthcheck_tells_by_its_code() {
    let mut server = Server::start(&["--drain-delay", "60s"]);
    let check = |path: &str, code: i32, part: &str| {
        let ended = run(everycore(&["healthcheck", &format!("http://{}{path}", server.http)]));
        assert_eq!(ended.code, Some(code), "{path}: {ended:?}");
        assert!((ended.stdout + &ended.stderr).contains(part), "{path}");
    };
    check("/healthz", 0, "HTTP/1.1 200 OK");
    check("/yo?name=x", 0, "200");
    check("/nowhere", 1, "expected status 200");
    let other = |url: &str, part: &str| {
        let ended = run(everycore(&["healthcheck", url]));
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    };
    other("https://127.0.0.1/", "expected");
    other("127.0.0.1", "expected");
    for wrong in [&["healthcheck", "--url"][..], &["healthcheck", "http://x/", "http://y/"]] {
        assert_eq!(run(everycore(wrong)).code, Some(1), "Docker keeps other codes for itself");
    }
    assert_eq!(run(everycore(&["healthcheck", "--help"])).code, Some(0));
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("loopback");
    other(&format!("http://{nobody}/"), "refused");
    server.signal("TERM");
    wait_until("it is unready", || get(server.http, "/readyz").status == 503);
    let ended = run(everycore(&["healthcheck", &format!("http://{}/healthz", server.http)]));
    assert_eq!(ended.code, Some(1), "draining");
    server.signal("TERM");
    server.wait();
}

#[test]
fn healthcheck_reads_its_address_from_the_environment() {
    let server = Server::start(&[]);
    let mut command = everycore(&["healthcheck"]);
    command.env("EVERYCORE_HEALTHCHECK_URL", format!("http://{}/livez", server.http));
    assert_eq!(run(command).code, Some(0));
}

#[test]
fn doctor_says_that_this_host_can_serve() {
    let plain = run(everycore(&["doctor"]));
    assert_eq!(plain.code, Some(0), "{plain:?}");
    assert!(plain.stdout.contains("\ncan serve here: 0 broken, "), "{}", plain.stdout);
    let json = run(everycore(&["doctor", "--json"]));
    let told: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    let checks = told["checks"].as_array().expect("checks");
    assert!(checks.iter().any(|check| check["name"] == "multishot accept" && check["state"] == "ok"), "{told}");
}
