//! What handlers may do and what becomes of them: panics, clients that go away, waiting, streaming.

mod common;

use bytes::Bytes;
use common::{
    live::{Live, PATIENCE, request, rss_kib, server, wait_until},
    raw::Raw,
};
use everycore::{Inbox, Request, Response, Router, Shard, config::Balance, http::Body};
use futures_lite::{AsyncReadExt, AsyncWriteExt, StreamExt, stream};
use socket2::SockRef;
use std::{
    cell::Cell,
    future::pending,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    process,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// The client vanishes: RST instead of FIN.
fn reset(connection: Raw) {
    SockRef::from(connection.stream()).set_linger(Some(Duration::ZERO)).expect("it can be set");
}

/// Counts how often it was dropped.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

// ---- time ------------------------------------------------------------------------------------------

#[test]
fn timeout_middleware_answers_for_a_handler_that_waits_too_long() {
    let drops = Arc::new(AtomicUsize::new(0));
    let counted = drops.clone();
    let live = Live::start(1, move |shard| {
        let counted = counted.clone();
        let slow = Router::new().get("/now", |_| "now").get("/never", move |_| {
            let dropped = Dropped(counted.clone());
            async move {
                let _dropped = dropped;
                pending::<&str>().await
            }
        });
        slow.wrap(everycore::middleware::timeout(&shard, Duration::from_millis(20)))
    });
    let mut connection = Raw::connect(live.http);
    assert_eq!(connection.exchange(request("/now")).body, b"now");
    let answer = connection.exchange(request("/never"));
    assert_eq!((answer.status, answer.body.as_slice()), (503, &b"no answer in time\n"[..]));
    assert_eq!(drops.load(Ordering::SeqCst), 1, "the handler was dropped");
    assert_eq!(connection.exchange(request("/now")).body, b"now", "the connection is kept");
}

// ---- panics ----------------------------------------------------------------------------------------

#[test]
fn panic_is_answered_counted_and_costs_its_connection_alone() {
    let live = Live::start(1, |shard| {
        Router::new()
            .get("/now", |_| -> &str { panic!("at once (a message of the test)") })
            .get("/later", move |_| {
                let shard = shard.clone();
                async move {
                    shard.sleep(Duration::from_millis(1)).await;
                    if shard.id() == 0 {
                        panic!("later (a message of the test)");
                    }
                    "never"
                }
            })
            .post("/body", |mut req: Request| async move {
                let _ = req.take_body().chunk().await;
                if req.path() == "/body" {
                    panic!("with a body (a message of the test)");
                }
                "never"
            })
            .get("/ok", |_| "ok")
    });
    let mut bystander = Raw::connect(live.http);
    let requests =
        [request("/now"), request("/later"), "POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\nx".into()];
    for (count, request) in requests.iter().enumerate() {
        assert_eq!(bystander.exchange(common::live::request("/ok")).body, b"ok");
        let mut connection = Raw::connect(live.http);
        let answer = connection.exchange(request);
        assert_eq!(answer.status, 500, "{request:?}");
        assert!(answer.has_token("connection", "close"), "{request:?}");
        assert_eq!(connection.until_close(), b"");
        assert_eq!(live.stats().total.handler_panics, count as u64 + 1);
    }
    assert_eq!(bystander.exchange(request("/ok")).body, b"ok");
}

#[test]
fn panic_in_a_stream_breaks_the_answer_off() {
    let live = Live::start(1, |_| {
        Router::new().get("/", |_| {
            let parts = stream::iter(0..3).map(|part| match part {
                2 => panic!("in a stream (a message of the test)"),
                _ => Ok(Bytes::from_static(b"part")),
            });
            Response::stream(Body::stream(parts))
        })
    });
    let mut connection = Raw::connect(live.http);
    connection.send(request("/"));
    let answer = String::from_utf8(connection.until_close()).expect("UTF-8");
    assert!(!answer.ends_with("0\r\n\r\n"), "the client can tell that it is not whole: {answer:?}");
    assert_eq!(live.stats().total.handler_panics, 1);
    assert_eq!(live.get("/livez").status, 200);
}

#[test]
fn panic_in_a_destructor_of_a_dropped_handler_is_contained() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in a destructor (a message of the test)");
        }
    }
    let live = Live::start(1, |_| {
        Router::new().get("/", |_| async {
            let _bomb = Bomb;
            pending::<&str>().await
        })
    });
    let mut connection = Raw::connect(live.http);
    connection.send(request("/"));
    wait_until("the handler runs", || live.stats().total.requests == 1);
    reset(connection);
    wait_until("it is gone", || live.stats().total.connections.active == 0);
    assert_eq!(live.get("/livez").status, 200);
    // At the end of the shard, too.
    let mut connection = Raw::connect(live.http);
    connection.send(request("/"));
    wait_until("the handler runs", || live.stats().total.requests == 3);
    live.handle.stop();
    live.wait().expect("the shard ends in good order");
}

