//! A whole connection: any bytes in any pieces at any time, with a reader as slow as it likes. The service must end, and
//! what it sends must be the answers to what it was asked, in order, and nothing after one that closes.
//!
//! The input is what the client sends; `0xff` and the byte after it are an event instead.
#![no_main]

use bytes::Bytes;
use everycore::{
    Request, Response, Router,
    config::ServerConfig,
    http::{Body, Chunk, ChunkedDecoder, ChunkedLimits, Method},
    middleware::Next,
    service::http1::{Context, Http1Config, serve},
    stats::Counters,
    testing::memory::Wire,
};
use futures_lite::{future, stream};
use libfuzzer_sys::fuzz_target;
use std::{cell::RefCell, rc::Rc, time::Duration};

type Asked = Rc<RefCell<Vec<Method>>>;

fn router(asked: Asked) -> Router {
    let pieces = |count: usize| stream::iter((0..count).map(|n| Ok(Bytes::from(vec![b'x'; n * 7]))));
    Router::new()
        .get("/", |_| "hello")
        .get("/later", |_| async {
            future::yield_now().await;
            "later"
        })
        .get("/large", |_| "x".repeat(100_000))
        .get("/stream", move |_| Response::stream(Body::stream(pieces(5))))
        .get("/sized", move |_| Response::stream(Body::sized_stream(70, pieces(5))))
        .get("/close", |_| Response::text("bye").with_header("connection", "close"))
        .post("/", |request: Request| Response::stream(request.into_body()))
        .post("/collect", |request: Request| async {
            request.into_body().bytes(1000).await.map(Response::text).unwrap_or_else(Response::from)
        })
        .post("/first", |mut request: Request| async move {
            let _ = request.body_mut().chunk().await;
            "seen"
        })
        .put("/", |_| "unread")
        .wrap(move |request: Request, next: Next| {
            asked.borrow_mut().push(request.method().clone());
            next.run(request)
        })
}

fn check(data: &[u8]) {
    let asked = Asked::default();
    let app = router(asked.clone()).build().expect("no conflicts");
    let config = ServerConfig {
        handler_timeout: Some(Duration::from_secs(60)),
        requests_per_connection_max: Some(20),
        ..ServerConfig::default()
    };
    let counters = Rc::new(Counters::default());
    let context = Rc::new(Context::new(app, Http1Config::from(&config), counters.clone()));
    let mut wire = Wire::new(|io| serve(io, context.clone(), 0, ()));
    let is_whole = play(&mut wire, &context, data);
    let snapshot = counters.snapshot();
    let closed = &snapshot.connections.closed;
    assert_eq!(snapshot.connections.active, 0);
    assert_eq!(snapshot.requests, asked.borrow().len() as u64);
    assert_eq!(snapshot.handler_panics, 0);
    let answers = read_answers(&wire.take_received(), &asked.borrow());
    let broken = closed.error + closed.reset + closed.write_stall;
    assert!(answers.is_whole || broken == 1, "an answer is not whole, yet {closed:?}");
    let responses = &snapshot.responses;
    let counted = responses.successful + responses.redirection + responses.client_error + responses.server_error;
    if is_whole && broken == 0 {
        assert_eq!(answers.finals, counted);
        assert_eq!(answers.interims, responses.informational);
    }
    assert!(answers.finals <= snapshot.requests + 1);
}

/// Plays the events; says whether the client read all there was to read.
fn play(wire: &mut Wire, context: &Context, data: &[u8]) -> bool {
    let (mut is_ended, mut is_reset) = (false, false);
    wire.run();
    for (index, part) in data.split(|&byte| byte == 0xff).enumerate() {
        let bytes = match part.split_first() {
            Some((event, rest)) if index > 0 => {
                match event % 8 {
                    0 => wire.advance(u64::from(*event) * 500),
                    1 => wire.advance(1),
                    2 => wire.set_window(usize::from(*event)),
                    3 => wire.set_window(usize::MAX),
                    4 => wire.set_read_bytes_max(usize::from(event / 8) + 1),
                    5 if !is_ended => {
                        is_ended = true;
                        wire.end();
                    }
                    6 if *event == 0xfe => {
                        (is_ended, is_reset) = (true, true);
                        wire.reset();
                    }
                    7 if *event == 0xf7 => {
                        context.drain();
                        wire.wake();
                    }
                    _ => {}
                }
                rest
            }
            _ => part,
        };
        if !is_ended {
            wire.send(bytes);
        }
        wire.run();
    }
    wire.set_window(usize::MAX);
    if !is_ended {
        wire.end();
    }
    wire.run();
    // A handler may be at work, a body awaited: every deadline passes.
    for _ in 0..4 {
        wire.advance(100_000);
        wire.run();
    }
    assert!(wire.is_closed(), "the service ends when its client has");
    !is_reset
}

#[derive(Default)]
struct Answers {
    finals: u64,
    interims: u64,
    is_whole: bool,
}

/// Reads what the service sent to the requests that reached a handler, and perhaps one that did not.
fn read_answers(mut input: &[u8], asked: &[Method]) -> Answers {
    let mut answers = Answers { is_whole: true, ..Answers::default() };
    while !input.is_empty() {
        let mut slots = [httparse::EMPTY_HEADER; 32];
        let mut head = httparse::Response::new(&mut slots);
        let len = match head.parse(input).expect("every answer has a well-formed head") {
            httparse::Status::Complete(len) => len,
            httparse::Status::Partial => {
                answers.is_whole = false;
                return answers;
            }
        };
        input = &input[len..];
        let status = head.code.expect("complete");
        if status < 200 {
            assert_eq!(status, 100);
            answers.interims += 1;
            continue;
        }
        let field = |name: &str| {
            let mut found = head.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
            let value = found.next().map(|field| str::from_utf8(field.value).expect("our fields are text"));
            assert!(found.next().is_none(), "{name} is there once");
            value
        };
        let closes = field("connection") == Some("close");
        assert!(field("date").is_some() && field("server").is_some());
        let method = asked.get(answers.finals as usize);
        let is_refused_head = method.is_none() && input.is_empty();
        let used = if method == Some(&Method::HEAD) || matches!(status, 204 | 304) || is_refused_head {
            Some(0)
        } else {
            match (field("transfer-encoding"), field("content-length")) {
                (Some("chunked"), None) => chunked_len(input),
                (None, Some(length)) => {
                    let length = length.parse().expect("a number");
                    (input.len() >= length).then_some(length)
                }
                (None, None) if closes => Some(input.len()),
                other => panic!("framed as {other:?}"),
            }
        };
        let Some(used) = used else {
            answers.is_whole = false;
            return answers;
        };
        input = &input[used..];
        answers.finals += 1;
        assert!(method.is_some() || closes, "a refusal closes");
        assert!(!closes || input.is_empty(), "nothing follows an answer that closes");
    }
    answers
}

fn chunked_len(input: &[u8]) -> Option<usize> {
    let mut decoder = ChunkedDecoder::new(ChunkedLimits::default());
    let mut at = 0;
    loop {
        match decoder.decode(&input[at..]).expect("our chunks are well-formed") {
            Chunk::Need => return None,
            Chunk::Skip { consumed } => at += consumed,
            Chunk::Data { skip, len } => at += skip + len,
            Chunk::End { consumed } => return Some(at + consumed),
        }
    }
}

fuzz_target!(|data: &[u8]| check(data));
