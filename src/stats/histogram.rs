//! How long things took on one shard. Floor 1, pure.
//!
//! For: recording a duration a request in a few instructions, in memory that never grows. Not for: measuring the
//! time, or a load generator's figures (those come from `hdrhistogram`, with three digits).
//!
//! The buckets are log-linear: 64 of 16 ns up to 1,024 ns, then 64 to each power of two up to 2^37 ns (137 s): 1,792
//! buckets, 14 KiB. A bucket is never wider than 1/64 of its values (or 16 ns), so a quantile is at most 1.6 % too high.

use crate::limits::{HISTOGRAM_BYTES_MAX, HISTOGRAM_NS_BITS};
use std::cell::Cell;

/// Buckets to a power of two, as a power of two.
const SUB_BITS: u32 = 6;
/// Width of the finest buckets in ns, as a power of two: durations below 1 µs are not told apart further.
const UNIT_BITS: u32 = 4;
const BUCKETS: usize = ((HISTOGRAM_NS_BITS - UNIT_BITS - SUB_BITS + 1) << SUB_BITS) as usize;

const _: () = assert!(BUCKETS * size_of::<Cell<u64>>() <= HISTOGRAM_BYTES_MAX);

/// Durations in ns. It can be sent between threads (a clone is a snapshot) but not shared.
///
/// ```
/// let latency = everycore::stats::Histogram::default();
/// (1..=1000).for_each(|us| latency.record(us * 1_000));
/// let p99 = latency.quantile(0.99).unwrap();
/// assert!((990_000..990_000 + 990_000 / 64).contains(&p99));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    buckets: Box<[Cell<u64>; BUCKETS]>,
    /// 128 bits: in 64 a thousand requests waiting at once would overflow it within seven months.
    sum_ns: Cell<u128>,
    /// `u64::MAX` while empty.
    min_ns: Cell<u64>,
    max_ns: Cell<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: Box::new([const { Cell::new(0) }; BUCKETS]),
            sum_ns: Cell::new(0),
            min_ns: Cell::new(u64::MAX),
            max_ns: Cell::new(0),
        }
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let quantile = |q| self.quantile(q);
        f.debug_struct("Histogram")
            .field("count", &self.count())
            .field("min_ns", &self.min_ns())
            .field("p50_ns", &quantile(0.5))
            .field("p99_ns", &quantile(0.99))
            .field("max_ns", &self.max_ns())
            .finish_non_exhaustive()
    }
}

impl Histogram {
    /// Counts one duration. Those of 137 s and more share a bucket, but add to sum and maximum as they are.
    #[inline]
    pub fn record(&self, ns: u64) {
        self.record_many(ns, 1);
    }

    /// Counts `count` things that took equally long: one `record` for all that a shard answered in one turn.
    #[inline]
    pub fn record_many(&self, ns: u64, count: u64) {
        let bucket = &self.buckets[bucket_of(ns)];
        bucket.set(bucket.get() + count);
        self.sum_ns.set(self.sum_ns.get() + u128::from(ns) * u128::from(count));
        self.min_ns.set(self.min_ns.get().min(ns));
        self.max_ns.set(self.max_ns.get().max(ns));
    }

    /// Adds what another has recorded: the result is as if all had been recorded here.
    pub fn merge(&self, other: &Self) {
        for (into, from) in self.buckets.iter().zip(other.buckets.iter()) {
            into.set(into.get() + from.get());
        }
        self.sum_ns.set(self.sum_ns.get() + other.sum_ns.get());
        self.min_ns.set(self.min_ns.get().min(other.min_ns.get()));
        self.max_ns.set(self.max_ns.get().max(other.max_ns.get()));
    }

    /// What was recorded here and not yet in `earlier`, a copy of this histogram from before. Minimum and maximum are
    /// those of the buckets, so only as exact as they are.
    pub fn since(&self, earlier: &Self) -> Self {
        let since = Self::default();
        for (index, (now, before)) in self.buckets.iter().zip(earlier.buckets.iter()).enumerate() {
            let count = now.get().wrapping_sub(before.get());
            since.buckets[index].set(count);
            if count > 0 {
                since.min_ns.set(since.min_ns.get().min(lowest_of(index)).max(self.min_ns.get()));
                since.max_ns.set(self.longest_in(index));
            }
        }
        since.sum_ns.set(self.sum_ns.get().wrapping_sub(earlier.sum_ns.get()));
        since
    }

