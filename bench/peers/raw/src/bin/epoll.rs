//! The floor's twin: one thread, level-triggered epoll, one `recv` and one `send` a batch of requests.

use raw::{HeadCounter, Mode, Replies, arguments, listen};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

const EVENTS: usize = 1024;
const BUFFER_BYTES: usize = 16_384;

fn main() -> io::Result<()> {
    let (port, mode) = arguments();
    let listener = listen(port)?;
    listener.set_nonblocking(true)?;
    let listener = listener.as_raw_fd();
    // SAFETY: a plain call.
    let epoll = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    watch(epoll, libc::EPOLL_CTL_ADD, listener, libc::EPOLLIN)?;
    let mut server = Server {
        epoll,
        replies: Replies::new("epoll", mode),
        connections: Vec::new(),
        buffer: vec![0; BUFFER_BYTES],
        close: mode == Mode::Close,
    };
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];

    loop {
        // SAFETY: the kernel writes at most `EVENTS` events.
        let ready = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), EVENTS as i32, -1) };
        server.replies.refresh();
        for event in &events[..ready.max(0) as usize] {
            let fd = event.u64 as RawFd;
            if fd == listener {
                server.accept(listener)?;
            } else if event.events & libc::EPOLLOUT as u32 != 0 {
                server.send(fd)?;
            } else {
                server.receive(fd)?;
            }
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Connection {
    heads: HeadCounter,
    /// Requests whose reply is not sent, and how many bytes of the first of these replies are.
    owed: u32,
    sent_bytes: usize,
    waits_for_room: bool,
}

struct Server {
    epoll: RawFd,
    replies: Replies,
    /// By descriptor.
    connections: Vec<Connection>,
    buffer: Vec<u8>,
    /// Close after the first reply.
    close: bool,
}

impl Server {
    fn accept(&mut self, listener: RawFd) -> io::Result<()> {
        loop {
            let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            let (address, len) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: no address is asked for.
            let fd = unsafe { libc::accept4(listener, address, len, flags) };
            if fd < 0 {
                return Ok(());
            }
            if self.connections.len() <= fd as usize {
                self.connections
                    .resize(fd as usize + 1, Connection::default());
            }
            self.connections[fd as usize] = Connection::default();
            watch(self.epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN)?;
        }
    }

    fn receive(&mut self, fd: RawFd) -> io::Result<()> {
        let buffer = &mut self.buffer;
        // SAFETY: the kernel writes at most the buffer's length.
        let len = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        if len <= 0 {
            if len == 0 || io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock {
                close(fd);
            }
            return Ok(());
        }
        let connection = &mut self.connections[fd as usize];
        connection.owed += connection.heads.count(&buffer[..len as usize]);
        if connection.owed == 0 {
            return Ok(());
        }
        self.send(fd)
    }

    fn send(&mut self, fd: RawFd) -> io::Result<()> {
        let connection = &mut self.connections[fd as usize];
        while connection.owed > 0 {
            let count = (connection.owed as usize).min(Replies::BATCH_MAX);
            let bytes = &self.replies.batch(count)[connection.sent_bytes..];
            // SAFETY: the pointer and length are those of one slice.
            let len =
                unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
            if len < 0 {
                if io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock {
                    close(fd);
                } else if !connection.waits_for_room {
                    connection.waits_for_room = true;
                    watch(self.epoll, libc::EPOLL_CTL_MOD, fd, libc::EPOLLOUT)?;
                }
                return Ok(());
            }
            let done = connection.sent_bytes + len as usize;
            connection.owed -= (done / self.replies.reply_bytes()) as u32;
            connection.sent_bytes = done % self.replies.reply_bytes();
        }
        if self.close {
            close(fd);
        } else if connection.waits_for_room {
            connection.waits_for_room = false;
            watch(self.epoll, libc::EPOLL_CTL_MOD, fd, libc::EPOLLIN)?;
        }
        Ok(())
    }
}

fn watch(epoll: RawFd, operation: i32, fd: RawFd, interest: i32) -> io::Result<()> {
    let mut event = libc::epoll_event {
        events: interest as u32,
        u64: fd as u64,
    };
    // SAFETY: the event is only read.
    check(unsafe { libc::epoll_ctl(epoll, operation, fd, &mut event) }).map(drop)
}

fn close(fd: RawFd) {
    // SAFETY: the descriptor came from `accept4`, is closed once and not used again before the next accept.
    unsafe { libc::close(fd) };
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
