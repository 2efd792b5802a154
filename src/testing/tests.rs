//! The client against handlers of every kind.

use super::*;
use crate::{
    Request, Response, Router,
    config::ServerConfig,
    http::{Body, BodyError, Feed, Method, StatusCode},
};
use bytes::Bytes;
use futures_lite::stream;
use std::{cell::RefCell, future::poll_fn, rc::Rc, task::Poll, time::Duration};

async fn echo(request: Request) -> Response {
    Response::stream(request.into_body())
}

fn client() -> Client {
    Client::new(|| {
        Router::new()
            .get("/yo", |request: Request| format!("yo, {}", request.query("name").as_deref().unwrap_or("stranger")))
            .post("/echo", echo)
            .put("/unread", |_| "unread")
            .get("/from", |request: Request| request.peer_addr().map(|peer| peer.to_string()).unwrap_or_default())
            .get("/bye", |_| Response::text("bye").with_header("connection", "close"))
            .get("/panic", |_| -> Response { panic!("a handler") })
            .get("/broken", |_| {
                let failing = || Err(BodyError::Other("broken".into()));
                Response::stream(Body::stream(stream::iter([Ok(Bytes::from_static(b"half")), failing()])))
            })
    })
    .unwrap()
}

#[test]
fn requests_share_a_connection_until_one_closes_it() {
    let client = client();
    for _ in 0..3 {
        let answer = client.get("/yo?name=X").header("accept", "*/*").send();
        assert_eq!((answer.status(), answer.text(), answer.closes()), (StatusCode::OK, "yo, X", false));
        assert_eq!(answer.header("Content-Type"), Some("text/plain; charset=utf-8"));
    }
    assert_eq!(client.connections(), 1);
    assert!(client.get("/bye").send().closes());
    assert_eq!(client.get("/yo").send().text(), "yo, stranger");
    assert_eq!(client.connections(), 2);
    let stats = client.stats();
    assert_eq!((stats.requests, stats.connections.closed.server_closed, stats.connections.active), (5, 1, 1));
}

