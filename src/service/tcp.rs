//! Raw TCP: an author's own protocol on the shards' connections. Floor 5.
//!
//! For: calling the author's handler, bounding what it awaits of its peer, telling it of a drain, counting. Not for:
//! what the bytes mean.

use super::http1::linger;
use crate::{
    config::ServerConfig,
    limits::DRAIN_IDLE_GRACE_MS,
    ring::{HandlerWait, Socket},
    shard::{DrainSignal, Draining},
    stats::{CloseCause, Count, Counters},
    transport::{Phase, Transport},
};
use futures_io::{AsyncRead, AsyncWrite};
use futures_lite::FutureExt;
use std::{
    cell::{Cell, RefCell},
    fmt,
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll},
    thread::panicking,
    time::Duration,
};

/// Serves one connection; its future is dropped with the shard, if not before.
pub(crate) type TcpHandler = Rc<dyn Fn(TcpConnection) -> Pin<Box<dyn Future<Output = io::Result<()>>>>>;

/// What the raw connections of a shard share.
pub(crate) struct TcpContext {
    idle_timeout_ms: u64,
    write_stall_ms: u64,
    counters: Rc<Counters>,
    drain: Rc<DrainSignal>,
}

impl TcpContext {
    pub(crate) fn new(config: &ServerConfig, counters: Rc<Counters>, drain: Rc<DrainSignal>) -> Self {
        let (idle_timeout_ms, write_stall_ms) = (in_ms(config.idle_timeout), in_ms(config.write_stall_timeout));
        TcpContext { idle_timeout_ms, write_stall_ms, counters, drain }
    }
}

fn in_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Has `handler` serve the connection, and counts why it ended. What the handler wrote is sent, if its peer takes it.
pub(crate) async fn serve(socket: Socket, handler: TcpHandler, context: Rc<TcpContext>) {
    let (noted, left) = (Rc::new(Cell::new(None)), Rc::new(RefCell::new(None)));
    let mut counted = Counted::new(context.clone());
    let line = Line::new(socket, context, noted.clone());
    let connection = TcpConnection { line: Some(line), left: left.clone() };
    // Called in there: a panic of the closure is one of the handler's too.
    let mut service = pin!(async move { handler(connection).await });
    let mut wait = HandlerWait::default();
    let result = AssertUnwindSafe(poll_fn(|cx| wait.poll(service.as_mut(), cx))).catch_unwind().await;
    counted.cause = match result {
        Err(_) => {
            counted.context.counters.handler_panics.add(1);
            log::error!("a handler of a raw connection panicked; the connection is closed");
            CloseCause::Error
        }
        Ok(result) => match (result, noted.get()) {
            (Err(error), None) => failed(&error),
            (_, Some(cause)) => cause,
            (Ok(()), None) if counted.context.drain.began_ms().is_some() => CloseCause::Drained,
            (Ok(()), None) => CloseCause::ServerClosed,
        },
    };
    let left: Option<Line> = left.take();
    if let Some(mut line) = left
        && let Err(error) = poll_fn(|cx| line.poll_sent(cx)).await
    {
        counted.cause = noted.get().unwrap_or(failed(&error));
    }
}

fn failed(error: &io::Error) -> CloseCause {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => CloseCause::Reset,
        _ => CloseCause::Error,
    }
}

/// Counts a connection as long as it is there, also when its task is dropped.
struct Counted {
    context: Rc<TcpContext>,
    cause: CloseCause,
}

impl Counted {
    fn new(context: Rc<TcpContext>) -> Self {
        let counters = &context.counters;
        counters.connections.active.add(1);
        counters.tcp.accepted.add(1);
        counters.tcp.active.add(1);
        Counted { context, cause: CloseCause::Error }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let counters = &self.context.counters;
        counters.connections.active.sub(1);
        counters.connections.closed.by(self.cause).add(1);
        counters.tcp.active.sub(1);
        counters.tcp.closed.by(self.cause).add(1);
    }
}

// ---- what a handler has --------------------------------------------------------------------------

