//! A snapshot as Prometheus reads it. Floor 1, pure.
//!
//! For: the text format 0.0.4 and OpenMetrics 1.0.0, from the same walk over the counters that makes the JSON. Not for:
//! deciding which of them is sent. Every number is there once a shard, and no sum of them: the reader adds up.

use super::{Kind, Latency, ServerSnapshot, ShardSnapshot};
use std::fmt::{self, Write};

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// The text format 0.0.4.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

/// Upper bounds of the buckets of a request's duration, in ns: those of OpenTelemetry's convention (5 ms to 10 s), and
/// finer ones below them, where an answer from memory is.
const BOUNDS_NS: [u64; 23] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    75_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    750_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    7_500_000_000,
    10_000_000_000,
    30_000_000_000,
];

impl Exposition {
    /// What `Content-Type` says of it.
    pub fn media_type(self) -> &'static str {
        match self {
            Exposition::Text => "text/plain; version=0.0.4; charset=utf-8",
            Exposition::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Writes all of a snapshot.
    pub fn write(self, snapshot: &ServerSnapshot) -> String {
        let mut writer = Writer { out: String::new(), exposition: self };
        writer.server(snapshot);
        writer.durations(snapshot);
        writer.counters(snapshot);
        writer.custom(snapshot);
        if self == Exposition::OpenMetrics {
            writer.out.push_str("# EOF\n");
        }
        writer.out
    }
}

struct Writer {
    out: String,
    exposition: Exposition,
}

/// Writes to the string.
macro_rules! put {
    ($writer:expr, $($text:tt)*) => { write!($writer.out, $($text)*).expect("a string takes all") };
}

impl Writer {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // A counter's family is called like its samples in 0.0.4, and without `_total` in OpenMetrics.
        let suffix = if kind == "counter" && self.exposition == Exposition::Text { "_total" } else { "" };
        put!(self, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n");
    }

    /// A family of one number.
    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl fmt::Display) {
        self.family(name, kind, help);
        let suffix = if kind == "counter" { "_total" } else { "" };
        put!(self, "{name}{suffix} {value}\n");
    }

    fn server(&mut self, snapshot: &ServerSnapshot) {
        let (server, process) = (&snapshot.server, &snapshot.server.process);
        self.family("everycore_build_info", "gauge", "What runs.");
        put!(
            self,
            "everycore_build_info{{version=\"{}\",engine=\"{}\"}} 1\n",
            Escaped(&snapshot.version),
            Escaped(&server.engine.name)
        );
        self.family("everycore_shard_up", "gauge", "Whether the shard answered in time.");
        let mut shards: Vec<(usize, u8)> = snapshot.shards.iter().map(|shard| (shard.shard, 1)).collect();
        shards.extend(snapshot.missing.iter().map(|shard| (*shard, 0)));
        shards.sort_unstable();
        for (shard, up) in shards {
            put!(self, "everycore_shard_up{{shard=\"{shard}\"}} {up}\n");
        }
        self.single("everycore_draining", "gauge", "Whether the server drains.", u8::from(server.is_draining));
        self.single("everycore_connections_max", "gauge", "Connections served at most.", server.connections_max);
        self.single(
            "everycore_access_log_dropped",
            "counter",
            "Lines of the access log that were lost.",
            server.access_log_dropped,
        );
        self.single("process_cpu_seconds", "counter", "Time on all cores.", Seconds(process.cpu_ns));
        self.single("process_resident_memory_bytes", "gauge", "Memory in use.", process.rss_bytes);
        self.single("process_open_fds", "gauge", "Open descriptors.", process.fds);
        self.single("process_max_fds", "gauge", "Descriptors that may be open.", process.fds_max);
        self.single("process_threads", "gauge", "Threads.", process.threads);
        self.single("process_start_time_seconds", "gauge", "When it started, since 1970.", process.started_unix_s);
        if let Some(overflows) = process.listen_overflows {
            let help = "Connections that found a full accept queue, in the whole network namespace.";
            self.single("everycore_listen_overflows", "counter", help, overflows);
        }
        if let Some(throttled) = process.throttling {
            let name = "everycore_cpu_throttled_periods";
            self.single(name, "counter", "Periods in which the CPU quota stopped us.", throttled.throttled_periods);
            let help = "Time in which the CPU quota stopped us, threads added up.";
            self.single("everycore_cpu_throttled_seconds", "counter", help, Seconds(throttled.throttled_ns));
        }
    }

