//! everycore: one pinned executor, one listener and one io_uring per core.

#[cfg(feature = "cli")]
pub mod cli;
pub mod http;
pub mod limits;
#[cfg(feature = "cli")]
pub mod load;
#[allow(unsafe_code)]
pub mod ring;
pub mod stats;
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
