//! What a shard remembers of the files beneath one root: their state for a second, the contents of small hot ones.
//!
//! Only names of files that are there get in, in their one spelling, so that a client cannot fill it with others.

use super::ready::Ready;
use crate::{
    http::{AcceptedCodings, Coding},
    limits::{FILE_CACHED_OVERHEAD_BYTES, FILE_FRESH_MS},
    stats::{Count, Counters},
};
use quick_cache::{
    Weighter,
    unsync::{self, DefaultLifecycle},
};
use rustc_hash::FxBuildHasher;
use std::{
    cell::{Cell, RefCell},
    fmt,
    rc::Rc,
};

/// What is known under one name in one coding.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// When it was last seen to be so.
    seen_ms: Cell<u64>,
    /// `None`: it is not there (of siblings only).
    pub(super) file: Option<Rc<Ready>>,
}

impl Known {
    fn is_fresh(&self, now_ms: u64) -> bool {
        now_ms < self.seen_ms.get() + FILE_FRESH_MS
    }
}

/// The codings of one file, by `Coding`.
type Entry = [Option<Known>; Coding::ALL.len()];

struct Bytes;

impl Weighter<Box<str>, Entry> for Bytes {
    fn weight(&self, name: &Box<str>, entry: &Entry) -> u64 {
        let contents = entry.iter().flatten().filter_map(|known| known.file.as_ref());
        contents.map(|file| file.kept_bytes()).sum::<u64>() + name.len() as u64 + FILE_CACHED_OVERHEAD_BYTES
    }
}

type Entries = unsync::Cache<Box<str>, Entry, Bytes, FxBuildHasher, DefaultLifecycle<Box<str>, Entry>>;

/// Names are keys as they are in requests, so that the usual look-up decodes nothing. The hash may be weak: a client
/// chooses among names that are there.
pub(super) struct Cache {
    entries: RefCell<Entries>,
    bytes_max: u64,
    counters: Rc<Counters>,
}

impl Cache {
    pub(super) fn new(bytes_max: u64, counters: Rc<Counters>) -> Self {
        let items = usize::try_from(bytes_max / (4 * FILE_CACHED_OVERHEAD_BYTES)).unwrap_or(usize::MAX).max(1);
        let entries = unsync::Cache::with(items, bytes_max, Bytes, FxBuildHasher, DefaultLifecycle::default());
        Cache { entries: RefCell::new(entries), bytes_max, counters }
    }

    /// Whether a file of this size is worth its contents' memory.
    pub(super) fn takes(&self, size: u64) -> bool {
        size <= crate::limits::FILE_CACHED_BYTES_MAX && size <= self.bytes_max / 8
    }

    /// The file `name` in the first coding of `accepted` that it is known to have, if it takes no look at the disk.
    pub(super) fn fresh(
        &self,
        name: &str,
        accepted: impl FnOnce() -> AcceptedCodings,
        now_ms: u64,
    ) -> Option<Rc<Ready>> {
        let entries = self.entries.borrow();
        let entry = entries.get(name)?;
        let identity = entry[Coding::Identity as usize].as_ref().filter(|known| known.is_fresh(now_ms))?;
        let identity = identity.file.as_ref()?;
        if !identity.has_siblings {
            return Some(identity.clone());
        }
        for coding in accepted().before_identity() {
            let known = entry[*coding as usize].as_ref().filter(|known| known.is_fresh(now_ms))?;
            if let Some(file) = &known.file {
                return Some(file.clone());
            }
        }
        Some(identity.clone())
    }

    /// What is known of one coding, and whether that is fresh.
    pub(super) fn known(&self, name: &str, coding: Coding, now_ms: u64) -> Option<(Option<Rc<Ready>>, bool)> {
        let entries = self.entries.borrow();
        let known = entries.peek(name)?[coding as usize].as_ref()?;
        Some((known.file.clone(), known.is_fresh(now_ms)))
    }

    /// It was looked at and is as it was.
    pub(super) fn refresh(&self, name: &str, coding: Coding, now_ms: u64) {
        if let Some(Some(known)) = self.entries.borrow().peek(name).map(|entry| &entry[coding as usize]) {
            known.seen_ms.set(now_ms);
        }
    }

    /// It was looked at; `None`: it is not there.
    pub(super) fn put(&self, name: &str, coding: Coding, file: Option<Rc<Ready>>, now_ms: u64) {
        let mut entries = self.entries.borrow_mut();
        let known = entries.peek(name).cloned();
        let expected = entries.len() + usize::from(known.is_none());
        let mut entry = known.unwrap_or_default();
        entry[coding as usize] = Some(Known { seen_ms: Cell::new(now_ms), file });
        let before = entries.weight();
        entries.insert(name.into(), entry);
        self.note(before, entries.weight());
        self.counters.files.cache_evictions.add((expected - entries.len()) as u64);
    }

    /// The file is gone, in all its codings.
    pub(super) fn forget(&self, name: &str) {
        let mut entries = self.entries.borrow_mut();
        let before = entries.weight();
        entries.remove(name);
        self.note(before, entries.weight());
    }

    fn note(&self, before: u64, after: u64) {
        self.counters.files.cached_bytes.add(after.saturating_sub(before));
        self.counters.files.cached_bytes.sub(before.saturating_sub(after));
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("bytes", &self.entries.borrow().weight()).finish_non_exhaustive()
    }
}
