//! The thread that writes the log, and the bounded queue before it. Floor 4.

use crate::{
    error::Error,
    limits::{ACCESS_LOG_BATCHES_QUEUED, ACCESS_LOG_CLOSE_PATIENCE, DRAIN_LOOK},
};
use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

/// What the thread is told.
#[derive(Debug)]
enum Order {
    Write {
        text: Vec<u8>,
        lines: u64,
    },
    /// Something in [`State`] has changed.
    Look,
    End,
}

#[derive(Debug, Default)]
struct State {
    /// Lines that were lost. Touched when there are some, and by who reads the stats.
    lost: AtomicU64,
    /// The file was moved away: open it anew.
    must_reopen: AtomicBool,
}

/// Where a shard hands over its lines.
#[derive(Clone, Debug)]
pub(super) struct Sink {
    orders: SyncSender<Order>,
    state: Arc<State>,
}

impl Sink {
    /// Never waits: lines for which there is no room are lost, and counted.
    pub(super) fn take(&self, text: Vec<u8>, lines: u64) {
        if self.orders.try_send(Order::Write { text, lines }).is_err() {
            self.state.lost.fetch_add(lines, Ordering::Relaxed);
        }
    }
}

/// The thread, as its server has it.
#[derive(Debug)]
pub(crate) struct Writer {
    sink: Sink,
    thread: JoinHandle<()>,
}

impl Writer {
    /// Opens `file`, to append, or else standard output, and starts the thread.
    ///
    /// # Errors
    /// The file cannot be opened, or no thread be made.
    pub(crate) fn start(file: Option<&Path>, shards: usize) -> Result<Self, Error> {
        let target = match file {
            None => Target::Stdout,
            Some(path) => {
                let file = open(path).map_err(|cause| Error::AccessLog { path: path.to_owned(), cause })?;
                Target::File { path: path.to_owned(), file }
            }
        };
        let (sender, orders) = sync_channel(ACCESS_LOG_BATCHES_QUEUED * shards);
        let sink = Sink { orders: sender, state: Arc::default() };
        let mut log = Log { target, state: sink.state.clone(), is_torn: false, is_failing: false };
        let thread = thread::Builder::new().name("access-log".into()).spawn(move || log.follow(&orders));
        Ok(Writer { sink, thread: thread.map_err(Error::Host)? })
    }

    pub(super) fn sink(&self) -> Sink {
        self.sink.clone()
    }

    /// How many lines were lost, whenever it is called.
    pub(crate) fn lost(&self) -> Box<dyn Fn() -> u64 + Send + Sync> {
        let state = self.sink.state.clone();
        Box::new(move || state.lost.load(Ordering::Relaxed))
    }

    /// Has the file opened anew, since it was moved away.
    pub(crate) fn reopen(&self) {
        self.sink.state.must_reopen.store(true, Ordering::Relaxed);
        let _ = self.sink.orders.try_send(Order::Look); // with a full queue it looks anyway
    }

    /// Waits until what the shards have handed over is written, but not for a pipe that nobody reads.
    pub(crate) fn close(self) {
        let deadline = Instant::now() + ACCESS_LOG_CLOSE_PATIENCE;
        let mut has_order = false;
        while !self.thread.is_finished() && Instant::now() < deadline {
            has_order = has_order || self.sink.orders.try_send(Order::End).is_ok();
            thread::sleep(DRAIN_LOOK);
        }
        if !self.thread.is_finished() {
            tracing::warn!("the access log takes no more lines; those of the end are lost");
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o640).open(path)
}

enum Target {
    Stdout,
    File { path: PathBuf, file: File },
}

/// The thread's own.
struct Log {
    target: Target,
    state: Arc<State>,
    /// The last byte that was written is within a line.
    is_torn: bool,
    /// The last write failed: told once, not with each batch.
    is_failing: bool,
}

impl Log {
    fn follow(&mut self, orders: &Receiver<Order>) {
        while let Ok(order) = orders.recv() {
            if self.state.must_reopen.swap(false, Ordering::Relaxed) {
                self.reopen();
            }
            match order {
                Order::Write { text, lines } => self.write(&text, lines),
                Order::Look => {}
                Order::End => return,
            }
        }
    }

