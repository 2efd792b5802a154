//! What `top` shows, from what it polled. Floor 8; no terminal, no clock.

use crate::{
    limits::TOP_HISTORY_MAX,
    stats::{ServerSnapshot, ShardStats},
};
use std::collections::{BTreeMap, VecDeque};

/// A column that can be sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Column {
    #[default]
    Shard,
    Requests,
    Busy,
    Connections,
    P50,
    P99,
    P999,
    Turn,
    Queue,
}

impl Column {
    pub(super) const ALL: [Column; 9] = [
        Column::Shard,
        Column::Requests,
        Column::Busy,
        Column::Connections,
        Column::P50,
        Column::P99,
        Column::P999,
        Column::Turn,
        Column::Queue,
    ];

    fn step(self, by: usize) -> Self {
        let index = Self::ALL.iter().position(|column| *column == self).expect("all are listed");
        Self::ALL[(index + by) % Self::ALL.len()]
    }
}

/// How bad a shard is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    #[default]
    Good,
    Amber,
    Red,
}

/// One shard's line.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    pub(super) shard: usize,
    pub(super) core: Option<usize>,
    /// Without an answer, the numbers mean nothing.
    pub(super) is_missing: bool,
    pub(super) level: Level,
    pub(super) requests: f64,
    pub(super) busy: f64,
    pub(super) connections: u64,
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) p999_ns: u64,
    pub(super) turn_ns: u64,
    pub(super) queue: u64,
    pub(super) received: f64,
    pub(super) sent: f64,
}

impl Row {
    fn key(&self, column: Column) -> f64 {
        match column {
            Column::Shard => self.shard as f64,
            Column::Requests => self.requests,
            Column::Busy => self.busy,
            Column::Connections => self.connections as f64,
            Column::P50 => self.p50_ns as f64,
            Column::P99 => self.p99_ns as f64,
            Column::P999 => self.p999_ns as f64,
            Column::Turn => self.turn_ns as f64,
            Column::Queue => self.queue as f64,
        }
    }
}

/// All that is shown.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) last: Option<ServerSnapshot>,
    pub(super) rows: Vec<Row>,
    /// Requests a second of each shard, oldest first.
    pub(super) history: BTreeMap<usize, VecDeque<u64>>,
    pub(super) sort: Column,
    pub(super) is_reversed: bool,
    pub(super) is_paused: bool,
    /// Why the last look failed.
    pub(super) error: Option<String>,
    /// First row that is shown.
    pub(super) top: usize,
}

/// Turns of 20 ms are felt, and those of 100 ms are an outage for whoever waits.
const TURN_AMBER_NS: u64 = 20_000_000;
const TURN_RED_NS: u64 = 100_000_000;
const BUSY_AMBER: f64 = 0.95;

impl Model {
    /// Takes in an answer, or why there is none.
    pub(super) fn take(&mut self, polled: Result<ServerSnapshot, String>) {
        if self.is_paused {
            return;
        }
        let now = match polled {
            Ok(now) => now,
            Err(error) => {
                self.error = Some(error);
                return;
            }
        };
        self.error = None;
        let before = self.last.take().filter(|before| is_same_server(before, &now));
        if before.is_none() {
            self.history.clear();
        }
        let earlier = |id: usize| before.as_ref()?.shards.iter().find(|shard| shard.shard == id);
        self.rows = now.shards.iter().map(|shard| row(shard, earlier(shard.shard))).collect();
        for row in &self.rows {
            let history = self.history.entry(row.shard).or_default();
            history.push_back(row.requests as u64);
            if history.len() > TOP_HISTORY_MAX {
                history.pop_front();
            }
        }
        let missing = now.missing.iter();
        self.rows.extend(missing.map(|&shard| Row { shard, is_missing: true, level: Level::Red, ..Row::default() }));
        self.last = Some(now);
        self.order();
    }

