//! The command line. Floor 8: everything below may be used, nothing below uses it.

pub mod bench;
