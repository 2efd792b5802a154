//! systemd's side of a service: told when ready and stopping, a watchdog fed only while every shard answers, sockets
//! passed by `systemd-socket-activate`.

use everycore::{Response, Router, Server};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::net::{UnixDatagram, UnixListener, UnixStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const BINARY: &str = env!("CARGO_BIN_EXE_everycore");
/// How long anything that is awaited may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Of the watchdog in these tests.
const PERIOD: Duration = Duration::from_millis(200);

/// A child that is killed at the end, whatever happened.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Service {
    fn terminate(&mut self) -> Option<i32> {
        let sent = Command::new("sh").arg("-c").arg(format!("kill -TERM {}", self.0.id())).status();
        assert!(sent.is_ok_and(|status| status.success()), "SIGTERM was not sent");
        self.0.wait().expect("a child can be waited for").code()
    }
}

fn notify_socket(folder: &Path) -> UnixDatagram {
    let socket = UnixDatagram::bind(folder.join("notify")).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

fn next(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 1024];
    let count = socket.recv(&mut buffer).expect("systemd is told in time");
    String::from_utf8_lossy(&buffer[..count]).into_owned()
}

fn with_systemd(command: &mut Command, folder: &Path) -> Service {
    let command = command.env("NOTIFY_SOCKET", folder.join("notify"));
    let command = command.env("WATCHDOG_USEC", PERIOD.as_micros().to_string()).stdin(Stdio::null());
    Service(command.stdout(Stdio::piped()).spawn().expect("the binary starts"))
}

fn is_without_a_ring() -> bool {
    let is_broken = Command::new(BINARY).arg("doctor").output().is_ok_and(|output| output.status.code() == Some(69));
    if is_broken {
        println!("skipped: io_uring is not available");
    }
    is_broken
}

#[test]
fn service_tells_ready_feeds_the_watchdog_and_tells_stopping() {
    if is_without_a_ring() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let socket = notify_socket(folder.path());
    let mut service = with_systemd(Command::new(BINARY).args(["serve", "--listen", "127.0.0.1:0"]), folder.path());
    let ready = next(&socket);
    assert!(ready.starts_with("READY=1\nSTATUS=serving: ") && ready.contains("shard"), "{ready}");
    assert_eq!((next(&socket), next(&socket)), ("WATCHDOG=1".into(), "WATCHDOG=1".into()));
    assert_eq!(service.terminate(), Some(0));
    let last = std::iter::repeat_with(|| next(&socket)).find(|said| said != "WATCHDOG=1");
    assert_eq!(last.as_deref(), Some("STOPPING=1\nSTATUS=draining"));
}

/// The service of the next test, in a process of its own: `/hang` holds its shard until somebody connects to the unix
/// socket and hangs up.
#[test]
#[ignore = "started by the next one"]
fn helper_that_hangs() {
    let Some(path) = std::env::var_os("EVERYCORE_TEST_HANG") else { return };
    let gate = std::sync::Arc::new(UnixListener::bind(path).expect("a socket"));
    let server = Server::bind("127.0.0.1:0").shards(1).handle_signals().systemd();
    let running = server.start(move |_| {
        let gate = gate.clone();
        Router::new().get("/hang", move |_| {
            let (mut visitor, _) = gate.accept().expect("a visitor");
            visitor.write_all(b"hanging\n").expect("the visitor reads");
            let _ = visitor.read(&mut [0]); // until it hangs up
            Response::text("over")
        })
    });
    let running = running.expect("it starts");
    println!("\nlistening on {}", running.addresses()[0]);
    running.wait().expect("it ends well");
}

