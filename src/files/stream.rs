//! A body from a file. What is known to be in the kernel's page cache is sent from there, uncopied; the rest is read while
//! it is sent: one piece is read ahead while the one before it is on its way.

use super::{
    disk::{Handle, Reading},
    resident::{Resident, units},
};
use crate::{
    http::{Body, BodyError, Chunks},
    limits::{FILE_LOOK_BYTES, FILE_SEND_BYTES},
    stats::{Count, Counters},
};
use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    io,
    ops::Range,
    os::fd::{AsFd, BorrowedFd},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

/// A piece of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(Bytes),
    /// These bytes of the file.
    File(Range<u64>),
}

impl Piece {
    fn len(&self) -> u64 {
        match self {
            Piece::Text(text) => text.len() as u64,
            Piece::File(range) => range.end - range.start,
        }
    }
}

/// An open file, and who is told if it turns out shorter than it was.
pub(super) struct Source {
    pub(super) handle: Handle,
    pub(super) resident: Rc<Resident>,
    pub(super) counters: Rc<Counters>,
}

impl Source {
    /// The body made of these pieces. A file that shrinks meanwhile breaks it off, which closes the connection; of one
    /// that grows only what was announced is sent.
    pub(super) fn body(self, pieces: impl IntoIterator<Item = Piece>) -> Body {
        let pieces: VecDeque<_> = pieces.into_iter().filter(|piece| piece.len() > 0).collect();
        let len = pieces.iter().map(Piece::len).sum();
        let mut stream = FileStream { source: self, pieces, reading: None, sent: [Bytes::new(), Bytes::new()] };
        stream.read_ahead();
        Body::chunks(Some(len), stream)
    }

    /// How many bytes of this range, from its start, can be sent without waiting for the disk.
    fn cached(&self, range: &Range<u64>) -> u64 {
        let Some(now_ms) = self.handle.now_ms() else { return 0 };
        let until = range.end.min(range.start + FILE_SEND_BYTES as u64);
        // Memory may have become short since: what was read together is dropped together.
        let known = self.resident.known(range.start..until, now_ms);
        let mut looks = (range.start..range.start + known).step_by(FILE_LOOK_BYTES as usize);
        looks.find(|at| !self.handle.is_cached(*at)).map_or(known, |gone| gone - range.start)
    }

    /// The file's bytes in this range were read, or sent.
    fn note_cached(&self, range: Range<u64>) {
        if let Some(now_ms) = self.handle.now_ms() {
            self.resident.note(range, now_ms);
        }
    }

    /// Whether it is worth a look, whether this range can be sent without being read.
    fn is_known(&self, range: &Range<u64>) -> bool {
        self.handle.now_ms().is_some_and(|now_ms| self.resident.known(range.start..range.end, now_ms) > 0)
    }
}

struct FileStream {
    source: Source,
    /// What is still to be given out; of a file's piece, what no reading was begun for.
    pieces: VecDeque<Piece>,
    /// The bytes that come before `pieces`.
    reading: Option<Reading>,
    /// What was given out last: its memory is used again, if nobody has it any more.
    sent: [Bytes; 2],
}

impl FileStream {
    /// Begins to read the next piece, if it is the file's, none is being read, and it may have to be.
    fn read_ahead(&mut self) {
        if let Some(Piece::File(range)) = self.pieces.front()
            && !self.source.is_known(range)
        {
            self.read();
        }
    }

    /// Begins to read the next piece, if it is the file's and none is being read.
    fn read(&mut self) {
        let Some(Piece::File(range)) = self.pieces.front() else { return };
        if self.reading.is_none() {
            let unit = units(range.clone()).next().expect("pieces are not empty");
            let buffer = self.buffer((unit.end - unit.start) as usize);
            self.reading = Some(self.source.handle.read(unit.start, buffer));
        }
    }

    /// An empty buffer with room for `len` bytes and no more.
    fn buffer(&mut self, len: usize) -> BytesMut {
        for sent in &mut self.sent {
            match std::mem::take(sent).try_into_mut() {
                Ok(mut buffer) if buffer.capacity() == len => {
                    buffer.clear();
                    return buffer;
                }
                Ok(_) => {}
                Err(shared) => *sent = shared,
            }
        }
        BytesMut::with_capacity(len)
    }

