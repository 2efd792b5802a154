//! The request that a proxy forwards: FORWARD_REQUEST. Floor 1.

use super::{Fault, cursor::Cursor};
use crate::http::{ConnAddrs, Head, HeadLimits, PeerAddr, Reject, Version};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use std::{
    borrow::Cow,
    net::{IpAddr, SocketAddr},
};

/// By code, from 1.
const METHODS: [&str; 27] = [
    "OPTIONS",
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "TRACE",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "ACL",
    "REPORT",
    "VERSION-CONTROL",
    "CHECKIN",
    "CHECKOUT",
    "UNCHECKOUT",
    "SEARCH",
    "MKWORKSPACE",
    "UPDATE",
    "LABEL",
    "MERGE",
    "BASELINE-CONTROL",
    "MKACTIVITY",
];
/// The method's name is an attribute.
const METHOD_NAMED: u8 = 0xff;

/// By code, from A001. Capitalised as clients write them, so that a handler sees what it sees over HTTP.
const HEADERS: [&str; 14] = [
    "Accept",
    "Accept-Charset",
    "Accept-Encoding",
    "Accept-Language",
    "Authorization",
    "Connection",
    "Content-Type",
    "Content-Length",
    "Cookie",
    "Cookie2",
    "Host",
    "Pragma",
    "Referer",
    "User-Agent",
];
/// No name is so long that its length looks like a code.
const HEADER_CODES: u16 = 0xa000;

/// The attributes by code.
mod code {
    pub(super) const CONTEXT: u8 = 0x01;
    pub(super) const SERVLET_PATH: u8 = 0x02;
    pub(super) const REMOTE_USER: u8 = 0x03;
    pub(super) const AUTH_TYPE: u8 = 0x04;
    pub(super) const QUERY: u8 = 0x05;
    pub(super) const ROUTE: u8 = 0x06;
    pub(super) const SSL_CERT: u8 = 0x07;
    pub(super) const SSL_CIPHER: u8 = 0x08;
    pub(super) const SSL_SESSION: u8 = 0x09;
    pub(super) const NAMED: u8 = 0x0a;
    pub(super) const SSL_KEY_BITS: u8 = 0x0b;
    pub(super) const SECRET: u8 = 0x0c;
    pub(super) const METHOD: u8 = 0x0d;
    pub(super) const END: u8 = 0xff;
}

/// What a target that is not encoded must not hold as it is: spaces and other bytes outside visible ASCII, and what
/// would end the path. httpd and mod_jk send paths encoded, lighttpd decodes them first.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'?').add(b'#');

/// A forwarded request; everything in it points into its packet.
#[derive(Debug)]
pub struct Forward<'a> {
    /// The method's name.
    pub method: &'a [u8],
    /// Such as `HTTP/1.1`.
    pub protocol: &'a [u8],
    /// The path, as a rule percent-encoded.
    pub uri: &'a [u8],
    /// The query without its question mark.
    pub query: Option<&'a [u8]>,
    /// The client's address.
    pub remote_addr: Option<&'a [u8]>,
    /// The port that the client connected to.
    pub server_port: u16,
    /// The client came by TLS.
    pub is_tls: bool,
    /// What the proxy proves itself with.
    pub secret: Option<&'a [u8]>,
    /// See [`Forwarded`](super::Forwarded), for this one and the next six.
    pub remote_user: Option<&'a [u8]>,
    /// How that user was logged in.
    pub auth_type: Option<&'a [u8]>,
    /// A balancer's route.
    pub route: Option<&'a [u8]>,
    /// The client's certificate.
    pub ssl_cert: Option<&'a [u8]>,
    /// The TLS cipher.
    pub ssl_cipher: Option<&'a [u8]>,
    /// The TLS session.
    pub ssl_session: Option<&'a [u8]>,
    /// Bits of the TLS key.
    pub ssl_key_bits: Option<u16>,
    /// Header fields, as they came; they have been read once to their end.
    fields: Cursor<'a>,
    field_count: u16,
    /// All attributes, as they came; they have been read once to their end.
    attributes: Cursor<'a>,
}

/// One attribute.
enum Attribute<'a> {
    End,
    Text(u8, Option<&'a [u8]>),
    Named(&'a [u8], &'a [u8]),
    KeyBits(Option<u16>),
}

