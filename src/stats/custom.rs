//! Counters and histograms of an author's own. Floor 1, pure.
//!
//! For: naming them once on a shard and adding to them like to ours, without atomics. Not for: labels, gauges, or
//! sharing between shards: a reader merges what the shards have under one name.

use super::Histogram;
use crate::limits::{METRIC_NAME_BYTES_MAX, METRICS_MAX};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    time::Duration,
};

/// A counter of an author's; see [`Shard::counter`](crate::Shard::counter). Clones are the same counter.
#[derive(Clone, Debug, Default)]
pub struct Counter(Rc<Cell<u64>>);

impl Counter {
    /// Counts one.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// Counts `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.set(self.0.get().wrapping_add(n));
    }

    /// What this shard counted so far.
    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

/// A histogram of durations of an author's; see [`Shard::histogram`](crate::Shard::histogram). Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Durations(Rc<Histogram>);

impl Durations {
    /// Counts one duration.
    #[inline]
    pub fn record(&self, duration: Duration) {
        self.0.record(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// What this shard recorded so far.
    pub fn histogram(&self) -> &Histogram {
        &self.0
    }
}

/// All of one shard by name.
#[derive(Debug, Default)]
pub struct Registry {
    counters: RefCell<BTreeMap<Box<str>, Counter>>,
    durations: RefCell<BTreeMap<Box<str>, Durations>>,
}

/// Copies of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Counters by name.
    pub counters: BTreeMap<Box<str>, u64>,
    /// Histograms of durations by name.
    pub histograms: BTreeMap<Box<str>, Histogram>,
}

impl Registry {
    /// The counter of that name, made if there is none. `None`: the name is none, or there are too many.
    pub fn counter(&self, name: &str) -> Option<Counter> {
        let is_room = self.has_room();
        find(&mut self.counters.borrow_mut(), name, is_room)
    }

    /// The histogram of that name, made if there is none. `None`: the name is none, or there are too many.
    pub fn durations(&self, name: &str) -> Option<Durations> {
        let is_room = self.has_room();
        find(&mut self.durations.borrow_mut(), name, is_room)
    }

    fn has_room(&self) -> bool {
        self.counters.borrow().len() + self.durations.borrow().len() < METRICS_MAX
    }

    /// What they show now.
    pub fn snapshot(&self) -> Metrics {
        let counters = self.counters.borrow();
        let durations = self.durations.borrow();
        Metrics {
            counters: counters.iter().map(|(name, counter)| (name.clone(), counter.get())).collect(),
            histograms: durations.iter().map(|(name, times)| (name.clone(), times.histogram().clone())).collect(),
        }
    }
}

impl Metrics {
    /// Adds another shard's, name by name.
    pub fn merge(&mut self, other: &Self) {
        for (name, count) in &other.counters {
            let sum = self.counters.entry(name.clone()).or_default();
            *sum = sum.wrapping_add(*count);
        }
        for (name, histogram) in &other.histograms {
            self.histograms.entry(name.clone()).or_default().merge(histogram);
        }
    }
}

fn find<M: Clone + Default>(metrics: &mut BTreeMap<Box<str>, M>, name: &str, has_room: bool) -> Option<M> {
    if let Some(metric) = metrics.get(name) {
        return Some(metric.clone());
    }
    (is_name(name) && has_room).then(|| metrics.entry(name.into()).or_default().clone())
}

/// What Prometheus takes for a name: a letter or `_`, then letters, digits and `_` (its `:` is for rules). Not one that
/// with the suffix it gets would be another's, or that begins as the server's own do.
fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    name.len() <= METRIC_NAME_BYTES_MAX
        && name.bytes().next().is_some_and(is_letter)
        && name.bytes().all(|byte| is_letter(byte) || byte.is_ascii_digit())
        && !["everycore_", "http_server_", "process_"].iter().any(|prefix| name.starts_with(prefix))
        && !["_total", "_seconds", "_bucket", "_sum", "_count", "_created", "_info"]
            .iter()
            .any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_prometheus_takes() {
        let longest = "a".repeat(METRIC_NAME_BYTES_MAX);
        for name in ["a", "_", "jobs_done", "A9", &longest] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "",
            "9a",
            "everycore_x",
            "process_x",
            "jobs_total",
            "waits_seconds",
            "a-b",
            "a b",
            "a:b",
            "é",
            "a\n",
            &format!("{longest}a"),
        ] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn one_name_is_one_metric_and_their_number_is_bounded() {
        let registry = Registry::default();
        let jobs = registry.counter("jobs").expect("a name");
        jobs.increment();
        registry.counter("jobs").expect("the same").add(2);
        registry.durations("waits").expect("a name").record(Duration::from_micros(5));
        assert_eq!(jobs.get(), 3);
        let snapshot = registry.snapshot();
        assert_eq!(snapshot.counters.get("jobs"), Some(&3));
        assert_eq!(snapshot.histograms["waits"].sum_ns(), 5_000);
        for index in 2..METRICS_MAX {
            assert!(registry.counter(&format!("c{index}")).is_some());
        }
        assert!(registry.counter("one_more").is_none() && registry.durations("one_more").is_none());
        assert!(registry.counter("jobs").is_some(), "those that are there stay");
    }

    #[test]
    fn shards_are_merged_by_name() {
        let [a, b] = [Registry::default(), Registry::default()];
        a.counter("both").expect("a name").add(1);
        b.counter("both").expect("a name").add(10);
        b.counter("one").expect("a name").add(7);
        b.durations("waits").expect("a name").record(Duration::from_nanos(100));
        let mut merged = a.snapshot();
        merged.merge(&b.snapshot());
        assert_eq!(merged.counters.into_iter().collect::<Vec<_>>(), [("both".into(), 11), ("one".into(), 7)]);
        assert_eq!(merged.histograms["waits"].count(), 1);
    }
}
