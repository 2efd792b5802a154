//! The ring against real sockets: std clients on other threads, exact bytes and counts.

use super::{Ring, RingOptions, Socket};
use crate::{
    limits::INBOX_HIGH_BYTES,
    transport::{Outgoing, Transport, give_buffer},
};
use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
use socket2::SockRef;
use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    rc::Rc,
    sync::{LazyLock, mpsc},
    task::Poll,
    thread,
    time::{Duration, Instant},
};

/// Runs one shard with `main` on its own thread and returns what it gives back.
fn shard_with<T: Send + 'static, F: Future<Output = T> + 'static>(
    options: RingOptions,
    main: impl FnOnce(Ring) -> F + Send + 'static,
) -> T {
    thread::spawn(move || {
        let executor = glommio::LocalExecutorBuilder::default().io_memory(64 << 10).make().unwrap();
        executor.run(async move {
            let ring = Ring::new(&options).unwrap();
            let result = Rc::new(RefCell::new(None));
            let slot = result.clone();
            let main = main(ring.clone());
            ring.drive(async move {
                let value = main.await;
                *slot.borrow_mut() = Some(value);
            })
            .await
            .unwrap();
            Rc::into_inner(result).unwrap().into_inner().expect("main completed")
        })
    })
    .join()
    .unwrap()
}

pub(super) fn shard<T: Send + 'static, F: Future<Output = T> + 'static>(
    main: impl FnOnce(Ring) -> F + Send + 'static,
) -> T {
    shard_with(RingOptions { has_multishot_timeout: *HAS_MULTISHOT_TIMEOUT, ..RingOptions::default() }, main)
}

/// Linux 6.1 has none; a ring that counts on it there waits without end.
static HAS_MULTISHOT_TIMEOUT: LazyLock<bool> = LazyLock::new(|| {
    let probed = thread::spawn(crate::ring::probe::probe).join().expect("the probe does not panic");
    probed.is_ok_and(|features| features.multishot_timeout)
});

/// A connected pair: the client's end, and the server's end as accepted by the kernel.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (client, server)
}

async fn read(socket: &mut Socket) -> io::Result<Vec<u8>> {
    let mut into = Vec::new();
    poll_fn(|cx| socket.poll_read(cx, &mut into)).await?;
    Ok(into)
}

async fn send(socket: &mut Socket, bytes: &[u8]) -> io::Result<()> {
    let mut out = Outgoing::default();
    out.buf.extend_from_slice(bytes);
    poll_fn(|cx| socket.poll_sent(cx)).await?;
    socket.send(&mut out);
    poll_fn(|cx| socket.poll_sent(cx)).await
}

/// Echoes until the peer's end, then ends its own stream.
async fn echo(mut socket: Socket) {
    loop {
        match read(&mut socket).await {
            Ok(bytes) if bytes.is_empty() => break,
            Ok(bytes) => {
                if send(&mut socket, &bytes).await.is_err() {
                    return;
                }
                give_buffer(bytes);
            }
            Err(_) => return,
        }
    }
    socket.shutdown();
}

/// An echo server that ends when `stop` is dropped or sent to; `client` runs on this thread.
fn with_echo_server<T>(options: RingOptions, client: impl FnOnce(SocketAddr) -> T) -> (T, super::RingStats) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (control_client, control_server) = pair();
    let server = thread::spawn(move || {
        shard_with(options, move |ring| async move {
            let listener = Rc::new(ring.listen(OwnedFd::from(listener)));
            let spawner = ring.clone();
            ring.spawn(async move {
                while let Ok(fd) = listener.accept().await {
                    spawner.spawn(echo(spawner.adopt(fd)));
                }
            });
            let mut control = ring.adopt(control_server.into());
            read(&mut control).await.unwrap(); // the end, or a byte: stop
            ring.stats()
        })
    });
    let result = client(address);
    drop(control_client);
    (result, server.join().unwrap())
}

fn exchange(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, bytes);
}

