//! HTTP/1.x as values: heads, bodies, answers. Sans-I/O: bytes in, values out.
//!
//! For: the request head and its refusals, chunked coding, one body type for both directions, the
//! encoder of answer heads. Not for: sockets, clocks, routing, when to close a connection. Floor 1.
//!
//! Strict on framing: a request that two parsers could read differently is refused, so that a front
//! end and this server never disagree on where a request ends (RFC 9112 §11.2).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod body;
mod chunked;
mod coding;
mod conditional;
mod date;
mod diagnose;
mod feed;
mod fields;
mod forwarded;
mod head;
mod heads;
mod range;
#[cfg(test)]
mod reference;
mod reject;
mod request;
mod response;
mod scan;
mod semantics;
mod target;

pub(crate) use body::Chunks;
pub use body::{Body, BodyError, FieldPairs};
pub use chunked::{Chunk, ChunkedDecoder, ChunkedLimits};
pub use coding::{AcceptedCodings, Coding};
pub use conditional::{Conditions, Validators, Verdict};
pub use date::DateCache;
pub use feed::Feed;
pub(crate) use fields::ReadyFields;
pub use forwarded::{NoSuchProxy, TrustedProxies, TrustedProxy};
pub use head::{Framing, Head, Version};
pub use heads::HeadEncoder;
pub use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
pub use range::{Selected, select_ranges};
pub use reject::Reject;
pub use request::{AddrBook, ConnAddrs, ConnInfo, Params, PeerAddr, PooledHead, Request, RequestBuilder};
pub use response::{BodyFraming, Encoding, Response, encode_chunk_prefix, encode_head};
pub use scan::HeadLimits;
pub use target::TargetForm;
