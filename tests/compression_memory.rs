//! What slow readers of compressed streams take. Alone in its process, whose memory it looks at.

mod common;

use bytes::Bytes;
use common::{
    live::{Live, rss_kib},
    raw::Raw,
};
use everycore::{
    Response, Router,
    http::Body,
    limits::{COMPRESS_PIECE_BYTES_MAX, COMPRESS_STREAMS_MAX},
    middleware::Compression,
};
use futures_lite::stream;
use socket2::{Domain, Socket, Type};
use std::{
    net::SocketAddr,
    process,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Connects with the smallest window, so that the kernel holds little of what the server sends.
fn connect(server: SocketAddr) -> Raw {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(4096).expect("it can be set");
    socket.connect(&server.into()).expect("the server accepts");
    Raw::over(socket.into())
}

#[test]
fn memory_of_slow_clients_is_bounded() {
    // Some more than are compressed at a time.
    const CLIENTS: usize = COMPRESS_STREAMS_MAX + 16;
    // Encoder (brotli's is the larger: 1.2 MiB), a piece, what it became, what the connection holds, and what malloc loses.
    const KIB_EACH: u64 = 2048;
    let taken = Arc::new(AtomicU64::new(0));
    let counted = taken.clone();
    let live = Live::start(1, move |_| {
        let counted = counted.clone();
        let lines = (0..4000u32).map(|n| format!("item {} costs {}\n", n % 1000, n.wrapping_mul(2_654_435_761)));
        let piece = Bytes::from(lines.collect::<String>()).slice(..COMPRESS_PIECE_BYTES_MAX);
        let endless = move |_| {
            let (piece, counted) = (piece.clone(), counted.clone());
            Response::text(Body::stream(stream::repeat_with(move || {
                counted.fetch_add(1, Ordering::Relaxed);
                Ok(piece.clone())
            })))
        };
        Router::new().get("/endless", endless).wrap(Compression::new().layer())
    });
    let open = |count: usize| -> Vec<Raw> {
        let connections = (0..count).map(|_| {
            let mut connection = connect(live.http);
            connection.send("GET /endless HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: br\r\n\r\n");
            connection.octets(10_000);
            connection
        });
        connections.collect()
    };
    drop(open(4)); // what is made once is there
    let before = rss_kib(process::id());
    let slow = open(CLIENTS);
    let grown = rss_kib(process::id()).saturating_sub(before);
    assert!(grown < KIB_EACH * CLIENTS as u64, "{grown} KiB for {CLIENTS} clients");
    // Endless: each was read only as far as its client and the kernel's buffers take it, some MiB.
    let pieces_each = taken.load(Ordering::Relaxed) / CLIENTS as u64;
    assert!(pieces_each < 500, "{pieces_each} pieces were taken for each client");
    drop(slow);
}