#[test]
fn echo_returns_every_byte_on_many_connections() {
    let ((), stats) = with_echo_server(RingOptions::default(), |address| {
        let mut streams: Vec<_> = (0..50).map(|_| TcpStream::connect(address).unwrap()).collect();
        for round in 0..20u8 {
            for (index, stream) in streams.iter_mut().enumerate() {
                exchange(stream, &vec![round; index * 10 + 1]);
            }
        }
        for mut stream in streams {
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "the end comes back after the bytes");
        }
    });
    let bytes: u64 = (0..50).map(|index| (index * 10 + 1) * 20).sum();
    assert_eq!((stats.bytes_in, stats.bytes_out), (bytes, bytes));
    assert_eq!(stats.sockets, 1, "only the control connection is left");
}

#[test]
fn one_connection_costs_one_enter_a_request() {
    const REQUESTS: u64 = 2_000;
    let ((), stats) = with_echo_server(RingOptions::default(), |address| {
        let mut stream = TcpStream::connect(address).unwrap();
        for _ in 0..REQUESTS {
            exchange(&mut stream, b"ping");
        }
    });
    // Beside the requests: ticks, parks and what they take, of which a loaded machine has more.
    let beside = 2 * stats.ticks + 8 * stats.parks + 20;
    assert!(stats.enters <= REQUESTS + REQUESTS / 10 + beside, "{stats:?}");
}

#[test]
fn tiny_submission_queue_serves_more_operations_than_it_holds() {
    let options = RingOptions { sq_entries: 2, ..RingOptions::default() };
    with_echo_server(options, |address| {
        let mut streams: Vec<_> = (0..64).map(|_| TcpStream::connect(address).unwrap()).collect();
        for stream in &mut streams {
            stream.write_all(b"at once").unwrap();
        }
        for stream in &mut streams {
            let mut back = [0; 7];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(&back, b"at once");
        }
    });
}

#[test]
fn overflown_completion_queue_loses_nothing_and_is_counted() {
    let options = RingOptions { sq_entries: 4, cq_entries: 4, ..RingOptions::default() };
    let pairs: Vec<_> = (0..64).map(|_| pair()).collect();
    let stats = shard_with(options, |ring| async move {
        let (mut clients, mut ends) = (Vec::new(), Vec::new());
        for (client, server) in pairs {
            let mut socket = ring.adopt(server.into());
            assert!(future::poll_once(read(&mut socket)).await.is_none());
            ends.push(socket);
            clients.push(client);
        }
        ring.sleep(Duration::from_millis(1)).await; // all receives are in the kernel
        for round in 0..3u8 {
            for client in &mut clients {
                client.write_all(&[round; 10]).unwrap();
            }
            for socket in &mut ends {
                assert_eq!(read(socket).await.unwrap(), [round; 10]);
            }
        }
        ring.stats()
    });
    assert_eq!(stats.bytes_in, 64 * 3 * 10);
    assert!(stats.cq_overflows > 0, "{stats:?}");
}

#[test]
fn kernel_without_repeating_timeouts_is_served_too() {
    let options = RingOptions { has_multishot_timeout: false, ..RingOptions::default() };
    with_echo_server(options, |address| {
        let mut stream = TcpStream::connect(address).unwrap();
        for _ in 0..100 {
            exchange(&mut stream, b"once more");
        }
    });
}

#[test]
fn large_transfer_survives_the_high_water_mark() {
    // Whether the server falls behind its client is up to the scheduler: until it has.
    assert!((0..100).any(|_| large_transfer().throttles > 0), "the test met no high-water mark");
}

