//! The floor: one thread, one io_uring, constant replies. The denominator of every ratio in `bench/results`.

use io_uring::{IoUring, Submitter, cqueue, opcode, squeue, types};
use raw::{HeadCounter, Mode, Replies, arguments, listen};
use std::alloc::{Layout, alloc_zeroed};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU16, Ordering};

const SQ_ENTRIES: u32 = 4096;
const CQ_ENTRIES: u32 = 32_768;
const BUFFERS: u16 = 1024;
/// An odd multiple of a cache line, so that the first lines of the buffers do not all fall into the same
/// few sets of the cache.
const BUFFER_BYTES: usize = 8192 + 64;

/// What an operation was, in the upper half of its user data; the lower half is the descriptor.
const ACCEPT: u64 = 0;
const TICK: u64 = 1;
const RECV: u64 = 2;
const SEND: u64 = 3;

fn main() -> io::Result<()> {
    let (port, mode) = arguments();
    let listener = listen(port)?;
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .setup_submit_all()
        .setup_clamp()
        .setup_cqsize(CQ_ENTRIES)
        .build(SQ_ENTRIES)?;
    let mut buffers = Buffers::new(&ring)?;
    let (submitter, submissions, mut completions) = ring.split();
    let mut floor = Floor {
        submitter,
        submissions,
        replies: Replies::new("floor", mode),
        connections: Vec::new(),
        close: mode == Mode::Close,
        sending: 0,
        sends_queued: 0,
    };
    let second = types::Timespec::new().sec(1);
    let accept = opcode::AcceptMulti::new(types::Fd(listener.as_raw_fd())).build();
    let tick = opcode::Timeout::new(&second)
        .count(0)
        .flags(types::TimeoutFlags::MULTISHOT)
        .build();
    floor.push(accept.clone().user_data(ACCEPT << 32));
    floor.push(tick.user_data(TICK << 32));

    loop {
        // A send completes while it is submitted, so waiting for one event more than the sends ends with the
        // first real news. While a send of an earlier turn is still under way, that count would be wrong.
        let late = floor.sending - floor.sends_queued;
        let want = if late == 0 { floor.sends_queued + 1 } else { 1 };
        floor.sends_queued = 0;
        floor.submissions.sync();
        match floor.submitter.submit_and_wait(want) {
            Err(error) if error.raw_os_error() != Some(libc::EINTR) => return Err(error),
            _ => {}
        }
        floor.submissions.sync();
        completions.sync();
        for event in &mut completions {
            let fd = event.user_data() as u32 as i32;
            match event.user_data() >> 32 {
                RECV => floor.received(fd, &event, &mut buffers),
                SEND => floor.sent(fd),
                TICK if floor.sending == 0 => floor.replies.refresh(),
                TICK => {}
                _ => {
                    if event.result() >= 0 {
                        floor.accepted(event.result());
                    }
                    if !cqueue::more(event.flags()) {
                        floor.push(accept.clone().user_data(ACCEPT << 32));
                    }
                }
            }
        }
        completions.sync();
        buffers.give_back();
    }
}

#[derive(Clone, Copy, Default)]
struct Connection {
    heads: HeadCounter,
    /// One send at a time: two could overtake each other.
    is_sending: bool,
    is_closing: bool,
    /// Requests that wait for the send under way.
    owed: u32,
}

struct Floor<'ring> {
    submitter: Submitter<'ring>,
    submissions: squeue::SubmissionQueue<'ring>,
    replies: Replies,
    /// By descriptor.
    connections: Vec<Connection>,
    /// Close after the first reply.
    close: bool,
    /// Sends whose completion has not come.
    sending: usize,
    /// Those of them that are not submitted yet.
    sends_queued: usize,
}