#[test]
fn answers_are_the_services_own() {
    let client = client();
    let head = client.head("/yo").send();
    assert_eq!((head.status(), head.header("content-length"), head.text()), (StatusCode::OK, Some("12"), ""));
    assert_eq!(client.get("/no").send().status(), StatusCode::NOT_FOUND);
    let wrong = client.delete("/yo").send();
    assert_eq!((wrong.status(), wrong.header("allow")), (StatusCode::METHOD_NOT_ALLOWED, Some("GET, HEAD, OPTIONS")));
    assert_eq!(client.options("/yo").send().status(), StatusCode::NO_CONTENT);
    assert_eq!(client.request(Method::TRACE, "/yo").send().status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(client.get("/a b").send().status(), StatusCode::BAD_REQUEST);
    assert_eq!(client.get("/panic").send().status(), StatusCode::INTERNAL_SERVER_ERROR);
    let old = client.get("/yo").http10().send();
    assert_eq!((old.text(), old.closes()), ("yo, stranger", true));
    assert!(client.raw("GET /yo HTTP/1.1\r\nHost: a\r\n\r\n").ends_with(b"yo, stranger"));
    client.set_peer_addr("192.0.2.1:7".parse().unwrap());
    assert_eq!(client.get("/from").send().text(), "192.0.2.1:7");
}

#[test]
fn bodies_go_both_ways_in_every_framing() {
    let client = client();
    let large = "x".repeat(1 << 20);
    for body in ["", "hello", &large] {
        assert_eq!(client.post("/echo").body(body.to_owned()).send().text(), body);
        let pieces: Vec<_> = body.as_bytes().chunks(10_000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        let answer = client.post("/echo").body(Body::stream(stream::iter(pieces))).send();
        assert_eq!(answer.text(), body);
        assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
    }
    assert_eq!(client.connections(), 1);
    let old = client.post("/echo").http10().header("content-length", "5").body("hello").send();
    assert_eq!(old.text(), "hello");
}

#[test]
fn body_is_held_until_it_is_asked_for() {
    let client = client();
    let expects = |request: ClientRequest<'_>| request.header("Expect", "100-continue").body("hello").send();
    let answer = expects(client.post("/echo"));
    assert_eq!((answer.text(), answer.interims()), ("hello", &[StatusCode::CONTINUE][..]));
    let answer = expects(client.put("/unread"));
    assert_eq!((answer.text(), answer.interims(), answer.closes()), ("unread", &[][..], true));
}

#[test]
fn unread_body_is_sent_to_its_end_or_costs_the_connection() {
    let client = client();
    assert!(!client.put("/unread").body("x".repeat(1000)).send().closes());
    assert!(client.put("/unread").body("x".repeat(1 << 20)).send().closes());
    assert_eq!(client.put("/unread").send().text(), "unread");
}

#[test]
fn streams_are_read_piece_by_piece() {
    let (feed, body) = Feed::new(None);
    let body = RefCell::new(Some(body));
    let client = Client::new(|| Router::new().get("/", move |_| Response::stream(body.take().unwrap()))).unwrap();
    let mut answer = client.get("/").open().unwrap();
    assert_eq!((answer.status(), answer.header("transfer-encoding")), (StatusCode::OK, Some("chunked")));
    for piece in ["one", "two"] {
        feed.push(Bytes::from_static(piece.as_bytes()));
        assert_eq!(answer.chunk().unwrap().unwrap(), piece);
    }
    feed.end(vec![("x-sum".parse().unwrap(), "2".parse().unwrap())]);
    let rest = answer.finish().unwrap();
    assert!(rest.bytes().is_empty());
    assert_eq!(rest.trailers()[0].1, "2");
    assert_eq!(client.stats().connections.active, 1);
}

#[test]
fn dropped_answer_ends_the_handlers_stream() {
    let (feed, body) = Feed::new(None);
    let body = RefCell::new(Some(body));
    let client = Client::new(|| Router::new().get("/", move |_| Response::stream(body.take().unwrap()))).unwrap();
    let answer = client.get("/").open().unwrap();
    assert!(!feed.is_abandoned());
    drop(answer);
    assert!(feed.is_abandoned());
    assert_eq!(client.stats().connections.closed.reset, 1);
}

#[test]
fn upload_waits_for_the_handler_and_the_handler_for_it() {
    // What the handler sends back comes up again, piece by piece.
    let (feed, body) = Feed::new(None);
    let client = client();
    feed.push(Bytes::from_static(b"1"));
    let mut answer = client.post("/echo").body(body).open().unwrap();
    for count in 2..5 {
        let piece = answer.chunk().unwrap().unwrap();
        feed.push(Bytes::from(format!("{}{count}", str::from_utf8(&piece).unwrap())));
    }
    feed.end(Vec::new());
    assert_eq!(answer.finish().unwrap().text(), "1234");
}

#[test]
fn other_threads_and_other_requests_wake_a_handler() {
    let (sender, receiver) = std::sync::mpsc::channel::<std::task::Waker>();
    let woken = std::thread::spawn(move || receiver.recv().unwrap().wake());
    let client = Client::new(|| {
        Router::new().get("/", move |_| {
            let (sender, mut polls) = (sender.clone(), 0);
            poll_fn(move |cx| {
                polls += 1;
                if polls > 1 {
                    return Poll::Ready("woken");
                }
                sender.send(cx.waker().clone()).unwrap();
                Poll::Pending
            })
        })
    })
    .unwrap();
    assert_eq!(client.get("/").send().text(), "woken");
    woken.join().unwrap();
}

#[test]
fn broken_answers_say_why() {
    let client = client();
    let mut answer = client.get("/broken").open().unwrap();
    assert_eq!(answer.chunk().unwrap().unwrap(), "half");
    assert!(matches!(answer.chunk(), Err(AnswerError::Closed)));
    drop(answer);
    assert!(matches!(client.get("/broken").try_send(), Err(AnswerError::Closed)));
    let failing = Body::stream(stream::iter([Err(BodyError::WrongLength)]));
    assert!(matches!(client.post("/echo").body(failing).try_send(), Err(AnswerError::Upload(BodyError::WrongLength))));
    assert_eq!(client.get("/yo").send().status(), StatusCode::OK);
}

#[test]
fn time_and_draining_close_kept_connections() {
    let client = client();
    client.get("/yo").send();
    client.advance(ServerConfig::default().idle_timeout);
    assert_eq!(client.stats().connections.closed.idle_timeout, 1);
    client.get("/yo").send();
    client.drain();
    assert!(client.get("/yo").send().closes());
    assert_eq!(client.stats().connections.closed.drained, 1);
    client.advance(Duration::MAX);
    assert_eq!(client.connections(), 2);
}

#[test]
fn handlers_keep_state_between_requests() {
    let served = Rc::new(std::cell::Cell::new(0));
    let inner = served.clone();
    let client = Client::new(|| {
        Router::new().get("/", move |_| {
            inner.set(inner.get() + 1);
            inner.get().to_string()
        })
    })
    .unwrap();
    assert_eq!((client.get("/").send().text(), client.get("/").send().text()), ("1", "2"));
    assert_eq!(served.get(), 2);
}

#[test]
fn contradicting_routes_are_an_error() {
    assert!(Client::new(|| Router::new().get("/a", |_| "").get("/a", |_| "")).is_err());
}

#[cfg(feature = "json")]
#[test]
fn json_goes_both_ways() {
    let client = client();
    let numbers: Vec<u32> = client.post("/echo").json(&[1, 2]).send().json();
    assert_eq!(numbers, [1, 2]);
}
