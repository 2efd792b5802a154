//! Bodies as streams: what comes in goes out while it still comes in, and nothing is collected.
//!
//! `cargo run --release --example echo_stream`, then
//! `curl -T - http://127.0.0.1:8080/echo` and type, or send a file of any size.

use everycore::{
    Request, Response, Router, Server,
    http::{Body, BodyError},
};
use std::task::Poll;

fn main() -> Result<(), everycore::Error> {
    Server::bind("127.0.0.1:8080").handle_signals().run(|_shard| {
        Router::new()
            // The simplest: the request's body is the answer's. A slow reader slows the sender down.
            .put("/echo", |req: Request| Response::stream(req.into_body()))
            // Changed on the way.
            .put("/upper", |req: Request| {
                let mut body = req.into_body();
                Response::stream(Body::stream(futures_lite::stream::poll_fn(move |cx| {
                    body.poll_chunk(cx).map_ok(|chunk| chunk.to_ascii_uppercase().into())
                })))
            })
            // Read to its end, piece by piece.
            .put("/count", |mut req: Request| async move {
                let mut count = 0;
                while let Some(chunk) = req.body_mut().chunk().await {
                    count += chunk?.len();
                }
                Ok::<_, BodyError>(format!("{count} bytes\n"))
            })
            // Made up as it goes: ten lines, in chunks.
            .get("/lines", |_| {
                let mut lines = 0..10;
                Response::stream(Body::stream(futures_lite::stream::poll_fn(move |_| {
                    Poll::Ready(lines.next().map(|n| Ok(format!("line {n}\n").into())))
                })))
            })
    })
}
