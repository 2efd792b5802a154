//! A strict reader of HTTP/1.x responses (RFC 9112): anything doubtful is an error.

/// How the end of a body was known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Framing {
    None,
    Length,
    Chunked,
    /// The server closed.
    Eof,
}

/// One response, read completely.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Names in lower case, values without the whitespace around them.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) framing: Framing,
}

impl Response {
    /// Reads the response at the start of `input`: its value and how many octets it took, or `None` while more
    /// are needed. `method` is that of the request; `is_eof`: nothing will follow `input`.
    ///
    /// # Errors
    /// What is wrong with it, for a person.
    pub(crate) fn parse(input: &[u8], method: &str, is_eof: bool) -> Result<Option<(Self, usize)>, String> {
        let Some((status, mut at)) = status_line(input)? else {
            return Ok(None);
        };
        let Some((headers, used)) = fields(&input[at..], "response head")? else {
            return Ok(None);
        };
        at += used;
        let mut response = Self { status, headers, body: Vec::new(), framing: Framing::None };
        response.check_framing_fields()?;
        // RFC 9112 §6.3: these never have content, whatever the fields say.
        if status < 200 || status == 204 || status == 304 || method == "HEAD" {
            return Ok(Some((response, at)));
        }
        if response.values("transfer-encoding").next().is_some() {
            response.framing = Framing::Chunked;
            let Some((body, used)) = chunked(&input[at..])? else {
                return Ok(None);
            };
            response.body = body;
            return Ok(Some((response, at + used)));
        }
        // A length beyond usize can never be complete.
        let length = response.values("content-length").next().map(|l| l.parse().unwrap_or(usize::MAX));
        if let Some(length) = length {
            response.framing = Framing::Length;
            if input.len() - at < length {
                return Ok(None);
            }
            response.body = input[at..at + length].to_vec();
            return Ok(Some((response, at + length)));
        }
        response.framing = Framing::Eof;
        response.body = input[at..].to_vec();
        Ok(is_eof.then_some((response, input.len())))
    }

