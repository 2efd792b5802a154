//! Byte ranges that are asked for (RFC 9110 §14). Not for: reading or sending them. Floor 1.

use super::semantics::{list, trim};
use crate::limits::RANGES_MAX;
use std::ops::Range;

/// What of a representation a Range field selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selected {
    /// All of it: the field is to be ignored.
    Whole,
    /// Nothing that is there: 416.
    Nothing,
    /// One part.
    One(Range<u64>),
    /// Several parts, in the order they were asked for; at least two, at most [`RANGES_MAX`].
    Several(Vec<Range<u64>>),
}

/// Reads the value of a Range field, for a representation of `len` bytes.
///
/// A unit other than `bytes` and a malformed set are ignored, as RFC 9110 §14.2 has it. So is any of an empty
/// representation, since clients ask for `bytes=0-` of what they do not know, and a set of more than
/// [`RANGES_MAX`] parts, or of parts that hold more bytes together than there are: only an attack has use for these.
///
/// ```
/// use everycore::http::{Selected, select_ranges};
/// assert_eq!(select_ranges(b"bytes=0-9", 100), Selected::One(0..10));
/// assert_eq!(select_ranges(b"bytes=-10, 5-5", 100), Selected::Several(vec![90..100, 5..6]));
/// assert_eq!(select_ranges(b"bytes=100-", 100), Selected::Nothing);
/// assert_eq!(select_ranges(b"lines=1-2", 100), Selected::Whole);
/// ```
pub fn select_ranges(value: &[u8], len: u64) -> Selected {
    const UNIT: &[u8] = b"bytes=";
    let Some((unit, set)) = trim(value).split_at_checked(UNIT.len()) else { return Selected::Whole };
    if !unit.eq_ignore_ascii_case(UNIT) || len == 0 {
        return Selected::Whole;
    }
    let mut selected = Selected::Nothing;
    let (mut count, mut bytes) = (0, 0u64);
    for spec in list(set).filter(|spec| !spec.is_empty()) {
        count += 1;
        let Some(range) = range(spec, len) else { return Selected::Whole };
        if range.is_empty() {
            continue; // none of it is there; the others may be
        }
        match bytes.checked_add(range.end - range.start) {
            Some(sum) if sum <= len && count <= RANGES_MAX => bytes = sum,
            _ => return Selected::Whole,
        }
        selected = match selected {
            Selected::One(first) => Selected::Several(vec![first, range]),
            Selected::Several(mut ranges) => {
                ranges.push(range);
                Selected::Several(ranges)
            }
            _ => Selected::One(range),
        };
    }
    if count == 0 { Selected::Whole } else { selected }
}

/// `first-last`, `first-` or `-suffix`. Empty: not satisfiable; `None`: malformed.
fn range(spec: &[u8], len: u64) -> Option<Range<u64>> {
    let dash = memchr::memchr(b'-', spec)?;
    let (first, last) = (&spec[..dash], &spec[dash + 1..]);
    if first.is_empty() {
        let suffix = number(last)?;
        return Some(len.saturating_sub(suffix)..len);
    }
    let first = number(first)?;
    let end = match last {
        [] => len,
        last => match number(last)? {
            last if last < first => return None,
            last => last.saturating_add(1).min(len),
        },
    };
    Some(first.min(end)..end)
}

/// `1*DIGIT`; what no u64 holds is as good as the largest one.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Selected::*;

    #[track_caller]
    fn check(value: &str, len: u64, expected: Selected) {
        assert_eq!(select_ranges(value.as_bytes(), len), expected, "{value} of {len}");
    }

    #[test]
    fn selected_table() {
        check("bytes=0-0", 10, One(0..1));
        check("bytes=0-9", 10, One(0..10));
        check("bytes=0-10", 10, One(0..10));
        check("bytes=9-9", 10, One(9..10));
        check("bytes=9-", 10, One(9..10));
        check("bytes=10-", 10, Nothing);
        check("bytes=10-10", 10, Nothing);
        check("bytes=-1", 10, One(9..10));
        check("bytes=-10", 10, One(0..10));
        check("bytes=-11", 10, One(0..10));
        check("bytes=-0", 10, Nothing);
        check("bytes=0-", 0, Whole);
        check("bytes=-5", 0, Whole);
        check("BYTES=1-2", 10, One(1..3));
        check(" bytes=1-2\t", 10, One(1..3));
        check("bytes=1-2, 4-5 ,-1", 10, Several(vec![1..3, 4..6, 9..10]));
        check("bytes=,1-2,,", 10, One(1..3));
        check("bytes=20-,1-2,-0", 10, One(1..3));
        check("bytes=20-, 30-40", 10, Nothing);
        check("bytes=4-5,1-2", 10, Several(vec![4..6, 1..3]));
        check("bytes=0-18446744073709551615", 10, One(0..10));
        check("bytes=18446744073709551615-18446744073709551616", 10, Nothing);
        check("bytes=99999999999999999999-", 10, Nothing);
        check("bytes=-99999999999999999999", 10, One(0..10));
        check("bytes=0-0", u64::MAX, One(0..1));
        check("bytes=0-18446744073709551615", u64::MAX, One(0..u64::MAX));
    }

    #[test]
    fn malformed_is_ignored() {
        for value in [
            "",
            "bytes",
            "bytes=",
            "bytes= ",
            "bytes=,",
            "bytes=-",
            "bytes=a-",
            "bytes=1",
            "bytes=1-a",
            "bytes=2-1",
            "bytes=--1",
            "bytes=1--2",
            "bytes=+1-2",
            "bytes=1 - 2",
            "bytes =1-2",
            "bytes=0x1-2",
            "bytes=1-2;3-4",
            "bytes=1-2,x",
            "byte=1-2",
            "items=0-5",
            "bytes 0-5",
            "bytes:0-5",
            "bytes=0-5/10",
            "bytes=1-2 3-4",
        ] {
            check(value, 10, Whole);
        }
    }

    #[test]
    fn floods_are_ignored() {
        let many = |count: usize| {
            let specs: Vec<_> = (0..count).map(|at| format!("{at}-{at}")).collect();
            format!("bytes={}", specs.join(","))
        };
        let parts = |count: u64| Several((0..count).map(|at| at..at + 1).collect());
        check(&many(RANGES_MAX - 1), 1000, parts(RANGES_MAX as u64 - 1));
        check(&many(RANGES_MAX), 1000, parts(RANGES_MAX as u64));
        check(&many(RANGES_MAX + 1), 1000, Whole);
        check("bytes=0-4,5-9", 10, Several(vec![0..5, 5..10]));
        check("bytes=0-4,4-9", 10, Whole);
        check("bytes=0-,0-,0-", 10, Whole);
        check("bytes=0-1,0-1,0-1", 10, Several(vec![0..2, 0..2, 0..2]));
        check("bytes=0-18446744073709551614,0-18446744073709551614", u64::MAX, Whole);
    }
}