fn large_transfer() -> super::RingStats {
    let bytes: Vec<u8> = (0..4 << 20).map(|index: u32| (index % 251) as u8).collect();
    let ((), stats) = with_echo_server(RingOptions::default(), |address| {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let sent = bytes.clone();
        let sender = thread::spawn(move || {
            writer.write_all(&sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        sender.join().unwrap();
        assert!(back == bytes);
    });
    assert_eq!(stats.bytes_out, bytes.len() as u64);
    stats
}

#[test]
fn unread_socket_stops_receiving_at_its_mark() {
    let (mut client, server) = pair();
    let (told, tell) = mpsc::channel::<()>();
    let writer = thread::spawn(move || {
        let bytes = vec![7; 32 << 20];
        let _ = client.write_all(&bytes); // blocks when the kernel's buffers are full
        tell.recv_timeout(Duration::from_secs(60)).ok();
    });
    let stats = shard(move |ring| async move {
        let mut socket = ring.adopt(server.into());
        let first = read(&mut socket).await.unwrap();
        assert!(!first.is_empty());
        // Nobody reads: the mark is passed once, and what is held stays bounded by it and one batch of completions.
        while ring.stats().throttles == 0 {
            ring.sleep(Duration::from_millis(2)).await;
        }
        let mut held = 0;
        for _ in 0..50 {
            ring.sleep(Duration::from_millis(2)).await;
            held = ring.core().sock(0).inbox_len();
        }
        assert!(held < INBOX_HIGH_BYTES + crate::limits::RECV_BUFFERS * crate::limits::RECV_BUFFER_BYTES, "{held}");
        ring.stats()
    });
    drop(told);
    writer.join().unwrap();
    assert_eq!(stats.throttles, 1, "{stats:?}");
}

#[test]
fn shared_bodies_are_sent_in_order_over_short_sends() {
    let (mut client, server) = pair();
    SockRef::from(&server).set_send_buffer_size(4 << 10).unwrap();
    let mut expected = Vec::new();
    let mut out = Outgoing::default();
    for index in 0..200u32 {
        let head = format!("head {index};");
        let body: Vec<u8> = (0..5_000).map(|at| (at * index) as u8).collect();
        out.buf.extend_from_slice(head.as_bytes());
        expected.extend_from_slice(head.as_bytes());
        expected.extend_from_slice(&body);
        out.push_shared(body.into());
    }
    out.buf.extend_from_slice(b"end");
    expected.extend_from_slice(b"end");
    let reader = thread::spawn(move || {
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        all
    });
    let total = expected.len() as u64;
    let (sent, short_sends) = shard(move |ring| async move {
        let mut socket = ring.adopt(server.into());
        let mut out = out;
        socket.send(&mut out);
        assert!(out.is_empty());
        poll_fn(|cx| socket.poll_sent(cx)).await.unwrap();
        (socket.sent_bytes(), ring.stats().short_sends)
    });
    assert_eq!(sent, total);
    assert!(short_sends > 0, "the test met no short send");
    assert!(reader.join().unwrap() == expected);
}

#[test]
fn sockets_dropped_with_operations_in_flight_free_descriptor_and_slot() {
    let ends = shard(|ring| async move {
        let mut clients = Vec::new();
        for round in 0..200 {
            let (client, server) = pair();
            let mut socket = ring.adopt(server.into());
            // A receive is in flight, and a send that the peer never reads.
            let receiving = future::poll_once(read(&mut socket)).await;
            assert!(receiving.is_none());
            let mut out = Outgoing::default();
            out.buf.resize(8 << 20, b'x');
            socket.send(&mut out);
            future::yield_now().await;
            drop(socket);
            clients.push(client);
            if round % 10 == 9 {
                ring.sleep(Duration::from_millis(1)).await;
            }
        }
        while ring.stats().sockets > 0 {
            ring.sleep(Duration::from_millis(1)).await;
        }
        ring.sleep(Duration::from_millis(1)).await; // the last descriptors are closed with the next turn
        assert!(ring.core().slots() <= 20, "slots are used again: {}", ring.core().slots());
        clients.into_iter().map(|mut client| io::copy(&mut client, &mut io::sink()).is_ok()).count()
    });
    assert_eq!(ends, 200);
}

#[test]
fn late_completion_never_reaches_the_next_owner_of_a_slot() {
    shard(|ring| async move {
        let (mut old_client, old_server) = pair();
        let mut old = ring.adopt(old_server.into());
        assert!(future::poll_once(read(&mut old)).await.is_none());
        ring.sleep(Duration::from_millis(1)).await; // the receive is in the kernel
        old_client.write_all(b"for the old one").unwrap();
        drop(old);
        let (mut new_client, new_server) = pair();
        let mut new = ring.adopt(new_server.into());
        new_client.write_all(b"for the new one").unwrap();
        assert_eq!(read(&mut new).await.unwrap(), b"for the new one");
    });
}

#[test]
fn peer_reset_is_an_error_to_reader_and_writer() {
    let (client, server) = pair();
    let kind = shard(move |ring| async move {
        let mut socket = ring.adopt(server.into());
        assert!(future::poll_once(read(&mut socket)).await.is_none());
        SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        let error = read(&mut socket).await.unwrap_err();
        assert!(send(&mut socket, b"too late").await.is_err());
        error.kind()
    });
    assert_eq!(kind, io::ErrorKind::ConnectionReset);
}

#[test]
fn half_closed_peer_still_receives() {
    let (mut client, server) = pair();
    client.shutdown(Shutdown::Write).unwrap();
    shard(move |ring| async move {
        let mut socket = ring.adopt(server.into());
        assert_eq!(read(&mut socket).await.unwrap(), b"");
        assert_eq!(read(&mut socket).await.unwrap(), b"", "the end stays the end");
        send(&mut socket, b"answer").await.unwrap();
    });
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"answer");
}

#[test]
fn receives_without_a_buffer_are_armed_again() {
    // In lock-step, so that one wait takes in more receives than there are buffers: as many as sends are expected.
    const CONNECTIONS: usize = 3 * crate::limits::RECV_BUFFERS;
    let ((), stats) = with_echo_server(RingOptions::default(), |address| {
        let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
        for round in 0..40u8 {
            for stream in &mut streams {
                stream.write_all(&[round; 5]).unwrap();
            }
            for stream in &mut streams {
                let mut back = [0; 5];
                stream.read_exact(&mut back).unwrap();
                assert_eq!(back, [round; 5]);
            }
        }
    });
    assert_eq!(stats.bytes_in, CONNECTIONS as u64 * 40 * 5);
    assert!(stats.enobufs > 0, "the test met no want of buffers: {stats:?}");
}

#[test]
fn alarm_ends_never_early_and_is_taken_back_when_dropped() {
    for is_ring_only in [false, true] {
        let options = RingOptions { is_ring_only, ..RingOptions::default() };
        shard_with(options, |ring| async move {
            for us in [1_500, 0, 300] {
                let at = std::time::Instant::now() + Duration::from_micros(us);
                ring.alarm(at).await;
                assert!(std::time::Instant::now() >= at, "{us} us");
            }
            let far = ring.alarm(std::time::Instant::now() + Duration::from_secs(600));
            assert!(future::poll_once(far).await.is_none());
            // The one that follows may end with the one taken back, not later than asked for.
            ring.alarm(std::time::Instant::now() + Duration::from_micros(200)).await;
        });
    }
}

#[test]
fn sleeps_end_in_order_and_never_early() {
    shard(|ring| async move {
        let order = Rc::new(RefCell::new(Vec::new()));
        for ms in [30u64, 10, 20] {
            let (order, ring2) = (order.clone(), ring.clone());
            ring.spawn(async move {
                let start = std::time::Instant::now();
                ring2.sleep(Duration::from_millis(ms)).await;
                assert!(start.elapsed() >= Duration::from_millis(ms));
                order.borrow_mut().push(ms);
            });
        }
        ring.sleep(Duration::from_millis(60)).await;
        assert_eq!(*order.borrow(), [10, 20, 30]);
    });
}

#[test]
fn deadline_wakes_a_waiting_reader_and_can_be_moved() {
    let (_client, server) = pair();
    shard(move |ring| async move {
        let mut socket = ring.adopt(server.into());
        let mut into = Vec::new();
        for _ in 0..3 {
            socket.set_deadline(socket.now_ms() + 5);
            socket.set_deadline(socket.now_ms() + 10);
            poll_fn(|cx| {
                assert!(socket.poll_read(cx, &mut into).is_pending());
                socket.poll_deadline(cx)
            })
            .await;
        }
        socket.set_deadline(u64::MAX);
        assert!(future::poll_once(poll_fn(|cx| socket.poll_deadline(cx))).await.is_none());
    });
}

#[test]
fn idle_shard_parks_and_wakes_for_bytes_and_for_other_threads() {
    let (mut client, server) = pair();
    let (ask, asked) = mpsc::channel::<mpsc::Sender<()>>();
    let prodder = thread::spawn(move || {
        // Each byte waits until the shard has parked: it says so by a message.
        for reply in asked {
            client.write_all(b"x").unwrap();
            drop(reply);
        }
    });
    let parks = shard(move |ring| async move {
        let mut socket = ring.adopt(server.into());
        for _ in 0..3 {
            let parks = ring.stats().parks;
            while ring.stats().parks == parks {
                ring.sleep(Duration::from_millis(3)).await;
            }
            let (reply, _) = mpsc::channel();
            ask.send(reply).unwrap();
            assert_eq!(read(&mut socket).await.unwrap(), b"x");
        }
        // A wake from another thread, while parked.
        let flag = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = flag.clone();
        let mut is_started = false;
        poll_fn(move |cx| {
            if flag.load(std::sync::atomic::Ordering::Acquire) {
                return std::task::Poll::Ready(());
            }
            if !std::mem::replace(&mut is_started, true) {
                let (waker, seen) = (cx.waker().clone(), seen.clone());
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(20)); // long enough to be parked, not needed to pass
                    seen.store(true, std::sync::atomic::Ordering::Release);
                    waker.wake();
                });
            }
            std::task::Poll::Pending
        })
        .await;
        ring.stats().parks
    });
    assert!(parks >= 3);
    prodder.join().unwrap();
}

