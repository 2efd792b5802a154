//! A body that is compressed as it is read. Floor 4.
//!
//! Its reader sets the pace: nothing is taken from the source before what was compressed is taken from here. Dropping
//! it drops the source; a piece that is being compressed on the other thread is finished there and thrown away.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;

use super::{Permit, encoder::Encoder};
use crate::http::{Body, BodyError, Chunks, FieldPairs};
use crate::limits::{COMPRESS_ON_SHARD_BYTES_MAX, COMPRESS_PIECE_BYTES_MAX, COMPRESS_TURN_BYTES_MAX};
use crate::ring::Ring;

pub(super) struct Compressed {
    source: Body,
    state: State,
    /// Of the source's last chunk, what is not compressed yet.
    rest: Bytes,
    /// Bytes written since the last flush.
    unflushed_bytes: usize,
    /// Bytes compressed on the shard since others had a turn.
    turn_bytes: usize,
    _permit: Permit,
}

enum State {
    Here(Encoder),
    /// On the blocking thread.
    Away(Pin<Box<dyn Future<Output = Encoder>>>),
    Ended,
}

impl Compressed {
    pub(super) fn new(source: Body, encoder: Encoder, permit: Permit) -> Self {
        Compressed {
            source,
            state: State::Here(encoder),
            rest: Bytes::new(),
            unflushed_bytes: 0,
            turn_bytes: 0,
            _permit: permit,
        }
    }

    /// Puts out what was written, for a client that can wait no longer, or because it is enough at once.
    fn flush(&mut self) -> Option<Bytes> {
        let State::Here(encoder) = &mut self.state else { return None };
        if self.unflushed_bytes == 0 {
            return None;
        }
        self.unflushed_bytes = 0;
        encoder.flush();
        Some(encoder.take().into())
    }

    fn end(&mut self) -> Option<Vec<u8>> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Here(encoder) => Some(encoder.finish()),
            State::Away(_) | State::Ended => None,
        }
    }

    /// Writes the next piece, here or on the other thread.
    fn write_piece(&mut self, piece: Bytes) {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Here(mut encoder) if piece.len() <= COMPRESS_ON_SHARD_BYTES_MAX || !Ring::is_here() => {
                encoder.write(&piece);
                self.unflushed_bytes += piece.len();
                self.turn_bytes += piece.len();
                self.state = State::Here(encoder);
            }
            State::Here(mut encoder) => {
                self.unflushed_bytes = 0;
                let job = glommio::executor().spawn_blocking(move || {
                    encoder.write(&piece);
                    encoder.flush();
                    encoder
                });
                self.state = State::Away(Box::pin(job));
            }
            other => self.state = other,
        }
    }
}

impl Stream for Compressed {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                State::Ended => return Poll::Ready(None),
                State::Away(job) => {
                    let mut encoder = ready!(job.as_mut().poll(cx));
                    let output = encoder.take();
                    this.state = State::Here(encoder);
                    this.turn_bytes = 0;
                    return Poll::Ready(Some(Ok(output.into())));
                }
                State::Here(_) => {}
            }
            if this.unflushed_bytes >= COMPRESS_ON_SHARD_BYTES_MAX
                && let Some(output) = this.flush()
            {
                return Poll::Ready(Some(Ok(output)));
            }
            if this.turn_bytes >= COMPRESS_TURN_BYTES_MAX {
                this.turn_bytes = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if this.rest.is_empty() {
                match this.source.poll_chunk(cx) {
                    Poll::Ready(Some(Ok(chunk))) => this.rest = chunk,
                    Poll::Ready(Some(Err(error))) => {
                        this.state = State::Ended;
                        return Poll::Ready(Some(Err(error)));
                    }
                    Poll::Ready(None) => return Poll::Ready(this.end().map(|output| Ok(output.into()))),
                    Poll::Pending => {
                        // The source will wake us; until then the client is to have what there is.
                        this.turn_bytes = 0;
                        return this.flush().map_or(Poll::Pending, |output| Poll::Ready(Some(Ok(output))));
                    }
                }
            }
            let piece = this.rest.split_to(this.rest.len().min(COMPRESS_PIECE_BYTES_MAX));
            this.write_piece(piece);
        }
    }
}

impl Chunks for Compressed {
    fn trailers(mut self: Pin<&mut Self>) -> FieldPairs {
        self.source.trailers()
    }
}

impl fmt::Debug for Compressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compressed").field("source", &self.source).finish_non_exhaustive()
    }
}
