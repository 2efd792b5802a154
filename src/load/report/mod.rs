//! What a run found, as one value: JSON as it is, and drawn by the modules below. Floor 6, pure.

pub mod compare;
pub mod csv;
pub mod html;
mod plot;
pub mod text;

use super::{
    plan::{Arrivals, Model, Plan},
    run::{Outcome, Row, quantile},
    target::LoadError,
};
use crate::limits::{LOAD_BUSY_WARN, LOAD_DELAYED_WARN};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path, time::Duration};

/// A finished run. Its JSON is a stable format: fields are added, not changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Version of the program.
    pub everycore: String,
    /// The command line, where there was one.
    pub command: String,
    /// When it began, seconds of unix time.
    pub started_unix_s: u64,
    /// What was asked for.
    pub load: Load,
    /// Time that was counted.
    pub elapsed_s: f64,
    /// It was told to stop before its end.
    pub was_stopped: bool,
    /// Answers, good or bad.
    pub answers: u64,
    /// Errors of all kinds: requests without an answer, and answers that were not as expected.
    pub failures: u64,
    /// Answers a second.
    pub rate: Rate,
    /// Until the last byte: in the closed model from sending, in the open one from when it was due.
    pub latency: Latency,
    /// Of the open model: from sending.
    pub service: Option<Latency>,
    /// Until a connection was established.
    pub connect: Option<Latency>,
    /// Bytes.
    pub bytes: Bytes,
    /// Answers by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Errors by kind.
    pub errors: Vec<ErrorLine>,
    /// Requests in flight.
    pub concurrency: Concurrency,
    /// How evenly connections were served.
    pub connections: Connections,
    /// Our own side.
    pub client: Client,
    /// What was left at the end.
    pub unfinished: Unfinished,
    /// What a reader must know before believing the figures.
    pub warnings: Vec<String>,
    /// The time series.
    pub series: Vec<Row>,
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// The first URL.
    pub url: String,
    /// Where connections went.
    pub address: String,
    /// Different requests.
    pub requests: usize,
    /// `closed`, `open constant` or `open poisson`.
    pub model: String,
    /// Requests a second, of the open model.
    pub rate: Option<f64>,
    /// Connections.
    pub connections: usize,
    /// Shards.
    pub shards: usize,
    /// Requests in flight on a connection.
    pub pipeline: usize,
    /// A connection a request.
    pub is_churn: bool,
    /// Requests drawn at once.
    pub batch: u64,
    /// Bound in seconds.
    pub duration_s: Option<f64>,
    /// Bound in requests.
    pub requests_max: Option<u64>,
    /// Not counted before it, seconds.
    pub warmup_s: f64,
}

/// Answers a second, and how that varied between whole intervals.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Over the whole run.
    pub mean: f64,
    /// Standard deviation between intervals.
    pub stdev: f64,
    /// Slowest interval.
    pub min: f64,
    /// Fastest interval.
    pub max: f64,
    /// Their length.
    pub interval_s: f64,
}

/// A distribution of times, ns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// How many were recorded.
    pub count: u64,
    /// Shortest.
    pub min_ns: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Standard deviation.
    pub stdev_ns: f64,
    /// Longest.
    pub max_ns: u64,
    /// By name: `p50` … `p99.999`.
    pub quantiles_ns: BTreeMap<String, u64>,
    /// Points (quantile, ns) of the whole curve.
    pub curve: Vec<(f64, u64)>,
}

/// Bytes of all connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bytes {
    /// Received, heads included.
    pub received: u64,
    /// Sent.
    pub sent: u64,
    /// Received in bodies.
    pub body: u64,
}

/// One kind of error.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorLine {
    /// A word for it.
    pub kind: String,
    /// A sentence for it.
    pub what: String,
    /// How often.
    pub count: u64,
    /// The first one.
    pub example: String,
}

/// Requests in flight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Concurrency {
    /// Connections times pipelined requests.
    pub asked: u64,
    /// Rate times mean latency (Little's law).
    pub measured: f64,
}

