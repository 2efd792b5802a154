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
        let Some(entry) = self.entries.get_mut(key.index as usize) else {
            return false;
        };
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
    /// what lies on the way, however far it is (and a step for each 783 days while anything lies beyond). If `fire`
    /// panics, what is still due fires in the next advance.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::collections::BTreeMap;

    const LEVEL_MS: [u64; 6] = [1, 64, 4_096, 262_144, 16_777_216, 1_073_741_824];

    impl<T> Wheel<T> {
        /// Follows every list and checks what the fields promise of each other.
        fn validate(&self) {
            let mut linked = 0;
            for (slot, &head) in self.heads.iter().enumerate() {
                let bit = self.occupied[slot / SLOTS] >> (slot % SLOTS) & 1;
                assert_eq!(bit == 1, head != NIL, "occupied bit of slot {slot}");
                let (mut prev, mut index) = (NIL, head);
                while index != NIL {
                    let entry = &self.entries[index as usize];
                    assert!(entry.value.is_some());
                    assert_eq!((entry.prev, entry.slot as usize), (prev, slot));
                    let start = self.slot_start(entry.slot);
                    assert!(start <= entry.deadline && self.now <= entry.deadline);
                    assert!(start > self.now || (start == self.now && slot < SLOTS));
                    (prev, index) = (index, entry.next);
                    linked += 1;
                }
            }
            assert_eq!(linked, self.len);
            let (mut unused, mut index) = (0, self.free);
            while index != NIL {
                assert!(self.entries[index as usize].value.is_none());
                index = self.entries[index as usize].next;
                unused += 1;
            }
            assert_eq!(linked + unused, self.entries.len());
        }

        fn fired(&mut self, now: u64) -> Vec<T> {
            let mut values = Vec::new();
            self.advance(now, &mut |_, value| values.push(value));
            self.validate();
            values
        }
    }

    /// Inserted at `base`, an entry must not fire one millisecond early and must fire on time, whether the wheel gets
    /// there in one jump or from one `next_deadline` to the next.
    fn check(base: u64, delay: u64) {
        let deadline = base + delay;
        let mut wheel = Wheel::new(base);
        wheel.insert(deadline, delay);
        assert_eq!(wheel.next_deadline(), Some(deadline), "{base} + {delay}: alone");
        if delay > 0 {
            assert!(wheel.fired(deadline - 1).is_empty(), "{base} + {delay}: early");
        }
        assert_eq!(wheel.fired(deadline), [delay], "{base} + {delay}: on time");
        assert_eq!(wheel.next_deadline(), None);

        let mut wheel = Wheel::new(base);
        wheel.insert(deadline, 1);
        wheel.insert(deadline, 2);
        for wakes in 0.. {
            assert!(wakes <= WHEEL_LEVELS as u64 + delay / WHEEL_HORIZON_MS, "{base} + {delay}: wakes in a loop");
            let next = wheel.next_deadline().expect("two entries");
            assert!(next <= deadline);
            let fired = wheel.fired(next);
            assert_eq!(fired.len(), if next == deadline { 2 } else { 0 }, "{base} + {delay} at {next}");
            if next == deadline {
                break;
            }
        }
    }

    #[test]
    fn every_level_boundary_fires_on_time() {
        let mut delays = vec![0, 1, 2, 100, 60_000];
        for level_ms in LEVEL_MS {
            for slots in [1, 2, 63, 64, 65, 128] {
                delays.extend([level_ms * slots - 1, level_ms * slots, level_ms * slots + 1]);
            }
        }
        let bases = [0, 1, 63, 64, 4_095, 4_096, 1 << 36, (1 << 36) - 1, (1 << 30) - 1, 1_764_000_000_123, 1 << 60];
        for base in bases {
            for &delay in &delays {
                check(base, delay);
            }
        }
    }

    #[test]
    fn every_delay_of_two_levels_fires_on_time() {
        for base in [0, 4_059] {
            for delay in 0..4_200 {
                check(base, delay);
            }
        }
    }

    #[test]
    fn deadline_beyond_the_horizon_fires_on_time() {
        for delay in [WHEEL_HORIZON_MS - 1, WHEEL_HORIZON_MS, WHEEL_HORIZON_MS + 1, 3 * WHEEL_HORIZON_MS] {
            check(12_345, delay);
        }
        let mut wheel = Wheel::new(u64::MAX - 5 * WHEEL_HORIZON_MS);
        wheel.insert(u64::MAX, 'm');
        assert_eq!(wheel.next_deadline(), Some(u64::MAX));
        assert_eq!(wheel.fired(u64::MAX - 1), []);
        wheel.insert(u64::MAX, 'n');
        assert_eq!(wheel.fired(u64::MAX).len(), 2);
        wheel.insert(0, 'p');
        assert_eq!(wheel.fired(0), ['p']);
    }

    #[test]
    fn deadline_in_the_past_fires_in_the_next_advance() {
        let mut wheel = Wheel::new(1_000);
        wheel.insert(3, 'a');
        assert_eq!(wheel.next_deadline(), Some(1_000));
        assert_eq!(wheel.fired(1_000), ['a']);
        let key = wheel.insert(2_000, 'b');
        assert!(wheel.reset(key, 5));
        assert_eq!(wheel.next_deadline(), Some(1_000));
        assert_eq!(wheel.fired(0), ['b'], "time that goes backwards counts as the last one");
    }

    #[test]
    fn time_going_backwards_fires_nothing() {
        let mut wheel = Wheel::new(0);
        wheel.fired(10_000);
        wheel.insert(10_001, 'a');
        assert_eq!(wheel.fired(5), []);
        assert_eq!(wheel.next_deadline(), Some(10_001));
        assert_eq!(wheel.fired(10_001), ['a']);
    }

    #[test]
    fn reset_later_only_stores_and_earlier_moves() {
        let mut wheel = Wheel::new(0);
        let key = wheel.insert(100, 'a');
        let slot = wheel.entries[0].slot;
        for deadline in [100, 101, 5_000, 60_000, 100, 64] {
            assert!(wheel.reset(key, deadline));
            assert_eq!(wheel.entries[0].slot, slot, "stays for {deadline}");
        }
        assert!(wheel.reset(key, 63));
        assert_ne!(wheel.entries[0].slot, slot);
        assert_eq!(wheel.next_deadline(), Some(63));
        assert_eq!(wheel.fired(62), []);
        assert!(wheel.reset(key, 63_000));
        assert_eq!(wheel.next_deadline(), Some(63_000), "a lazily reset entry wakes nobody");
        assert!(wheel.reset(key, 70_000));
        assert_eq!(wheel.fired(69_999), []);
        assert_eq!(wheel.fired(70_000), ['a']);
    }

    #[test]
    fn lazily_reset_entry_fires_within_the_jump_that_passes_both_deadlines() {
        let mut wheel = Wheel::new(0);
        let a = wheel.insert(10, 'a');
        wheel.insert(20, 'b');
        wheel.reset(a, 5_000);
        wheel.insert(6_000, 'c');
        assert_eq!(wheel.fired(1_000_000), ['b', 'a', 'c'], "in the order of the deadlines");
    }

    #[test]
    fn stale_key_does_nothing() {
        let mut wheel = Wheel::new(0);
        let first = wheel.insert(10, 'a');
        assert_eq!(wheel.remove(first), Some('a'));
        let second = wheel.insert(20, 'b');
        assert_eq!(first.index, second.index, "the place is used again");
        assert_eq!(wheel.remove(first), None);
        assert!(!wheel.reset(first, 5));
        assert_eq!(wheel.fired(19), []);
        let mut keys = Vec::new();
        wheel.advance(20, &mut |key, _| keys.push(key));
        assert_eq!(keys, [second]);
        assert!(!wheel.reset(second, 30));
        assert_eq!(wheel.remove(second), None);
        assert_eq!(wheel.remove(Key { index: 7, generation: 0 }), None);
        assert!(wheel.is_empty());
    }

    #[test]
    fn entry_is_small_and_its_place_is_used_again() {
        assert!(size_of::<Entry<u64>>() <= 40);
        let mut wheel = Wheel::new(0);
        for round in 0..1_000 {
            let keys: Vec<_> = (0..10).map(|i| wheel.insert(round * 50 + i, i)).collect();
            for &key in keys.iter().step_by(2) {
                assert!(wheel.remove(key).is_some());
            }
            wheel.advance(round * 50 + 25, &mut |_, _| {});
        }
        assert_eq!((wheel.len(), wheel.entries.len()), (0, 10));
    }

    #[test]
    fn panic_while_firing_loses_nothing() {
        let mut wheel = Wheel::new(0);
        for deadline in [4_096, 4_096, 4_097, 4_160, 300_000] {
            wheel.insert(deadline, deadline);
        }
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wheel.advance(10_000, &mut |_, _| panic!("as the test wants it"));
        }));
        assert!(panicked.is_err());
        wheel.validate();
        assert_eq!(wheel.next_deadline(), Some(4_096));
        assert_eq!(wheel.fired(10_000), [4_096, 4_097, 4_160]);
        assert_eq!(wheel.fired(300_000), [300_000]);
    }

    /// The start of the slot a deadline lies in, by division instead of digits.
    fn slot_start_of(deadline: u64, now: u64) -> u64 {
        let finest_shared = LEVEL_MS.iter().position(|ms| now / (ms * 64) == deadline / (ms * 64));
        let ms = LEVEL_MS[finest_shared.unwrap_or(5)];
        deadline.min(now + WHEEL_HORIZON_MS) / ms * ms
    }

    fn compare_with_naive_model(seed: u64, base: u64, delay_bits_max: u32) {
        let mut random = fastrand::Rng::with_seed(seed);
        let delay = |random: &mut fastrand::Rng| {
            let bits = random.u32(0..=delay_bits_max);
            random.u64(..1 << bits)
        };
        let (mut wheel, mut now) = (Wheel::new(base), base);
        let mut model: BTreeMap<u64, (Key, u64)> = BTreeMap::new();
        let mut gone = Vec::new();
        for id in 0..3_000 {
            let chosen = random.choice(model.keys().copied().collect::<Vec<_>>());
            match (random.u8(..10), chosen) {
                (0..3, _) => {
                    let deadline = now + delay(&mut random);
                    model.insert(id, (wheel.insert(deadline, id), deadline));
                }
                (3..6, Some(id)) => {
                    let deadline = (now + delay(&mut random)).saturating_sub(random.u64(..3));
                    let entry = model.get_mut(&id).unwrap();
                    entry.1 = deadline.max(now);
                    assert!(wheel.reset(entry.0, deadline));
                }
                (6, Some(id)) => {
                    let (key, _) = model.remove(&id).unwrap();
                    assert_eq!(wheel.remove(key), Some(id));
                    gone.push(key);
                }
                (7, _) => {
                    let earliest = model.values().map(|entry| entry.1).min();
                    let next = wheel.next_deadline();
                    assert_eq!(next.is_some(), earliest.is_some());
                    if let (Some(next), Some(earliest)) = (next, earliest) {
                        assert!(next <= earliest && next >= now);
                        assert!(next >= slot_start_of(earliest, now), "{next} for {earliest} at {now}");
                        now = if random.bool() { next } else { now };
                    }
                }
                _ => now += delay(&mut random) / 4,
            }
            let mut fired = Vec::new();
            wheel.advance(now.saturating_sub(random.u64(..2)), &mut |key, id| fired.push((id, key)));
            wheel.advance(now, &mut |key, id| fired.push((id, key)));
            let order: Vec<u64> = fired.iter().map(|(id, _)| model[id].1).collect();
            assert!(order.is_sorted(), "fired in the order of the deadlines");
            for (id, key) in fired {
                let (expected, deadline) = model.remove(&id).unwrap();
                assert_eq!(key, expected);
                assert!(deadline <= now, "{id} fired {} ms early", deadline - now);
                gone.push(key);
            }
            assert!(model.values().all(|entry| entry.1 > now), "all that is due fired");
            assert_eq!(wheel.len(), model.len());
            if let Some(key) = random.choice(&gone) {
                assert!(!wheel.reset(*key, now) && wheel.remove(*key).is_none());
            }
            wheel.validate();
        }
    }

    #[test]
    fn wheel_does_what_a_naive_model_does() {
        for seed in 0..4 {
            for bits in [3, 6, 7, 12, 13, 18, 24, 30, 36, 40] {
                compare_with_naive_model(seed, 0, bits);
                compare_with_naive_model(seed, (1 << 36) - 1_000, bits);
                compare_with_naive_model(seed, fastrand::Rng::with_seed(seed).u64(..1 << 45), bits);
            }
        }
    }
}
