//! The shard's io_uring and what it needs. Floor 3.

pub mod wheel;
