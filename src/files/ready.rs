//! What is known of a file that was looked at, and the fields of its answers. Pure.

use super::{media::is_compressible, resident::Resident};
use crate::{
    http::{Coding, HeaderName, HeaderValue, ReadyFields, Validators, header},
    limits::FILE_SETTLED,
};
use bytes::Bytes;
use rustix::fs::Stat;
use std::{
    rc::Rc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// 9999-12-31T23:59:59Z: a date has four digits for the year.
const LAST_SECOND: u64 = 253_402_300_799;

/// By what a file is known to be the one that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) size: u64,
    modified: (i64, u64),
    /// The time of the last change of anything, permissions included; it cannot be set.
    changed: (i64, u64),
    inode: u64,
    device: u64,
}

impl Stamp {
    pub(super) fn of(stat: &Stat) -> Self {
        Stamp {
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
            inode: stat.st_ino,
            device: stat.st_dev,
        }
    }

    fn modified_s(&self) -> u64 {
        u64::try_from(self.modified.0).unwrap_or(0).min(LAST_SECOND)
    }

    /// Strong: it changes with the contents, as far as the file system's clock tells.
    fn etag(&self) -> HeaderValue {
        let (seconds, ns) = self.modified;
        let modified = i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        let tag = format!("\"{:x}-{:x}-{:x}\"", modified as u64, self.size, self.inode);
        HeaderValue::from_maybe_shared(tag.into_bytes()).expect("hexadecimal digits make a header value")
    }

    /// Whether a later change would show.
    fn is_settled(&self, now: SystemTime) -> bool {
        let (Ok(seconds), ns) = (u64::try_from(self.changed.0), self.changed.1) else { return true };
        let changed = UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_nanos(ns);
        now.duration_since(changed).is_ok_and(|age| age >= FILE_SETTLED)
    }
}

/// What an author says of the answers for a file.
#[derive(Debug)]
pub(super) struct Description {
    pub(super) media_type: HeaderValue,
    pub(super) cache_control: Option<HeaderValue>,
    /// Whether the answer may be another for a client that takes other codings.
    pub(super) varies: bool,
}

impl Description {
    /// Whether siblings in other codings are looked for.
    pub(super) fn has_siblings(&self) -> bool {
        self.varies && is_compressible(&self.media_type)
    }
}

/// A file that can be answered with.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) stamp: Stamp,
    etag: HeaderValue,
    /// Whether siblings in other codings may stand for it.
    pub(super) has_siblings: bool,
    /// The media type of the parts of a multipart answer.
    pub(super) media_type: HeaderValue,
    /// Of 200 and 206.
    pub(super) fields: Rc<ReadyFields>,
    /// Of 304.
    pub(super) unchanged: Rc<ReadyFields>,
    /// Whether the stamp tells these contents from later ones.
    pub(super) is_settled: bool,
    /// What of it is in the kernel's memory.
    pub(super) resident: Rc<Resident>,
    /// All of it, where it is kept in memory.
    pub(super) content: Option<Bytes>,
}

impl Ready {
    pub(super) fn new(stamp: Stamp, coding: Coding, about: Description, now: SystemTime) -> Self {
        let etag = stamp.etag();
        let modified = UNIX_EPOCH + Duration::from_secs(stamp.modified_s());
        let modified = httpdate::fmt_http_date(modified);
        let has_siblings = about.has_siblings();
        let mut fields: Vec<(HeaderName, HeaderValue)> = vec![(header::CONTENT_TYPE, about.media_type.clone())];
        if coding != Coding::Identity {
            fields.push((header::CONTENT_ENCODING, HeaderValue::from_static(coding.token())));
        }
        // RFC 9110 §15.4.5: of these a 304 has the ones that guide caches.
        let mut shared = vec![(header::ETAG, etag.clone())];
        if has_siblings {
            shared.push((header::VARY, HeaderValue::from_static("Accept-Encoding")));
        }
        shared.extend(about.cache_control.map(|value| (header::CACHE_CONTROL, value)));
        fields.extend(shared.iter().cloned());
        fields.extend([
            (
                header::LAST_MODIFIED,
                HeaderValue::from_maybe_shared(modified.into_bytes()).expect("a date is a header value"),
            ),
            (header::ACCEPT_RANGES, HeaderValue::from_static("bytes")),
        ]);
        Ready {
            is_settled: stamp.is_settled(now),
            resident: Rc::new(Resident::new(stamp.size)),
            stamp,
            etag,
            has_siblings,
            media_type: about.media_type,
            fields: ReadyFields::new(fields),
            unchanged: ReadyFields::new(shared),
            content: None,
        }
    }

    /// The same file, with its contents.
    pub(super) fn with_content(&self, content: Bytes, now: SystemTime) -> Self {
        Ready {
            stamp: self.stamp,
            etag: self.etag.clone(),
            has_siblings: self.has_siblings,
            media_type: self.media_type.clone(),
            fields: self.fields.clone(),
            unchanged: self.unchanged.clone(),
            is_settled: self.stamp.is_settled(now),
            resident: self.resident.clone(),
            content: Some(content),
        }
    }

    pub(super) fn validators(&self) -> Validators<'_> {
        Validators { etag: self.etag.as_bytes(), modified_s: self.stamp.modified_s() }
    }

    /// Bytes of contents in memory.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.content.as_ref().map_or_else(|| self.resident.kept_bytes(), |content| content.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(modified: (i64, u64), changed: (i64, u64)) -> Stamp {
        Stamp { size: 255, modified, changed, inode: 16, device: 1 }
    }

    #[test]
    fn stamp_is_settled_once_a_later_change_would_show() {
        #[track_caller]
        fn check(changed: (i64, u64), now: Duration, expected: bool) {
            assert_eq!(stamp((0, 0), changed).is_settled(UNIX_EPOCH + now), expected, "{changed:?} at {now:?}");
        }
        let settles = Duration::from_secs(100) + FILE_SETTLED;
        check((100, 0), settles - Duration::from_nanos(1), false);
        check((100, 0), settles, true);
        check((100, 1), settles, false);
        check((100, 1), settles + Duration::from_nanos(1), true);
        check((1000, 0), settles, false); // a clock that went back
        check((-1, 0), Duration::ZERO, true);
    }

    #[test]
    fn tag_and_date_of_any_time() {
        #[track_caller]
        fn check(modified: (i64, u64), etag: &str, date: &str) {
            let about = Description { media_type: HeaderValue::from_static("a/b"), cache_control: None, varies: false };
            let ready = Ready::new(stamp(modified, modified), Coding::Gzip, about, UNIX_EPOCH);
            assert_eq!(ready.etag, etag);
            let answer = crate::Response::ready(http::StatusCode::OK, &ready.fields, crate::http::Body::empty());
            assert_eq!(answer.header("last-modified"), Some(date.as_bytes()));
            assert_eq!(answer.header("content-encoding"), Some(&b"gzip"[..]));
            assert_eq!(answer.header("vary"), None);
        }
        check((0, 0), "\"0-ff-10\"", "Thu, 01 Jan 1970 00:00:00 GMT");
        check((784_111_777, 5), "\"ae1b981bc490a05-ff-10\"", "Sun, 06 Nov 1994 08:49:37 GMT");
        check((-1, 999_999_999), "\"ffffffffffffffff-ff-10\"", "Thu, 01 Jan 1970 00:00:00 GMT");
        check((i64::MAX, 0), "\"ffffffffc4653600-ff-10\"", "Fri, 31 Dec 9999 23:59:59 GMT");
    }
}
