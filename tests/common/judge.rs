//! Compares what came on a connection with what a case expects.

use super::{
    case::{BodyWanted, Case, Expect, HeaderWanted, Interim, Which, latin1},
    response::{Framing, Response, show},
    talk::{self, End, Talk},
};
use regex_lite::Regex;
use std::{
    net::{SocketAddr, TcpStream},
    time::{Duration, SystemTime},
};

/// How far a Date may be from our clock.
const DATE_OFF_MAX: Duration = Duration::from_secs(10);

/// Runs a case against a server.
///
/// # Errors
/// Why it failed.
pub(crate) fn run(case: &Case, server: SocketAddr) -> Result<(), String> {
    match talk::talk(case, server)? {
        (_, None) => talk::alive(server),
        (talk, Some(mut stream)) => judge(case, &talk, &mut stream),
    }
}

/// The answers that some alternative wants have come, `close` aside, so that only surplus ones are awaited.
pub(crate) fn is_enough(case: &Case, talk: &Talk) -> bool {
    if talk.finals.is_empty() || talk.malformed.is_some() {
        return false;
    }
    let mut fitting = case.alternatives().iter().filter(|a| mismatch(case, a, talk).is_ok()).peekable();
    if fitting.peek().is_some() {
        // An announced close is waited for.
        return !talk.said_close() && fitting.any(|a| a.close != Some(true));
    }
    let most = case.alternatives().iter().map(|a| a.responses.unwrap_or(1).max(1)).max();
    Some(talk.finals.len()) > most
}

fn judge(case: &Case, talk: &Talk, stream: &mut TcpStream) -> Result<(), String> {
    for octets in &case.expect.never_bytes {
        let octets = latin1(octets);
        if talk.received.windows(octets.len()).any(|w| w == octets) {
            return Err(format!("forbidden octets {} in the answer", show(&octets)));
        }
    }
    if talk.spoke_after_close {
        return Err("octets after a response that said Connection: close".into());
    }
    let mut reasons: Vec<String> = Vec::new();
    for alternative in case.alternatives() {
        match holds(case, alternative, talk, stream) {
            Ok(()) => return check_close_and_version(case, talk),
            Err(why) if reasons.contains(&why) => (),
            Err(why) => reasons.push(why),
        }
    }
    Err(reasons.join(" | "))
}

/// One alternative, `close` included.
fn holds(case: &Case, wanted: &Expect, talk: &Talk, stream: &mut TcpStream) -> Result<(), String> {
    mismatch(case, wanted, talk)?;
    if !talk.finals.is_empty() && !talk.leftover().is_empty() {
        return Err(format!("incomplete response after {} complete", talk.finals.len()));
    }
    match wanted.close {
        Some(true) if talk.end.is_none() => Err("connection left open, must close".into()),
        Some(false) => talk::probe(stream, talk),
        _ => Ok(()),
    }
}

/// What holds whatever a case says.
fn check_close_and_version(case: &Case, talk: &Talk) -> Result<(), String> {
    // RFC 9112 §9.6: who says "close" closes.
    if talk.said_close() && talk.end.is_none() {
        return if case.expect.linger_ok {
            Ok(())
        } else {
            Err("said Connection: close but left the connection open".into())
        };
    }
    // RFC 9112 §6.1: no chunked to a client that may not know it.
    let sent = case.segments().concat();
    let is_http10 = sent.windows(10).take(100_000).any(|w| w == b" HTTP/1.0\r");
    if is_http10 && talk.finals.iter().any(|r| r.framing == Framing::Chunked) {
        return Err("chunked response to an HTTP/1.0 request".into());
    }
    Ok(())
}

/// One alternative, all but `close`.
fn mismatch(case: &Case, wanted: &Expect, talk: &Talk) -> Result<(), String> {
    let Some(first) = talk.finals.first() else {
        return silence(wanted, talk);
    };
    let count = talk.finals.len();
    if let Some(why) = &talk.malformed {
        return Err(format!("after {count} response(s): {why}"));
    }
    if wanted.status.is_empty() && wanted.statuses.is_empty() {
        return Err(format!("unexpected response {}", first.status));
    }
    if !wanted.status.contains(&first.status) {
        return Err(format!("status {}, wanted {:?}", first.status, wanted.status));
    }
    if let Some(responses) = wanted.responses
        && responses != count
    {
        let statuses: Vec<_> = talk.finals.iter().map(|r| r.status).take(8).collect();
        return Err(format!("{count} response(s) {statuses:?}, wanted {responses}"));
    }
    for (i, (response, statuses)) in talk.finals.iter().zip(&wanted.statuses).enumerate() {
        if !statuses.contains(&response.status) {
            return Err(format!("response {} has status {}, wanted {statuses:?}", i + 1, response.status));
        }
    }
    for (i, (response, body)) in talk.finals.iter().zip(&wanted.bodies).enumerate() {
        let octets = match body {
            Some(BodyWanted::Octets(text)) => latin1(text),
            Some(BodyWanted::Sent { tail }) => {
                let mut sent = case.segments().concat();
                sent.split_off(sent.len().saturating_sub(*tail))
            }
            None => continue,
        };
        if (200..300).contains(&response.status) && response.body != octets {
            return Err(format!("response {} body {}, wanted {}", i + 1, show(&response.body), show(&octets)));
        }
    }
    for header in &wanted.headers {
        check_header(header, &talk.finals)?;
    }
    check_interim(wanted, talk)?;
    if let Some(before) = &wanted.before_segment {
        let now = (count, count + talk.interims.len());
        let &(finals, any) = talk.before_segment.get(&before.index).unwrap_or(&now);
        if before.finals.is_some_and(|n| finals < n) {
            return Err(format!("only {finals} response(s) before segment {} was sent", before.index));
        }
        if before.any.is_some_and(|n| any < n) {
            return Err(format!("only {any} message(s) before segment {} was sent", before.index));
        }
    }
    let last = talk.finals.last().unwrap_or(first);
    if wanted.date_changes && first.values("date").eq(last.values("date")) {
        return Err("Date did not change".into());
    }
    Ok(())
}