impl<'a> Forward<'a> {
    /// What httpd and mod_jk say of every connection by attributes of their own. No one has to allow these; the
    /// addresses are in [`addrs`](Self::addrs), the others are for servlets.
    pub const OWN_ATTRIBUTES: [&'static [u8]; 4] =
        [b"AJP_REMOTE_PORT", b"AJP_LOCAL_ADDR", b"AJP_SSL_PROTOCOL", b"JK_LB_ACTIVATION"];

    /// Reads a payload after its type.
    ///
    /// # Errors
    /// It is malformed, has a code that nobody defined, or says something twice.
    pub fn decode(request: &'a [u8]) -> Result<Forward<'a>, Fault> {
        let mut cursor = Cursor(request);
        let method = cursor.byte()?;
        let protocol = cursor.needed_string()?;
        let uri = cursor.needed_string()?;
        let remote_addr = cursor.string()?;
        let _remote_host = cursor.string()?;
        let _server_name = cursor.string()?;
        let server_port = cursor.number()?;
        let is_tls = cursor.byte()? != 0;
        let field_count = cursor.number()?;
        let fields = cursor;
        for _ in 0..field_count {
            read_field(&mut cursor)?;
        }
        let mut forward = Forward {
            method: b"",
            protocol,
            uri,
            query: None,
            remote_addr,
            server_port,
            is_tls,
            secret: None,
            remote_user: None,
            auth_type: None,
            route: None,
            ssl_cert: None,
            ssl_cipher: None,
            ssl_session: None,
            ssl_key_bits: None,
            fields,
            field_count,
            attributes: cursor,
        };
        let name = forward.read_attributes(cursor)?;
        forward.method = match (method, name) {
            (METHOD_NAMED, Some(name)) => name,
            (METHOD_NAMED, None) | (_, Some(_)) => return Err(Fault::BadMethod),
            (code, None) => {
                let name = usize::from(code).checked_sub(1).and_then(|index| METHODS.get(index));
                name.ok_or(Fault::BadMethod)?.as_bytes()
            }
        };
        Ok(forward)
    }

    /// Fills in what the attributes say, all but the method's name, which it gives back.
    fn read_attributes(&mut self, mut cursor: Cursor<'a>) -> Result<Option<&'a [u8]>, Fault> {
        let (mut method, mut context, mut servlet_path, mut has_key_bits) = (None, None, None, false);
        loop {
            let (code, value) = match read_attribute(&mut cursor)? {
                Attribute::End if cursor.0.is_empty() => return Ok(method),
                Attribute::End => return Err(Fault::Leftover),
                Attribute::Named(..) => continue,
                Attribute::KeyBits(bits) => {
                    if std::mem::replace(&mut has_key_bits, true) {
                        return Err(Fault::RepeatedAttribute);
                    }
                    self.ssl_key_bits = bits;
                    continue;
                }
                Attribute::Text(code, value) => (code, value),
            };
            let slot = match code {
                code::CONTEXT => &mut context,
                code::SERVLET_PATH => &mut servlet_path,
                code::REMOTE_USER => &mut self.remote_user,
                code::AUTH_TYPE => &mut self.auth_type,
                code::QUERY => &mut self.query,
                code::ROUTE => &mut self.route,
                code::SSL_CERT => &mut self.ssl_cert,
                code::SSL_CIPHER => &mut self.ssl_cipher,
                code::SSL_SESSION => &mut self.ssl_session,
                code::SECRET => &mut self.secret,
                _ => &mut method,
            };
            // Two secrets, say: which one counts is a matter of taste, and so of attacks.
            if slot.is_some() {
                return Err(Fault::RepeatedAttribute);
            }
            *slot = value;
        }
    }

    /// The header fields in the order they came.
    pub fn fields(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let mut cursor = self.fields;
        (0..self.field_count).map_while(move |_| read_field(&mut cursor).ok())
    }

    /// The attributes that have names, in the order they came.
    pub fn attributes(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let mut cursor = self.attributes;
        std::iter::from_fn(move || {
            loop {
                match read_attribute(&mut cursor) {
                    Ok(Attribute::Named(name, value)) => return Some((name, value)),
                    Ok(Attribute::End) | Err(_) => return None,
                    Ok(_) => {}
                }
            }
        })
    }

    /// Fills `head` with the request, under the rules that one of HTTP/1 has to keep.
    ///
    /// # Errors
    /// It does not keep them.
    pub fn read_into(&self, head: &mut Head, limits: &HeadLimits) -> Result<(), Reject> {
        let version = match self.protocol {
            b"HTTP/1.0" => Version::Http10,
            // A client's HTTP/2 is its proxy's affair.
            [b'H', b'T', b'T', b'P', b'/', b'1'..=b'3', b'.', b'0'..=b'9'] | b"HTTP/2" | b"HTTP/3" => Version::Http11,
            _ => return Err(Reject::VersionNotSupported),
        };
        head.fill(self.method, &self.target()?, version, self.fields(), limits)
    }

    /// The target as a client would have sent it.
    fn target(&self) -> Result<Cow<'a, str>, Reject> {
        if self.uri.iter().any(u8::is_ascii_control) {
            return Err(Reject::BadTarget);
        }
        let path = Cow::from(percent_encode(self.uri, ENCODED));
        let Some(query) = self.query else { return Ok(path) };
        let query = str::from_utf8(query).map_err(|_| Reject::BadTarget)?;
        let mut target = path.into_owned();
        target.push('?');
        target.push_str(query);
        Ok(Cow::Owned(target))
    }

    /// The client's address and the one that it connected to, as far as the proxy tells.
    pub fn addrs(&self) -> ConnAddrs {
        let named = |wanted: &[u8]| self.attributes().find(|(name, _)| *name == wanted).map(|(_, value)| value);
        let ip = |text: Option<&[u8]>| str::from_utf8(text?).ok()?.parse::<IpAddr>().ok();
        let port = named(b"AJP_REMOTE_PORT").and_then(|port| str::from_utf8(port).ok()?.parse().ok()).unwrap_or(0);
        let addr = |ip, port| PeerAddr::Ip(SocketAddr::new(ip, port));
        ConnAddrs {
            peer: ip(self.remote_addr).map(|ip| addr(ip, port)),
            local: ip(named(b"AJP_LOCAL_ADDR")).map(|ip| addr(ip, self.server_port)),
        }
    }
}

fn read_field<'a>(cursor: &mut Cursor<'a>) -> Result<(&'a [u8], &'a [u8]), Fault> {
    let name = match cursor.peek_number()? {
        code if code & 0xff00 == HEADER_CODES => {
            let index = usize::from(cursor.number()? & 0xff).checked_sub(1);
            index.and_then(|index| HEADERS.get(index)).ok_or(Fault::BadHeaderCode)?.as_bytes()
        }
        _ => cursor.needed_string()?,
    };
    Ok((name, cursor.string()?.unwrap_or_default()))
}

fn read_attribute<'a>(cursor: &mut Cursor<'a>) -> Result<Attribute<'a>, Fault> {
    match cursor.byte()? {
        code::END => Ok(Attribute::End),
        code::NAMED => Ok(Attribute::Named(cursor.needed_string()?, cursor.string()?.unwrap_or_default())),
        code::SSL_KEY_BITS => read_key_bits(cursor).map(Attribute::KeyBits),
        code @ (code::CONTEXT..=code::SSL_SESSION | code::SECRET | code::METHOD) => {
            Ok(Attribute::Text(code, cursor.string()?))
        }
        _ => Err(Fault::BadAttributeCode),
    }
}

