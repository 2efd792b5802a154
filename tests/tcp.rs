//! Raw TCP services: how their connections end, and what is counted.

mod common;

use common::{
    live::{Live, server, wait_until},
    raw::Raw,
    server::Server as Binary,
};
use everycore::{Router, Server, TcpConnection, stats::ProtocolSnapshot};
use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
use std::{
    future::Future,
    io::{self, ErrorKind},
    net::{Shutdown, TcpListener},
    sync::{
        Arc, Mutex,
        mpsc::{self, Receiver},
    },
    time::Duration,
};

/// Longer than any test waits: what takes so long has not been ended by what is tested.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// One shard with `handler` at the second address, and what the handlers ended with.
fn raw<H, F>(server: Server, handler: H) -> (Live, Receiver<Result<(), ErrorKind>>)
where
    H: Fn(TcpConnection) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = io::Result<()>> + 'static,
{
    let (ended_in, ended) = mpsc::channel();
    let ended_in = Mutex::new(ended_in);
    let server = server.tcp("127.0.0.1:0", move |_shard| {
        let (handler, ended) = (handler.clone(), ended_in.lock().expect("no panic meanwhile").clone());
        move |connection| {
            let (service, ended) = (handler(connection), ended.clone());
            async move {
                let result = service.await;
                let _ = ended.send(result.as_ref().map_err(io::Error::kind).copied());
                result
            }
        }
    });
    (Live::with(server, |_| Router::new()), ended)
}

async fn echo(mut connection: TcpConnection) -> io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        match connection.read(&mut buffer).await? {
            0 => return Ok(()),
            count => connection.write_all(&buffer[..count]).await?,
        }
    }
}

#[track_caller]
fn counts(live: &Live, expected: &str, is_so: impl Fn(&ProtocolSnapshot) -> bool) {
    wait_until(expected, || is_so(&live.stats().total.tcp));
}

#[test]
fn raw_connections_and_their_bytes_are_counted_by_cause() {
    let (live, _) = raw(server(1), |mut connection: TcpConnection| async move {
        let mut buffer = [0; 8];
        let count = connection.read(&mut buffer).await?;
        connection.write_all(&buffer[..count]).await?;
        if &buffer[..count] == b"end" {
            return Ok(());
        }
        echo(connection).await
    });
    let address = live.address(1);
    let mut ended_by_handler = Raw::connect(address);
    ended_by_handler.send("end");
    assert_eq!(ended_by_handler.until_close(), b"end");
    let mut ended_by_peer = Raw::connect(address);
    ended_by_peer.send("hello");
    assert_eq!(ended_by_peer.octets(5), b"hello");
    ended_by_peer.finish_sending();
    assert_eq!(ended_by_peer.until_close(), b"");
    let mut reset = Raw::connect(address);
    reset.send("x");
    assert_eq!(reset.octets(1), b"x");
    socket2::SockRef::from(reset.stream()).set_linger(Some(Duration::ZERO)).expect("an option");
    drop(reset);
    let _open = Raw::connect(address);
    counts(&live, "three have ended, one is open", |tcp| {
        (tcp.accepted, tcp.active) == (4, 1)
            && (tcp.closed.server_closed, tcp.closed.peer_closed, tcp.closed.reset) == (1, 1, 1)
    });
    let total = live.stats().total;
    assert_eq!((total.tcp.received, total.tcp.sent), (9, 9));
    assert_eq!(total.connections.closed, total.tcp.closed, "they are in the sums of all connections");
}

#[test]
fn panic_of_a_raw_handler_is_counted_and_costs_its_connection_alone() {
    let calls = Arc::new(Mutex::new(0));
    let (live, _) = raw(server(1), move |connection: TcpConnection| {
        let call = {
            let mut calls = calls.lock().expect("not poisoned");
            *calls += 1;
            *calls
        };
        assert!(call != 1, "in the closure (a message of the test)");
        async move {
            assert!(call != 2, "in the future (a message of the test)");
            echo(connection).await
        }
    });
    for _ in 0..2 {
        assert_eq!(Raw::connect(live.address(1)).until_close(), b"");
    }
    let mut third = Raw::connect(live.address(1));
    third.send("still here");
    assert_eq!(third.octets(10), b"still here");
    counts(&live, "two ended by a fault", |tcp| (tcp.closed.error, tcp.active) == (2, 1));
    assert_eq!(live.stats().total.handler_panics, 2);
}

