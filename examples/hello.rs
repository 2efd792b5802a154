//! The smallest service: `cargo run --release --example hello`, then `curl 'http://127.0.0.1:8080/yo?name=X'`.

use everycore::{Request, Response, Router, Server};

fn main() -> Result<(), everycore::Error> {
    Server::bind("127.0.0.1:8080").handle_signals().run(|_shard| {
        Router::new().get("/", |_| "hello from one of your cores\n").get("/yo", |req: Request| {
            match req.query("name") {
                Some(name) => Response::text(format!("Hey {name}!")),
                None => Response::text("Hey!"),
            }
        })
    })
}
