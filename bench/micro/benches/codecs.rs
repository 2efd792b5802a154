//! The pure parts of the request path: `cargo bench` in this folder; allocations are counted beside the times.

use divan::{AllocProfiler, Bencher, black_box};
use everycore::{
    Reply, Request, Response, Router,
    http::{ChunkedDecoder, ChunkedLimits, DateCache, Encoding, HeadLimits, Method, PooledHead, Version, encode_head},
    stats::Histogram,
};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

const SHORT: &[u8] = b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n";
const WRK: &[u8] = b"GET /small HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n";
const BROWSER: &[u8] = b"GET /small?a=1 HTTP/1.1\r\nHost: www.example.com\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64) \
AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36\r\nAccept: text/html,application/xhtml+xml;q=0.9,*/*;\
q=0.8\r\nAccept-Encoding: gzip, deflate, br, zstd\r\nAccept-Language: en-GB,en;q=0.9\r\nCookie: session=0123456789abcdef\r\n\
Connection: keep-alive\r\nUpgrade-Insecure-Requests: 1\r\n\r\n";

fn head(name: &str) -> &'static [u8] {
    match name {
        "short" => SHORT,
        "wrk" => WRK,
        _ => BROWSER,
    }
}

/// A head like the last one.
#[divan::bench(args = ["short", "wrk", "browser"], sample_size = 1000)]
fn parse_same_head(bencher: Bencher, name: &str) {
    let input = head(name);
    let limits = HeadLimits::default();
    bencher.bench_local(|| {
        let mut head = PooledHead::take();
        head.parse(black_box(input), &limits).expect("a good head")
    });
}

/// Heads that differ from one to the next, so that none is recognised.
#[divan::bench(args = ["short", "wrk", "browser"], sample_size = 1000)]
fn parse_other_head(bencher: Bencher, name: &str) {
    let input = head(name);
    let limits = HeadLimits::default();
    let mut other = input.to_vec();
    other[6] = b'S';
    let inputs = [input.to_vec(), other];
    let mut turn = 0;
    bencher.bench_local(|| {
        turn ^= 1;
        let mut head = PooledHead::take();
        head.parse(black_box(&inputs[turn]), &limits).expect("a good head")
    });
}

#[divan::bench(sample_size = 1000)]
fn encode_text(bencher: Bencher) {
    let mut out = Vec::with_capacity(1024);
    let date = DateCache::new();
    let how = Encoding { version: Version::Http11, head_only: false, keep_alive: true, server_and_date: date.lines() };
    bencher.bench_local(|| {
        out.clear();
        let response = Response::text("Hey!");
        encode_head(&mut out, black_box(&response), &how)
    });
}

fn router() -> Router {
    let mut router = Router::new().get("/small", |_| Response::text("OK")).get("/users/{id}/orders/{order}", |req: Request| {
        Response::text(if req.param("order").is_some() { "yes" } else { "no" })
    });
    for index in 0..100 {
        router = router.get(&format!("/pages/{index}"), |_| "page");
    }
    router
}

/// Parse, route, call, encode: all that a request costs beside the connection.
#[divan::bench(args = ["/small", "/pages/77", "/users/7/orders/9", "/nothing"], sample_size = 1000)]
fn request(bencher: Bencher, path: &str) {
    let app = router().build().expect("no conflicts");
    let input = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n");
    let limits = HeadLimits::default();
    let date = DateCache::new();
    let mut out = Vec::with_capacity(1024);
    bencher.bench_local(|| {
        out.clear();
        let mut head = PooledHead::take();
        head.parse(black_box(input.as_bytes()), &limits).expect("a good head");
        let Reply::Ready(response) = app.handle(Request::new(head, ().into(), None)) else { unreachable!() };
        let how = Encoding { version: Version::Http11, head_only: false, keep_alive: true, server_and_date: date.lines() };
        encode_head(&mut out, &response, &how);
        out.extend_from_slice(response.body().as_slice().unwrap_or_default());
    });
}

#[divan::bench(sample_size = 1000)]
fn route_only(bencher: Bencher) {
    let app = router().build().expect("no conflicts");
    let mut requests: Vec<Request> = Vec::new();
    bencher
        .with_inputs(|| requests.pop().unwrap_or_else(|| Request::builder(Method::GET, "/small").body(()).expect("good")))
        .bench_local_values(|request| app.handle(request));
}

#[divan::bench(sample_size = 100)]
fn chunked_body_of_16_chunks(bencher: Bencher) {
    let mut input = Vec::new();
    for _ in 0..16 {
        input.extend_from_slice(b"400\r\n");
        input.extend_from_slice(&[b'x'; 1024]);
        input.extend_from_slice(b"\r\n");
    }
    input.extend_from_slice(b"0\r\n\r\n");
    bencher.bench_local(|| {
        let mut decoder = ChunkedDecoder::new(ChunkedLimits::default());
        let mut rest = black_box(&input[..]);
        let mut bytes = 0;
        while !rest.is_empty() {
            use everycore::http::Chunk::*;
            let used = match decoder.decode(rest).expect("a good body") {
                Need => break,
                Skip { consumed } | End { consumed } => consumed,
                Data { skip, len } => {
                    bytes += len;
                    skip + len
                }
            };
            rest = &rest[used..];
        }
        bytes
    });
}

#[divan::bench(sample_size = 1000)]
fn histogram_record(bencher: Bencher) {
    let histogram = Histogram::default();
    let mut ns = 1u64;
    bencher.bench_local(|| {
        ns = ns.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        histogram.record(black_box(ns >> 40));
    });
}
