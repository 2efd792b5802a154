//! One connection of a case: sends its segments on time, reads all that comes.
//!
//! What is right is decided in `judge`; what is asked of it here is only whether to wait for more.

use super::{
    case::{Abort, Case},
    judge,
    response::Response,
};
use socket2::SockRef;
use std::{
    collections::HashMap,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

/// Silence after which nothing more is awaited.
const SILENCE: Duration = Duration::from_secs(2);
/// Silence after the answers that were expected, to notice surplus ones.
const SETTLE: Duration = Duration::from_millis(300);
/// The shortest wait for the socket, and the longest that a write holds up reading.
const WAIT_MIN: Duration = Duration::from_millis(1);

const PROBE: &[u8] = b"GET /yo HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// How the server ended the connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    Fin,
    Rst,
}

/// Everything that came on one connection.
#[derive(Debug, Default)]
pub(crate) struct Talk {
    methods: Vec<String>,
    pub(crate) received: Vec<u8>,
    parsed: usize,
    pub(crate) finals: Vec<Response>,
    pub(crate) interims: Vec<Response>,
    /// Why what came is not HTTP.
    pub(crate) malformed: Option<String>,
    pub(crate) end: Option<End>,
    pub(crate) timed_out: bool,
    /// Segment index → final responses and all messages there were before it was sent.
    pub(crate) before_segment: HashMap<usize, (usize, usize)>,
    /// Octets came after a response that said "Connection: close".
    pub(crate) spoke_after_close: bool,
}

impl Talk {
    /// Octets received that are no complete response yet.
    pub(crate) fn leftover(&self) -> &[u8] {
        &self.received[self.parsed..]
    }

    /// The last response announced that the connection ends.
    pub(crate) fn said_close(&self) -> bool {
        self.finals.last().is_some_and(|r| r.has_token("connection", "close"))
    }

    fn parse(&mut self) {
        while self.malformed.is_none() && self.parsed < self.received.len() {
            self.spoke_after_close |= self.said_close();
            let method = self.methods.get(self.finals.len()).map_or("GET", String::as_str);
            match Response::parse(&self.received[self.parsed..], method, self.end.is_some()) {
                Err(why) => self.malformed = Some(why),
                Ok(None) => return,
                Ok(Some((response, used))) => {
                    self.parsed += used;
                    if response.status == 101 {
                        // What follows is another protocol.
                        self.parsed = self.received.len();
                    }
                    match response.status {
                        ..200 => self.interims.push(response),
                        _ => self.finals.push(response),
                    }
                }
            }
        }
    }

    /// Reads once, waiting up to `wait` (zero: not at all). True if octets or the end came.
    fn receive(&mut self, stream: &mut TcpStream, wait: Duration) -> bool {
        let mut buffer = [0; 64 * 1024];
        let set = match wait {
            Duration::ZERO => stream.set_nonblocking(true),
            _ => stream.set_read_timeout(Some(wait.max(WAIT_MIN))),
        };
        let got = set.and_then(|()| stream.read(&mut buffer));
        if wait.is_zero() {
            stream.set_nonblocking(false).expect("a socket can be made blocking again");
        }
        match got {
            Ok(0) => self.end = Some(End::Fin),
            Ok(n) => self.received.extend_from_slice(&buffer[..n]),
            Err(e) if is_retry(&e) => return false,
            Err(_) => self.end = Some(End::Rst),
        }
        self.parse();
        true
    }
}

