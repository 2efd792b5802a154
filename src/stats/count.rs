//! Counting in a plain cell. Floor 1, pure.

use std::cell::Cell;

/// Arithmetic on a counter.
///
/// ```
/// use everycore::stats::{Count, Counters};
/// let counters = Counters::default();
/// counters.requests.add(1);
/// assert_eq!(counters.snapshot().requests, 1);
/// ```
pub trait Count {
    /// Counts `n` more; wraps around at 2^64.
    fn add(&self, n: u64);
    /// Takes `n` from a gauge, which must have been added before.
    fn sub(&self, n: u64);
    /// Raises a peak to `level` if it is lower.
    fn raise(&self, level: u64);
}

impl Count for Cell<u64> {
    #[inline]
    fn add(&self, n: u64) {
        self.set(self.get().wrapping_add(n));
    }

    #[inline]
    fn sub(&self, n: u64) {
        debug_assert!(n <= self.get(), "more taken from a gauge than was added");
        self.set(self.get().saturating_sub(n));
    }

    #[inline]
    fn raise(&self, level: u64) {
        self.set(self.get().max(level));
    }
}
