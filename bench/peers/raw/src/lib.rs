//! What the floor and its epoll twin share: counting request heads, the constant replies, the listener.
//!
//! Neither is a web server: there is no parser, no router and no limit. A request is whatever ends in an
//! empty line, and every request gets the same reply. That is the point: what a real server costs above
//! this is what its design costs.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::SystemTime;

/// The body that all peers answer `/16k` with.
pub const BIG: &str = match std::str::from_utf8(&[b'x'; 16_384]) {
    Ok(text) => text,
    Err(_) => unreachable!(),
};

/// What every request is answered with, chosen on the command line.
#[derive(Clone, Copy, PartialEq)]
pub enum Mode {
    /// 2 bytes.
    Ok,
    /// 4,096 bytes, for comparison with servers that echo a 4 KiB body.
    Echo,
    /// 16,384 bytes.
    Big,
    /// 2 bytes and `Connection: close`; the server closes.
    Close,
}

/// Reads `PORT`; on anything else says so and ends the process.
pub fn port() -> u16 {
    std::env::args()
        .nth(1)
        .and_then(|port| port.parse().ok())
        .unwrap_or_else(|| {
            eprintln!("usage: PORT");
            std::process::exit(2);
        })
}

/// Reads `PORT [ok|4k|16k|close]`; on anything else says so and ends the process.
pub fn arguments() -> (u16, Mode) {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let port = arguments.first().and_then(|port| port.parse().ok());
    let mode = match arguments.get(1).map_or("ok", String::as_str) {
        "ok" => Some(Mode::Ok),
        "4k" => Some(Mode::Echo),
        "16k" => Some(Mode::Big),
        "close" => Some(Mode::Close),
        _ => None,
    };
    let (Some(port), Some(mode)) = (port, mode) else {
        eprintln!("usage: PORT [ok|4k|16k|close]");
        std::process::exit(2);
    };
    (port, mode)
}

/// Counts `\r\n\r\n` in a stream that arrives in pieces.
#[derive(Clone, Copy, Default)]
pub struct HeadCounter {
    /// Where the last three bytes were line feeds, and where carriage returns; bit 2 is the newest.
    line_feeds: u8,
    returns: u8,
}

impl HeadCounter {
    /// How many heads end within `bytes`.
    #[inline]
    pub fn count(&mut self, bytes: &[u8]) -> u32 {
        let (blocks, rest) = bytes.as_chunks::<64>();
        let mut heads = 0;
        for block in blocks {
            heads += self.count_block(block, 64);
        }
        if !rest.is_empty() {
            let mut block = [0; 64];
            block[..rest.len()].copy_from_slice(rest);
            heads += self.count_block(&block, rest.len());
        }
        heads
    }

