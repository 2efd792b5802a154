//! Request heads: whole, in pieces and once more must read alike, and what is said of a head must hold.
#![no_main]

use everycore::http::{Framing, Head, HeadLimits, Method, Reject, Request, Version};
use libfuzzer_sys::fuzz_target;

/// All that a head says, to compare two.
#[derive(Debug, PartialEq)]
struct Told {
    method: Method,
    version: Version,
    target: String,
    path: String,
    query: Option<String>,
    authority: Option<String>,
    framing: Framing,
    keep_alive: bool,
    expect_continue: bool,
    fields: Vec<(String, Vec<u8>)>,
}

fn told(head: &Head) -> Told {
    Told {
        method: head.method().clone(),
        version: head.version(),
        target: head.target().to_owned(),
        path: head.path().to_owned(),
        query: head.query().map(str::to_owned),
        authority: head.authority().map(str::to_owned),
        framing: head.framing(),
        keep_alive: head.keep_alive(),
        expect_continue: head.expect_continue(),
        fields: head.headers().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
    }
}

/// The first byte chooses the pieces and the limits, the rest is the input.
fn check(data: &[u8]) {
    let Some((&choice, input)) = data.split_first() else { return };
    let limits = match choice & 1 {
        0 => HeadLimits::default(),
        _ => HeadLimits { head_bytes_max: 256, headers_max: 4, uri_bytes_max: 64 },
    };
    let mut head = Head::new();
    let whole = head.parse(input, &limits);
    let (by_pieces, seen) = by_pieces(input, usize::from(choice >> 1) + 1, &limits);
    match (&whole, &by_pieces) {
        (Ok(Some(len)), Ok(Some((pieces_len, pieces)))) => {
            assert_eq!(len, pieces_len);
            assert_eq!(&told(&head), pieces);
            check_accepted(&mut head, &input[..*len], &limits);
        }
        (Ok(None), Ok(None)) => {}
        // Which reason comes first may differ; and byte by byte, an unfinished line is not judged before its end.
        (Err(_), Err(_) | Ok(None)) => {}
        (Ok(None), Err(reject)) => panic!("refused {reject:?} after {seen} bytes, wanted more for the whole"),
        (whole, pieces) => panic!("{whole:?} as a whole, {pieces:?} in pieces after {seen} bytes"),
    }
}

type Read = Result<Option<(usize, Told)>, Reject>;

fn by_pieces(input: &[u8], piece: usize, limits: &HeadLimits) -> (Read, usize) {
    let mut head = Head::new();
    let (mut seen, mut end) = (0, 0);
    loop {
        end = (end + piece).min(input.len());
        match head.parse_from(&input[..end], seen, limits) {
            Ok(Some(len)) => return (Ok(Some((len, told(&head)))), end),
            Ok(None) if end == input.len() => return (Ok(None), end),
            Ok(None) => seen = end,
            Err(reject) => return (Err(reject), end),
        }
    }
}

fn check_accepted(head: &mut Head, input: &[u8], limits: &HeadLimits) {
    assert!(input.ends_with(b"\r\n\r\n"));
    assert!(head.target().len() <= limits.uri_bytes_max);
    assert!(head.headers().len() <= limits.headers_max);
    assert!(head.target().bytes().all(|byte| byte.is_ascii_graphic()));
    for (name, value) in head.headers() {
        assert!(!name.is_empty() && !name.contains([' ', '\t', ':', '\r', '\n']));
        assert!(!value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
        assert_eq!(value.trim_ascii(), value, "white space around a value is not the value's");
    }
    assert!(head.version() == Version::Http10 || head.header("host").is_some());
    assert!(head.framing() == Framing::None || !head.expect_continue() || head.version() == Version::Http11);
    // The same head again, in the same buffers: the meaning is the same, whatever is remembered of the last.
    let before = told(head);
    assert_eq!(head.parse(input, limits), Ok(Some(input.len())));
    assert_eq!(told(head), before);
    // And one of another request in between leaves nothing behind.
    let other = b"PUT /other?x HTTP/1.0\r\nA: b\r\nContent-Length: 3\r\n\r\n";
    assert_eq!(head.parse(other, &HeadLimits::default()), Ok(Some(other.len())));
    assert_eq!((head.path(), head.framing(), head.headers().len()), ("/other", Framing::Length(3), 2));
    assert_eq!(head.parse(input, limits), Ok(Some(input.len())));
    assert_eq!(told(head), before);
    if let Ok(request) = Request::builder(Method::GET, head.target()).body(()) {
        let _ = (request.query("name"), request.param("id"));
    }
}

fuzz_target!(|data: &[u8]| check(data));
