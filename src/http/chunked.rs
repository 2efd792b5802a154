//! The chunked transfer coding, receiving side (RFC 9112 §7.1).
//!
//! For: finding the data in a chunked body, strictly and with bounds on all that is not data. Not for:
//! holding data. The sending side is [`encode_chunk_prefix`](super::encode_chunk_prefix). Floor 1.

use super::{FieldPairs, HeaderName, HeaderValue, Reject, semantics::trim};
use crate::limits;
use memchr::memchr;

/// Bounds on what surrounds the data.
#[derive(Clone, Debug)]
pub struct ChunkedLimits {
    /// Bytes of one chunk-size line, without its CRLF.
    pub line_bytes_max: usize,
    /// Bytes of all extensions of one body.
    pub extension_bytes_max: usize,
    /// Bytes of the trailer section.
    pub trailer_bytes_max: usize,
    /// Fields of the trailer section.
    pub trailers_max: usize,
}

impl Default for ChunkedLimits {
    fn default() -> ChunkedLimits {
        ChunkedLimits {
            line_bytes_max: limits::CHUNK_LINE_BYTES_MAX,
            extension_bytes_max: limits::CHUNK_EXTENSION_BYTES_MAX,
            trailer_bytes_max: limits::TRAILER_BYTES_MAX,
            trailers_max: limits::TRAILERS_MAX,
        }
    }
}

/// What was found at the start of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// The input was empty.
    Need,
    /// All of the input, `consumed` bytes, was framing; go on with the next.
    Skip {
        /// The input's length.
        consumed: usize,
    },
    /// After `skip` bytes of framing come `len` bytes of data; go on after them.
    Data {
        /// Bytes before the data.
        skip: usize,
        /// Bytes of data, at least one.
        len: usize,
    },
    /// The body ended after `consumed` bytes; the rest is the next request.
    End {
        /// Bytes up to the end of the trailer section.
        consumed: usize,
    },
}

/// Decodes one chunked body. Consumes what it is given, so nothing is read twice however small the pieces.
///
/// ```
/// use everycore::http::{Chunk, ChunkedDecoder, ChunkedLimits};
/// let mut decoder = ChunkedDecoder::new(ChunkedLimits::default());
/// assert_eq!(decoder.decode(b"5\r\nhello\r\n0\r\n\r\nGET"), Ok(Chunk::Data { skip: 3, len: 5 }));
/// assert_eq!(decoder.decode(b"\r\n0\r\n\r\nGET"), Ok(Chunk::End { consumed: 7 }));
/// ```
#[derive(Debug)]
pub struct ChunkedDecoder {
    limits: ChunkedLimits,
    state: State,
    line_bytes: usize,
    extension_bytes: usize,
    /// The trailer section as far as it came.
    trailer: Vec<u8>,
    trailers: FieldPairs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// At the first digit of a size, or after some.
    Size {
        size: u64,
        has_digit: bool,
    },
    /// After white space that only a `;` may follow.
    BeforeExtension {
        size: u64,
    },
    Extension {
        size: u64,
    },
    /// Between the CR and the LF of a size line.
    SizeLf {
        size: u64,
    },
    Data {
        remaining: u64,
    },
    DataCr,
    DataLf,
    Trailer {
        line_at: usize,
    },
    Ended,
}

impl State {
    const START: State = State::Size {
        size: 0,
        has_digit: false,
    };
}

impl ChunkedDecoder {
    /// A decoder at the start of a body.
    pub fn new(limits: ChunkedLimits) -> ChunkedDecoder {
        ChunkedDecoder {
            limits,
            state: State::START,
            line_bytes: 0,
            extension_bytes: 0,
            trailer: Vec::new(),
            trailers: FieldPairs::new(),
        }
    }

    /// Looks at the start of `input`, which follows what earlier calls consumed.
    ///
    /// After `Err` the connection's framing is lost: answer and close.
    pub fn decode(&mut self, input: &[u8]) -> Result<Chunk, Reject> {
        let mut at = 0;
        while at < input.len() {
            match self.state {
                State::Data { remaining } => {
                    let rest = input.len() - at;
                    let len =
                        usize::try_from(remaining).map_or(rest, |remaining| remaining.min(rest));
                    self.state = match remaining - len as u64 {
                        0 => State::DataCr,
                        remaining => State::Data { remaining },
                    };
                    return Ok(Chunk::Data { skip: at, len });
                }
                State::Trailer { line_at } => {
                    at += self.trailer_line(&input[at..], line_at)?;
                }
                State::Ended => break,
                _ => {
                    self.state = self.step(input[at])?;
                    at += 1;
                }
            }
        }
        Ok(match self.state {
            State::Ended => Chunk::End { consumed: at },
            _ if input.is_empty() => Chunk::Need,
            _ => Chunk::Skip { consumed: at },
        })
    }

