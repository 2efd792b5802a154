//! actix-web with one worker.

use actix_web::http::header::{ContentType, SERVER};
use actix_web::web::{Bytes, get, post};
use actix_web::{App, HttpResponse, HttpServer, body::MessageBody, rt::System};
use std::time::Duration;

fn main() -> std::io::Result<()> {
    let listener = raw::listen(raw::port())?;
    System::new().block_on(async {
        HttpServer::new(|| {
            App::new()
                .route("/", get().to(async || text("OK")))
                .route("/echo", post().to(async |body: Bytes| text(body)))
                .route("/16k", get().to(async || text(raw::BIG)))
        })
        .workers(1)
        .keep_alive(Duration::from_secs(75))
        .listen(listener)?
        .run()
        .await
    })
}

fn text(body: impl MessageBody + 'static) -> HttpResponse {
    HttpResponse::Ok()
        .insert_header((SERVER, "actix"))
        .insert_header(ContentType::plaintext())
        .body(body)
}
