//! A request body while it arrives: its framing, its reader, its pace. Reads nothing itself. Floor 5.

use crate::{
    http::{Body, Chunk, ChunkedDecoder, ChunkedLimits, Feed, FieldPairs, Framing, Head, Reject},
    limits::{BODY_READ_BYTES_MAX, DISCARD_BYTES_MAX},
    service::pace::Pace,
};

/// A request body on its way to its reader.
pub(super) struct Incoming {
    pub(super) feed: Feed,
    decoder: Decoder,
    /// `100 Continue` is owed once the body is wanted (RFC 9110 §10.1.1).
    pub(super) owes_continue: bool,
    pub(super) pace: Pace,
}

enum Decoder {
    Length(u64),
    Chunked(Box<ChunkedDecoder>),
}

impl Incoming {
    /// The body that `head` announces, and its reader's end.
    pub(super) fn new(head: &Head, now: u64) -> (Self, Body) {
        let (decoder, length) = match head.framing() {
            Framing::Length(length) => (Decoder::Length(length), Some(length)),
            _ => (Decoder::Chunked(Box::new(ChunkedDecoder::new(ChunkedLimits::default()))), None),
        };
        let (feed, body) = Feed::new(length);
        let owes_continue = head.expect_continue();
        (Incoming { feed, decoder, owes_continue, pace: Pace::new(now) }, body)
    }

    /// What the next bytes of `input` mean: how many were used, and of those which are the body's.
    pub(super) fn decode(&mut self, input: &[u8]) -> Result<Decoded, Reject> {
        match &mut self.decoder {
            Decoder::Length(remaining) => {
                let len = (*remaining).min(input.len().min(BODY_READ_BYTES_MAX) as u64) as usize;
                *remaining -= len as u64;
                Ok(Decoded { used: len, data: 0..len, is_end: *remaining == 0 })
            }
            Decoder::Chunked(decoder) => Ok(match decoder.decode(input)? {
                Chunk::Need => Decoded { used: 0, data: 0..0, is_end: false },
                Chunk::Skip { consumed } => Decoded { used: consumed, data: 0..0, is_end: false },
                Chunk::Data { skip, len } => Decoded { used: skip + len, data: skip..skip + len, is_end: false },
                Chunk::End { consumed } => Decoded { used: consumed, data: 0..0, is_end: true },
            }),
        }
    }

    /// Whether what is left of it is worth reading only to throw it away.
    pub(super) fn is_discardable(&self) -> bool {
        match self.decoder {
            _ if self.owes_continue => false, // the client may or may not send it
            Decoder::Length(remaining) => remaining <= DISCARD_BYTES_MAX as u64,
            Decoder::Chunked(_) => true, // as far as the budget goes
        }
    }

    pub(super) fn trailers(&mut self) -> FieldPairs {
        match &mut self.decoder {
            Decoder::Length(_) => FieldPairs::new(),
            Decoder::Chunked(decoder) => decoder.trailers(),
        }
    }
}

/// What a piece of the input is.
pub(super) struct Decoded {
    /// Bytes that are done with.
    pub(super) used: usize,
    /// Which of them are the body's.
    pub(super) data: std::ops::Range<usize>,
    /// Whether the body ends there.
    pub(super) is_end: bool,
}
