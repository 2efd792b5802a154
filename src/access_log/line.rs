//! What a line says, and how: combined or JSON. Floor 4, pure.

use super::clock::Time;
use crate::{
    http::{ConnInfo, Head, PeerAddr, Version},
    limits::ACCESS_LOG_FIELD_BYTES_MAX,
};
use serde::Serialize;
use std::{borrow::Cow, io::Write as _, net::IpAddr, ops::Range};

/// The status of a line whose client was gone before it had an answer: nginx's.
const CLIENT_GONE: u16 = 499;

/// A request while it is answered: what its line needs, since its head goes to the handler. Made anew for each request
/// of a connection, in the same memory.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    is_open: bool,
    since_ns: u64,
    client: Option<IpAddr>,
    is_unix: bool,
    status: u16,
    bytes: u64,
    /// The parts of the request, one after the other.
    text: Vec<u8>,
    /// `None`: it could not be read, and `target` is its first line.
    method: Option<Range<usize>>,
    target: Range<usize>,
    version: Option<Version>,
    referer: Option<Range<usize>>,
    user_agent: Option<Range<usize>>,
}

impl Entry {
    /// Begins the line of a request.
    pub(crate) fn begin(&mut self, head: &Head, conn: &ConnInfo, since_ns: u64) {
        self.begin_any(conn, since_ns);
        self.client = conn.client_addr(head);
        self.method = Some(self.keep(head.method().as_str().as_bytes()));
        self.target = self.keep(head.target().as_bytes());
        self.version = Some(head.version());
        self.referer = head.header("referer").map(|value| self.keep(value));
        self.user_agent = head.header("user-agent").map(|value| self.keep(value));
    }

    /// Begins the line of what is no request, as far as it was read.
    pub(crate) fn begin_refused(&mut self, input: &[u8], conn: &ConnInfo, since_ns: u64) {
        self.begin_any(conn, since_ns);
        if let Some(PeerAddr::Ip(address)) = conn.addrs().peer {
            self.client = Some(address.ip().to_canonical());
        }
        let first = input.trim_ascii_start().split(|byte| b"\r\n".contains(byte)).next().unwrap_or_default();
        self.target = self.keep(first);
    }

    fn begin_any(&mut self, conn: &ConnInfo, since_ns: u64) {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        let is_unix = conn.addrs().peer == Some(PeerAddr::Unix);
        *self = Entry { is_open: true, since_ns, is_unix, text, ..Entry::default() };
    }

    fn keep(&mut self, part: &[u8]) -> Range<usize> {
        let begin = self.text.len();
        self.text.extend_from_slice(&part[..part.len().min(ACCESS_LOG_FIELD_BYTES_MAX)]);
        begin..self.text.len()
    }

    /// The answer begins, with so many bytes of body.
    pub(crate) fn answer(&mut self, status: u16, bytes: u64) {
        self.status = status;
        self.bytes = bytes;
    }

    /// So many bytes of the body that are written.
    pub(crate) fn set_bytes(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    /// So many more.
    pub(crate) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Whether a line is to be written; from now on it is not.
    pub(crate) fn close(&mut self) -> bool {
        std::mem::take(&mut self.is_open)
    }

    pub(super) fn since_ns(&self) -> u64 {
        self.since_ns
    }

    fn part(&self, part: &Option<Range<usize>>) -> Option<&[u8]> {
        part.clone().map(|range| &self.text[range])
    }

    fn status(&self) -> u16 {
        if self.status == 0 { CLIENT_GONE } else { self.status }
    }
}

/// A line.
pub(super) struct Line<'a> {
    pub(super) entry: &'a Entry,
    pub(super) duration_us: u64,
    pub(super) shard: usize,
}

/// The JSON of a line. What is not there is left out.
#[derive(Serialize)]
struct Fields<'a> {
    time: String,
    remote_addr: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<&'static str>,
    status: u16,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    referer: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<Cow<'a, str>>,
    duration_us: u64,
    shard: usize,
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::Http10 => "HTTP/1.0",
        Version::Http11 => "HTTP/1.1",
    }
}

