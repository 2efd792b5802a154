//! AJP/1.3 as values: packets, the request that a proxy forwards, the packets of an answer. Sans-I/O: bytes in, values out.
//!
//! For: the protocol that Apache httpd (mod_proxy_ajp, mod_jk) and others speak to a server behind them. A forwarded
//! request becomes a [`Head`](crate::http::Head) under the same rules as one that came as HTTP text; an answer's head is
//! what [`encode_head`](crate::http::encode_head) wrote, in other clothes. Not for: sockets, deadlines, who may forward
//! (that is `service::ajp`). Floor 1.
//!
//! Strict: a packet that could be read in two ways is refused, and its connection closed.

mod answer;
mod cursor;
mod fault;
mod forward;
mod forwarded;
mod packet;
#[cfg(test)]
pub(crate) mod writer;

pub use answer::{CPONG, HeadersTooLarge, body_chunk_start, encode_headers, end_response, get_body_chunk};
pub use fault::Fault;
pub use forward::Forward;
pub use forwarded::Forwarded;
pub use packet::{Message, body_data, split_packet};

/// Bytes before a packet's payload: two that tell the direction, two of length.
pub const PACKET_HEADER_BYTES: usize = 4;

/// Bytes of a [`body_chunk_start`]: packet header, type, length.
pub const CHUNK_START_BYTES: usize = PACKET_HEADER_BYTES + 3;

/// Bytes of a body that one packet of at most `packet_bytes_max` carries to the proxy: a final zero follows them.
pub const fn chunk_bytes_max(packet_bytes_max: usize) -> usize {
    packet_bytes_max - CHUNK_START_BYTES - 1
}
