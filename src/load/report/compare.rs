//! What changed between two runs, and whether it is more than noise. Floor 6, pure.
//!
//! The intervals of a run are put together into at most ten batches, so that neighbours that resemble each other do
//! not count twice; the spread of the batches gives the error of each mean. A change is called one when it is larger
//! than three such errors and than five percent. What differs between two runs but not within one (placement of
//! threads, another guest on the machine) cannot be seen so: repeat in turn before believing a small change.

use super::{
    Report, mean_and_stdev,
    text::{Count, Nanos},
};
use crate::{
    limits::{COMPARE_BATCHES_MAX, COMPARE_BATCHES_MIN},
    load::Row,
};
use std::fmt::Write;

const ERRORS: f64 = 3.0;
const LEAST_CHANGE: f64 = 0.05;

/// How two figures relate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Within noise: how large a change would have to be, as a share.
    Noise(f64),
    /// Better by this share.
    Better(f64),
    /// Worse by this share.
    Worse(f64),
    /// Too few intervals to tell.
    Unknown,
}

/// Judges the `change` of a measure between two runs, as a share, by its values in their intervals.
/// `more_is_better`: a rate; otherwise a latency.
pub fn verdict(change: f64, before: &[f64], after: &[f64], more_is_better: bool) -> Verdict {
    let (before, after) = (batches(before), batches(after));
    if before.len() < COMPARE_BATCHES_MIN || after.len() < COMPARE_BATCHES_MIN {
        return Verdict::Unknown;
    }
    let (mean_before, error_before) = mean_and_error(&before);
    let (mean_after, error_after) = mean_and_error(&after);
    if mean_before <= 0.0 || mean_after <= 0.0 {
        return Verdict::Unknown;
    }
    // Relative to either mean: of a quantile these are means of quantiles, not the quantile of the run.
    let error = ((error_before / mean_before).powi(2) + (error_after / mean_after).powi(2)).sqrt();
    let least = (ERRORS * error).max(LEAST_CHANGE);
    match change {
        // Halved is as far as doubled.
        _ if (1.0 + change).ln().abs() <= least.ln_1p() => Verdict::Noise(least),
        _ if (change > 0.0) == more_is_better => Verdict::Better(change.abs()),
        _ => Verdict::Worse(change.abs()),
    }
}

fn batches(values: &[f64]) -> Vec<f64> {
    let size = values.len().div_ceil(COMPARE_BATCHES_MAX).max(1);
    values.chunks(size).map(|batch| mean_and_stdev(batch).0).collect()
}

fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let (mean, stdev) = mean_and_stdev(values);
    (mean, stdev / (values.len() as f64).sqrt())
}