    /// The buckets that are not empty, shortest first: the longest duration each can hold, in ns, and how many it does.
    pub fn filled(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.buckets.iter().map(Cell::get).enumerate().filter(|(_, count)| *count > 0);
        counts.map(|(index, count)| (self.longest_in(index), count))
    }

    /// How many durations were recorded. Adds up all buckets, so that recording need not.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(Cell::get).sum()
    }

    /// Sum of all durations in ns, exact.
    pub fn sum_ns(&self) -> u128 {
        self.sum_ns.get()
    }

    /// Shortest duration in ns, exact; `None` while empty.
    pub fn min_ns(&self) -> Option<u64> {
        (self.min_ns.get() <= self.max_ns.get()).then(|| self.min_ns.get())
    }

    /// Longest duration in ns, exact; `None` while empty.
    pub fn max_ns(&self) -> Option<u64> {
        (self.min_ns.get() <= self.max_ns.get()).then(|| self.max_ns.get())
    }

    /// A duration in ns that at least the share `q` (0 to 1) of all durations does not exceed: the longest its bucket
    /// can hold, so never too low and at most 1.6 % (or 16 ns) too high. `None` while empty.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let rank = ((q.clamp(0.0, 1.0) * self.count() as f64).ceil() as u64).max(1);
        let mut seen = 0;
        self.buckets.iter().enumerate().find_map(|(index, bucket)| {
            seen += bucket.get();
            (seen >= rank).then(|| self.longest_in(index))
        })
    }

    /// For each of the ascending `bounds_ns`, how many durations surely do not exceed it (`le` of Prometheus; the
    /// bucket `+Inf` is [`count`](Self::count)). A duration within 1.6 % below a bound may count for the next bound only.
    pub fn counts_up_to(&self, bounds_ns: &[u64]) -> Vec<u64> {
        debug_assert!(bounds_ns.is_sorted(), "bounds ascend");
        let (mut index, mut seen) = (0, 0);
        let mut count_up_to = |bound: u64| {
            while index < BUCKETS && self.longest_in(index) <= bound {
                seen += self.buckets[index].get();
                index += 1;
            }
            seen
        };
        bounds_ns.iter().map(|&bound| count_up_to(bound)).collect()
    }

    /// The longest duration that can be in a bucket, given the longest of all.
    fn longest_in(&self, index: usize) -> u64 {
        let is_last = index == BUCKETS - 1;
        if is_last { self.max_ns.get() } else { highest_of(index).min(self.max_ns.get()) }
    }
}

/// A [`Histogram`] that is written to when the duration changes: of things that end together, such as the requests that a
/// shard answers in one turn, all but the first cost an addition.
#[derive(Debug, Default)]
pub struct Batched {
    all: Histogram,
    /// The latest duration, and how often it came since it was written.
    ns: Cell<u64>,
    count: Cell<u64>,
}

impl Batched {
    /// As [`Histogram::record_many`].
    #[inline]
    pub fn record_many(&self, ns: u64, count: u64) {
        if self.ns.get() != ns {
            self.write();
            self.ns.set(ns);
        }
        self.count.set(self.count.get() + count);
    }

    /// All that was recorded.
    pub fn all(&self) -> &Histogram {
        self.write();
        &self.all
    }

    fn write(&self) {
        let count = self.count.take();
        if count > 0 {
            self.all.record_many(self.ns.get(), count);
        }
    }
}

/// The bucket of a duration: in units of 16 ns, the top seven bits, and below them how many bits were dropped.
#[inline]
fn bucket_of(ns: u64) -> usize {
    let units = ns.min((1 << HISTOGRAM_NS_BITS) - 1) >> UNIT_BITS;
    let dropped_bits = (units | 1 << SUB_BITS).ilog2() - SUB_BITS;
    ((dropped_bits as usize) << SUB_BITS) + (units >> dropped_bits) as usize
}