/// A number from httpd and mod_jk, a string of digits from lighttpd. What follows a number is the code of an
/// attribute, and none of those is a digit.
fn read_key_bits(cursor: &mut Cursor<'_>) -> Result<Option<u16>, Fault> {
    let number = cursor.peek_number()?;
    match cursor.0.get(2) {
        Some(b'0'..=b'9') => {
            let digits = cursor.needed_string()?;
            Ok(str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()))
        }
        _ => {
            cursor.number()?;
            Ok(Some(number))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::writer::Request, *};
    use crate::http::{Framing, Method};

    fn decode(payload: &[u8]) -> Result<Forward<'_>, Fault> {
        Forward::decode(payload.strip_prefix(b"\x02").unwrap())
    }

    fn read(request: &Request) -> Result<Head, Reject> {
        let payload = request.payload();
        let mut head = Head::new();
        decode(&payload).unwrap().read_into(&mut head, &HeadLimits::default()).map(|()| head)
    }

    /// What httpd 2.4 sends for `curl http://h/a%20b?c=1`, byte for byte.
    #[test]
    fn packet_of_httpd_is_read() {
        let payload = b"\x02\x02\0\x08HTTP/1.1\0\0\x06/a%20b\0\0\x09127.0.0.1\0\xff\xff\0\x01h\0\0\x50\0\0\x04\
            \xa0\x0b\0\x01h\0\xa0\x0e\0\x0bcurl/7.88.1\0\xa0\x01\0\x03*/*\0\0\x03X-A\0\0\x01b\0\
            \x0c\0\x01S\0\x05\0\x03c=1\0\x0a\0\x0fAJP_REMOTE_PORT\0\0\x0540000\0\x0a\0\x0eAJP_LOCAL_ADDR\0\0\x09127.0.0.1\0\xff";
        let forward = decode(payload).unwrap();
        assert_eq!((forward.secret, forward.query, forward.is_tls), (Some(&b"S"[..]), Some(&b"c=1"[..]), false));
        let addrs = forward.addrs();
        assert_eq!(addrs.peer.unwrap().to_string(), "127.0.0.1:40000");
        assert_eq!(addrs.local.unwrap().to_string(), "127.0.0.1:80");
        let mut head = Head::new();
        forward.read_into(&mut head, &HeadLimits::default()).unwrap();
        assert_eq!((head.method(), head.target()), (&Method::GET, "/a%20b?c=1"));
        let fields: Vec<_> = head.headers().collect();
        let expected = [("Host", &b"h"[..]), ("User-Agent", b"curl/7.88.1"), ("Accept", b"*/*"), ("X-A", b"b")];
        assert_eq!(fields, expected);
        assert_eq!((head.framing(), head.keep_alive(), head.authority()), (Framing::None, true, Some("h")));
    }

    #[test]
    fn packet_that_is_cut_anywhere_is_refused() {
        let payload =
            Request::get("/a").header("x-a", "b").attribute(0x05, "q").named("A", "b").raw(b"\x0b\x01\0").payload();
        for end in 1..payload.len() {
            assert_eq!(decode(&payload[..end]).err(), Some(Fault::Cut), "{end}");
        }
        assert!(decode(&payload).is_ok());
        let longer = [&payload[..], b"\0"].concat();
        assert_eq!(decode(&longer).err(), Some(Fault::Leftover));
    }

    #[test]
    fn every_method_code_is_that_of_its_name() {
        for (index, name) in METHODS.iter().enumerate() {
            let head = read(&Request::new(index as u8 + 1, if *name == "OPTIONS" { "*" } else { "/" }));
            assert_eq!(head.unwrap().method().as_str(), *name);
        }
        for code in [0, 28, 254] {
            assert_eq!(decode(&Request::new(code, "/").payload()).err(), Some(Fault::BadMethod), "{code}");
        }
    }

    #[test]
    fn method_without_code_is_an_attribute() {
        assert_eq!(read(&Request::new(0xff, "/").attribute(0x0d, "PATCH")).unwrap().method(), Method::PATCH);
        // As over HTTP: no registry has it.
        assert_eq!(read(&Request::new(0xff, "/").attribute(0x0d, "PURGE")).unwrap_err(), Reject::UnknownMethod);
        let fault = |request: Request| decode(&request.payload()).err();
        assert_eq!(fault(Request::new(0xff, "/")), Some(Fault::BadMethod));
        assert_eq!(fault(Request::get("/").attribute(0x0d, "POST")), Some(Fault::BadMethod));
    }

    #[test]
    fn every_header_code_is_that_of_its_name() {
        for (index, name) in HEADERS.iter().enumerate() {
            let request = Request::get("/").no_headers().protocol("HTTP/1.0").coded(index as u8 + 1, "7");
            assert_eq!(read(&request).unwrap().headers().next(), Some((*name, &b"7"[..])));
        }
        for code in [0x00, 0x0f, 0xff] {
            assert_eq!(
                decode(&Request::get("/").coded(code, "v").payload()).err(),
                Some(Fault::BadHeaderCode),
                "{code}"
            );
        }
    }

    #[test]
    fn attributes_are_told_apart_by_code() {
        let codes: Vec<u8> = (0x01..=0x09).collect();
        let request =
            codes.iter().fold(Request::get("/"), |request, code| request.attribute(*code, &format!("v{code}")));
        let payload = request.attribute(0x0c, "s").named("A", "1").named("B", "").named("A", "2").payload();
        let forward = decode(&payload).unwrap();
        let text = |value: Option<&[u8]>| String::from_utf8(value.unwrap().to_vec()).unwrap();
        let values = [
            forward.remote_user,
            forward.auth_type,
            forward.query,
            forward.route,
            forward.ssl_cert,
            forward.ssl_cipher,
            forward.ssl_session,
        ];
        assert_eq!(values.map(text), ["v3", "v4", "v5", "v6", "v7", "v8", "v9"]);
        assert_eq!(text(forward.secret), "s");
        let named: Vec<_> = forward.attributes().collect();
        assert_eq!(named, [(&b"A"[..], &b"1"[..]), (b"B", b""), (b"A", b"2")]);
    }

    #[test]
    fn unknown_attribute_is_refused_whatever_follows() {
        for code in [0x00, 0x0e, 0x0f, 0x7f, 0xfe] {
            let payload = Request::get("/").attribute(code, "v").payload();
            assert_eq!(decode(&payload).err(), Some(Fault::BadAttributeCode), "{code}");
        }
    }

    #[test]
    fn attribute_that_comes_twice_is_refused() {
        for code in [0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0c] {
            let payload = Request::get("/").attribute(code, "a").attribute(code, "b").payload();
            assert_eq!(decode(&payload).err(), Some(Fault::RepeatedAttribute), "{code}");
        }
        let payload = Request::get("/").raw(b"\x0b\0\x01\x0b\0\x02").payload();
        assert_eq!(decode(&payload).err(), Some(Fault::RepeatedAttribute));
    }

    #[test]
    fn key_size_is_a_number_or_a_string() {
        #[track_caller]
        fn check(bytes: &[u8], expected: Option<u16>) {
            let payload = Request::get("/").raw(bytes).attribute(0x05, "q").payload();
            let forward = decode(&payload).unwrap();
            assert_eq!((forward.ssl_key_bits, forward.query), (expected, Some(&b"q"[..])), "{bytes:?}");
        }
        check(b"\x0b\x01\0", Some(256));
        check(b"\x0b\0\x80", Some(128));
        check(b"\x0b\0\x03256\0", Some(256));
        check(b"\x0b\0\x0512345\0", Some(12_345));
        check(b"\x0b\0\x0599999\0", None);
    }

    #[test]
    fn target_is_what_a_client_would_have_sent() {
        #[track_caller]
        fn check(uri: &str, query: Option<&str>, expected: Result<&str, Reject>) {
            let request = query.into_iter().fold(Request::get(uri), |request, query| request.attribute(0x05, query));
            assert_eq!(
                read(&request).map(|head| head.target().to_owned()),
                expected.map(str::to_owned),
                "{uri} {query:?}"
            );
        }
        check("/", None, Ok("/"));
        check("/a%2Fb", Some("c=%20&d"), Ok("/a%2Fb?c=%20&d"));
        check("/a", Some(""), Ok("/a?"));
        check("/a", Some("b?c"), Ok("/a?b?c"));
        // Decoded by lighttpd: encoded again, so that it stays a path.
        check("/a b", None, Ok("/a%20b"));
        check("/a?b", Some("c"), Ok("/a%3Fb?c"));
        check("/a#b", None, Ok("/a%23b"));
        check("/\u{e9}", None, Ok("/%C3%A9"));
        check("/a\r\nb", None, Err(Reject::BadTarget));
        check("/a\0", None, Err(Reject::BadTarget));
        check("/a", Some("b c"), Err(Reject::BadTarget));
        check("/a", Some("b\r\nX: y"), Err(Reject::BadTarget));
        check("/a", Some("b#c"), Err(Reject::BadTarget));
        check("/a", Some("\u{e9}"), Err(Reject::BadTarget));
        check("a", None, Err(Reject::BadTarget));
        check("", None, Err(Reject::BadTarget));
        check(&format!("/{}", "a".repeat(crate::limits::URI_BYTES_MAX)), None, Err(Reject::UriTooLong));
    }

    #[test]
    fn requests_keep_the_rules_of_http() {
        #[track_caller]
        fn check(request: Request, expected: Result<Framing, Reject>) {
            assert_eq!(read(&request).map(|head| head.framing()), expected);
        }
        let post = || Request::post("/");
        check(post(), Ok(Framing::None));
        check(post().length(0), Ok(Framing::None));
        check(post().length(5), Ok(Framing::Length(5)));
        check(post().header("content-length", "5"), Ok(Framing::Length(5)));
        check(post().header("Transfer-Encoding", "chunked"), Ok(Framing::Chunked));
        // Both names of one field are one field.
        check(post().length(5).length(5), Err(Reject::RepeatedContentLength));
        check(post().length(5).header("content-length", "5"), Err(Reject::RepeatedContentLength));
        check(post().length(5).header("transfer-encoding", "chunked"), Err(Reject::LengthAndCoding));
        check(post().length(0).header("transfer-encoding", "chunked"), Err(Reject::LengthAndCoding));
        check(
            post().header("transfer-encoding", "chunked").header("transfer-encoding", "chunked"),
            Err(Reject::BadCoding),
        );
        check(post().header("transfer-encoding", "identity"), Err(Reject::BadCoding));
        check(post().header("transfer-encoding", "xchunked"), Err(Reject::BadCoding));
        check(post().header("transfer-encoding", "gzip, chunked"), Err(Reject::UnsupportedCoding));
        check(post().coded(0x08, "+5"), Err(Reject::BadContentLength));
        check(post().coded(0x08, "5, 5"), Err(Reject::BadContentLength));
        check(post().coded(0x08, "18446744073709551616"), Err(Reject::BadContentLength));
        check(post().coded(0x0b, "y"), Err(Reject::RepeatedHost));
        check(post().no_headers(), Err(Reject::MissingHost));
        check(post().no_headers().protocol("HTTP/1.0"), Ok(Framing::None));
        check(post().protocol("HTTP/2.0"), Ok(Framing::None));
        check(post().protocol("HTTP/9.0"), Err(Reject::VersionNotSupported));
        check(post().protocol("GET"), Err(Reject::VersionNotSupported));
        check(post().header("a b", "c"), Err(Reject::BadFieldName));
        check(post().header("", "c"), Err(Reject::BadFieldName));
        check(post().header("a", "b\r\nc: d"), Err(Reject::BadFieldValue));
        check(post().header("a", "\0"), Err(Reject::BadFieldValue));
        check(post().header("a", " b\t").header("c", b"\xff"), Ok(Framing::None));
        let many = |count| (1..count).fold(post(), |request, _| request.header("a", "b"));
        check(many(crate::limits::HEADERS_MAX), Ok(Framing::None));
        check(many(crate::limits::HEADERS_MAX + 1), Err(Reject::TooManyFields));
        check(post().header("a", "b".repeat(crate::limits::HEAD_BYTES_MAX)), Err(Reject::HeadTooLarge));
    }

    #[test]
    fn connection_is_the_proxys_affair() {
        let head = read(&Request::get("/").coded(0x06, "close")).unwrap();
        assert_eq!(head.header("connection"), Some(&b"close"[..]));
        assert!(!head.keep_alive(), "the service does not ask for this");
    }

    #[test]
    fn head_that_was_used_before_keeps_nothing() {
        let mut head = Head::new();
        head.parse(b"POST /other?x HTTP/1.0\r\nHost: y\r\nContent-Length: 3\r\n\r\n", &HeadLimits::default()).unwrap();
        let payload = Request::get("/a").payload();
        decode(&payload).unwrap().read_into(&mut head, &HeadLimits::default()).unwrap();
        assert_eq!(
            (head.query(), head.framing(), head.headers().len(), head.authority()),
            (None, Framing::None, 1, Some("x"))
        );
        assert!(!head.has_content_length());
        let text = b"GET /b HTTP/1.1\r\nHost: z\r\n\r\n";
        assert_eq!(head.parse(text, &HeadLimits::default()), Ok(Some(text.len())));
        assert_eq!((head.path(), head.authority()), ("/b", Some("z")));
    }
}
