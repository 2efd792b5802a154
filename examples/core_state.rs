//! State that belongs to one core: plain `Rc` and `Cell`, no lock and no atomic.
//!
//! `cargo run --release --example core_state`, then ask `/served` over several connections: each shard counts for itself,
//! and the answer says which one it was.

use everycore::{Request, Response, Router, Server};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::Rc,
};

fn main() -> Result<(), everycore::Error> {
    Server::bind("127.0.0.1:8080").handle_signals().run(|shard| {
        // This closure runs once on each core; what it makes stays there.
        let id = shard.id();
        let served = Rc::new(Cell::new(0_u64));
        let visits = Rc::new(RefCell::new(HashMap::<String, u64>::new()));
        Router::new()
            .get("/served", move |_| {
                served.set(served.get() + 1);
                Response::text(format!("request {} of shard {id}\n", served.get()))
            })
            .get("/visit/{name}", move |req: Request| {
                let name = req.param("name").unwrap_or_default().into_owned();
                // Borrowed for this line only: a borrow must not last over an `await`.
                let mut visits = visits.borrow_mut();
                let count = visits.entry(name).or_default();
                *count += 1;
                Response::text(format!("visit {count} on shard {id}\n"))
            })
    })
}
