//! The `Server` and `Date` lines of an answer, rendered once a second. Reads no clock. Floor 1.

use std::{
    io::Write as _,
    time::{Duration, UNIX_EPOCH},
};

const SERVER: &[u8] = b"Server: everycore\r\nDate: ";
/// `Sun, 06 Nov 1994 08:49:37 GMT`
const IMF_FIXDATE_BYTES: usize = 29;
const LINES_BYTES: usize = SERVER.len() + IMF_FIXDATE_BYTES + 2;
/// 9999-12-31T23:59:59Z: the format has four digits for the year.
const LAST_SECOND: u64 = 253_402_300_799;

/// The two lines that every answer carries (RFC 9110 §6.6.1, §10.2.4), cached for a second.
///
/// ```
/// let mut date = everycore::http::DateCache::new();
/// assert_eq!(date.at(784_111_777), b"Server: everycore\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
/// ```
#[derive(Clone, Debug)]
pub struct DateCache {
    unix_s: u64,
    lines: [u8; LINES_BYTES],
}

impl DateCache {
    /// A cache that holds the epoch until it is asked for another second.
    pub fn new() -> DateCache {
        let mut cache = DateCache {
            unix_s: 0,
            lines: [0; LINES_BYTES],
        };
        cache.render();
        cache
    }

    /// The lines for the time `unix_s`, in seconds since the epoch.
    pub fn at(&mut self, unix_s: u64) -> &[u8] {
        if unix_s != self.unix_s {
            self.unix_s = unix_s;
            self.render();
        }
        &self.lines
    }

    /// The lines as last rendered.
    pub fn lines(&self) -> &[u8] {
        &self.lines
    }

    fn render(&mut self) {
        let time = UNIX_EPOCH + Duration::from_secs(self.unix_s.min(LAST_SECOND));
        let mut out = &mut self.lines[..];
        out.write_all(SERVER)
            .and_then(|()| write!(out, "{}\r\n", httpdate::HttpDate::from(time)))
            .expect("the lines have a fixed length");
    }
}

impl Default for DateCache {
    fn default() -> DateCache {
        DateCache::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_renders_each_second_once() {
        let mut date = DateCache::new();
        assert_eq!(
            date.lines(),
            b"Server: everycore\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
        );
        let table: [(u64, &[u8]); 4] = [
            (784_111_777, b"Sun, 06 Nov 1994 08:49:37 GMT\r\n"),
            (951_782_400, b"Tue, 29 Feb 2000 00:00:00 GMT\r\n"),
            (LAST_SECOND, b"Fri, 31 Dec 9999 23:59:59 GMT\r\n"),
            (u64::MAX, b"Fri, 31 Dec 9999 23:59:59 GMT\r\n"),
        ];
        for (unix_s, expected) in table {
            assert!(date.at(unix_s).ends_with(expected), "{unix_s}");
            assert!(date.at(unix_s).ends_with(expected), "{unix_s} again");
        }
    }
}