    fn reopen(&mut self) {
        let Target::File { path, file } = &mut self.target else { return };
        match open(path) {
            Ok(anew) => {
                *file = anew;
                (self.is_torn, self.is_failing) = (false, false);
                tracing::info!("the access log {} is opened anew", path.display());
            }
            Err(error) => tracing::error!(
                "cannot open the access log {} anew: {error}; it goes on in the file that was open",
                path.display()
            ),
        }
    }

    fn write(&mut self, text: &[u8], lines: u64) {
        let done = match &mut self.target {
            Target::Stdout => append(&mut io::stdout().lock(), text, &mut self.is_torn),
            Target::File { file, .. } => append(file, text, &mut self.is_torn),
        };
        let Err((written, error)) = done else {
            self.is_failing = false;
            return;
        };
        let whole = text[..written].iter().filter(|byte| **byte == b'\n').count() as u64;
        self.state.lost.fetch_add(lines - whole, Ordering::Relaxed);
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::error!("lines of the access log are lost: {error}");
        }
    }
}

/// Writes all of `text`, after the end of a line that an earlier failure cut. An error comes with how much was written.
fn append(out: &mut impl Write, text: &[u8], is_torn: &mut bool) -> Result<(), (usize, io::Error)> {
    if *is_torn {
        out.write_all(b"\n").map_err(|error| (0, error))?;
        *is_torn = false;
    }
    let mut written = 0;
    while written < text.len() {
        match out.write(&text[written..]) {
            Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
            Ok(count) => {
                written += count;
                *is_torn = text[written - 1] != b'\n';
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((written, error)),
        }
    }
    out.flush().map_err(|error| (written, error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::fs;

    /// Takes so many bytes, then fails as a full disk does.
    struct Disk {
        room: usize,
        data: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.room).min(3); // in small pieces
            if taken == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= taken;
            self.data.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn line_that_a_full_disk_cut_is_ended_before_the_next() {
        let mut is_torn = false;
        let mut disk = Disk { room: 6, data: Vec::new() };
        let (written, _) = append(&mut disk, b"one\ntwo\nthree\n", &mut is_torn).unwrap_err();
        assert_eq!((written, is_torn), (6, true));
        let (written, _) = append(&mut disk, b"four\n", &mut is_torn).unwrap_err();
        assert_eq!((written, is_torn), (0, true));
        disk.room = 100;
        append(&mut disk, b"five\n", &mut is_torn).unwrap();
        append(&mut disk, b"six\n", &mut is_torn).unwrap();
        assert_eq!(disk.data, b"one\ntw\nfive\nsix\n");
    }

    #[test]
    fn what_was_handed_over_is_in_the_file_when_it_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "before\n").unwrap();
        let writer = Writer::start(Some(&path), 1).unwrap();
        let lost = writer.lost();
        for n in 0..ACCESS_LOG_BATCHES_QUEUED {
            writer.sink().take(format!("{n}\n").into_bytes(), 1);
        }
        writer.close();
        let expected: String = (0..ACCESS_LOG_BATCHES_QUEUED).map(|n| format!("{n}\n")).collect();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("before\n{expected}"));
        assert_eq!(lost(), 0);
    }

    #[test]
    fn lines_are_lost_and_counted_when_the_file_is_behind() {
        // A thread that takes nothing.
        let (orders, kept) = sync_channel(2);
        let sink = Sink { orders, state: Arc::default() };
        for _ in 0..5 {
            sink.take(b"a\nb\n".to_vec(), 2);
        }
        assert_eq!(sink.state.lost.load(Ordering::Relaxed), 6);
        drop(kept);
        sink.take(b"a\n".to_vec(), 1);
        assert_eq!(sink.state.lost.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn full_device_loses_lines_and_says_so() {
        let Ok(file) = OpenOptions::new().append(true).open("/dev/full") else {
            return println!("skipped: no /dev/full here");
        };
        let target = Target::File { path: "/dev/full".into(), file };
        let mut log = Log { target, state: Arc::default(), is_torn: false, is_failing: false };
        log.write(b"a\nb\n", 2);
        assert_eq!((log.state.lost.load(Ordering::Relaxed), log.is_failing), (2, true));
    }

    #[test]
    fn file_that_cannot_be_opened_is_named() {
        let error = Writer::start(Some(Path::new("/nonexistent/log")), 1).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/log") && error.contains("No such file"), "{error}");
    }
}
