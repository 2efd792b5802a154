//! The requests of a run, rendered once before it begins. Floor 6, pure.

use super::target::{LoadError, Scheme, Url};
use crate::limits::{COPIED_BODY_BYTES_MAX, LOAD_URLS_MAX};
use crate::transport::Outgoing;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method};

/// What all requests of a run have in common.
#[derive(Clone, Debug)]
pub struct Common {
    /// The method where a URL file names none.
    pub method: Method,
    /// Fields besides those we write; one of the same name replaces ours.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body, if there is one.
    pub body: Option<Bytes>,
    /// Ask in HTTP/1.0.
    pub is_http10: bool,
    /// Ask for the connection to be kept.
    pub keep_alive: bool,
}

impl Default for Common {
    fn default() -> Self {
        Common { method: Method::GET, headers: Vec::new(), body: None, is_http10: false, keep_alive: true }
    }
}

/// One of the requests that a run makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// How often, relative to the others.
    pub weight: u32,
    /// Its method, if not the common one.
    pub method: Option<Method>,
    /// Its target: path and query.
    pub path: String,
}

/// A request as it is sent.
#[derive(Clone, Debug)]
struct Rendered {
    /// Head and body, or the head alone before a large body.
    bytes: Vec<u8>,
    body: Bytes,
    is_head: bool,
}

/// The requests of a run and how often each is made.
#[derive(Clone, Debug)]
pub struct Mix {
    requests: Vec<Rendered>,
    /// Sums of weights up to and including each request.
    ends: Vec<u64>,
}

impl Mix {
    /// Renders `wanted`, all for the server of `url`.
    ///
    /// # Panics
    /// If nothing is wanted.
    pub fn new(url: &Url, wanted: &[Wanted], common: &Common) -> Mix {
        assert!(!wanted.is_empty(), "a run makes requests");
        let requests = match url.scheme {
            Scheme::Http => wanted.iter().map(|one| render(url, one, common)).collect(),
            Scheme::Tcp => {
                let bytes = common.body.as_ref().map_or(b"GET /\r\n\r\n".to_vec(), |body| body.to_vec());
                vec![Rendered { bytes, body: Bytes::new(), is_head: false }]
            }
        };
        let ends = wanted.iter().scan(0, |sum, one| {
            *sum += u64::from(one.weight);
            Some(*sum)
        });
        Mix { requests, ends: ends.collect() }
    }

    /// The index of the next request, by its weight.
    #[inline]
    pub fn pick(&self, random: &mut fastrand::Rng) -> u32 {
        if self.requests.len() == 1 {
            return 0;
        }
        let all = *self.ends.last().expect("a run makes requests");
        let at = random.u64(0..all);
        self.ends.partition_point(|&end| end <= at) as u32
    }

    /// Appends a request to what is sent.
    #[inline]
    pub fn write(&self, index: u32, out: &mut Outgoing) {
        let request = &self.requests[index as usize];
        out.buf.extend_from_slice(&request.bytes);
        if !request.body.is_empty() {
            out.push_shared(request.body.clone());
        }
    }

    /// Whether the answer to a request has no body (RFC 9110 §9.3.2).
    #[inline]
    pub fn is_head(&self, index: u32) -> bool {
        self.requests[index as usize].is_head
    }
}

