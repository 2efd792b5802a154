//! everycore: one pinned executor, one listener and one io_uring per core.

pub mod http;
pub mod limits;

mod app;
#[cfg(feature = "cli")]
pub mod demo;
pub mod extract;
pub mod handler;
pub mod middleware;
mod router;

pub use crate::http::{Body, Request, Response};
pub use app::{App, ErrorInfo};
pub use extract::ExtractError;
pub use handler::{IntoResponse, Reply};
pub use router::{RouteProblem, Router, RouterError};