    fn durations(&mut self, snapshot: &ServerSnapshot) {
        let name = "http_server_request_duration_seconds";
        self.family(name, "histogram", "From a request's whole head to its answer's last byte.");
        for shard in &snapshot.shards {
            self.histogram(name, shard.shard, &shard.service_time);
        }
        let name = "http_server_active_requests";
        self.family(name, "gauge", "Requests that are not answered yet.");
        for shard in &snapshot.shards {
            let connections = &shard.counters.connections;
            put!(self, "{name}{{shard=\"{}\"}} {}\n", shard.shard, connections.in_handler + connections.writing);
        }
    }

    fn histogram(&mut self, name: &str, shard: usize, latency: &Latency) {
        for (bound, count) in BOUNDS_NS.iter().zip(latency.counts_up_to(&BOUNDS_NS)) {
            put!(self, "{name}_bucket{{shard=\"{shard}\",le=\"{:?}\"}} {count}\n", *bound as f64 / 1e9);
        }
        put!(self, "{name}_bucket{{shard=\"{shard}\",le=\"+Inf\"}} {}\n", latency.count);
        put!(self, "{name}_sum{{shard=\"{shard}\"}} {}\n", Seconds(latency.sum_ns));
        put!(self, "{name}_count{{shard=\"{shard}\"}} {}\n", latency.count);
    }

    fn counters(&mut self, snapshot: &ServerSnapshot) {
        let fields = fields(&snapshot.total);
        let shards: Vec<Vec<u64>> = snapshot.shards.iter().map(|shard| numbers(&shard.counters)).collect();
        let mut index = 0;
        while index < fields.len() {
            let first = &fields[index];
            // What differs in one label only stands together, and is one family.
            let same = fields[index..].iter().take_while(|field| field.name == first.name).count();
            self.family(&first.name, first.kind, first.help);
            for (shard, own) in snapshot.shards.iter().zip(&shards) {
                for (field, number) in fields[index..index + same].iter().zip(&own[index..]) {
                    self.sample(field, shard.shard, *number);
                }
            }
            index += same;
        }
    }

    fn sample(&mut self, field: &Field, shard: usize, number: u64) {
        let suffix = if field.kind == "counter" { "_total" } else { "" };
        put!(self, "{}{suffix}{{shard=\"{shard}\"", field.name);
        if let Some((label, value)) = field.label {
            put!(self, ",{label}=\"{value}\"");
        }
        match field.is_ns {
            true => put!(self, "}} {}\n", Seconds(number)),
            false => put!(self, "}} {number}\n"),
        };
    }

    fn custom(&mut self, snapshot: &ServerSnapshot) {
        for name in snapshot.custom.counters.keys() {
            self.family(name, "counter", "A counter of the application's.");
            for shard in &snapshot.shards {
                if let Some(count) = shard.custom.counters.get(name) {
                    put!(self, "{name}_total{{shard=\"{}\"}} {count}\n", shard.shard);
                }
            }
        }
        for name in snapshot.custom.histograms.keys() {
            let in_seconds = format!("{name}_seconds");
            self.family(&in_seconds, "histogram", "Durations of the application's.");
            for shard in &snapshot.shards {
                if let Some(latency) = shard.custom.histograms.get(name) {
                    self.histogram(&in_seconds, shard.shard, latency);
                }
            }
        }
    }
}

/// The name by which Prometheus knows a number.
struct Field {
    name: String,
    kind: &'static str,
    help: &'static str,
    label: Option<(&'static str, &'static str)>,
    is_ns: bool,
}