    fn break_off(&mut self) {
        self.pieces.clear();
        self.source.counters.files.broken_off.add(1);
    }

    /// So many bytes of the file's piece at the front are done with.
    fn advance(&mut self, count: usize) {
        if let Some(Piece::File(range)) = self.pieces.front_mut() {
            range.start += count as u64;
            if range.start >= range.end {
                self.pieces.pop_front();
            }
        }
    }

    /// Takes what a reading brought out of the piece it was for.
    fn take_read(&mut self, result: io::Result<usize>, buffer: BytesMut) -> Result<Bytes, BodyError> {
        let Some(Piece::File(range)) = self.pieces.front() else { unreachable!("a reading is for the first piece") };
        let read = result.map_err(|error| BodyError::Other(Box::new(error)))?;
        if read == 0 {
            return Err(BodyError::WrongLength); // it has become shorter
        }
        self.source.note_cached(range.start..range.start + read as u64);
        self.advance(read);
        let bytes = buffer.freeze();
        self.sent.swap(0, 1);
        self.sent[1] = bytes.clone();
        self.read_ahead();
        Ok(bytes)
    }
}

impl Stream for FileStream {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        this.read();
        if let Some(reading) = &mut this.reading {
            let (result, buffer) = ready!(Pin::new(reading).poll(cx));
            this.reading = None;
            let taken = this.take_read(result, buffer);
            if taken.is_err() {
                this.break_off();
            }
            return Poll::Ready(Some(taken));
        }
        match this.pieces.pop_front() {
            Some(Piece::Text(text)) => {
                this.read_ahead();
                Poll::Ready(Some(Ok(text)))
            }
            Some(Piece::File(_)) => unreachable!("a file's piece at the front is being read"),
            None => Poll::Ready(None),
        }
    }
}

impl Chunks for FileStream {
    fn in_file(self: Pin<&mut Self>) -> Option<(BorrowedFd<'_>, Range<u64>)> {
        let this = self.get_mut();
        let (None, Some(Piece::File(range))) = (&this.reading, this.pieces.front()) else { return None };
        let end = range.start + this.source.cached(range);
        (end > range.start).then(|| (this.source.handle.as_fd(), range.start..end))
    }

    fn sent_from_file(self: Pin<&mut Self>, count: usize) -> Result<(), BodyError> {
        let this = self.get_mut();
        let Some(Piece::File(range)) = this.pieces.front() else { unreachable!("they were in a file") };
        if count == 0 {
            this.break_off();
            return Err(BodyError::WrongLength); // it has become shorter
        }
        this.source.note_cached(range.start..range.start + count as u64);
        this.source.counters.files.sent_uncopied.add(count as u64);
        this.advance(count);
        this.read_ahead();
        Ok(())
    }
}

impl fmt::Debug for FileStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStream").field("pieces", &self.pieces).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// A file may shrink between the look at it and the sending: the kernel then sends nothing.
    #[test]
    fn file_that_ends_where_it_was_to_be_sent_breaks_the_body_off() {
        let file = File::open("/dev/null").expect("Linux has one");
        let counters = Rc::new(Counters::default());
        let handle = Handle::Blocking(Rc::new(file.into()));
        let source = Source { handle, resident: Rc::new(Resident::new(10)), counters: counters.clone() };
        let pieces = [Piece::File(0..10), Piece::Text(Bytes::from_static(b"end"))].into();
        let mut stream = FileStream { source, pieces, reading: None, sent: Default::default() };
        assert!(matches!(Pin::new(&mut stream).sent_from_file(0), Err(BodyError::WrongLength)));
        assert_eq!((counters.files.broken_off.get(), counters.files.sent_uncopied.get()), (1, 0));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(matches!(Pin::new(&mut stream).poll_next(&mut cx), Poll::Ready(None)), "nothing follows");
    }
}
