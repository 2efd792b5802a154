//! The time of day for log lines, from the shard's clock. Floor 4.

use std::{
    io::Write as _,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Reads the system's clock once a second; in between the shard's own goes on from there.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// The system's time less the shard's, in ms.
    ahead_ms: u64,
    /// The second that is rendered, since 1970, if one is.
    second: Option<u64>,
    time: Time,
}

/// A moment, rendered.
#[derive(Debug, Default)]
pub(super) struct Time {
    /// `30/Nov/2026:21:40:50 +0000`
    pub(super) combined: Vec<u8>,
    /// `2026-11-30T21:40:50`
    pub(super) iso: String,
    /// Milliseconds of it.
    pub(super) millisecond: u64,
}

impl Clock {
    /// The time when the shard's clock shows this.
    pub(super) fn at(&mut self, now_ms: u64) -> &Time {
        if self.second != Some((self.ahead_ms + now_ms) / 1000) {
            let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.ahead_ms = (unix.as_millis() as u64).saturating_sub(now_ms);
            let second = (self.ahead_ms + now_ms) / 1000;
            self.time.render(second);
            self.second = Some(second);
        }
        self.time.millisecond = (self.ahead_ms + now_ms) % 1000;
        &self.time
    }
}

impl Time {
    fn render(&mut self, unix_s: u64) {
        const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        // `Sun, 06 Nov 1994 08:49:37 GMT` has all the parts.
        let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(unix_s));
        let (day, month, year, clock) = (&date[5..7], &date[8..11], &date[12..16], &date[17..25]);
        let number = 1 + MONTHS.iter().position(|name| *name == month).expect("one of twelve");
        self.combined.clear();
        write!(self.combined, "{day}/{month}/{year}:{clock} +0000").expect("a vector takes all");
        self.iso = format!("{year}-{number:02}-{day}T{clock}");
    }

    #[cfg(test)]
    pub(super) fn new(unix_ms: u64) -> Self {
        let mut time = Time { millisecond: unix_ms % 1000, ..Time::default() };
        time.render(unix_ms / 1000);
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_rendered_in_both_forms() {
        for (unix_s, combined, iso) in [
            (0, "01/Jan/1970:00:00:00 +0000", "1970-01-01T00:00:00"),
            (784_111_777, "06/Nov/1994:08:49:37 +0000", "1994-11-06T08:49:37"),
            (1_709_251_199, "29/Feb/2024:23:59:59 +0000", "2024-02-29T23:59:59"),
        ] {
            let time = Time::new(1000 * unix_s);
            assert_eq!((time.combined.as_slice(), time.iso.as_str()), (combined.as_bytes(), iso));
        }
    }

    #[test]
    fn clock_goes_on_from_the_system_s_time() {
        let unix_ms = || SystemTime::now().duration_since(UNIX_EPOCH).expect("later than 1970").as_millis() as u64;
        let mut clock = Clock::default();
        let before = unix_ms();
        clock.at(7);
        let after = unix_ms();
        let second = clock.second.expect("rendered");
        let shown = 1000 * second + clock.time.millisecond;
        assert!((before..=after).contains(&shown), "{before} {shown} {after}");
        // Within the second the system is not asked.
        let left = 999 - clock.time.millisecond;
        clock.at(7 + left);
        assert_eq!((clock.time.millisecond, clock.second), (999, Some(second)));
    }
}