    /// Sorts by the next column, or one before it.
    pub(super) fn sort_by(&mut self, is_next: bool) {
        self.sort = self.sort.step(if is_next { 1 } else { Column::ALL.len() - 1 });
        self.is_reversed = false;
        self.order();
    }

    pub(super) fn reverse(&mut self) {
        self.is_reversed = !self.is_reversed;
        self.order();
    }

    /// Moves the rows by so many lines, of which `height` are seen.
    pub(super) fn scroll(&mut self, by: isize, height: usize) {
        let last = self.rows.len().saturating_sub(height);
        self.top = self.top.saturating_add_signed(by).min(last);
    }

    /// Shards by number upwards, everything else from the highest down; who gave no answer first.
    fn order(&mut self) {
        let (column, is_up) = (self.sort, (self.sort == Column::Shard) != self.is_reversed);
        self.rows.sort_by(|a, b| {
            let order = a.key(column).total_cmp(&b.key(column));
            let order = if is_up { order } else { order.reverse() };
            let missing =
                if column == Column::Shard { std::cmp::Ordering::Equal } else { b.is_missing.cmp(&a.is_missing) };
            missing.then(order).then(a.shard.cmp(&b.shard))
        });
        self.top = self.top.min(self.rows.len().saturating_sub(1));
    }
}

fn is_same_server(before: &ServerSnapshot, now: &ServerSnapshot) -> bool {
    before.server.process.pid == now.server.process.pid && before.server.uptime_s <= now.server.uptime_s
}

fn row(now: &ShardStats, before: Option<&ShardStats>) -> Row {
    let times = &now.service_time_recent;
    let mut row = Row {
        shard: now.shard,
        core: now.core,
        connections: now.counters.connections.active,
        p50_ns: times.p50_ns,
        p99_ns: times.p99_ns,
        p999_ns: times.p999_ns,
        turn_ns: now.counters.driver.turn_max_60s_ns,
        queue: now.counters.accept_queue.waiting,
        ..Row::default()
    };
    let last_second = &now.counters.recent.last_1s;
    (row.requests, row.received, row.sent, row.busy) = match before {
        // The shard's own clock, so that a late answer does not bend the rates.
        Some(before) if clock_ns(now) > clock_ns(before) => {
            let seconds = (clock_ns(now) - clock_ns(before)) as f64 / 1e9;
            let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
            let (now, before) = (&now.counters, &before.counters);
            (
                rate(now.requests, before.requests),
                rate(now.bytes.received, before.bytes.received),
                rate(now.bytes.sent, before.bytes.sent),
                rate(now.driver.busy_ns, before.driver.busy_ns) / 1e9,
            )
        }
        _ => (
            last_second.requests as f64,
            last_second.received as f64,
            last_second.sent as f64,
            last_second.busy_ns as f64 / 1e9,
        ),
    };
    row.busy = row.busy.min(1.0);
    row.level = match row.turn_ns {
        TURN_RED_NS.. => Level::Red,
        TURN_AMBER_NS.. => Level::Amber,
        _ if row.busy > BUSY_AMBER || row.queue > now.counters.accept_queue.room / 2 => Level::Amber,
        _ => Level::Good,
    };
    row
}

