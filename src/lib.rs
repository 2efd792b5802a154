//! everycore: one pinned executor, one listener and one io_uring per core.

pub mod http;
pub mod limits;
