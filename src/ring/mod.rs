//! io_uring and sockets: the only unsafe code of the crate. Floor 3.

pub mod listen;
pub mod probe;
pub mod rlimit;