#[test]
fn watchdog_is_not_fed_while_a_shard_hangs() {
    if is_without_a_ring() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let socket = notify_socket(folder.path());
    let gate = folder.path().join("gate");
    let mut helper = Command::new(std::env::current_exe().expect("this test"));
    helper.args(["--exact", "helper_that_hangs", "--ignored", "--nocapture"]).env("EVERYCORE_TEST_HANG", &gate);
    let mut service = with_systemd(&mut helper, folder.path());
    let stdout = BufReader::new(service.0.stdout.take().expect("stdout is piped"));
    let mut lines = stdout.lines().map_while(Result::ok);
    let address = lines.find_map(|line| line.strip_prefix("listening on ").map(str::to_owned)).expect("it listens");
    assert!(next(&socket).starts_with("READY=1"));
    assert_eq!(next(&socket), "WATCHDOG=1");

    let mut client = TcpStream::connect(address).expect("it listens");
    client.write_all(b"GET /hang HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it reads");
    let visitor = UnixStream::connect(&gate).expect("the helper listens there");
    let mut hanging = String::new();
    BufReader::new(&visitor).read_line(&mut hanging).expect("the handler runs");
    // What was asked before the shard hung may still be told, once; then nothing is, for many periods.
    socket.set_read_timeout(Some(PERIOD * 5)).expect("a timeout");
    let since = Instant::now();
    let told = std::iter::from_fn(|| socket.recv(&mut [0; 64]).ok()).take_while(|_| since.elapsed() < PATIENCE).count();
    assert!(told <= 1, "the watchdog was fed {told} times");

    drop(visitor);
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("the handler goes on");
    assert!(answer.ends_with("over"), "{answer}");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    assert_eq!(next(&socket), "WATCHDOG=1");
    assert_eq!(service.terminate(), Some(0));
}

// ---- socket activation ---------------------------------------------------------------------------

fn get(mut stream: impl Read + Write) -> String {
    stream.write_all(b"GET /yo?name=systemd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

/// Tries until somebody listens.
fn until<T>(mut connect: impl FnMut() -> std::io::Result<T>) -> T {
    let give_up = Instant::now() + PATIENCE;
    loop {
        match connect() {
            Ok(done) => return done,
            Err(error) if Instant::now() > give_up => panic!("nobody listens: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

#[test]
fn sockets_that_are_passed_are_served_in_place_of_the_addresses() {
    let has_tool = Command::new("systemd-socket-activate").arg("--version").output().is_ok();
    if !has_tool {
        println!("skipped: no systemd-socket-activate");
        return;
    }
    if is_without_a_ring() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("http.sock");
    // A port that was free a moment ago: the tool does not tell which one the kernel chose.
    let tcp = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let mut command = Command::new("systemd-socket-activate");
    command.args(["-l", &tcp.to_string(), "-l", &path.display().to_string(), BINARY, "serve"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut service = Service(command.spawn().expect("the tool starts"));
    // The first connection starts the server, and waits for it in the queue.
    let answer = get(until(|| TcpStream::connect(tcp)));
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("Hey systemd!"), "{answer}");
    for _ in 0..20 {
        assert!(get(UnixStream::connect(&path).expect("it listens")).ends_with("Hey systemd!"));
        assert!(get(TcpStream::connect(tcp).expect("it listens")).ends_with("Hey systemd!"));
    }
    assert_eq!(service.terminate(), Some(0));
    let stdout = service.0.stdout.take().expect("stdout is piped");
    let said: Vec<String> = BufReader::new(stdout).lines().map_while(Result::ok).take(2).collect();
    let expected = [format!("listening on http://{tcp}"), format!("listening on unix:{}", path.display())];
    assert_eq!(said, expected);
}

#[test]
fn descriptor_that_is_no_listener_is_refused() {
    if is_without_a_ring() {
        return;
    }
    // Of a shell, so that the variable holds the process that the shell becomes.
    let line = format!("exec 3</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec {BINARY} serve");
    let output = Command::new("sh").args(["-c", &line]).stdin(Stdio::null()).output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("descriptor 3 of LISTEN_FDS: expected a listening TCP or unix stream socket"), "{said}");
}
