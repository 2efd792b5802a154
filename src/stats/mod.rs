//! What a shard counts and what a server reports of it. Floor 1, pure: no clock, no I/O, no atomics.
//!
//! A shard adds to its own [`Counters`] and [`Histogram`]; a reader asks for copies and merges them into a
//! [`ServerSnapshot`]. Not here: asking the shards, and writing JSON or Prometheus text.

mod counters;
mod custom;
mod histogram;
mod recent;
mod snapshot;

pub use counters::*;
pub use custom::{Counter, Durations, Metrics, Registry};
pub use histogram::Histogram;
pub use recent::{Recent, Sample};
pub use snapshot::*;
