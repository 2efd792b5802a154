//! A server that is ended from code: by a handler of its own, in good order.
//!
//! `cargo run --release --example shutdown`, then `curl http://127.0.0.1:8080/slow` and, while it waits,
//! `curl -X POST http://127.0.0.1:8080/shutdown`: the first is answered before the program ends.

use everycore::{Handle, Router, Server, http::StatusCode};
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

fn main() -> Result<(), everycore::Error> {
    // The handle is there once all shards have started, which is after their routers were built.
    let handle = Arc::new(OnceLock::<Handle>::new());
    let promised = handle.clone();
    let running = Server::bind("127.0.0.1:8080").handle_signals().start(move |shard| {
        let handle = promised.clone();
        Router::new()
            .get("/slow", move |_| {
                let sleep = shard.sleep(Duration::from_secs(3));
                async move {
                    sleep.await;
                    "not lost\n"
                }
            })
            .post("/shutdown", move |_| match handle.get() {
                Some(handle) => {
                    handle.shutdown();
                    StatusCode::ACCEPTED
                }
                None => StatusCode::SERVICE_UNAVAILABLE,
            })
    })?;
    let _ = handle.set(running.handle()); // nobody else sets it
    for address in running.addresses() {
        println!("listening on {address}");
    }
    running.wait()
}
