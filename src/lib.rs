//! everycore: one pinned executor, one listener and one io_uring per core.

#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
pub mod limits;
pub mod preflight;
pub mod ring;
pub mod topology;