/// Whether Prometheus makes a number itself of the others.
fn is_derived(path: &[&str]) -> bool {
    matches!(path, ["recent", ..] | ["requests"])
}

/// All numbers of one shard but the derived ones, in the order of [`fields`].
fn numbers(counters: &ShardSnapshot) -> Vec<u64> {
    let mut numbers = Vec::new();
    counters.visit(|path, _, _, number| {
        if !is_derived(path) {
            numbers.push(number);
        }
    });
    numbers
}

/// The names of these numbers.
fn fields(counters: &ShardSnapshot) -> Vec<Field> {
    let mut fields = Vec::new();
    counters.visit(|path, kind, help, _| {
        if is_derived(path) {
            return;
        }
        let kind = if kind == Kind::Counter { "counter" } else { "gauge" };
        let labelled = |name: &str, help, label, value| (name.to_owned(), help, Some((label, value)));
        let (name, help, label) = match *path {
            ["methods", method] => labelled("http_server_requests", "Requests by method.", "method", method),
            ["responses", class] => labelled("http_server_responses", "Responses by status class.", "status", class),
            ["connections", state @ ("idle" | "reading_head" | "in_handler" | "writing")] => {
                labelled("everycore_connections", "Open connections by state.", "state", state)
            }
            ["connections", "ages", age] => {
                labelled("everycore_connections_by_age", "Open connections by age.", "age", age)
            }
            ["connections", "closed", cause] => {
                labelled("everycore_connections_closed", "Connections that ended, by cause.", "cause", cause)
            }
            ["ajp", "closed", cause] => {
                labelled("everycore_ajp_closed", "AJP connections that ended, by cause.", "cause", cause)
            }
            ["tcp", "closed", cause] => {
                labelled("everycore_tcp_closed", "Raw TCP connections that ended, by cause.", "cause", cause)
            }
            ["rejects", kind] => {
                labelled("everycore_rejects", "Requests refused before a handler saw them.", "kind", kind)
            }
            ["bytes", way] => (format!("everycore_{way}_bytes"), help, None),
            ["loop", "busy_ns"] => labelled("everycore_shard_seconds", SHARD_SECONDS, "state", "busy"),
            ["loop", "waiting_ns"] => labelled("everycore_shard_seconds", SHARD_SECONDS, "state", "waiting"),
            ["loop", "parked_ns"] => labelled("everycore_shard_seconds", SHARD_SECONDS, "state", "parked"),
            _ => {
                let name = path.join("_");
                let name = name.strip_suffix("_ns").map_or(name.clone(), |name| format!("{name}_seconds"));
                (format!("everycore_{name}"), help, None)
            }
        };
        let is_ns = path.last().is_some_and(|last| last.ends_with("_ns"));
        fields.push(Field { name, kind, help, label, is_ns });
    });
    fields
}

const SHARD_SECONDS: &str = "Where the shard's time went: busy on a core, waiting in the ring or for a core, parked.";

