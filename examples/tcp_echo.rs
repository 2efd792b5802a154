//! A raw TCP service beside an HTTP one, on the same shards: reads once, up to 1,024 bytes, writes the same back, closes.
//!
//! `cargo run --release --example tcp_echo`, then `printf hello | nc 127.0.0.1 7000`.

use everycore::{Router, Server, TcpConnection};
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use std::{cell::Cell, rc::Rc};

fn main() -> Result<(), everycore::Error> {
    Server::bind("127.0.0.1:8080")
        .handle_signals()
        .tcp("127.0.0.1:7000", |_shard| {
            // Once on each core, as for HTTP.
            let echoed = Rc::new(Cell::new(0_u64));
            move |mut connection: TcpConnection| {
                let echoed = echoed.clone();
                async move {
                    let mut buffer = [0; 1024];
                    let count = connection.read(&mut buffer).await?;
                    connection.write_all(&buffer[..count]).await?;
                    echoed.set(echoed.get() + count as u64);
                    Ok(())
                }
            }
        })
        .run(|_shard| Router::new().get("/", |_| "the other service listens on port 7000\n"))
}
