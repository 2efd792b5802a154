//! Bounds a run must keep, such as `p99>5ms`. Floor 6, pure.

use super::run::{Outcome, quantile};
use std::{fmt, str::FromStr, time::Duration};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Metric {
    Quantile(f64),
    Mean,
    Min,
    Rate,
    Errors,
    ErrorShare,
    Not2xx,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A condition that makes a run a failure.
///
/// `p50 … p99.999`, `max`, `mean`, `min` (a time: `800us`, `5ms`, `1.5s`), `rate` (requests a second), `errors` (a
/// number, or a share as `1%`) or `non2xx` (a number); then `>`, `>=`, `<` or `<=`; then the value.
///
/// ```
/// let bound: everycore::load::Threshold = "p99.9 > 2.5ms".parse()?;
/// assert_eq!(bound.to_string(), "p99.9 > 2.5ms");
/// # Ok::<(), everycore::load::ThresholdError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    text: String,
    metric: Metric,
    op: Op,
    /// ns, requests a second, a number, or a share.
    value: f64,
}

/// Not a threshold: what was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThresholdError(String);

impl fmt::Display for ThresholdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected a condition such as p99>5ms, rate<1000, errors>0 or errors>1%, got {:?}", self.0)
    }
}

impl std::error::Error for ThresholdError {}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Threshold {
    type Err = ThresholdError;

    fn from_str(text: &str) -> Result<Self, ThresholdError> {
        parse(text.trim()).ok_or_else(|| ThresholdError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Threshold> {
    let at = text.find(['<', '>'])?;
    let (name, rest) = text.split_at(at);
    let ops = [(">=", Op::GreaterOrEqual), ("<=", Op::LessOrEqual), (">", Op::Greater), ("<", Op::Less)];
    let (value, op) = ops.iter().find_map(|(sign, op)| Some((rest.strip_prefix(sign)?.trim(), *op)))?;
    let (metric, value) = match name.trim() {
        "rate" => (Metric::Rate, number(value)?),
        "non2xx" => (Metric::Not2xx, number(value)?),
        "errors" => match value.strip_suffix('%') {
            Some(share) => (Metric::ErrorShare, number(share)? / 100.0),
            None => (Metric::Errors, number(value)?),
        },
        "mean" => (Metric::Mean, nanos(value)?),
        "min" => (Metric::Min, nanos(value)?),
        "max" => (Metric::Quantile(1.0), nanos(value)?),
        name => {
            let percent = number(name.strip_prefix('p')?)?;
            let metric = (percent > 0.0 && percent <= 100.0).then_some(Metric::Quantile(percent / 100.0))?;
            (metric, nanos(value)?)
        }
    };
    Some(Threshold { text: text.to_owned(), metric, op, value })
}

fn number(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.trim().parse().ok().filter(|_| is_plain)
}

fn nanos(text: &str) -> Option<f64> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let unit = match text[unit_at..].trim() {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    Some(number(text[..unit_at].trim())? * unit)
}

impl Threshold {
    /// What the run did instead, if it is beyond the bound. A latency of a run without answers is beyond every bound.
    pub fn crossed(&self, outcome: &Outcome) -> Option<String> {
        let figures = &outcome.figures;
        let latency = figures.latency();
        let is_time = matches!(self.metric, Metric::Quantile(_) | Metric::Mean | Metric::Min);
        if is_time && figures.answers == 0 {
            return Some("no answer".to_owned());
        }
        let unanswered: u64 =
            figures.faults().filter(|(fault, _)| !fault.has_answer()).map(|(_, tally)| tally.count).sum();
        let requests = (figures.answers + unanswered).max(1) as f64;
        let value = match self.metric {
            Metric::Quantile(q) => quantile(latency, q) as f64,
            Metric::Mean => latency.mean(),
            Metric::Min => latency.min() as f64,
            Metric::Rate => figures.answers as f64 / outcome.elapsed.as_secs_f64().max(1e-9),
            Metric::Errors => figures.errors() as f64,
            Metric::ErrorShare => figures.errors() as f64 / requests,
            Metric::Not2xx => {
                figures.statuses().filter(|(s, _)| !(200..300).contains(s)).map(|(_, n)| n).sum::<u64>() as f64
            }
        };
        let is_crossed = match self.op {
            Op::Less => value < self.value,
            Op::LessOrEqual => value <= self.value,
            Op::Greater => value > self.value,
            Op::GreaterOrEqual => value >= self.value,
        };
        is_crossed.then(|| match self.metric {
            _ if is_time => format!("{:?}", Duration::from_nanos(value as u64)),
            Metric::Rate => format!("{value:.0}/s"),
            Metric::ErrorShare => format!("{:.3}%", value * 100.0),
            _ => format!("{value}"),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::load::{Fault, Figures, response::Answer};

    fn outcome() -> Outcome {
        let mut figures = Figures::new(false);
        for ms in 1..=100 {
            let status = if ms == 100 { 503 } else { 200 };
            let answer = Answer { status, keep_alive: true, body_bytes: 0 };
            figures.answer(&answer, Duration::from_millis(ms), Duration::ZERO);
        }
        figures.fault(Fault::Closed, String::new);
        Outcome {
            address: String::new(),
            figures,
            series: Vec::new(),
            elapsed: Duration::from_secs(2),
            shards: Vec::new(),
            was_stopped: false,
        }
    }

    #[test]
    fn threshold_is_crossed_when_its_condition_holds() {
        let outcome = outcome();
        for (text, is_crossed) in [
            ("p50>50ms", true), // three digits: 50.0x ms
            ("p50>51ms", false),
            ("p99 > 98999us", true),
            ("p99<0.05s", false),
            ("max>=100ms", true),
            ("max>101ms", false),
            ("min<2ms", true),
            ("mean>50ms", true),
            ("rate<51", true),
            ("rate<50", false),
            ("rate<=50", true),
            ("errors>0", true),
            ("errors>1", false),
            ("errors>0.9%", true),
            ("errors>1%", false),
            ("non2xx>0", true),
            ("p99.999>1ns", true),
        ] {
            let threshold: Threshold = text.parse().unwrap();
            assert_eq!(threshold.crossed(&outcome).is_some(), is_crossed, "{text}: {:?}", threshold.crossed(&outcome));
        }
    }

    #[test]
    fn run_without_answers_crosses_every_latency() {
        let outcome = Outcome { figures: Figures::new(true), ..outcome() };
        assert_eq!("p99>1s".parse::<Threshold>().unwrap().crossed(&outcome).unwrap(), "no answer");
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "", "p99", "p99>", "p99>5", "p0>1ms", "p101>1ms", "p99>-1ms", "p99=1ms", "rate<1ms", "errors>x", "q>1",
            "p99>1h",
        ] {
            assert!(text.parse::<Threshold>().is_err(), "{text:?}");
        }
    }
}
