//! A hierarchical timer wheel: many deadlines, of which nearly all are moved or removed before they pass.
//!
//! For: header, idle and write timeouts and the sleeps of one shard. Not for: reading a clock or sleeping;
//! the caller passes the time and sleeps until [`Wheel::next_deadline`]. Floor 3, but pure and without unsafe.
//!
//! Time is in milliseconds since any fixed moment. Level 0 has 64 slots of 1 ms, level 1 has 64 of 64 ms, and
//! so on. An entry lies on the level of the highest 6-bit digit in which its time differs from `now`, in the slot
//! that digit names, so everything on a level comes before everything on the levels above it. When `now` reaches
//! the start of a slot, its entries go down to finer levels, and those of level 0 fire.

use crate::limits::{WHEEL_HORIZON_MS, WHEEL_LEVELS};

const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// The end of a list.
const NIL: u32 = u32::MAX;

const _: () = assert!(WHEEL_LEVELS * SLOT_BITS as usize <= 60 && SLOTS == u64::BITS as usize);

/// Names one entry of one wheel. After the entry fired or was removed, the key names nothing and does no harm
/// (unless its place in the slab is used again exactly 2^32 times while the key is kept).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    index: u32,
    generation: u32,
}

/// Deadlines in ms, each with a value. Holds 1.6 KiB and at most 40 bytes for each entry of the most that were in
/// it at once (`T = u64`); the caller bounds their number.
///
/// ```
/// # use everycore::ring::wheel::Wheel;
/// let mut wheel = Wheel::new(1_000);
/// let idle = wheel.insert(61_000, "idle");
/// wheel.insert(11_000, "header");
/// wheel.reset(idle, 71_000);
/// assert_eq!(wheel.next_deadline(), Some(11_000));
/// let mut fired = Vec::new();
/// wheel.advance(70_000, &mut |_, value| fired.push(value));
/// assert_eq!(fired, ["header"]);
/// assert_eq!(wheel.remove(idle), Some("idle"));
/// ```
///
/// While entries fire the wheel is borrowed, so nothing can be removed under its feet:
///
/// ```compile_fail,E0499
/// # use everycore::ring::wheel::Wheel;
/// let mut wheel = Wheel::new(0);
/// let key = wheel.insert(1, ());
/// wheel.advance(2, &mut |_, ()| { wheel.remove(key); });
/// ```
#[derive(Debug)]
pub struct Wheel<T> {
    /// Never goes back. Every slot in use starts after it, but for the one of level 0 that starts at it.
    now: u64,
    /// Bit `s` of word `l` is set when slot `s` of level `l` holds an entry.
    occupied: [u64; WHEEL_LEVELS],
    /// First entry of each slot, level by level.
    heads: [u32; WHEEL_LEVELS * SLOTS],
    entries: Vec<Entry<T>>,
    /// First unused entry; they are chained by `next`.
    free: u32,
    len: usize,
}

#[derive(Debug)]
struct Entry<T> {
    /// `None` while unused.
    value: Option<T>,
    /// Never before the start of `slot`; past its end after a lazy [`Wheel::reset`].
    deadline: u64,
    /// Counts the uses of this entry.
    generation: u32,
    prev: u32,
    next: u32,
    /// Index into `heads`: level × 64 + slot.
    slot: u16,
}

impl<T> Wheel<T> {
    /// An empty wheel that stands at `now`.
    pub fn new(now: u64) -> Self {
        Self {
            now,
            occupied: [0; WHEEL_LEVELS],
            heads: [NIL; WHEEL_LEVELS * SLOTS],
            entries: Vec::new(),
            free: NIL,
            len: 0,
        }
    }

    /// Entries that have neither fired nor been removed.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing will ever fire.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an entry that fires in the first [`advance`](Self::advance) to `deadline` or later. A deadline that has
    /// passed counts as now. O(1).
    pub fn insert(&mut self, deadline: u64, value: T) -> Key {
        let deadline = deadline.max(self.now);
        let index = if self.free == NIL { self.grow() } else { self.free };
        let entry = &mut self.entries[index as usize];
        self.free = entry.next;
        entry.value = Some(value);
        entry.deadline = deadline;
        let generation = entry.generation;
        self.len += 1;
        self.link(index);
        Key { index, generation }
    }

    /// Gives an entry another deadline and says whether there was such an entry. A later one is only noted down and
    /// looked at when the old one comes: cheap enough for every request. An earlier one moves the entry. O(1).
    #[inline]
    pub fn reset(&mut self, key: Key, deadline: u64) -> bool {
        let deadline = deadline.max(self.now);
        let Some(entry) = self.entries.get_mut(key.index as usize) else { return false };
        if entry.generation != key.generation {
            return false;
        }
        let is_earlier = deadline < entry.deadline;
        entry.deadline = deadline;
        if is_earlier && deadline < self.slot_start(self.entries[key.index as usize].slot) {
            self.relink(key.index);
        }
        true
    }