/// An accepted connection. Reads and writes by futures-io.
///
/// No wait for the peer is endless. A read that gets nothing for the server's `idle_timeout`, and a write of which the
/// peer takes nothing for its `write_stall_timeout`, end with [`TimedOut`](io::ErrorKind::TimedOut); both can be
/// [set](Self::set_idle_timeout) for one connection.
///
/// When the server drains, a read that gets nothing for a second ends with
/// [`ConnectionAborted`](io::ErrorKind::ConnectionAborted), so that idle connections do not hold up the drain; one that
/// goes on receiving goes on. It is an error and not an end of file: half of a message must not pass for the whole.
/// A handler that wants to say goodbye, or that waits for something other than its peer, races that with
/// [`draining`](Self::draining). Whatever has not ended after `drain_timeout` is cut off.
///
/// Lines and length-prefixed frames: crates over futures-io do that, such as `asynchronous-codec`, or
/// `futures_lite::io::BufReader` for lines alone.
///
/// A connection lasts as long as its handler: with the handler's end it is counted as closed, what was written is
/// sent, and it is closed. To close it so that a peer that is still sending can read it all, [`finish`](Self::finish).
///
/// ```no_run
/// use everycore::{Router, Server, TcpConnection};
/// use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
///
/// async fn chat(mut connection: TcpConnection) -> std::io::Result<()> {
///     let draining = connection.draining();
///     let talk = async {
///         let mut buffer = [0; 1024];
///         loop {
///             match connection.read(&mut buffer).await? {
///                 0 => return Ok(true),
///                 count => connection.write_all(&buffer[..count]).await?,
///             }
///         }
///     };
///     let has_left = future::or(talk, async {
///         draining.await;
///         Ok::<bool, std::io::Error>(false)
///     });
///     if !has_left.await? {
///         connection.write_all(b"we close; come back soon\n").await?;
///     }
///     connection.finish().await
/// }
///
/// Server::bind("127.0.0.1:8080").tcp("127.0.0.1:7000", |_shard| chat).run(|_shard| Router::new())
/// # ?; Ok::<(), everycore::Error>(())
/// ```
pub struct TcpConnection {
    /// There until the connection is dropped.
    line: Option<Line>,
    /// Where it goes then if bytes are unsent: the task that serves it looks after them.
    left: Rc<RefCell<Option<Line>>>,
}

impl TcpConnection {
    /// The client's address; none on a unix socket. A system call.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.line().socket.peer_addr()
    }

    /// The address that the client connected to. A system call.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.line().socket.local_addr()
    }

    /// How long one read may wait for the peer; `None`: for ever. By default the server's `idle_timeout`.
    pub fn set_idle_timeout(&mut self, timeout: Option<Duration>) {
        self.line_mut().idle_timeout_ms = timeout.map_or(u64::MAX, in_ms);
    }

    /// How long the peer may take no byte of what is written; `None`: for ever. By default the server's
    /// `write_stall_timeout`.
    pub fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.line_mut().write_stall_ms = timeout.map_or(u64::MAX, in_ms);
    }

    /// Completes when the server begins to drain; at once if it has. Borrows nothing: it can be raced with a read.
    pub fn draining(&self) -> Draining {
        self.line().context.drain.wait()
    }

    /// Sends what was written and the end of the stream, then reads on until the peer's end and throws that away, for
    /// two seconds at most. A plain close while the peer is still sending is a reset, and can destroy what it
    /// has not read yet.
    ///
    /// # Errors
    /// The peer did not take what was written.
    pub async fn finish(mut self) -> io::Result<()> {
        let line = self.line_mut();
        poll_fn(|cx| line.poll_sent(cx)).await?;
        linger(&mut line.socket).await;
        Ok(())
    }

    fn line(&self) -> &Line {
        self.line.as_ref().expect("it is taken by the drop alone")
    }

    fn line_mut(&mut self) -> &mut Line {
        self.line.as_mut().expect("it is taken by the drop alone")
    }
}

impl Drop for TcpConnection {
    fn drop(&mut self) {
        if let Some(line) = self.line.take_if(|line| line.socket.is_sending() && !panicking()) {
            self.left.replace(Some(line));
        }
    }
}

impl fmt::Debug for TcpConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TcpConnection").field(&self.line().socket).finish()
    }
}

/// The socket and its deadlines.
struct Line {
    socket: Socket,
    context: Rc<TcpContext>,
    /// Why the connection is about to end, as far as its reads and writes know.
    noted: Rc<Cell<Option<CloseCause>>>,
    idle_timeout_ms: u64,
    write_stall_ms: u64,
    /// Since when a read waits.
    waiting_since: Option<u64>,
    /// Since when the peer takes nothing, and how much it had taken.
    stall: Option<(u64, u64)>,
    /// When the read and the write that wait are given up.
    read_by: u64,
    sent_by: u64,
    /// What the socket's one deadline was set to.
    armed: u64,
}

