//! Chunked bodies: however they arrive, they mean the same; what is decoded can be encoded again.
#![no_main]

use everycore::http::{Chunk, ChunkedDecoder, ChunkedLimits, FieldPairs, Reject, encode_chunk_prefix};
use libfuzzer_sys::fuzz_target;

/// Data, trailers and the length of the body; `None` if the input ends before it does.
type Decoded = Result<Option<(Vec<u8>, FieldPairs, usize)>, Reject>;

fn decode(input: &[u8], piece: usize, limits: &ChunkedLimits) -> Decoded {
    let mut decoder = ChunkedDecoder::new(limits.clone());
    let (mut data, mut at, mut end) = (Vec::new(), 0, 0);
    loop {
        match decoder.decode(&input[at..end])? {
            Chunk::Need if end == input.len() => return Ok(None),
            Chunk::Need => {
                assert_eq!(at, end, "bytes are never left lying");
                end = (end + piece).min(input.len());
            }
            Chunk::Skip { consumed } => {
                assert_eq!(consumed, end - at);
                at = end;
            }
            Chunk::Data { skip, len } => {
                assert!(len > 0 && at + skip + len <= end);
                data.extend_from_slice(&input[at + skip..at + skip + len]);
                at += skip + len;
            }
            Chunk::End { consumed } => return Ok(Some((data, decoder.trailers(), at + consumed))),
        }
    }
}

/// The first byte chooses the pieces and the limits, the rest is the input.
fn check(input: &[u8]) {
    let Some((&choice, input)) = input.split_first() else { return };
    let limits = match choice & 1 {
        0 => ChunkedLimits::default(),
        _ => ChunkedLimits { line_bytes_max: 8, extension_bytes_max: 12, trailer_bytes_max: 20, trailers_max: 2 },
    };
    let whole = decode(input, input.len().max(1), &limits);
    assert_eq!(decode(input, usize::from(choice >> 1) + 1, &limits), whole);
    let Ok(Some((data, trailers, len))) = whole else { return };
    assert!(trailers.len() <= limits.trailers_max);
    // The body ends where it ends, whatever follows.
    assert_eq!(decode(&input[..len], 1, &limits), Ok(Some((data.clone(), trailers, len))));
    for end in 0..len.min(64) {
        assert_eq!(decode(&input[..end], 3, &limits), Ok(None));
    }
    let mut encoded = Vec::new();
    for piece in data.chunks(usize::from(choice) + 1) {
        encode_chunk_prefix(&mut encoded, piece.len());
        encoded.extend_from_slice(piece);
        encoded.extend_from_slice(b"\r\n");
    }
    encoded.extend_from_slice(b"0\r\n\r\n");
    let expected = Ok(Some((data, FieldPairs::new(), encoded.len())));
    assert_eq!(decode(&encoded, usize::MAX / 2, &ChunkedLimits::default()), expected);
}

fuzz_target!(|data: &[u8]| check(data));