/// How evenly connections were served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Connections {
    /// Opened while counting.
    pub opened: u64,
    /// Answers on the one with the fewest.
    pub least: u64,
    /// Answers on the middle one.
    pub median: u64,
    /// Answers on the one with the most.
    pub most: u64,
    /// Without any answer.
    pub never: u64,
    /// Requests sent again because the server announced that it closes.
    pub resent: u64,
}

/// Our own side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Client {
    /// CPU time of all shards.
    pub cpu_s: f64,
    /// Share of a core that the busiest shard used.
    pub busiest: f64,
    /// Share of the time that the shard held up most was ready and others had its core.
    #[serde(default)]
    pub delayed: f64,
    /// CPU time for one answer, us.
    pub cpu_us_per_answer: f64,
    /// The client held the server back.
    pub is_bottleneck: bool,
}

/// What was left at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Unfinished {
    /// Sent, not answered.
    pub unanswered: u64,
    /// How long the oldest of them had waited, seconds.
    pub oldest_s: f64,
    /// Due, not sent.
    pub unsent: u64,
}

/// The quantiles that have names.
pub const QUANTILES: [(&str, f64); 8] = [
    ("p50", 0.5),
    ("p75", 0.75),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
    ("p99.999", 0.99999),
];

impl Latency {
    fn new(histogram: &Histogram<u64>) -> Option<Latency> {
        let max_ns = histogram.max();
        (!histogram.is_empty()).then(|| Latency {
            count: histogram.len(),
            min_ns: histogram.min(),
            mean_ns: histogram.mean(),
            stdev_ns: histogram.stdev(),
            max_ns,
            quantiles_ns: QUANTILES.map(|(name, q)| (name.to_owned(), quantile(histogram, q))).into(),
            curve: histogram
                .iter_quantiles(5)
                .map(|step| (step.quantile_iterated_to(), step.value_iterated_to().min(max_ns)))
                .collect(),
        })
    }

    /// A named quantile, ns.
    pub fn quantile(&self, name: &str) -> u64 {
        self.quantiles_ns.get(name).copied().unwrap_or(0)
    }
}

impl Report {
    /// Sums a run up. Command and time of begin are for the caller to fill in.
    pub fn new(plan: &Plan, outcome: &Outcome) -> Report {
        let figures = &outcome.figures;
        let elapsed_s = outcome.elapsed.as_secs_f64();
        let service = Latency::new(&figures.service);
        let response = figures.response.as_ref().and_then(Latency::new);
        let rate = rate(outcome, plan.interval.as_secs_f64());
        let mean_in_flight = rate.mean * figures.service.mean() / 1e9;
        let is_open = figures.response.is_some();
        let mut report = Report {
            everycore: env!("CARGO_PKG_VERSION").to_owned(),
            load: load(plan, outcome),
            elapsed_s,
            was_stopped: outcome.was_stopped,
            answers: figures.answers,
            failures: figures.errors(),
            rate,
            latency: if is_open { response } else { service.clone() }.unwrap_or_default(),
            service: service.filter(|_| is_open),
            connect: Latency::new(&figures.connect),
            bytes: Bytes { received: figures.received, sent: figures.sent, body: figures.body_bytes },
            statuses: figures.statuses().collect(),
            errors: figures
                .faults()
                .map(|(fault, tally)| ErrorLine {
                    kind: fault.kind().to_owned(),
                    what: fault.to_string(),
                    count: tally.count,
                    example: tally.example.clone(),
                })
                .collect(),
            concurrency: Concurrency { asked: (plan.connections * plan.pipeline) as u64, measured: mean_in_flight },
            connections: connections(outcome),
            client: client(outcome),
            unfinished: Unfinished {
                unanswered: outcome.shards.iter().map(|shard| shard.unanswered).sum(),
                oldest_s: outcome.shards.iter().map(|shard| shard.oldest.as_secs_f64()).fold(0.0, f64::max),
                unsent: outcome.shards.iter().map(|shard| shard.unsent).sum(),
            },
            series: outcome.series.clone(),
            ..Report::default()
        };
        report.warnings = warnings(plan, &report);
        report
    }

