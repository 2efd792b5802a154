//! An HTTP server runtime for Linux: one pinned executor, one listener and one io_uring per core. Floor 8.
//!
//! A [`Server`] starts a *shard* on each core: a thread tied to it, with its own listener, its own ring, its own handler
//! state and its own counters. The closure given to [`Server::run`] builds a [`Router`] on each shard. What it makes
//! stays there, so handlers need neither `Send` nor locks.
//!
//! ```no_run
//! use everycore::{Request, Response, Router, Server};
//! use std::{cell::Cell, rc::Rc};
//!
//! fn main() -> Result<(), everycore::Error> {
//!     Server::bind("127.0.0.1:8080").handle_signals().run(|shard| {
//!         let id = shard.id();
//!         let served = Rc::new(Cell::new(0u64)); // this shard's own
//!         Router::new()
//!             .get("/served", move |_| {
//!                 served.set(served.get() + 1);
//!                 Response::text(format!("request {} of shard {id}\n", served.get()))
//!             })
//!             .get("/hello/{name}", |req: Request| async move {
//!                 Response::text(format!("Hello {}!\n", req.param("name").unwrap_or_default()))
//!             })
//!     })
//! }
//! ```
//!
//! | to | see |
//! |---|---|
//! | name routes, nest and merge them, set an error page | [`Router`] |
//! | write handlers, and know what they may give back | [`handler`] |
//! | serve files | [`Files`] |
//! | read a query, a form, JSON, cookies as types | [`extract`] |
//! | stream bodies in and out | [`Body`], [`Response::stream`] |
//! | put something around handlers | [`middleware`] |
//! | wait, start tasks, talk to other shards | [`Shard`] |
//! | serve a protocol of your own | [`Server::tcp`] |
//! | shut down, read the addresses, read the counters | [`Server::start`], [`Running`], [`Handle`] |
//! | test handlers without sockets | [`testing`] |
//! | measure a server | [`load`] |
//! | change limits and deadlines | [`Server::configure`], [`config::ServerConfig`], [`limits`] |
//!
//! # What a handler must know
//!
//! - A shard is one thread: what blocks it, or computes for long, holds up all its connections. Such work goes to
//!   `glommio::executor().spawn_blocking(…)`, files to `glommio::io`.
//! - What needs tokio does not run here. What is written against futures-io does: see [`ring::Socket`].
//! - It is dropped at its next `await` when its client resets the connection, or at the handler timeout.
//! - A panic costs its own client a 500 (the connection, if the answer had begun) and is counted; nobody else notices.
//!
//! # Features
//!
//! - `cli` (default): the `everycore` program, its flags and its demo. Services that embed the library leave it out.
//! - `compression` (default, and part of `cli`): `middleware::Compression`, gzip and brotli in pure Rust.
//! - `json` (default): [`Response::json`] and [`Request::json`].

// Floors: a module imports from its own floor and below only (ARCHITECTURE.md).
// 0
pub mod limits;
// 1
pub mod ajp;
pub mod http;
pub mod stats;
// 2
pub mod config;
pub mod topology;
// 3
pub mod preflight;
#[allow(unsafe_code)]
pub mod ring;
pub mod transport;
// 4
mod access_log;
mod app;
mod error;
pub mod extract;
mod files;
pub mod handler;
pub mod middleware;
mod router;
mod shard;
// 5
pub mod service;
// 6
#[cfg(feature = "cli")]
pub mod load;
pub mod testing;
mod worker;
// 7
mod endpoints;
mod server;
mod systemd;
// 8
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cli")]
pub mod demo;
pub mod doctor;

pub use crate::http::{Body, Request, Response};
pub use app::{App, ErrorInfo};
pub use error::Error;
pub use extract::ExtractError;
pub use files::Files;
pub use handler::{IntoResponse, Reply};
pub use router::{RouteProblem, Router, RouterError};
pub use server::{Handle, Running, Server};
pub use service::tcp::TcpConnection;
pub use shard::{Draining, Inbox, SendError, Shard};

/// The Rust in README.md compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
