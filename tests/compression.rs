//! What `middleware::Compression` does to answers: exact bytes after decoding, exact fields, bounded memory.

mod common;

use bytes::Bytes;
use common::{
    live::{Live, wait_until},
    raw::Raw,
    response::{Framing, Response as Answer},
    server::Server,
};
use everycore::{
    Request, Response, Router,
    http::{Body, Feed, StatusCode},
    limits::{
        COMPRESS_BYTES_MIN, COMPRESS_ON_SHARD_BYTES_MAX, COMPRESS_PIECE_BYTES_MAX, COMPRESS_STREAMS_MAX,
        COMPRESS_WHOLE_BYTES_MAX,
    },
    middleware::{Compression, Level},
    testing::Client,
};
use futures_lite::stream;
use socket2::SockRef;
use std::{
    cell::{Cell, RefCell},
    io::{Read, Write},
    process::Command,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

// ---- what is sent, and how it is read ---------------------------------------------------------------

/// Text that compresses to about a third.
fn text(length: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(length + 32);
    let mut random = fastrand::Rng::with_seed(7);
    while text.len() < length {
        writeln!(text, "item {} costs {} coins", random.u32(0..1000), random.u16(..)).expect("memory takes it");
    }
    text.truncate(length);
    text
}

fn noise(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(9);
    std::iter::repeat_with(|| random.u8(..)).take(length).collect()
}

fn decode(coding: &str, encoded: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    match coding {
        "gzip" => flate2::read::GzDecoder::new(encoded).read_to_end(&mut plain),
        "br" => brotli::Decompressor::new(encoded, 4096).read_to_end(&mut plain),
        _ => panic!("no such coding: {coding}"),
    }
    .unwrap_or_else(|error| panic!("{coding}: {error}"));
    plain
}

/// Decodes as far as it goes, of a coding that has not ended.
fn decode_begun(coding: &str, encoded: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    let mut buffer = [0; 4096];
    let mut decoder: Box<dyn Read> = match coding {
        "gzip" => Box::new(flate2::read::GzDecoder::new(encoded)),
        _ => Box::new(brotli::Decompressor::new(encoded, 4096)),
    };
    while let Ok(count @ 1..) = decoder.read(&mut buffer) {
        plain.extend_from_slice(&buffer[..count]);
    }
    plain
}

fn get(target: &str, accept: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: {accept}\r\n\r\n")
}

fn header<'a>(answer: &'a Answer, name: &'a str) -> Option<&'a str> {
    answer.values(name).next()
}

fn length_of(request: &Request) -> usize {
    request.param("length").and_then(|length| length.parse().ok()).expect("the test's own path")
}

/// `/text/N` in memory, `/noise/N` as well, `/pieces/N/P` as a stream of pieces.
fn bodies() -> Router {
    Router::new()
        .get("/text/{length}", |req: Request| Response::text(text(length_of(&req))))
        .get("/noise/{length}", |req: Request| Response::text(noise(length_of(&req))))
        .get("/pieces/{length}/{piece}", |req: Request| {
            let piece: usize = req.param("piece").and_then(|piece| piece.parse().ok()).expect("the test's own path");
            let text = Bytes::from(text(length_of(&req)));
            let pieces = (0..text.len()).step_by(piece).map(move |at| Ok(text.slice(at..text.len().min(at + piece))));
            Response::text(Body::stream(stream::iter(pieces)))
        })
}

// ---- bytes -----------------------------------------------------------------------------------------

#[test]
fn every_size_coding_and_level_decodes_to_the_same_bytes() {
    for level in [Level::Fast, Level::Balanced, Level::Small] {
        let live = Live::start(1, move |_| bodies().wrap(Compression::new().level(level).layer()));
        let mut connection = Raw::connect(live.http);
        let bounds = [COMPRESS_BYTES_MIN, COMPRESS_ON_SHARD_BYTES_MAX, COMPRESS_WHOLE_BYTES_MAX];
        for length in bounds.into_iter().flat_map(|bound| [bound - 1, bound, bound + 1]) {
            let expected = text(length);
            for coding in ["gzip", "br"] {
                let answer = connection.exchange(get(&format!("/text/{length}"), coding));
                assert_eq!(header(&answer, "vary"), Some("Accept-Encoding"));
                let is_long_enough = length >= COMPRESS_BYTES_MIN;
                assert_eq!(header(&answer, "content-encoding"), is_long_enough.then_some(coding), "{length}");
                // The client's own reader checks the length.
                let is_whole = length <= COMPRESS_WHOLE_BYTES_MAX;
                assert_eq!(matches!(answer.framing, Framing::Length), is_whole, "{length}");
                let plain = if is_long_enough { decode(coding, &answer.body) } else { answer.body.clone() };
                assert!(plain == expected, "{length} bytes as {coding} at {level:?}");
                assert!(!is_long_enough || answer.body.len() < length / 2, "{length} became {}", answer.body.len());
            }
        }
    }
}

#[test]
fn stream_of_pieces_of_any_size_decodes_to_the_same_bytes() {
    let live = Live::start(1, |_| bodies().wrap(Compression::new().layer()));
    let mut connection = Raw::connect(live.http);
    let on_shard = COMPRESS_ON_SHARD_BYTES_MAX;
    for (length, piece) in [
        (1, 1),
        (3000, 7),
        (5 * on_shard, on_shard),
        (5 * on_shard, on_shard + 1),
        (300_000, 1000),
        (3 * COMPRESS_PIECE_BYTES_MAX + 5, COMPRESS_PIECE_BYTES_MAX + 1),
        (1_000_000, 1_000_000),
    ] {
        for coding in ["gzip", "br"] {
            let answer = connection.exchange(get(&format!("/pieces/{length}/{piece}"), coding));
            assert_eq!(header(&answer, "content-encoding"), Some(coding));
            assert_eq!(header(&answer, "transfer-encoding"), Some("chunked"));
            assert!(decode(coding, &answer.body) == text(length), "{length} bytes by {piece} as {coding}");
        }
    }
}

#[test]
fn body_that_becomes_no_smaller_goes_out_as_it_is_unless_that_is_refused() {
    let live = Live::start(1, |_| bodies().wrap(Compression::new().layer()));
    let mut connection = Raw::connect(live.http);
    for length in [2000, 200_000] {
        let answer = connection.exchange(get(&format!("/noise/{length}"), "gzip, br"));
        assert_eq!((header(&answer, "content-encoding"), header(&answer, "vary")), (None, Some("Accept-Encoding")));
        assert!(answer.body == noise(length));
        let answer = connection.exchange(get(&format!("/noise/{length}"), "gzip, identity;q=0"));
        assert_eq!(header(&answer, "content-encoding"), Some("gzip"));
        assert!(decode("gzip", &answer.body) == noise(length));
    }
    let answer = connection.exchange(get("/text/10", "br, *;q=0"));
    assert_eq!(header(&answer, "content-encoding"), Some("br"));
    assert_eq!(decode("br", &answer.body), text(10));
}

// ---- fields ----------------------------------------------------------------------------------------

fn client(make: impl Fn() -> Response + 'static) -> Client {
    Client::new(move || Router::new().get("/", move |_| make()).wrap(Compression::new().layer())).expect("no conflicts")
}

fn long() -> Response {
    Response::text(text(5000))
}

#[track_caller]
fn check(make: impl Fn() -> Response + 'static, coding: Option<&str>, vary: Option<&str>) {
    let client = client(make);
    let answer = client.get("/").header("Accept-Encoding", "gzip").send();
    let header = |name| answer.header(name);
    assert_eq!((header("content-encoding"), header("vary")), (coding, vary));
}

#[test]
fn answer_that_must_not_be_changed_is_not() {
    check(long, Some("gzip"), Some("Accept-Encoding"));
    check(|| Response::bytes("image/png", text(5000)), None, None);
    check(|| Response::stream(text(5000).into()), None, None);
    check(|| long().with_header("content-encoding", "br"), Some("br"), None);
    check(|| long().with_header("cache-control", "max-age=5, No-Transform"), None, None);
    check(|| long().with_header("cache-control", "max-age=5"), Some("gzip"), Some("Accept-Encoding"));
    check(|| long().with_header("repr-digest", "sha-256=:AA==:"), None, None);
    check(|| long().with_status(StatusCode::PARTIAL_CONTENT), None, None);
    check(|| long().with_status(StatusCode::NO_CONTENT), None, None);
    check(|| long().with_status(StatusCode::NOT_FOUND), Some("gzip"), Some("Accept-Encoding"));
    check(|| Response::text(""), None, Some("Accept-Encoding"));
    check(|| Response::json_text(text(5000)), Some("gzip"), Some("Accept-Encoding"));
    check(|| Response::bytes("image/svg+xml", text(5000)), Some("gzip"), Some("Accept-Encoding"));
}

#[test]
fn vary_is_said_once_and_to_every_client() {
    check(|| long().with_header("vary", "Cookie, accept-encoding"), Some("gzip"), Some("Cookie, accept-encoding"));
    check(|| long().with_header("vary", "*"), Some("gzip"), Some("*"));
    let client = client(|| long().with_header("vary", "Cookie"));
    for accept in ["gzip", "identity"] {
        let answer = client.get("/").header("Accept-Encoding", accept).send();
        let vary: Vec<_> = answer.headers().get_all("vary").iter().collect();
        assert_eq!(vary, ["Cookie", "Accept-Encoding"], "{accept}");
    }
}

#[test]
fn compressed_answer_has_a_weak_etag_and_no_ranges() {
    let client = client(|| long().with_header("etag", "\"1\"").with_header("accept-ranges", "bytes"));
    let answer = client.get("/").header("Accept-Encoding", "gzip").send();
    assert_eq!((answer.header("etag"), answer.header("accept-ranges")), (Some("W/\"1\""), None));
    let answer = client.get("/").send();
    assert_eq!((answer.header("etag"), answer.header("accept-ranges")), (Some("\"1\""), Some("bytes")));
    assert_eq!(answer.bytes(), &text(5000));
}

#[test]
fn not_modified_has_the_fields_that_the_answer_would_have() {
    let client = client(|| Response::new(StatusCode::NOT_MODIFIED).with_header("etag", "\"1\""));
    let answer = client.get("/").header("Accept-Encoding", "br").send();
    assert_eq!((answer.header("etag"), answer.header("vary")), (Some("W/\"1\""), Some("Accept-Encoding")));
    let answer = client.get("/").send();
    assert_eq!((answer.header("etag"), answer.header("vary")), (Some("\"1\""), Some("Accept-Encoding")));
}

#[test]
fn head_has_the_fields_of_get() {
    let live = Live::start(1, |_| bodies().wrap(Compression::new().layer()));
    let mut connection = Raw::connect(live.http);
    for target in ["/text/10", "/text/5000", "/text/100000", "/text/2000000", "/noise/5000", "/pieces/5000/100"] {
        let request = get(target, "gzip");
        let fields = |answer: Answer| answer.headers.into_iter().filter(|(name, _)| name != "date").collect::<Vec<_>>();
        let of_get = fields(connection.exchange(&request));
        let of_head = fields(connection.exchange(request.replace("GET", "HEAD")));
        assert_eq!(of_head, of_get, "{target}");
    }
}

/// As a handler of files answers: it knows the length and does not read the file.
#[test]
fn head_without_a_body_is_answered_as_a_stream_would_be() {
    let make = || Response::text("").with_header("content-length", "5000").with_header("etag", "\"1\"");
    let client = client(make);
    let answer = client.head("/").header("Accept-Encoding", "gzip").send();
    let header = |name| answer.header(name);
    assert_eq!((header("content-encoding"), header("etag")), (Some("gzip"), Some("W/\"1\"")));
    assert_eq!((header("content-length"), header("transfer-encoding")), (None, Some("chunked")));
    let answer = client.head("/").send();
    assert_eq!((answer.header("content-length"), answer.header("content-encoding")), (Some("5000"), None));
}

// ---- streams ---------------------------------------------------------------------------------------

#[test]
fn stream_that_pauses_is_flushed_so_that_the_client_can_decode_it() {
    for coding in ["gzip", "br"] {
        let feed: Rc<RefCell<Option<Feed>>> = Rc::default();
        let kept = feed.clone();
        let client = client(move || {
            let (feed, body) = Feed::new(None);
            *kept.borrow_mut() = Some(feed);
            Response::bytes("text/event-stream", body)
        });
        let mut answer = client.get("/").header("Accept-Encoding", coding).open().expect("it answers");
        assert_eq!(answer.header("content-encoding"), Some(coding));
        let feed = feed.borrow_mut().take().expect("the handler ran");
        let (mut received, mut sent) = (Vec::new(), Vec::new());
        for event in ["data: 1\n\n", "data: two\n\n", "data: 3\n\n"] {
            feed.push(Bytes::from_static(event.as_bytes()));
            sent.extend_from_slice(event.as_bytes());
            received.extend_from_slice(&answer.chunk().expect("no error").expect("it goes on"));
            assert_eq!(decode_begun(coding, &received), sent, "{coding}");
        }
        feed.end(Vec::new());
        while let Some(chunk) = answer.chunk().expect("no error") {
            received.extend_from_slice(&chunk);
        }
        assert_eq!(decode(coding, &received), sent, "{coding}");
    }
}

#[test]
fn trailers_follow_a_compressed_stream() {
    let client = client(|| {
        let (feed, body) = Feed::new(None);
        feed.push(Bytes::from(text(5000)));
        feed.end(vec![(http::header::ETAG, http::HeaderValue::from_static("\"after\""))]);
        Response::text(body)
    });
    let answer = client.get("/").header("Accept-Encoding", "gzip").send();
    assert_eq!(decode("gzip", answer.bytes()), text(5000));
    assert_eq!(answer.trailers().iter().map(|(_, value)| value.as_bytes()).collect::<Vec<_>>(), [b"\"after\""]);
}

#[test]
fn stream_that_fails_breaks_off() {
    let client = client(|| {
        let pieces = [Ok(Bytes::from_static(b"begun")), Err(everycore::http::BodyError::TimedOut)];
        Response::text(Body::stream(stream::iter(pieces)))
    });
    assert!(client.get("/").header("Accept-Encoding", "gzip").try_send().is_err());
}

#[test]
fn source_is_read_no_faster_than_the_client_reads() {
    for piece in [1000, COMPRESS_PIECE_BYTES_MAX] {
        let taken = Rc::new(Cell::new(0));
        let dropped = Rc::new(());
        let (counted, held) = (taken.clone(), dropped.clone());
        let client = client(move || {
            let (counted, held) = (counted.clone(), held.clone());
            let noise = Bytes::from(noise(piece));
            Response::text(Body::stream(stream::repeat_with(move || {
                let _held = &held;
                counted.set(counted.get() + piece);
                Ok(noise.clone())
            })))
        });
        let mut answer = client.get("/").header("Accept-Encoding", "gzip").open().expect("it answers");
        answer.chunk().expect("no error").expect("it goes on");
        // 64 KiB that the service holds, as much that the client does, and a piece on the way. The same noise again
        // compresses well, unless the window is shorter than the piece: then twice what is held is not too much.
        let bound = if piece < 32 * 1024 { 400 } else { 8 };
        assert!(taken.get() <= bound * COMPRESS_PIECE_BYTES_MAX, "{} bytes were taken", taken.get());
        let before = taken.get();
        assert_eq!(Rc::strong_count(&dropped), 3, "the stream lives");
        drop(answer);
        assert_eq!((taken.get(), Rc::strong_count(&dropped)), (before, 2), "the client went away: so does the stream");
    }
}

#[test]
fn client_that_vanishes_ends_what_the_other_thread_compresses() {
    struct Dropped(Arc<AtomicUsize>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let counted = drops.clone();
    let live = Live::start(1, move |_| {
        let counted = counted.clone();
        let endless = Router::new().get("/endless", move |_| {
            let dropped = Dropped(counted.clone());
            let piece = Bytes::from(text(COMPRESS_PIECE_BYTES_MAX));
            Response::text(Body::stream(stream::repeat_with(move || {
                let _dropped = &dropped;
                Ok(piece.clone())
            })))
        });
        endless.merge(bodies()).wrap(Compression::new().layer())
    });
    for round in 0..8 {
        let mut connection = Raw::connect(live.http);
        connection.send(get("/endless", if round % 2 == 0 { "br" } else { "gzip" }));
        connection.octets(1 + 1000 * round);
        SockRef::from(connection.stream()).set_linger(Some(Duration::ZERO)).expect("it can be set");
        drop(connection);
        // Large bodies in memory as well, which are compressed whole.
        let mut connection = Raw::connect(live.http);
        connection.send(get("/text/300000", "br"));
        SockRef::from(connection.stream()).set_linger(Some(Duration::ZERO)).expect("it can be set");
    }
    wait_until("all streams are dropped", || drops.load(Ordering::SeqCst) == 8);
    let answer = Raw::connect(live.http).exchange(get("/text/5000", "gzip"));
    assert_eq!(decode("gzip", &answer.body), text(5000));
}

#[test]
fn more_streams_than_the_bound_go_out_plain() {
    let (feeds, live): (Rc<RefCell<Vec<Feed>>>, _) = (Rc::default(), Cell::new(0));
    let kept = feeds.clone();
    let client = client(move || {
        let (feed, body) = Feed::new(None);
        feed.push(Bytes::from_static(b"begun"));
        kept.borrow_mut().push(feed);
        Response::text(body)
    });
    let mut open = Vec::new();
    for _ in 0..COMPRESS_STREAMS_MAX {
        let answer = client.get("/").header("Accept-Encoding", "gzip").open().expect("it answers");
        assert_eq!(answer.header("content-encoding"), Some("gzip"));
        open.push(answer);
        live.set(live.get() + 1);
    }
    let plain = client.get("/").header("Accept-Encoding", "gzip").open().expect("it answers");
    assert_eq!((plain.header("content-encoding"), plain.header("vary")), (None, Some("Accept-Encoding")));
    drop(open.pop());
    let answer = client.get("/").header("Accept-Encoding", "gzip").open().expect("it answers");
    assert_eq!(answer.header("content-encoding"), Some("gzip"));
}

// ---- the program -----------------------------------------------------------------------------------

/// Other decoders than ours: curl's, which are those of C.
#[test]
fn curl_reads_what_the_program_compresses() {
    let plain = Server::start(&[]);
    let compressing = Server::start(&["--compress", "dynamic"]);
    let curl = |server: &Server, more: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "60", "-D", "-"]).args(more).arg(format!("http://{}/fast", server.http));
        let output = command.output().ok()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let end = output.stdout.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
        let head = String::from_utf8(output.stdout[..end].to_vec()).expect("a head is text").to_ascii_lowercase();
        Some((head, output.stdout[end..].to_vec()))
    };
    let Some((head, expected)) = curl(&plain, &["--compressed"]) else {
        return println!("skipped: curl not installed");
    };
    assert!(!head.contains("content-encoding") && !head.contains("vary"), "{head}");
    for coding in ["gzip", "br"] {
        let (head, body) =
            curl(&compressing, &["--compressed", "-H", &format!("Accept-Encoding: {coding}")]).expect("it ran");
        assert!(head.contains(&format!("content-encoding: {coding}\r\n")), "{head}");
        assert!(body == expected, "{coding}");
    }
    let (head, body) = curl(&compressing, &[]).expect("it ran");
    assert!(!head.contains("content-encoding") && head.contains("vary: accept-encoding"), "{head}");
    assert!(body == expected);
}
