//! Reading answers: an incremental, strict parser of HTTP/1.x responses. Floor 6, pure.
//!
//! For: finding where each answer ends, and its status. Not for: keeping heads or bodies; a body is shown piece
//! by piece and forgotten. A server sends the same head again and again, so the last one is kept and compared
//! before anything is parsed: a known head costs one `memcmp`, and nothing is allocated.

use crate::{
    http::{Chunk, ChunkedDecoder, ChunkedLimits, Reject},
    limits::{RESPONSE_HEAD_BYTES_MAX, RESPONSE_HEADERS_MAX},
};
use std::{fmt, mem::MaybeUninit};

/// One whole answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The final status code.
    pub status: u16,
    /// Whether the connection may carry another request.
    pub keep_alive: bool,
    /// Bytes of the body, chunk framing not counted.
    pub body_bytes: u64,
}

/// How far the parser got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The answer goes on after `consumed` bytes; give what follows them.
    More {
        /// Bytes not to be given again.
        consumed: usize,
    },
    /// The answer ended after `consumed` bytes.
    Done {
        /// Bytes up to the answer's end.
        consumed: usize,
        /// The answer.
        answer: Answer,
    },
}

/// Why bytes are no answer. The connection's framing is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// No `HTTP/1.x` status line and fields.
    Head(httparse::Error),
    /// More bytes than [`RESPONSE_HEAD_BYTES_MAX`].
    HeadTooLarge,
    /// A Content-Length that is no number.
    BadLength,
    /// More than one Content-Length.
    RepeatedLength,
    /// Both Content-Length and Transfer-Encoding.
    LengthAndCoding,
    /// Transfer-Encoding in an HTTP/1.0 answer.
    CodingInHttp10,
    /// `chunked` is named, but not as the last coding, or twice.
    BadCoding,
    /// An interim answer other than 100, 102 and 103.
    SwitchingProtocols,
    /// Bad chunked coding.
    Chunk(Reject),
    /// Bytes after the last answer that was asked for.
    Unasked,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Head(error) => write!(f, "expected an HTTP/1 response head: {error}"),
            Malformed::HeadTooLarge => write!(f, "expected a response head of at most {RESPONSE_HEAD_BYTES_MAX} bytes"),
            Malformed::BadLength => f.write_str("expected a decimal content-length"),
            Malformed::RepeatedLength => f.write_str("expected one content-length, got more"),
            Malformed::LengthAndCoding => f.write_str("expected content-length or transfer-encoding, got both"),
            Malformed::CodingInHttp10 => f.write_str("expected no transfer-encoding in HTTP/1.0"),
            Malformed::BadCoding => f.write_str("expected chunked as the last transfer coding, and once"),
            Malformed::SwitchingProtocols => f.write_str("expected a final status, got 101"),
            Malformed::Chunk(reject) => write!(f, "bad chunked coding: {reject}"),
            Malformed::Unasked => f.write_str("expected nothing after the answer, got more bytes"),
        }
    }
}

/// What a head says of the body, before the request's method and the status have their say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

#[derive(Clone, Copy, Debug)]
struct Meaning {
    status: u16,
    framing: Framing,
    keep_alive: bool,
}

#[derive(Debug)]
enum State {
    Head,
    Length { left: u64 },
    Chunked(ChunkedDecoder),
    UntilClose,
}

/// Reads the answers of one connection, one after the other.
#[derive(Debug)]
pub struct ResponseParser {
    state: State,
    /// The last final head, byte for byte, and what it meant.
    known_head: Vec<u8>,
    known: Meaning,
    /// Of the answer that is being read.
    status: u16,
    keep_alive: bool,
    body_bytes: u64,
}

impl Default for ResponseParser {
    fn default() -> Self {
        ResponseParser {
            state: State::Head,
            known_head: Vec::new(),
            known: Meaning { status: 0, framing: Framing::UntilClose, keep_alive: false },
            status: 0,
            keep_alive: false,
            body_bytes: 0,
        }
    }
}