/// No final response came: is that right?
fn silence(wanted: &Expect, talk: &Talk) -> Result<(), String> {
    if wanted.http09_ok && !talk.received.is_empty() && !talk.received.starts_with(b"HTTP/") && talk.end.is_some() {
        return Ok(());
    }
    if let Some(why) = &talk.malformed {
        return Err(why.clone());
    }
    if !talk.leftover().is_empty() {
        return Err(format!("incomplete response {}", show(talk.leftover())));
    }
    if wanted.interim == Interim::Forbidden
        && let Some(interim) = talk.interims.first()
    {
        return Err(format!("interim response {} not allowed", interim.status));
    }
    match talk.end {
        Some(_) if wanted.is_silence_ok() => Ok(()),
        Some(End::Fin) => Err("closed without an answer".into()),
        Some(End::Rst) => Err("closed without an answer (reset)".into()),
        None if talk.timed_out && wanted.timeout_ok => {
            if wanted.interim == Interim::Required && talk.interims.is_empty() {
                return Err("no 100 Continue and no final response".into());
            }
            Ok(())
        }
        None => Err("no answer within the time limit".into()),
    }
}

fn check_interim(wanted: &Expect, talk: &Talk) -> Result<(), String> {
    match (wanted.interim, talk.interims.first()) {
        (Interim::Required, _) if !talk.interims.iter().any(|r| r.status == 100) => Err("no 100 Continue".into()),
        (Interim::Forbidden, Some(interim)) => Err(format!("interim response {} not allowed", interim.status)),
        _ => Ok(()),
    }
}

fn check_header(wanted: &HeaderWanted, finals: &[Response]) -> Result<(), String> {
    let responses = match wanted.resp {
        Which::Word(_) => finals,
        Which::Index(i) => finals.get(i..=i).unwrap_or_default(),
    };
    if responses.is_empty() {
        return Err("no response for header check".into());
    }
    for response in responses {
        let values: Vec<_> = response.values(&wanted.name).collect();
        if wanted.or_chunked && response.framing == Framing::Chunked {
            continue;
        }
        let joined = values.join(", ");
        match (wanted.present, &wanted.regex, &wanted.if_present_regex) {
            (Some(present), _, _) if values.is_empty() == present => {
                let what = if present { "missing" } else { "must be absent" };
                return Err(format!("header {} {what}", wanted.name));
            }
            (None, Some(regex), _) if values.is_empty() || !is_match(regex, &joined) => {
                return Err(format!("header {} is {values:?}, wanted /{regex}/", wanted.name));
            }
            (None, None, Some(regex)) if !values.is_empty() && !is_match(regex, &joined) => {
                return Err(format!("header {} is {values:?}, wanted /{regex}/", wanted.name));
            }
            _ => (),
        }
        if wanted.date_now {
            check_date(&values)?;
        }
    }
    Ok(())
}

fn is_match(regex: &str, value: &str) -> bool {
    Regex::new(regex).expect("a regular expression in a case compiles").is_match(value)
}

/// One value, IMF-fixdate (RFC 9110 §5.6.7) and current.
fn check_date(values: &[&str]) -> Result<(), String> {
    let [value] = values else {
        return Err(format!("Date {}", if values.is_empty() { "missing" } else { "repeated" }));
    };
    let date = httpdate::parse_http_date(value).map_err(|_| format!("Date {value:?} is no date"))?;
    // The obsolete forms, and a weekday that is wrong, come back different.
    if httpdate::fmt_http_date(date) != *value {
        return Err(format!("Date {value:?} is not IMF-fixdate"));
    }
    let now = SystemTime::now();
    let off = now.duration_since(date).or_else(|_| date.duration_since(now)).unwrap_or_default();
    if off > DATE_OFF_MAX {
        return Err(format!("Date {value:?} is {} s off", off.as_secs()));
    }
    Ok(())
}
