//! Ranges against a model that was written from RFC 9110 §14 and shares nothing with the code: thousands of random
//! fields, decided alike; and hundreds over a socket, answered with the right bytes.

mod common;

use common::{
    response::Response,
    server::Server,
    tree::{Tree, answer, noise, request, tcp},
};
use everycore::{
    http::{Selected, select_ranges},
    limits::RANGES_MAX,
};

const SEED: u64 = 20_261_130;

// ---- the model ---------------------------------------------------------------------------------------

/// RFC 9110 §14.1.1, by backtracking over text and in 128 bits. `None`: to be ignored.
fn model(field: &str, len: u128) -> Option<Vec<(u128, u128)>> {
    let field = field.trim_matches([' ', '\t']);
    let (unit, set) = field.split_once('=')?;
    if !unit.eq_ignore_ascii_case("bytes") {
        return None;
    }
    // Our own rule, which RFC 9110 §14.2 leaves to a server: of nothing, nothing is a part.
    if len == 0 {
        return None;
    }
    // RFC 9110 §5.6.1: a list, in which a recipient has to tolerate empty elements; one that is not empty must be there.
    let specs: Vec<&str> =
        set.split(',').map(|spec| spec.trim_matches([' ', '\t'])).filter(|spec| !spec.is_empty()).collect();
    if specs.is_empty() {
        return None;
    }
    let mut parts = Vec::new();
    for spec in &specs {
        let (first, last) = spec.split_once('-')?;
        let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        // No file is longer than 64 bits say: more digits are as good as the largest number.
        let number = |digits: &str| match digits.trim_start_matches('0') {
            "" => 0,
            digits => digits.parse::<u128>().map_or(u64::MAX.into(), |number| number.min(u64::MAX.into())),
        };
        let part = match (is_number(first), is_number(last)) {
            (true, true) if number(last) < number(first) => return None,
            (true, true) => (number(first), number(last).min(len.saturating_sub(1))),
            (true, false) if last.is_empty() => (number(first), len.saturating_sub(1)),
            (false, true) if first.is_empty() && number(last) == 0 => (len, len),
            (false, true) if first.is_empty() => (len.saturating_sub(number(last)), len.saturating_sub(1)),
            _ => return None,
        };
        if part.0 < len {
            parts.push(part);
        }
    }
    // More such rules: not too many, and no more bytes than there are.
    let bytes: u128 = parts.iter().map(|(first, last)| last - first + 1).sum();
    if parts.len() > RANGES_MAX || bytes > len {
        return None;
    }
    Some(parts)
}

fn expected(field: &str, len: u64) -> Selected {
    let range = |&(first, last): &(u128, u128)| first as u64..last as u64 + 1;
    match model(field, len.into()).as_deref() {
        None => Selected::Whole,
        Some([]) => Selected::Nothing,
        Some([one]) => Selected::One(range(one)),
        Some(several) => Selected::Several(several.iter().map(range).collect()),
    }
}

// ---- random fields -------------------------------------------------------------------------------------

fn number(random: &mut fastrand::Rng, len: u64) -> String {
    match random.u8(0..12) {
        0 => "0".to_owned(),
        1 => len.to_string(),
        2 => len.saturating_sub(1).to_string(),
        3 => (len + 1).to_string(),
        4 => random
            .choice(["18446744073709551614", "18446744073709551615", "18446744073709551616", "9223372036854775808"])
            .expect("some")
            .to_string(),
        5 => format!("{}{}", "0".repeat(random.usize(1..30)), random.u64(0..=len)),
        6 => "9".repeat(random.usize(15..60)),
        _ => random.u64(0..=len).to_string(),
    }
}

fn spec(random: &mut fastrand::Rng, len: u64) -> String {
    let (a, b) = (number(random, len), number(random, len));
    match random.u8(0..20) {
        0..6 => {
            // In order, mostly.
            let small = random.u64(0..=len.min(50));
            let start = random.u64(0..=len);
            format!("{start}-{}", start + small)
        }
        6..9 => format!("{a}-{b}"),
        9..12 => format!("{a}-"),
        12..15 => format!("-{a}"),
        15 => format!("{a}-{b}-{a}"),
        16 => String::new(),
        17 => random
            .choice(["-", "--1", "a-b", "1", "+1-2", "1-+2", "0x1-2", "1 -2", "1- 2", "1.5-2", "\u{b2}-3", "*"])
            .expect("some")
            .to_string(),
        _ => format!("{a}-{a}"),
    }
}

fn field(random: &mut fastrand::Rng, len: u64) -> String {
    let unit = match random.u8(0..30) {
        0 => "Bytes=",
        1 => "BYTES=",
        2 => "bytes",
        3 => "bytes =",
        4 => "lines=",
        5 => "",
        6 => "bytes==",
        7 => " bytes=",
        _ => "bytes=",
    };
    let count = match random.u8(0..10) {
        0..4 => 1,
        4..8 => random.usize(2..5),
        8 => random.usize(0..12),
        _ => RANGES_MAX + random.usize(0..4) - 2,
    };
    let mut field = unit.to_owned();
    for at in 0..count {
        if at > 0 {
            field.push_str(random.choice([",", ", ", " ,", "\t,\t", ",,", ",  ,"]).expect("some"));
        }
        // Short ones, where there are many: else their sum would decide each time.
        if count > 8 && random.u8(0..10) > 0 {
            let start = random.u64(0..=len);
            field.push_str(&format!("{start}-{start}"));
        } else {
            field.push_str(&spec(random, len));
        }
    }
    if random.u8(0..20) == 0 {
        field.push_str(random.choice([" ", "\t", ",", ";", "-", "x"]).expect("some"));
    }
    field
}

