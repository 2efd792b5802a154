//! Operations on files: submitting them, and what their completions mean. Floor 3.

use super::Core;
use crate::ring::{
    file::{Errand, Job, State},
    token::{Op, Token},
};
use io_uring::{opcode, squeue, types};
use std::{
    os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd},
    rc::Rc,
    task::{Poll, Waker},
};

/// Takes what an open's completion gave.
pub(in crate::ring) fn opened(result: i32) -> OwnedFd {
    debug_assert!(result >= 0);
    // SAFETY: a non-negative result of an open is a new descriptor that nobody else owns; each is taken once, by
    // whoever takes the job out of its slot.
    unsafe { OwnedFd::from_raw_fd(result) }
}

impl Core {
    /// Submits an errand. Its slot is its owner's until `poll_job` was ready or `abandon_job` was called.
    pub(in crate::ring) fn start_job(&mut self, errand: Errand) -> u32 {
        let state = State::Running(Waker::noop().clone());
        let slot = self.jobs.insert(Job { errand, state });
        // The entry points to what the job owns on the heap, which stays where it is when the slab moves.
        let entry = entry(&mut self.jobs[slot].errand);
        let slot = slot as u32;
        self.push(entry, Token { op: Op::File, generation: 0, slot });
        slot
    }

    pub(in crate::ring) fn poll_job(&mut self, slot: u32, waker: &Waker) -> Poll<(Errand, i32)> {
        let job = &mut self.jobs[slot as usize];
        match &mut job.state {
            State::Running(old) => {
                old.clone_from(waker);
                Poll::Pending
            }
            State::Done(result) => {
                let result = *result;
                let mut errand = self.jobs.remove(slot as usize).errand;
                if let (Errand::Read { into, .. }, 1..) = (&mut errand, result) {
                    let len = into.len() + result as usize;
                    debug_assert!(len <= into.capacity());
                    // SAFETY: the completed read filled `result` bytes of the spare capacity, from its start.
                    unsafe { into.set_len(len) };
                }
                Poll::Ready((errand, result))
            }
            State::Abandoned => unreachable!("its owner is gone"),
        }
    }

    /// Nobody wants the outcome any more. It is not cancelled: what the kernel reads it has nearly read.
    pub(in crate::ring) fn abandon_job(&mut self, slot: u32) {
        let job = &mut self.jobs[slot as usize];
        match job.state {
            State::Done(result) => self.drop_job(slot, result),
            _ => job.state = State::Abandoned,
        }
    }

    pub(super) fn on_file(&mut self, token: Token, result: i32) {
        let job = &mut self.jobs[token.slot as usize];
        match std::mem::replace(&mut job.state, State::Done(result)) {
            State::Running(waker) => self.wakes.push(waker),
            _ => self.drop_job(token.slot, result),
        }
    }

    fn drop_job(&mut self, slot: u32, result: i32) {
        match self.jobs.remove(slot as usize).errand {
            Errand::Open { .. } if result >= 0 => self.close_file(Rc::new(opened(result))),
            Errand::Open { .. } => {}
            Errand::Read { file, .. } => self.close_file(file),
        }
    }

    /// Closes a descriptor with its last holder, by the ring: a close can wait, on a network file system.
    pub(in crate::ring) fn close_file(&mut self, fd: Rc<OwnedFd>) {
        if let Some(fd) = Rc::into_inner(fd) {
            self.push_untracked(opcode::Close::new(types::Fd(fd.into_raw_fd())).build(), Op::Close);
        }
    }
}

fn entry(errand: &mut Errand) -> squeue::Entry {
    match errand {
        Errand::Open { beneath, path, how } => {
            opcode::OpenAt2::new(types::Fd(beneath.as_raw_fd()), path.as_ptr(), &raw const **how).build()
        }
        Errand::Read { file, offset, into } => {
            let spare = into.spare_capacity_mut();
            let len = u32::try_from(spare.len()).unwrap_or(u32::MAX);
            opcode::Read::new(types::Fd(file.as_raw_fd()), spare.as_mut_ptr().cast(), len).offset(*offset).build()
        }
    }
}
