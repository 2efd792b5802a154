//! What a server reports of all its shards. Floor 1, pure.
//!
//! For: the shape of `/__stats` and of what `top` reads (docs/stats.md describes it). Not for: asking the shards, or
//! writing JSON. Fields are only added under the same [`SCHEMA`] and readers ignore those they do not know; a field
//! that changes its meaning or goes away raises it.

use super::{Histogram, Metrics, ShardSnapshot};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the shape below.
pub const SCHEMA: u32 = 1;

/// What one shard answers when it is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardReport {
    /// Index of the shard, from 0.
    pub shard: usize,
    /// The kernel's number of the core it is pinned to, if it is.
    pub core: Option<usize>,
    /// Its counters.
    pub counters: ShardSnapshot,
    /// How long its requests took, since the start.
    pub service_times: Histogram,
    /// How long those of the last 10 to 20 s took.
    pub recent_times: Histogram,
    /// Metrics of the author's.
    pub metrics: Metrics,
}

/// A server at one moment, or nearly one: each shard copies its counters when it is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSnapshot {
    /// [`SCHEMA`] of the writer.
    pub schema: u32,
    /// Version of everycore.
    pub version: String,
    /// The server's state and its process.
    #[serde(flatten)]
    pub server: ServerFacts,
    /// One for each shard that answered in time, by ascending `shard`.
    pub shards: Vec<ShardStats>,
    /// All of `shards` merged: sums, and of peaks the highest.
    pub total: ShardSnapshot,
    /// How long the requests of all shards took, since the start.
    #[serde(default)]
    pub service_time: Latency,
    /// How long those of the last 10 to 20 s took.
    #[serde(default)]
    pub service_time_recent: Latency,
    /// Metrics of the author's, all shards merged.
    #[serde(default)]
    pub custom: Custom,
    /// Shards that did not answer in time, ascending: `total` is without them.
    pub missing: Vec<usize>,
}

/// What is not a shard's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFacts {
    /// Whole seconds since the server started.
    pub uptime_s: u64,
    /// Whether it drains.
    #[serde(default)]
    pub is_draining: bool,
    /// Connections it serves at most.
    #[serde(default)]
    pub connections_max: u64,
    /// Lines of the access log that were lost, because the file did not take them fast enough.
    #[serde(default)]
    pub access_log_dropped: u64,
    /// How it does its I/O.
    pub engine: Engine,
    /// The process.
    #[serde(default)]
    pub process: Process,
}

/// How a server does its I/O: what the ring was made with, after what the kernel offers was found out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Engine {
    /// Such as `io_uring`.
    pub name: String,
    /// Features in use, in the kernel's words, such as `DEFER_TASKRUN`.
    pub features: Vec<String>,
}

/// What the kernel tells of the process. What it does not tell is `None`, or 0 where it cannot be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Memory in use, in bytes (resident set).
    pub rss_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// Time on all cores, in user space and in the kernel, in ns.
    pub cpu_ns: u64,
    /// When it started, in seconds since 1970.
    pub started_unix_s: u64,
    /// Open descriptors.
    pub fds: u64,
    /// Descriptors it may have open.
    pub fds_max: u64,
    /// Its CPU quota, in thousandths of a core.
    pub quota_millicores: Option<u64>,
    /// How the quota held it up.
    pub throttling: Option<Throttled>,
    /// Connections that found a full accept queue, in the whole network namespace (`ListenOverflows`).
    pub listen_overflows: Option<u64>,
}

/// What a CPU quota did to the process' group, since the group was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Throttled {
    /// Periods in which it ran.
    pub periods: u64,
    /// Those in which it was stopped.
    pub throttled_periods: u64,
    /// How long it was stopped, its threads added up, in ns.
    pub throttled_ns: u64,
}

/// One shard's part of a [`ServerSnapshot`]; the counters stand beside `shard` and `core` in the JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardStats {
    /// Index of the shard, from 0.
    pub shard: usize,
    /// The kernel's number of the core it is pinned to, if it is.
    pub core: Option<usize>,
    /// How long its requests took, since the start.
    #[serde(default)]
    pub service_time: Latency,
    /// How long those of the last 10 to 20 s took.
    #[serde(default)]
    pub service_time_recent: Latency,
    /// Metrics of the author's.
    #[serde(default)]
    pub custom: Custom,
    /// Its counters.
    #[serde(flatten)]
    pub counters: ShardSnapshot,
}

/// Metrics of the author's, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Custom {
    /// Counters.
    pub counters: BTreeMap<String, u64>,
    /// Durations.
    pub histograms: BTreeMap<String, Latency>,
}

