//! What a shard counts and what a server reports of it. Floor 1, pure: no clock, no I/O, no atomics.
//!
//! A shard adds to its own [`Counters`] and [`Histogram`]; a reader asks for copies and merges them into a
//! [`ServerSnapshot`]. [`Exposition`] and [`write_csv`] write that out.
//! Not here: asking the shards, and choosing a format.

mod count;
mod counters;
mod csv;
mod custom;
mod histogram;
mod prometheus;
mod recent;
mod snapshot;

pub use count::Count;
pub use counters::*;
pub use csv::{CSV_MEDIA_TYPE, write_csv};
pub use custom::{Counter, Durations, Metrics, Registry};
pub use histogram::{Batched, Histogram};
pub use prometheus::Exposition;
pub use recent::{Recent, Sample};
pub use snapshot::*;
