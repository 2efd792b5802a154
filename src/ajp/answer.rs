//! The packets of an answer. Floor 1.

use super::{CHUNK_START_BYTES, PACKET_HEADER_BYTES};
use crate::http::StatusCode;

/// What every packet to the proxy begins with.
const TO_PROXY: [u8; 2] = [0x41, 0x42];
const SEND_BODY_CHUNK: u8 = 0x03;
const SEND_HEADERS: u8 = 0x04;
const END_RESPONSE: u8 = 0x05;
const GET_BODY_CHUNK: u8 = 0x06;

/// The answer to a [`Message::Ping`](super::Message::Ping).
pub const CPONG: [u8; 5] = [TO_PROXY[0], TO_PROXY[1], 0, 1, 0x09];

/// Names that have a code, which is `A0` and their place from 1.
const CODED: [&str; 11] = [
    "Content-Type",
    "Content-Language",
    "Content-Length",
    "Date",
    "Last-Modified",
    "Location",
    "Set-Cookie",
    "Set-Cookie2",
    "Servlet-Engine",
    "Status",
    "WWW-Authenticate",
];

/// The fields of an answer do not fit into one packet, and must not be spread over several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadersTooLarge;

/// Appends SEND_HEADERS: the status and the fields of `head`, which [`encode_head`](crate::http::encode_head) wrote, so
/// that both protocols give the same. What is between an HTTP server and its neighbour alone (Connection,
/// Transfer-Encoding) stays out.
///
/// # Errors
/// It does not fit into `packet_bytes_max`. Nothing was appended.
pub fn encode_headers(
    out: &mut Vec<u8>,
    status: StatusCode,
    head: &[u8],
    packet_bytes_max: usize,
) -> Result<(), HeadersTooLarge> {
    let start = out.len();
    out.extend_from_slice(&TO_PROXY);
    out.extend_from_slice(&[0, 0, SEND_HEADERS]);
    out.extend_from_slice(&status.as_u16().to_be_bytes());
    // mod_jk passes an empty reason on as a broken status line.
    push_string(out, status.canonical_reason().unwrap_or("Unknown").as_bytes());
    let count_at = out.len();
    out.extend_from_slice(&[0, 0]);
    let mut count = 0u16;
    let mut lines = head.split(|&byte| byte == b'\n').skip(1);
    while let Some((name, value)) = lines.next().and_then(split_line) {
        if name.eq_ignore_ascii_case(b"connection") || name.eq_ignore_ascii_case(b"transfer-encoding") {
            continue;
        }
        match CODED.iter().position(|coded| name.eq_ignore_ascii_case(coded.as_bytes())) {
            Some(index) => out.extend_from_slice(&[0xa0, index as u8 + 1]),
            None => push_string(out, name),
        }
        push_string(out, value);
        count = count.wrapping_add(1); // more than fit are refused below
    }
    let len = out.len() - start;
    if len > packet_bytes_max {
        out.truncate(start);
        return Err(HeadersTooLarge);
    }
    out[start + 2..start + PACKET_HEADER_BYTES].copy_from_slice(&length(len - PACKET_HEADER_BYTES));
    out[count_at..count_at + 2].copy_from_slice(&count.to_be_bytes());
    Ok(())
}

/// `Name: value` and the carriage return; the empty line at the end has no colon.
fn split_line(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let line = line.strip_suffix(b"\r")?;
    let colon = memchr::memchr(b':', line)?;
    let value = &line[colon + 1..];
    Some((&line[..colon], value.strip_prefix(b" ").unwrap_or(value)))
}

fn push_string(out: &mut Vec<u8>, string: &[u8]) {
    // A longer one is larger than any packet, and refused as such.
    out.extend_from_slice(&length(string.len().min(usize::from(u16::MAX))));
    // A control character could end the line that the proxy writes.
    out.extend(string.iter().map(|&byte| if byte < b' ' || byte == 0x7f { b' ' } else { byte }));
    out.push(0);
}

fn length(len: usize) -> [u8; 2] {
    (len as u16).to_be_bytes()
}

/// SEND_BODY_CHUNK up to its data: `len` bytes must follow, and one zero.
pub fn body_chunk_start(len: usize) -> [u8; CHUNK_START_BYTES] {
    let ([high, low], [packet_high, packet_low]) = (length(len), length(len + 4));
    [TO_PROXY[0], TO_PROXY[1], packet_high, packet_low, SEND_BODY_CHUNK, high, low]
}

/// GET_BODY_CHUNK, for as much as a packet of `packet_bytes_max` carries.
pub fn get_body_chunk(packet_bytes_max: usize) -> [u8; 7] {
    let [high, low] = length(packet_bytes_max - PACKET_HEADER_BYTES - 2);
    [TO_PROXY[0], TO_PROXY[1], 0, 3, GET_BODY_CHUNK, high, low]
}