/// How long things took: a [`Histogram`], readable. Quantiles are at most 1.6 % too high, 0 while there is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// How many there were.
    pub count: u64,
    /// Their sum in ns.
    pub sum_ns: u64,
    /// The shortest, in ns.
    pub min_ns: u64,
    /// The longest, in ns.
    pub max_ns: u64,
    /// Half of them took no longer, in ns.
    pub p50_ns: u64,
    /// 90 % of them took no longer, in ns.
    pub p90_ns: u64,
    /// 99 % of them took no longer, in ns.
    pub p99_ns: u64,
    /// 99.9 % of them took no longer, in ns.
    pub p999_ns: u64,
    /// The buckets that are not empty, shortest first: the longest duration each can hold, in ns, and how many it does.
    /// The JSON leaves them out but for the whole server, unless `buckets=all` asks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<(u64, u64)>,
}

impl From<&Histogram> for Latency {
    fn from(histogram: &Histogram) -> Self {
        // Found in the few buckets that are not empty: the histogram is looked through once.
        let buckets: Vec<(u64, u64)> = histogram.filled().collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let quantile = |q: f64| {
            let rank = ((q * count as f64).ceil() as u64).max(1);
            let mut seen = 0;
            let found = buckets.iter().find(|(_, count)| {
                seen += count;
                seen >= rank
            });
            found.map_or(0, |(longest, _)| *longest)
        };
        Latency {
            count,
            sum_ns: u64::try_from(histogram.sum_ns()).unwrap_or(u64::MAX),
            min_ns: histogram.min_ns().unwrap_or(0),
            max_ns: histogram.max_ns().unwrap_or(0),
            p50_ns: quantile(0.5),
            p90_ns: quantile(0.9),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            buckets,
        }
    }
}

impl Latency {
    /// For each of the ascending `bounds_ns`, how many surely do not exceed it; see [`Histogram::counts_up_to`].
    pub fn counts_up_to(&self, bounds_ns: &[u64]) -> Vec<u64> {
        let mut buckets = self.buckets.iter().peekable();
        let mut seen = 0;
        let mut count_up_to = |bound: u64| {
            while let Some((_, count)) = buckets.next_if(|(longest, _)| *longest <= bound) {
                seen += count;
            }
            seen
        };
        bounds_ns.iter().map(|&bound| count_up_to(bound)).collect()
    }
}

impl From<&Metrics> for Custom {
    fn from(metrics: &Metrics) -> Self {
        Custom {
            counters: metrics.counters.iter().map(|(name, count)| (name.to_string(), *count)).collect(),
            histograms: metrics.histograms.iter().map(|(name, times)| (name.to_string(), times.into())).collect(),
        }
    }
}

impl From<&ShardReport> for ShardStats {
    fn from(report: &ShardReport) -> Self {
        ShardStats {
            shard: report.shard,
            core: report.core,
            service_time: (&report.service_times).into(),
            service_time_recent: (&report.recent_times).into(),
            custom: (&report.metrics).into(),
            counters: report.counters.clone(),
        }
    }
}

