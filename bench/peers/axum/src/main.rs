//! axum, served by `axum::serve` on tokio's single-threaded runtime.

use axum::body::Bytes;
use axum::http::header::{CONTENT_TYPE, SERVER};
use axum::response::IntoResponse;
use axum::routing::{get, post};

fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = raw::listen(raw::port())?;
        listener.set_nonblocking(true)?;
        let app = axum::Router::new()
            .route("/", get(async || text("OK")))
            .route("/echo", post(async |body: Bytes| text(body)))
            .route("/16k", get(async || text(raw::BIG)));
        axum::serve(tokio::net::TcpListener::from_std(listener)?, app).await
    })
}

fn text(body: impl IntoResponse) -> impl IntoResponse {
    ([(SERVER, "axum"), (CONTENT_TYPE, "text/plain")], body)
}
