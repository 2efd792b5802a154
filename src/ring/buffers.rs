//! The provided-buffer ring: memory the kernel picks from when bytes arrive. Floor 3.
//!
//! One a shard, shared by all its sockets. A buffer is out of the ring only from the completion that
//! names it until [`Buffers::give_back`], which the driver calls before it does anything else.

use crate::limits::{RECV_BUFFER_BYTES, RECV_BUFFERS};
use io_uring::{IoUring, types::BufRingEntry};
use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    io,
    ptr::NonNull,
    sync::atomic::{AtomicU16, Ordering},
};

/// The only buffer group.
pub(super) const GROUP: u16 = 0;

pub(super) struct Buffers {
    /// `RECV_BUFFERS` entries, then `RECV_BUFFERS` buffers of `RECV_BUFFER_BYTES`.
    memory: NonNull<u8>,
    /// Entries put into the ring so far, modulo 2^16: the tail the kernel sees.
    tail: u16,
    /// Operations that use it are still in flight at the end: never freed.
    is_leaked: bool,
}

const ENTRIES_BYTES: usize = RECV_BUFFERS * size_of::<BufRingEntry>();

const fn layout() -> Layout {
    match Layout::from_size_align(ENTRIES_BYTES + RECV_BUFFERS * RECV_BUFFER_BYTES, 4096) {
        Ok(layout) => layout,
        Err(_) => panic!("the buffer ring fits the address space"),
    }
}

impl Buffers {
    /// Allocates the memory, fills the ring and registers it.
    ///
    /// # Errors
    /// The kernel refuses the registration (too little memlock, older than 5.19).
    pub(super) fn register(ring: &IoUring) -> io::Result<Self> {
        // SAFETY: the layout has a size above zero.
        let memory = unsafe { alloc_zeroed(layout()) };
        let memory = NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout()));
        let mut buffers = Buffers { memory, tail: 0, is_leaked: false };
        for id in 0..RECV_BUFFERS as u16 {
            buffers.give_back(id);
        }
        // SAFETY: the memory is page-aligned, holds RECV_BUFFERS entries, and outlives the ring: the
        // owner (`Core`) drops the ring first.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(memory.as_ptr() as u64, RECV_BUFFERS as u16, GROUP, 0)?
        };
        Ok(buffers)
    }

    fn buffer(&self, id: u16) -> *mut u8 {
        debug_assert!(usize::from(id) < RECV_BUFFERS);
        // SAFETY: an id the kernel hands out is one we put in, so the offset stays inside the allocation.
        unsafe { self.memory.as_ptr().add(ENTRIES_BYTES + usize::from(id) * RECV_BUFFER_BYTES) }
    }

    /// The first `len` bytes of a buffer that a completion named and that was not given back yet.
    pub(super) fn filled(&self, id: u16, len: usize) -> &[u8] {
        assert!(usize::from(id) < RECV_BUFFERS && len <= RECV_BUFFER_BYTES, "the kernel names a buffer we gave it");
        // SAFETY: in bounds (checked); initialised (zeroed at first); the kernel does not write to it
        // until it is given back, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.buffer(id), len) }
    }

    /// Lets the kernel fill the buffer again.
    pub(super) fn give_back(&mut self, id: u16) {
        let entries = self.memory.as_ptr().cast::<BufRingEntry>();
        let slot = usize::from(self.tail) & (RECV_BUFFERS - 1);
        // SAFETY: the slot is inside the entries (RECV_BUFFERS is a power of two), properly aligned, and not
        // the kernel's until the tail passes it: at most RECV_BUFFERS buffers exist, so the ring is never full.
        unsafe {
            let entry = &mut *entries.add(slot);
            entry.set_addr(self.buffer(id) as u64);
            entry.set_len(RECV_BUFFER_BYTES as u32);
            entry.set_bid(id);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: `tail` points into the first entry; the kernel reads it with acquire, we store with release.
        unsafe {
            let tail = BufRingEntry::tail(entries).cast_mut();
            AtomicU16::from_ptr(tail).store(self.tail, Ordering::Release);
        }
    }
}

impl Buffers {
    pub(super) fn leak(&mut self) {
        self.is_leaked = true;
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        if self.is_leaked {
            return;
        }
        // SAFETY: allocated in `register` with this layout; the ring that used it is closed (see `Core`).
        unsafe { dealloc(self.memory.as_ptr(), layout()) };
    }
}
