//! everycore: one pinned executor, one listener and one io_uring per core.

pub mod limits;
pub mod topology;