const LENGTHS: [u64; 12] =
    [0, 1, 2, 3, 10, 100, 999, 65_536, 1_000_003, u32::MAX as u64 + 7, u64::MAX / 2, u64::MAX - 1];

#[test]
fn random_range_fields_are_decided_as_the_model_does() {
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut counts = [0usize; 4];
    for round in 0..60_000 {
        let len = LENGTHS[round % LENGTHS.len()];
        let len = if len > 1_000_000 && round % 2 == 0 { len } else { len.min(1000) };
        let field = field(&mut random, len.min(u64::MAX / 4));
        let selected = select_ranges(field.as_bytes(), len);
        assert_eq!(selected, expected(&field, len), "{field:?} of {len}");
        let kind = match &selected {
            Selected::Whole => 0,
            Selected::Nothing => 1,
            Selected::One(range) => {
                assert!(range.start < range.end && range.end <= len, "{field:?} of {len}");
                2
            }
            Selected::Several(ranges) => {
                assert!((2..=RANGES_MAX).contains(&ranges.len()), "{field:?} of {len}");
                3
            }
        };
        counts[kind] += 1;
    }
    // Every outcome was really tried.
    assert!(counts.iter().all(|&count| count > 1000), "{counts:?}");
}

#[test]
fn range_fields_of_any_bytes_do_no_harm() {
    let mut random = fastrand::Rng::with_seed(SEED + 1);
    let letters = b"bytes=0123456789-, \t\xff\x00;*\"";
    for _ in 0..60_000 {
        let mut field: Vec<u8> = b"bytes="[..random.usize(0..=6)].to_vec();
        field.extend((0..random.usize(0..40)).map(|_| letters[random.usize(..letters.len())]));
        let len = LENGTHS[random.usize(..LENGTHS.len())];
        match select_ranges(&field, len) {
            Selected::One(range) => assert!(range.start < range.end && range.end <= len),
            Selected::Several(ranges) => {
                assert!(ranges.iter().all(|range| range.start < range.end && range.end <= len))
            }
            Selected::Whole | Selected::Nothing => {}
        }
    }
}

// ---- over a socket -------------------------------------------------------------------------------------

/// What RFC 9110 §14.6 makes of the parts.
fn multipart(content: &[u8], parts: &[(u128, u128)], boundary: &str) -> Vec<u8> {
    let mut body = Vec::new();
    for (at, (first, last)) in parts.iter().enumerate() {
        let before = if at == 0 { "" } else { "\r\n" };
        let size = content.len();
        let head = format!(
            "{before}--{boundary}\r\nContent-Type: application/octet-stream\r\nContent-Range: bytes {first}-{last}/{size}\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(&content[*first as usize..=*last as usize]);
    }
    body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    body
}

fn check(response: &Response, content: &[u8], field: &str) {
    let value = |name| response.values(name).next();
    match model(field, content.len() as u128).as_deref() {
        None => {
            assert_eq!((response.status, value("content-range")), (200, None), "{field:?}");
            assert!(response.body == content, "{field:?}");
        }
        Some([]) => {
            let range = format!("bytes */{}", content.len());
            assert_eq!((response.status, value("content-range")), (416, Some(&*range)), "{field:?}");
        }
        Some([(first, last)]) => {
            let range = format!("bytes {first}-{last}/{}", content.len());
            assert_eq!((response.status, value("content-range")), (206, Some(&*range)), "{field:?}");
            assert!(response.body == content[*first as usize..=*last as usize], "{field:?}");
        }
        Some(parts) => {
            assert_eq!((response.status, value("content-range")), (206, None), "{field:?}");
            let media_type = value("content-type").expect("it has a type");
            let boundary = media_type.strip_prefix("multipart/byteranges; boundary=");
            let boundary = boundary.unwrap_or_else(|| panic!("{field:?}: {media_type}"));
            assert!(response.body == multipart(content, parts, boundary), "{field:?}");
        }
    }
}

#[test]
fn random_range_requests_are_answered_with_the_bytes_of_the_model() {
    let tree = Tree::new();
    // Nothing, what is kept in memory, what is read while it is sent.
    let contents = [0, 1, 1000, 65_536, 3_000_001].map(|size| noise(size as u64, size));
    for (at, content) in contents.iter().enumerate() {
        tree.put(format!("{at}.bin"), content);
    }
    let server = Server::start(&["--root", &tree.root_flag()]);
    let mut random = fastrand::Rng::with_seed(SEED + 2);
    for round in 0..400 {
        let at = round % contents.len();
        let field = loop {
            let field = field(&mut random, contents[at].len() as u64);
            if field.is_ascii() {
                break field; // others are no field values
            }
        };
        let octets = request("GET", &format!("/{at}.bin"), &[("Range", &field)]);
        check(&answer(tcp(server.http), &octets), &contents[at], &field);
    }
}
