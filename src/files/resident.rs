//! Which parts of a file are likely to be in the kernel's page cache: those that were read or sent a moment ago. Pure.
//!
//! The kernel has no call that sends what is in memory and refuses what is not. It tells who may write a file what of it is
//! in memory (cachestat, mincore), but a server should not be allowed to write what it serves.

use crate::limits::{FILE_CACHED_BY_KERNEL_MS, FILE_READ_BYTES, FILE_REMEMBERED_BYTES_MAX};
use std::{cell::RefCell, fmt, mem, ops::Range};

/// What is remembered at once of a file.
const UNIT: u64 = FILE_READ_BYTES as u64;

/// The range, cut where units of the file begin.
pub(super) fn units(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let end = (at / UNIT + 1).saturating_mul(UNIT).min(range.end);
        (at < end).then(|| mem::replace(&mut at, end)..end)
    })
}

/// One file's units. Those of a period are forgotten with the end of the next.
pub(super) struct Resident {
    size: u64,
    periods: RefCell<Periods>,
}

#[derive(Default)]
struct Periods {
    began_ms: u64,
    /// A bit for each unit.
    this: Vec<u64>,
    last: Vec<u64>,
}

impl Resident {
    /// Of a file of `size` bytes: nothing is known.
    pub(super) fn new(size: u64) -> Self {
        Resident { size, periods: RefCell::default() }
    }

    /// These bytes were read or sent.
    pub(super) fn note(&self, range: Range<u64>, now_ms: u64) {
        let mut periods = self.periods.borrow_mut();
        periods.forget(now_ms);
        let end = range.end.min(FILE_REMEMBERED_BYTES_MAX);
        let end = if end >= self.size { end.div_ceil(UNIT) } else { end / UNIT };
        for unit in range.start.div_ceil(UNIT)..end {
            let (word, bit) = ((unit / 64) as usize, 1 << (unit % 64));
            if periods.this.len() <= word {
                periods.this.resize(word + 1, 0);
            }
            periods.this[word] |= bit;
        }
    }

    /// How many bytes of the range, from its start, are known.
    pub(super) fn known(&self, range: Range<u64>, now_ms: u64) -> u64 {
        let mut periods = self.periods.borrow_mut();
        periods.forget(now_ms);
        let unknown = units(range.clone()).find(|unit| !periods.has(unit.start / UNIT));
        unknown.map_or(range.end, |unit| unit.start) - range.start
    }

    /// Bytes of memory that it takes, at most.
    pub(super) fn kept_bytes(&self) -> u64 {
        2 * self.size.min(FILE_REMEMBERED_BYTES_MAX).div_ceil(UNIT * 8)
    }
}

impl Periods {
    fn has(&self, unit: u64) -> bool {
        let (word, bit) = ((unit / 64) as usize, 1 << (unit % 64));
        [&self.this, &self.last].iter().any(|units| units.get(word).is_some_and(|word| word & bit != 0))
    }

    fn forget(&mut self, now_ms: u64) {
        let age = now_ms.saturating_sub(self.began_ms);
        if age < FILE_CACHED_BY_KERNEL_MS {
            return;
        }
        mem::swap(&mut self.this, &mut self.last);
        self.this.clear();
        if age >= 2 * FILE_CACHED_BY_KERNEL_MS {
            self.last.clear();
        }
        self.began_ms = now_ms;
    }
}

impl fmt::Debug for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resident").field("size", &self.size).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_where_units_begin() {
        #[track_caller]
        fn check(range: Range<u64>, expected: &[Range<u64>]) {
            assert_eq!(units(range).collect::<Vec<_>>(), expected);
        }
        check(5..5, &[]);
        check(0..UNIT + 1, &[0..UNIT, UNIT..UNIT + 1]);
        check(UNIT - 1..2 * UNIT + 1, &[UNIT - 1..UNIT, UNIT..2 * UNIT, 2 * UNIT..2 * UNIT + 1]);
        assert!(units(0..UNIT).eq(std::iter::once(0..UNIT)));
        assert!(units(u64::MAX - 1..u64::MAX).eq(std::iter::once(u64::MAX - 1..u64::MAX)));
    }

    #[test]
    fn only_whole_units_are_known_and_the_last_of_the_file() {
        let size = 100 * UNIT + 10;
        let resident = Resident::new(size);
        let known = |range: Range<u64>| resident.known(range, 0);
        resident.note(0..UNIT - 1, 0);
        assert_eq!(known(0..UNIT), 0);
        resident.note(1..2 * UNIT, 0);
        assert_eq!((known(0..UNIT), known(UNIT + 5..size)), (0, UNIT - 5));
        resident.note(99 * UNIT..size - 1, 0);
        assert_eq!(known(99 * UNIT..size), UNIT);
        resident.note(100 * UNIT..size, 0);
        assert_eq!(known(99 * UNIT..size), UNIT + 10);
        resident.note(0..size, 0);
        assert_eq!((known(0..size), known(7..8)), (size, 1));
        assert_eq!(Resident::new(0).known(0..0, 0), 0);
    }

    #[test]
    fn units_are_forgotten_after_the_next_period() {
        let resident = Resident::new(10 * UNIT);
        let known = |now_ms| resident.known(0..10 * UNIT, now_ms);
        let period = FILE_CACHED_BY_KERNEL_MS;
        resident.note(0..UNIT, 1000);
        assert_eq!(known(1000 + period), UNIT);
        resident.note(UNIT..2 * UNIT, 1000 + period);
        assert_eq!(known(999 + 2 * period), 2 * UNIT);
        // The first is not known any more, the second is.
        assert_eq!(known(1000 + 2 * period), 0);
        assert_eq!(resident.known(UNIT..3 * UNIT, 1000 + 2 * period), UNIT);
        assert_eq!(resident.known(UNIT..3 * UNIT, 1000 + 4 * period), 0);
    }

    #[test]
    fn a_huge_file_costs_no_more_than_its_bound() {
        let resident = Resident::new(u64::MAX);
        resident.note(0..u64::MAX, 0);
        assert_eq!(resident.known(0..u64::MAX, 0), FILE_REMEMBERED_BYTES_MAX);
        let words = resident.periods.borrow().this.len() as u64;
        assert_eq!(2 * words * 8, resident.kept_bytes());
    }
}
