//! One encoder for both codings: bytes in, bytes out. Not for: when to flush. Floor 4.

use std::fmt;
use std::io::{self, Write};

use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;
use flate2::write::GzEncoder;

use super::Level;
use crate::http::Coding;
use crate::limits::{BROTLI_BUFFER_BYTES, BROTLI_WINDOW_BITS};

/// Whether an [`Encoder`] makes this coding.
pub(super) fn can_make(coding: Coding) -> bool {
    matches!(coding, Coding::Brotli | Coding::Gzip)
}

/// Compresses one body. Boxed, since it is moved between threads.
pub(super) enum Encoder {
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    Gzip(Box<GzEncoder<Vec<u8>>>),
}

impl Encoder {
    /// Of a coding that [can be made](can_make); gzip in place of others.
    pub(super) fn new(coding: Coding, level: Level) -> Self {
        match coding {
            Coding::Brotli => {
                let quality = match level {
                    Level::Fast => 2,
                    Level::Balanced => 3,
                    Level::Small => 5,
                };
                let params = BrotliEncoderParams { quality, lgwin: BROTLI_WINDOW_BITS, ..Default::default() };
                Encoder::Brotli(Box::new(CompressorWriter::with_params(Vec::new(), BROTLI_BUFFER_BYTES, &params)))
            }
            _ => {
                let level = match level {
                    Level::Fast => 2,
                    Level::Balanced => 5,
                    Level::Small => 9,
                };
                Encoder::Gzip(Box::new(GzEncoder::new(Vec::new(), flate2::Compression::new(level))))
            }
        }
    }

    pub(super) fn write(&mut self, input: &[u8]) {
        let written = match self {
            Encoder::Brotli(encoder) => encoder.write_all(input),
            Encoder::Gzip(encoder) => encoder.write_all(input),
        };
        into_memory(written);
    }

    /// Puts out all that was written so far, so that it can be decoded.
    pub(super) fn flush(&mut self) {
        let flushed = match self {
            Encoder::Brotli(encoder) => encoder.flush(),
            Encoder::Gzip(encoder) => encoder.flush(),
        };
        into_memory(flushed);
    }

    /// What it has put out since this was last called.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(match self {
            Encoder::Brotli(encoder) => encoder.get_mut(),
            Encoder::Gzip(encoder) => encoder.get_mut(),
        })
    }

    /// The rest, with the end.
    pub(super) fn finish(self) -> Vec<u8> {
        match self {
            Encoder::Brotli(encoder) => encoder.into_inner(),
            Encoder::Gzip(encoder) => into_memory(encoder.finish()),
        }
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Encoder::Brotli(_) => "Brotli",
            Encoder::Gzip(_) => "Gzip",
        })
    }
}

fn into_memory<T>(written: io::Result<T>) -> T {
    written.expect("a vector takes whatever is written to it")
}

/// All of a body at once.
pub(super) fn whole(coding: Coding, level: Level, input: &[u8]) -> Vec<u8> {
    let mut encoder = Encoder::new(coding, level);
    encoder.write(input);
    encoder.finish()
}
