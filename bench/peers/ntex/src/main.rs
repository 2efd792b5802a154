//! ntex with one worker on neon, its own runtime, over io_uring.

use ntex::http::header::{CONTENT_TYPE, HeaderValue, SERVER};
use ntex::http::{HttpServiceConfig, KeepAlive, body::Body};
use ntex::time::Seconds;
use ntex::util::Bytes;
use ntex::web::{App, HttpResponse, HttpServer, get, post};

#[get("/")]
async fn ok() -> HttpResponse {
    text("OK")
}

#[post("/echo")]
async fn echo(body: Bytes) -> HttpResponse {
    text(body)
}

#[get("/16k")]
async fn big() -> HttpResponse {
    text(raw::BIG)
}

#[ntex::main]
async fn main() -> std::io::Result<()> {
    let http = HttpServiceConfig::new().set_keepalive(KeepAlive::Timeout(Seconds(75)));
    HttpServer::new(async || App::new().service((ok, echo, big)))
        .workers(1)
        .config(ntex::SharedCfg::new("ntex").add(http))
        .listen(raw::listen(raw::port())?)?
        .run()
        .await
}

fn text(body: impl Into<Body>) -> HttpResponse {
    HttpResponse::Ok()
        .header(SERVER, HeaderValue::from_static("ntex"))
        .header(CONTENT_TYPE, HeaderValue::from_static("text/plain"))
        .body(body)
}
