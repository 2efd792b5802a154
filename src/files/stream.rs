//! A body that is read from a file while it is sent: one piece is read ahead while the one before it is on its way.

use super::disk::{Handle, Reading};
use crate::{
    http::{Body, BodyError},
    limits::FILE_READ_BYTES,
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
        Body::sized_stream(len, stream)
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
    /// Begins to read the next piece, if it is the file's and none is being read.
    fn read_ahead(&mut self) {
        let Some(Piece::File(range)) = self.pieces.front() else { return };
        if self.reading.is_none() {
            let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX).min(FILE_READ_BYTES);
            let start = range.start;
            let buffer = self.buffer(len);
            self.reading = Some(self.source.handle.read(start, buffer));
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

    /// Takes what a reading brought out of the piece it was for.
    fn take_read(&mut self, result: io::Result<usize>, buffer: BytesMut) -> Result<Bytes, BodyError> {
        let Some(Piece::File(range)) = self.pieces.front_mut() else {
            unreachable!("a reading is for the first piece")
        };
        let read = result.map_err(|error| BodyError::Other(Box::new(error)))?;
        if read == 0 {
            return Err(BodyError::WrongLength); // it has become shorter
        }
        range.start += read as u64;
        if range.start >= range.end {
            self.pieces.pop_front();
        }
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
        if let Some(reading) = &mut this.reading {
            let (result, buffer) = ready!(Pin::new(reading).poll(cx));
            this.reading = None;
            let taken = this.take_read(result, buffer);
            if taken.is_err() {
                this.pieces.clear();
                this.source.counters.files.broken_off.add(1);
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

impl fmt::Debug for FileStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStream").field("pieces", &self.pieces).finish_non_exhaustive()
    }
}