#[test]
fn glommio_work_is_awaited_from_ring_tasks() {
    shard(|ring| async move {
        let answer = glommio::executor().spawn_blocking(|| 42).await;
        assert_eq!(answer, 42);
        glommio::timer::sleep(Duration::from_millis(2)).await;
        let done = Rc::new(Cell::new(0));
        for _ in 0..10 {
            let done = done.clone();
            ring.spawn(async move {
                let mut wait = super::HandlerWait::default();
                let mut handler = Box::pin(glommio::executor().spawn_blocking(|| ()));
                poll_fn(|cx| wait.poll(handler.as_mut(), cx)).await;
                done.set(done.get() + 1);
            });
        }
        while done.get() < 10 {
            ring.sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn sends_that_block_hold_nobody_up() {
    const SOCKETS: u64 = 400;
    let (full, _peers): (Vec<UnixStream>, Vec<UnixStream>) = (0..SOCKETS)
        .map(|_| {
            let (mut full, peer) = UnixStream::pair().unwrap();
            full.set_nonblocking(true).unwrap();
            while full.write(&[0; 4096]).is_ok() {}
            full.set_nonblocking(false).unwrap();
            (full, peer)
        })
        .unzip();
    let ticks = shard(move |ring| async move {
        ring.sleep(Duration::from_millis(20)).await;
        let mut sockets: Vec<_> = full.into_iter().map(|full| ring.adopt(full.into())).collect();
        for socket in &mut sockets {
            let mut out = Outgoing::default();
            out.buf.push(0);
            socket.send(&mut out); // all in one turn, each for the first time
        }
        let before = ring.stats().ticks;
        ring.sleep(Duration::from_millis(2)).await;
        ring.stats().ticks - before
    });
    assert!(ticks < SOCKETS / 4, "the ring was waited for {ticks} ticks long");
}

#[test]
fn sleep_in_a_task_of_glommio_is_not_overslept_by_a_parked_driver() {
    let slept = shard(|ring| async move {
        let sleeper = ring.clone();
        let task = glommio::spawn_local(async move {
            glommio::timer::sleep(Duration::from_millis(50)).await; // the driver parks meanwhile
            let since = Instant::now();
            sleeper.sleep(Duration::from_millis(5)).await;
            since.elapsed()
        });
        future::or(task, async {
            ring.sleep(Duration::from_secs(3)).await; // what the driver parked for
            Duration::from_secs(3)
        })
        .await
    });
    assert!(slept < Duration::from_secs(2), "{slept:?}");
}

#[test]
fn clock_is_right_for_a_task_that_glommio_wakes() {
    let passed = shard(|ring| async move {
        let before = ring.now_ms();
        glommio::timer::sleep(Duration::from_millis(300)).await; // the driver parks meanwhile
        ring.now_ms() - before
    });
    assert!(passed >= 290, "by the ring's clock {passed} ms of 300 have passed");
}

#[test]
fn bytes_that_came_before_a_late_deadline_are_read_first() {
    let (mut client, server) = pair();
    let has_read = shard(move |ring| async move {
        let mut socket = ring.adopt(server.into());
        glommio::spawn_local(async move {
            glommio::timer::sleep(Duration::from_millis(20)).await; // the driver parks meanwhile
            client.write_all(b"in time").unwrap();
            thread::sleep(Duration::from_millis(200)); // the machine stops
            client
        })
        .detach();
        socket.set_deadline(socket.now_ms() + 100);
        let mut into = Vec::new();
        poll_fn(|cx| match socket.poll_read(cx, &mut into) {
            Poll::Ready(read) => Poll::Ready(read.is_ok()),
            Poll::Pending => socket.poll_deadline(cx).map(|()| false),
        })
        .await
    });
    assert!(has_read);
}

#[test]
fn futures_io_reads_and_writes_across_the_ring() {
    let (mut client, server) = pair();
    let peer = thread::spawn(move || {
        client.write_all(b"0123456789").unwrap();
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        all
    });
    shard(move |ring| async move {
        let mut socket = ring.adopt(server.into());
        let mut part = [0; 4];
        socket.read_exact(&mut part).await.unwrap();
        assert_eq!(&part, b"0123");
        let mut rest = [0; 6];
        socket.read_exact(&mut rest).await.unwrap();
        assert_eq!(&rest, b"456789");
        socket.write_all(b"ab").await.unwrap();
        socket.write_all(b"cd").await.unwrap();
        socket.flush().await.unwrap();
        socket.close().await.unwrap();
        socket.flush().await.unwrap();
        ring.sleep(Duration::from_millis(1)).await;
    });
    assert_eq!(peer.join().unwrap(), b"abcd");
}

#[test]
fn connect_reaches_a_server_and_reports_a_refusal() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let free = {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap();
        gone.local_addr().unwrap()
    };
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"hello").unwrap();
    });
    let refused = shard(move |ring| async move {
        let new = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let mut socket = ring.connect(new().into(), address.into()).await.unwrap();
        assert_eq!(read(&mut socket).await.unwrap(), b"hello");
        ring.connect(new().into(), free.into()).await.unwrap_err().kind()
    });
    assert_eq!(refused, io::ErrorKind::ConnectionRefused);
    server.join().unwrap();
}

#[test]
fn listener_closed_hands_over_what_had_arrived() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let arrived = shard(move |ring| async move {
        let listener = ring.listen(listener.into());
        assert!(future::poll_once(listener.accept()).await.is_none());
        let clients: Vec<_> = (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
        let arrived = listener.close().await;
        assert_eq!(clients.len(), 5);
        arrived.len()
    });
    assert_eq!(arrived, 5);
}
