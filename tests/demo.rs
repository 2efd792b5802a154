//! The demo endpoints through the built binary: exact bytes over a socket.

mod common;

use common::{raw::Raw, response::Response, server::Server};

fn get(connection: &mut Raw, target: &str) -> Response {
    connection.exchange(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
}

#[test]
fn demo_pages_have_the_promised_lengths() {
    let server = Server::start(&[]);
    let mut connection = Raw::connect(server.http);
    let mut check = |target: &str, status: u16, media_type: &str, length: usize| {
        let response = get(&mut connection, target);
        let got = (response.status, response.values("content-type").next(), response.body.len());
        assert_eq!(got, (status, Some(media_type), length), "{target}");
    };
    let (text, html) = ("text/plain; charset=utf-8", "text/html; charset=utf-8");
    check("/yo", 200, text, 4);
    check("/yo?name=X", 200, text, 6);
    check("/small", 200, html, 2);
    check("/fast", 200, html, 16_294);
    check("/dw-bench", 200, html, 7_616);
    check("/dw-bench?dynamic", 200, html, 7_616 + "<p>Sun, 06 Nov 1994 08:49:37 GMT</p>\n".len());
    check("/view-order?order-id=0", 404, text, "no such order\n".len());
    check("/view-order?order-id=x", 400, text, "expected ?order-id= and a number\n".len());
}

#[test]
fn demo_order_page_is_escaped() {
    let server = Server::start(&[]);
    let page = get(&mut Raw::connect(server.http), "/view-order?order-id=6");
    let page = String::from_utf8(page.body).expect("UTF-8");
    assert!(page.contains("&#60;script&#62;") && !page.contains("<script"), "{page}");
}

#[test]
fn request_without_a_version_is_answered_and_closed() {
    let server = Server::start(&[]);
    let mut connection = Raw::connect(server.http);
    connection.send("GET /\r\n\r\n");
    let answer = connection.until_close();
    assert!(!answer.is_empty());
}
