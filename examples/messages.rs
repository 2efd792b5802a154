//! Shards that tell each other something: one motto, set through any shard, read from each shard's own copy.
//!
//! `cargo run --release --example messages`, then `curl -X PUT -d 'less is more' http://127.0.0.1:8080/motto`, and
//! `curl http://127.0.0.1:8080/motto` as often as you like: whichever shard answers, it knows.

use everycore::{Request, Response, Router, Server, Shard, http::StatusCode};
use std::{cell::RefCell, rc::Rc};

const MOTTO_BYTES_MAX: usize = 1024;

/// What a client asks for. All go to shard 0 first, so that every shard hears of changes in the same order.
struct Proposal(String);

/// What shard 0 tells all shards.
struct Motto(String);

fn main() -> Result<(), everycore::Error> {
    Server::bind("127.0.0.1:8080").handle_signals().run(|shard| {
        let motto = Rc::new(RefCell::new(String::from("none yet")));
        listen(&shard, motto.clone());
        Router::new()
            .get("/motto", move |_| Response::text(format!("{}\n", motto.borrow())))
            .put("/motto", move |req: Request| propose(shard.clone(), req))
    })
}

/// Begins to receive. These tasks live as long as the shard, beside its requests.
fn listen(shard: &Shard, motto: Rc<RefCell<String>>) {
    let mut told = shard.inbox::<Motto>();
    shard.spawn(async move {
        loop {
            let Motto(text) = told.receive().await;
            motto.replace(text);
        }
    });
    if shard.id() == 0 {
        let (shard, mut proposed) = (shard.clone(), shard.inbox::<Proposal>());
        shard.clone().spawn(async move {
            loop {
                let Proposal(text) = proposed.receive().await;
                for to in 0..shard.count() {
                    if shard.send_to(to, Motto(text.clone())).is_err() {
                        eprintln!("shard {to} is overloaded or gone, and keeps its old motto");
                    }
                }
            }
        });
    }
}

async fn propose(shard: Shard, req: Request) -> Result<StatusCode, Response> {
    let body = req.into_body().bytes(MOTTO_BYTES_MAX).await;
    let body = body.map_err(|error| Response::text(format!("{error}\n")).with_status(error.status()))?;
    let text = String::from_utf8_lossy(&body).into_owned();
    // A full mailbox is an answer, too: nobody waits.
    match shard.send_to(0, Proposal(text)) {
        Ok(()) => Ok(StatusCode::ACCEPTED),
        Err(_) => Err(Response::text("too many proposals\n").with_status(StatusCode::SERVICE_UNAVAILABLE)),
    }
}
