//! The library as its users hold it: start, addresses, handles, ends, and errors that leave nothing behind.

mod common;

use common::{
    live::{Live, get, request, server, wait_until},
    raw::Raw,
    response::Response,
};
use everycore::{
    Error, Request, Router, Server,
    config::{Address, ServerConfig},
    http::PeerAddr,
    topology::PinMode,
};
use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

fn says(text: &'static str) -> impl Fn(everycore::Shard) -> Router + Send + Sync + 'static {
    move |_| Router::new().get("/", move |_| text)
}

fn body(response: Response) -> String {
    assert_eq!(response.status, 200);
    String::from_utf8(response.body).expect("UTF-8")
}

/// A port that nobody listens on, most likely.
fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    listener.local_addr().expect("it is bound")
}

// ---- addresses and listeners -----------------------------------------------------------------------

#[test]
fn addresses_are_known_once_it_has_started() {
    let live = Live::with(server(2).listen("127.0.0.1:0"), says("here"));
    assert_eq!(live.addresses().len(), 2);
    let (first, second) = (live.address(0), live.address(1));
    assert!(first.port() != 0 && second.port() != 0 && first != second);
    for address in [first, second] {
        assert_eq!(body(get(address, "/")), "here");
    }
}

#[test]
fn listener_handed_in_is_served_alone() {
    for is_nonblocking in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
        listener.set_nonblocking(is_nonblocking).expect("it can be set");
        let address = listener.local_addr().expect("it is bound");
        let config = ServerConfig { listen: Vec::new(), pin: PinMode::Off, shards: Some(2), ..ServerConfig::default() };
        let live = Live::with(Server::new(config).listener(listener), says("adopted"));
        assert_eq!(live.addresses(), [Address::Tcp(address)]);
        for _ in 0..8 {
            assert_eq!(body(get(address, "/")), "adopted", "non-blocking: {is_nonblocking}");
        }
        live.handle.shutdown();
        live.wait().expect("it drains");
        assert!(TcpStream::connect(address).is_err(), "the listener is closed with the server");
    }
}

#[test]
fn request_tells_its_listener_and_both_addresses() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    let server = server(1).listen("[::1]:0").listener(listener);
    let live = Live::with(server, |_| {
        Router::new().get("/", |req: Request| {
            let listener = req.conn().expect("it came by a connection").listener();
            let shown = |address: Option<PeerAddr>| address.map(|address| address.to_string()).unwrap_or_default();
            format!("{listener} {} {}", shown(req.peer_addr()), shown(req.local_addr()))
        })
    });
    for index in 0..3 {
        let stream = TcpStream::connect(live.address(index)).expect("it listens");
        let (own, server) = (stream.local_addr().expect("connected"), stream.peer_addr().expect("connected"));
        assert_eq!(body(Raw::over(stream).exchange(request("/"))), format!("{index} {own} {server}"));
    }
}

#[test]
fn unix_socket_is_served_and_its_file_goes_with_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s");
    let server = Server::bind(format!("unix:{}", path.display())).shards(2).configure(|c| c.pin = PinMode::Off);
    let live = Live::with(server, |_| {
        Router::new().get("/", |req: Request| format!("{:?} {:?}", req.peer_addr(), req.local_addr()))
    });
    for _ in 0..4 {
        let mut stream = UnixStream::connect(&path).expect("it listens");
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers and closes");
        assert!(answer.ends_with("\r\n\r\nSome(Unix) Some(Unix)"), "{answer}");
    }
    drop(live);
    assert!(!path.exists());
}

// ---- ending ----------------------------------------------------------------------------------------

#[test]
fn shutdown_ends_it_and_nothing_listens_after() {
    let live = Live::start(2, says("here"));
    let (handle, address) = (live.handle.clone(), live.http);
    assert_eq!(body(live.get("/")), "here");
    handle.shutdown();
    handle.shutdown();
    live.wait().expect("it drains");
    assert!(TcpStream::connect(address).is_err());
    // A handle outlives its server and does no harm.
    handle.shutdown();
    handle.stop();
    let stats = handle.stats();
    assert_eq!((stats.missing, stats.shards.len()), (vec![0, 1], 0));
}

