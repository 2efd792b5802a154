//! everycore: one pinned executor, one listener and one io_uring per core.

// Floors: a module imports from its own floor and below only (ARCHITECTURE.md).
// 0
pub mod limits;
// 1
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
mod app;
mod error;
pub mod extract;
pub mod handler;
pub mod middleware;
mod router;
mod shard;
// 5
pub mod service;
// 6
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
pub use handler::{IntoResponse, Reply};
pub use router::{RouteProblem, Router, RouterError};
pub use server::{Handle, Running, Server};
pub use service::tcp::TcpConnection;
pub use shard::{Inbox, SendError, Shard};
