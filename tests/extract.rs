//! Typed views of requests, and the answers when they cannot be had.

use everycore::handler::IntoResponse;
use everycore::http::{Body, Feed};
use everycore::limits::BODY_BUFFERED_BYTES_MAX;
use everycore::{ExtractError, Request, Response};
use futures_lite::future::block_on;
use http::Method;
use serde::Deserialize;

#[derive(Deserialize, Debug, PartialEq)]
struct Order {
    id: u32,
    #[serde(default)]
    tag: Vec<String>,
}

fn post(content_type: Option<&str>, body: impl Into<Body>) -> Request {
    let builder = Request::builder(Method::POST, "/");
    let builder = match content_type {
        Some(content_type) => builder.header("Content-Type", content_type),
        None => builder,
    };
    builder.body(body).expect("well-formed")
}

/// `status text` of what a handler would answer.
fn shown(order: Result<Order, ExtractError>) -> String {
    let response = match order {
        Ok(Order { id, tag }) => Response::text(format!("{id} {}", tag.join(","))),
        Err(error) => error.into_response(),
    };
    let status = response.status().as_u16();
    let body = block_on(response.into_body().bytes(2 * BODY_BUFFERED_BYTES_MAX)).expect("in memory");
    format!("{status} {}", String::from_utf8_lossy(&body))
}

const FORM: Option<&str> = Some("application/x-www-form-urlencoded");
const JSON: Option<&str> = Some("application/json");

#[test]
fn form_gives_the_type_or_says_what_was_wrong() {
    for (content_type, body, expected) in [
        (FORM, "id=7", "200 7 "),
        (FORM, "id=7&tag=a+b&tag=c%26d", "200 7 a b,c&d"),
        (FORM, "id=7&tag=100%", "200 7 100%"),
        (Some("Application/X-WWW-Form-URLencoded; charset=utf-8"), "id=7", "200 7 "),
        (FORM, "", "422 the form has the wrong shape: missing field `id`\n"),
        (FORM, "id=x", "422 the form has the wrong shape: "),
        (FORM, "id=7&tag=%FF", "400 the form is malformed: it is not UTF-8 when decoded\n"),
        (JSON, "id=7", "415 expected content type application/x-www-form-urlencoded, got application/json\n"),
        (None, "id=7", "415 expected content type application/x-www-form-urlencoded, got none\n"),
    ] {
        let got = shown(block_on(post(content_type, body).form()));
        assert!(got.starts_with(expected), "{body}: expected `{expected}`, got `{got}`");
    }
}

#[cfg(feature = "json")]
#[test]
fn json_gives_the_type_or_says_what_was_wrong() {
    for (content_type, body, expected) in [
        (JSON, r#"{"id":7,"tag":["a"]}"#, "200 7 a"),
        (Some("application/problem+JSON;charset=utf-8"), r#"{"id":7}"#, "200 7 "),
        (JSON, "", "400 the JSON is malformed: EOF while parsing a value at line 1 column 0\n"),
        (JSON, "{", "400 the JSON is malformed: "),
        (JSON, "{} x", "422 the JSON has the wrong shape: missing field `id` at line 1 column 2\n"),
        (JSON, r#"{"id":7} x"#, "400 the JSON is malformed: "),
        (JSON, r#"{"id":-7}"#, "422 the JSON has the wrong shape: invalid value"),
        (Some("text/plain"), "{}", "415 expected content type application/json, got text/plain\n"),
        (Some("application/jsonx"), "{}", "415"),
    ] {
        let got = shown(block_on(post(content_type, body).json()));
        assert!(got.starts_with(expected), "{body}: expected `{expected}`, got `{got}`");
    }
}

#[test]
fn query_gives_the_type_or_says_what_was_wrong() {
    for (target, expected) in [
        ("/?id=7&tag=a&tag=b+c", "200 7 a,b c"),
        ("/?id=7&unknown=1", "200 7 "),
        ("/", "422 the query has the wrong shape: missing field `id`\n"),
        ("/?id=%80", "400 the query is malformed: it is not UTF-8 when decoded\n"),
    ] {
        let request = Request::builder(Method::GET, target).body(()).expect("well-formed");
        let got = shown(request.query_as());
        assert!(got.starts_with(expected), "{target}: expected `{expected}`, got `{got}`");
    }
}

#[test]
fn body_is_taken_up_to_the_limit() {
    let form = |bytes: usize| format!("id=7&tag={}", "a".repeat(bytes - "id=7&tag=".len()));
    for (bytes, expected) in
        [(BODY_BUFFERED_BYTES_MAX - 1, "200"), (BODY_BUFFERED_BYTES_MAX, "200"), (BODY_BUFFERED_BYTES_MAX + 1, "413")]
    {
        let got = shown(block_on(post(FORM, form(bytes)).form()));
        assert!(got.starts_with(expected), "{bytes} bytes: {}", &got[..20]);
    }
}

#[test]
fn body_that_fails_while_it_is_read_is_the_bodys_error() {
    let (feed, body) = Feed::new(None);
    let mut request = post(FORM, body);
    feed.push("id=".into());
    feed.fail(everycore::http::BodyError::PeerGone);
    let error = block_on(request.form::<Order>()).expect_err("cut short");
    assert!(matches!(error, ExtractError::Body(_)), "{error}");
}

#[test]
fn long_content_type_is_not_echoed_whole() {
    let long = "x".repeat(5000);
    let got = shown(block_on(post(Some(&long), "").form()));
    assert!(got.len() < 300, "{got}");
}

#[test]
fn cookies_are_read_from_all_fields_and_broken_ones_left_out() {
    let request = Request::builder(Method::GET, "/")
        .header("cookie", "a=1; b=\"2\"; broken; =x; c=3=4")
        .header("Cookie", "a=5; d=%20")
        .body(())
        .expect("well-formed");
    let pairs: Vec<_> = request.cookies().map(|cookie| format!("{}={}", cookie.name(), cookie.value())).collect();
    assert_eq!(pairs, ["a=1", "b=\"2\"", "c=3=4", "a=5", "d=%20"]);
    assert_eq!(request.cookie("a").as_deref(), Some("1"));
    assert_eq!(request.cookie("A"), None);
}

#[test]
fn cookie_that_is_no_header_value_makes_the_answer_a_500() {
    let response = Response::text("x").with_cookie(("name", "a\r\nset-cookie: b=c"));
    assert_eq!(response.status(), 500);
    assert_eq!(response.header("set-cookie"), None);
}
