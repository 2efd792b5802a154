//! What services are written against: a byte stream with owned sends and one deadline. Floor 3.
//!
//! Implemented by the ring's [`Socket`](crate::ring::Socket) and by memory (tests, fuzzing, the test client);
//! TLS can wrap either. Not a general-purpose I/O trait: for that, sockets implement futures-io's.

use crate::{
    http::ConnInfo,
    limits::{BUFFER_BYTES_KEPT_MAX, BUFFERS_KEPT_MAX},
    stats::Batched,
};
use bytes::Bytes;
use std::{
    cell::RefCell,
    io,
    ops::Range,
    os::fd::BorrowedFd,
    task::{Context, Poll},
};

/// A connected byte stream.
///
/// All polls of one transport come from one task at a time; the last context polled is the one woken.
pub trait Transport: 'static {
    /// Moves what has been received to the end of `into`; `Ok(0)`: the peer sent its end.
    ///
    /// # Errors
    /// The connection broke (reset); nothing more will come.
    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<io::Result<usize>>;

    /// Ready when nothing handed over is unsent, so that [`send`](Self::send) may be called.
    ///
    /// # Errors
    /// The peer is gone; what was unsent is lost.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Takes all of `out` and begins to send it. Call only after `poll_sent` was ready.
    fn send(&mut self, out: &mut Outgoing);

    /// Sends bytes of a file from where they are, as many as there is room for now; `poll_sent` waits for more. Call only
    /// after that was ready. It waits for the disk: what is asked for should be in memory.
    ///
    /// `None`: it cannot; read them and [`send`](Self::send) them.
    ///
    /// # Errors
    /// The peer is gone, or the file cannot be read.
    fn send_file(&mut self, _file: BorrowedFd<'_>, _range: Range<u64>) -> Option<io::Result<FileSent>> {
        None
    }

    /// Sends the end of the stream after what was sent.
    fn shutdown(&mut self);

    /// Bytes the peer's kernel buffer has taken so far: tells a slow peer from a stalled one.
    fn sent_bytes(&self) -> u64;

    /// Milliseconds on the shard's clock, as of the current turn.
    fn now_ms(&self) -> u64;

    /// The same clock in nanoseconds.
    fn now_ns(&self) -> u64 {
        self.now_ms() * 1_000_000
    }

    /// A request whose head was complete at `since_ns` is answered: its last byte was handed over before.
    fn note_answered(&mut self, _since_ns: u64) {}

    /// What the connection is about, for the stats.
    fn set_phase(&mut self, _phase: Phase) {}

    /// Sets the one deadline; `u64::MAX` for none. Costs a few stores.
    fn set_deadline(&mut self, at_ms: u64);

    /// Ready once the deadline has passed. Wakes the task that polled last when it does.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// The two ends' addresses, looked up (a system call each) when somebody asks first.
    fn conn_info(&self) -> ConnInfo;
}

/// What a connection is about, as an operator sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// It waits for a request.
    #[default]
    Idle,
    /// A part of a request head is here.
    ReadingHead,
    /// A handler works on its request, or a body is read.
    InHandler,
    /// An answer is on its way out.
    Writing,
}

/// What became of bytes that were to be sent from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSent {
    /// So many were sent.
    Bytes(usize),
    /// There was no room.
    Full,
    /// The file ends before them.
    Ended,
}

/// Bytes to send, in order: one growing buffer, with shared bodies spliced in uncopied.
///
/// Two for each connection, most of them empty: what few answers need is apart.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// What is written byte by byte: heads, small bodies, chunk frames.
    pub buf: Vec<u8>,
    /// More follows soon: what fills no packet may wait for it a little.
    pub is_continued: bool,
    /// Requests that are answered with the last of these bytes: since when their heads are complete, in ns, and how
    /// many. Requests of one turn share their time, so that one pair is nearly always enough.
    answered: (u64, u64),
    more: Option<Box<More>>,
}

#[derive(Debug, Default)]
struct More {
    /// Shared bodies and where in `buf` each belongs (offsets ascend).
    splices: Vec<(usize, Bytes)>,
    spliced_bytes: usize,
    /// As [`Outgoing::answered`], those after the first.
    answered: Vec<(u64, u64)>,
}

impl Outgoing {
    /// Notes that a request whose head was complete at `since_ns` is answered by what was appended so far.
    #[inline]
    pub fn note_answered(&mut self, since_ns: u64) {
        let later = self.more.as_mut().map(|more| &mut more.answered);
        match later.and_then(|later| later.last_mut()).unwrap_or(&mut self.answered) {
            (since, count) if *since == since_ns || *count == 0 => (*since, *count) = (since_ns, *count + 1),
            _ => self.more.get_or_insert_default().answered.push((since_ns, 1)),
        }
    }

