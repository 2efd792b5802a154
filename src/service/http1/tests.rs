//! The service over memory: exact bytes, exact milliseconds, exact counters.
//!
//! `Server` and `Date` show as `S`. Deadlines here: head 100 ms, idle 1,000, body 200, stall 300, handler 400.

use super::*;
use crate::limits::{DRAIN_IDLE_GRACE_MS, LINGER_TIMEOUT_MS};
use crate::{
    IntoResponse, Router,
    access_log::{AccessLog, Writer},
    config::AccessLogFormat,
    handler::IntoReply,
    http::{BodyError, Feed, HeadLimits, Response, StatusCode},
    limits::DISCARD_BYTES_MAX,
    stats::Counters,
    testing::memory::{Closing, Wire},
};
use std::{
    cell::{Cell, RefCell},
    future::Future,
    pin::Pin,
    task::Waker,
};

const HEAD_MS: u64 = 100;
const IDLE_MS: u64 = 1000;
const BODY_MS: u64 = 200;
const STALL_MS: u64 = 300;
const HANDLER_MS: u64 = 400;

fn config() -> Http1Config {
    Http1Config {
        body_bytes_max: crate::limits::BODY_BUFFERED_BYTES_MAX,
        head: HeadLimits::default(),
        header_timeout_ms: HEAD_MS,
        idle_timeout_ms: IDLE_MS,
        body_timeout_ms: BODY_MS,
        body_rate_min: 0,
        write_stall_ms: STALL_MS,
        handler_timeout_ms: HANDLER_MS,
        trusted_proxies: None,
        requests_per_connection_max: None,
    }
}

/// A client's connection to a service.
struct Talk {
    wire: Wire,
    context: Rc<Context>,
}

impl Talk {
    fn new(router: Router) -> Self {
        Talk::with(router, config())
    }

    fn with(router: Router, config: Http1Config) -> Self {
        let app = router.build().unwrap();
        Talk::to(Rc::new(Context::new(app, config, Rc::new(Counters::default()))))
    }

    fn to(context: Rc<Context>) -> Self {
        let wire = Wire::new(|io| serve(io, context.clone(), 0, ()));
        let mut talk = Talk { wire, context };
        talk.wire.run();
        talk
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.wire.send(bytes);
        self.wire.run();
        self
    }

    fn advance(&mut self, ms: u64) -> &mut Self {
        self.wire.advance(ms);
        self.wire.run();
        self
    }

    fn end(&mut self) -> &mut Self {
        self.wire.end();
        self.wire.run();
        self
    }

    fn reset(&mut self) -> &mut Self {
        self.wire.reset();
        self.wire.run();
        self
    }

    fn window(&mut self, bytes: usize) -> &mut Self {
        self.wire.set_window(bytes);
        self.wire.run();
        self
    }

    fn drain(&mut self) -> &mut Self {
        self.context.drain();
        self.wire.wake();
        self.wire.run();
        self
    }

    fn run(&mut self) -> &mut Self {
        self.wire.run();
        self
    }

    /// What has come since the last call.
    fn received(&mut self) -> String {
        self.wire.run();
        without_date(&self.wire.take_received())
    }

    #[track_caller]
    fn expect(&mut self, expected: impl AsRef<str>) -> &mut Self {
        let received = self.received();
        assert_eq!(received, expected.as_ref());
        self
    }

    #[track_caller]
    fn expect_closing(&mut self, expected: Closing) -> &mut Self {
        assert_eq!(self.wire.closing(), expected);
        self
    }

    /// Nothing but these counters, and the requests' methods, may be other than zero, e.g. `requests 1, 2xx 1`.
    #[track_caller]
    fn expect_counts(&mut self, expected: &str) -> &mut Self {
        let mut counts = Vec::new();
        self.context.counters.snapshot().visit(|path, _, _, number| {
            let name = path.join(".").replace("connections.", "").replace("responses.", "");
            if number != 0 && path[0] != "methods" {
                counts.push(format!("{name} {number}"));
            }
        });
        assert_eq!(counts.join(", "), expected);
        self
    }

    /// Alive one millisecond before `ms` have passed, and ended at `ms` with the counters.
    #[track_caller]
    fn expect_deadline(&mut self, ms: u64, answer: impl AsRef<str>, closing: Closing, counts: &str) -> &mut Self {
        self.advance(ms - 1).expect("").expect_closing(Closing::Open);
        self.advance(1).expect(answer).expect_closing(closing);
        if closing == Closing::Shut {
            self.end().expect_closing(Closing::Closed);
        }
        self.expect_counts(counts)
    }
}

const DATE_LINES: &str = "Server: everycore\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n";

/// Checks the `Server` and `Date` lines and shows them as `S`.
fn without_date(bytes: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(bytes).into_owned();
    while let Some(at) = text.find("Server: everycore\r\n") {
        let end = at + DATE_LINES.len();
        assert!(text[..end].ends_with(" GMT\r\n"), "{text:?}");
        text.replace_range(at..end, "S\r\n");
    }
    text
}

/// The answer to a GET that a handler answered with `body` as text.
fn text(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\nS\r\n\r\n{body}")
}

/// The same that closes.
fn last(answer: &str) -> String {
    answer.replacen("S\r\n\r\n", "S\r\nConnection: close\r\n\r\n", 1)
}

/// An error answer of the server's own, which closes.
fn refusal(status: u16, reason: &str) -> String {
    let status = StatusCode::from_u16(status).unwrap();
    last(&text(&format!("{status}: {reason}\n")).replace("200 OK", &status.to_string()))
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")
}

fn post(fields: &str, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n{body}")
}

/// GET answers its path; POST what it was sent; PUT nothing, without a look at the body.
fn router() -> Router {
    async fn echo(request: Request) -> Response {
        match request.into_body().bytes(1 << 20).await {
            Ok(bytes) => Response::text(bytes),
            Err(error) => error.into_response(),
        }
    }
    Router::new()
        .get("/{*path}", |request: Request| request.path().to_owned())
        .get("/later", |request: Request| async move { request.path().to_owned() })
        .post("/", echo)
        .put("/", |_| "unread")
}

/// What a handler waits for until the test opens it.
#[derive(Clone, Default)]
struct Gate(Rc<(Cell<bool>, RefCell<Option<Waker>>)>);

impl Gate {
    fn open(&self) {
        self.0.0.set(true);
        if let Some(waker) = self.0.1.take() {
            waker.wake();
        }
    }

