//! The service over memory: exact bytes, exact milliseconds, exact counters.
//!
//! Deadlines here: packet 100 ms, idle 1,000, body 200, stall 300, handler 400. Answers show as lines, see `show`.

use super::*;
use crate::{
    Router,
    ajp::writer::{Request as Asked, data, packet},
    http::{BodyError, ConnAddrs, Feed, HeadLimits},
    limits::{AJP_PACKET_BYTES, AJP_PACKET_BYTES_MAX, DRAIN_IDLE_GRACE_MS, INPUT_AHEAD_BYTES_MAX, LINGER_TIMEOUT_MS},
    service::http1::{self, Http1Config},
    stats::Counters,
    testing::memory::{Closing, Wire},
};
use std::cell::{Cell, RefCell};

const PACKET_MS: u64 = 100;
const IDLE_MS: u64 = 1000;
const BODY_MS: u64 = 200;
const STALL_MS: u64 = 300;
const HANDLER_MS: u64 = 400;

const ASK: &str = "GET_BODY_CHUNK 8186\n";
const END: &str = "END reuse\n";
const CLOSE: &str = "END close\n";

fn config() -> Http1Config {
    Http1Config {
        trusted_proxies: None,
        body_bytes_max: crate::limits::BODY_BUFFERED_BYTES_MAX,
        head: HeadLimits::default(),
        header_timeout_ms: PACKET_MS,
        idle_timeout_ms: IDLE_MS,
        body_timeout_ms: BODY_MS,
        body_rate_min: 0,
        write_stall_ms: STALL_MS,
        handler_timeout_ms: HANDLER_MS,
        requests_per_connection_max: None,
    }
}

/// A proxy's connection to a service.
struct Talk {
    wire: Wire,
    context: Rc<Context>,
}

impl Talk {
    fn new(router: Router) -> Self {
        Talk::with(router, config(), AjpOptions::without_secret())
    }