/// Nanoseconds, written as seconds without rounding.
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// A label's value.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            c => f.write_char(c),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Count, Counters, Engine, Histogram, Registry, ServerFacts, ShardReport, Throttled};
    use http::Method;
    use std::{collections::BTreeSet, time::Duration};

    fn report(shard: usize) -> ShardReport {
        let counters = Counters::default();
        (0..2 + shard).for_each(|_| counters.request(&Method::GET));
        counters.request(&Method::PUT);
        counters.responses.by_status(204).add(2);
        counters.connections.in_handler.add(1);
        counters.connections.writing.add(1);
        counters.driver.busy_ns.add(1_500_000_000);
        counters.driver.turn_max_ns.raise(1);
        let mut counters = counters.snapshot();
        counters.fill_in();
        let service_times = Histogram::default();
        [9_000, 3_000_000, 40_000_000_000].iter().for_each(|&ns| service_times.record(ns));
        let registry = Registry::default();
        registry.counter("jobs").expect("a name").add(7);
        registry.durations("waits").expect("a name").record(Duration::from_secs(2));
        ShardReport { shard, counters, service_times, metrics: registry.snapshot(), ..ShardReport::default() }
    }

    fn snapshot() -> ServerSnapshot {
        let engine = Engine { name: "a\"b\\c\nd".into(), features: Vec::new() };
        let mut server = ServerFacts { engine, ..ServerFacts::default() };
        server.process.cpu_ns = 2_000_000_001;
        server.process.throttling = Some(Throttled { periods: 9, throttled_periods: 4, throttled_ns: 5 });
        ServerSnapshot::new(server, 3, vec![report(0), report(2)])
    }

    #[test]
    fn numbers_stand_under_their_names() {
        let text = Exposition::Text.write(&snapshot());
        for line in [
            "# TYPE http_server_requests_total counter",
            "http_server_requests_total{shard=\"2\",method=\"get\"} 4",
            "http_server_requests_total{shard=\"2\",method=\"put\"} 1",
            "# HELP http_server_responses_total Responses by status class.",
            "http_server_responses_total{shard=\"0\",status=\"2xx\"} 2",
            "everycore_build_info{version=\"0.1.0\",engine=\"a\\\"b\\\\c\\nd\"} 1",
            "everycore_shard_up{shard=\"0\"} 1",
            "everycore_shard_up{shard=\"1\"} 0",
            "everycore_shard_up{shard=\"2\"} 1",
            "process_cpu_seconds_total 2.000000001",
            "everycore_cpu_throttled_periods_total 4",
            "http_server_active_requests{shard=\"0\"} 2",
            "everycore_connections{shard=\"0\",state=\"writing\"} 1",
            "# TYPE everycore_shard_seconds_total counter",
            "everycore_shard_seconds_total{shard=\"0\",state=\"busy\"} 1.500000000",
            "# TYPE everycore_loop_turn_max_seconds gauge",
            "everycore_loop_turn_max_seconds{shard=\"0\"} 0.000000001",
            "# TYPE http_server_request_duration_seconds histogram",
            "http_server_request_duration_seconds_bucket{shard=\"0\",le=\"1e-5\"} 1",
            "http_server_request_duration_seconds_bucket{shard=\"0\",le=\"0.0025\"} 1",
            "http_server_request_duration_seconds_bucket{shard=\"0\",le=\"0.005\"} 2",
            "http_server_request_duration_seconds_bucket{shard=\"0\",le=\"30.0\"} 2",
            "http_server_request_duration_seconds_bucket{shard=\"0\",le=\"+Inf\"} 3",
            "http_server_request_duration_seconds_sum{shard=\"0\"} 40.003009000",
            "http_server_request_duration_seconds_count{shard=\"0\"} 3",
            "jobs_total{shard=\"0\"} 7",
            "waits_seconds_bucket{shard=\"2\",le=\"2.5\"} 1",
        ] {
            assert!(text.lines().any(|written| written == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("recent") && !text.contains("EOF"));
    }

    #[test]
    fn openmetrics_differs_in_counter_families_and_the_end() {
        let text = Exposition::OpenMetrics.write(&snapshot());
        for line in [
            "# TYPE http_server_requests counter",
            "http_server_requests_total{shard=\"2\",method=\"get\"} 4",
            "# TYPE jobs counter",
        ] {
            assert!(text.lines().any(|written| written == line), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("\n# EOF\n"));
    }

    #[test]
    fn families_are_named_once_and_samples_too() {
        for exposition in [Exposition::Text, Exposition::OpenMetrics] {
            let text = exposition.write(&snapshot());
            let (mut families, mut samples) = (BTreeSet::new(), BTreeSet::new());
            for line in text.lines().filter(|line| *line != "# EOF") {
                let (what, _) = line.rsplit_once(' ').expect("a value");
                match line.strip_prefix("# TYPE ") {
                    Some(family) => assert!(families.insert(family.to_owned()), "{line}"),
                    None => assert!(line.starts_with('#') || samples.insert(what.to_owned()), "{line}"),
                }
            }
            assert_eq!(text.matches("# HELP").count(), families.len());
        }
    }
}