/// The lowest duration, in ns, that [`bucket_of`] puts into a bucket.
fn lowest_of(index: usize) -> u64 {
    index.checked_sub(1).map_or(0, |below| highest_of(below) + 1)
}

/// The highest duration, in ns, that [`bucket_of`] puts into a bucket (but for the last one, which has no bound).
fn highest_of(index: usize) -> u64 {
    // Two groups of 64 buckets have the finest width, since nothing is dropped from the lowest power of two either.
    let dropped_bits = (index >> SUB_BITS).saturating_sub(1);
    let units = (index - (dropped_bits << SUB_BITS)) as u64;
    ((units + 1) << dropped_bits << UNIT_BITS) - 1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn recorded(values: &[u64]) -> Histogram {
        let histogram = Histogram::default();
        values.iter().for_each(|&ns| histogram.record(ns));
        histogram
    }

    #[test]
    fn buckets_follow_each_other_without_gap_and_are_narrow() {
        let mut lowest = 0;
        for index in 0..BUCKETS {
            let highest = highest_of(index);
            assert_eq!((bucket_of(lowest), bucket_of(highest)), (index, index));
            assert!(highest - lowest < (lowest / 64).max(16), "bucket {index}: {lowest}..={highest}");
            lowest = highest + 1;
        }
        assert_eq!(lowest, 1 << HISTOGRAM_NS_BITS);
        for beyond in [lowest, u64::MAX] {
            assert_eq!(bucket_of(beyond), BUCKETS - 1);
        }
        assert_eq!(BUCKETS * 8, 14 * 1024);
    }

    #[test]
    fn empty_histogram_has_no_quantile() {
        let empty = Histogram::default();
        assert_eq!((empty.count(), empty.sum_ns()), (0, 0));
        assert_eq!((empty.min_ns(), empty.max_ns(), empty.quantile(0.5)), (None, None, None));
        assert_eq!(empty.counts_up_to(&[1, 1_000]), [0, 0]);
    }

    #[test]
    fn extremes_are_exact_and_beyond_the_range_nothing_is_lost() {
        let histogram = recorded(&[0, 5_000, u64::MAX, u64::MAX]);
        assert_eq!((histogram.min_ns(), histogram.max_ns()), (Some(0), Some(u64::MAX)));
        assert_eq!(histogram.sum_ns(), 5_000 + 2 * u128::from(u64::MAX));
        assert_eq!(histogram.quantile(1.0), Some(u64::MAX));
        assert_eq!(histogram.quantile(f64::NAN), histogram.quantile(-1.0));
        assert_eq!(histogram.counts_up_to(&[15, 1 << 40, u64::MAX]), [1, 2, 4]);
        assert_eq!(recorded(&[77]).quantile(0.0), Some(77), "no higher than the maximum");
    }

    #[test]
    fn quantile_takes_the_rank_that_covers_the_share() {
        let histogram = recorded(&[16, 32, 48, 64]);
        for (q, expected) in
            [(0.0, 31), (0.25, 31), (0.26, 47), (0.5, 47), (0.75, 63), (0.76, 64), (1.0, 64), (2.0, 64)]
        {
            assert_eq!(histogram.quantile(q), Some(expected), "{q}");
        }
    }

    #[test]
    fn counts_up_to_a_bound_include_whole_buckets_only() {
        let histogram = recorded(&[10, 1_000, 1_030, 2_000_000]);
        for (bound, expected) in [(14, 0), (15, 1), (1_007, 2), (1_038, 2), (1_039, 3), (1_999_999, 3), (2_000_000, 4)]
        {
            assert_eq!(histogram.counts_up_to(&[bound]), [expected], "{bound}");
        }
        assert_eq!(histogram.counts_up_to(&[15, 15, 1_007, 1_039, u64::MAX]), [1, 1, 2, 3, 4]);
    }

    #[test]
    fn batched_histogram_loses_nothing() {
        let (batched, plain) = (Batched::default(), Histogram::default());
        for (index, ns) in [0, 0, 5_000, 5_000, 0, 7_000_000, 7_000_000, 1].into_iter().enumerate() {
            batched.record_many(ns, index as u64);
            plain.record_many(ns, index as u64);
            assert!(*batched.all() == plain || index == 0, "after {index}");
        }
        batched.record_many(1, 2);
        assert_eq!(batched.all().count(), plain.count() + 2);
    }

    #[test]
    fn merged_histograms_equal_one_that_recorded_everything() {
        let mut random = fastrand::Rng::with_seed(1);
        let (all, total) = (Histogram::default(), Histogram::default());
        for _ in 0..4 {
            let shard = Histogram::default();
            for _ in 0..10_000 {
                let bits = random.u32(1..40);
                let ns = random.u64(..1 << bits);
                shard.record(ns);
                all.record(ns);
            }
            total.merge(&shard.clone());
        }
        total.merge(&Histogram::default());
        assert!(total == all && total.count() == 40_000);
    }

    #[test]
    fn quantiles_agree_with_hdrhistogram_and_the_sorted_values() {
        for seed in 0..5 {
            let mut random = fastrand::Rng::with_seed(seed);
            let ours = Histogram::default();
            let mut theirs = hdrhistogram::Histogram::<u64>::new_with_bounds(1, 1 << HISTOGRAM_NS_BITS, 3).unwrap();
            let mut values = Vec::new();
            for _ in 0..50_000 {
                // Around 50 µs with a long tail, as latencies are.
                let ns = 20_000 + random.u64(..60_000) + if random.u8(..) == 0 { 1 << random.u32(15..36) } else { 0 };
                ours.record(ns);
                theirs.record(ns).unwrap();
                values.push(ns);
            }
            values.sort_unstable();
            assert_eq!((ours.count(), ours.sum_ns()), (theirs.len(), values.iter().map(|&ns| u128::from(ns)).sum()));
            for q in [0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999, 1.0] {
                let exact = values[((q * values.len() as f64).ceil() as usize).max(1) - 1];
                let (our, their) = (ours.quantile(q).unwrap(), theirs.value_at_quantile(q));
                assert!(our >= exact && our - exact <= exact / 64, "q {q}: {our} for {exact}");
                // Theirs has three digits: off by up to 1/1000 itself.
                assert!(our.abs_diff(their) <= their / 64 + their / 1_000, "q {q}: {our}, hdrhistogram {their}");
            }
        }
    }

    #[test]
    fn many_at_once_equal_as_many_one_by_one() {
        let (many, each) = (Histogram::default(), Histogram::default());
        for (ns, count) in [(5_000, 3), (0, 1), (u64::MAX, 2)] {
            many.record_many(ns, count);
            (0..count).for_each(|_| each.record(ns));
        }
        assert!(many == each);
    }

    #[test]
    fn since_an_earlier_copy_is_what_came_after_it() {
        let histogram = recorded(&[100, 5_000, 9_000_000]);
        let earlier = histogram.clone();
        assert_eq!(histogram.since(&earlier).count(), 0);
        assert_eq!(histogram.since(&earlier).quantile(0.5), None);
        [5_000, 5_000, 70_000].iter().for_each(|&ns| histogram.record(ns));
        let since = histogram.since(&earlier);
        assert_eq!((since.count(), since.sum_ns()), (3, 80_000));
        assert_eq!((since.min_ns(), since.max_ns()), (Some(4_992), Some(70_655)), "as exact as the buckets");
        assert_eq!(since.quantile(0.5), Some(5_055));
        assert!(histogram.since(&Histogram::default()).count() == 6);
    }

    #[test]
    fn filled_buckets_name_their_bound_and_count() {
        let histogram = recorded(&[3, 3, 1_030, 70_000]);
        assert_eq!(histogram.filled().collect::<Vec<_>>(), [(15, 2), (1_039, 1), (70_000, 1)]);
    }

    #[test]
    fn histogram_moves_between_threads() {
        fn check<T: Send>() {}
        check::<Histogram>();
    }
}