#[test]
fn panic_in_a_spawned_task_ends_it_alone() {
    let live = Live::start(1, |shard| {
        shard.spawn(async { panic!("in a task (a message of the test)") });
        Router::new().get("/", |_| "ok")
    });
    assert_eq!(live.get("/").body, b"ok");
}

// ---- clients that go away --------------------------------------------------------------------------

#[test]
fn handler_is_dropped_when_its_client_resets() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let counted = dropped.clone();
    let live = Live::start(1, move |_| {
        let dropped = counted.clone();
        Router::new().get("/", move |_| {
            let held = Dropped(dropped.clone());
            async move {
                pending::<()>().await;
                drop(held);
                "never"
            }
        })
    });
    let mut connection = Raw::connect(live.http);
    connection.send(request("/"));
    wait_until("the handler runs", || live.stats().total.requests == 1);
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    reset(connection);
    wait_until("the handler is dropped", || dropped.load(Ordering::SeqCst) == 1);
    let total = live.stats().total;
    assert_eq!((total.handlers_dropped, total.connections.closed.reset), (1, 1));
}

#[test]
fn handler_goes_on_when_its_client_half_closes() {
    let live = Live::start(1, |shard| {
        Router::new().get("/", move |_| {
            let shard = shard.clone();
            async move {
                shard.sleep(Duration::from_millis(100)).await;
                "after the end of the requests"
            }
        })
    });
    let mut connection = Raw::connect(live.http);
    connection.send(request("/").repeat(3));
    connection.finish_sending();
    for _ in 0..3 {
        assert_eq!(connection.response("GET").body, b"after the end of the requests");
    }
    assert_eq!(connection.until_close(), b"");
    wait_until("it is gone", || live.stats().total.connections.active == 0);
    let total = live.stats().total;
    assert_eq!((total.handlers_dropped, total.connections.closed.peer_closed), (0, 1));
}

#[test]
fn body_that_breaks_off_is_told_to_its_handler() {
    let live = Live::start(1, |_| {
        Router::new().post("/", |mut req: Request| async move {
            req.take_body().bytes(1000).await.map(|bytes| format!("{} bytes", bytes.len()))
        })
    });
    let mut connection = Raw::connect(live.http);
    connection.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nfew");
    connection.finish_sending();
    assert_eq!(connection.response("POST").status, 400);
    assert_eq!(connection.until_close(), b"");
}

// ---- waiting ---------------------------------------------------------------------------------------