#[test]
fn read_that_gets_nothing_ends_with_the_idle_timeout() {
    let patient = server(1).configure(|config| config.idle_timeout = Duration::from_millis(50));
    let (live, ended) = raw(patient, echo);
    assert_eq!(Raw::connect(live.address(1)).until_close(), b"");
    assert_eq!(ended.recv(), Ok(Err(ErrorKind::TimedOut)));
    counts(&live, "one was idle", |tcp| tcp.closed.idle_timeout == 1);
}

#[test]
fn idle_timeout_of_one_connection_can_be_set_and_lifted() {
    let (live, ended) = raw(server(1), |mut connection: TcpConnection| async move {
        connection.set_idle_timeout(Some(Duration::from_millis(20)));
        let mut buffer = [0; 1];
        // Each read waits anew.
        for _ in 0..2 {
            let error = connection.read(&mut buffer).await.expect_err("nothing is sent");
            assert_eq!(error.kind(), ErrorKind::TimedOut);
        }
        connection.set_idle_timeout(None);
        connection.write_all(b"now").await?;
        connection.read_exact(&mut buffer).await?;
        connection.write_all(&buffer).await
    });
    let mut connection = Raw::connect(live.address(1));
    assert_eq!(connection.octets(3), b"now");
    connection.send("!");
    assert_eq!(connection.until_close(), b"!");
    assert_eq!(ended.recv(), Ok(Ok(())));
    counts(&live, "ended by its handler", |tcp| tcp.closed.server_closed == 1);
}

#[test]
fn peer_that_takes_nothing_ends_the_write() {
    let hasty = server(1).configure(|config| config.write_stall_timeout = Duration::from_millis(100));
    let (live, ended) = raw(hasty, |mut connection: TcpConnection| async move {
        loop {
            connection.write_all(&[b'x'; 65_536]).await?;
        }
    });
    let _does_not_read = Raw::connect(live.address(1));
    assert_eq!(ended.recv(), Ok(Err(ErrorKind::TimedOut)));
    counts(&live, "one has stalled", |tcp| tcp.closed.write_stall == 1);
}

#[test]
fn what_a_handler_wrote_is_sent_after_its_end() {
    const SIZE: usize = 16 << 20;
    let (live, ended) = raw(server(1), |mut connection: TcpConnection| async move {
        connection.write_all(&vec![b'z'; SIZE]).await // more than the kernel takes at once
    });
    let mut connection = Raw::connect(live.address(1));
    assert_eq!(ended.recv(), Ok(Ok(())));
    assert_eq!(live.stats().total.tcp.active, 1, "it counts until all is sent");
    assert_eq!(connection.octets(SIZE), vec![b'z'; SIZE]);
    assert_eq!(connection.until_close(), b"");
    counts(&live, "ended by its handler", |tcp| (tcp.closed.server_closed, tcp.active) == (1, 0));
}

#[test]
fn what_a_handler_wrote_is_given_up_when_its_peer_stalls() {
    let hasty = server(1).configure(|config| config.write_stall_timeout = Duration::from_millis(100));
    let (live, ended) =
        raw(hasty, |mut connection: TcpConnection| async move { connection.write_all(&vec![b'z'; 16 << 20]).await });
    let _does_not_read = Raw::connect(live.address(1));
    assert_eq!(ended.recv(), Ok(Ok(())));
    counts(&live, "it has stalled", |tcp| (tcp.closed.write_stall, tcp.active) == (1, 0));
}

#[test]
fn finish_lets_a_peer_that_still_sends_read_it_all() {
    let (live, ended) = raw(server(1), |mut connection: TcpConnection| async move {
        let mut first = [0; 1];
        connection.read_exact(&mut first).await?;
        connection.write_all(&[b'y'; 100_000]).await?;
        connection.finish().await
    });
    let mut connection = Raw::connect(live.address(1));
    for _ in 0..100 {
        connection.send([b'x'; 10_000]); // far more than anybody asked for
    }
    assert_eq!(connection.octets(100_000), [b'y'; 100_000]);
    assert_eq!(connection.until_close(), b"");
    connection.stream().shutdown(Shutdown::Write).expect("it was no reset");
    assert_eq!(ended.recv(), Ok(Ok(())));
}