impl Line<'_> {
    /// Apache's combined format, then the duration in seconds and the shard.
    pub(super) fn write_combined(&self, time: &Time, out: &mut Vec<u8>) {
        let entry = self.entry;
        match entry.client {
            Some(client) => write!(out, "{client}").expect("a vector takes all"),
            None => out.extend_from_slice(if entry.is_unix { b"unix" } else { b"-" }),
        }
        out.extend_from_slice(b" - - [");
        out.extend_from_slice(&time.combined);
        out.extend_from_slice(b"] \"");
        if let Some(method) = entry.part(&entry.method) {
            out.extend_from_slice(method);
            out.push(b' ');
        }
        escape(&entry.text[entry.target.clone()], out);
        if let Some(version) = entry.version {
            out.push(b' ');
            out.extend_from_slice(protocol(version).as_bytes());
        }
        write!(out, "\" {} {}", entry.status(), entry.bytes).expect("a vector takes all");
        for part in [&entry.referer, &entry.user_agent] {
            out.extend_from_slice(b" \"");
            match entry.part(part) {
                Some(value) => escape(value, out),
                None => out.push(b'-'),
            }
            out.push(b'"');
        }
        let (seconds, micros) = (self.duration_us / 1_000_000, self.duration_us % 1_000_000);
        writeln!(out, " {seconds}.{micros:06} {}", self.shard).expect("a vector takes all");
    }

    /// A JSON object. Bytes that are no UTF-8 become U+FFFD.
    pub(super) fn write_json(&self, time: &Time, out: &mut Vec<u8>) {
        let entry = self.entry;
        let text = |part| entry.part(part).map(String::from_utf8_lossy);
        let target = Some(String::from_utf8_lossy(&entry.text[entry.target.clone()]));
        let (request, target) = if entry.method.is_some() { (None, target) } else { (target, None) };
        let fields = Fields {
            time: format!("{}.{:03}Z", time.iso, time.millisecond),
            remote_addr: entry.client.map(|client| client.to_string()).or(entry.is_unix.then(|| "unix".to_owned())),
            request,
            method: text(&entry.method),
            target,
            protocol: entry.version.map(protocol),
            status: entry.status(),
            bytes: entry.bytes,
            referer: text(&entry.referer),
            user_agent: text(&entry.user_agent),
            duration_us: self.duration_us,
            shard: self.shard,
        };
        serde_json::to_writer(&mut *out, &fields).expect("plain data into a vector");
        out.push(b'\n');
    }
}