/// END_RESPONSE. `is_reusable`: the connection takes another request.
pub fn end_response(is_reusable: bool) -> [u8; 6] {
    [TO_PROXY[0], TO_PROXY[1], 0, 2, END_RESPONSE, u8::from(is_reusable)]
}

#[cfg(test)]
mod tests {
    use super::{super::chunk_bytes_max, *};
    use crate::{
        http::{BodyFraming, Encoding, Response, Version, encode_head},
        limits::AJP_PACKET_BYTES,
    };

    fn encode(response: &Response, packet_bytes_max: usize) -> Result<Vec<u8>, HeadersTooLarge> {
        let how = Encoding {
            version: Version::Http11,
            head_only: false,
            keep_alive: true,
            server_and_date: b"Server: s\r\nDate: d\r\n",
        };
        let mut head = Vec::new();
        let _: BodyFraming = encode_head(&mut head, response, &how);
        let mut out = b"before".to_vec();
        let encoded = encode_headers(&mut out, response.status(), &head, packet_bytes_max);
        assert_eq!(&out[..6], b"before");
        assert!(encoded.is_ok() || out.len() == 6, "nothing was appended");
        encoded.map(|()| out.split_off(6))
    }

    #[test]
    fn headers_are_those_of_http_with_codes() {
        let response = Response::text("abc")
            .with_header("location", "/x")
            .with_header("x-own", "a\tb")
            .with_header("set-cookie", "c");
        let expected = b"AB\0\x5c\x04\0\xc8\0\x02OK\0\0\x07\
            \xa0\x01\0\x19text/plain; charset=utf-8\0\
            \xa0\x03\0\x013\0\
            \0\x06Server\0\0\x01s\0\
            \xa0\x04\0\x01d\0\
            \xa0\x06\0\x02/x\0\
            \0\x05X-Own\0\0\x03a b\0\
            \xa0\x07\0\x01c\0";
        assert_eq!(encode(&response, AJP_PACKET_BYTES).unwrap(), expected);
    }

    #[test]
    fn what_is_between_neighbours_stays_out() {
        let stream = Response::stream(crate::http::Body::stream(futures_lite::stream::empty()))
            .with_header("connection", "close");
        assert_eq!(
            encode(&stream, AJP_PACKET_BYTES).unwrap(),
            b"AB\0\x1d\x04\0\xc8\0\x02OK\0\0\x02\0\x06Server\0\0\x01s\0\xa0\x04\0\x01d\0"
        );
    }

    #[test]
    fn reason_is_never_empty() {
        let response = Response::new(StatusCode::from_u16(599).unwrap());
        assert!(encode(&response, AJP_PACKET_BYTES).unwrap().starts_with(b"AB\0\x28\x04\x02\x57\0\x07Unknown\0\0\x03"));
    }

    #[test]
    fn headers_fill_one_packet_and_not_a_byte_more() {
        let with = |len: usize| {
            encode(&Response::new(StatusCode::NO_CONTENT).with_header("a", "x".repeat(len)), AJP_PACKET_BYTES)
        };
        let empty = with(0).unwrap().len();
        assert_eq!(with(AJP_PACKET_BYTES - empty).unwrap().len(), AJP_PACKET_BYTES);
        assert_eq!(with(AJP_PACKET_BYTES - empty + 1), Err(HeadersTooLarge));
        assert_eq!(with(70_000), Err(HeadersTooLarge));
    }

    #[test]
    fn every_code_is_that_of_its_name() {
        let lines: Vec<String> = CODED.iter().map(|name| format!("{}: v\r\n", name.to_lowercase())).collect();
        let mut out = Vec::new();
        let head = format!("HTTP/1.1 200 OK\r\n{}\r\n", lines.concat());
        encode_headers(&mut out, StatusCode::OK, head.as_bytes(), AJP_PACKET_BYTES).unwrap();
        let pairs = &out[14..];
        for (index, pair) in pairs.chunks(6).enumerate() {
            assert_eq!(pair, [0xa0, index as u8 + 1, 0, 1, b'v', 0]);
        }
        assert_eq!(pairs.len(), 6 * 11);
    }

    #[test]
    fn fixed_packets_are_byte_for_byte_the_specification() {
        assert_eq!(CPONG, *b"AB\0\x01\x09");
        assert_eq!(get_body_chunk(8192), *b"AB\0\x03\x06\x1f\xfa");
        assert_eq!(get_body_chunk(65_536), *b"AB\0\x03\x06\xff\xfa");
        assert_eq!(end_response(true), *b"AB\0\x02\x05\x01");
        assert_eq!(end_response(false), *b"AB\0\x02\x05\x00");
        assert_eq!(chunk_bytes_max(8192), 8184);
        assert_eq!(body_chunk_start(8184), *b"AB\x1f\xfc\x03\x1f\xf8");
        assert_eq!(body_chunk_start(chunk_bytes_max(65_536)), *b"AB\xff\xfc\x03\xff\xf8");
    }
}