impl ResponseParser {
    /// Looks at the start of `input`. `is_head`: the request was a HEAD. `see` is shown the body.
    ///
    /// # Errors
    /// The bytes are no answer.
    #[inline]
    pub fn parse(&mut self, input: &[u8], is_head: bool, mut see: impl FnMut(&[u8])) -> Result<Step, Malformed> {
        let mut at = 0;
        if matches!(self.state, State::Head) {
            match self.head(input)? {
                Some((len, meaning)) => {
                    at = len;
                    self.begin_body(meaning, is_head);
                }
                None => return Ok(Step::More { consumed: at }),
            }
        }
        loop {
            match &mut self.state {
                State::Head => unreachable!("a head was read"),
                State::Length { left } => {
                    let rest = &input[at..];
                    let take = usize::try_from(*left).map_or(rest.len(), |left| left.min(rest.len()));
                    if take > 0 {
                        see(&rest[..take]);
                    }
                    at += take;
                    self.body_bytes += take as u64;
                    *left -= take as u64;
                    if *left > 0 {
                        return Ok(Step::More { consumed: at });
                    }
                    return Ok(self.done(at));
                }
                State::Chunked(decoder) => match decoder.decode(&input[at..]).map_err(Malformed::Chunk)? {
                    Chunk::Need => return Ok(Step::More { consumed: at }),
                    Chunk::Skip { consumed } => at += consumed,
                    Chunk::Data { skip, len } => {
                        at += skip;
                        see(&input[at..at + len]);
                        at += len;
                        self.body_bytes += len as u64;
                    }
                    Chunk::End { consumed } => return Ok(self.done(at + consumed)),
                },
                State::UntilClose => {
                    if at < input.len() {
                        see(&input[at..]);
                    }
                    self.body_bytes += (input.len() - at) as u64;
                    return Ok(Step::More { consumed: input.len() });
                }
            }
        }
    }

    /// The peer ended the stream: the answer, if its body was to end so (RFC 9112 §6.3, case 8).
    pub fn finish(&mut self) -> Option<Answer> {
        match self.state {
            State::UntilClose => match self.done(0) {
                Step::Done { answer, .. } => Some(answer),
                Step::More { .. } => None,
            },
            _ => None,
        }
    }

    /// Whether no byte of a body is outstanding.
    pub fn is_between_answers(&self) -> bool {
        matches!(self.state, State::Head)
    }

    /// Forgets a half-read answer, for a new connection.
    pub fn reset(&mut self) {
        self.state = State::Head;
    }

    fn done(&mut self, consumed: usize) -> Step {
        self.state = State::Head;
        let answer = Answer { status: self.status, keep_alive: self.keep_alive, body_bytes: self.body_bytes };
        Step::Done { consumed, answer }
    }

    fn begin_body(&mut self, meaning: Meaning, is_head: bool) {
        self.status = meaning.status;
        self.body_bytes = 0;
        // RFC 9112 §6.3, cases 1 to 8.
        let framing = if is_head || matches!(meaning.status, 204 | 304) { Framing::Length(0) } else { meaning.framing };
        self.keep_alive = meaning.keep_alive && framing != Framing::UntilClose;
        self.state = match framing {
            Framing::Length(left) => State::Length { left },
            Framing::Chunked => State::Chunked(ChunkedDecoder::new(ChunkedLimits::default())),
            Framing::UntilClose => State::UntilClose,
        };
    }

    /// The next final head: its length, interim ones before it included. `None`: more bytes are needed.
    #[inline]
    fn head(&mut self, input: &[u8]) -> Result<Option<(usize, Meaning)>, Malformed> {
        // The same bytes up to the empty line mean the same.
        if !self.known_head.is_empty() && input.starts_with(&self.known_head) {
            return Ok(Some((self.known_head.len(), self.known)));
        }
        let mut at = 0;
        loop {
            let Some((len, meaning)) = parse_head(&input[at..])? else { return Ok(None) };
            match meaning.status {
                101 => return Err(Malformed::SwitchingProtocols),
                100..200 => at += len, // RFC 9110 §15.2: any number of interim answers may come first
                _ => {
                    self.known_head.clear();
                    self.known_head.extend_from_slice(&input[at..at + len]);
                    self.known = meaning;
                    return Ok(Some((at + len, meaning)));
                }
            }
        }
    }
}

