//! One blocking GET of JSON, for commands that watch a server. Floor 8.
//!
//! Not a client library: plain http, no redirects, the whole answer with its length or to the end of the stream.

use crate::{
    config::Secret,
    limits::{FETCH_ANSWER_BYTES_MAX, FETCH_TIMEOUT},
};
use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
};

/// Where to ask, and how.
#[derive(Clone, Debug)]
pub(super) struct Target {
    host: String,
    port: u16,
    path: String,
    token: Option<Secret>,
}

impl Target {
    /// `http://host:port/path?query`; the scheme may be left out, and the path, which then is `path`.
    ///
    /// # Errors
    /// What was expected.
    pub(super) fn new(url: &str, path: &str, token: Option<Secret>) -> Result<Self, String> {
        let expected = || format!("expected http://HOST:PORT, got {url}");
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: http::Uri = url.parse().map_err(|_| expected())?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(expected)?;
        let path = match uri.path_and_query().map_or("/", |path| path.as_str()) {
            "/" => path,
            path => path,
        };
        Ok(Target {
            host: authority.host().to_owned(),
            port: authority.port_u16().unwrap_or(80),
            path: path.to_owned(),
            token,
        })
    }

    /// The body of an answer with status 200.
    ///
    /// # Errors
    /// No connection, no answer in time, another status.
    pub(super) fn get(&self) -> io::Result<Vec<u8>> {
        let name = self.host.trim_matches(['[', ']']);
        let address = (name, self.port).to_socket_addrs()?.next();
        let address = address.ok_or_else(|| io::Error::other("the host has no address"))?;
        let mut stream = TcpStream::connect_timeout(&address, FETCH_TIMEOUT)?;
        stream.set_read_timeout(Some(FETCH_TIMEOUT))?;
        stream.set_write_timeout(Some(FETCH_TIMEOUT))?;
        let token = self.token.as_ref().map(|Secret(token)| format!("Authorization: Bearer {token}\r\n"));
        let (path, host, port) = (&self.path, &self.host, self.port);
        // HTTP/1.0, so that the body is never chunked.
        let request = format!(
            "GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nAccept: application/json\r\n{}Connection: close\r\n\r\n",
            token.unwrap_or_default()
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(FETCH_ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
        parse(&answer)
    }
}

fn parse(answer: &[u8]) -> io::Result<Vec<u8>> {
    let cut_off = || io::Error::new(io::ErrorKind::UnexpectedEof, "the answer is cut off");
    let end = memchr::memmem::find(answer, b"\r\n\r\n").ok_or_else(cut_off)?;
    let head = String::from_utf8_lossy(&answer[..end]);
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    match status {
        "200" => {}
        "401" => return Err(io::Error::other("the server asks for a token (--token)")),
        "404" => return Err(io::Error::other("the server shows no stats here (404; see its --stats)")),
        status => return Err(io::Error::other(format!("expected status 200, got {status:?}"))),
    }
    let body = &answer[end + 4..];
    let length =
        lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    match length.map(|(_, value)| value.trim().parse::<usize>()) {
        Some(Ok(length)) if body.len() == length => Ok(body.to_vec()),
        None => Ok(body.to_vec()),
        Some(_) => Err(cut_off()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_is_read_with_what_may_be_left_out() {
        let check = |url: &str, expected: (&str, u16, &str)| {
            let target = Target::new(url, "/__stats", None).expect(url);
            assert_eq!((target.host.as_str(), target.port, target.path.as_str()), expected, "{url}");
        };
        check("http://127.0.0.1:8080", ("127.0.0.1", 8080, "/__stats"));
        check("127.0.0.1:9000/", ("127.0.0.1", 9000, "/__stats"));
        check("http://[::1]:1/x?y=z", ("[::1]", 1, "/x?y=z"));
        check("localhost", ("localhost", 80, "/__stats"));
        for url in ["https://x", "", "http://", "http://a b"] {
            assert!(Target::new(url, "/", None).is_err(), "{url}");
        }
    }

    #[test]
    fn answer_is_whole_or_an_error() {
        let check = |answer: &str, expected: Result<&str, &str>| {
            let got = parse(answer.as_bytes()).map_err(|error| error.to_string());
            assert_eq!(got.as_deref().map_err(String::as_str), expected.map(str::as_bytes), "{answer:?}");
        };
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", Ok("{}"));
        check("HTTP/1.0 200 OK\r\n\r\n{}", Ok("{}"));
        check("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}", Err("the answer is cut off"));
        check("HTTP/1.1 200 OK\r\n", Err("the answer is cut off"));
        check("HTTP/1.1 401 Unauthorized\r\n\r\n", Err("the server asks for a token (--token)"));
        check("HTTP/1.1 503 x\r\n\r\n", Err("expected status 200, got \"503\""));
        check("SSH-2.0\r\n\r\n", Err("expected status 200, got \"\""));
    }
}
