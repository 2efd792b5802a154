//! The access log: a line for each answered request. Floor 4.
//!
//! ```text
//! service: Entry (what the request was) ──answered──▶ shard: batch of lines ──▶ bounded queue ──▶ thread: file
//!                                                       full, or half a second old      behind: lines are counted
//! ```
//! For: writing lines beside the path of a request, which costs it no system call, lock or clock. Not for: the counters,
//! which need no lines, or diagnostics. A shard that runs ahead of the file loses whole batches, never parts of a line.

mod clock;
mod line;
mod writer;

pub(crate) use self::{line::Entry, writer::Writer};

use self::{clock::Clock, line::Line, writer::Sink};
use crate::{
    config::AccessLogFormat,
    limits::{ACCESS_LOG_BATCH_BYTES, ACCESS_LOG_DELAY},
    shard::Shard,
};
use std::{
    cell::RefCell,
    future::poll_fn,
    mem,
    task::{Poll, Waker},
};

/// One shard's end of the log. Dropped, it hands over what it has.
#[derive(Debug)]
pub(crate) struct AccessLog {
    format: AccessLogFormat,
    shard: usize,
    sink: Sink,
    batch: RefCell<Batch>,
    clock: RefCell<Clock>,
}

/// Whole lines on their way.
#[derive(Debug, Default)]
struct Batch {
    text: Vec<u8>,
    lines: u64,
    /// Who hands over a batch that does not fill, while there is none.
    waiting: Option<Waker>,
}

impl AccessLog {
    pub(crate) fn new(format: AccessLogFormat, shard: usize, writer: &Writer) -> Self {
        AccessLog { format, shard, sink: writer.sink(), batch: RefCell::default(), clock: RefCell::default() }
    }

    /// Appends the line of `entry`, answered at this time of the shard's clock.
    pub(crate) fn write(&self, entry: &Entry, now_ns: u64) {
        let mut batch = self.batch.borrow_mut();
        let mut clock = self.clock.borrow_mut();
        let line = Line { entry, duration_us: now_ns.saturating_sub(entry.since_ns()) / 1000, shard: self.shard };
        let time = clock.at(now_ns / 1_000_000);
        match self.format {
            AccessLogFormat::Combined => line.write_combined(time, &mut batch.text),
            AccessLogFormat::Json => line.write_json(time, &mut batch.text),
        }
        batch.lines += 1;
        if batch.text.len() >= ACCESS_LOG_BATCH_BYTES {
            drop(batch);
            self.hand_over();
        } else if let Some(waker) = batch.waiting.take() {
            waker.wake();
        }
    }

    /// Hands over what has waited for a while. Never ends; an idle shard is not woken by it.
    pub(crate) async fn hand_over_in_time(&self, shard: &Shard) {
        loop {
            poll_fn(|cx| {
                let mut batch = self.batch.borrow_mut();
                if batch.lines > 0 {
                    return Poll::Ready(());
                }
                batch.waiting = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
            shard.sleep(ACCESS_LOG_DELAY).await;
            self.hand_over();
        }
    }

    fn hand_over(&self) {
        let mut batch = self.batch.borrow_mut();
        if batch.lines == 0 {
            return;
        }
        // As large as this one became: the next will be of a kind.
        let next = Vec::with_capacity(batch.text.len());
        let text = mem::replace(&mut batch.text, next);
        self.sink.take(text, mem::take(&mut batch.lines));
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.hand_over();
    }
}