fn parse_head(input: &[u8]) -> Result<Option<(usize, Meaning)>, Malformed> {
    let window = &input[..input.len().min(RESPONSE_HEAD_BYTES_MAX)];
    let mut fields = [const { MaybeUninit::uninit() }; RESPONSE_HEADERS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let parsed = config.parse_response_with_uninit_headers(&mut response, window, &mut fields);
    let len = match parsed.map_err(Malformed::Head)? {
        httparse::Status::Complete(len) => len,
        httparse::Status::Partial if window.len() == RESPONSE_HEAD_BYTES_MAX => return Err(Malformed::HeadTooLarge),
        httparse::Status::Partial => return Ok(None),
    };
    let is_http10 = response.version == Some(0);
    let status = response.code.expect("a whole status line");
    let mut length = None;
    let mut is_chunked = None;
    let (mut says_close, mut says_keep_alive) = (false, false);
    for field in response.headers.iter() {
        if field.name.eq_ignore_ascii_case("content-length") {
            // RFC 9112 §6.3, case 5: even equal repetitions may be taken for an error; we do.
            if length.replace(decimal(field.value).ok_or(Malformed::BadLength)?).is_some() {
                return Err(Malformed::RepeatedLength);
            }
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            for coding in field.value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
                if is_chunked == Some(true) {
                    return Err(Malformed::BadCoding);
                }
                is_chunked = Some(coding.eq_ignore_ascii_case(b"chunked"));
            }
        } else if field.name.eq_ignore_ascii_case("connection") {
            for option in field.value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
                says_close |= option.eq_ignore_ascii_case(b"close");
                says_keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
            }
        }
    }
    let framing = match (length, is_chunked) {
        (Some(_), Some(_)) => return Err(Malformed::LengthAndCoding),
        (None, Some(_)) if is_http10 => return Err(Malformed::CodingInHttp10),
        (None, Some(true)) => Framing::Chunked,
        (Some(length), None) => Framing::Length(length),
        (None, Some(false) | None) => Framing::UntilClose,
    };
    let keep_alive = !says_close && (!is_http10 || says_keep_alive);
    Ok(Some((len, Meaning { status, framing, keep_alive })))
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Status, keep-alive and body.
    type Read<B> = (u16, bool, B);

    /// What a stream of answers says, and how it ended.
    fn read(stream: &[u8], piece: usize, is_head: bool) -> (Vec<Read<Vec<u8>>>, Result<(), Malformed>) {
        let mut parser = ResponseParser::default();
        let (mut answers, mut body, mut buffer) = (Vec::new(), Vec::new(), Vec::new());
        for bytes in stream.chunks(piece.max(1)) {
            buffer.extend_from_slice(bytes);
            while !buffer.is_empty() {
                let step = parser.parse(&buffer, is_head, |part| body.extend_from_slice(part));
                match step {
                    Ok(Step::More { consumed }) => {
                        buffer.drain(..consumed);
                        break;
                    }
                    Ok(Step::Done { consumed, answer }) => {
                        buffer.drain(..consumed);
                        assert_eq!(answer.body_bytes, body.len() as u64);
                        answers.push((answer.status, answer.keep_alive, std::mem::take(&mut body)));
                    }
                    Err(error) => return (answers, Err(error)),
                }
            }
        }
        if let Some(answer) = parser.finish() {
            answers.push((answer.status, answer.keep_alive, body));
        }
        (answers, Ok(()))
    }

    #[track_caller]
    fn check(stream: &str, is_head: bool, expected: &[Read<&str>], end: Result<(), Malformed>) {
        for piece in 1..=stream.len() {
            let (answers, ended) = read(stream.as_bytes(), piece, is_head);
            let expected: Vec<_> = expected.iter().map(|(s, k, b)| (*s, *k, b.as_bytes().to_vec())).collect();
            assert_eq!(answers, expected, "{stream:?} in pieces of {piece}");
            assert_eq!(ended, end, "{stream:?} in pieces of {piece}");
        }
    }

    #[test]
    fn answer_ends_where_its_framing_says() {
        let cases: &[(&str, &[Read<&str>])] = &[
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", &[(200, true, "ok")]),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no", &[]),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", &[(200, true, "")]),
            ("HTTP/1.1 200\r\ncontent-length:1 \r\nConnection: x, Close\r\n\r\nx", &[(200, false, "x")]),
            ("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", &[(200, false, "x")]),
            ("HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: Keep-Alive\r\n\r\nx", &[(200, true, "x")]),
            ("HTTP/1.1 200 OK\r\n\r\nall of it", &[(200, false, "all of it")]),
            ("HTTP/1.1 200 OK\r\n\r\n", &[(200, false, "")]),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nzz", &[(200, false, "zz")]),
            ("HTTP/1.1 204 No Content\r\n\r\n", &[(204, true, "")]),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", &[(304, true, "")]),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: 1\r\n\r\n",
                &[(200, true, "abcde")],
            ),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 1\r\n\r\nx",
                &[(404, true, "x")],
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nbHTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
                &[(200, true, "a"), (200, true, "b"), (500, true, "")],
            ),
        ];
        for (stream, expected) in cases {
            check(stream, false, expected, Ok(()));
        }
    }

    #[test]
    fn answer_to_head_has_no_body() {
        let stream = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n";
        check(&stream.repeat(2), true, &[(200, true, ""), (200, true, "")], Ok(()));
        check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", true, &[(200, true, "")], Ok(()));
    }

    #[test]
    fn malformed_answer_says_why() {
        let cases = [
            ("HTTQ/1.1 200 OK\r\n\r\n", Malformed::Head(httparse::Error::Version)),
            ("HTTP/1.1 2x0 OK\r\n\r\n", Malformed::Head(httparse::Error::Status)),
            ("HTTP/1.1 200 OK\r\nA b: c\r\n\r\n", Malformed::Head(httparse::Error::HeaderName)),
            ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", Malformed::BadLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n", Malformed::BadLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n", Malformed::BadLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\n", Malformed::BadLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n", Malformed::BadLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", Malformed::RepeatedLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", Malformed::LengthAndCoding),
            ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Malformed::CodingInHttp10),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n", Malformed::BadCoding),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", Malformed::BadCoding),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n", Malformed::SwitchingProtocols),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx", Malformed::Chunk(Reject::BadChunkSize)),
        ];
        for (stream, error) in cases {
            check(stream, false, &[], Err(error));
            assert!(error.to_string().len() > 10);
        }
    }

    #[test]
    fn head_is_bounded() {
        let head = |bytes: usize| {
            let fixed = "HTTP/1.1 204 No Content\r\nX: \r\n\r\n".len();
            format!("HTTP/1.1 204 No Content\r\nX: {}\r\n\r\n", "v".repeat(bytes - fixed))
        };
        for (bytes, end) in [
            (RESPONSE_HEAD_BYTES_MAX - 1, Ok(())),
            (RESPONSE_HEAD_BYTES_MAX, Ok(())),
            (RESPONSE_HEAD_BYTES_MAX + 1, Err(Malformed::HeadTooLarge)),
        ] {
            assert_eq!(read(head(bytes).as_bytes(), usize::MAX, false).1, end, "{bytes} bytes");
        }
        for (fields, end) in [
            (RESPONSE_HEADERS_MAX, Ok(())),
            (RESPONSE_HEADERS_MAX + 1, Err(Malformed::Head(httparse::Error::TooManyHeaders))),
        ] {
            let stream = format!("HTTP/1.1 204 No Content\r\n{}\r\n", "X: y\r\n".repeat(fields));
            assert_eq!(read(stream.as_bytes(), usize::MAX, false).1, end, "{fields} fields");
        }
    }

    #[test]
    fn known_head_is_not_taken_for_a_longer_one() {
        // A prefix of the known head, and one that differs in its last field only.
        check(
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nbbbbbbbbbbb",
            false,
            &[(200, true, "a"), (200, true, "bbbbbbbbbbb")],
            Ok(()),
        );
    }

    #[test]
    fn stream_that_ends_inside_an_answer_is_no_answer() {
        for stream in [
            "HTTP/1.1 2",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na",
        ] {
            check(stream, false, &[], Ok(()));
        }
    }

    #[test]
    fn known_answer_allocates_nothing() {
        let stream = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 2\r\n\r\nok";
        let mut parser = ResponseParser::default();
        parser.parse(stream, false, |_| {}).unwrap();
        let counted = allocation_counter::measure(|| {
            for _ in 0..100 {
                parser.parse(stream, false, |_| {}).unwrap();
            }
        });
        assert_eq!(counted.count_total, 0);
    }
}
