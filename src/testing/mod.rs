//! Tests without sockets: a client for handlers, and connections in memory. Floor 6: above the services it runs, beside
//! the worker, which it does without. ([`memory`] imports from floor 3 down.)
//!
//! [`Client`] runs your [`Router`](crate::Router) under the real HTTP/1 service: framing, HEAD, 404, error pages, limits
//! and deadlines are those of a server. There are no threads, no ring and no executor, so a test is deterministic and
//! takes microseconds:
//!
//! ```
//! use everycore::{Request, Response, Router, testing::Client};
//!
//! let client = Client::new(|| {
//!     Router::new()
//!         .get("/yo", |req: Request| {
//!             Response::text(format!("yo, {}", req.query("name").as_deref().unwrap_or("stranger")))
//!         })
//!         .post("/echo", |req: Request| async move { Response::stream(req.into_body()) })
//! })?;
//! let answer = client.get("/yo?name=X").send();
//! assert_eq!((answer.status().as_u16(), answer.text()), (200, "yo, X"));
//! assert_eq!(client.post("/echo").body("hello").send().text(), "hello");
//! assert_eq!(client.get("/nowhere").send().status(), 404);
//! # Ok::<(), everycore::RouterError>(())
//! ```
//!
//! What a handler can wait for here: its request's body, and whatever wakes it by itself (a channel, a thread, another
//! handler). What it cannot: glommio's files, timers and blocking calls, which need a running server; a handler that
//! polls them here panics ("cannot access a scoped thread local variable"), and answers 500. Nor is there a
//! [`Shard`](crate::Shard): build routes in a function of their own, and give it what they use as a closure or a trait
//! (`impl Fn(Message)` in place of the shard that sends it). Or test against [`Server::start`](crate::Server::start) on
//! port 0.

mod answer;
mod client;
pub mod memory;
mod reader;
#[cfg(test)]
mod tests;

pub use answer::{Answer, AnswerError, LiveAnswer};
pub use client::{Client, ClientRequest};