    /// Records how long each answered request took, now that the last byte is out, and forgets them.
    #[inline]
    pub(crate) fn record_answered(&mut self, at_ns: u64, times: &Batched) {
        let (since, count) = std::mem::take(&mut self.answered);
        if count > 0 {
            times.record_many(at_ns.saturating_sub(since), count);
        }
        for (since, count) in self.more.iter_mut().flat_map(|more| more.answered.drain(..)) {
            times.record_many(at_ns.saturating_sub(since), count);
        }
    }

    /// Appends `body` without copying it.
    pub fn push_shared(&mut self, body: Bytes) {
        if !body.is_empty() {
            let more = self.more.get_or_insert_default();
            more.spliced_bytes += body.len();
            more.splices.push((self.buf.len(), body));
        }
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.buf.len() + self.more.as_ref().map_or(0, |more| more.spliced_bytes)
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether all bytes are in `buf`.
    pub fn is_contiguous(&self) -> bool {
        self.splices().is_empty()
    }

    /// Number of separate pieces, and so of vectors a send needs, at most.
    pub fn pieces(&self) -> usize {
        2 * self.splices().len() + 1
    }

    /// The non-empty pieces in order, without the first `skip` bytes.
    pub fn slices(&self, mut skip: usize) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        let ends = self.splices().iter().map(|(at, body)| (*at, &body[..])).chain([(self.buf.len(), &[][..])]);
        ends.flat_map(move |(at, body)| {
            let own = &self.buf[start..at];
            start = at;
            [own, body]
        })
        .filter_map(move |piece| {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            Some(&piece[skipped..]).filter(|rest| !rest.is_empty())
        })
    }

    fn splices(&self) -> &[(usize, Bytes)] {
        self.more.as_ref().map_or(&[], |more| &more.splices)
    }

    /// Empties it, keeping the buffer's memory.
    pub fn clear(&mut self) {
        self.buf.clear();
        self.is_continued = false;
        self.answered = (0, 0);
        if let Some(more) = &mut self.more {
            more.splices.clear();
            more.spliced_bytes = 0;
            more.answered.clear();
        }
    }
}

thread_local! {
    /// Spare buffers of this shard, warmest last.
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer, with capacity if the shard has one to spare.
pub fn take_buffer() -> Vec<u8> {
    SPARE.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Gives a buffer's memory to the shard for the next who needs one. Large ones are freed.
pub fn give_buffer(mut buffer: Vec<u8>) {
    if buffer.capacity() == 0 || buffer.capacity() > BUFFER_BYTES_KEPT_MAX {
        return;
    }
    buffer.clear();
    SPARE.with_borrow_mut(|spare| {
        if spare.len() < BUFFERS_KEPT_MAX {
            spare.push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Histogram;

    fn collect(out: &Outgoing, skip: usize) -> Vec<u8> {
        out.slices(skip).flatten().copied().collect()
    }

    #[test]
    fn outgoing_keeps_order_and_skips_anywhere() {
        let mut out = Outgoing::default();
        assert!(out.is_empty());
        out.push_shared(Bytes::from_static(b"ab"));
        out.buf.extend_from_slice(b"cde");
        out.push_shared(Bytes::from_static(b"f"));
        out.push_shared(Bytes::new());
        out.push_shared(Bytes::from_static(b"gh"));
        out.buf.extend_from_slice(b"i");
        let all = b"abcdefghi";
        assert_eq!(out.len(), all.len());
        for skip in 0..=all.len() {
            assert_eq!(collect(&out, skip), &all[skip..], "skip {skip}");
            assert!(out.slices(skip).count() <= out.pieces());
            assert!(out.slices(skip).all(|piece| !piece.is_empty()));
        }
        out.clear();
        assert!(out.is_empty() && out.is_contiguous());
    }

    #[test]
    fn answered_requests_are_timed_each_from_its_own_head() {
        let mut out = Outgoing::default();
        for since in [100, 100, 100, 500, 700, 700] {
            out.note_answered(since);
        }
        let (times, expected) = (Batched::default(), Histogram::default());
        out.record_answered(1_000, &times);
        expected.record_many(900, 3);
        expected.record(500);
        expected.record_many(300, 2);
        assert!(*times.all() == expected);
        out.record_answered(2_000, &times);
        assert_eq!(times.all().count(), 6, "each is recorded once");
        out.note_answered(1);
        out.note_answered(2);
        out.clear();
        out.record_answered(3_000, &times);
        assert_eq!(times.all().count(), 6, "cleared with the bytes");
    }

    #[test]
    fn buffers_are_reused_unless_large() {
        give_buffer(Vec::with_capacity(100));
        let again = take_buffer();
        assert!(again.capacity() >= 100 && again.is_empty());
        give_buffer(Vec::with_capacity(BUFFER_BYTES_KEPT_MAX + 1));
        assert_eq!(take_buffer().capacity(), 0);
    }
}