fn clock_ns(shard: &ShardStats) -> u64 {
    let driver = &shard.counters.driver;
    driver.busy_ns + driver.waiting_ns + driver.parked_ns
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::stats::{Latency, ServerFacts};

    /// Second `second` of a server whose shards do 100, 200, … requests a second and are 10, 20, … % busy.
    pub(in super::super) fn snapshot(shards: usize, second: u64) -> ServerSnapshot {
        let mut snapshot = ServerSnapshot {
            version: "0.1.0".into(),
            server: ServerFacts { uptime_s: second, connections_max: 1000, ..ServerFacts::default() },
            ..ServerSnapshot::default()
        };
        for shard in 0..shards {
            let mut stats = ShardStats { shard, core: Some(shard + 4), ..ShardStats::default() };
            let nth = shard as u64 + 1;
            stats.counters.requests = 100 * nth * second;
            stats.counters.bytes.sent = 2048 * second;
            stats.counters.connections.active = 10 - nth % 10;
            stats.counters.driver.busy_ns = second * (nth % 10) * 100_000_000;
            stats.counters.driver.parked_ns = second * 1_000_000_000 - stats.counters.driver.busy_ns;
            stats.service_time_recent =
                Latency { p50_ns: 21_000, p99_ns: 180_000 * nth, p999_ns: 2_500_000, ..Latency::default() };
            snapshot.total.merge(&stats.counters);
            snapshot.shards.push(stats);
        }
        snapshot
    }

    fn order(model: &Model) -> Vec<usize> {
        model.rows.iter().map(|row| row.shard).collect()
    }

    #[test]
    fn rates_are_by_the_shards_clock() {
        let mut model = Model::default();
        model.take(Ok(snapshot(2, 10)));
        assert_eq!(model.rows[0].requests, 0.0, "the last second's, until there are two answers");
        model.take(Ok(snapshot(2, 14)));
        let row = &model.rows[1];
        assert_eq!((row.requests, row.busy, row.sent), (200.0, 0.2, 2048.0));
        assert_eq!(model.history[&1], [0, 200]);
    }

    #[test]
    fn another_server_starts_anew() {
        let mut model = Model::default();
        model.take(Ok(snapshot(1, 10)));
        model.take(Ok(snapshot(1, 11)));
        model.take(Ok(snapshot(1, 2)));
        assert_eq!((model.rows[0].requests, model.history[&0].len()), (0.0, 1));
    }

    #[test]
    fn rows_are_sorted_by_the_chosen_column() {
        let mut model = Model::default();
        let mut first = snapshot(4, 10);
        first.shards.remove(1);
        first.missing = vec![1];
        model.take(Ok(first));
        assert_eq!(order(&model), [0, 1, 2, 3]);
        model.reverse();
        assert_eq!(order(&model), [3, 2, 1, 0]);
        model.sort_by(false);
        assert_eq!((model.sort, model.is_reversed), (Column::Queue, false));
        (0..4).for_each(|_| model.sort_by(true));
        assert_eq!((model.sort, order(&model)), (Column::Connections, vec![1, 0, 2, 3]));
        model.reverse();
        assert_eq!(order(&model), [1, 3, 2, 0], "who gave no answer stays first");
    }

    #[test]
    fn trouble_is_marked() {
        let check = |change: fn(&mut ShardStats), expected: Level| {
            let mut model = Model::default();
            let mut now = snapshot(1, 1);
            change(&mut now.shards[0]);
            model.take(Ok(now));
            assert_eq!(model.rows[0].level, expected);
        };
        check(|_| {}, Level::Good);
        check(|shard| shard.counters.driver.turn_max_60s_ns = TURN_AMBER_NS - 1, Level::Good);
        check(|shard| shard.counters.driver.turn_max_60s_ns = TURN_AMBER_NS, Level::Amber);
        check(|shard| shard.counters.driver.turn_max_60s_ns = TURN_RED_NS, Level::Red);
        check(|shard| shard.counters.recent.last_1s.busy_ns = 960_000_000, Level::Amber);
        check(|shard| shard.counters.accept_queue.waiting = 1, Level::Amber);
    }

    #[test]
    fn pause_and_failure_keep_what_is_there() {
        let mut model = Model::default();
        model.take(Ok(snapshot(1, 10)));
        model.take(Err("refused".into()));
        assert_eq!((model.rows.len(), model.error.as_deref()), (1, Some("refused")));
        model.is_paused = true;
        model.take(Ok(snapshot(3, 11)));
        assert_eq!(model.rows.len(), 1);
        model.is_paused = false;
        model.take(Ok(snapshot(3, 11)));
        assert_eq!((model.rows.len(), model.error.as_deref()), (3, None));
        model.scroll(9, 2);
        assert_eq!(model.top, 1);
        model.scroll(-9, 2);
        assert_eq!(model.top, 0);
    }
}
