//! everycore: one pinned executor, one listener and one io_uring per core.

#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
pub mod http;
pub mod limits;
pub mod preflight;
#[allow(unsafe_code)]
pub mod ring;
pub mod stats;
pub mod topology;
pub mod transport;

mod app;
pub mod extract;
pub mod handler;
pub mod middleware;
mod router;

pub use crate::http::{Body, Request, Response};
pub use app::{App, ErrorInfo};
pub use extract::ExtractError;
pub use handler::{IntoResponse, Reply};
pub use router::{RouteProblem, Router, RouterError};