fn render(url: &Url, wanted: &Wanted, common: &Common) -> Rendered {
    let method = wanted.method.as_ref().unwrap_or(&common.method);
    let names = |name: &HeaderName| common.headers.iter().any(|(own, _)| own == name);
    let version = if common.is_http10 { "HTTP/1.0" } else { "HTTP/1.1" };
    let mut bytes = format!("{method} {} {version}\r\n", wanted.path).into_bytes();
    let mut field = |name: &str, value: &[u8]| {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            bytes.extend_from_slice(part);
        }
    };
    if !names(&http::header::HOST) {
        field("Host", url.authority.as_bytes());
    }
    if !names(&http::header::CONNECTION) {
        match (common.is_http10, common.keep_alive) {
            (true, true) => field("Connection", b"keep-alive"),
            (false, false) => field("Connection", b"close"),
            _ => {}
        }
    }
    for (name, value) in &common.headers {
        field(name.as_str(), value.as_bytes());
    }
    if let Some(body) = &common.body
        && !names(&http::header::CONTENT_LENGTH)
        && !names(&http::header::TRANSFER_ENCODING)
    {
        field("Content-Length", body.len().to_string().as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    let mut body = common.body.clone().unwrap_or_default();
    if body.len() <= COPIED_BODY_BYTES_MAX {
        bytes.extend_from_slice(&std::mem::take(&mut body));
    }
    Rendered { bytes, body, is_head: method == Method::HEAD }
}

/// Reads a URL file: a line is `[weight] [METHOD] URL|/path`; `#` starts a comment. Gives the address of the first
/// full URL, if there is one, and the requests.
///
/// # Errors
/// A line is none of these, or names another server.
pub fn parse_urls(text: &str) -> Result<(Option<Url>, Vec<Wanted>), LoadError> {
    let mut server: Option<Url> = None;
    let mut wanted = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let bad = |why: String| LoadError::usage("--urls", format!("line {number}: {why}"));
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let address = words.pop().unwrap_or_default();
        let mut words = words.into_iter().peekable();
        let weight = words.next_if(|word| word.starts_with(|first: char| first.is_ascii_digit()));
        let weight = weight.map_or(Ok(1), str::parse).ok().filter(|&weight| weight > 0);
        let weight = weight.ok_or_else(|| bad("expected a weight of 1 or more".into()))?;
        let method = words.next().map(str::parse).transpose();
        let method = method.map_err(|_| bad("expected [weight] [METHOD] URL".into()))?;
        if words.next().is_some() || wanted.len() == LOAD_URLS_MAX {
            return Err(bad(format!("expected [weight] [METHOD] URL, and at most {LOAD_URLS_MAX} lines")));
        }
        let path = if address.starts_with('/') {
            let url: Url = format!("http://h{address}").parse().map_err(|error: LoadError| bad(error.to_string()))?;
            url.path
        } else {
            let url: Url = address.parse().map_err(|error: LoadError| bad(error.to_string()))?;
            let path = url.path.clone();
            let first = server.get_or_insert_with(|| url.clone());
            if (&first.host, first.port, first.scheme) != (&url.host, url.port, url.scheme) {
                return Err(bad(format!("expected the server {}, got {}", first.authority, url.authority)));
            }
            path
        };
        wanted.push(Wanted { weight, method, path });
    }
    if wanted.is_empty() {
        return Err(LoadError::usage("--urls", "expected at least one URL in the file"));
    }
    Ok((server, wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(common: &Common, wanted: Wanted) -> (String, Mix) {
        let mix = Mix::new(&"http://h:8080/".parse().unwrap(), &[wanted], common);
        let mut out = Outgoing::default();
        mix.write(0, &mut out);
        (String::from_utf8(out.slices(0).flatten().copied().collect()).unwrap(), mix)
    }

    #[test]
    fn request_has_exactly_the_fields_it_needs() {
        #[track_caller]
        fn check(change: impl FnOnce(&mut Common), expected: &str) {
            let mut common = Common::default();
            change(&mut common);
            let (text, mix) = rendered(&common, Wanted { weight: 1, method: None, path: "/a?b".into() });
            assert_eq!(text, expected);
            assert_eq!(mix.is_head(0), common.method == Method::HEAD);
        }
        check(|_| {}, "GET /a?b HTTP/1.1\r\nHost: h:8080\r\n\r\n");
        check(|c| c.method = Method::HEAD, "HEAD /a?b HTTP/1.1\r\nHost: h:8080\r\n\r\n");
        check(|c| c.keep_alive = false, "GET /a?b HTTP/1.1\r\nHost: h:8080\r\nConnection: close\r\n\r\n");
        check(|c| c.is_http10 = true, "GET /a?b HTTP/1.0\r\nHost: h:8080\r\nConnection: keep-alive\r\n\r\n");
        check(|c| (c.is_http10, c.keep_alive) = (true, false), "GET /a?b HTTP/1.0\r\nHost: h:8080\r\n\r\n");
        check(
            |c| {
                c.method = Method::POST;
                c.body = Some(Bytes::from_static(b"xyz"));
                c.headers = vec![(http::header::HOST, HeaderValue::from_static("other"))];
            },
            "POST /a?b HTTP/1.1\r\nhost: other\r\nContent-Length: 3\r\n\r\nxyz",
        );
    }

    #[test]
    fn large_body_is_not_copied() {
        for (bytes, is_copied) in [(COPIED_BODY_BYTES_MAX, true), (COPIED_BODY_BYTES_MAX + 1, false)] {
            let common = Common { body: Some(vec![b'x'; bytes].into()), ..Common::default() };
            let mix = Mix::new(
                &"http://h/".parse().unwrap(),
                &[Wanted { weight: 1, method: None, path: "/".into() }],
                &common,
            );
            let mut out = Outgoing::default();
            mix.write(0, &mut out);
            assert_eq!(out.is_contiguous(), is_copied);
            assert!(out.len() > bytes);
        }
    }

    #[test]
    fn weights_are_kept() {
        let wanted = [1, 0, 3].map(|weight| Wanted { weight, method: None, path: "/".into() });
        let mix = Mix::new(&"http://h/".parse().unwrap(), &wanted, &Common::default());
        let mut random = fastrand::Rng::with_seed(7);
        let mut counts = [0; 3];
        for _ in 0..4_000 {
            counts[mix.pick(&mut random) as usize] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!((900..1_100).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn url_file_is_read_line_by_line() {
        let (server, wanted) =
            parse_urls("# mix\n\n/a\n  3 /b?c\nPOST /d\n10 HEAD http://h:81/e#f\nhttp://h:81/\n").unwrap();
        assert_eq!(server.unwrap().authority, "h:81");
        let one = |weight, method: Option<Method>, path: &str| Wanted { weight, method, path: path.into() };
        let expected = [
            one(1, None, "/a"),
            one(3, None, "/b?c"),
            one(1, Some(Method::POST), "/d"),
            one(10, Some(Method::HEAD), "/e"),
            one(1, None, "/"),
        ];
        assert_eq!(wanted, expected);
        for (text, why) in [
            ("", "at least one URL"),
            ("0 /a", "line 1: expected a weight"),
            ("99999999999 /a", "line 1: expected a weight"),
            ("/ok\n1 GET x /a", "line 2: expected [weight] [METHOD] URL"),
            ("a", "line 1: URL: expected http://host"),
            ("http://a/\nhttp://b/", "line 2: expected the server a, got b"),
        ] {
            let error = parse_urls(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }
}
