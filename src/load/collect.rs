//! Merging what the shards send: intervals into a series, the series into a total. Floor 6.

use super::{
    plan::{Model, Plan},
    record::Figures,
    run::{Event, Outcome, Row, ShardEnd},
    target::LoadError,
};
use crate::limits::LOAD_STOP_LOOK;
use std::{
    collections::BTreeMap,
    io,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

/// Puts the intervals of all shards together.
struct Collector<'a> {
    interval: Duration,
    /// Intervals that not all shards have delivered.
    pending: BTreeMap<u64, Figures>,
    /// The interval each shard delivered last; `u64::MAX` of one that ended.
    reached: Vec<Option<u64>>,
    covered: Duration,
    total: Figures,
    series: Vec<Row>,
    observe: &'a mut dyn FnMut(&Row, &Figures),
}

impl Collector<'_> {
    fn add(&mut self, shard: usize, index: u64, figures: Box<Figures>, reached: u64) {
        match self.pending.get_mut(&index) {
            Some(all) => all.merge(&figures),
            None => {
                self.pending.insert(index, *figures);
            }
        }
        self.reached[shard] = Some(reached);
        let whole = self.reached.iter().copied().min().flatten();
        while let Some(entry) = self.pending.first_entry()
            && whole.is_some_and(|whole| *entry.key() <= whole && whole != u64::MAX)
        {
            let end = self.interval * u32::try_from(*entry.key() + 1).unwrap_or(u32::MAX);
            let figures = entry.remove();
            self.complete(end, &figures);
        }
    }

    fn complete(&mut self, end: Duration, figures: &Figures) {
        let row = Row::new(self.covered, end.saturating_sub(self.covered), figures);
        self.covered = self.covered.max(end);
        self.total.merge(figures);
        (self.observe)(&row, figures);
        self.series.push(row);
    }
}

/// Takes in what the shards send until all have ended; the address is for the caller to fill in.
///
/// # Errors
/// A shard failed.
pub(super) fn collect(
    plan: &Plan,
    events: &Receiver<Event>,
    observe: &mut dyn FnMut(&Row, &Figures),
    stop: &AtomicBool,
) -> Result<Outcome, LoadError> {
    let mut collector = Collector {
        interval: plan.interval,
        pending: BTreeMap::new(),
        reached: vec![None; plan.shards],
        covered: Duration::ZERO,
        total: Figures::new(plan.model != Model::Closed),
        series: Vec::new(),
        observe,
    };
    let mut shards = vec![ShardEnd::default(); plan.shards];
    let mut ended = 0;
    while ended < plan.shards {
        match events.recv_timeout(LOAD_STOP_LOOK) {
            Ok(Event::Interval { shard, index, figures }) => collector.add(shard, index, figures, index),
            Ok(Event::Ended { shard, index, figures, end }) => {
                collector.add(shard, index, figures, u64::MAX);
                shards[shard] = end;
                ended += 1;
            }
            Ok(Event::Failed(error)) => return Err(LoadError::Shard(error)),
            Ok(Event::Ready) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(LoadError::Shard(io::Error::other("a shard ended without its figures")));
            }
        }
    }
    let elapsed = shards.iter().map(|shard| shard.elapsed).max().unwrap_or_default();
    for (index, figures) in std::mem::take(&mut collector.pending) {
        let end = plan.interval * u32::try_from(index + 1).unwrap_or(u32::MAX);
        collector.complete(end.min(elapsed).max(collector.covered), &figures);
    }
    Ok(Outcome {
        address: String::new(),
        elapsed,
        was_stopped: stop.load(Ordering::Relaxed),
        figures: collector.total,
        series: collector.series,
        shards,
    })
}