#[test]
fn raw_connection_over_the_limit_is_closed_in_good_order() {
    let (release, held) = mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let (live, _) =
        raw(server(1).configure(|config| config.connections_max = 1), move |mut connection: TcpConnection| {
            let held = held.clone();
            async move {
                connection.write_all(b"here").await?;
                connection.read_exact(&mut [0; 1]).await?;
                held.lock().expect("not poisoned").recv().expect("it is released"); // blocks the shard
                connection.write_all(b"there").await?;
                echo(connection).await
            }
        });
    let mut first = Raw::connect(live.address(1));
    assert_eq!(first.octets(4), b"here");
    first.send("x");
    // Its bytes are there before it is accepted: unread, they would make a plain close a reset.
    let mut second = Raw::connect(live.address(1));
    second.send([b'x'; 1000]);
    release.send(()).expect("the handler waits");
    assert_eq!(second.until_close(), b"");
    assert_eq!(first.octets(5), b"there");
    let total = live.stats().total;
    assert_eq!((total.tcp.closed.rejected, total.rejects.overload, total.responses.server_error), (1, 1, 0));
    assert_eq!((total.tcp.accepted, total.tcp.active), (1, 1));
    drop(first);
    counts(&live, "there is room again", |tcp| tcp.active == 0);
    assert_eq!(Raw::connect(live.address(1)).octets(4), b"here");
}

// ---- drain ---------------------------------------------------------------------------------------

/// One whose drain ends by itself or not at all.
fn patient_drain() -> Server {
    server(1).configure(|config| config.drain_timeout = FOR_EVER)
}

#[test]
fn drain_ends_a_read_that_gets_nothing_with_an_error() {
    let (live, ended) = raw(patient_drain(), echo);
    let mut connection = Raw::connect(live.address(1));
    connection.send("x");
    assert_eq!(connection.octets(1), b"x");
    live.handle.shutdown();
    // Not with an end of file: half of a message is not to pass for the whole.
    assert_eq!(ended.recv(), Ok(Err(ErrorKind::ConnectionAborted)));
    assert_eq!(connection.until_close(), b"");
    live.wait().expect("nothing holds it up");
}

#[test]
fn drain_lets_a_conversation_go_on() {
    let (live, ended) = raw(patient_drain(), echo);
    let mut connection = Raw::connect(live.address(1));
    connection.send("x");
    assert_eq!(connection.octets(1), b"x");
    live.handle.shutdown();
    wait_until("it stops accepting", || TcpListener::bind(live.address(1)).is_ok());
    for _ in 0..100 {
        connection.send("y");
        assert_eq!(connection.octets(1), b"y");
    }
    connection.finish_sending();
    assert_eq!(ended.recv(), Ok(Ok(())));
    live.wait().expect("nothing holds it up");
}

#[test]
fn handler_that_waits_for_the_drain_says_goodbye() {
    let (live, ended) = raw(patient_drain(), |mut connection: TcpConnection| async move {
        let draining = connection.draining();
        let mut buffer = [0; 1];
        connection.write_all(b"hello").await?;
        let read = async { connection.read(&mut buffer).await.map(|_| ()) };
        let drained = async {
            draining.await;
            Ok(())
        };
        future::or(drained, read).await?;
        connection.write_all(b"bye").await?;
        connection.finish().await
    });
    let mut connection = Raw::connect(live.address(1));
    assert_eq!(connection.octets(5), b"hello");
    live.handle.shutdown();
    assert_eq!(connection.until_close(), b"bye");
    drop(connection);
    assert_eq!(ended.recv(), Ok(Ok(())));
    live.wait().expect("nothing holds it up");
}

#[test]
fn task_beside_the_requests_hears_of_the_drain() {
    let (told_in, told) = mpsc::channel();
    let told_in = Mutex::new(told_in);
    let live = Live::with(patient_drain(), move |shard| {
        let (told, draining) = (told_in.lock().expect("no panic").clone(), shard.draining());
        shard.spawn(async move {
            draining.await;
            let _ = told.send("draining");
        });
        Router::new()
    });
    assert!(told.try_recv().is_err());
    live.handle.shutdown();
    assert_eq!(told.recv(), Ok("draining"));
    live.wait().expect("nothing holds it up");
}

#[test]
fn drain_of_the_echo_port_is_not_held_up_by_idle_connections() {
    let mut server = Binary::start(&["--echo", "127.0.0.1:0", "--drain-timeout", "1h"]);
    let line = server.await_line(|line| line.starts_with("echoing on "));
    let echo = line["echoing on ".len()..].parse().expect("an address");
    let mut idle: Vec<Raw> = (0..20).map(|_| Raw::connect(echo)).collect();
    server.signal("TERM");
    for connection in &mut idle {
        assert_eq!(connection.until_close(), b"");
    }
    wait_until("the process ends", || server.ended().is_some());
    assert_eq!(server.wait().code(), Some(0));
}
