//! An eventfd by which other threads wake a shard. Floor 3.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::Arc,
};

/// Wakes the shard that reads it. Clones ring the same shard; the descriptor lives as long as any of them.
#[derive(Clone, Debug)]
pub struct Doorbell(Arc<OwnedFd>);

impl Doorbell {
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes no pointers; a non-negative result is a descriptor that nobody else owns.
        let fd = unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Doorbell(Arc::new(fd)))
    }

    /// Rings. Never blocks; rings that were not heard yet are one ring.
    pub fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the buffer is 8 readable bytes. EAGAIN (the counter is full) means it is ringing already.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Silences it; says how often it was rung, 0 for not at all.
    pub fn take(&self) -> u64 {
        let mut count = [0u8; 8];
        // SAFETY: the buffer is 8 writable bytes; on failure it stays 0.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        u64::from_ne_bytes(count)
    }
}

impl AsRawFd for Doorbell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_add_up_and_are_taken_once() {
        let bell = Doorbell::new().unwrap();
        assert_eq!(bell.take(), 0);
        bell.ring();
        bell.clone().ring();
        assert_eq!(bell.take(), 2);
        assert_eq!(bell.take(), 0);
    }
}
