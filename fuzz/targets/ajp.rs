//! AJP/1.3: what is said of a packet must hold, and a whole connection, in any pieces, must end after answers that are
//! well-formed, whole and in order.
//!
//! The first two bytes choose pieces, limits and how the peer ends; the rest is what it sends.
#![no_main]

use bytes::Bytes;
use everycore::{
    Request, Response, Router,
    ajp::{Forward, Message, body_data, split_packet},
    config::{AjpOptions, ServerConfig},
    http::{Body, Framing, Head, HeadLimits, Version},
    service::{
        ajp::serve,
        http1::{Context, Http1Config},
    },
    stats::Counters,
    testing::memory::Wire,
};
use futures_lite::stream;
use libfuzzer_sys::fuzz_target;
use std::{rc::Rc, time::Duration};

const PACKET_BYTES: usize = 8192;

fn router() -> Router {
    let pieces = |count: usize| stream::iter((0..count).map(|n| Ok(Bytes::from(vec![b'x'; n * 700]))));
    Router::new()
        .get("/", |_| "hello")
        .get("/later", |_| async { "later" })
        .get("/large", |_| "x".repeat(100_000))
        .get("/stream", move |_| Response::stream(Body::stream(pieces(20))))
        .get("/wide", |_| Response::text("x").with_header("a", "b".repeat(10_000)))
        .post("/", |request: Request| Response::stream(request.into_body()))
        .post("/collect", |request: Request| async {
            request.into_body().bytes(1000).await.map(Response::text).unwrap_or_else(Response::from)
        })
        .put("/", |_| "unread")
}

fn check(data: &[u8]) {
    let Some(([choice, ending], input)) = data.split_first_chunk::<2>() else { return };
    check_packets(input, PACKET_BYTES);
    check_connection(*choice, *ending, input);
}

// ---- the codec -----------------------------------------------------------------------------------

fn check_packets(mut input: &[u8], packet_bytes_max: usize) {
    while let Ok(Some(payload)) = split_packet(input, packet_bytes_max) {
        let len = 4 + payload.len();
        for end in [0, 1, 3, len - 1] {
            assert_eq!(split_packet(&input[..end.min(len - 1)], packet_bytes_max), Ok(None), "a part is no packet");
        }
        if let Ok(data) = body_data(payload) {
            assert!(data.is_empty() || data.len() + 2 == payload.len());
        }
        if let Ok(Message::Forward(forward)) = Message::decode(payload) {
            check_forward(&forward);
            for end in 1..payload.len() {
                assert!(Message::decode(&payload[..end]).is_err(), "a part is no request");
            }
        }
        input = &input[len..];
    }
}

fn check_forward(forward: &Forward<'_>) {
    let _ = (forward.addrs(), forward.attributes().count());
    let limits = HeadLimits::default();
    let mut head = Head::new();
    if forward.read_into(&mut head, &limits).is_err() {
        return;
    }
    assert!(head.target().bytes().all(|byte| byte.is_ascii_graphic()) && head.target().len() <= limits.uri_bytes_max);
    assert_eq!(head.headers().len(), forward.fields().count());
    assert!(head.version() == Version::Http10 || head.header("host").is_some());
    // Written as text and read again, it is the same request.
    let fields: Vec<u8> =
        head.headers().flat_map(|(name, value)| [name.as_bytes(), b": ", value, b"\r\n"].concat()).collect();
    let version = if head.version() == Version::Http10 { "HTTP/1.0" } else { "HTTP/1.1" };
    let text = [format!("{} {} {version}\r\n", head.method(), head.target()).as_bytes(), &fields, b"\r\n"].concat();
    let mut again = Head::new();
    if text.len() > limits.head_bytes_max {
        return;
    }
    assert_eq!(again.parse(&text, &limits), Ok(Some(text.len())), "{}", text.escape_ascii());
    assert_eq!((head.method(), head.target(), head.framing()), (again.method(), again.target(), again.framing()));
    assert!(head.headers().eq(again.headers()));
    assert!(head.framing() != Framing::Length(0));
}

// ---- the service ---------------------------------------------------------------------------------

fn check_connection(choice: u8, ending: u8, input: &[u8]) {
    let config = ServerConfig { handler_timeout: Some(Duration::from_secs(60)), ..ServerConfig::default() };
    let counters = Rc::new(Counters::default());
    let app = router().build().expect("no conflicts");
    let context = Rc::new(Context::new(app, Http1Config::from(&config), counters.clone()));
    let options = match choice & 1 {
        0 => AjpOptions::without_secret().allow_attributes("*").trust_user(),
        _ => AjpOptions::with_secret("S"),
    };
    let mut wire = Wire::new(|io| serve(io, context.clone(), Rc::new(options), 0));
    let piece = if choice & 2 == 0 { input.len().max(1) } else { usize::from(choice >> 2) + 1 };
    wire.run();
    for (index, bytes) in input.chunks(piece).enumerate() {
        wire.send(bytes);
        wire.run();
        if index == usize::from(ending >> 2) && ending & 1 != 0 {
            context.drain();
            wire.wake();
            wire.run();
        }
    }
    if ending & 2 != 0 {
        wire.advance(1000);
        wire.run();
    }
    wire.end();
    wire.run();
    // A handler may be at work, a body awaited: every deadline passes.
    for _ in 0..4 {
        wire.advance(100_000);
        wire.run();
    }
    assert!(wire.is_closed(), "the service ends when its peer has");
    let seen = counters.snapshot();
    assert_eq!((seen.connections.active, seen.ajp.active, seen.handler_panics), (0, 0, 0));
    let (answers, is_whole) = read_answers(&wire.take_received());
    let responses = &seen.responses;
    assert_eq!(answers, responses.successful + responses.redirection + responses.client_error + responses.server_error);
    assert!(answers <= seen.requests + 1, "a request is answered once, and one may be refused");
    assert!(is_whole || seen.connections.closed.error == 1, "an answer broke off: {:?}", seen.connections.closed);
}

/// How many answers there are, and whether the last one is whole. Nothing follows one that closes.
fn read_answers(mut bytes: &[u8]) -> (u64, bool) {
    let (mut count, mut is_open, mut is_over) = (0, false, false);
    while !bytes.is_empty() {
        assert!(!is_over, "nothing follows an answer that closes");
        let len = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        assert!(bytes.starts_with(b"AB") && 4 + len <= PACKET_BYTES);
        match bytes[4..4 + len] {
            [4, ..] => {
                assert!(!is_open, "the fields come once");
                (count, is_open) = (count + 1, true);
            }
            [3, high, low, ref data @ .., 0] => {
                assert!(is_open && data.len() == usize::from(u16::from_be_bytes([high, low])));
            }
            [5, reuse @ 0..=1] => {
                assert!(is_open);
                (is_open, is_over) = (false, reuse == 0);
            }
            [6, 0x1f, 0xfa] => {}
            [9] => assert!(!is_open),
            ref other => panic!("{}", other.escape_ascii()),
        }
        bytes = &bytes[4 + len..];
    }
    (count, !is_open)
}

fuzz_target!(|data: &[u8]| check(data));
