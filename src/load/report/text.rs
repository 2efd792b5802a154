//! A report for a reader at a terminal. Floor 6, pure.

use super::{Latency, Report};
use std::fmt::{self, Display, Write};

/// Renders the whole summary.
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    write(&mut out, report).expect("a string takes all");
    out
}

fn write(out: &mut String, report: &Report) -> fmt::Result {
    let load = &report.load;
    let rate = load.rate.map(|rate| format!(", {} requests/s", Count(rate as u64))).unwrap_or_default();
    let plural = if load.shards == 1 { "" } else { "s" };
    writeln!(out, "{} ({})", load.url, load.address)?;
    write!(
        out,
        "{} model{rate}, {} connections on {} shard{plural}",
        load.model,
        Count(load.connections as u64),
        load.shards
    )?;
    if load.pipeline > 1 {
        write!(out, ", {} pipelined", load.pipeline)?;
    }
    if load.is_churn {
        write!(out, ", one request each, batches of {}", load.batch)?;
    }
    if load.requests > 1 {
        write!(out, ", {} different requests", load.requests)?;
    }
    writeln!(out, ", {:.2} s\n", report.elapsed_s)?;

    let share = 100.0 * report.rate.stdev / report.rate.mean.max(1e-9);
    let spread = match report.whole_intervals().len() {
        0 | 1 => String::new(),
        _ => format!(
            "   ± {share:.1} % ({} to {} in intervals of {} s)",
            Count(report.rate.min as u64),
            Count(report.rate.max as u64),
            report.rate.interval_s
        ),
    };
    line(out, "Requests/s", format!("{}{spread}", Count(report.rate.mean as u64)))?;
    line(out, "Answers", format!("{}, {} errors", Count(report.answers), Count(report.failures)))?;
    for (status, count) in &report.statuses {
        line(out, "", format!("{} × status {status}", Count(*count)))?;
    }
    let (received, sent) = (report.bytes.received as f64, report.bytes.sent as f64);
    line(
        out,
        "Bytes",
        format!(
            "{} received ({}/s), {} sent ({}/s), {} in bodies",
            Bytes(received),
            Bytes(received / report.elapsed_s.max(1e-9)),
            Bytes(sent),
            Bytes(sent / report.elapsed_s.max(1e-9)),
            Bytes(report.bytes.body as f64)
        ),
    )?;

    writeln!(out)?;
    write!(out, "  {:<12}", "Latency")?;
    for name in ["min", "mean", "p50", "p90", "p99", "p99.9", "p99.99", "p99.999", "max"] {
        write!(out, "{name:>9}")?;
    }
    writeln!(out)?;
    match &report.service {
        Some(service) => {
            latency(out, "since due", &report.latency)?;
            latency(out, "since sent", service)?;
        }
        None => latency(out, if load.is_churn { "with connect" } else { "since sent" }, &report.latency)?,
    }
    if let Some(connect) = &report.connect {
        latency(out, "connect", connect)?;
    }

    writeln!(out)?;
    let concurrency = &report.concurrency;
    let asked = format!("{:.1} in flight by Little's law, {} possible", concurrency.measured, Count(concurrency.asked));
    line(out, "Concurrency", asked)?;
    let connections = &report.connections;
    let mut text = format!(
        "{} opened; least served {}, median {}, most {}",
        Count(connections.opened),
        Count(connections.least),
        Count(connections.median),
        Count(connections.most)
    );
    if connections.resent > 0 {
        write!(text, "; {} requests sent again after an announced close", Count(connections.resent))?;
    }
    line(out, "Connections", text)?;
    let client = &report.client;
    line(
        out,
        "Client",
        format!(
            "busiest shard {:.0} % of a core, {:.2} us CPU an answer",
            client.busiest * 100.0,
            client.cpu_us_per_answer
        ),
    )?;

    if !report.errors.is_empty() {
        writeln!(out, "\n  Errors")?;
    }
    for error in &report.errors {
        writeln!(out, "  {:>12}  {}: {}", Count(error.count).to_string(), error.kind, error.what)?;
        if error.example != error.what {
            writeln!(out, "  {:>12}  first: {}", "", error.example)?;
        }
    }
    if !report.warnings.is_empty() {
        writeln!(out)?;
    }
    for warning in &report.warnings {
        writeln!(out, "! {warning}")?;
    }
    Ok(())
}

fn line(out: &mut String, name: &str, text: impl Display) -> fmt::Result {
    writeln!(out, "  {name:<12}{text}")
}

fn latency(out: &mut String, name: &str, latency: &Latency) -> fmt::Result {
    write!(out, "  {name:<12}")?;
    if latency.count == 0 {
        return writeln!(out, "{:>9}", "none");
    }
    let quantile = |name| latency.quantile(name);
    let values = [
        latency.min_ns,
        latency.mean_ns as u64,
        quantile("p50"),
        quantile("p90"),
        quantile("p99"),
        quantile("p99.9"),
        quantile("p99.99"),
        quantile("p99.999"),
        latency.max_ns,
    ];
    for value in values {
        write!(out, "{:>9}", Nanos(value).to_string())?;
    }
    writeln!(out)
}

/// A number with its thousands apart.
#[derive(Clone, Copy, Debug)]
pub struct Count(pub u64);

impl Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut text = String::with_capacity(digits.len() + digits.len() / 3);
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&text)
    }
}

/// A time in ns, with three digits and a unit.
#[derive(Clone, Copy, Debug)]
pub struct Nanos(pub u64);

impl Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            0..1_000 => return f.pad(&format!("{} ns", self.0)),
            1_000..999_500 => (self.0 as f64 / 1e3, "us"),
            999_500..999_500_000 => (self.0 as f64 / 1e6, "ms"),
            _ => (self.0 as f64 / 1e9, "s"),
        };
        f.pad(&format!("{} {unit}", Three(value)))
    }
}

/// Bytes, with three digits and a decimal unit.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub f64);

impl Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
        match units.iter().find(|(size, _)| self.0 >= *size) {
            Some((size, unit)) => f.pad(&format!("{} {unit}", Three(self.0 / size))),
            None => f.pad(&format!("{:.0} B", self.0)),
        }
    }
}

/// Three significant digits of a number from 0 to 999.
struct Three(f64);

impl Display for Three {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match self.0 {
            value if value < 9.995 => 2,
            value if value < 99.95 => 1,
            _ => 0,
        };
        write!(f, "{:.digits$}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_have_units() {
        for (value, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(Count(value).to_string(), text);
        }
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (9_996, "10.0 us"),
            (99_960, "100 us"),
            (999_499, "999 us"),
            (999_500, "1.00 ms"),
            (12_345_678, "12.3 ms"),
            (999_500_000, "1.00 s"),
            (3_600_000_000_000, "3600 s"),
        ] {
            assert_eq!(Nanos(ns).to_string(), text, "{ns}");
        }
        for (bytes, text) in [(0.0, "0 B"), (999.0, "999 B"), (1_000.0, "1.00 kB"), (1.5e9, "1.50 GB")] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