impl Floor<'_> {
    #[inline]
    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: all buffers that operations name are never freed.
        while unsafe { self.submissions.push(&entry) }.is_err() {
            self.submissions.sync();
            self.submitter
                .submit()
                .expect("the ring takes what was queued");
            self.submissions.sync();
        }
    }

    fn accepted(&mut self, fd: i32) {
        if self.connections.len() <= fd as usize {
            self.connections
                .resize(fd as usize + 1, Connection::default());
        }
        self.connections[fd as usize] = Connection::default();
        self.receive(fd);
    }

    fn receive(&mut self, fd: i32) {
        // A receive that stays armed would keep the socket open after its descriptor is closed.
        let entry = if self.close {
            opcode::Recv::new(types::Fd(fd), std::ptr::null_mut(), BUFFER_BYTES as u32)
                .buf_group(0)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT)
        } else {
            opcode::RecvMulti::new(types::Fd(fd), 0).build()
        };
        self.push(entry.user_data(RECV << 32 | fd as u64));
    }

    #[inline]
    fn received(&mut self, fd: i32, event: &cqueue::Entry, buffers: &mut Buffers) {
        let result = event.result();
        let connection = &mut self.connections[fd as usize];
        if result <= 0 && result != -libc::ENOBUFS {
            connection.is_closing = true;
            if !connection.is_sending {
                self.close(fd);
            }
            return;
        }
        if let (Some(id), 1..) = (cqueue::buffer_select(event.flags()), result) {
            connection.owed += connection.heads.count(buffers.filled(id, result as usize));
            buffers.keep(id);
            if connection.owed > 0 && !connection.is_sending {
                self.send(fd);
                if self.close {
                    // Behind the send in the queue: the reply is on its way before the socket closes.
                    return self.close(fd);
                }
            }
        }
        if !cqueue::more(event.flags()) {
            self.receive(fd);
        }
    }

    #[inline]
    fn send(&mut self, fd: i32) {
        let connection = &mut self.connections[fd as usize];
        let count = (connection.owed as usize).min(Replies::BATCH_MAX);
        connection.owed -= count as u32;
        connection.is_sending = true;
        let bytes = self.replies.batch(count);
        let entry = opcode::Send::new(types::Fd(fd), bytes.as_ptr(), bytes.len() as u32)
            .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
            .build();
        self.push(entry.user_data(SEND << 32 | fd as u64));
        self.sending += 1;
        self.sends_queued += 1;
    }

    #[inline]
    fn sent(&mut self, fd: i32) {
        self.sending -= 1;
        let connection = &mut self.connections[fd as usize];
        if self.close {
            return; // Its descriptor is closed already, and may be another connection's.
        }
        connection.is_sending = false;
        if connection.is_closing {
            self.close(fd);
        } else if connection.owed > 0 {
            self.send(fd);
        }
    }

    fn close(&mut self, fd: i32) {
        let entry = opcode::Close::new(types::Fd(fd)).build();
        self.push(entry.flags(squeue::Flags::SKIP_SUCCESS));
    }
}

/// The ring of provided buffers, group 0.
struct Buffers {
    memory: *mut u8,
    entries: *mut types::BufRingEntry,
    tail: u16,
}

impl Buffers {
    fn new(ring: &IoUring) -> io::Result<Self> {
        let entry_bytes = size_of::<types::BufRingEntry>();
        let entries_layout = Layout::from_size_align(entry_bytes * BUFFERS as usize, 4096);
        let memory_layout = Layout::from_size_align(BUFFER_BYTES * BUFFERS as usize, 4096);
        // SAFETY: neither layout is empty; both blocks live as long as the process.
        let mut buffers = unsafe {
            Self {
                memory: alloc_zeroed(memory_layout.expect("a valid layout")),
                entries: alloc_zeroed(entries_layout.expect("a valid layout")).cast(),
                tail: 0,
            }
        };
        // SAFETY: the entries are page-aligned, of the stated number, and never freed.
        unsafe {
            ring.submitter()
                .register_buf_ring_with_flags(buffers.entries as u64, BUFFERS, 0, 0)?
        };
        (0..BUFFERS).for_each(|id| buffers.keep(id));
        buffers.give_back();
        Ok(buffers)
    }

    #[inline]
    fn filled(&self, id: u16, len: usize) -> &[u8] {
        // SAFETY: the kernel named a buffer of this ring and wrote `len` bytes, at most its size.
        unsafe { std::slice::from_raw_parts(self.memory.add(id as usize * BUFFER_BYTES), len) }
    }

    /// Puts a buffer into the ring; the kernel sees it after `give_back`.
    #[inline]
    fn keep(&mut self, id: u16) {
        // SAFETY: the index is masked to the ring, and the kernel does not read entries beyond the tail.
        unsafe {
            let entry = &mut *self.entries.add((self.tail & (BUFFERS - 1)) as usize);
            entry.set_addr(self.memory.add(id as usize * BUFFER_BYTES) as u64);
            entry.set_len(BUFFER_BYTES as u32);
            entry.set_bid(id);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline]
    fn give_back(&mut self) {
        // SAFETY: the tail lies in the first entry's spare field, which entries never write.
        let tail = unsafe { &*types::BufRingEntry::tail(self.entries).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}
