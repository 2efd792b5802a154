//! A second reading of the rules for request heads, slow and plain, that the tests hold the parser against.
//!
//! Shares no code with it: lines are split, then looked at one by one.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Accept { len: usize, body: Body },
    Refuse,
    More,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    None,
    Length(u64),
    Chunked,
}

pub(super) fn judge(input: &[u8]) -> Verdict {
    match judge_lines(input) {
        Some(verdict) => verdict,
        None => Verdict::Refuse,
    }
}

/// `None` is a refusal, so that `?` can be used.
fn judge_lines(input: &[u8]) -> Option<Verdict> {
    let mut lines: Vec<&[u8]> = Vec::new();
    let mut at = 0;
    loop {
        let Some(end) = input[at..].iter().position(|&b| b == b'\n') else {
            return Some(Verdict::More);
        };
        let line = input[at..at + end].strip_suffix(b"\r")?;
        at += end + 1;
        if line.contains(&b'\r') {
            return None;
        }
        match (line.is_empty(), lines.is_empty()) {
            (true, true) => continue,
            (true, false) => break,
            (false, true) => request_line(line)?,
            (false, false) => field(line).map(drop)?,
        }
        lines.push(line);
    }
    let is_11 = !lines[0].ends_with(b"HTTP/1.0");
    judge_whole(&lines, is_11).map(|body| Verdict::Accept { len: at, body })
}

fn request_line(line: &[u8]) -> Option<()> {
    let line = str::from_utf8(line).ok().filter(|line| line.is_ascii())?;
    let parts: Vec<&str> = line.split(' ').collect();
    let [method, target, version] = parts[..] else {
        return None;
    };
    let version_ok = version.len() == 8
        && version.starts_with("HTTP/1.")
        && version.as_bytes()[7].is_ascii_digit();
    (token(method.as_bytes())
        && !target.is_empty()
        && target.bytes().all(|b| b.is_ascii_graphic())
        && version_ok)
        .then_some(())
}

fn field(line: &[u8]) -> Option<(String, Vec<u8>)> {
    let colon = line.iter().position(|&b| b == b':')?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if !token(name) || value.iter().any(|&b| b == 0x7f || (b < 0x20 && b != b'\t')) {
        return None;
    }
    let mut value = value.to_vec();
    while let Some(b' ' | b'\t') = value.last() {
        value.pop();
    }
    while let Some(b' ' | b'\t') = value.first() {
        value.remove(0);
    }
    Some((String::from_utf8(name.to_ascii_lowercase()).ok()?, value))
}

fn token(bytes: &[u8]) -> bool {
    !bytes.is_empty()
        && bytes
            .iter()
            .all(|&b| b.is_ascii_graphic() && !b"\"(),/:;<=>?@[\\]{}".contains(&b))
}

fn judge_whole(lines: &[&[u8]], is_11: bool) -> Option<Body> {
    let mut parts = lines[0].split(|&b| b == b' ');
    let (method, target) = (parts.next()?, str::from_utf8(parts.next()?).ok()?);
    target_form(method, target)?;
    let fields: Vec<(String, Vec<u8>)> = lines[1..]
        .iter()
        .map(|line| field(line))
        .collect::<Option<_>>()?;
    let all = |name: &str| -> Vec<&[u8]> {
        fields
            .iter()
            .filter(|f| f.0 == name)
            .map(|f| &f.1[..])
            .collect()
    };
    match all("host")[..] {
        [] if !is_11 => {}
        [host] => authority(str::from_utf8(host).ok()?, false)?,
        _ => return None,
    }
    match (&all("content-length")[..], &all("transfer-encoding")[..]) {
        ([], []) => Some(Body::None),
        ([length], []) => {
            let digits = str::from_utf8(length)
                .ok()
                .filter(|d| !d.starts_with('+'))?;
            match digits.parse::<u64>().ok()? {
                0 => Some(Body::None),
                length => (length <= 1 << 50).then_some(Body::Length(length)),
            }
        }
        ([], [coding]) if is_11 => coding
            .eq_ignore_ascii_case(b"chunked")
            .then_some(Body::Chunked),
        _ => None,
    }
}

fn target_form(method: &[u8], target: &str) -> Option<()> {
    let known = [
        "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "PROPFIND",
        "LOCK",
    ];
    if !known.iter().any(|known| known.as_bytes() == method) || target.contains('#') {
        return None;
    }
    if method == b"CONNECT" {
        return authority(target, true);
    }
    if target.starts_with('/') || (target == "*" && method == b"OPTIONS") {
        return Some(());
    }
    let lower = target.to_ascii_lowercase();
    let rest = lower
        .strip_prefix("http://")
        .or(lower.strip_prefix("https://"))?;
    authority(rest.split(['/', '?']).next()?, false)
}

fn authority(text: &str, needs_port: bool) -> Option<()> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    match port {
        None => (!needs_port).then_some(())?,
        Some("") => (!needs_port).then_some(())?,
        Some(port) => port
            .bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| port.parse::<u16>().ok())?
            .map(drop)?,
    }
    if let Some(literal) = host.strip_prefix('[') {
        return literal
            .strip_suffix(']')?
            .parse::<std::net::Ipv6Addr>()
            .ok()
            .map(drop);
    }
    let unescaped: String =
        host.split('%')
            .enumerate()
            .try_fold(String::new(), |out, (i, part)| {
                let hex = i == 0
                    || (part.is_char_boundary(2)
                        && part.len() >= 2
                        && part[..2].bytes().all(|b| b.is_ascii_hexdigit()));
                hex.then(|| out + part)
            })?;
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+;=".contains(&b);
    (!host.is_empty() && unescaped.bytes().all(allowed)).then_some(())
}
