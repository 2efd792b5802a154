//! `everycore healthcheck`: one GET, exit code 0 or 1 only, for container health checks and probes.

use super::args::{HealthcheckArgs, exit};
use crate::limits::{HEALTHCHECK_ANSWER_BYTES_MAX, HEALTHCHECK_TIMEOUT};
use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    process::ExitCode,
    time::Instant,
};

pub(super) fn run(args: &HealthcheckArgs) -> ExitCode {
    match check(&args.url) {
        Ok(answer) => {
            println!("{answer}");
            ExitCode::from(exit::OK)
        }
        Err(error) => {
            eprintln!("everycore: {}: {error}", args.url);
            ExitCode::from(exit::RUNTIME)
        }
    }
}

fn check(url: &str) -> io::Result<String> {
    let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
    let uri: http::Uri = url.parse().map_err(|_| bad("expected http://HOST:PORT/PATH"))?;
    if uri.scheme_str() != Some("http") {
        return Err(bad("expected an address that begins with http://"));
    }
    let authority = uri.authority().ok_or_else(|| bad("expected http://HOST:PORT/PATH"))?;
    let host = authority.host().trim_matches(['[', ']']);
    let address = (host, authority.port_u16().unwrap_or(80)).to_socket_addrs()?.next();
    let address = address.ok_or_else(|| bad("the host has no address"))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());

    let deadline = Instant::now() + HEALTHCHECK_TIMEOUT;
    let mut stream = TcpStream::connect_timeout(&address, HEALTHCHECK_TIMEOUT)?;
    stream.set_write_timeout(Some(HEALTHCHECK_TIMEOUT))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: everycore-healthcheck\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    let mut part = [0; 1024];
    while answer.len() < HEALTHCHECK_ANSWER_BYTES_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => break,
            count => answer.extend_from_slice(&part[..count]),
        }
        if answer.windows(2).any(|pair| pair == b"\r\n") {
            break;
        }
    }
    let text = String::from_utf8_lossy(&answer);
    let line = text.lines().next().unwrap_or_default().to_owned();
    match line.split(' ').nth(1) {
        Some("200") if line.starts_with("HTTP/1.") => Ok(line),
        _ => Err(io::Error::other(format!("expected status 200, got {line:?}"))),
    }
}
