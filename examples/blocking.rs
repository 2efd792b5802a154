//! What must not run on a shard: files go to glommio, long computation to its blocking threads.
//!
//! `cargo run --release --example blocking`, then `curl http://127.0.0.1:8080/file` and
//! `curl http://127.0.0.1:8080/primes/200000`. The shard answers other requests meanwhile.

use everycore::{Request, Response, Router, Server, http::StatusCode};
use futures_lite::AsyncReadExt;
use glommio::io::{BufferedFile, StreamReaderBuilder};

async fn file(_req: Request) -> Response {
    match read("Cargo.toml").await {
        Ok(text) => Response::text(text),
        Err(error) => Response::text(format!("{error}\n")).with_status(StatusCode::NOT_FOUND),
    }
}

async fn read(path: &str) -> Result<String, Box<dyn std::error::Error>> {
    let file = BufferedFile::open(path).await?;
    let mut text = String::new();
    StreamReaderBuilder::new(file).build().read_to_string(&mut text).await?;
    Ok(text)
}

async fn primes(req: Request) -> Response {
    let Some(below) = req.param("below").and_then(|text| text.parse().ok()) else {
        return Response::text("expected a number\n").with_status(StatusCode::BAD_REQUEST);
    };
    let count = glommio::executor().spawn_blocking(move || count_primes(below)).await;
    Response::text(format!("{count} primes are below {below}\n"))
}

fn count_primes(below: u32) -> usize {
    (2..below).filter(|n| (2..*n).take_while(|d| d * d <= *n).all(|d| n % d != 0)).count()
}

fn main() -> Result<(), everycore::Error> {
    Server::bind("127.0.0.1:8080").run(|_shard| Router::new().get("/file", file).get("/primes/{below}", primes))
}
