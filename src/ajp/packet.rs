//! Where packets begin and end, and what kind they are. Floor 1.

use super::{Fault, Forward, PACKET_HEADER_BYTES, cursor::Cursor};

/// What every packet to the server begins with.
const TO_SERVER: [u8; 2] = [0x12, 0x34];
const FORWARD_REQUEST: u8 = 0x02;
const CPING: u8 = 0x0a;

/// The payload of the packet that `input` begins with; `None`: more bytes are needed.
///
/// ```
/// use everycore::ajp::{Fault, split_packet};
/// assert_eq!(split_packet(b"\x12\x34\0\x01\x0a\x12", 8192), Ok(Some(&b"\x0a"[..])));
/// assert_eq!(split_packet(b"\x12\x34\0", 8192), Ok(None));
/// assert_eq!(split_packet(b"GET", 8192), Err(Fault::BadMagic));
/// ```
///
/// # Errors
/// No packet begins so, or it is longer than `packet_bytes_max` with its header. Known at the first byte that tells.
pub fn split_packet(input: &[u8], packet_bytes_max: usize) -> Result<Option<&[u8]>, Fault> {
    if input.iter().zip(TO_SERVER).any(|(byte, expected)| *byte != expected) {
        return Err(Fault::BadMagic);
    }
    let Some(([_, _, high, low], rest)) = input.split_first_chunk::<PACKET_HEADER_BYTES>() else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes([*high, *low]));
    if PACKET_HEADER_BYTES + len > packet_bytes_max {
        return Err(Fault::PacketTooLarge);
    }
    Ok(rest.get(..len))
}

/// A packet that comes where a request may begin.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, on the stack; a box would be an allocation")]
#[derive(Debug)]
pub enum Message<'a> {
    /// A request.
    Forward(Forward<'a>),
    /// A question whether we are there, to be answered with [`CPONG`](super::CPONG).
    Ping,
    /// An empty body packet that nobody asked for: lighttpd sends one after each GET. To be passed over.
    Stray,
    /// SHUTDOWN, the old PING, or what nobody defined: to be answered by closing the connection.
    Unwanted,
}

impl<'a> Message<'a> {
    /// Reads a payload.
    ///
    /// # Errors
    /// It is a request, and a malformed one.
    pub fn decode(payload: &'a [u8]) -> Result<Message<'a>, Fault> {
        match payload {
            [] | [0, 0] => Ok(Message::Stray),
            [CPING] => Ok(Message::Ping),
            [FORWARD_REQUEST, request @ ..] => Forward::decode(request).map(Message::Forward),
            _ => Ok(Message::Unwanted),
        }
    }
}

/// The bytes of a body that a payload carries, where a body packet is due; empty: the body has ended.
///
/// A body packet has no type: what looks like the beginning of a request in here is data (CVE-2022-26377).
///
/// # Errors
/// The inner length is not that of what follows it.
pub fn body_data(payload: &[u8]) -> Result<&[u8], Fault> {
    if payload.is_empty() {
        return Ok(payload);
    }
    let mut cursor = Cursor(payload);
    let len = cursor.number()?;
    if usize::from(len) == cursor.0.len() { Ok(cursor.0) } else { Err(Fault::BadBody) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::AJP_PACKET_BYTES;

    #[test]
    fn packet_is_whole_at_its_last_byte_and_no_byte_sooner() {
        let input = b"\x12\x34\0\x03abc\x12\x34";
        for end in 0..input.len() {
            let expected = (end >= 7).then_some(&b"abc"[..]);
            assert_eq!(split_packet(&input[..end], AJP_PACKET_BYTES), Ok(expected), "{end}");
        }
    }

    #[test]
    fn packet_size_counts_the_header() {
        let header = |len: u16| [&[0x12, 0x34][..], &len.to_be_bytes()].concat();
        // An off-by-four here refused whole packets elsewhere (Tomcat bug 69848).
        assert_eq!(split_packet(&header(8188), 8192), Ok(None));
        assert_eq!(split_packet(&header(8189), 8192), Err(Fault::PacketTooLarge));
        assert_eq!(split_packet(&header(65_532), 65_536), Ok(None));
        assert_eq!(split_packet(&header(65_533), 65_536), Err(Fault::PacketTooLarge));
    }

    #[test]
    fn other_protocols_are_known_by_their_first_byte() {
        for input in [&b"G"[..], b"\x12\x35", b"AB\0\x01\x09", b"\x16\x03"] {
            assert_eq!(split_packet(input, AJP_PACKET_BYTES), Err(Fault::BadMagic));
        }
    }

    #[test]
    fn body_packets_have_two_lengths_that_agree() {
        assert_eq!(body_data(b""), Ok(&b""[..]));
        assert_eq!(body_data(b"\0\0"), Ok(&b""[..]));
        assert_eq!(body_data(b"\0\x02ab"), Ok(&b"ab"[..]));
        assert_eq!(body_data(b"\x02"), Err(Fault::Cut));
        assert_eq!(body_data(b"\0\x02a"), Err(Fault::BadBody));
        assert_eq!(body_data(b"\0\x02abc"), Err(Fault::BadBody));
        // High length byte 02: as long as it would have to be, it is data and no request.
        let mut data = vec![b'x'; 2 + 0x0204];
        data[..2].copy_from_slice(&[0x02, 0x04]);
        assert_eq!(body_data(&data).map(<[u8]>::len), Ok(0x0204));
    }

    #[test]
    fn kinds_are_told_apart() {
        assert!(matches!(Message::decode(b"\x0a"), Ok(Message::Ping)));
        assert!(matches!(Message::decode(b""), Ok(Message::Stray)));
        assert!(matches!(Message::decode(b"\0\0"), Ok(Message::Stray)));
        assert!(matches!(Message::decode(b"\x02"), Err(Fault::Cut)));
        for payload in [&b"\x07"[..], b"\x08", b"\x0a\0", b"\x01", b"\xff\x02", b"\0"] {
            assert!(matches!(Message::decode(payload), Ok(Message::Unwanted)), "{payload:?}");
        }
    }
}
