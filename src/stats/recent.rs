//! What one shard counted in the last seconds. Floor 1, pure: the caller has the clock.
//!
//! For: the rates of the last 1, 10 and 60 s at no cost to a request: the counts are put aside once a second, by a
//! shard that is awake, and a shard that slept fills the gap when it wakes. Not for: graphs, which readers draw from
//! what they poll.

use super::{Histogram, RecentSnapshot, WindowSnapshot};
use crate::limits::{RECENT_SECONDS_MAX, RECENT_TIMES_SECONDS};

/// The counts at the begin of a second, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Requests.
    pub requests: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Time on a core, in ns.
    pub busy_ns: u64,
}

/// Seconds that are kept: the latest, and as many before it as the longest window has.
const KEPT: usize = RECENT_SECONDS_MAX + 1;

/// The samples of the last seconds, and two earlier copies of the service times.
#[derive(Debug)]
pub struct Recent {
    /// That of second `s` is at `s % KEPT`.
    samples: Box<[Sample; KEPT]>,
    /// Longest turn in ns of the second before, at the same place.
    turn_ns: Box<[u64; KEPT]>,
    /// The latest second.
    second: u64,
    /// Service times at the last two multiples of `RECENT_TIMES_SECONDS`, the earlier one first.
    times: [Histogram; 2],
}

impl Default for Recent {
    fn default() -> Self {
        Recent {
            samples: Box::new([Sample::default(); KEPT]),
            turn_ns: Box::new([0; KEPT]),
            second: 0,
            times: [Histogram::default(), Histogram::default()],
        }
    }
}

impl Recent {
    /// Notes the counts at the begin of `second`, and the longest turn since the last call. Seconds in between, in
    /// which the shard slept, get the same counts, and no turn.
    pub fn note(&mut self, second: u64, sample: Sample, turn_ns: u64, times: &Histogram) {
        let first = (self.second + 1).max(second.saturating_sub(KEPT as u64 - 1));
        for filled in first..=second {
            let at = (filled % KEPT as u64) as usize;
            self.samples[at] = sample;
            self.turn_ns[at] = if filled == first { turn_ns } else { 0 };
        }
        let spans = second / RECENT_TIMES_SECONDS - self.second / RECENT_TIMES_SECONDS;
        if spans > 0 {
            self.times.swap(0, 1);
            self.times[1] = times.clone();
        }
        if spans > 1 {
            self.times[0] = times.clone();
        }
        self.second = self.second.max(second);
    }

    /// What was counted in the last whole seconds.
    pub fn snapshot(&self) -> RecentSnapshot {
        RecentSnapshot { last_1s: self.window(1), last_10s: self.window(10), last_60s: self.window(60) }
    }

    /// The longest turn in ns that was noted within the last 60 s.
    pub fn turn_ns_max(&self) -> u64 {
        self.turn_ns.iter().copied().max().unwrap_or(0)
    }

    /// Of the service times up to now, those of the last one to two spans of 10 s.
    pub fn times(&self, now: &Histogram) -> Histogram {
        now.since(&self.times[0])
    }

    fn window(&self, seconds: u64) -> WindowSnapshot {
        let sample = |second: u64| self.samples[(second % KEPT as u64) as usize];
        let (now, then) = (sample(self.second), sample(self.second.saturating_sub(seconds)));
        WindowSnapshot {
            requests: now.requests.wrapping_sub(then.requests),
            received: now.received.wrapping_sub(then.received),
            sent: now.sent.wrapping_sub(then.sent),
            accepted: now.accepted.wrapping_sub(then.accepted),
            busy_ns: now.busy_ns.wrapping_sub(then.busy_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(recent: &Recent) -> [u64; 3] {
        let snapshot = recent.snapshot();
        [snapshot.last_1s.requests, snapshot.last_10s.requests, snapshot.last_60s.requests]
    }

    fn note(recent: &mut Recent, second: u64, requests: u64) {
        recent.note(second, Sample { requests, ..Sample::default() }, 0, &Histogram::default());
    }

    #[test]
    fn windows_are_of_whole_seconds() {
        let mut recent = Recent::default();
        assert_eq!(requests(&recent), [0, 0, 0]);
        // 1 request in the first second, 2 in the next, …
        for second in 1..=100 {
            note(&mut recent, second, second * (second + 1) / 2);
        }
        let sum = |from: u64| (from..=100).sum::<u64>();
        assert_eq!(requests(&recent), [100, sum(91), sum(41)]);
    }

    #[test]
    fn young_shard_counts_from_its_start() {
        let mut recent = Recent::default();
        note(&mut recent, 1, 7);
        note(&mut recent, 2, 9);
        assert_eq!(requests(&recent), [2, 9, 9]);
    }

    #[test]
    fn seconds_slept_through_count_nothing() {
        for (slept, expected) in [
            (1, [30, 40, 40]),
            (5, [0, 40, 40]),
            (9, [0, 40, 40]),
            (10, [0, 30, 40]),
            (11, [0, 0, 40]),
            (59, [0, 0, 40]),
            (60, [0, 0, 30]),
            (61, [0, 0, 0]),
            (10_000, [0, 0, 0]),
        ] {
            let mut recent = Recent::default();
            note(&mut recent, 1, 10);
            // 30 more until it fell asleep in second 1; it wakes in a later one.
            note(&mut recent, 1 + slept, 40);
            assert_eq!(requests(&recent), expected, "slept {slept}");
        }
    }

    #[test]
    fn longest_turn_is_forgotten_after_a_minute() {
        let mut recent = Recent::default();
        let times = Histogram::default();
        recent.note(1, Sample::default(), 500, &times);
        recent.note(2, Sample::default(), 9, &times);
        assert_eq!(recent.turn_ns_max(), 500);
        recent.note(61, Sample::default(), 7, &times);
        assert_eq!(recent.turn_ns_max(), 500);
        recent.note(62, Sample::default(), 7, &times);
        assert_eq!(recent.turn_ns_max(), 9);
        recent.note(500, Sample::default(), 8, &times);
        assert_eq!(recent.turn_ns_max(), 8);
    }

    #[test]
    fn recent_times_are_those_of_the_last_spans() {
        let (mut recent, times) = (Recent::default(), Histogram::default());
        let mut note = |second: u64| recent.note(second, Sample::default(), 0, &times);
        times.record(1_000);
        note(9);
        note(10); // one put aside
        times.record(2_000);
        note(19);
        note(20); // two put aside
        times.record(3_000);
        assert_eq!(recent.times(&times).count(), 2, "since second 10");
        recent.note(30, Sample::default(), 0, &times);
        assert_eq!(recent.times(&times).count(), 1, "since second 20");
        recent.note(50, Sample::default(), 0, &times);
        assert_eq!(recent.times(&times).count(), 0);
    }
}