    fn with(router: Router, config: Http1Config, options: AjpOptions) -> Self {
        let context = Rc::new(Context::new(router.build().unwrap(), config, Rc::new(Counters::default())));
        let wire = Wire::new(|io| serve(io, context.clone(), Rc::new(options), 3));
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

    fn drain(&mut self) -> &mut Self {
        self.context.drain();
        self.wire.wake();
        self.wire.run();
        self
    }

    #[track_caller]
    fn expect(&mut self, expected: impl AsRef<str>) -> &mut Self {
        assert_eq!(show(&self.wire.take_received()), expected.as_ref());
        self
    }

    /// A whole error answer was sent, and the connection ended after it.
    #[track_caller]
    fn expect_refusal(&mut self, status: u16, cause: CloseCause) {
        let shown = show(&self.wire.take_received());
        assert!(shown.starts_with(&format!("HEADERS {status} ")), "{shown}");
        assert!(shown.ends_with(CLOSE), "{shown}");
        self.expect_end(cause);
    }

    /// The service has ended the stream; after the proxy's end it is gone.
    #[track_caller]
    fn expect_end(&mut self, cause: CloseCause) {
        assert!(self.wire.is_ended(), "the connection is open");
        if !self.wire.is_closed() {
            assert_eq!(self.wire.closing(), Closing::Shut, "lingers");
            self.wire.end();
            self.wire.run();
        }
        self.expect_closed(cause);
    }

    #[track_caller]
    fn expect_closed(&mut self, cause: CloseCause) {
        assert_eq!(self.wire.closing(), Closing::Closed);
        let counters = &self.context.counters;
        assert_eq!(counters.connections.closed.by(cause).get(), 1, "{:?}", counters.connections.closed);
        assert_eq!(counters.ajp.closed.snapshot(), counters.connections.closed.snapshot());
        assert_eq!((counters.connections.active.get(), counters.ajp.active.get()), (0, 0));
    }

    #[track_caller]
    fn expect_open(&mut self) -> &mut Self {
        assert_eq!(self.wire.closing(), Closing::Open);
        self
    }
}

/// Packets to the proxy, a line each. Panics on what is no packet, or is cut.
fn show(mut bytes: &[u8]) -> String {
    let mut shown = String::new();
    while !bytes.is_empty() {
        let len = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        assert_eq!(&bytes[..2], b"AB");
        assert!(4 + len <= AJP_PACKET_BYTES, "a packet of {len}");
        shown += &show_packet(&bytes[4..4 + len]);
        bytes = &bytes[4 + len..];
    }
    shown
}

fn show_packet(payload: &[u8]) -> String {
    let number = |at: usize| usize::from(u16::from_be_bytes([payload[at], payload[at + 1]]));
    match payload[0] {
        3 => {
            let len = number(1);
            assert_eq!((payload.len(), payload[payload.len() - 1]), (len + 4, 0), "one zero follows the data");
            match len {
                0..100 => format!("BODY {}\n", payload[3..3 + len].escape_ascii()),
                _ => format!("BODY of {len}\n"),
            }
        }
        4 => {
            let string = |at: &mut usize| {
                let len = number(*at);
                let text = String::from_utf8_lossy(&payload[*at + 2..*at + 2 + len]).into_owned();
                assert_eq!(payload[*at + 2 + len], 0);
                *at += len + 3;
                text
            };
            let mut at = 3;
            let mut shown = format!("HEADERS {} {}", number(1), string(&mut at));
            let count = number(at);
            at += 2;
            for _ in 0..count {
                let name = match payload[at] {
                    0xa0 => {
                        at += 2;
                        format!("{:02x}", payload[at - 1])
                    }
                    _ => string(&mut at),
                };
                let value = string(&mut at);
                if !["Server", "04"].contains(&name.as_str()) {
                    shown += &format!(" {name}={value}");
                }
            }
            assert_eq!(at, payload.len());
            shown + "\n"
        }
        5 => format!("END {}\n", ["close", "reuse"][usize::from(payload[1])]),
        6 => format!("GET_BODY_CHUNK {}\n", number(1)),
        9 => "CPONG\n".to_owned(),
        other => panic!("packet {other}"),
    }
}

fn text(body: &str) -> String {
    format!("HEADERS 200 OK 01=text/plain; charset=utf-8 03={}\nBODY {body}\n", body.len())
}

fn hello() -> Router {
    Router::new().get("/", |_| "hello").post("/", |_| "ignored").post("/length", |req: Request| async move {
        match req.into_body().bytes(1 << 20).await {
            Ok(bytes) => Response::text(bytes.len().to_string()),
            Err(error) => error.into(),
        }
    })
}

// ---- requests ------------------------------------------------------------------------------------

#[test]
fn request_is_answered_and_the_connection_used_again() {
    let mut talk = Talk::new(hello());
    let mut sent = 0;
    for _ in 0..3 {
        talk.send(Asked::get("/").packet());
        let answer = talk.wire.take_received();
        assert_eq!(show(&answer), text("hello") + END);
        sent += answer.len() as u64;
    }
    assert_eq!(talk.wire.sends(), 3, "one send an answer");
    let counters = talk.context.counters.snapshot();
    assert_eq!((counters.requests, counters.ajp.requests, counters.responses.successful), (3, 3, 3));
    assert_eq!((counters.ajp.accepted, counters.ajp.active, counters.connections.active), (1, 1, 1));
    let asked = 3 * Asked::get("/").packet().len() as u64;
    assert_eq!((counters.ajp.received, counters.ajp.sent), (asked, sent));
    talk.wire.end();
    talk.wire.run();
    talk.expect_closed(CloseCause::PeerClosed);
}

#[test]
fn answer_is_byte_for_byte_as_specified() {
    let mut talk = Talk::new(Router::new().get("/", |_| {
        Response::text("hi").with_header("date", "d").with_header("server", "s").with_header("etag", "e")
    }));
    talk.send(Asked::get("/").packet());
    let expected = b"AB\0\x4c\x04\0\xc8\0\x02OK\0\0\x05\xa0\x01\0\x19text/plain; charset=utf-8\0\xa0\x03\0\x012\0\
        \xa0\x04\0\x01d\0\0\x06Server\0\0\x01s\0\0\x04Etag\0\0\x01e\0\
        AB\0\x06\x03\0\x02hi\0AB\0\x02\x05\x01";
    assert_eq!(talk.wire.take_received().escape_ascii().to_string(), expected.escape_ascii().to_string());
}

#[test]
fn request_may_come_in_any_pieces() {
    let mut talk = Talk::new(hello());
    for byte in [Asked::post("/length").length(3).packet(), data(b"abc")].concat() {
        talk.send([byte]);
    }
    talk.expect(text("3") + END);
}

#[test]
fn requests_that_arrive_together_are_answered_in_order() {
    let packets = [
        Asked::get("/").packet(),
        packet(b"\x0a"),
        Asked::post("/length").length(2).packet(),
        data(b"ab"),
        Asked::get("/x").packet(),
    ];
    let mut talk = Talk::new(hello());
    talk.send(packets.concat());
    let not_found =
        "HEADERS 404 Not Found 01=text/plain; charset=utf-8 03=38\nBODY 404 Not Found: no route has this path\\n\n";
    talk.expect(text("hello") + END + "CPONG\n" + &text("2") + END + not_found + END);
}

#[test]
fn ping_is_answered_and_no_request() {
    let mut talk = Talk::new(hello());
    talk.send(b"\x12\x34\0\x01\x0a");
    assert_eq!(talk.wire.take_received(), b"AB\0\x01\x09");
    assert_eq!((talk.context.counters.ajp.pings.get(), talk.context.counters.requests.get()), (1, 0));
}

#[test]
fn head_has_the_fields_of_get_and_no_body() {
    let mut talk = Talk::new(hello());
    talk.send(Asked::new(3, "/").packet())
        .expect("HEADERS 200 OK 01=text/plain; charset=utf-8 03=5\n".to_owned() + END);
    talk.send(Asked::get("/").packet()).expect(text("hello") + END);
}

#[test]
fn answer_without_fields_and_body_is_headers_and_end() {
    let mut talk = Talk::new(Router::new().get("/", |_| StatusCode::NO_CONTENT));
    talk.send(Asked::get("/").packet()).expect("HEADERS 204 No Content\n".to_owned() + END);
}

#[test]
fn handler_learns_where_the_request_comes_from() {
    let seen = Rc::new(RefCell::new(None));
    let router = || {
        let seen = seen.clone();
        Router::new().get("/", move |req: Request| {
            let conn = req.conn().unwrap();
            *seen.borrow_mut() = Some((
                conn.addrs(),
                conn.listener(),
                req.scheme(),
                Forwarded::of(&req).cloned(),
                req.header("x-a").map(String::from),
            ));
            "ok"
        })
    };
    let asked = Asked::get("/")
        .header("x-a", "b")
        .attribute(0x03, "jo")
        .attribute(0x04, "Basic")
        .named("AJP_REMOTE_PORT", "4000");
    let asked = asked.named("AJP_LOCAL_ADDR", "192.0.2.1").named("ROLE", "admin").attribute(0x06, "r1").packet();
    let options = || AjpOptions::without_secret().allow_attributes("ROL*");
    Talk::with(router(), config(), options()).send(&asked).expect(text("ok") + END);
    let addr = |text: &str| Some(crate::http::PeerAddr::Ip(text.parse().unwrap()));
    let addrs = ConnAddrs { peer: addr("203.0.113.7:4000"), local: addr("192.0.2.1:443") };
    let mut said = Forwarded {
        route: Some("r1".into()),
        attributes: vec![("ROLE".into(), "admin".into())],
        ..Forwarded::default()
    };
    assert_eq!(seen.take(), Some((addrs, 3, "https", Some(said.clone()), Some("b".into()))));
    // The user, only where the proxy is trusted with that.
    Talk::with(router(), config(), options().trust_user()).send(&asked).expect(text("ok") + END);
    (said.remote_user, said.auth_type) = (Some("jo".into()), Some("Basic".into()));
    assert_eq!(seen.take().unwrap().3, Some(said));
}

#[test]
fn stray_empty_packets_are_passed_over_and_keep_nothing_alive() {
    let mut talk = Talk::new(hello());
    talk.send([Asked::get("/").packet(), packet(b"")].concat()).expect(text("hello") + END);
    talk.advance(IDLE_MS - 1).send(packet(b"\0\0")).expect("").expect_open();
    talk.advance(1).expect("").expect_closed(CloseCause::IdleTimeout);
}

// ---- who may forward -----------------------------------------------------------------------------

#[test]
fn secret_is_asked_for() {
    let with = |asked: Asked| {
        let mut talk = Talk::with(hello(), config(), AjpOptions::with_secret("geheim"));
        talk.send(asked.packet());
        talk
    };
    with(Asked::get("/").attribute(0x0c, "geheim")).expect(text("hello") + END).expect_open();
    for asked in [
        Asked::get("/"),
        Asked::get("/").attribute(0x0c, ""),
        Asked::get("/").attribute(0x0c, "geheiM"),
        Asked::get("/").attribute(0x0c, "geheim2"),
        Asked::get("/").attribute(0x0c, "gehei"),
        Asked::get("/").named("secret", "geheim"),
        Asked::get("/").header("secret", "geheim"),
        Asked::get("/").raw(b"\x0c\xff\xff"),
    ] {
        let mut talk = with(asked);
        assert_eq!((talk.context.counters.ajp.forbidden.get(), talk.context.counters.requests.get()), (1, 0));
        talk.expect_refusal(403, CloseCause::Rejected);
    }
}

#[test]
fn attribute_that_nobody_allowed_is_refused() {
    let with = |name: &str| {
        let mut talk = Talk::with(hello(), config(), AjpOptions::without_secret().allow_attributes("SSL_*"));
        talk.send(Asked::get("/").named(name, "v").packet());
        talk
    };
    for name in ["SSL_X", "AJP_REMOTE_PORT", "AJP_LOCAL_ADDR", "AJP_SSL_PROTOCOL", "JK_LB_ACTIVATION"] {
        with(name).expect(text("hello") + END);
    }
    // What Ghostcat (CVE-2020-1938) used.
    for name in ["javax.servlet.include.request_uri", "javax.servlet.include.path_info", "ssl_x", ""] {
        let mut talk = with(name);
        assert_eq!(talk.context.counters.ajp.forbidden.get(), 1);
        talk.expect_refusal(403, CloseCause::Rejected);
    }
}

// ---- what is refused -----------------------------------------------------------------------------

#[test]
fn malformed_request_gets_a_whole_answer_before_the_close() {
    for bytes in [
        Asked::get("/").attribute(0x0e, "v").packet(),
        Asked::new(99, "/").packet(),
        Asked::get("/").coded(0x0f, "v").packet(),
        packet(b"\x02"),
        packet(&[&Asked::get("/").payload()[..], b"x"].concat()),
        b"\x12\x34\xff\xff".to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ] {
        let mut talk = Talk::new(hello());
        talk.send(&bytes);
        let counters = &talk.context.counters;
        assert_eq!(
            (counters.ajp.malformed.get(), counters.rejects.bad_request.get(), counters.requests.get()),
            (1, 1, 0)
        );
        talk.expect_refusal(400, CloseCause::Rejected);
    }
}

#[test]
fn request_that_breaks_a_rule_of_http_gets_the_same_answer_and_a_close() {
    for (asked, status) in [
        (Asked::post("/").length(1).length(1), 400),
        (Asked::post("/").length(1).header("transfer-encoding", "chunked"), 400),
        (Asked::post("/").header("transfer-encoding", "gzip"), 400),
        (Asked::post("/").header("transfer-encoding", "gzip, chunked"), 501),
        (Asked::get("/").no_headers(), 400),
        (Asked::new(0xff, "/").attribute(0x0d, "PURGE"), 501),
    ] {
        let mut talk = Talk::new(hello());
        talk.send(asked.packet());
        talk.expect_refusal(status, CloseCause::Rejected);
    }
}

#[test]
fn shutdown_and_what_nobody_defined_close_the_connection_alone() {
    for payload in [&b"\x07"[..], b"\x08", b"\x01", b"\xff", b"\x0a\x0a"] {
        let mut talk = Talk::new(hello());
        talk.send(packet(payload)).expect("").expect_end(CloseCause::Rejected);
        // The next connection of the same shard is served.
        let context = talk.context.clone();
        let wire = Wire::new(|io| serve(io, context.clone(), Rc::new(AjpOptions::without_secret()), 0));
        Talk { wire, context }.send(Asked::get("/").packet()).expect(text("hello") + END);
    }
}

#[test]
fn what_follows_a_refusal_is_not_read_as_a_request() {
    let mut talk = Talk::new(hello());
    talk.send([Asked::post("/").length(1).length(1).packet(), Asked::get("/").packet()].concat());
    talk.send(Asked::get("/").packet());
    assert_eq!(talk.context.counters.requests.get(), 0);
    talk.expect_refusal(400, CloseCause::Rejected);
}

#[test]
fn packet_that_does_not_come_whole_is_refused() {
    let mut talk = Talk::new(hello());
    talk.send(&Asked::get("/").packet()[..20]).advance(PACKET_MS - 1).expect("").expect_open();
    talk.advance(1).expect_refusal(408, CloseCause::HeaderTimeout);
    let mut talk = Talk::new(hello());
    talk.send(b"\x12");
    talk.wire.end();
    talk.wire.run();
    let shown = show(&talk.wire.take_received());
    assert!(shown.starts_with("HEADERS 400 ") && shown.ends_with(CLOSE), "{shown}");
    talk.expect_closed(CloseCause::Rejected);
}

#[test]
fn deadline_of_a_packet_starts_with_its_first_byte() {
    let mut talk = Talk::new(hello());
    let asked = Asked::get("/").packet();
    talk.advance(IDLE_MS - 1).send(&asked[..1]).advance(PACKET_MS - 1).send(&asked[1..]).expect(text("hello") + END);
    talk.advance(IDLE_MS - 1).expect_open();
    talk.advance(1).expect_closed(CloseCause::IdleTimeout);
}

#[test]
fn connection_over_the_limit_is_answered_and_closed() {
    let context = Rc::new(Context::new(hello().build().unwrap(), config(), Rc::new(Counters::default())));
    let start = || {
        let wire = Wire::new(|io| refuse(io, context.clone(), Rc::new(AjpOptions::without_secret()), 0));
        Talk { wire, context: context.clone() }
    };
    let mut talk = start();
    // Without CPONG its proxy would take the server for dead.
    talk.send(packet(b"\x0a")).expect("CPONG\n").send(Asked::get("/").packet());
    talk.expect(
        "HEADERS 503 Service Unavailable 01=text/plain; charset=utf-8 03=38 Retry-After=1\n\
         BODY too many connections; try again later\\n\n"
            .to_owned()
            + CLOSE,
    );
    talk.expect_end(CloseCause::Rejected);
    let mut talk = start();
    talk.wire.run();
    talk.advance(LINGER_TIMEOUT_MS - 1).expect_open();
    talk.advance(1);
    assert_eq!(talk.wire.closing(), Closing::Closed, "it does not hold its place");
    assert_eq!(context.counters.requests.get(), 0);
}

// ---- request bodies ------------------------------------------------------------------------------

#[test]
fn body_of_known_length_begins_unasked_and_goes_on_when_asked() {
    let mut talk = Talk::new(hello());
    talk.send(Asked::post("/length").length(10).packet()).expect("");
    talk.send(data(b"abcd")).expect(ASK);
    talk.send(data(b"efgh")).expect(ASK);
    // Nothing is asked beyond the end: httpd would fail the request.
    talk.send(data(b"ij")).expect(text("10") + END);
    talk.send(Asked::get("/").packet()).expect(text("hello") + END);
}

#[test]
fn chunked_body_comes_when_asked_and_ends_with_an_empty_packet() {
    for end in [packet(b""), packet(b"\0\0")] {
        let mut talk = Talk::new(hello());
        let asked = Asked::post("/length").header("Transfer-Encoding", "chunked").packet();
        talk.send(asked).expect(ASK);
        assert_eq!(b"AB\0\x03\x06\x1f\xfa", &ajp::get_body_chunk(AJP_PACKET_BYTES));
        talk.send(data(b"abc")).expect(ASK).send(data(&[b'x'; 8186])).expect(ASK);
        talk.send(end).expect(text("8189") + END);
        talk.send(Asked::get("/").packet()).expect(text("hello") + END);
    }
}

#[test]
fn length_of_zero_does_not_wait() {
    let mut talk = Talk::new(hello());
    talk.send(Asked::post("/length").length(0).packet())
        .expect("HEADERS 200 OK 01=text/plain; charset=utf-8 03=1\nBODY 0\n".to_owned() + END);
    talk.send(Asked::get("/").packet()).expect(text("hello") + END);
}

#[test]
fn body_that_looks_like_a_request_is_a_body() {
    // A packet whose length begins with 02 looks like FORWARD_REQUEST; so does a whole request within a body.
    let inner = Asked::get("/smuggled").payload();
    let mut disguised = vec![b'x'; 0x0202];
    disguised[..inner.len().min(0x0202)].copy_from_slice(&inner[..inner.len().min(0x0202)]);
    for body in [disguised, Asked::get("/smuggled").packet(), packet(b"\x0a"), vec![0x02; 0x0a0a]] {
        for path in ["/length", "/"] {
            let mut talk = Talk::new(hello());
            talk.send([Asked::post(path).length(body.len()).packet(), data(&body)].concat());
            let expected = if path == "/" { "ignored".to_owned() } else { body.len().to_string() };
            talk.expect(text(&expected) + END);
            assert_eq!(talk.context.counters.requests.get(), 1);
        }
    }
}

#[test]
fn unread_body_is_thrown_away_up_to_what_was_on_its_way() {
    // The rest was never asked for, so that it never comes.
    let mut talk = Talk::new(hello());
    talk.send(Asked::post("/").length(1 << 30).packet());
    talk.expect("HEADERS 200 OK 01=text/plain; charset=utf-8 03=7\nBODY ignored\n");
    talk.send(data(&[7; 8186])).expect(END);
    talk.send(Asked::get("/").packet()).expect(text("hello") + END);
    // Nobody asked for a chunked one.
    talk.send(Asked::post("/").header("transfer-encoding", "chunked").packet()).expect(text("ignored") + END);
    talk.send(Asked::get("/").packet()).expect(text("hello") + END);
}

#[test]
fn unread_body_that_does_not_come_ends_the_connection() {
    let mut talk = Talk::new(hello());
    talk.send(Asked::post("/").length(5).packet()).expect(text("ignored"));
    talk.advance(BODY_MS - 1).expect("").advance(1).expect(CLOSE).expect_end(CloseCause::BodyTimeout);
}

#[test]
fn body_that_is_given_up_half_read_leaves_the_connection_in_step() {
    let mut talk = Talk::new(Router::new().get("/", |_| "hello").post("/some", |req: Request| async move {
        let mut body = req.into_body();
        body.chunk().await.unwrap().unwrap();
        // Asked for a second piece, and does not wait for it.
        futures_lite::future::poll_once(body.chunk()).await;
        "enough"
    }));
    talk.send([Asked::post("/some").length(100).packet(), data(b"abc")].concat()).expect(text("enough") + END);
    talk.send(Asked::get("/").packet()).expect(text("hello") + END);
}

#[test]
fn body_packet_that_was_asked_for_belongs_to_its_request() {
    let gate = Rc::new(Cell::new(false));
    let opened = gate.clone();
    let mut talk = Talk::new(Router::new().get("/", |_| "hello").post("/some", move |req: Request| {
        let gate = gate.clone();
        async move {
            let mut body = req.into_body();
            std::future::poll_fn(|cx| {
                let _ = body.poll_chunk(cx);
                if gate.get() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            "enough"
        }
    }));
    talk.send(Asked::post("/some").header("transfer-encoding", "chunked").packet()).expect(ASK);
    opened.set(true);
    // The answer; and the packet on its way, whatever it holds, is awaited before the end is told.
    talk.send(data(&Asked::get("/").packet())).expect(ASK.replace(ASK, "") + &text("enough") + END);
    assert_eq!(talk.context.counters.requests.get(), 1);
    talk.send(Asked::get("/").packet()).expect(text("hello") + END);
}

#[test]
fn malformed_body_is_refused_whole() {
    let length = |body: Vec<u8>| [Asked::post("/length").length(5).packet(), body].concat();
    let chunked =
        |body: Vec<u8>| [Asked::post("/length").header("transfer-encoding", "chunked").packet(), body].concat();
    for bytes in [
        length(data(b"abcdef")),              // more than announced
        length(packet(b"\0\x05abcd")),        // lengths that disagree
        length(packet(b"\x02")),              // cut
        length(b"\x12\x35".to_vec()),         // no packet
        length(b"\x12\x34\xff\xff".to_vec()), // too large a packet
        chunked(packet(b"\0\x01ab")),
    ] {
        let mut talk = Talk::new(hello());
        talk.send(&bytes);
        let counters = &talk.context.counters;
        assert_eq!((counters.ajp.malformed.get(), counters.rejects.bad_request.get()), (1, 1));
        let shown = show(&talk.wire.take_received());
        assert_eq!(shown.matches("HEADERS").count(), 1, "{shown}");
        assert!(shown.trim_start_matches(ASK).starts_with("HEADERS 400 ") && shown.ends_with(CLOSE), "{shown}");
        talk.expect_end(CloseCause::Rejected);
    }
}

#[test]
fn body_that_breaks_off_ends_the_connection_after_its_answer() {
    // The proxy's client went away: the proxy says so by an empty packet.
    let mut talk = Talk::new(hello());
    talk.send([Asked::post("/length").length(5).packet(), packet(b"")].concat());
    talk.expect_refusal(400, CloseCause::PeerClosed);
    let mut talk = Talk::new(hello());
    talk.send([Asked::post("/length").length(5).packet(), data(b"ab")].concat()).expect(ASK);
    talk.wire.end();
    talk.wire.run();
    let shown = show(&talk.wire.take_received());
    assert!(shown.starts_with("HEADERS 400 ") && shown.ends_with(CLOSE), "{shown}");
    talk.expect_closed(CloseCause::PeerClosed);
}

#[test]
fn body_that_is_late_is_refused_whole() {
    let mut talk = Talk::new(hello());
    talk.send([Asked::post("/length").length(5).packet(), data(b"ab")].concat()).expect(ASK);
    talk.advance(BODY_MS - 1).expect("").send(&data(b"cde")[..3]).advance(1);
    assert_eq!(talk.context.counters.rejects.timeout.get(), 1);
    talk.expect_refusal(408, CloseCause::BodyTimeout);
}

#[test]
fn body_is_asked_for_only_as_its_reader_reads() {
    let body = Rc::new(RefCell::new(None));
    let kept = body.clone();
    let mut talk = Talk::new(Router::new().post("/keep", move |req: Request| {
        *kept.borrow_mut() = Some(req.into_body());
        std::future::pending::<&str>()
    }));
    talk.send([Asked::post("/keep").length(1 << 20).packet(), data(&[1; 8000])].concat()).expect("");
    // A proxy that does not keep to it is not read from for ever.
    for _ in 0..40 {
        talk.send(data(&[1; 8000]));
    }
    assert!(talk.wire.unread_bytes() > 320_000 - INPUT_AHEAD_BYTES_MAX - 2 * AJP_PACKET_BYTES);
    assert_eq!(body.borrow().as_ref().unwrap().len(), Some(1 << 20));
}

// ---- answers -------------------------------------------------------------------------------------

#[test]
fn large_body_goes_in_packets_of_8184() {
    let router = |body: Vec<u8>| {
        let body = Bytes::from(body);
        Router::new().get("/", move |_| Response::stream(Body::from(body.clone())))
    };
    for len in [8183, 8184, 8185, 2 * 8184, COPIED_BODY_BYTES_MAX + 1, 1 << 20] {
        let body: Vec<u8> = (0..len).map(|index| (index % 251) as u8).collect();
        let mut talk = Talk::new(router(body.clone()));
        talk.send(Asked::get("/").packet());
        let received = talk.wire.take_received();
        let mut expected = format!("HEADERS 200 OK 03={len}\n");
        expected += &"BODY of 8184\n".repeat(len / 8184);
        let rest = &body[len / 8184 * 8184..];
        match rest.len() {
            0 => {}
            1..100 => expected += &format!("BODY {}\n", rest.escape_ascii()),
            rest => expected += &format!("BODY of {rest}\n"),
        }
        assert_eq!(show(&received), expected + END);
        assert_eq!(body_of(&received), body);
    }
}

/// The data of all body packets.
fn body_of(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while !bytes.is_empty() {
        let len = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        if bytes[4] == 3 {
            body.extend_from_slice(&bytes[7..4 + len - 1]);
        }
        bytes = &bytes[4 + len..];
    }
    body
}

#[test]
fn packet_size_is_an_option() {
    let body = Bytes::from(vec![b'x'; 100_000]);
    let options = AjpOptions::without_secret().packet_bytes_max(AJP_PACKET_BYTES_MAX);
    let mut talk = Talk::with(
        Router::new().post("/", move |req: Request| {
            let body = body.clone();
            async move {
                let length = req.into_body().bytes(1 << 20).await.unwrap().len();
                Response::stream(Body::from(body.clone())).with_header("x-length", length.to_string())
            }
        }),
        config(),
        options,
    );
    talk.send([Asked::post("/").header("a", "b".repeat(20_000)).length(70_000).packet(), data(&[1; 65_530])].concat());
    assert_eq!(talk.wire.take_received(), b"AB\0\x03\x06\xff\xfa");
    talk.send(data(&[1; 70_000 - 65_530]));
    let received = talk.wire.take_received();
    let text = String::from_utf8_lossy(&received);
    assert!(text.contains("X-Length\0\0\x0570000\0"));
    assert!(received.windows(7).any(|window| window == b"AB\xff\xfc\x03\xff\xf8"), "the largest packet");
    assert_eq!(body_of(&received).len(), 100_000);
}

#[test]
fn streamed_answer_goes_out_as_it_is_made() {
    let (feed, body) = Feed::new(None);
    let body = RefCell::new(Some(body));
    let mut talk = Talk::new(Router::new().get("/", move |_| Response::stream(body.take().unwrap())));
    talk.send(Asked::get("/").packet()).expect("HEADERS 200 OK\n");
    feed.push(Bytes::from_static(b"one"));
    talk.wire.run();
    talk.expect("BODY one\n");
    feed.push(Bytes::from_static(b"two"));
    feed.end(Vec::new());
    talk.wire.run();
    talk.expect("BODY two\n".to_owned() + END);
    talk.send(packet(b"\x0a")).expect("CPONG\n");
}

#[test]
fn echo_streams_both_ways() {
    let mut talk = Talk::new(Router::new().post("/", |req: Request| Response::stream(req.into_body())));
    talk.send(Asked::post("/").length(6).packet()).expect("HEADERS 200 OK 03=6\n");
    talk.send(data(b"abc")).expect("BODY abc\n".to_owned() + ASK);
    talk.send(data(b"def")).expect("BODY def\n".to_owned() + END);
}

#[test]
fn answer_that_breaks_off_ends_without_end_response() {
    for fails in [true, false] {
        let (feed, body) = Feed::new(Some(10));
        let body = RefCell::new(Some(body));
        let mut talk = Talk::new(Router::new().get("/", move |_| {
            let body = body.take().unwrap();
            match fails {
                true => Response::stream(body),
                false => {
                    Response::stream(Body::stream(futures_lite::stream::once_future(async { panic!("on purpose") })))
                }
            }
        }));
        feed.push(Bytes::from_static(b"one"));
        feed.fail(BodyError::PeerGone);
        talk.send(Asked::get("/").packet());
        let shown = show(&talk.wire.take_received());
        assert_eq!(shown, if fails { "HEADERS 200 OK 03=10\nBODY one\n" } else { "HEADERS 200 OK\n" });
        assert_eq!(talk.context.counters.handler_panics.get(), u64::from(!fails));
        talk.expect_end(CloseCause::Error);
    }
}

#[test]
fn handler_that_panics_costs_one_answer() {
    let mut talk = Talk::new(
        Router::new()
            .get("/now", |_| -> &str { panic!("on purpose") })
            .get("/later", |_| async { if true { panic!("on purpose") } else { "" } }),
    );
    talk.send(Asked::get("/now").packet());
    assert_eq!(talk.context.counters.handler_panics.get(), 1);
    talk.expect_refusal(500, CloseCause::Error);
    let mut talk = Talk::new(Router::new().get("/", |_| async { if true { panic!("on purpose") } else { "" } }));
    talk.send(Asked::get("/").packet());
    talk.expect_refusal(500, CloseCause::Error);
}

#[test]
fn handler_that_takes_too_long_is_dropped() {
    let mut talk = Talk::new(Router::new().get("/", |_| std::future::pending::<&str>()));
    talk.send(Asked::get("/").packet()).advance(HANDLER_MS - 1).expect("").advance(1);
    assert_eq!(talk.context.counters.handlers_dropped.get(), 1);
    talk.expect_refusal(503, CloseCause::HandlerTimeout);
}

#[test]
fn handler_of_a_proxy_that_is_gone_is_dropped() {
    let mut talk = Talk::new(Router::new().get("/", |_| std::future::pending::<&str>()));
    talk.send(Asked::get("/").packet());
    talk.wire.reset();
    talk.wire.run();
    assert_eq!(talk.context.counters.handlers_dropped.get(), 1);
    talk.expect_closed(CloseCause::Reset);
}

#[test]
fn fields_that_do_not_fit_become_a_whole_error() {
    let mut talk = Talk::new(Router::new().get("/", |_| Response::text("x").with_header("a", "b".repeat(9000))));
    talk.send(Asked::get("/").packet());
    let shown = show(&talk.wire.take_received());
    assert!(shown.starts_with("HEADERS 500 ") && shown.ends_with(END), "{shown}");
    assert_eq!(shown.matches("HEADERS").count(), 1);
    assert_eq!(talk.context.counters.responses.server_error.get(), 1);
    assert_eq!(talk.context.counters.responses.successful.get(), 0);
}

#[test]
fn handler_that_asks_for_a_close_gets_it() {
    let mut talk = Talk::new(Router::new().get("/", |_| Response::text("bye").with_header("connection", "close")));
    talk.send(Asked::get("/").packet()).expect(text("bye") + CLOSE).expect_end(CloseCause::ServerClosed);
}

#[test]
fn connection_header_of_the_client_does_not_close_the_proxys() {
    let mut talk = Talk::new(hello());
    talk.send(Asked::get("/").coded(0x06, "close").packet()).expect(text("hello") + END).expect_open();
    let old = Asked::get("/").no_headers().protocol("HTTP/1.0").packet();
    talk.send(old).expect(text("hello") + END).expect_open();
}

#[test]
fn last_request_of_a_connection_says_so() {
    let config = Http1Config { requests_per_connection_max: Some(2), ..config() };
    let mut talk = Talk::with(hello(), config, AjpOptions::without_secret());
    talk.send(Asked::get("/").packet()).expect(text("hello") + END);
    talk.send(Asked::get("/").packet()).expect(text("hello") + CLOSE).expect_end(CloseCause::RequestsMax);
}

#[test]
fn peer_that_reads_nothing_is_given_up() {
    let body = Bytes::from(vec![b'x'; 200_000]);
    let mut talk = Talk::new(Router::new().get("/", move |_| Response::stream(Body::from(body.clone()))));
    talk.wire.set_window(10_000);
    talk.send(Asked::get("/").packet());
    talk.advance(STALL_MS - 1);
    talk.wire.set_window(1); // one byte taken: it lives
    talk.wire.run();
    talk.advance(STALL_MS - 1).expect_open();
    talk.advance(STALL_MS);
    assert_eq!(talk.wire.closing(), Closing::Cut);
    assert_eq!(talk.context.counters.connections.closed.by(CloseCause::WriteStall).get(), 1);
}

#[test]
fn send_that_goes_out_in_pieces_goes_on_at_the_right_byte() {
    let body: Vec<u8> = (0..100_000).map(|index| (index % 251) as u8).collect();
    let bytes = Bytes::from(body.clone());
    let mut talk = Talk::new(Router::new().get("/", move |_| Response::stream(Body::from(bytes.clone()))));
    talk.wire.set_window(0);
    talk.send(Asked::get("/").packet());
    let mut received = Vec::new();
    while received.len() < 100_000 || !received.ends_with(b"AB\0\x02\x05\x01") {
        talk.wire.set_window(997);
        talk.wire.run();
        received.extend(talk.wire.take_received());
    }
    assert_eq!(body_of(&received), body);
}

#[test]
fn slow_reader_holds_up_what_streams_to_it() {
    let (feed, body) = Feed::new(None);
    let body = RefCell::new(Some(body));
    let mut talk = Talk::new(Router::new().get("/", move |_| Response::stream(body.take().unwrap())));
    talk.wire.set_window(0);
    talk.send(Asked::get("/").packet());
    for _ in 0..100 {
        feed.push(Bytes::from(vec![b'x'; 10_000]));
        talk.wire.run();
    }
    let taken = 1_000_000 - feed.queued_bytes();
    assert!(taken <= 2 * ANSWERS_HELD_BYTES + 20_000, "{taken} bytes are held");
}

// ---- the drain -----------------------------------------------------------------------------------

#[test]
fn drain_finishes_what_is_in_flight_and_says_it_is_the_last() {
    let (feed, body) = Feed::new(None);
    let body = RefCell::new(Some(body));
    let mut talk = Talk::new(Router::new().get("/", move |_| Response::stream(body.take().unwrap())));
    talk.send(Asked::get("/").packet()).expect("HEADERS 200 OK\n");
    talk.drain().expect("").expect_open();
    feed.push(Bytes::from_static(b"end"));
    feed.end(Vec::new());
    talk.wire.run();
    talk.expect("BODY end\n".to_owned() + CLOSE).expect_end(CloseCause::Drained);
}

#[test]
fn drain_gives_waiting_connections_a_grace() {
    let mut talk = Talk::new(hello());
    talk.send(Asked::get("/").packet()).expect(text("hello") + END);
    talk.advance(IDLE_MS - 1).drain().advance(DRAIN_IDLE_GRACE_MS - 1).expect_open();
    talk.advance(1).expect("").expect_closed(CloseCause::Drained);
    let mut talk = Talk::new(hello());
    talk.drain().send(Asked::get("/").packet()).expect(text("hello") + CLOSE).expect_end(CloseCause::Drained);
}

// ---- and HTTP ------------------------------------------------------------------------------------

/// What a handler and the server answer is the same by both ways: status, fields and their order, body.
#[test]
fn answers_are_those_of_http() {
    let router = || {
        Router::new()
            .get("/", |_| {
                Response::html("<p>").with_header("x-a", "1").with_header("x-a", "2").with_header("set-cookie", "c=d")
            })
            .get("/none", |_| StatusCode::NO_CONTENT)
            .get("/304", |_| Response::new(StatusCode::NOT_MODIFIED).with_header("etag", "\"e\""))
            .get("/go", |_| Response::redirect(StatusCode::SEE_OTHER, "/there"))
            .get("/teapot", |_| StatusCode::IM_A_TEAPOT)
            .post("/", |req: Request| async move { Response::text(req.into_body().bytes(99).await.unwrap()) })
    };
    let cases = [
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", Asked::get("/")),
        ("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n", Asked::new(3, "/")),
        ("OPTIONS / HTTP/1.1\r\nHost: x\r\n\r\n", Asked::new(1, "/")),
        ("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", Asked::new(1, "*")),
        ("DELETE / HTTP/1.1\r\nHost: x\r\n\r\n", Asked::new(6, "/")),
        ("GET /none HTTP/1.1\r\nHost: x\r\n\r\n", Asked::get("/none")),
        ("GET /304 HTTP/1.1\r\nHost: x\r\n\r\n", Asked::get("/304")),
        ("GET /go HTTP/1.1\r\nHost: x\r\n\r\n", Asked::get("/go")),
        ("GET /teapot HTTP/1.1\r\nHost: x\r\n\r\n", Asked::get("/teapot")),
        ("GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", Asked::get("/nowhere")),
        ("PURGE / HTTP/1.1\r\nHost: x\r\n\r\n", Asked::new(0xff, "/").attribute(0x0d, "PURGE")),
        ("GET / HTTP/1.1\r\n\r\n", Asked::get("/").no_headers()),
        ("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab", Asked::post("/").length(2)),
    ];
    for (text, asked) in cases {
        let mut http = Wire::new(|io| {
            let context = Context::new(router().build().unwrap(), config(), Rc::new(Counters::default()));
            http1::serve(io, Rc::new(context), 0, ())
        });
        http.send(text);
        http.run();
        let by_http = String::from_utf8(http.take_received()).unwrap();
        let (head, body) = by_http.split_once("\r\n\r\n").unwrap();
        let fields = head.lines().skip(1).filter(|line| !line.starts_with("Connection:"));
        let fields: Vec<String> = fields.map(str::to_ascii_lowercase).collect();

        let mut talk = Talk::new(router());
        talk.send(asked.packet()).send(data(b"ab"));
        let received = talk.wire.take_received();
        assert_eq!(received[4], 4);
        let status = u16::from_be_bytes([received[5], received[6]]);
        assert_eq!(head.split(' ').nth(1), Some(status.to_string().as_str()), "{text}");
        assert_eq!(fields_of(&received), fields, "{text}");
        assert_eq!(String::from_utf8(body_of(&received)).unwrap(), body, "{text}");
    }
}

/// `name: value` in small letters of each field of the SEND_HEADERS that `bytes` begins with.
fn fields_of(bytes: &[u8]) -> Vec<String> {
    const NAMES: [&str; 7] =
        ["content-type", "content-language", "content-length", "date", "last-modified", "location", "set-cookie"];
    let string = |at: &mut usize| {
        let len = usize::from(u16::from_be_bytes([bytes[*at], bytes[*at + 1]]));
        *at += len + 3;
        String::from_utf8_lossy(&bytes[*at - len - 1..*at - 1]).to_ascii_lowercase()
    };
    let mut at = 7;
    string(&mut at);
    let count = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    at += 2;
    let mut field = || {
        let name = match bytes[at] {
            0xa0 => {
                at += 2;
                NAMES[usize::from(bytes[at - 1]) - 1].to_owned()
            }
            _ => string(&mut at),
        };
        format!("{name}: {}", string(&mut at))
    };
    (0..count).map(|_| field()).collect()
}
