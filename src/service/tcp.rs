//! Raw TCP: an author's own protocol on the shards' connections. Floor 5.

use crate::{
    ring::Socket,
    transport::{Phase, Transport},
};
use futures_io::{AsyncRead, AsyncWrite};
use std::{
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

/// Serves one connection; its future is dropped with the shard, if not before.
pub(crate) type TcpHandler = Box<dyn Fn(TcpConnection) -> Pin<Box<dyn Future<Output = io::Result<()>>>>>;

/// An accepted connection. Reads and writes by futures-io; dropping it closes it.
#[derive(Debug)]
pub struct TcpConnection(Socket);

impl TcpConnection {
    pub(crate) fn new(mut socket: Socket) -> Self {
        socket.set_phase(Phase::InHandler); // from here on its handler has it
        TcpConnection(socket)
    }

    /// The client's address; none on a unix socket. A system call.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.0.peer_addr()
    }

    /// The address that the client connected to. A system call.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.0.local_addr()
    }

    /// The socket underneath, with its owned sends and its deadline.
    pub fn transport(&mut self) -> &mut impl Transport {
        &mut self.0
    }
}

impl AsyncRead for TcpConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        AsyncRead::poll_read(Pin::new(&mut self.0), cx, buf)
    }
}

impl AsyncWrite for TcpConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_close(cx)
    }
}
