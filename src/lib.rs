//! everycore: one pinned executor, one listener and one io_uring per core.

pub mod http;
pub mod limits;
#[allow(unsafe_code)]
pub mod ring;
pub mod stats;
pub mod transport;
