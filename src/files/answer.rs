//! From a file and a request's conditions to the answer: which status, which fields, which parts of the file.

use super::{
    ready::Ready,
    stream::{Piece, Source},
};
use crate::{
    Response,
    http::{Body, Conditions, HeaderValue, Method, Selected, StatusCode, Verdict, header, select_ranges},
    limits::RANGES_MAX,
};
use bytes::{Bytes, BytesMut};
use std::{fmt::Write, ops::Range};

/// How a request for a file is to be answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// 304
    Unchanged,
    /// 412
    Failed,
    /// 416
    OutOfRange,
    /// The head of a 200.
    Head,
    /// 200
    Whole,
    /// 206
    Part(Range<u64>),
    /// 206, as multipart/byteranges
    Parts(Vec<Range<u64>>),
}

impl Plan {
    pub(super) fn of(ready: &Ready, conditions: &Conditions<'_>, method: &Method) -> Self {
        match conditions.evaluate(ready.validators()) {
            Verdict::NotModified => return Plan::Unchanged,
            Verdict::Failed => return Plan::Failed,
            Verdict::Proceed if *method == Method::HEAD => return Plan::Head,
            Verdict::Proceed => {}
        }
        let Some(range) = conditions.range(ready.validators()) else { return Plan::Whole };
        match select_ranges(range, ready.stamp.size) {
            Selected::Whole => Plan::Whole,
            Selected::Nothing => Plan::OutOfRange,
            Selected::One(range) => Plan::Part(range),
            Selected::Several(ranges) => Plan::Parts(ranges),
        }
    }

    /// Whether the answer has contents of the file.
    pub(super) fn needs_content(&self) -> bool {
        matches!(self, Plan::Whole | Plan::Part(_) | Plan::Parts(_))
    }
}

/// An answer without contents.
pub(super) fn bare(ready: &Ready, plan: &Plan) -> Response {
    let size = ready.stamp.size;
    match plan {
        Plan::Unchanged => Response::ready(StatusCode::NOT_MODIFIED, &ready.unchanged, Body::empty()),
        Plan::Failed => Response::from(StatusCode::PRECONDITION_FAILED),
        Plan::OutOfRange => Response::from(StatusCode::RANGE_NOT_SATISFIABLE)
            .with_header(header::CONTENT_RANGE, format!("bytes */{size}")),
        _ => Response::ready(StatusCode::OK, &ready.fields, Body::empty()).with_stated_length(size),
    }
}

/// An answer from contents in memory. The whole costs no allocation.
pub(super) fn from_memory(ready: &Ready, content: &Bytes, plan: Plan, boundary: impl FnOnce() -> u64) -> Response {
    let slice = |range: &Range<u64>| content.slice(range.start as usize..range.end as usize);
    match plan {
        Plan::Whole => Response::ready(StatusCode::OK, &ready.fields, Body::from(content.clone())),
        Plan::Part(range) => part(ready, &range, Body::from(slice(&range))),
        Plan::Parts(ranges) => {
            let (media_type, pieces) = multipart(ready, &ranges, boundary());
            let mut body = BytesMut::new();
            for piece in pieces {
                match piece {
                    Piece::Text(text) => body.extend_from_slice(&text),
                    Piece::File(range) => body.extend_from_slice(&slice(&range)),
                }
            }
            parts(ready, media_type, Body::from(body.freeze()))
        }
        plan => bare(ready, &plan),
    }
}

/// An answer that is read while it is sent.
pub(super) fn from_disk(ready: &Ready, source: Source, plan: Plan, boundary: impl FnOnce() -> u64) -> Response {
    match plan {
        Plan::Whole => {
            let body = source.body([Piece::File(0..ready.stamp.size)]);
            Response::ready(StatusCode::OK, &ready.fields, body)
        }
        Plan::Part(range) => part(ready, &range, source.body([Piece::File(range.clone())])),
        Plan::Parts(ranges) => {
            let (media_type, pieces) = multipart(ready, &ranges, boundary());
            parts(ready, media_type, source.body(pieces))
        }
        plan => bare(ready, &plan),
    }
}

fn content_range(range: &Range<u64>, size: u64) -> String {
    format!("bytes {}-{}/{size}", range.start, range.end - 1)
}

fn part(ready: &Ready, range: &Range<u64>, body: Body) -> Response {
    Response::ready(StatusCode::PARTIAL_CONTENT, &ready.fields, body)
        .with_header(header::CONTENT_RANGE, content_range(range, ready.stamp.size))
}

fn parts(ready: &Ready, media_type: HeaderValue, body: Body) -> Response {
    Response::ready(StatusCode::PARTIAL_CONTENT, &ready.fields, body).with_header(header::CONTENT_TYPE, media_type)
}

/// RFC 9110 §14.6. The boundary is none that a file's maker could foresee.
fn multipart(ready: &Ready, ranges: &[Range<u64>], boundary: u64) -> (HeaderValue, Vec<Piece>) {
    debug_assert!(ranges.len() <= RANGES_MAX);
    let mut pieces = Vec::with_capacity(2 * ranges.len() + 1);
    for (at, range) in ranges.iter().enumerate() {
        let mut head = BytesMut::new();
        let before = if at == 0 { "" } else { "\r\n" };
        let range_value = content_range(range, ready.stamp.size);
        write!(head, "{before}--{boundary:016x}\r\nContent-Type: ").expect("memory takes all");
        head.extend_from_slice(ready.media_type.as_bytes());
        write!(head, "\r\nContent-Range: {range_value}\r\n\r\n").expect("memory takes all");
        pieces.push(Piece::Text(head.freeze()));
        pieces.push(Piece::File(range.clone()));
    }
    pieces.push(Piece::Text(Bytes::from(format!("\r\n--{boundary:016x}--\r\n"))));
    let media_type = format!("multipart/byteranges; boundary={boundary:016x}");
    (HeaderValue::from_maybe_shared(media_type.into_bytes()).expect("it is visible ASCII"), pieces)
}