    /// Values of the field lines of that name (lower case), in order.
    pub(crate) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers.iter().filter(move |(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// Whether a comma-separated field holds `token`, in any case.
    pub(crate) fn has_token(&self, name: &str, token: &str) -> bool {
        self.values(name)
            .flat_map(|value| value.split(','))
            .any(|t| t.trim_matches([' ', '\t']).eq_ignore_ascii_case(token))
    }

    fn check_framing_fields(&self) -> Result<(), String> {
        let codings: Vec<_> = self.values("transfer-encoding").collect();
        let lengths: Vec<_> = self.values("content-length").collect();
        if !codings.is_empty() && !lengths.is_empty() {
            return Err("response has both Transfer-Encoding and Content-Length".into());
        }
        // RFC 9110 §8.6, RFC 9112 §6.1.
        if (self.status < 200 || self.status == 204) && !(codings.is_empty() && lengths.is_empty()) {
            return Err(format!("{} response carries a framing field", self.status));
        }
        if lengths.len() > 1 {
            return Err("repeated Content-Length in response".into());
        }
        if let Some(length) = lengths.first()
            && (length.is_empty() || !length.bytes().all(|b| b.is_ascii_digit()))
        {
            return Err(format!("bad Content-Length {length:?} in response"));
        }
        if !codings.is_empty() && !codings.join(",").trim().eq_ignore_ascii_case("chunked") {
            return Err(format!("Transfer-Encoding {codings:?} in response"));
        }
        Ok(())
    }
}

/// Status and the octets taken (RFC 9112 §4).
fn status_line(input: &[u8]) -> Result<Option<(u16, usize)>, String> {
    let Some(end) = find_crlf(input) else {
        let start = &input[..input.len().min(7)];
        if !b"HTTP/1.".starts_with(start) {
            return Err(format!("not a status-line: {}", show(input)));
        }
        if input.contains(&b'\n') {
            return Err("status-line ended by bare LF".into());
        }
        return Ok(None);
    };
    let line = &input[..end];
    let is_valid = line.len() >= 13
        && line.starts_with(b"HTTP/1.")
        && matches!(line[7], b'0' | b'1')
        && line[8] == b' '
        && matches!(line[9], b'1'..=b'5')
        && line[10..12].iter().all(u8::is_ascii_digit)
        && line[12] == b' '
        && line[13..].iter().all(|&b| matches!(b, b'\t' | b' '..=0x7e | 0x80..));
    if !is_valid {
        return Err(format!("bad status-line {}", show(line)));
    }
    let status = line[9..12].iter().fold(0, |n, digit| n * 10 + u16::from(digit - b'0'));
    Ok(Some((status, end + 2)))
}

type Fields = Vec<(String, String)>;

/// A header or trailer section and the octets taken, the empty line included (RFC 9112 §5).
fn fields(input: &[u8], what: &str) -> Result<Option<(Fields, usize)>, String> {
    let (mut out, mut at) = (Vec::new(), 0);
    loop {
        let end = find_crlf(&input[at..]);
        let line = &input[at..end.map_or(input.len(), |end| at + end)];
        if line.contains(&b'\n') {
            return Err(format!("{what}: bare LF in {}", show(line)));
        }
        if end.is_none() {
            return if line.len() > 65_536 { Err(format!("{what}: line over 64 KiB")) } else { Ok(None) };
        }
        at += line.len() + 2;
        if line.is_empty() {
            return Ok(Some((out, at)));
        }
        let colon = match line.iter().position(|&b| b == b':') {
            None | Some(0) => return Err(format!("{what}: no field name in {}", show(line))),
            Some(colon) => colon,
        };
        let (name, value) = (&line[..colon], trim_ows(&line[colon + 1..]));
        if !name.iter().all(|&b| is_tchar(b)) {
            return Err(format!("{what}: bad field name {}", show(name)));
        }
        if value.iter().any(|&b| (b < b' ' && b != b'\t') || b == 0x7f) {
            return Err(format!("{what}: control octet in value of {}", show(name)));
        }
        out.push((text(name).to_ascii_lowercase(), text(value)));
    }
}

/// A chunked body and the octets taken, trailers included (RFC 9112 §7.1).
fn chunked(input: &[u8]) -> Result<Option<(Vec<u8>, usize)>, String> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let Some(end) = find_crlf(&input[at..]) else {
            return if input.len() - at > 4096 { Err("chunk-size line too long".into()) } else { Ok(None) };
        };
        let line = &input[at..at + end];
        let size = line.split(|&b| b == b';').next().unwrap_or_default();
        if !(1..=15).contains(&size.len()) || !size.iter().all(u8::is_ascii_hexdigit) {
            return Err(format!("bad chunk-size {}", show(size)));
        }
        let size = usize::from_str_radix(&text(size), 16).map_err(|e| e.to_string())?;
        at += end + 2;
        if size == 0 {
            return Ok(fields(&input[at..], "trailer")?.map(|(_, used)| (body, at + used)));
        }
        if input.len() - at < size + 2 {
            return Ok(None);
        }
        body.extend_from_slice(&input[at..at + size]);
        at += size;
        if &input[at..at + 2] != b"\r\n" {
            return Err("chunk-data not followed by CRLF".into());
        }
        at += 2;
    }
}

/// Octets for a person: escaped, and cut where it gets long.
pub(crate) fn show(octets: &[u8]) -> String {
    let cut = &octets[..octets.len().min(60)];
    format!("\"{}{}\"", cut.escape_ascii(), if cut.len() < octets.len() { "…" } else { "" })
}

fn find_crlf(input: &[u8]) -> Option<usize> {
    input.windows(2).position(|pair| pair == b"\r\n")
}

fn trim_ows(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

fn is_tchar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Latin-1, so that no octet is lost.
fn text(octets: &[u8]) -> String {
    octets.iter().map(|&b| char::from(b)).collect()
}
