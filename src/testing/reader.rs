//! Reads answers, strictly: the client's half of HTTP/1 (RFC 9112). Imports from floor 1.

use crate::{
    http::{Chunk, ChunkedDecoder, ChunkedLimits, FieldPairs, HeaderMap, HeaderName, HeaderValue, Method, StatusCode},
    limits::HEADERS_MAX,
};
use bytes::Bytes;

/// The head of an answer.
#[derive(Default)]
pub(super) struct AnswerHead {
    pub(super) status: StatusCode,
    pub(super) fields: HeaderMap,
    pub(super) closes: bool,
}

/// The head at the start of `input` and its length; `None` while it is not whole.
pub(super) fn read_head(input: &[u8]) -> Result<Option<(AnswerHead, usize)>, String> {
    let mut slots = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Response::new(&mut slots);
    let len = match parsed.parse(input) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(format!("the head of an answer is malformed: {error}")),
    };
    let mut fields = HeaderMap::new();
    for field in parsed.headers.iter() {
        let name = HeaderName::try_from(field.name).map_err(|error| error.to_string())?;
        fields.append(name, HeaderValue::from_bytes(field.value).map_err(|error| error.to_string())?);
    }
    let status = StatusCode::from_u16(parsed.code.unwrap_or_default()).map_err(|error| error.to_string())?;
    let closes = fields.get_all("connection").iter().any(|value| value.as_bytes().eq_ignore_ascii_case(b"close"));
    Ok(Some((AnswerHead { status, fields, closes }, len)))
}

/// What is still to come of an answer's body.
pub(super) enum BodyReader {
    Length(u64),
    Chunked(Box<ChunkedDecoder>),
    UntilClose,
    Ended,
}

impl BodyReader {
    /// RFC 9112 §6.3, from the client's side.
    pub(super) fn new(head: &AnswerHead, method: &Method) -> Result<Self, String> {
        let lengths: Vec<_> = head.fields.get_all("content-length").iter().collect();
        let codings: Vec<_> = head.fields.get_all("transfer-encoding").iter().collect();
        if *method == Method::HEAD || matches!(head.status.as_u16(), 100..200 | 204 | 304) {
            return Ok(BodyReader::Ended);
        }
        match (&codings[..], &lengths[..]) {
            ([], []) => Ok(BodyReader::UntilClose),
            ([], [length]) => match length.to_str().ok().and_then(|length| length.parse().ok()) {
                Some(0) => Ok(BodyReader::Ended),
                Some(length) => Ok(BodyReader::Length(length)),
                None => Err(format!("the answer has the length {length:?}")),
            },
            ([coding], []) if *coding == "chunked" => {
                Ok(BodyReader::Chunked(Box::new(ChunkedDecoder::new(ChunkedLimits::default()))))
            }
            _ => Err("the answer is framed in two ways".into()),
        }
    }

    pub(super) fn is_ended(&self) -> bool {
        matches!(self, BodyReader::Ended)
    }

    /// Takes the next piece from the start of `input`. `None`: none is there (yet, unless the body ended).
    pub(super) fn read(
        &mut self,
        input: &mut Vec<u8>,
        is_closed: bool,
        trailers: &mut FieldPairs,
    ) -> Result<Option<Bytes>, String> {
        match self {
            BodyReader::Ended => Ok(None),
            BodyReader::UntilClose if input.is_empty() => {
                if is_closed {
                    *self = BodyReader::Ended;
                }
                Ok(None)
            }
            BodyReader::UntilClose => Ok(Some(take(input, usize::MAX))),
            BodyReader::Length(_) if input.is_empty() => Ok(None),
            BodyReader::Length(left) => {
                let len = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                *left -= len as u64;
                if *left == 0 {
                    *self = BodyReader::Ended;
                }
                Ok(Some(take(input, len)))
            }
            BodyReader::Chunked(decoder) => match decoder.decode(input).map_err(|reject| reject.to_string())? {
                Chunk::Need => Ok(None),
                Chunk::Skip { consumed } => {
                    take(input, consumed);
                    Ok(None)
                }
                Chunk::Data { skip, len } => {
                    take(input, skip);
                    Ok(Some(take(input, len)))
                }
                Chunk::End { consumed } => {
                    take(input, consumed);
                    *trailers = decoder.trailers();
                    *self = BodyReader::Ended;
                    Ok(None)
                }
            },
        }
    }
}

/// The first `len` bytes, or all, out of `input`.
fn take(input: &mut Vec<u8>, len: usize) -> Bytes {
    let rest = input.split_off(len.min(input.len()));
    Bytes::from(std::mem::replace(input, rest))
}