impl ServerSnapshot {
    /// Merges the answers of a server of `shard_count` shards; who did not answer is listed as missing. A shard that
    /// answered twice (late, to the request before) counts once, with its last answer.
    pub fn new(server: ServerFacts, shard_count: usize, answers: Vec<ShardReport>) -> Self {
        let mut by_shard: Vec<Option<ShardReport>> = vec![None; shard_count];
        for answer in answers {
            let place = by_shard.get_mut(answer.shard).expect("shards are numbered below shard_count");
            *place = Some(answer);
        }
        let missing = (0..shard_count).filter(|&shard| by_shard[shard].is_none()).collect();
        let mut total = ShardReport::default();
        for report in by_shard.iter().flatten() {
            total.counters.merge(&report.counters);
            total.service_times.merge(&report.service_times);
            total.recent_times.merge(&report.recent_times);
            total.metrics.merge(&report.metrics);
        }
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            server,
            shards: by_shard.iter().flatten().map(ShardStats::from).collect(),
            service_time: (&total.service_times).into(),
            service_time_recent: (&total.recent_times).into(),
            custom: (&total.metrics).into(),
            total: total.counters,
            missing,
        }
    }

    /// Without the buckets of single shards, which nobody looks at and which are most of the bytes.
    pub fn without_shard_buckets(mut self) -> Self {
        for shard in &mut self.shards {
            let custom = shard.custom.histograms.values_mut();
            for latency in custom.chain([&mut shard.service_time, &mut shard.service_time_recent]) {
                latency.buckets = Vec::new();
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::stats::{Count, Counters, Registry};
    use serde_json::{Value, json};
    use std::time::Duration;

    fn answer(shard: usize, requests: u64, buffers: u64) -> ShardReport {
        let counters = Counters::default();
        counters.requests.add(requests);
        counters.buffers.in_use.add(buffers);
        counters.buffers.peak.raise(buffers);
        let registry = Registry::default();
        registry.counter("jobs").unwrap().add(requests);
        registry.durations("waits").unwrap().record(Duration::from_micros(buffers));
        let service_times = Histogram::default();
        service_times.record_many(1_000 * (1 + shard as u64), requests);
        ShardReport {
            shard,
            core: Some(2 * shard),
            counters: counters.snapshot(),
            recent_times: service_times.clone(),
            service_times,
            metrics: registry.snapshot(),
        }
    }

    fn snapshot(shard_count: usize, answers: Vec<ShardReport>) -> ServerSnapshot {
        let engine = Engine { name: "io_uring".into(), features: vec!["DEFER_TASKRUN".into()] };
        ServerSnapshot::new(ServerFacts { uptime_s: 61, engine, ..ServerFacts::default() }, shard_count, answers)
    }

    #[test]
    fn total_is_merged_and_silent_shards_are_missing() {
        let all = snapshot(5, vec![answer(3, 10, 4), answer(0, 1, 9), answer(1, 7, 1), answer(1, 8, 2)]);
        assert_eq!(all.shards.iter().map(|shard| shard.shard).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(all.missing, [2, 4]);
        assert_eq!((all.total.requests, all.total.buffers.in_use, all.total.buffers.peak), (19, 15, 9));
        assert_eq!((all.service_time.count, all.service_time.sum_ns), (19, 1_000 + 8 * 2_000 + 10 * 4_000));
        assert_eq!((all.service_time.min_ns, all.service_time.p50_ns, all.service_time.max_ns), (1_000, 4_000, 4_000));
        assert_eq!(all.service_time.buckets, [(1_007, 1), (2_015, 8), (4_000, 10)]);
        assert_eq!(all.custom.counters["jobs"], 19);
        assert_eq!(all.custom.histograms["waits"].count, 3);
        let none = snapshot(2, vec![]);
        assert_eq!((none.missing, none.total), (vec![0, 1], ShardSnapshot::default()));
        assert_eq!(none.service_time, Latency::default());
    }

    #[test]
    fn json_has_the_documented_shape() {
        let value = serde_json::to_value(snapshot(2, vec![answer(1, 5, 0)]).without_shard_buckets()).unwrap();
        let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(
            names(&value),
            [
                "access_log_dropped",
                "connections_max",
                "custom",
                "engine",
                "is_draining",
                "missing",
                "process",
                "schema",
                "service_time",
                "service_time_recent",
                "shards",
                "total",
                "uptime_s",
                "version"
            ]
        );
        assert_eq!((&value["schema"], &value["uptime_s"]), (&json!(1), &json!(61)));
        assert_eq!(value["engine"], json!({ "name": "io_uring", "features": ["DEFER_TASKRUN"] }));
        let (shard, total) = (&value["shards"][0], &value["total"]);
        assert_eq!((&shard["shard"], &shard["core"], &shard["requests"]), (&json!(1), &json!(2), &json!(5)));
        let beside = ["shard", "core", "service_time", "service_time_recent", "custom"];
        let own: Vec<_> = names(shard).into_iter().filter(|name| !beside.contains(&name.as_str())).collect();
        assert_eq!(own, names(total), "total has the same fields as a shard");
        let times = json!({
            "count": 5, "sum_ns": 10_000, "min_ns": 2_000, "max_ns": 2_000,
            "p50_ns": 2_000, "p90_ns": 2_000, "p99_ns": 2_000, "p999_ns": 2_000,
        });
        assert_eq!((&shard["service_time"], &shard["service_time_recent"]), (&times, &times));
        assert_eq!(value["service_time"]["buckets"], json!([[2_000, 5]]));
        assert_eq!(shard["custom"]["counters"], json!({ "jobs": 5 }));
        assert_eq!(names(&value["process"]).len(), 10);
    }

    #[test]
    fn snapshot_survives_json_with_unknown_fields() {
        let written = snapshot(2, vec![answer(0, 5, 3)]);
        let mut value = serde_json::to_value(&written).unwrap();
        value["from_the_future"] = json!([1]);
        value["shards"][0]["connections"]["from_the_future"] = json!(2);
        assert_eq!(serde_json::from_value::<ServerSnapshot>(value).unwrap(), written);
    }

    #[test]
    fn counts_and_quantiles_are_those_of_the_histogram() {
        let mut random = fastrand::Rng::with_seed(1);
        let histogram = Histogram::default();
        for _ in 0..10_000 {
            let bits = random.u32(1..37);
            histogram.record(random.u64(..1 << bits));
        }
        let bounds = [0, 15, 1_000, 5_000_000, 1 << 30, u64::MAX];
        let latency = Latency::from(&histogram);
        assert_eq!(latency.counts_up_to(&bounds), histogram.counts_up_to(&bounds));
        let quantiles = [0.5, 0.9, 0.99, 0.999].map(|q| histogram.quantile(q).unwrap());
        assert_eq!([latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns], quantiles);
        assert_eq!(latency.count, histogram.count());
    }
}