    /// Takes an entry out before it fires; `None` if it is gone already. O(1).
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get(key.index as usize)?;
        if entry.generation != key.generation {
            return None;
        }
        self.unlink(key.index);
        Some(self.release(key.index))
    }

    /// Moves to `now` and fires every entry whose deadline is not later, in the order of the deadlines (those of the
    /// same millisecond in no particular order). A `now` before the last one counts as the last one. A jump costs
    /// what lies on the way, however far it is. If `fire` panics, what is still due fires in the next advance.
    pub fn advance(&mut self, now: u64, fire: &mut impl FnMut(Key, T)) {
        let now = now.max(self.now);
        while let Some((slot, start)) = self.first_slot()
            && start <= now
        {
            self.now = start;
            let is_finest = slot < SLOTS;
            // What is linked again goes to another slot, since `self.now` is at the start of this one.
            while self.heads[slot] != NIL {
                let index = self.heads[slot];
                if is_finest && self.entries[index as usize].deadline <= start {
                    self.unlink(index);
                    let key = Key { index, generation: self.entries[index as usize].generation };
                    let value = self.release(index);
                    fire(key, value);
                } else {
                    self.relink(index);
                }
            }
        }
        self.now = now;
    }

    /// When to advance next; `None` when the wheel is empty. Never later than the earliest deadline, nor before the
    /// start of the slot that one lies in; exact on the finest level (within 64 ms) and for an entry alone in its slot.
    ///
    /// Whoever sleeps until then wakes at most once for each level between (five times in two years, twice in a
    /// minute) before something fires: each time the entries get to a finer level. Lazily reset entries do not wake
    /// anyone: those that come first are moved to where they belong, which is why this takes `&mut self`.
    pub fn next_deadline(&mut self) -> Option<u64> {
        loop {
            let (slot, start) = self.first_slot()?;
            let index = self.heads[slot];
            let entry = &self.entries[index as usize];
            if self.home(entry.deadline) == entry.slot {
                return Some(if entry.next == NIL { entry.deadline } else { start });
            }
            self.relink(index);
        }
    }

    /// The first slot in use, and when it starts.
    fn first_slot(&self) -> Option<(usize, u64)> {
        let level = self.occupied.iter().position(|&slots| slots != 0)?;
        let shift = level as u32 * SLOT_BITS;
        let here = self.now >> shift;
        // Only the coarsest level wraps around; on the others nothing lies behind `here`.
        let ahead = self.occupied[level].rotate_right(here as u32 % u64::BITS).trailing_zeros();
        let at = here + u64::from(ahead);
        Some((level * SLOTS + at as usize % SLOTS, at << shift))
    }

    fn slot_start(&self, slot: u16) -> u64 {
        let shift = u32::from(slot) / SLOTS as u32 * SLOT_BITS;
        let here = self.now >> shift;
        let ahead = u64::from(slot).wrapping_sub(here) % SLOTS as u64;
        (here + ahead) << shift
    }

    /// The slot for a deadline that is not before `now`.
    fn home(&self, deadline: u64) -> u16 {
        let at = deadline.min(self.now.saturating_add(WHEEL_HORIZON_MS));
        let highest_differing_bit = ((at ^ self.now) | 1).ilog2();
        let level = (highest_differing_bit / SLOT_BITS).min(WHEEL_LEVELS as u32 - 1);
        let digit = (at >> (level * SLOT_BITS)) % SLOTS as u64;
        (level as usize * SLOTS) as u16 + digit as u16
    }

    /// Adds one unused entry.
    fn grow(&mut self) -> u32 {
        let index = u32::try_from(self.entries.len()).ok().filter(|&index| index != NIL);
        let index = index.expect("fewer than 2^32 - 1 entries at once");
        self.entries.push(Entry { value: None, deadline: 0, generation: 0, prev: NIL, next: NIL, slot: 0 });
        index
    }

    /// Makes an unlinked entry unused.
    fn release(&mut self, index: u32) -> T {
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.next = self.free;
        self.free = index;
        self.len -= 1;
        entry.value.take().expect("a linked entry has a value")
    }

    fn relink(&mut self, index: u32) {
        self.unlink(index);
        self.link(index);
    }

    fn link(&mut self, index: u32) {
        let slot = self.home(self.entries[index as usize].deadline);
        let next = std::mem::replace(&mut self.heads[slot as usize], index);
        let entry = &mut self.entries[index as usize];
        (entry.slot, entry.prev, entry.next) = (slot, NIL, next);
        if next != NIL {
            self.entries[next as usize].prev = index;
        }
        self.occupied[slot as usize / SLOTS] |= 1 << (slot as usize % SLOTS);
    }

    fn unlink(&mut self, index: u32) {
        let Entry { prev, next, slot, .. } = self.entries[index as usize];
        let slot = slot as usize;
        if next != NIL {
            self.entries[next as usize].prev = prev;
        }
        if prev != NIL {
            self.entries[prev as usize].next = next;
            return;
        }
        self.heads[slot] = next;
        if next == NIL {
            self.occupied[slot / SLOTS] &= !(1 << (slot % SLOTS));
        }
    }
}