#[test]
fn shutdown_waits_for_a_request_in_flight() {
    let live = Live::start(1, |shard| {
        Router::new().get("/slow", move |_| {
            let shard = shard.clone();
            async move {
                shard.sleep(Duration::from_millis(300)).await;
                "slow"
            }
        })
    });
    let mut connection = Raw::connect(live.http);
    connection.send(request("/slow"));
    wait_until("the request arrived", || live.stats().total.requests == 1);
    live.handle.shutdown();
    let answer = connection.response("GET");
    assert!(answer.has_token("connection", "close"));
    assert_eq!(body(answer), "slow");
    live.wait().expect("it drains");
}

#[test]
fn stop_does_not_wait_for_a_request_in_flight() {
    let live = Live::start(2, |_| Router::new().get("/never", |_| std::future::pending::<&str>()));
    let mut connection = Raw::connect(live.http);
    connection.send(request("/never"));
    wait_until("the request arrived", || live.stats().total.requests == 1);
    live.handle.stop();
    live.wait().expect("it ends");
    assert_eq!(connection.until_close(), b"");
}

#[test]
fn shard_stuck_in_a_handler_does_not_keep_the_server_from_ending() {
    use std::sync::mpsc;
    let (release, held) = mpsc::channel::<()>();
    let held = std::sync::Mutex::new(Some(held));
    let live = Live::start(1, move |_| {
        let held = held.lock().expect("one shard").take().expect("one shard");
        Router::new().get("/stuck", move |_| {
            let _ = held.recv(); // blocks the shard, as no handler should
            "at last"
        })
    });
    let mut connection = Raw::connect(live.http);
    connection.send(request("/stuck"));
    wait_until("the shard is stuck", || live.stats().missing == [0]);
    live.handle.stop();
    let since = Instant::now();
    let outcome = live.wait();
    assert!(since.elapsed() < Duration::from_secs(8), "it waited {:?}", since.elapsed());
    assert!(outcome.is_err(), "a shard that did not end is an error");
    drop(release);
}

#[test]
fn shutdown_with_an_idle_raw_connection_ends_within_the_drain_timeout() {
    use futures_lite::AsyncReadExt;
    let server = server(1).configure(|config| config.drain_timeout = Duration::from_millis(200));
    let server = server.tcp("127.0.0.1:0", |_| {
        |mut connection: everycore::TcpConnection| async move { connection.read(&mut [0; 8]).await.map(drop) }
    });
    let live = Live::with(server, says("here"));
    let mut idle = Raw::connect(live.address(1));
    wait_until("it is served", || live.stats().total.connections.active == 1);
    live.handle.shutdown();
    assert!(matches!(live.wait(), Err(Error::DrainCut { connections: 1, by_signal: false })));
    assert_eq!(idle.until_close(), b"");
}

#[test]
fn two_servers_in_one_process_know_nothing_of_each_other() {
    let (one, two) = (Live::start(2, says("one")), Live::start(1, says("two")));
    for _ in 0..10 {
        assert_eq!(body(one.get("/")), "one");
    }
    assert_eq!(body(two.get("/")), "two");
    assert_eq!((one.stats().total.requests, two.stats().total.requests), (10, 1));
    drop(one);
    assert_eq!(body(two.get("/")), "two");
}

#[test]
fn signals_are_left_alone_unless_wanted() {
    let live = Live::start(1, says("here"));
    let status = fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a line of its own");
    let caught = u64::from_str_radix(caught.trim(), 16).expect("hexadecimal");
    for signal in [2, 15] {
        assert_eq!(caught & 1 << (signal - 1), 0, "signal {signal} is caught");
    }
    drop(live);
}

// ---- errors: nothing half-started ------------------------------------------------------------------