#[test]
fn handler_may_await_what_the_shard_and_glommio_offer() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    std::fs::write(&path, b"from a file").expect("it can be written");
    let live = Live::start(2, move |shard| {
        let (sleeper, spawner, path) = (shard.clone(), shard, path.clone());
        Router::new()
            .get("/sleep", move |_| {
                let shard = sleeper.clone();
                async move {
                    let since = Instant::now();
                    shard.sleep(Duration::from_millis(20)).await;
                    format!("{}", since.elapsed() >= Duration::from_millis(20))
                }
            })
            .get("/timer", |_| async {
                glommio::timer::sleep(Duration::from_millis(2)).await;
                "from a timer"
            })
            .get("/file", move |_| {
                let path = path.clone();
                async move {
                    let file = glommio::io::BufferedFile::open(&path).await.expect("it is there");
                    let read = file.read_at(0, 100).await.expect("it can be read");
                    file.close().await.expect("it can be closed");
                    read.to_vec()
                }
            })
            .get("/blocking", |_| async {
                let shard = thread::current().id();
                let elsewhere = glommio::executor().spawn_blocking(move || thread::current().id() != shard).await;
                if elsewhere { "from another thread" } else { "from the shard" }
            })
            .get("/spawn", move |_| {
                let shard = spawner.clone();
                async move {
                    let (done, waiting) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(None)));
                    let (set, wake) = (done.clone(), waiting.clone());
                    let sleep = shard.sleep(Duration::from_millis(1));
                    shard.spawn(async move {
                        sleep.await;
                        set.set(true);
                        if let Some(waker) = Cell::<Option<std::task::Waker>>::take(&wake) {
                            waker.wake();
                        }
                    });
                    std::future::poll_fn(|cx| {
                        waiting.set(Some(cx.waker().clone()));
                        if done.get() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
                    })
                    .await;
                    "from a task"
                }
            })
    });
    let check = |target: &str, body: &str| {
        let answer = live.get(target);
        assert_eq!((answer.status, String::from_utf8_lossy(&answer.body).as_ref()), (200, body), "{target}");
    };
    for _ in 0..20 {
        check("/sleep", "true");
        check("/timer", "from a timer");
        check("/file", "from a file");
        check("/blocking", "from another thread");
        check("/spawn", "from a task");
    }
}

#[test]
fn handlers_wait_beside_each_other() {
    let live = Live::start(1, |shard| {
        Router::new().get("/", move |_| {
            let shard = shard.clone();
            async move {
                shard.sleep(Duration::from_millis(500)).await;
                "ok"
            }
        })
    });
    let since = Instant::now();
    let mut connections: Vec<Raw> = (0..100).map(|_| Raw::connect(live.http)).collect();
    connections.iter_mut().for_each(|connection| connection.send(request("/")));
    for connection in &mut connections {
        assert_eq!(connection.response("GET").body, b"ok");
    }
    // One after another they would take 50 s.
    assert!(since.elapsed() < PATIENCE);
}

#[test]
fn shards_send_each_other_messages() {
    #[derive(Debug)]
    struct Ask {
        from: usize,
        number: u64,
    }
    #[derive(Debug)]
    struct Told(u64);
    let live = Live::with(server(3).configure(|config| config.balance = Balance::RoundRobin), |shard| {
        let answering = shard.clone();
        let mut questions: Inbox<Ask> = shard.inbox();
        shard.spawn(async move {
            loop {
                let Ask { from, number } = questions.receive().await;
                answering.send_to(from, Told(number + answering.id() as u64)).expect("it has room");
            }
        });
        let sum = Rc::new(Cell::new(0));
        let mut answers: Inbox<Told> = shard.inbox();
        let total = sum.clone();
        shard.spawn(async move {
            loop {
                let Told(number) = answers.receive().await;
                total.set(total.get() + number);
            }
        });
        let none = shard.clone();
        Router::new()
            .get("/", move |_| {
                let (shard, sum) = (shard.clone(), sum.clone());
                async move {
                    sum.set(0);
                    for to in 0..shard.count() {
                        shard.send_to(to, Ask { from: shard.id(), number: 10 }).expect("it has room");
                    }
                    while sum.get() < 33 {
                        shard.sleep(Duration::from_millis(1)).await;
                    }
                    sum.get().to_string()
                }
            })
            .get("/none", move |_| match none.send_to(3, Told(0)) {
                Err(error) => error.to_string(),
                Ok(()) => "sent".into(),
            })
    });
    for _ in 0..12 {
        assert_eq!(live.get("/").body, b"33");
    }
    assert_eq!(live.get("/none").body, b"there is no such shard: expected a number below `Shard::count`");
}

#[test]
fn full_mailbox_gives_the_message_back_and_the_shard_goes_on() {
    let live = Live::start(2, |shard| {
        Router::new().get("/", move |_| {
            // To itself: the shard cannot empty its mailbox before this returns.
            let mut sent = 0;
            loop {
                match shard.send_to(shard.id(), [sent; 4]) {
                    Ok(()) => sent += 1,
                    Err(everycore::SendError::Full(message)) => break format!("{}", message == [sent; 4]),
                    Err(error) => break error.to_string(),
                }
            }
        })
    });
    assert_eq!(live.get("/").body, b"true");
    wait_until("the mailbox is empty again", || live.stats().missing.is_empty());
}