    /// The trailer fields; taken out. Empty before the end.
    pub fn trailers(&mut self) -> FieldPairs {
        std::mem::take(&mut self.trailers)
    }

    /// One byte of framing outside the trailer section.
    fn step(&mut self, byte: u8) -> Result<State, Reject> {
        match (self.state, byte) {
            (State::Size { size, .. }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                self.count_line_byte()?;
                let digit = (byte as char).to_digit(16).expect("a hexadecimal digit");
                // Checked against the limit at each digit, so that it cannot overflow.
                match size * 16 + u64::from(digit) {
                    size if size > limits::BODY_BYTES_MAX => Err(Reject::BodyTooLarge),
                    size => Ok(State::Size {
                        size,
                        has_digit: true,
                    }),
                }
            }
            (
                State::Size {
                    size,
                    has_digit: true,
                }
                | State::Extension { size },
                b'\r',
            ) => Ok(State::SizeLf { size }),
            (
                State::Size {
                    size,
                    has_digit: true,
                }
                | State::BeforeExtension { size },
                b';',
            ) => {
                self.count_extension_byte()?;
                Ok(State::Extension { size })
            }
            // RFC 9112 §7.1.1: white space is allowed around `;`, so none may end the line before one.
            (
                State::Size {
                    size,
                    has_digit: true,
                }
                | State::BeforeExtension { size },
                b' ' | b'\t',
            ) => {
                self.count_extension_byte()?;
                Ok(State::BeforeExtension { size })
            }
            // Unknown extensions are ignored, but a control byte is how line ends are smuggled into them.
            (State::Extension { size }, b'\t' | b' '..=0x7e | 0x80..) => {
                self.count_extension_byte()?;
                Ok(State::Extension { size })
            }
            (State::Extension { .. }, _) => Err(Reject::BadChunkExtension),
            (State::SizeLf { size }, b'\n') => {
                self.line_bytes = 0;
                Ok(match size {
                    0 => State::Trailer { line_at: 0 },
                    remaining => State::Data { remaining },
                })
            }
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') => Ok(State::START),
            (State::DataCr | State::DataLf, _) => Err(Reject::BadChunkEnd),
            _ => Err(Reject::BadChunkSize),
        }
    }

    fn count_line_byte(&mut self) -> Result<(), Reject> {
        self.line_bytes += 1;
        if self.line_bytes > self.limits.line_bytes_max {
            Err(Reject::ChunkLineTooLong)
        } else {
            Ok(())
        }
    }

    fn count_extension_byte(&mut self) -> Result<(), Reject> {
        self.extension_bytes += 1;
        if self.extension_bytes > self.limits.extension_bytes_max {
            return Err(Reject::ChunkLineTooLong);
        }
        self.count_line_byte()
    }

    /// Takes the rest of a trailer line that began at `line_at`; returns how many bytes of `input` it took.
    fn trailer_line(&mut self, input: &[u8], line_at: usize) -> Result<usize, Reject> {
        let part = &input[..memchr(b'\n', input).map_or(input.len(), |at| at + 1)];
        if self.trailer.len() + part.len() > self.limits.trailer_bytes_max {
            return Err(Reject::TrailersTooLarge);
        }
        self.trailer.extend_from_slice(part);
        if part.ends_with(b"\n") {
            let line = &self.trailer[line_at..];
            let Some(line) = line.strip_suffix(b"\r\n") else {
                return Err(Reject::BadTrailer);
            };
            if line.is_empty() {
                self.state = State::Ended;
                self.trailer.clear();
            } else {
                let field = parse_trailer(line)?;
                if self.trailers.len() == self.limits.trailers_max {
                    return Err(Reject::TrailersTooLarge);
                }
                self.trailers.push(field);
                self.state = State::Trailer {
                    line_at: self.trailer.len(),
                };
            }
        }
        Ok(part.len())
    }
}

