//! What a server reports of all its shards. Floor 1, pure.
//!
//! For: the shape of `/__stats` and of what `top` reads. Not for: asking the shards, or writing JSON. Fields are only
//! added under the same [`SCHEMA`] and readers ignore those they do not know; a field that changes its meaning or
//! goes away raises it.

use super::ShardSnapshot;
use serde::{Deserialize, Serialize};

/// Version of the shape below.
pub const SCHEMA: u32 = 1;

/// A server at one moment, or nearly one: each shard copies its counters when it is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSnapshot {
    /// [`SCHEMA`] of the writer.
    pub schema: u32,
    /// Version of everycore.
    pub version: String,
    /// Whole seconds since the server started.
    pub uptime_s: u64,
    /// How it does its I/O.
    pub engine: Engine,
    /// One for each shard that answered in time, by ascending `shard`.
    pub shards: Vec<ShardStats>,
    /// All of `shards` merged: sums, and of peaks the highest.
    pub total: ShardSnapshot,
    /// Shards that did not answer in time, ascending: `total` is without them.
    pub missing: Vec<usize>,
}

/// How a server does its I/O: what the ring was made with, after what the kernel offers was found out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Engine {
    /// Such as `io_uring`.
    pub name: String,
    /// Features in use, in the kernel's words, such as `DEFER_TASKRUN`.
    pub features: Vec<String>,
}

/// One shard's part of a [`ServerSnapshot`]; the counters stand beside `shard` and `core` in the JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardStats {
    /// Index of the shard, from 0.
    pub shard: usize,
    /// The kernel's number of the core it is pinned to, if it is.
    pub core: Option<usize>,
    /// Its counters.
    #[serde(flatten)]
    pub counters: ShardSnapshot,
}

impl ServerSnapshot {
    /// Merges the answers of a server of `shard_count` shards; who did not answer is listed as missing. A shard that
    /// answered twice (late, to the request before) counts once, with its last answer.
    pub fn new(uptime_s: u64, engine: Engine, shard_count: usize, answers: Vec<ShardStats>) -> Self {
        let mut by_shard: Vec<Option<ShardStats>> = vec![None; shard_count];
        for answer in answers {
            let place = by_shard.get_mut(answer.shard).expect("shards are numbered below shard_count");
            *place = Some(answer);
        }
        let missing = (0..shard_count).filter(|&shard| by_shard[shard].is_none()).collect();
        let shards: Vec<ShardStats> = by_shard.into_iter().flatten().collect();
        let mut total = ShardSnapshot::default();
        shards.iter().for_each(|shard| total.merge(&shard.counters));
        Self { schema: SCHEMA, version: env!("CARGO_PKG_VERSION").to_owned(), uptime_s, engine, shards, total, missing }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::stats::{Count, Counters};
    use serde_json::{Value, json};

    fn answer(shard: usize, requests: u64, buffers: u64) -> ShardStats {
        let counters = Counters::default();
        counters.requests.add(requests);
        counters.buffers.take(buffers);
        ShardStats { shard, core: Some(2 * shard), counters: counters.snapshot() }
    }

    fn snapshot(shard_count: usize, answers: Vec<ShardStats>) -> ServerSnapshot {
        let engine = Engine { name: "io_uring".into(), features: vec!["DEFER_TASKRUN".into()] };
        ServerSnapshot::new(61, engine, shard_count, answers)
    }

    #[test]
    fn total_is_merged_and_silent_shards_are_missing() {
        let all = snapshot(5, vec![answer(3, 10, 4), answer(0, 1, 9), answer(1, 7, 1), answer(1, 8, 2)]);
        assert_eq!(all.shards.iter().map(|shard| shard.shard).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(all.missing, [2, 4]);
        assert_eq!((all.total.requests, all.total.buffers.in_use, all.total.buffers.peak), (19, 15, 9));
        let none = snapshot(2, vec![]);
        assert_eq!((none.missing, none.total), (vec![0, 1], ShardSnapshot::default()));
    }

    #[test]
    fn json_has_the_documented_shape() {
        let value = serde_json::to_value(snapshot(2, vec![answer(1, 5, 0)])).unwrap();
        let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&value), ["engine", "missing", "schema", "shards", "total", "uptime_s", "version"]);
        assert_eq!((&value["schema"], &value["uptime_s"]), (&json!(1), &json!(61)));
        assert_eq!(value["engine"], json!({ "name": "io_uring", "features": ["DEFER_TASKRUN"] }));
        let (shard, total) = (&value["shards"][0], &value["total"]);
        assert_eq!((&shard["shard"], &shard["core"], &shard["requests"]), (&json!(1), &json!(2), &json!(5)));
        let own: Vec<_> = names(shard).into_iter().filter(|name| name != "shard" && name != "core").collect();
        assert_eq!(own, names(total), "total has the same fields as a shard");
    }

    #[test]
    fn snapshot_survives_json_with_unknown_fields() {
        let written = snapshot(2, vec![answer(0, 5, 3)]);
        let mut value = serde_json::to_value(&written).unwrap();
        value["from_the_future"] = json!([1]);
        value["shards"][0]["connections"]["from_the_future"] = json!(2);
        assert_eq!(serde_json::from_value::<ServerSnapshot>(value).unwrap(), written);
    }
}