// ---- streaming -------------------------------------------------------------------------------------

const MIB: usize = 1024 * 1024;

#[test]
fn fifty_mebibytes_stream_both_ways_in_little_memory() {
    // The command, so that its memory is not ours.
    let server = common::server::Server::start(&[]);
    drop(common::live::get(server.http, "/yo"));
    let before = rss_kib(server.pid());
    let total = 50 * MIB;
    let stream = TcpStream::connect(server.http).expect("it listens");
    let mut writing = stream.try_clone().expect("a copy");
    let writer = thread::spawn(move || {
        let head = format!("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: {total}\r\nConnection: close\r\n\r\n");
        writing.write_all(head.as_bytes()).expect("it reads");
        let mut block = vec![0; MIB];
        for index in 0..total / MIB {
            block.fill(index as u8);
            writing.write_all(&block).expect("it reads");
        }
    });
    let mut reading = std::io::BufReader::with_capacity(MIB, stream);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut octet = [0];
        reading.read_exact(&mut octet).expect("it answers");
        head.push(octet[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", head.escape_ascii());
    let mut most = 0;
    let mut block = vec![0; MIB];
    for index in 0..total / MIB {
        reading.read_exact(&mut block).expect("it goes on");
        assert!(block.iter().all(|&octet| octet == index as u8), "MiB {index} came back changed");
        most = most.max(rss_kib(server.pid()));
    }
    assert_eq!(reading.read(&mut block).expect("it closes"), 0);
    writer.join().expect("all was read");
    assert!(most < before + 8 * 1024, "{before} KiB before, {most} KiB at most");
}

#[test]
fn client_that_never_reads_holds_little_and_is_given_up() {
    let made = Arc::new(AtomicUsize::new(0));
    let counted = made.clone();
    let server = server(1).configure(|config| config.write_stall_timeout = Duration::from_millis(300));
    let live = Live::with(server, move |_| {
        let made = counted.clone();
        Router::new().get("/", move |_| {
            let made = made.clone();
            let parts = stream::repeat_with(move || {
                made.fetch_add(1, Ordering::SeqCst);
                Ok(Bytes::from(vec![b'x'; 16 * 1024]))
            });
            Response::stream(Body::stream(parts))
        })
    });
    let mut connection = Raw::connect(live.http);
    SockRef::from(connection.stream()).set_recv_buffer_size(4096).expect("it can be set");
    connection.send(request("/"));
    wait_until("it is given up", || live.stats().total.connections.closed.write_stall == 1);
    // What the kernel's buffers hold, and one piece of ours: not more.
    let bytes = made.load(Ordering::SeqCst) * 16 * 1024;
    assert!(bytes < 16 * MIB, "{bytes} bytes were made for nobody");
    assert_eq!(live.stats().total.connections.active, 0);
}

#[test]
fn client_that_never_reads_a_body_in_memory_is_given_up() {
    let server = server(1).configure(|config| config.write_stall_timeout = Duration::from_millis(300));
    let live = Live::with(server, |_| {
        let body = Bytes::from(vec![b'x'; 32 * MIB]);
        Router::new().get("/", move |_| body.clone())
    });
    let mut connection = Raw::connect(live.http);
    SockRef::from(connection.stream()).set_recv_buffer_size(4096).expect("it can be set");
    connection.send(request("/"));
    // Long before the idle timeout, which is 75 s.
    wait_until("it is given up", || live.stats().total.connections.closed.write_stall == 1);
}

#[test]
fn client_that_only_sends_requests_is_stopped_from_sending() {
    let server = server(1).configure(|config| config.write_stall_timeout = Duration::from_secs(1));
    let live = Live::with(server, |_| {
        let body = "x".repeat(10_000);
        Router::new().get("/", move |_| body.clone())
    });
    let stream = TcpStream::connect(live.http).expect("it listens");
    stream.set_write_timeout(Some(Duration::from_millis(200))).expect("it can be set");
    let before = rss_kib(process::id());
    let requests = request("/").repeat(1000);
    let mut sent = 0;
    while sent < 64 * MIB {
        match (&stream).write(requests.as_bytes()) {
            Ok(count) => sent += count,
            Err(_) => break, // no room: it stopped reading
        }
    }
    assert!(sent < 64 * MIB, "it read all that we sent and sent nothing");
    let grown = rss_kib(process::id()).saturating_sub(before);
    assert!(grown < 64 * 1024, "{grown} KiB for one client");
    wait_until("it is given up", || live.stats().total.connections.closed.write_stall == 1);
}

#[test]
fn upload_that_nobody_reads_is_held_back() {
    let live = Live::start(1, |_| {
        Router::new().post("/", |req: Request| async move {
            let _body = req.into_body();
            pending::<&str>().await
        })
    });
    let stream = TcpStream::connect(live.http).expect("it listens");
    stream.set_write_timeout(Some(Duration::from_millis(200))).expect("it can be set");
    let head = format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", 1u64 << 40);
    (&stream).write_all(head.as_bytes()).expect("it reads");
    let (block, mut sent) = (vec![0; MIB], 0);
    while sent < 64 * MIB {
        match (&stream).write(&block) {
            Ok(count) => sent += count,
            Err(_) => break,
        }
    }
    assert!(sent < 64 * MIB, "it took everything");
    assert!(live.stats().total.bytes.received < 2 * MIB as u64, "the rest waits in the kernel");
}

#[test]
fn answer_before_the_body_was_read_reaches_the_client() {
    let live = Live::start(1, |_| Router::new().post("/", |_| everycore::http::StatusCode::FORBIDDEN));
    for _ in 0..20 {
        let stream = TcpStream::connect(live.http).expect("it listens");
        let mut writing = stream.try_clone().expect("a copy");
        let writer = thread::spawn(move || {
            let head = format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", 8 * MIB);
            // The server may stop reading at any time.
            let _ = writing.write_all(head.as_bytes()).and_then(|()| writing.write_all(&vec![0; 8 * MIB]));
            let _ = writing.shutdown(Shutdown::Write);
        });
        let answer = Raw::over(stream).response("POST");
        assert_eq!(answer.status, 403);
        writer.join().expect("it ends");
    }
}

// ---- raw connections -------------------------------------------------------------------------------

#[test]
fn raw_connections_read_write_and_end() {
    let server = server(2).tcp("127.0.0.1:0", |_shard: Shard| {
        |mut connection: everycore::TcpConnection| async move {
            let peer = connection.peer_addr().map(|peer| peer.to_string()).unwrap_or_default();
            connection.write_all(format!("{peer}\n").as_bytes()).await?;
            let mut buffer = vec![0; 100_000];
            loop {
                match connection.read(&mut buffer).await? {
                    0 => break,
                    count => connection.write_all(&buffer[..count]).await?,
                }
            }
            connection.write_all(b"bye").await?;
            connection.close().await
        }
    });
    let live = Live::with(server, |_| Router::new().get("/", |_| "http"));
    let mut connection = Raw::connect(live.address(1));
    let own: SocketAddr = connection.stream().local_addr().expect("connected");
    let line = format!("{own}\n");
    assert_eq!(connection.octets(line.len()), line.as_bytes());
    for size in [1, 10_000, 300_000] {
        let block = vec![b'z'; size];
        connection.send(&block);
        assert_eq!(connection.octets(size), block);
    }
    connection.finish_sending();
    assert_eq!(connection.until_close(), b"bye");
    assert_eq!(live.get("/").body, b"http");
    wait_until("both are gone", || live.stats().total.connections.active == 0);
    assert_eq!(live.stats().total.connections.accepted, 2);
}

#[test]
fn raw_handler_that_panics_costs_its_connection_alone() {
    let panics = Arc::new(Mutex::new(true));
    let server = server(1).tcp("127.0.0.1:0", move |_| {
        let panics = panics.clone();
        move |mut connection: everycore::TcpConnection| {
            let panics = std::mem::take(&mut *panics.lock().expect("one shard"));
            async move {
                assert!(!panics, "in a raw handler (a message of the test)");
                connection.write_all(b"fine").await?;
                connection.flush().await
            }
        }
    });
    let live = Live::with(server, |_| Router::new());
    assert_eq!(Raw::connect(live.address(1)).until_close(), b"");
    assert_eq!(Raw::connect(live.address(1)).until_close(), b"fine");
    wait_until("both are gone", || live.stats().total.connections.active == 0);
}