/// Quotes, backslashes, control characters and what is not ASCII as `\xHH`, so that no client can forge a line or a field.
fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in bytes {
        match byte {
            b'"' | b'\\' | 0..0x20 | 0x7f.. => {
                let (high, low) = (DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]);
                out.extend_from_slice(&[b'\\', b'x', high, low]);
            }
            _ => out.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{
        http::{ConnAddrs, Method, Request},
        limits::ACCESS_LOG_BATCH_BYTES,
    };
    use std::net::SocketAddr;

    fn conn(peer: Option<PeerAddr>) -> ConnInfo {
        ConnInfo::known(ConnAddrs { peer, local: None })
    }

    fn ip() -> ConnInfo {
        conn(Some(PeerAddr::Ip(SocketAddr::from(([192, 0, 2, 7], 5000)))))
    }

    fn entry(fields: &[(&str, &[u8])], conn: &ConnInfo) -> Entry {
        let request = Request::builder(Method::GET, "/a?b=1");
        let request = fields.iter().fold(request, |request, (name, value)| request.header(name, value));
        let mut entry = Entry::default();
        entry.begin(request.body(()).unwrap().head(), conn, 0);
        entry.answer(200, 11);
        entry
    }

    fn combined(entry: &Entry) -> String {
        let mut out = Vec::new();
        Line { entry, duration_us: 1_000_042, shard: 3 }.write_combined(&Time::new(784_111_777_005), &mut out);
        String::from_utf8(out).unwrap()
    }

    fn json(entry: &Entry) -> String {
        let mut out = Vec::new();
        Line { entry, duration_us: 42, shard: 3 }.write_json(&Time::new(784_111_777_005), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn line_has_all_fields() {
        let entry = entry(&[("Referer", b"http://x/"), ("User-Agent", b"curl/8")], &ip());
        assert_eq!(
            combined(&entry),
            "192.0.2.7 - - [06/Nov/1994:08:49:37 +0000] \"GET /a?b=1 HTTP/1.1\" 200 11 \"http://x/\" \"curl/8\" 1.000042 3\n"
        );
        assert_eq!(
            json(&entry),
            r#"{"time":"1994-11-06T08:49:37.005Z","remote_addr":"192.0.2.7","method":"GET","target":"/a?b=1","protocol":"HTTP/1.1","status":200,"bytes":11,"referer":"http://x/","user_agent":"curl/8","duration_us":42,"shard":3}"#.to_owned() + "\n"
        );
    }

    #[test]
    fn what_is_missing_is_a_dash_or_left_out() {
        let line = combined(&entry(&[], &conn(Some(PeerAddr::Unix))));
        assert_eq!(
            line,
            "unix - - [06/Nov/1994:08:49:37 +0000] \"GET /a?b=1 HTTP/1.1\" 200 11 \"-\" \"-\" 1.000042 3\n"
        );
        let mut gone = entry(&[], &conn(None));
        gone.answer(0, 0);
        assert_eq!(
            json(&gone),
            r#"{"time":"1994-11-06T08:49:37.005Z","remote_addr":null,"method":"GET","target":"/a?b=1","protocol":"HTTP/1.1","status":499,"bytes":0,"duration_us":42,"shard":3}"#.to_owned() + "\n"
        );
        assert!(combined(&gone).starts_with("- - - ["));
    }

    #[test]
    fn refused_input_shows_its_first_line() {
        let mut refused = Entry::default();
        for (input, shown) in [
            (&b"\r\nGET  / HTTP/1.1\r\nHost: x\r\n\r\n"[..], "GET  / HTTP/1.1"),
            (b"\x16\x03\x01\x02\"", "\\x16\\x03\\x01\\x02\\x22"),
            (b"", ""),
        ] {
            refused.begin_refused(input, &ip(), 0);
            refused.answer(400, 5);
            let expected =
                format!("192.0.2.7 - - [06/Nov/1994:08:49:37 +0000] \"{shown}\" 400 5 \"-\" \"-\" 1.000042 3\n");
            assert_eq!(combined(&refused), expected);
            let value: serde_json::Value = serde_json::from_str(&json(&refused)).unwrap();
            assert!(value["request"].is_string() && value.get("method").is_none() && value.get("target").is_none());
        }
    }

    #[test]
    fn bytes_of_clients_cannot_forge_lines() {
        // All that a field may have, which no line end is.
        let every: Vec<u8> = (0..=255).filter(|byte| *byte == b'\t' || (*byte >= 0x20 && *byte != 0x7f)).collect();
        let entry = entry(&[("User-Agent", &every)], &ip());
        let line = combined(&entry);
        assert_eq!((line.matches('\n').count(), line.matches('"').count()), (1, 6));
        assert!(line.bytes().all(|byte| byte == b'\n' || (0x20..0x7f).contains(&byte)));
        assert!(line.contains("\\x09 !\\x22#") && line.contains("[\\x5C]") && line.contains("~\\x80"));
        assert_eq!(json(&entry).matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&json(&entry)).unwrap();
        assert_eq!(value["user_agent"], String::from_utf8_lossy(&every).as_ref());
        // And what only refused input may have.
        let mut refused = Entry::default();
        let wild: Vec<u8> = (0..=255).filter(|byte| !b"\r\n".contains(byte)).collect();
        refused.begin_refused(&wild, &ip(), 0);
        assert_eq!(combined(&refused).matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&json(&refused)).unwrap();
        assert_eq!(value["request"], String::from_utf8_lossy(&wild).as_ref());
    }

    #[test]
    fn long_fields_are_cut() {
        let mut refused = Entry::default();
        for (length, kept) in [(-1, -1), (0, 0), (1, 0)] {
            let bytes = |difference: i64| (ACCESS_LOG_FIELD_BYTES_MAX as i64 + difference) as usize;
            refused.begin_refused(&vec![b'a'; bytes(length)], &ip(), 0);
            assert_eq!(combined(&refused).matches('a').count(), bytes(kept));
        }
        assert!(combined(&refused).len() < ACCESS_LOG_BATCH_BYTES);
    }
}
