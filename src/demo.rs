//! The endpoints that `everycore serve` answers with when it is given nothing else. Floor 8.
//!
//! For: trying the server, and measuring it with the replies that others published figures for. Not for:
//! building on; `examples/` is.

mod order;
mod page;

use crate::{
    Request, Response, Router,
    http::{Body, BodyError, HeaderValue, StatusCode, header},
    limits,
};
use bytes::BytesMut;
use futures_lite::{StreamExt, stream};
use order::Orders;
use std::{rc::Rc, time::SystemTime};

const WELCOME: &str = include_str!("../templates/welcome.html");
const NOT_FOUND: &str = include_str!("../templates/not_found.html");

/// The demo's routes, with a store of their own: call it on the shard that is to serve them.
///
/// | route | answer |
/// |---|---|
/// | `/` | a page that lists the others |
/// | `/yo`, `/yo?name=X` | `Hey!`, `Hey X!` |
/// | `/small` | `OK` as HTML |
/// | `/fast` | HTML of 16,294 bytes |
/// | `/dw-bench`, `/dw-bench?dynamic` | a times table of 7,616 bytes; the same rendered anew, with the time |
/// | `/view-order?order-id=N` | a page from a template and a store; 404 if unknown, 400 if no number |
/// | `POST /echo` | the body, of the same type |
pub fn router() -> Router {
    // Rendered once a process; as plain references no request pays for the look.
    let (fast, times_table): (&'static str, &'static str) = (&page::FAST, &page::TIMES_TABLE);
    let orders = Rc::new(Orders::new());
    Router::new()
        .get("/", |_| Response::html(WELCOME))
        .get("/yo", |req: Request| greet(&req))
        .get("/small", |_| Response::html("OK"))
        .get("/fast", move |_| Response::html(fast))
        .get("/dw-bench", move |req: Request| match req.query("dynamic") {
            None => Response::html(times_table),
            Some(_) => Response::html(page::times_table(&httpdate::fmt_http_date(SystemTime::now()))),
        })
        .get("/view-order", move |req: Request| view_order(&req, &orders))
        .post("/echo", echo)
        .error_page(|error| (error.status == StatusCode::NOT_FOUND).then(|| Response::html(NOT_FOUND)))
}

fn greet(req: &Request) -> Response {
    match req.query("name") {
        Some(name) if !name.is_empty() => Response::text(format!("Hey {name}!")),
        _ => Response::text("Hey!"),
    }
}

fn view_order(req: &Request, orders: &Orders) -> Response {
    let digits = req.query("order-id").unwrap_or_default();
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        let answer = Response::text("expected ?order-id= and a number\n");
        return answer.with_status(StatusCode::BAD_REQUEST);
    }
    // A number that no u32 holds is a number still, of an order that we do not have.
    match digits.parse().ok().and_then(|id| orders.find(id)) {
        Some(order) => Response::html(order.page()),
        None => Response::text("no such order\n").with_status(StatusCode::NOT_FOUND),
    }
}

