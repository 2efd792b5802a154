//! A snapshot as a table: a row a shard, and one of their sums. Floor 1, pure.

use super::{Latency, ServerSnapshot, ShardSnapshot};
use std::fmt::Write;

/// What `Content-Type` says of it (RFC 4180).
pub const CSV_MEDIA_TYPE: &str = "text/csv; charset=utf-8; header=present";

/// The columns are `shard` (or `total`), `core`, the counters by their path in the JSON, and the service times. Nothing
/// in it needs quotes.
pub fn write_csv(snapshot: &ServerSnapshot) -> String {
    let mut out = String::from("shard,core");
    snapshot.total.visit(|path, _, _, _| {
        let _ = write!(out, ",{}", path.join("."));
    });
    for span in ["service_time", "service_time_recent"] {
        for (name, _) in numbers(&Latency::default()) {
            let _ = write!(out, ",{span}.{name}");
        }
    }
    out.push_str("\r\n");
    for shard in &snapshot.shards {
        let core = shard.core.map(|core| core.to_string()).unwrap_or_default();
        row(
            &mut out,
            &format!("{},{core}", shard.shard),
            &shard.counters,
            [&shard.service_time, &shard.service_time_recent],
        );
    }
    row(&mut out, "total,", &snapshot.total, [&snapshot.service_time, &snapshot.service_time_recent]);
    out
}

fn row(out: &mut String, first: &str, counters: &ShardSnapshot, times: [&Latency; 2]) {
    out.push_str(first);
    // Writing to a string cannot fail.
    counters.visit(|_, _, _, number| {
        let _ = write!(out, ",{number}");
    });
    for (_, number) in times.into_iter().flat_map(numbers) {
        let _ = write!(out, ",{number}");
    }
    out.push_str("\r\n");
}

fn numbers(latency: &Latency) -> [(&'static str, u64); 8] {
    [
        ("count", latency.count),
        ("sum_ns", latency.sum_ns),
        ("min_ns", latency.min_ns),
        ("max_ns", latency.max_ns),
        ("p50_ns", latency.p50_ns),
        ("p90_ns", latency.p90_ns),
        ("p99_ns", latency.p99_ns),
        ("p999_ns", latency.p999_ns),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Count, Counters, Histogram, ServerFacts, ShardReport};

    #[test]
    fn table_has_a_row_for_each_shard_and_the_total() {
        let report = |shard, core, requests| {
            let counters = Counters::default();
            counters.requests.add(requests);
            let service_times = Histogram::default();
            service_times.record_many(500, requests);
            ShardReport { shard, core, counters: counters.snapshot(), service_times, ..ShardReport::default() }
        };
        let text =
            write_csv(&ServerSnapshot::new(ServerFacts::default(), 3, vec![report(0, Some(4), 5), report(2, None, 6)]));
        let rows: Vec<Vec<&str>> = text.split_terminator("\r\n").map(|row| row.split(',').collect()).collect();
        let column = |name: &str| rows[0].iter().position(|column| *column == name).expect(name);
        let of = |name: &str| rows[1..].iter().map(|row| row[column(name)]).collect::<Vec<_>>();
        assert_eq!((of("shard"), of("core")), (vec!["0", "2", "total"], vec!["4", "", ""]));
        assert_eq!(of("requests"), ["5", "6", "11"]);
        assert_eq!(of("connections.closed.reset"), ["0", "0", "0"]);
        assert_eq!(
            (of("service_time.count"), of("service_time.sum_ns")),
            (vec!["5", "6", "11"], vec!["2500", "3000", "5500"])
        );
        assert!(rows.iter().all(|row| row.len() == rows[0].len()));
    }
}