/// Runs a case up to the end or a silence. The connection comes back unless the case drops it.
///
/// # Errors
/// No connection, or it broke while being set up.
pub(crate) fn talk(case: &Case, server: SocketAddr) -> Result<(Talk, Option<TcpStream>), String> {
    let segments = case.segments();
    let mut talk = Talk { methods: case.methods.clone(), ..Talk::default() };
    let mut stream = connect(server)?;
    let begin = Instant::now();
    let limit = SILENCE * 3 + case.pause() * segments.len() as u32 + case.read_delay() + Duration::from_secs(2);
    let (hard, read_from) = (begin + limit, begin + case.read_delay());
    let bare_answer_ok = case.alternatives().iter().any(|a| a.http09_ok);
    let (mut index, mut out, mut next_at) = (0, &[][..], begin);
    let (mut all_sent, mut write_broken, mut last) = (false, false, begin);
    loop {
        let now = Instant::now();
        if now > hard {
            talk.timed_out = true;
            break;
        }
        if out.is_empty() && index < segments.len() && now >= next_at {
            if index > 0 {
                while talk.end.is_none() && talk.receive(&mut stream, Duration::ZERO) {
                    last = now;
                }
                let finals = talk.finals.len();
                talk.before_segment.insert(index, (finals, finals + talk.interims.len()));
            }
            out = &segments[index];
            index += 1;
            next_at = now + case.pause();
            if out.is_empty() {
                continue;
            }
        }
        let was_sending = !out.is_empty();
        if was_sending {
            match stream.write(&out[..out.len().min(64 * 1024)]) {
                Ok(n) => {
                    out = &out[n..];
                    last = now;
                }
                Err(e) if is_retry(&e) && now - last <= SILENCE => (),
                Err(_) => {
                    (out, index, write_broken) = (&[], segments.len(), true);
                }
            }
        } else if index == segments.len() && !all_sent {
            (all_sent, last) = (true, now);
            if case.half_close && !write_broken {
                // The server may have gone already: then there is nothing to end.
                let _ = stream.shutdown(Shutdown::Write);
            }
        }
        if all_sent && case.abort.is_some() {
            break;
        }
        let wait = match (was_sending, all_sent) {
            (true, _) => Duration::ZERO,
            (false, false) => next_at.saturating_duration_since(now),
            (false, true) => {
                let patience = if judge::is_enough(case, &talk) { SETTLE } else { SILENCE };
                match patience.checked_sub(now - last) {
                    Some(left) if !left.is_zero() => left,
                    _ => {
                        talk.timed_out = patience == SILENCE;
                        break;
                    }
                }
            }
        };
        if now < read_from {
            thread::sleep(wait.min(read_from - now).max(WAIT_MIN));
            continue;
        }
        let wait = if was_sending { wait } else { wait.max(WAIT_MIN).min(hard - now) };
        if talk.receive(&mut stream, wait) {
            last = Instant::now();
            if talk.end.is_some() || (talk.malformed.is_some() && !bare_answer_ok) {
                break;
            }
        }
    }
    if let Some(abort) = case.abort {
        drop_connection(stream, abort)?;
        return Ok((talk, None));
    }
    talk.parse();
    Ok((talk, Some(stream)))
}

/// The connection must still answer, in step.
///
/// # Errors
/// What it did instead.
pub(crate) fn probe(stream: &mut TcpStream, talk: &Talk) -> Result<(), String> {
    if talk.end.is_some() {
        return Err("connection closed, should persist".into());
    }
    stream.write_all(PROBE).map_err(|e| format!("connection closed, should persist ({e})"))?;
    let mut answer = Talk::default();
    let until = Instant::now() + SILENCE;
    while answer.finals.is_empty() && answer.malformed.is_none() && answer.end.is_none() {
        match until.checked_duration_since(Instant::now()) {
            Some(wait) if !wait.is_zero() => answer.receive(stream, wait),
            _ => break,
        };
    }
    if let Some(why) = answer.malformed {
        return Err(format!("follow-up answer malformed: {why}"));
    }
    match answer.finals.first() {
        None if answer.end.is_some() => Err("follow-up request not answered (closed)".into()),
        None => Err("follow-up request not answered".into()),
        Some(r) if r.status == 200 && r.body == b"Hey!" => Ok(()),
        Some(r) => Err(format!("follow-up answer is {} {}", r.status, super::response::show(&r.body))),
    }
}

/// The server still answers on a new connection.
///
/// # Errors
/// What it did instead.
pub(crate) fn alive(server: SocketAddr) -> Result<(), String> {
    let mut stream = connect(server).map_err(|e| format!("server gone: {e}"))?;
    probe(&mut stream, &Talk::default())
}

fn connect(server: SocketAddr) -> Result<TcpStream, String> {
    TcpStream::connect_timeout(&server, SILENCE)
        .and_then(|stream| {
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(WAIT_MIN))?;
            Ok(stream)
        })
        .map_err(|e| format!("cannot talk to the server: {e}"))
}

fn drop_connection(stream: TcpStream, abort: Abort) -> Result<(), String> {
    // Part of the case, not of its checking: the server shall be in the middle of its answer.
    thread::sleep(Duration::from_millis(20));
    if abort == Abort::Rst {
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn is_retry(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
