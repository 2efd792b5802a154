//! Answer heads that are written again and again. Floor 1.

use super::{BodyFraming, DateCache, Encoding, Response, Version, encode_head, response::Plain};

/// How many heads are kept; which one is where goes by the body's length.
const SLOTS: usize = 8;

/// [`encode_head`] with a memory: the head of an answer without fields of its own depends on little, and until the date
/// changes it is copied from the last such answer.
///
/// ```
/// use everycore::http::{HeadEncoder, Response, Version};
/// let mut heads = HeadEncoder::default();
/// heads.set_time(784_111_777);
/// for _ in 0..2 {
///     let mut out = Vec::new();
///     heads.encode(&mut out, &Response::text("Hey!"), Version::Http11, false, true);
///     assert!(out.ends_with(b"Content-Length: 4\r\nServer: everycore\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n"));
/// }
/// ```
#[derive(Debug, Default)]
pub struct HeadEncoder {
    date: DateCache,
    slots: [Slot; SLOTS],
}

#[derive(Debug, Default)]
struct Slot {
    of: Option<Plain>,
    bytes: Vec<u8>,
}

impl HeadEncoder {
    /// Sets the date that answers carry, in seconds since the epoch.
    pub fn set_time(&mut self, unix_s: u64) {
        self.date.at(unix_s);
        for slot in &mut self.slots {
            slot.of = None;
        }
    }

    /// The `Server` and `Date` lines.
    pub fn server_and_date(&self) -> &[u8] {
        self.date.lines()
    }

    /// As [`encode_head`], with the encoder's date; the other arguments are those of [`Encoding`].
    #[inline]
    pub fn encode(
        &mut self,
        out: &mut Vec<u8>,
        response: &Response,
        version: Version,
        head_only: bool,
        keep_alive: bool,
    ) -> BodyFraming {
        let how = Encoding { version, head_only, keep_alive, server_and_date: self.date.lines() };
        if version != Version::Http11 || head_only || !keep_alive {
            return encode_head(out, response, &how);
        }
        let Some(plain) = response.plain() else { return encode_head(out, response, &how) };
        let slot = &mut self.slots[plain.length as usize % SLOTS];
        if slot.of == Some(plain) {
            out.extend_from_slice(&slot.bytes);
            return BodyFraming::Length(plain.length);
        }
        let start = out.len();
        let framing = encode_head(out, response, &how);
        slot.of = Some(plain);
        slot.bytes.clear();
        slot.bytes.extend_from_slice(&out[start..]);
        framing
    }
}

#[cfg(test)]
mod tests {
    use super::{super::StatusCode, *};

    /// What every answer's head is, alone and after each other answer: a slot is used again only for its like.
    #[test]
    fn heads_are_those_of_encode_head_whatever_came_before() {
        let stream = || Response::stream(super::super::Body::stream(futures_lite::stream::empty()));
        let closing = || Response::text("a").with_header("connection", "close");
        let make: [&dyn Fn() -> Response; 14] = [
            &|| Response::text("a"),
            &|| Response::html("a"),
            &|| Response::json_text("1"),
            &|| Response::text("123456789"), // of the same slot
            &|| Response::text(""),
            &|| Response::text("a").with_status(StatusCode::NOT_FOUND),
            &|| Response::text("a").with_header("x-a", "b"),
            &|| Response::bytes("image/png", "a"),
            &|| Response::stream("a".into()),
            &|| Response::new(StatusCode::NO_CONTENT),
            &|| Response::text("a").with_status(StatusCode::RESET_CONTENT),
            &|| Response::text("a").with_status(StatusCode::NOT_MODIFIED),
            &stream,
            &closing,
        ];
        let mut heads = HeadEncoder::default();
        for unix_s in [0, 784_111_777] {
            heads.set_time(unix_s);
            for (first, second) in make.iter().flat_map(|first| make.iter().map(move |second| (first, second))) {
                for (version, head_only, keep_alive) in [
                    (Version::Http11, false, true),
                    (Version::Http11, true, true),
                    (Version::Http11, false, false),
                    (Version::Http10, false, true),
                ] {
                    heads.encode(&mut Vec::new(), &first(), Version::Http11, false, true);
                    let (mut out, mut expected) = (b"before".to_vec(), b"before".to_vec());
                    let framing = heads.encode(&mut out, &second(), version, head_only, keep_alive);
                    let how = Encoding { version, head_only, keep_alive, server_and_date: heads.server_and_date() };
                    assert_eq!(framing, encode_head(&mut expected, &second(), &how));
                    assert_eq!(str::from_utf8(&out), str::from_utf8(&expected));
                }
            }
        }
    }
}