    /// As JSON, for `compare` and for other programs.
    pub fn to_json(&self) -> String {
        let mut json = serde_json::to_string_pretty(self).expect("a report is plain data");
        json.push('\n');
        json
    }

    /// Reads what [`Report::to_json`] wrote.
    ///
    /// # Errors
    /// The file cannot be read, or is no such JSON.
    pub fn read(path: &Path) -> Result<Report, LoadError> {
        let file = |source| LoadError::File { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(file)?;
        serde_json::from_str(&text).map_err(|error| file(error.into()))
    }

    /// Intervals of full length: the last of a run is cut short, and says nothing of the spread.
    pub(super) fn whole_intervals(&self) -> Vec<&Row> {
        self.series.iter().filter(|row| row.seconds >= 0.95 * self.rate.interval_s).collect()
    }
}

fn rate(outcome: &Outcome, interval_s: f64) -> Rate {
    let rates: Vec<f64> = outcome.series.iter().filter(|row| row.seconds >= 0.95 * interval_s).map(Row::rate).collect();
    let mean = outcome.figures.answers as f64 / outcome.elapsed.as_secs_f64().max(1e-9);
    if rates.is_empty() {
        return Rate { mean, stdev: 0.0, min: mean, max: mean, interval_s };
    }
    let (_, stdev) = mean_and_stdev(&rates);
    let min = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let max = rates.iter().copied().fold(0.0, f64::max);
    Rate { mean, stdev, min, max, interval_s }
}

/// Mean and sample standard deviation.
pub(super) fn mean_and_stdev(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count.max(1.0);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}

fn load(plan: &Plan, outcome: &Outcome) -> Load {
    let (model, rate) = match plan.model {
        Model::Closed => ("closed", None),
        Model::Open { rate, arrivals: Arrivals::Constant } => ("open constant", Some(rate)),
        Model::Open { rate, arrivals: Arrivals::Poisson } => ("open poisson", Some(rate)),
    };
    let scheme = if plan.url.scheme == super::Scheme::Http { "http" } else { "tcp" };
    Load {
        url: format!("{scheme}://{}{}", plan.url.authority, plan.wanted[0].path),
        address: outcome.address.clone(),
        requests: plan.wanted.len(),
        model: model.to_owned(),
        rate,
        connections: plan.connections,
        shards: plan.shards,
        pipeline: plan.pipeline,
        is_churn: plan.is_churn(),
        batch: plan.batch,
        duration_s: plan.extent.duration.map(|duration| duration.as_secs_f64()),
        requests_max: plan.extent.requests,
        warmup_s: plan.warmup.as_secs_f64(),
    }
}

fn connections(outcome: &Outcome) -> Connections {
    let mut served: Vec<u64> = outcome.shards.iter().flat_map(|shard| shard.served.iter().copied()).collect();
    served.sort_unstable();
    Connections {
        opened: outcome.figures.connect.len(),
        least: served.first().copied().unwrap_or(0),
        median: served.get(served.len() / 2).copied().unwrap_or(0),
        most: served.last().copied().unwrap_or(0),
        never: served.iter().filter(|&&count| count == 0).count() as u64,
        resent: outcome.figures.resent,
    }
}

fn client(outcome: &Outcome) -> Client {
    let most = |time: fn(&super::ShardEnd) -> Duration| {
        let shares =
            outcome.shards.iter().map(|shard| time(shard).as_secs_f64() / shard.elapsed.as_secs_f64().max(1e-9));
        shares.fold(0.0, f64::max)
    };
    let cpu_s: f64 = outcome.shards.iter().map(|shard| shard.cpu.as_secs_f64()).sum();
    let busiest = most(|shard| shard.cpu);
    Client {
        cpu_s,
        busiest,
        delayed: most(|shard| shard.delayed),
        cpu_us_per_answer: cpu_s * 1e6 / outcome.figures.answers.max(1) as f64,
        is_bottleneck: busiest >= LOAD_BUSY_WARN,
    }
}

fn warnings(plan: &Plan, report: &Report) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |is_so: bool, text: String| {
        if is_so {
            warnings.push(text);
        }
    };
    let is_open = plan.model != Model::Closed;
    let (connections, unfinished) = (&report.connections, &report.unfinished);
    if report.answers == 0 {
        let worst = report.errors.iter().max_by_key(|error| error.count);
        let why = worst.map_or("none came in time".to_owned(), |error| error.what.clone());
        warn(true, format!("the server gave no answer at all: {why}"));
    }
    warn(report.was_stopped, "the run was ended early".to_owned());
    warn(
        report.client.is_bottleneck,
        format!(
            "the client is the bottleneck: a shard of ours used {:.0} % of its core; use more threads (-t), or read these \
             figures as the client's",
            report.client.busiest * 100.0
        ),
    );
    warn(
        report.client.delayed >= LOAD_DELAYED_WARN,
        format!(
            "the client shared its core: a shard of ours was ready and had to wait {:.0} % of the time, and the latencies \
             have that in them; keep its cores free (taskset, fewer threads)",
            report.client.delayed * 100.0
        ),
    );
    warn(
        unfinished.unsent > 0,
        format!(
            "{} requests were due and could not be sent: the server did not keep up, and true latencies are longer than shown",
            unfinished.unsent
        ),
    );
    warn(
        unfinished.unanswered > 0 && (is_open || unfinished.oldest_s >= 1.0),
        format!(
            "{} requests had no answer at the end, the oldest after {:.1} s; they are not in the latencies",
            unfinished.unanswered, unfinished.oldest_s
        ),
    );
    let enough = report.answers >= 10 * plan.connections as u64;
    warn(
        connections.never > 0 && enough,
        format!("{} of {} connections never had an answer", connections.never, plan.connections),
    );
    warn(
        connections.never == 0 && enough && !is_open && connections.least * 10 < connections.most,
        format!("connections were served unevenly: {} to {} answers", connections.least, connections.most),
    );
    let (asked, measured) = (report.concurrency.asked as f64, report.concurrency.measured);
    warn(
        !is_open && plan.pipeline == 1 && enough && measured < 0.8 * asked,
        format!(
            "{measured:.1} requests were in flight on average, {asked} were asked for: some connections starved, or were \
             busy opening"
        ),
    );
    if let Model::Open { rate, .. } = plan.model {
        let missed = report.rate.mean < 0.98 * rate && !report.was_stopped && report.elapsed_s > 1.0;
        warn(missed, format!("{rate} requests/s were asked for, {:.0} were answered", report.rate.mean));
    }
    warnings
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::load::{Figures, ShardEnd};

    #[test]
    fn client_says_when_it_held_the_run_back() {
        #[track_caller]
        fn check(cpu_ms: u64, delayed_ms: u64, expected: [bool; 2]) {
            let [cpu, delayed] = [cpu_ms, delayed_ms].map(Duration::from_millis);
            let busy = ShardEnd { elapsed: Duration::from_secs(10), cpu, delayed, ..ShardEnd::default() };
            let idle = ShardEnd { elapsed: Duration::from_secs(10), ..ShardEnd::default() };
            let mut figures = Figures::new(false);
            figures.answers = 1;
            let outcome = Outcome {
                address: String::new(),
                figures,
                series: Vec::new(),
                elapsed: Duration::from_secs(10),
                shards: vec![idle, busy],
                was_stopped: false,
            };
            let report = Report::new(&Plan::new("http://h/".parse().unwrap()), &outcome);
            let warns = |text: &str| report.warnings.iter().any(|warning| warning.contains(text));
            assert_eq!([warns("is the bottleneck"), warns("shared its core")], expected, "{:?}", report.warnings);
        }
        check(8_999, 999, [false, false]);
        check(9_000, 999, [true, false]);
        check(100, 1_000, [false, true]);
        check(9_500, 5_000, [true, true]);
    }
}