/// Answers with the body it gets.
///
/// The beginning is collected before the answer starts, so that a small body that breaks off or is badly framed gets
/// its 400 and not the head of a 200; what goes beyond is streamed and never held.
async fn echo(req: Request) -> Result<Response, BodyError> {
    let media_type = req.header_bytes("content-type").map(HeaderValue::from_bytes);
    let mut body = req.into_body();
    let total = body.len();
    let mut start = BytesMut::new();
    let body = loop {
        match body.chunk().await.transpose()? {
            None => break Body::from(start.freeze()),
            Some(chunk) => start.extend_from_slice(&chunk),
        }
        if start.len() > limits::ECHO_COLLECTED_BYTES_MAX {
            let whole = stream::once(Ok(start.freeze())).chain(body);
            break match total {
                Some(total) => Body::sized_stream(total, whole),
                None => Body::stream(whole),
            };
        }
    };
    let answer = Response::stream(body);
    Ok(match media_type {
        Some(Ok(media_type)) => answer.with_header(header::CONTENT_TYPE, media_type),
        _ => answer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Method;
    use bytes::Bytes;
    use futures_lite::future::block_on;

    /// Status, media type and body of the answer.
    fn ask(method: Method, target: &str, body: Body) -> (u16, Option<String>, Bytes) {
        let app = router().build().expect("the demo's routes do not conflict");
        let req = Request::builder(method, target).header("content-type", "a/b").body(body);
        let response = block_on(app.handle(req.expect("a request")).into_future());
        let media_type = response.content_type().map(|t| String::from_utf8_lossy(t).into_owned());
        let status = response.status().as_u16();
        let body = block_on(response.into_body().bytes(usize::MAX)).expect("a body");
        (status, media_type, body)
    }

    #[track_caller]
    fn check(target: &str, status: u16, media_type: &str, body: impl AsRef<[u8]>) {
        let got = ask(Method::GET, target, Body::empty());
        let wanted = (status, Some(media_type.to_owned()), Bytes::copy_from_slice(body.as_ref()));
        assert_eq!(got, wanted, "{target}");
    }

    const TEXT: &str = "text/plain; charset=utf-8";
    const HTML: &str = "text/html; charset=utf-8";

    #[test]
    fn router_answers_exact_bytes() {
        check("/", 200, HTML, WELCOME);
        check("/yo", 200, TEXT, "Hey!");
        check("/yo?", 200, TEXT, "Hey!");
        check("/yo?name=", 200, TEXT, "Hey!");
        check("/yo?eman=X", 200, TEXT, "Hey!");
        check("/yo?name=X", 200, TEXT, "Hey X!");
        check("/yo?a=b&name=J%C3%BCrgen+%3Cb%3E", 200, TEXT, "Hey Jürgen <b>!");
        check("/small", 200, HTML, "OK");
        check("/fast", 200, HTML, page::FAST.as_str());
        check("/dw-bench", 200, HTML, page::TIMES_TABLE.as_str());
        check("/nope", 404, HTML, NOT_FOUND);
    }

    #[test]
    fn router_promised_lengths_hold() {
        let length = |target| ask(Method::GET, target, Body::empty()).2.len();
        assert_eq!((length("/small"), length("/fast"), length("/dw-bench")), (2, 16_294, 7_616));
        // "<p>", an IMF-fixdate, "</p>\n".
        assert_eq!(length("/dw-bench?dynamic"), 7_616 + 3 + 29 + 5);
        assert_eq!(length("/dw-bench?dynamic=1"), 7_616 + 3 + 29 + 5);
    }

    #[test]
    fn view_order_tells_unknown_from_malformed() {
        let status = |query: &str| ask(Method::GET, &format!("/view-order{query}"), Body::empty()).0;
        for query in ["?order-id=1", "?order-id=100", "?order-id=007", "?a=b&order-id=%31"] {
            assert_eq!(status(query), 200, "{query}");
        }
        for query in ["?order-id=0", "?order-id=101", "?order-id=4294967295", "?order-id=99999999999999999999"] {
            assert_eq!(status(query), 404, "{query}");
        }
        for query in [
            "",
            "?",
            "?order-id",
            "?order-id=",
            "?order-id=x",
            "?order-id=-1",
            "?order-id=+1",
            "?order-id=%2B1",
            "?order-id=1.0",
            "?order-id=1%00",
        ] {
            assert_eq!(status(query), 400, "{query}");
        }
    }

    #[test]
    fn static_answers_allocate_nothing() {
        let app = router().build().expect("the demo's routes do not conflict");
        for target in ["/", "/yo", "/yo?eman=X", "/small", "/fast", "/dw-bench"] {
            let request = || Request::builder(Method::GET, target).body(()).expect("a request");
            // The first one makes room in the list that heads go back to.
            drop(app.handle(request()));
            let req = request();
            let made = allocation_counter::measure(|| drop(app.handle(req)));
            assert_eq!(made.count_total, 0, "{target}");
        }
    }

    #[test]
    fn echo_returns_what_came() {
        const MAX: usize = limits::ECHO_COLLECTED_BYTES_MAX;
        let octets: Vec<u8> = (0..=255).cycle().take(3 * MAX).collect();
        for length in [0, 1, 256, MAX - 1, MAX, MAX + 1, 3 * MAX] {
            let sent = Bytes::copy_from_slice(&octets[..length]);
            let pieces: Vec<_> = sent.chunks(1000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
            for body in [Body::from(sent.clone()), Body::stream(stream::iter(pieces))] {
                let got = ask(Method::POST, "/echo", body);
                assert_eq!((got.0, got.1.as_deref()), (200, Some("a/b")), "{length}");
                assert!(got.2 == sent, "{length}");
            }
        }
    }

    #[test]
    fn echo_states_the_length_it_knows() {
        const MAX: u64 = limits::ECHO_COLLECTED_BYTES_MAX as u64;
        let length = |body: Body| {
            let req = Request::builder(Method::POST, "/echo").body(body).expect("a request");
            block_on(echo(req)).expect("an answer").body().len()
        };
        let zeros = |count: u64| stream::iter((0..count / 1024).map(|_| Ok(Bytes::from_static(&[0; 1024]))));
        assert_eq!(length(Body::stream(zeros(MAX))), Some(MAX));
        assert_eq!(length(Body::stream(zeros(2 * MAX))), None);
        assert_eq!(length(Body::sized_stream(2 * MAX, zeros(2 * MAX))), Some(2 * MAX));
    }

    #[test]
    fn echo_of_a_body_that_breaks_early_is_refused() {
        let (feed, body) = crate::http::Feed::new(None);
        feed.push(Bytes::from_static(b"hello"));
        feed.fail(BodyError::TooLarge { max: 5 });
        assert_eq!(ask(Method::POST, "/echo", body).0, 413);
    }

    #[test]
    fn pages_need_nothing_from_elsewhere() {
        for page in [WELCOME, NOT_FOUND] {
            for outside in ["http:", "https:", "src=", "@import", "url("] {
                assert!(!page.contains(outside), "{outside}");
            }
        }
    }

    #[test]
    fn welcome_links_what_there_is() {
        for link in WELCOME.split("href=\"/").skip(1).filter_map(|rest| rest.split('"').next()) {
            // Served by the service itself.
            if link != "__stats" {
                assert_eq!(ask(Method::GET, &format!("/{link}"), Body::empty()).0, 200, "/{link}");
            }
        }
    }
}