    /// Sets bits for the line feeds and returns of 64 bytes behind those of the three bytes before, and looks
    /// for the bit pattern of the empty line.
    #[inline]
    fn count_block(&mut self, block: &[u8; 64], len: usize) -> u32 {
        let (line_feeds, returns) = masks(block);
        let n = u128::from(line_feeds) << 3 | u128::from(self.line_feeds);
        let r = u128::from(returns) << 3 | u128::from(self.returns);
        self.line_feeds = (n >> len) as u8 & 7;
        self.returns = (r >> len) as u8 & 7;
        ((n & r << 1 & n << 2 & r << 3) >> 3).count_ones()
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn masks(block: &[u8; 64]) -> (u64, u64) {
    use std::arch::x86_64::*;
    let (mut line_feeds, mut returns) = (0, 0);
    for i in 0..4 {
        // SAFETY: SSE2 is part of x86-64; the unaligned load reads 16 of the block's 64 bytes.
        unsafe {
            let part = _mm_loadu_si128(block.as_ptr().add(16 * i).cast());
            let found = |byte| {
                _mm_movemask_epi8(_mm_cmpeq_epi8(part, _mm_set1_epi8(byte as i8))) as u32 as u64
            };
            line_feeds |= found(b'\n') << (16 * i);
            returns |= found(b'\r') << (16 * i);
        }
    }
    (line_feeds, returns)
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn masks(block: &[u8; 64]) -> (u64, u64) {
    let bits = |wanted: u8| {
        block
            .iter()
            .enumerate()
            .fold(0, |bits, (i, &byte)| bits | u64::from(byte == wanted) << i)
    };
    (bits(b'\n'), bits(b'\r'))
}

/// The constant reply, many times over, so that a batch of requests is answered by one slice.
pub struct Replies {
    bytes: Vec<u8>,
    reply_bytes: usize,
    date_at: usize,
    /// Unix time, in seconds, of the date in the replies.
    dated: u64,
}

impl Replies {
    /// The most replies that one slice holds.
    pub const BATCH_MAX: usize = 64;

    pub fn new(server: &str, mode: Mode) -> Self {
        let body = match mode {
            Mode::Ok | Mode::Close => "OK".to_owned(),
            Mode::Echo => "x".repeat(4096),
            Mode::Big => BIG.to_owned(),
        };
        let close = if mode == Mode::Close {
            "Connection: close\r\n"
        } else {
            ""
        };
        let date = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH);
        let before = format!("HTTP/1.1 200 OK\r\nServer: {server}\r\nDate: ");
        let after = format!(
            "\r\nContent-Type: text/plain\r\n{close}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let reply = format!("{before}{date}{after}").into_bytes();
        let mut replies = Self {
            bytes: reply.repeat(Self::BATCH_MAX),
            reply_bytes: reply.len(),
            date_at: before.len(),
            dated: 0,
        };
        replies.refresh();
        replies
    }

    /// Writes the current date into all replies, if it is another second. Nothing may be sending from them.
    pub fn refresh(&mut self) {
        let now = unix_seconds();
        if now == self.dated {
            return;
        }
        self.dated = now;
        let date = httpdate::fmt_http_date(SystemTime::now());
        for reply in self.bytes.chunks_exact_mut(self.reply_bytes) {
            reply[self.date_at..][..date.len()].copy_from_slice(date.as_bytes());
        }
    }

    /// `count` replies, at most [`Self::BATCH_MAX`].
    #[inline]
    pub fn batch(&self, count: usize) -> &[u8] {
        &self.bytes[..count * self.reply_bytes]
    }

    /// Appends `count` replies of this second to `out`, for servers that own what they send.
    pub fn append(&mut self, count: u32, out: &mut Vec<u8>) {
        self.refresh();
        let mut owed = count as usize;
        while owed > 0 {
            let batch = owed.min(Self::BATCH_MAX);
            out.extend_from_slice(self.batch(batch));
            owed -= batch;
        }
    }

    pub fn reply_bytes(&self) -> usize {
        self.reply_bytes
    }
}

/// The coarse clock: read from memory that the kernel shares, without a call.
fn unix_seconds() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is valid for the write.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &mut now) };
    now.tv_sec as u64
}

/// A listener on 127.0.0.1 whose connections inherit TCP_NODELAY, with a backlog of 4,096.
pub fn listen(port: u16) -> io::Result<TcpListener> {
    // SAFETY: plain calls; the descriptor is owned from here on, and the address outlives `bind`.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(fd);
        let on: libc::c_int = 1;
        for (level, option) in [
            (libc::SOL_SOCKET, libc::SO_REUSEADDR),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY),
        ] {
            libc::setsockopt(
                fd,
                level,
                option,
                (&raw const on).cast(),
                size_of_val(&on) as u32,
            );
        }
        let address = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr {
                s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be(),
            },
            sin_zero: [0; 8],
        };
        if libc::bind(
            fd,
            (&raw const address).cast(),
            size_of_val(&address) as u32,
        ) < 0
            || libc::listen(socket.as_raw_fd(), 4096) < 0
        {
            return Err(io::Error::last_os_error());
        }
        Ok(TcpListener::from(socket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_counted_however_the_bytes_arrive() {
        let head = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 70\r\n\r\n";
        let stream = [head, &"x".repeat(70), head, "\r\r\n\n\n\r\n\r", head, head].concat();
        for piece in 1..stream.len() {
            let mut counter = HeadCounter::default();
            let heads: u32 = stream
                .as_bytes()
                .chunks(piece)
                .map(|bytes| counter.count(bytes))
                .sum();
            assert_eq!(heads, 4, "in pieces of {piece}");
        }
    }

    #[test]
    fn a_batch_repeats_one_whole_reply() {
        let replies = Replies::new("t", Mode::Ok);
        let one = replies.batch(1);
        assert!(one.starts_with(b"HTTP/1.1 200 OK\r\nServer: t\r\nDate: "));
        assert!(one.ends_with(b" GMT\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nOK"));
        assert_eq!(replies.batch(3), one.repeat(3));
    }
}