    async fn wait(&self) {
        poll_fn(|cx| {
            self.0.1.replace(Some(cx.waker().clone()));
            if self.0.0.get() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Counts its drops.
#[derive(Clone, Default)]
struct Drops(Rc<Cell<u32>>);

impl Drops {
    fn guard(&self) -> impl Drop + use<> {
        struct Guard(Rc<Cell<u32>>);
        impl Drop for Guard {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        Guard(self.0.clone())
    }
}

/// A router whose `/` waits for a gate.
fn gated() -> (Router, Gate, Drops) {
    let (gate, drops) = (Gate::default(), Drops::default());
    let (gate_2, drops_2) = (gate.clone(), drops.clone());
    let router = router().get("/wait", move |_| {
        let (gate, guard) = (gate_2.clone(), drops_2.guard());
        async move {
            let _guard = guard;
            gate.wait().await;
            "waited"
        }
    });
    (router, gate, drops)
}

/// A router whose `/stream` answers with a body that the test writes.
fn streaming(length: Option<u64>) -> (Router, Feed) {
    let (feed, body) = Feed::new(length);
    let body = RefCell::new(Some(body));
    let router = router().any("/stream", move |_| Response::stream(body.take().unwrap_or_default()));
    (router, feed)
}

fn one<R: IntoReply<M>, M>(handler: impl Fn(Request) -> R + 'static) -> Router {
    Router::new().any("/", handler)
}

// ---- requests and answers ------------------------------------------------------------------------

#[test]
fn requests_are_answered_alike_however_they_arrive() {
    let head_only = text("/abc").strip_suffix("/abc").unwrap().to_owned();
    let lines = "\r\n\r\n".to_owned();
    let chunked = post("Transfer-Encoding: chunked", "2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nA: b\r\n\r\n");
    let cases: [(Vec<String>, Vec<String>); 6] = [
        (vec![get("/a")], vec![text("/a")]),
        (vec![lines, get("/a"), get("/later")], vec![text("/a"), text("/later")]),
        (vec![post("Content-Length: 5", "hello"), get("/b")], vec![text("hello"), text("/b")]),
        (vec![chunked, get("/b")], vec![text("hello"), text("/b")]),
        (vec![get("/abc").replace("GET", "HEAD"), get("/b")], vec![head_only, text("/b")]),
        (vec![post("Content-Length: 3", "abc").replace("POST", "PUT"), get("/b")], vec![text("unread"), text("/b")]),
    ];
    for (requests, answers) in cases {
        let (requests, answers) = (requests.concat(), answers.concat());
        Talk::new(router()).send(&requests).expect(&answers).expect_closing(Closing::Open);
        for split in 0..requests.len() {
            let mut talk = Talk::new(router());
            talk.send(&requests[..split]).send(&requests[split..]).expect(&answers);
        }
        let mut talk = Talk::new(router());
        for byte in requests.bytes() {
            talk.send([byte]);
        }
        talk.expect(&answers).end().expect_closing(Closing::Closed);
        let mut talk = Talk::new(router());
        talk.wire.set_read_bytes_max(1);
        talk.send(&requests).expect(&answers).expect_closing(Closing::Open);
    }
}

#[test]
fn pipelined_answers_leave_in_one_send() {
    let mut talk = Talk::new(router());
    talk.send([get("/a"), get("/b"), get("/c")].concat()).expect(text("/a") + &text("/b") + &text("/c"));
    assert_eq!(talk.wire.sends(), 1);
    talk.end().expect_counts("requests 3, closed.peer_closed 1, 2xx 3");
}

#[test]
fn empty_line_after_the_last_request_is_not_answered() {
    let mut talk = Talk::new(router());
    talk.send(get("/a") + "\r\n").expect(text("/a")).end().expect("").expect_closing(Closing::Closed);
    talk.expect_counts("requests 1, closed.peer_closed 1, 2xx 1");
}

#[test]
fn answers_keep_the_order_of_requests() {
    let (router, gate, _) = gated();
    let mut talk = Talk::new(router);
    talk.send([get("/a"), get("/wait"), get("/b")].concat()).expect(text("/a"));
    gate.open();
    talk.expect(text("waited") + &text("/b")).expect_counts("requests 3, active 1, 2xx 3");
}

#[test]
fn connection_closes_when_either_side_asks() {
    let close = one(|_| Response::text("bye").with_header("connection", "close"));
    let http10 = |line: &str| format!("GET /a HTTP/1.0\r\n{line}\r\n");
    let kept = text("/a").replacen("S\r\n", "S\r\nConnection: keep-alive\r\n", 1);
    let cases = [
        (
            router(),
            "GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".into(),
            last(&text("/a")),
            Closing::Closed,
        ),
        (router(), http10(""), last(&text("/a")), Closing::Closed),
        (router(), http10("Connection: keep-alive\r\n"), kept, Closing::Open),
        // It may have sent more before it hears of this.
        (close, get("/"), last(&text("bye")), Closing::Shut),
    ];
    for (router, request, answer, closing) in cases {
        let mut talk = Talk::new(router);
        talk.send(request).expect(answer).expect_closing(closing);
        match closing {
            Closing::Open => talk.expect_counts("requests 1, active 1, 2xx 1"),
            _ => talk.end().expect_counts("requests 1, closed.server_closed 1, 2xx 1"),
        };
    }
}

#[test]
fn answer_that_closes_unasked_survives_what_the_client_had_sent_by_then() {
    let mut talk = Talk::with(router(), Http1Config { requests_per_connection_max: Some(1), ..config() });
    talk.window(10).send(get("/a")); // the answer is on its way
    talk.send(get("/b")).window(1000).expect(last(&text("/a"))).expect_closing(Closing::Shut);
    talk.send(get("/c")).expect("").end().expect_closing(Closing::Closed);
    talk.expect_counts("requests 1, closed.requests_max 1, 2xx 1");
}

#[test]
fn closing_answer_survives_what_the_client_sends_after_it() {
    let mut talk = Talk::new(router());
    let closing = "GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    talk.send([closing, &get("/b")].concat()).expect(last(&text("/a"))).expect_closing(Closing::Shut);
    talk.send(get("/c")).expect("").end().expect_closing(Closing::Closed);
    talk.expect_counts("requests 1, closed.server_closed 1, 2xx 1");
}

#[test]
fn requests_per_connection_are_counted_to_the_limit() {
    let mut talk = Talk::with(router(), Http1Config { requests_per_connection_max: Some(3), ..config() });
    talk.send(get("/1")).send(get("/2")).expect(text("/1") + &text("/2"));
    talk.send(get("/3")).expect(last(&text("/3"))).expect_closing(Closing::Shut);
    talk.end().expect_counts("requests 3, closed.requests_max 1, 2xx 3");
}

#[test]
fn refused_head_is_answered_and_nothing_after_it() {
    let mut talk = Talk::new(router());
    talk.send([get("/a"), "GET /b HTTP/1.1\r\n\r\n".into(), get("/c")].concat());
    talk.expect(text("/a") + &refusal(400, Reject::MissingHost.reason())).expect_closing(Closing::Shut);
    talk.send(get("/d")).expect("").end().expect_closing(Closing::Closed);
    talk.expect_counts("requests 1, closed.rejected 1, 2xx 1, 4xx 1, rejects.bad_request 1");
}

#[test]
fn refused_head_request_is_answered_without_a_body() {
    let mut talk = Talk::new(router());
    talk.send("HEAD / HTTP/1.1\r\n\r\n");
    let whole = refusal(400, Reject::MissingHost.reason());
    talk.expect(whole.split_inclusive("\r\n\r\n").next().unwrap());
}

#[test]
fn error_page_that_streams_gives_way_to_plain_text() {
    let page = |length: Option<u64>| {
        router().error_page(move |_| {
            use futures_lite::stream::pending;
            let body = length.map_or_else(|| Body::stream(pending()), |length| Body::sized_stream(length, pending()));
            Some(Response::stream(body))
        })
    };
    for length in [None, Some(5)] {
        let mut talk = Talk::new(page(length));
        talk.send("\0").expect(refusal(400, Reject::BadMethod.reason())).expect_closing(Closing::Shut);
    }
    let mut talk = Talk::new(router().error_page(|_| panic!("in the page")));
    talk.send("\0").expect(refusal(400, Reject::BadMethod.reason())).expect_closing(Closing::Shut);
    let mut talk =
        Talk::new(router().error_page(|error| Some(Response::html(format!("<b>{}", error.status.as_u16())))));
    talk.send("\0").expect(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 6\r\nS\r\n\
         Connection: close\r\n\r\n<b>400",
    );
}

// ---- deadlines -----------------------------------------------------------------------------------

#[test]
fn idle_connection_is_closed_at_its_deadline() {
    let idle = "closed.idle_timeout 1";
    Talk::new(router()).expect_deadline(IDLE_MS, "", Closing::Closed, idle);
    let mut talk = Talk::new(router());
    talk.advance(IDLE_MS - 1).send(get("/a")).expect(text("/a"));
    talk.expect_deadline(IDLE_MS, "", Closing::Closed, &format!("requests 1, {idle}, 2xx 1"));
}

#[test]
fn head_deadline_runs_from_its_first_byte() {
    let answer = refusal(408, Reject::HeadTimedOut.reason());
    let counts = "closed.header_timeout 1, 4xx 1, rejects.timeout 1";
    let mut talk = Talk::new(router());
    talk.advance(500).send("G").expect_deadline(HEAD_MS, &answer, Closing::Shut, counts);
    let mut talk = Talk::new(router());
    talk.send("GET / HTTP/1.1\r\n");
    for _ in 0..9 {
        talk.advance(10).send("A: b\r\n");
    }
    talk.expect_deadline(HEAD_MS - 90, &answer, Closing::Shut, counts);
    // The second of two heads has its own time.
    let mut talk = Talk::new(router());
    talk.send("G").advance(HEAD_MS - 1).send(&get("/a")[1..]).expect(text("/a")).advance(50);
    let counts = "requests 1, closed.header_timeout 1, 2xx 1, 4xx 1, rejects.timeout 1";
    talk.send("G").expect_deadline(HEAD_MS, &answer, Closing::Shut, counts);
}

#[test]
fn lingering_ends_in_time_whatever_the_peer_does() {
    for (is_half_closed, window) in [(true, 0), (false, 0), (false, usize::MAX)] {
        let mut wire = Wire::new(|mut io| async move {
            let mut out = Outgoing::default();
            out.buf.extend_from_slice(b"busy");
            io.send(&mut out);
            linger(&mut io).await;
        });
        wire.set_window(window);
        if is_half_closed {
            wire.end();
        }
        wire.run();
        wire.advance(LINGER_TIMEOUT_MS - 1);
        assert!(wire.run());
        wire.advance(1);
        assert!(!wire.run(), "{is_half_closed} {window}");
    }
}

#[test]
fn refused_client_may_linger_to_the_limit() {
    let mut talk = Talk::new(router());
    talk.send("\0").expect(refusal(400, Reject::BadMethod.reason())).expect_closing(Closing::Shut);
    talk.advance(LINGER_TIMEOUT_MS - 1).send("more").expect_closing(Closing::Shut);
    talk.advance(1).expect("").expect_closing(Closing::Closed);
    talk.expect_counts("closed.rejected 1, 4xx 1, rejects.bad_request 1");
}

const LATE: &str = "the body was not complete in time";

/// What the handler of `router()` answers when its body was late.
fn late() -> String {
    last(&text(LATE).replace("200 OK", "408 Request Timeout"))
}

#[test]
fn pause_in_a_body_is_bounded() {
    let counts = "requests 1, closed.body_timeout 1, 4xx 1, rejects.timeout 1";
    let mut talk = Talk::new(router());
    talk.send(post("Content-Length: 5", "")).expect_deadline(BODY_MS, late(), Closing::Shut, counts);
    let mut talk = Talk::with(router(), Http1Config { handler_timeout_ms: u64::MAX, ..config() });
    talk.send(post("Transfer-Encoding: chunked", ""));
    for _ in 0..5 {
        talk.advance(BODY_MS - 1).send("1\r\nx\r\n").expect("");
    }
    talk.expect_deadline(BODY_MS, late(), Closing::Shut, counts);
}

#[test]
fn body_must_keep_its_minimum_rate() {
    let mut talk = Talk::with(router(), Http1Config { body_rate_min: 1000, handler_timeout_ms: u64::MAX, ..config() });
    talk.send(post("Content-Length: 1000", "")); // 1 ms a byte, once 200 ms are over
    for _ in 0..10 {
        talk.advance(100).send("x".repeat(90));
    }
    // 900 bytes in 1,000 ms: due at 200 + 900.
    let counts = "requests 1, closed.body_timeout 1, 4xx 1, rejects.timeout 1";
    talk.expect_deadline(100, late(), Closing::Shut, counts);
}

#[test]
fn body_is_not_late_while_nobody_reads_it() {
    for (field, interim) in [("", ""), ("\r\nExpect: 100-continue", CONTINUE)] {
        let gate = Gate::default();
        let inner = gate.clone();
        let app = one(move |request: Request| {
            let gate = inner.clone();
            async move {
                gate.wait().await;
                Response::text(request.into_body().bytes(100).await.unwrap())
            }
        });
        let patient = Http1Config { handler_timeout_ms: u64::MAX, body_rate_min: 1000, ..config() };
        let mut talk = Talk::with(app, patient);
        talk.send(post(&format!("Content-Length: 5{field}"), "")).advance(10 * BODY_MS);
        gate.open();
        talk.expect(interim).advance(BODY_MS - 1).expect("");
        talk.send("hello").expect(text("hello")).expect_closing(Closing::Open);
    }
}

#[test]
fn peer_that_takes_nothing_is_given_up() {
    let big = || one(|_| Response::text("x".repeat(3 * ANSWERS_HELD_BYTES)));
    let counts = "requests 2, closed.write_stall 1, 2xx 2";
    let mut talk = Talk::new(big());
    talk.window(0).send(get("/")).send(get("/"));
    talk.expect_deadline(STALL_MS, "", Closing::Cut, counts);
    // Any byte it takes is worth another term.
    let mut talk = Talk::new(big());
    talk.window(0).send(get("/")).send(get("/"));
    for _ in 0..5 {
        talk.window(1).advance(STALL_MS - 1).expect_closing(Closing::Open).advance(1).expect_closing(Closing::Open);
    }
    assert_eq!(talk.received(), "HTTP/");
    talk.expect_deadline(STALL_MS, "", Closing::Cut, counts);
}

#[test]
fn peer_that_takes_no_last_answer_is_given_up() {
    let counts = "requests 1, closed.write_stall 1, 2xx 1";
    let mut talk = Talk::new(router());
    talk.window(0).send("GET /a HTTP/1.0\r\n\r\n").expect_deadline(STALL_MS, "", Closing::Cut, counts);
    let mut talk = Talk::new(router());
    talk.window(0).send(get("/a")).expect_deadline(STALL_MS, "", Closing::Cut, counts);
    let mut talk = Talk::new(router());
    talk.window(0).send(get("/a")).end().expect_deadline(STALL_MS, "", Closing::Cut, counts);
}

#[test]
fn stalled_stream_is_given_up() {
    let (router, feed) = streaming(None);
    let mut talk = Talk::new(router);
    talk.window(0).send(get("/stream"));
    feed.push(Bytes::from_static(b"x"));
    talk.expect_deadline(STALL_MS, "", Closing::Cut, "requests 1, closed.write_stall 1, 2xx 1");
    assert!(feed.is_abandoned());
}

#[test]
fn handler_is_dropped_at_its_deadline() {
    let (router, _gate, drops) = gated();
    let mut talk = Talk::new(router);
    let answer = refusal(503, "the handler did not answer in time");
    let counts = "requests 1, handlers_dropped 1, closed.handler_timeout 1, 5xx 1";
    talk.send(get("/wait")).expect_deadline(HANDLER_MS, answer, Closing::Shut, counts);
    assert_eq!(drops.0.get(), 1);
}

// ---- slow readers --------------------------------------------------------------------------------

#[test]
fn slow_reader_is_read_from_no_more() {
    let page = ANSWERS_HELD_BYTES / 4;
    let mut talk = Talk::new(one(move |_| Response::text("x".repeat(page))));
    talk.window(0);
    let flood = get("/").repeat(100);
    talk.send(&flood);
    let answered = talk.context.counters.requests.get();
    // One send on its way, and another as large as answers may be.
    assert!((5..=16).contains(&answered), "{answered}");
    for _ in 0..20 {
        talk.send(&flood);
    }
    assert_eq!(talk.context.counters.requests.get(), answered);
    assert!(talk.wire.unread_bytes() >= 19 * flood.len(), "the rest is left to TCP");
    assert!(talk.wire.unsent_bytes() <= 2 * ANSWERS_HELD_BYTES);
    talk.window(usize::MAX).end();
    talk.run();
    let (answers, one) = (talk.wire.take_received(), text(&"x".repeat(page)).len() - "S\r\n".len() + DATE_LINES.len());
    assert_eq!(answers.len(), 2100 * one);
    talk.expect_closing(Closing::Closed).expect_counts("requests 2100, closed.peer_closed 1, 2xx 2100");
}

#[test]
fn stream_waits_for_its_reader() {
    let (router, feed) = streaming(None);
    let mut talk = Talk::new(router);
    talk.window(0).send(get("/stream"));
    let chunk = Bytes::from(vec![b'x'; 1000]);
    let mut pushed = 0;
    while feed.is_wanted() && pushed < 1000 {
        feed.push(chunk.clone());
        pushed += 1;
        talk.run();
    }
    let held = ANSWERS_HELD_BYTES / 1000;
    assert!((held..=2 * held + 2).contains(&pushed), "{pushed} chunks in memory");
    talk.window(usize::MAX);
    assert!(feed.is_wanted());
    feed.end(Vec::new());
    let body = format!("3e8\r\n{}\r\n", "x".repeat(1000)).repeat(pushed);
    talk.expect(format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nS\r\n\r\n{body}0\r\n\r\n"));
    talk.expect_closing(Closing::Open).expect_counts("requests 1, active 1, 2xx 1");
}

#[test]
fn unread_body_is_left_to_the_client() {
    let (router, gate, _) = gated();
    let mut talk = Talk::new(router.merge(Router::new().put("/wait", |_| "")));
    talk.send(get("/wait")).send(vec![b'x'; 1 << 20]);
    let read = (1 << 20) - talk.wire.unread_bytes();
    assert!((INPUT_AHEAD_BYTES_MAX..INPUT_AHEAD_BYTES_MAX + 16 * 1024).contains(&read), "{read} bytes in memory");
    gate.open();
    talk.expect(text("waited") + &refusal(501, Reject::UnknownMethod.reason()));
}

// ---- early answers -------------------------------------------------------------------------------

#[test]
fn unread_body_within_the_budget_keeps_the_connection() {
    for (bytes, keeps) in [(DISCARD_BYTES_MAX - 1, true), (DISCARD_BYTES_MAX, true), (DISCARD_BYTES_MAX + 1, false)] {
        let mut talk = Talk::new(router());
        talk.send(format!("PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: {bytes}\r\n\r\n"));
        if keeps {
            talk.expect(text("unread")).send(vec![b'x'; bytes - 1]).expect("");
            talk.send("x").send(get("/b")).expect(text("/b"));
            talk.expect_closing(Closing::Open).expect_counts("requests 2, active 1, 2xx 2");
        } else {
            talk.expect(last(&text("unread"))).expect_closing(Closing::Shut);
            talk.send(vec![b'x'; bytes]).end().expect("").expect_closing(Closing::Closed);
            talk.expect_counts("requests 1, closed.server_closed 1, 2xx 1");
        }
    }
}

#[test]
fn unread_chunked_body_is_discarded_up_to_the_budget() {
    let frame = "1\r\nx\r\n";
    let frames = DISCARD_BYTES_MAX / frame.len();
    for (frames, keeps) in [(frames, true), (frames + 1, false)] {
        let mut talk = Talk::new(router());
        talk.send("PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").expect(text("unread"));
        talk.send(frame.repeat(frames)).send("0\r\n\r\n").send(get("/b"));
        match keeps {
            true => talk.expect(text("/b")).expect_closing(Closing::Open),
            false => talk.expect("").expect_closing(Closing::Shut),
        };
    }
}

#[test]
fn discarded_body_that_pauses_too_long_ends_the_connection() {
    let mut talk = Talk::new(router());
    talk.send("PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345").expect(text("unread"));
    talk.expect_deadline(BODY_MS, "", Closing::Shut, "requests 1, closed.body_timeout 1, 2xx 1");
}

#[test]
fn discarded_body_that_turns_out_malformed_ends_the_connection() {
    let mut talk = Talk::new(router());
    talk.send("PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").expect(text("unread"));
    talk.send("zz\r\n").expect("").expect_closing(Closing::Shut).end();
    talk.expect_counts("requests 1, closed.server_closed 1, 2xx 1");
}

// ---- 100 Continue --------------------------------------------------------------------------------

const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";
const EXPECTS: &str = "Content-Length: 5\r\nExpect: 100-continue";

#[test]
fn continue_is_sent_once_the_body_is_wanted() {
    let mut talk = Talk::new(router());
    talk.send(post(EXPECTS, "")).expect(CONTINUE).send("hel").expect("").send("lo").expect(text("hello"));
    talk.send(get("/b")).expect(text("/b")).expect_counts("requests 2, active 1, 1xx 1, 2xx 2");
}

#[test]
fn continue_is_not_sent_for_a_body_that_has_come() {
    let mut talk = Talk::new(router());
    talk.send(post(EXPECTS, "hello")).expect(text("hello")).expect_counts("requests 1, active 1, 2xx 1");
}

#[test]
fn continue_is_not_sent_for_a_body_that_nobody_wants() {
    let mut talk = Talk::new(router());
    talk.send(post(EXPECTS, "").replace("POST", "PUT")).expect(last(&text("unread"))).expect_closing(Closing::Shut);
    // Whether the client sends it all the same is open: nothing more is read as a request.
    talk.send("GET /").expect("").end().expect_counts("requests 1, closed.server_closed 1, 2xx 1");
}

#[test]
fn continue_comes_before_an_answer_that_reads_the_body() {
    let mut talk = Talk::new(one(|request: Request| Response::stream(request.into_body())));
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nS\r\n\r\n";
    talk.send(post(EXPECTS, "")).expect(format!("{CONTINUE}{head}")).send("he").expect("he").send("llo").expect("llo");
    talk.expect_closing(Closing::Open).expect_counts("requests 1, active 1, 1xx 1, 2xx 1");
}

// ---- ends ----------------------------------------------------------------------------------------

#[test]
fn half_closed_client_gets_its_answers() {
    let (router, gate, _) = gated();
    let mut talk = Talk::new(router);
    talk.wire.send([get("/a"), get("/wait")].concat());
    talk.end().expect(text("/a"));
    gate.open();
    talk.expect(text("waited")).expect_closing(Closing::Closed);
    talk.expect_counts("requests 2, closed.peer_closed 1, 2xx 2");
}

#[test]
fn half_closed_client_that_reads_slowly_gets_its_answers() {
    let mut talk = Talk::new(router());
    talk.window(0).wire.send(get("/a"));
    talk.end().expect("").expect_closing(Closing::Open);
    talk.window(usize::MAX).expect(text("/a")).expect_closing(Closing::Closed);
    talk.expect_counts("requests 1, closed.peer_closed 1, 2xx 1");
}

#[test]
fn head_or_body_cut_short_is_refused() {
    let mut talk = Talk::new(router());
    talk.send("GET / HT").end().expect(refusal(400, Reject::Incomplete.reason())).expect_closing(Closing::Closed);
    talk.expect_counts("closed.rejected 1, 4xx 1, rejects.bad_request 1");
    let mut talk = Talk::new(router());
    let reason = BodyError::PeerGone.to_string();
    let answer = last(&text(&reason).replace("200 OK", "400 Bad Request"));
    talk.send(post("Content-Length: 5", "hell")).end().expect(answer).expect_closing(Closing::Closed);
    talk.expect_counts("requests 1, closed.server_closed 1, 4xx 1");
    let mut talk = Talk::new(router());
    talk.send(post("Content-Length: 5", "hell").replace("POST", "PUT")).end().expect(text("unread"));
    talk.expect_closing(Closing::Closed).expect_counts("requests 1, closed.server_closed 1, 2xx 1");
}

#[test]
fn malformed_body_is_refused_by_its_reader() {
    let mut talk = Talk::new(router());
    talk.send(post("Transfer-Encoding: chunked", "zz\r\n"));
    let answer = last(&text(Reject::BadChunkSize.reason()).replace("200 OK", "400 Bad Request"));
    talk.expect(answer).expect_closing(Closing::Shut).end();
    talk.expect_counts("requests 1, closed.rejected 1, 4xx 1, rejects.bad_request 1");
}

#[test]
fn malformed_body_closes_whatever_its_reader_answers() {
    let app = one(|request: Request| async move {
        let is_read = request.into_body().bytes(100).await.is_ok();
        Response::text(is_read.to_string())
    });
    let mut talk = Talk::new(app);
    talk.send(post("Transfer-Encoding: chunked", "zz\r\n")).expect(last(&text("false")));
    talk.expect_closing(Closing::Shut).end();
    talk.expect_counts("requests 1, closed.rejected 1, 2xx 1, rejects.bad_request 1");
}

#[test]
fn reset_drops_the_handler() {
    let (router, _gate, drops) = gated();
    let mut talk = Talk::new(router);
    talk.send(get("/wait"));
    assert_eq!(drops.0.get(), 0);
    talk.reset().expect("").expect_closing(Closing::Closed);
    assert_eq!(drops.0.get(), 1);
    talk.expect_counts("requests 1, handlers_dropped 1, closed.reset 1");
}

#[test]
fn reset_ends_every_other_state() {
    let (wait_router, feed) = streaming(None);
    let cases: [(Router, &str, &str); 5] = [
        (router(), "", "closed.reset 1"),
        (router(), "GET", "closed.reset 1"),
        (
            router(),
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx",
            "requests 1, handlers_dropped 1, closed.reset 1",
        ),
        (router(), "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx", "requests 1, closed.reset 1, 2xx 1"),
        (wait_router, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n", "requests 1, closed.reset 1, 2xx 1"),
    ];
    for (router, input, counts) in cases {
        let mut talk = Talk::new(router);
        talk.send(input).reset().expect_closing(Closing::Closed).expect_counts(counts);
    }
    assert!(feed.is_abandoned());
}

#[test]
fn stopped_connection_is_counted() {
    let (router, _gate, drops) = gated();
    let mut talk = Talk::new(router);
    talk.send(get("/wait")).wire.stop();
    assert_eq!(drops.0.get(), 1);
    talk.expect_counts("requests 1, closed.error 1");
}

// ---- the access log ------------------------------------------------------------------------------

/// The lines that `talk` with a service of `router` makes, from the request on.
fn logged(router: Router, talk: impl FnOnce(&mut Talk)) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let writer = Writer::start(Some(&path), 1).unwrap();
    let log = AccessLog::new(AccessLogFormat::Combined, 5, &writer);
    let context = Context::new(router.build().unwrap(), config(), Rc::new(Counters::default()));
    let mut talked = Talk::to(Rc::new(context.with_access_log(Some(Rc::new(log)))));
    talk(&mut talked);
    drop(talked);
    writer.close();
    let lines = std::fs::read_to_string(path).unwrap();
    lines.lines().map(|line| line[line.find("] ").unwrap() + 2..].to_owned()).collect()
}

#[test]
fn every_answer_has_one_line_when_it_is_written() {
    fn streamed(request: &Request) -> Response {
        let count: usize = request.query("count").and_then(|count| count.parse().ok()).unwrap_or(0);
        let chunks = (0..count).map(|_| Ok::<_, BodyError>(Bytes::from_static(b"abc")));
        Response::stream(Body::stream(futures_lite::stream::iter(chunks)))
    }
    let router = router()
        .get("/stream", |request: Request| streamed(&request))
        .get("/panic", |_| -> Response { panic!("now") })
        .get("/never", |_| std::future::pending::<Response>());
    let lines = logged(router, |talk| {
        talk.send(get("/one") + &get("/later") + &get("/stream?count=4"));
        talk.send("HEAD /one HTTP/1.1\r\nHost: x\r\n\r\n").send(post("Content-Length: 3", "abc"));
        talk.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n").send("ok");
        talk.advance(30).send(get("/never")).advance(HANDLER_MS);
    });
    assert_eq!(
        lines,
        [
            "\"GET /one HTTP/1.1\" 200 4 \"-\" \"-\" 0.000000 5",
            "\"GET /later HTTP/1.1\" 200 6 \"-\" \"-\" 0.000000 5",
            "\"GET /stream?count=4 HTTP/1.1\" 200 12 \"-\" \"-\" 0.000000 5",
            "\"HEAD /one HTTP/1.1\" 200 0 \"-\" \"-\" 0.000000 5",
            "\"POST / HTTP/1.1\" 200 3 \"-\" \"-\" 0.000000 5",
            "\"POST / HTTP/1.1\" 200 2 \"-\" \"-\" 0.000000 5",
            "\"GET /never HTTP/1.1\" 503 60 \"-\" \"-\" 0.400000 5",
        ]
    );
    let router = || Router::new().get("/panic", |_| -> Response { panic!("now") });
    assert_eq!(
        logged(router(), |talk| {
            talk.send(get("/panic"));
        }),
        ["\"GET /panic HTTP/1.1\" 500 62 \"-\" \"-\" 0.000000 5"]
    );
    assert_eq!(
        logged(router(), |talk| {
            talk.send("GET /x HTTP/1.1\r\nHo").advance(HEAD_MS);
        }),
        ["\"GET /x HTTP/1.1\" 408 63 \"-\" \"-\" 0.000000 5"]
    );
    assert_eq!(
        logged(router(), |talk| {
            talk.advance(IDLE_MS);
        }),
        [""; 0]
    );
}

#[test]
fn answer_that_does_not_come_to_its_end_has_a_line_too() {
    let never = || Router::new().get("/", |_| std::future::pending::<Response>());
    let gone = ["\"GET / HTTP/1.1\" 499 0 \"-\" \"-\" 0.000000 5"];
    assert_eq!(
        logged(never(), |talk| {
            talk.send(get("/")).reset();
        }),
        gone
    );
    assert_eq!(
        logged(never(), |talk| {
            talk.send(get("/"));
        }),
        gone,
        "ended with its server"
    );
    let breaks = Router::new().get("/", |_| {
        let chunks = [Ok(Bytes::from_static(b"abc")), Err(BodyError::Other("broken".into()))];
        Response::stream(Body::stream(futures_lite::stream::iter(chunks)))
    });
    let line = ["\"GET / HTTP/1.1\" 200 3 \"-\" \"-\" 0.000000 5"];
    assert_eq!(
        logged(breaks, |talk| {
            talk.send(get("/"));
        }),
        line
    );
}

// ---- panics --------------------------------------------------------------------------------------

const FAILED: &str = "the handler of this request failed";

/// Panics when dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a destructor panics");
    }
}

#[test]
fn panic_in_a_handler_costs_its_connection_a_500() {
    async fn fails_later(gate: Gate) -> &'static str {
        gate.wait().await;
        panic!("later");
    }
    let gate = Gate::default();
    let inner = gate.clone();
    let router = router()
        .get("/now", |_| -> Response { panic!("now") })
        .get("/first", |_| async { if true { panic!("at the first poll") } else { "" } })
        .get("/then", move |_| fails_later(inner.clone()))
        .get("/drop", |_| async {
            let _bomb = Bomb;
            "never"
        });
    let context = Talk::new(router).context; // dropped at once: one close by error
    for path in ["/now", "/first", "/then", "/drop"] {
        let before = context.counters.handler_panics.get();
        let mut talk = Talk::to(context.clone());
        talk.send([get("/a"), get(path), get("/b")].concat());
        gate.open();
        talk.expect(text("/a") + &refusal(500, FAILED)).expect_closing(Closing::Shut).end();
        assert_eq!(context.counters.handler_panics.get() - before, 1, "{path}");
    }
    let mut talk = Talk::to(context);
    talk.send(get("/a")).expect(text("/a"));
    talk.expect_counts("requests 9, handler_panics 4, active 1, closed.error 5, 2xx 5, 5xx 4");
}

#[test]
fn panic_with_a_body_under_way_is_answered() {
    let mut talk = Talk::new(one(|_| -> Response { panic!("now") }));
    talk.send(post("Content-Length: 5", "")).expect(refusal(500, FAILED)).expect_closing(Closing::Shut);
    talk.send("hello").end().expect_closing(Closing::Closed);
    talk.expect_counts("requests 1, handler_panics 1, closed.error 1, 5xx 1");
}

#[test]
fn panic_in_a_stream_breaks_the_answer_off() {
    let body = || {
        let mut polls = 0;
        Body::stream(futures_lite::stream::poll_fn(move |_| {
            polls += 1;
            if polls > 1 { panic!("in the stream") } else { Poll::Ready(Some(Ok(Bytes::from_static(b"abc")))) }
        }))
    };
    let mut talk = Talk::new(one(move |_| Response::stream(body())));
    talk.send(get("/")).expect("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nS\r\n\r\n3\r\nabc\r\n").end();
    talk.expect_closing(Closing::Closed).expect_counts("requests 1, handler_panics 1, closed.error 1, 2xx 1");
}

/// Answers at the first poll; its destructor panics.
struct AnswersAndPanics(bool, #[allow(dead_code)] Bomb);

impl Future for AnswersAndPanics {
    type Output = Response;

    fn poll(self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<Response> {
        if self.0 { Poll::Ready(Response::text("answered")) } else { Poll::Pending }
    }
}

#[test]
fn panic_in_a_destructor_stays_in_its_connection() {
    // After the answer, at the deadline and at a reset: in each, the task goes on to its end.
    let mut talk = Talk::new(one(|_| AnswersAndPanics(true, Bomb)));
    talk.send(get("/")).expect(refusal(500, FAILED)).end();
    talk.expect_counts("requests 1, handler_panics 1, closed.error 1, 5xx 1");
    let mut talk = Talk::new(one(|_| AnswersAndPanics(false, Bomb)));
    talk.send(get("/")).advance(HANDLER_MS).expect(refusal(503, "the handler did not answer in time")).end();
    talk.expect_counts("requests 1, handler_panics 1, handlers_dropped 1, closed.handler_timeout 1, 5xx 1");
    let mut talk = Talk::new(one(|_| AnswersAndPanics(false, Bomb)));
    talk.send(get("/")).reset();
    talk.expect_counts("requests 1, handler_panics 1, handlers_dropped 1, closed.reset 1");
    // In the stream of an answer that has none, at its end, and at a reset.
    fn bomb(ends: bool) -> Body {
        let bomb = Bomb;
        Body::stream(futures_lite::stream::poll_fn(move |_| {
            let _ = &bomb;
            if ends { Poll::Ready(None) } else { Poll::Pending }
        }))
    }
    for (method, ends) in [("HEAD", true), ("GET", true), ("GET", false)] {
        let mut talk = Talk::new(one(move |_| Response::stream(bomb(ends))));
        talk.send(get("/").replacen("GET", method, 1)).reset();
        assert_eq!(talk.context.counters.handler_panics.get(), 1, "{method} {ends}");
        talk.expect_closing(Closing::Closed);
    }
}

// ---- streamed answers ----------------------------------------------------------------------------

#[test]
fn stream_is_framed_as_version_and_length_have_it() {
    let http11 = || get("/stream");
    let http10 = || "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".to_owned();
    let cases = [
        (None, http11(), "Transfer-Encoding: chunked\r\nS\r\n", ["3\r\nabc\r\n", "2\r\nde\r\n", "0\r\n\r\n"], true),
        (Some(5), http11(), "Content-Length: 5\r\nS\r\n", ["abc", "de", ""], true),
        (None, http10(), "S\r\nConnection: close\r\n", ["abc", "de", ""], false),
        (Some(5), http10(), "Content-Length: 5\r\nS\r\nConnection: keep-alive\r\n", ["abc", "de", ""], true),
    ];
    for (length, request, fields, [first, second, end], keeps) in cases {
        let (router, feed) = streaming(length);
        let mut talk = Talk::new(router);
        talk.send(&request).expect(format!("HTTP/1.1 200 OK\r\n{fields}\r\n"));
        feed.push(Bytes::from_static(b"abc"));
        talk.expect(first);
        feed.push(Bytes::from_static(b"de"));
        talk.expect(second);
        feed.end(Vec::new());
        talk.expect(end).expect_closing(if keeps { Closing::Open } else { Closing::Shut });
        if !keeps {
            talk.end();
        }
        let ending = if keeps { "active 1" } else { "closed.server_closed 1" };
        talk.expect_counts(&format!("requests 1, {ending}, 2xx 1"));
        // The answer to HEAD ends with its head, and drops the body.
        let (router, feed) = streaming(length);
        let mut talk = Talk::new(router);
        talk.send(request.replacen("GET", "HEAD", 1)).expect(format!("HTTP/1.1 200 OK\r\n{fields}\r\n"));
        assert!(feed.is_abandoned());
    }
}

#[test]
fn stream_that_fails_ends_without_its_last_chunk() {
    for (length, first) in [(None, "3\r\nabc\r\n"), (Some(5), "abc")] {
        let (router, feed) = streaming(length);
        let mut talk = Talk::new(router);
        talk.send(get("/stream")).received();
        feed.push(Bytes::from_static(b"abc"));
        feed.fail(BodyError::Other("broken".into()));
        talk.expect(first).end().expect_closing(Closing::Closed);
        talk.expect_counts("requests 1, closed.error 1, 2xx 1");
    }
}

#[test]
fn stream_of_another_length_than_announced_breaks_off() {
    for (pieces, sent) in [(&["abc"][..], "abc"), (&["abc", "def"], "abc")] {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))).collect();
        let pieces = RefCell::new(Some(pieces));
        let mut talk = Talk::new(one(move |_| {
            let pieces = pieces.take().unwrap();
            Response::stream(Body::sized_stream(5, futures_lite::stream::iter(pieces)))
        }));
        talk.send(get("/")).expect(format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nS\r\n\r\n{sent}"));
        talk.end().expect_closing(Closing::Closed).expect_counts("requests 1, closed.error 1, 2xx 1");
    }
}

#[test]
fn trailers_follow_the_last_chunk() {
    let (router, feed) = streaming(None);
    let mut talk = Talk::new(router);
    talk.send(get("/stream")).received();
    feed.end(vec![("x-sum".parse().unwrap(), "7".parse().unwrap()), ("x-b".parse().unwrap(), "".parse().unwrap())]);
    talk.expect("0\r\nx-sum: 7\r\nx-b: \r\n\r\n").expect_closing(Closing::Open);
}

#[test]
fn empty_pieces_of_a_stream_end_nothing() {
    let pieces = ["", "a", "", "b", ""].map(|piece| Ok(Bytes::from_static(piece.as_bytes())));
    let mut talk = Talk::new(one(move |_| {
        Response::stream(Body::stream(futures_lite::stream::iter(
            pieces.clone().map(|p: Result<Bytes, ()>| Ok(p.unwrap())),
        )))
    }));
    talk.send(get("/"))
        .expect("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nS\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n");
}

#[test]
fn endless_stream_runs_no_further_than_its_reader() {
    let chunk = Bytes::from(vec![b'x'; 10_000]);
    let mut talk = Talk::new(one(move |_| {
        Response::stream(Body::stream(futures_lite::stream::repeat_with({
            let chunk = chunk.clone();
            move || Ok(chunk.clone())
        })))
    }));
    talk.window(1 << 20).send(get("/"));
    assert_eq!(talk.received().len(), (1 << 20) - DATE_LINES.len() + "S\r\n".len());
    // That it took something after the send began shows at the first look.
    talk.advance(STALL_MS);
    talk.expect_deadline(STALL_MS, "", Closing::Cut, "requests 1, closed.write_stall 1, 2xx 1");
}

// ---- draining ------------------------------------------------------------------------------------

#[test]
fn draining_answers_close() {
    let (router, gate, _) = gated();
    let context = Talk::new(router).context; // dropped at once: one close by error
    // One that is at work when the drain begins, one that is kept, one that is new.
    let (mut works, mut kept) = (Talk::to(context.clone()), Talk::to(context.clone()));
    works.send(get("/wait")).advance(10);
    kept.send(get("/a")).expect(text("/a"));
    works.drain();
    kept.drain().expect_closing(Closing::Open).advance(DRAIN_IDLE_GRACE_MS - 1);
    kept.send(get("/b")).expect(last(&text("/b"))).expect_closing(Closing::Shut).end();
    gate.open();
    works.expect(last(&text("waited"))).expect_closing(Closing::Shut).end();
    let mut fresh = Talk::to(context);
    fresh.send([get("/c"), get("/d")].concat()).expect(last(&text("/c"))).end().expect_closing(Closing::Closed);
    fresh.expect_counts("requests 4, closed.drained 3, closed.error 1, 2xx 4");
}

#[test]
fn draining_closes_idle_connections_after_a_grace() {
    let idle = Http1Config { idle_timeout_ms: 100_000, ..config() };
    // However long it has been idle: its next request may be on its way.
    for idle_ms in [0, 1, DRAIN_IDLE_GRACE_MS, 50_000] {
        let mut talk = Talk::with(router(), idle.clone());
        talk.advance(idle_ms).drain();
        talk.expect_deadline(DRAIN_IDLE_GRACE_MS, "", Closing::Closed, "closed.drained 1");
    }
}

#[test]
fn request_of_a_synchronous_handler_allocates_nothing() {
    let mut talk = Talk::new(Router::new().get("/yo", |_| "Hey!"));
    let one = "GET /yo HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut count = |requests: usize| {
        let bytes = one.repeat(requests);
        talk.send(&bytes).received();
        let mut received = 0;
        let counted = allocation_counter::measure(|| received = talk.send(&bytes).wire.take_received().len());
        assert!(received > requests * 100);
        counted.count_total
    };
    // The wire in memory allocates, a fixed number of times a turn; what a request costs is the difference.
    let (few, many) = (count(10), count(110));
    assert!(many <= few + 10, "100 requests more took {} allocations more", many - few);
}

#[test]
fn draining_leaves_a_head_under_way_its_time() {
    let mut talk = Talk::new(router());
    talk.send("GET /a HTTP/1.1\r\n").drain().advance(HEAD_MS - 1).send("Host: x\r\n\r\n");
    talk.expect(last(&text("/a"))).expect_closing(Closing::Shut).end();
    talk.expect_counts("requests 1, closed.drained 1, 2xx 1");
}

// ---- memory --------------------------------------------------------------------------------------

#[test]
fn streamed_body_is_not_kept_however_it_is_cut() {
    // The client is always ahead of the service, and takes the echo slowly.
    for (piece, window) in [(8_256, 65_536), (70_000, 65_536), (1_000, 65_536), (100_000, 30_000)] {
        let mut talk = Talk::new(Router::new().post("/", |req: Request| Response::stream(req.into_body())));
        talk.window(0);
        talk.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000\r\n\r\n");
        let bytes = vec![b'x'; piece];
        let held = allocation_counter::measure(|| {
            let (mut sent, mut taken) = (0, 0);
            while taken < 8 << 20 {
                while sent < taken + 250_000 {
                    talk.send(&bytes);
                    sent += piece;
                }
                talk.window(window);
                taken += talk.wire.take_received().len();
            }
        });
        assert!(held.bytes_max < 4 << 20, "pieces of {piece}, window {window}: {} bytes", held.bytes_max);
    }
}