fn parse_trailer(line: &[u8]) -> Result<(HeaderName, HeaderValue), Reject> {
    let colon = memchr(b':', line).ok_or(Reject::BadTrailer)?;
    // `HeaderName` and `HeaderValue` refuse all that RFC 9110 §5 does: white space in names, control bytes.
    let name = HeaderName::from_bytes(&line[..colon]).map_err(|_| Reject::BadTrailer)?;
    let value =
        HeaderValue::from_bytes(trim(&line[colon + 1..])).map_err(|_| Reject::BadTrailer)?;
    // RFC 9110 §6.5.1: fields that frame or route have no place here.
    match name {
        http::header::CONTENT_LENGTH | http::header::TRANSFER_ENCODING | http::header::HOST => {
            Err(Reject::BadTrailer)
        }
        _ => Ok((name, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Data, trailers and what is left of the input, or the refusal.
    type Decoded = Result<(Vec<u8>, Vec<(String, String)>, Vec<u8>), Reject>;

    /// Feeds `input` in pieces of `piece` bytes; `None` if it ends before the body does.
    fn decode(input: &[u8], piece: usize, limits: &ChunkedLimits) -> Option<Decoded> {
        let mut decoder = ChunkedDecoder::new(limits.clone());
        let (mut data, mut at, mut end) = (Vec::new(), 0, 0);
        loop {
            match decoder.decode(&input[at..end]) {
                Err(reject) => return Some(Err(reject)),
                Ok(Chunk::Need) if end == input.len() => return None,
                Ok(Chunk::Need) => end = (end + piece).min(input.len()),
                Ok(Chunk::Skip { consumed }) => {
                    assert_eq!(consumed, end - at);
                    at = end;
                }
                Ok(Chunk::Data { skip, len }) => {
                    assert!(len > 0);
                    data.extend_from_slice(&input[at + skip..][..len]);
                    at += skip + len;
                }
                Ok(Chunk::End { consumed }) => {
                    let text = |value: &HeaderValue| {
                        String::from_utf8_lossy(value.as_bytes()).into_owned()
                    };
                    let trailers = decoder
                        .trailers()
                        .iter()
                        .map(|(n, v)| (n.to_string(), text(v)))
                        .collect();
                    return Some(Ok((data, trailers, input[at + consumed..].to_vec())));
                }
            }
        }
    }

    type Expected<'a> = Result<(&'a str, &'a [(&'a str, &'a str)]), Reject>;

    #[track_caller]
    fn check(input: impl AsRef<[u8]>, expected: Expected<'_>) {
        let input = input.as_ref();
        let shown = String::from_utf8_lossy(input);
        let limits = ChunkedLimits::default();
        let expected = expected.map(|(data, trailers)| {
            let trailers: Vec<_> = trailers
                .iter()
                .map(|(n, v)| (n.to_string(), v.to_string()))
                .collect();
            (data.as_bytes().to_vec(), trailers, Vec::new())
        });
        for piece in [1, 2, 3, 7, usize::MAX / 2] {
            assert_eq!(
                decode(input, piece, &limits),
                Some(expected.clone()),
                "{shown:?} by {piece}"
            );
        }
        if let Ok((data, trailers, _)) = expected {
            for end in 0..input.len() {
                assert_eq!(
                    decode(&input[..end], 1, &limits),
                    None,
                    "{shown:?} up to {end}"
                );
            }
            let rest = b"GET /yo".to_vec();
            let more = [input, &rest].concat();
            assert_eq!(
                decode(&more, more.len(), &limits),
                Some(Ok((data, trailers, rest))),
                "{shown:?} and more"
            );
        }
    }

    #[test]
    fn chunks_are_joined() {
        check("0\r\n\r\n", Ok(("", &[])));
        check("5\r\nhello\r\n0\r\n\r\n", Ok(("hello", &[])));
        check("00005\r\nhello\r\n000\r\n\r\n", Ok(("hello", &[])));
        check(
            "A\r\n0123456789\r\na\r\nabcdefghij\r\n0\r\n\r\n",
            Ok(("0123456789abcdefghij", &[])),
        );
        check(
            "10\r\n0123456789abcdef\r\n0\r\n\r\n",
            Ok(("0123456789abcdef", &[])),
        );
        check(
            "7\r\n0\r\n\r\n\r\n\r\n0\r\n\r\n",
            Ok(("0\r\n\r\n\r\n", &[])),
        );
        check("5;a=b\r\nhello\r\n0;c=d\r\n\r\n", Ok(("hello", &[])));
        check("5 ; a = b\r\nhello\r\n0\t;c\r\n\r\n", Ok(("hello", &[])));
        check(
            "5;a=\"b;\\\"c\u{e9}\"\r\nhello\r\n0\r\n\r\n",
            Ok(("hello", &[])),
        );
        check(
            "1\r\nx\r\n0\r\nX-Sum: 1\r\nx-b:\t2 \r\n\r\n",
            Ok(("x", &[("x-sum", "1"), ("x-b", "2")])),
        );
        check("0\r\nA:\r\n\r\n", Ok(("", &[("a", "")])));
    }

    #[test]
    fn broken_framing_is_refused() {
        use Reject::*;
        for size in [
            "",
            " 5",
            "+5",
            "-5",
            "0x5",
            "5x",
            "g",
            "5 ",
            "5\t",
            "5 x",
            "5,",
            "5\n",
            "\n",
            "5\0",
            "\u{665}",
            "5_0",
            "5h",
            "5\r\r",
            "5\r\r;ABCD",
            "5\rX",
            "\r",
            "5 \r",
        ] {
            check(format!("{size}\r\nhello\r\n0\r\n\r\n"), Err(BadChunkSize));
        }
        for size in [
            "FFFFFFFFFFFFFFFF",
            "7FFFFFFFFFFFFFFF",
            "4000000000001",
            "10000000000000000",
            &"f".repeat(200),
        ] {
            check(format!("{size}\r\nhello\r\n0\r\n\r\n"), Err(BodyTooLarge));
        }
        for extension in [";\n", ";a\n", ";a\0", ";\x0b", ";a=\x7f"] {
            check(
                format!("5{extension}\r\nhello\r\n0\r\n\r\n"),
                Err(BadChunkExtension),
            );
        }
        check("5;a\rX\r\nhello\r\n0\r\n\r\n", Err(BadChunkSize));
        for data in [
            "hello0\r\n\r\n",
            "helloo\r\n0\r\n\r\n",
            "hello\n0\r\n\r\n",
            "hello\rX0\r\n\r\n",
            "hello\r\r\n0\r\n\r\n",
        ] {
            check(format!("5\r\n{data}"), Err(BadChunkEnd));
        }
        for trailer in [
            "Content-Length: 37",
            "transfer-encoding: chunked",
            "HOST: x",
            "X",
            ": x",
            "X : 1",
            " X: 1",
            "X: 1\r\n 2",
            "X: a\0",
            "X: a\rb",
            "X: 1\nY: 2",
            "X: 1\n",
            "\n",
            "\rX",
            "X: \x0c1",
            "GET / HTTP/1.1",
        ] {
            check(format!("0\r\n{trailer}\r\n\r\n"), Err(BadTrailer));
        }
        check("zz\r\n\r\n", Err(BadChunkSize));
        check("5\r\nhello\r\n\r\n0\r\n\r\n", Err(BadChunkSize));
    }

    #[test]
    fn limits_hold_to_the_byte() {
        let limits = ChunkedLimits {
            line_bytes_max: 8,
            extension_bytes_max: 12,
            trailer_bytes_max: 20,
            trailers_max: 2,
        };
        let check = |input: String, expected: Option<Reject>| {
            for piece in [1, input.len()] {
                let got = decode(input.as_bytes(), piece, &limits)
                    .expect("complete")
                    .err();
                assert_eq!(got, expected, "{input:?} by {piece}");
            }
        };
        let line = Some(Reject::ChunkLineTooLong);
        for (bytes, refused) in [(7, None), (8, None), (9, line)] {
            check(
                format!("{}5\r\nhello\r\n0\r\n\r\n", "0".repeat(bytes - 1)),
                refused,
            );
            check(
                format!("5;{}\r\nhello\r\n0\r\n\r\n", "e".repeat(bytes - 2)),
                refused,
            );
            check(format!("0{};\r\n\r\n", " ".repeat(bytes - 2)), refused);
        }
        for (bytes, refused) in [(5, None), (6, None), (7, line)] {
            check(
                format!("1;eeeee\r\nx\r\n0;{}\r\n\r\n", "e".repeat(bytes - 1)),
                refused,
            );
        }
        let trailers = Some(Reject::TrailersTooLarge);
        for (bytes, refused) in [(19, None), (20, None), (21, trailers)] {
            check(
                format!("0\r\nX: {}\r\n\r\n", "v".repeat(bytes - 7)),
                refused,
            );
        }
        for (fields, refused) in [(1, None), (2, None), (3, trailers)] {
            check(format!("0\r\n{}\r\n", "X:\r\n".repeat(fields)), refused);
        }
        let endless = format!("0\r\n{}", "v".repeat(100));
        assert_eq!(
            decode(endless.as_bytes(), 1, &limits),
            Some(Err(Reject::TrailersTooLarge))
        );
    }

    #[test]
    fn trailers_are_kept_apart_until_asked_for() {
        let mut decoder = ChunkedDecoder::new(ChunkedLimits::default());
        assert_eq!(
            decoder.decode(b"0\r\nA: 1\r\n"),
            Ok(Chunk::Skip { consumed: 9 })
        );
        assert_eq!(decoder.decode(b"\r\nGET"), Ok(Chunk::End { consumed: 2 }));
        assert_eq!(decoder.decode(b"GET"), Ok(Chunk::End { consumed: 0 }));
        assert_eq!(decoder.trailers().len(), 1);
        assert!(decoder.trailers().is_empty());
    }
}