/// Starting fails with a message that has all of `parts`, and leaves `address` free.
#[track_caller]
fn refused(server: Server, app: impl Fn(everycore::Shard) -> Router + Send + Sync + 'static, parts: &[&str]) -> Error {
    let error = match server.start(app) {
        Err(error) => error,
        Ok(running) => {
            running.handle().stop();
            panic!("it started at {:?}", running.addresses());
        }
    };
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "expected {part:?} in {text:?}");
    }
    error
}

#[track_caller]
fn is_free(address: SocketAddr) {
    TcpListener::bind(address).unwrap_or_else(|error| panic!("{address} is not free: {error}"));
}

#[test]
fn address_in_use_leaves_the_others_free() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    let taken_address = taken.local_addr().expect("it is bound");
    let free = free_port();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s");
    let server = Server::bind(free).listen(format!("unix:{}", path.display())).listen(taken_address).shards(1);
    let error = refused(server, says("never"), &["in use", "--share-port", &taken_address.to_string()]);
    assert!(matches!(error, Error::Bind(_)));
    is_free(free);
    assert!(!path.exists());
}

#[test]
fn address_of_a_running_server_is_refused_and_it_goes_on() {
    let live = Live::start(2, says("first"));
    refused(Server::bind(live.http).shards(1), says("second"), &["in use"]);
    assert_eq!(body(live.get("/")), "first");
}

#[test]
fn share_port_lets_a_second_server_join() {
    let share = |address: String| {
        Server::bind(address).shards(1).configure(|config| {
            config.share_port = true;
            config.pin = PinMode::Off;
        })
    };
    let first = Live::with(share("127.0.0.1:0".into()), says("first"));
    let second = Live::with(share(first.http.to_string()), says("second"));
    let mut seen = [0; 2];
    wait_until("both get connections", || {
        seen[usize::from(body(get(first.http, "/")) == "second")] += 1;
        seen.iter().all(|&count| count > 0)
    });
    drop(second);
    // From now on all are the first one's.
    for _ in 0..20 {
        assert_eq!(body(get(first.http, "/")), "first");
    }
    // One that does not share is refused all the same.
    refused(Server::bind(first.http).shards(1), says("third"), &["in use"]);
}

#[test]
fn setting_that_makes_no_sense_is_refused() {
    let at = free_port();
    let one = || Server::bind(at).shards(1);
    refused(Server::bind("localhost:80"), says(""), &["expected", "localhost:80"]);
    refused(one().listen("nowhere"), says(""), &["expected", "nowhere"]);
    refused(Server::bind(at).shards(0), says(""), &["expected", "0"]);
    refused(one().configure(|config| config.idle_timeout = Duration::ZERO), says(""), &["idle-timeout", "expected"]);
    refused(Server::new(ServerConfig { listen: Vec::new(), ..ServerConfig::default() }), says(""), &["expected"]);
    is_free(at);
}

#[test]
fn application_that_cannot_be_built_is_refused() {
    let at = free_port();
    let two = || Server::bind(at).shards(2).configure(|config| config.pin = PinMode::Off);
    let twice = |_| Router::new().get("/a", |_| "one").get("/a", |_| "two");
    assert!(matches!(refused(two(), twice, &["/a"]), Error::Router(_)));
    is_free(at);
    let panics = |shard: everycore::Shard| match shard.id() {
        0 => Router::new(),
        _ => panic!("this shard has no application (a message of the test)"),
    };
    assert!(matches!(refused(two(), panics, &["panicked"]), Error::ShardPanicked));
    is_free(at);
    // The process is as good as before.
    assert_eq!(body(Live::with(two(), says("after")).get("/")), "after");
}

#[test]
fn server_can_be_started_again_and_again_at_its_port() {
    let at = free_port();
    for _ in 0..5 {
        let live = Live::with(Server::bind(at).shards(2).configure(|config| config.pin = PinMode::Off), says("again"));
        assert_eq!(body(live.get("/")), "again");
    }
}