impl Line {
    fn new(mut socket: Socket, context: Rc<TcpContext>, noted: Rc<Cell<Option<CloseCause>>>) -> Self {
        socket.set_phase(Phase::InHandler); // from here on its handler has it
        Line {
            idle_timeout_ms: context.idle_timeout_ms,
            write_stall_ms: context.write_stall_ms,
            socket,
            context,
            noted,
            waiting_since: None,
            stall: None,
            read_by: u64::MAX,
            sent_by: u64::MAX,
            armed: u64::MAX,
        }
    }

    fn note(&self, cause: CloseCause) {
        self.noted.set(Some(cause));
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if let Poll::Ready(result) = AsyncRead::poll_read(Pin::new(&mut self.socket), cx, buf) {
            self.waiting_since = None;
            self.read_by = u64::MAX;
            match &result {
                Ok(0) if buf.is_empty() => {}
                Ok(0) => self.note(CloseCause::PeerClosed),
                Ok(count) => {
                    self.noted.set(None);
                    self.context.counters.tcp.received.add(*count as u64);
                }
                Err(error) => self.note(failed(error)),
            }
            return Poll::Ready(result);
        }
        let now = self.socket.now_ms();
        let since = *self.waiting_since.get_or_insert(now);
        let idle_by = since.saturating_add(self.idle_timeout_ms);
        let drain_by = self.context.drain.began_ms().map(|began| since.max(began) + DRAIN_IDLE_GRACE_MS);
        self.read_by = drain_by.map_or(idle_by, |by| by.min(idle_by));
        if now < self.read_by {
            self.arm(now);
            return Poll::Pending;
        }
        self.waiting_since = None; // the next read waits anew
        self.read_by = u64::MAX;
        Poll::Ready(Err(if drain_by.is_some_and(|by| by <= now) {
            self.note(CloseCause::Drained);
            io::Error::new(io::ErrorKind::ConnectionAborted, "the server is shutting down, and the peer sends nothing")
        } else {
            self.note(CloseCause::IdleTimeout);
            io::Error::new(io::ErrorKind::TimedOut, "the peer sent nothing within the idle timeout")
        }))
    }

    /// Ready when all that was written is with the kernel.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(result) = self.socket.poll_sent(cx) {
            self.stall = None;
            self.sent_by = u64::MAX;
            return Poll::Ready(result.inspect_err(|error| self.note(failed(error))));
        }
        let (now, taken) = (self.socket.now_ms(), self.socket.sent_bytes());
        let since = match self.stall {
            Some((since, before)) if before == taken => since,
            _ => now,
        };
        self.stall = Some((since, taken));
        self.sent_by = since.saturating_add(self.write_stall_ms);
        if now < self.sent_by {
            self.arm(now);
            return Poll::Pending;
        }
        self.stall = None;
        self.sent_by = u64::MAX;
        self.note(CloseCause::WriteStall);
        let problem = "the peer took nothing of what was written within the write timeout";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, problem)))
    }

    /// Has whoever waits woken at the nearer deadline. One that has passed belongs to a future that was dropped.
    fn arm(&mut self, now: u64) {
        let at = [self.read_by, self.sent_by].into_iter().filter(|&at| at > now).min().unwrap_or(u64::MAX);
        if at != self.armed {
            self.armed = at;
            self.socket.set_deadline(at);
        }
    }
}

impl AsyncRead for TcpConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.line_mut().poll_read(cx, buf)
    }
}

impl AsyncWrite for TcpConnection {
    /// Takes all of `buf` once nothing is in flight; the bytes are copied.
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let line = self.line_mut();
        match line.poll_sent(cx)? {
            Poll::Ready(()) => {
                line.context.counters.tcp.sent.add(buf.len() as u64);
                Pin::new(&mut line.socket).poll_write(cx, buf)
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.line_mut().poll_sent(cx)
    }

    /// Sends the end of the stream once everything written was sent. Reading goes on.
    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let line = self.line_mut();
        match line.poll_sent(cx)? {
            Poll::Ready(()) => Pin::new(&mut line.socket).poll_close(cx),
            Poll::Pending => Poll::Pending,
        }
    }
}