/// Renders the comparison.
pub fn render(before: &Report, after: &Report) -> String {
    let mut out = String::new();
    let mut line = |text: String| writeln!(out, "{}", text.trim_end()).expect("a string takes all");
    if before.load.url != after.load.url {
        line(format!("A: {}\nB: {}", before.load.url, after.load.url));
    } else {
        line(before.load.url.clone());
    }
    for (what, a, b) in [
        ("model", before.load.model.clone(), after.load.model.clone()),
        ("rate", format!("{:?}", before.load.rate), format!("{:?}", after.load.rate)),
        ("connections", before.load.connections.to_string(), after.load.connections.to_string()),
        ("shards", before.load.shards.to_string(), after.load.shards.to_string()),
        ("pipeline", before.load.pipeline.to_string(), after.load.pipeline.to_string()),
        ("connection a request", before.load.is_churn.to_string(), after.load.is_churn.to_string()),
    ] {
        if a != b {
            line(format!("! not the same load: {what} {a} and {b}"));
        }
    }
    line(format!("\n  {:<12}{:>12}{:>12}{:>10}   verdict", "", "A", "B", "change"));
    let series = |report: &Report, of: fn(&Row) -> f64| -> Vec<f64> {
        report.whole_intervals().into_iter().filter(|row| row.answers > 0).map(of).collect()
    };
    let mut measure = |name: &str, a: f64, b: f64, show: fn(f64) -> String, verdict: String| {
        let change = match b / a {
            _ if a <= 0.0 => String::new(),
            ratio if ratio >= 10.0 => format!("× {ratio:.0}"),
            ratio => format!("{:+.1} %", (ratio - 1.0) * 100.0),
        };
        line(format!("  {name:<12}{:>12}{:>12}{change:>10}   {verdict}", show(a), show(b)));
    };
    let rates = |report| series(report, Row::rate);
    measure(
        "requests/s",
        before.rate.mean,
        after.rate.mean,
        |value| Count(value as u64).to_string(),
        speak(verdict(after.rate.mean / before.rate.mean - 1.0, &rates(before), &rates(after), true)),
    );
    let time: fn(f64) -> String = |value| Nanos(value as u64).to_string();
    for (name, of) in [("p50", (|row| row.p50_ns as f64) as fn(&Row) -> f64), ("p99", |row| row.p99_ns as f64)] {
        let (a, b) = (before.latency.quantile(name) as f64, after.latency.quantile(name) as f64);
        let verdict = speak(verdict(b / a - 1.0, &series(before, of), &series(after, of), false));
        measure(name, a, b, time, verdict);
    }
    for name in ["p99.9", "p99.99"] {
        let (a, b) = (before.latency.quantile(name), after.latency.quantile(name));
        measure(name, a as f64, b as f64, time, String::new());
    }
    measure("max", before.latency.max_ns as f64, after.latency.max_ns as f64, time, String::new());
    let errors = match (before.failures, after.failures) {
        (0, 0) => "none",
        (0, _) => "worse",
        (_, 0) => "better",
        _ => "",
    };
    let plain: fn(f64) -> String = |value| Count(value as u64).to_string();
    measure("errors", before.failures as f64, after.failures as f64, plain, errors.to_owned());
    for (name, report) in [("A", before), ("B", after)] {
        for warning in &report.warnings {
            line(format!("! {name}: {warning}"));
        }
    }
    out
}

fn speak(verdict: Verdict) -> String {
    match verdict {
        Verdict::Noise(least) => format!("within noise (± {:.0} %)", least * 100.0),
        Verdict::Better(_) => "better".to_owned(),
        Verdict::Worse(_) => "worse".to_owned(),
        Verdict::Unknown => "too few intervals to tell".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_counts_when_it_is_larger_than_the_noise() {
        let steady = |mean: f64| -> Vec<f64> { (0..50).map(|i| mean + f64::from(i % 5)).collect() };
        let wild = |mean: f64| -> Vec<f64> { (0..50).map(|i| mean * (1.0 + 0.5 * f64::from(i / 5 % 2))).collect() };
        let judge = |before: &[f64], after: &[f64], more_is_better| {
            let change = mean_and_stdev(after).0 / mean_and_stdev(before).0 - 1.0;
            verdict(change, before, after, more_is_better)
        };
        assert!(matches!(judge(&steady(1_000.0), &steady(1_040.0), true), Verdict::Noise(_)), "below five percent");
        assert!(matches!(judge(&steady(1_000.0), &steady(1_080.0), true), Verdict::Better(_)));
        assert!(matches!(judge(&steady(1_000.0), &steady(1_080.0), false), Verdict::Worse(_)));
        assert!(matches!(judge(&steady(1_000.0), &steady(900.0), true), Verdict::Worse(_)));
        assert!(matches!(judge(&wild(1_000.0), &wild(1_100.0), true), Verdict::Noise(_)), "lost in the spread");
        assert!(matches!(judge(&wild(1_000.0), &wild(3_000.0), true), Verdict::Better(_)));
        assert_eq!(judge(&[1.0, 2.0], &steady(1.0), true), Verdict::Unknown);
        assert_eq!(judge(&[0.0; 5], &steady(1.0), true), Verdict::Unknown);
    }
}
