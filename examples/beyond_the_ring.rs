//! What a handler may await beside sockets: a file by glommio, a blocking call, a timer.
//!
//! `cargo run --release --example beyond_the_ring`, then ask `/file`, `/blocking`, `/timer`. A quiet shard answers each
//! as soon as it is done; a busy one looks after glommio once a millisecond.

use everycore::{Response, Router, Server};
use glommio::io::BufferedFile;
use std::time::Duration;

fn main() -> Result<(), everycore::Error> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".into());
    Server::bind(address).handle_signals().run(|shard| {
        Router::new()
            .get("/", |_| "ask /file, /blocking or /timer\n")
            .get("/file", |_| async {
                let file = BufferedFile::open("Cargo.toml").await.map_err(error)?;
                let bytes = file.read_at(0, 4096).await.map_err(error)?;
                let response = Response::text(bytes.to_vec());
                file.close().await.map_err(error)?;
                Ok::<_, Response>(response)
            })
            .get("/blocking", |_| async {
                // On glommio's own thread for such calls, which is not tied to this core.
                let host = glommio::executor().spawn_blocking(|| std::fs::read_to_string("/proc/sys/kernel/hostname"));
                host.await.map_err(|failed| Response::text(failed.to_string()).with_status(error_status()))
            })
            .get("/timer", move |_| {
                let sleep = shard.sleep(Duration::from_millis(1));
                async move {
                    sleep.await;
                    "a millisecond later\n"
                }
            })
    })
}

fn error<T>(failed: glommio::GlommioError<T>) -> Response {
    Response::text(format!("{failed}\n")).with_status(error_status())
}

fn error_status() -> everycore::http::StatusCode {
    everycore::http::StatusCode::INTERNAL_SERVER_ERROR
}
