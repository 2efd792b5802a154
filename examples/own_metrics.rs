//! Metrics of one's own: counted on each shard without atomics, merged when somebody looks.
//!
//! cargo run --release --example own_metrics
//! curl 127.0.0.1:8080/order?cups=2; curl -s 127.0.0.1:8080/__stats | jq .custom; curl -s 127.0.0.1:8080/metrics | grep -E '^(cups|brewing)'

use everycore::{Request, Router, Server};
use std::time::{Duration, Instant};

fn main() -> Result<(), everycore::Error> {
    Server::bind("127.0.0.1:8080").handle_signals().run(|shard| {
        // Made once a shard; the handlers hold their own copies, which count into the same place.
        let cups = shard.counter("cups");
        let brewing = shard.histogram("brewing");
        Router::new().get("/order", move |req: Request| {
            let (cups, brewing, shard) = (cups.clone(), brewing.clone(), shard.clone());
            async move {
                let ordered = req.query("cups").and_then(|cups| cups.parse().ok()).unwrap_or(1).min(100);
                let began = Instant::now();
                shard.sleep(Duration::from_millis(5 * ordered)).await;
                brewing.record(began.elapsed());
                cups.add(ordered);
                format!("{ordered} cups; shard {} has brewed {}\n", shard.id(), cups.get())
            }
        })
    })
}
