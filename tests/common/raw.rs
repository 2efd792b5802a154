//! A TCP connection for tests written by hand: exact octets out, strict responses in.

use super::response::Response;
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::Duration,
};

/// No answer of a working server takes longer; a test that waits so long fails.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// One connection and what it received but did not use yet.
pub(crate) struct Raw {
    stream: TcpStream,
    received: Vec<u8>,
    received_bytes: u64,
}

impl Raw {
    /// # Panics
    /// When there is no connection to be had; so do all functions here when the peer does not do what they await.
    pub(crate) fn connect(server: SocketAddr) -> Self {
        Self::over(TcpStream::connect_timeout(&server, WAIT_MAX).expect("the server accepts"))
    }

    /// Over a connection that is there.
    pub(crate) fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("TCP_NODELAY can be set");
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a time limit can be set");
        stream.set_write_timeout(Some(WAIT_MAX)).expect("a time limit can be set");
        Self { stream, received: Vec::new(), received_bytes: 0 }
    }

    pub(crate) fn send(&mut self, octets: impl AsRef<[u8]>) {
        self.stream.write_all(octets.as_ref()).expect("the server reads");
    }

    /// Sends, or says that the server has closed.
    pub(crate) fn try_send(&mut self, octets: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(octets.as_ref())
    }

    /// Sends FIN; reading goes on.
    pub(crate) fn finish_sending(&mut self) {
        self.stream.shutdown(Shutdown::Write).expect("the connection is open");
    }

    /// Reads one response, interim ones included. `method` is that of its request.
    pub(crate) fn response(&mut self, method: &str) -> Response {
        let mut is_eof = false;
        loop {
            match Response::parse(&self.received, method, is_eof) {
                Ok(Some((response, used))) => {
                    self.received.drain(..used);
                    return response;
                }
                Ok(None) => assert!(!is_eof, "closed in or before a response: {}", self.received.escape_ascii()),
                Err(why) => panic!("{why}"),
            }
            is_eof = self.fill() == 0;
        }
    }

    /// Sends a request and reads its response.
    pub(crate) fn exchange(&mut self, request: impl AsRef<[u8]>) -> Response {
        let request = request.as_ref();
        let method = request.split(|&b| b == b' ').next().unwrap_or_default();
        let method = String::from_utf8_lossy(method).into_owned();
        self.send(request);
        self.response(&method)
    }

    /// Exactly so many octets.
    pub(crate) fn octets(&mut self, count: usize) -> Vec<u8> {
        while self.received.len() < count {
            assert!(self.fill() > 0, "closed after {} of {count} octets", self.received.len());
        }
        self.received.drain(..count).collect()
    }

    /// All that comes until the server closes.
    pub(crate) fn until_close(&mut self) -> Vec<u8> {
        while self.fill() > 0 {}
        std::mem::take(&mut self.received)
    }

    /// All octets so far.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// The socket itself, for what a client seldom does.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn fill(&mut self) -> usize {
        let mut buffer = [0; 16 * 1024];
        let count = loop {
            match self.stream.read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read.expect("the server answers or closes in time"),
            }
        };
        self.received.extend_from_slice(&buffer[..count]);
        self.received_bytes += count as u64;
        count
    }
}
