//! A request body on its way from the service to its reader. Floor 1.

use super::{Body, BodyError, FieldPairs};
use bytes::Bytes;
use std::{
    cell::RefCell,
    collections::VecDeque,
    fmt,
    rc::Rc,
    task::{Context, Poll, Waker},
};

/// The service's end of a request body that is still arriving. Clones are the same end.
///
/// Neither locks nor threads: both ends live on one shard. The service bounds the queue by looking at
/// [`queued_bytes`](Feed::queued_bytes) before it pushes.
#[derive(Clone)]
pub struct Feed(Rc<RefCell<Queue>>);

/// The [`Body`]'s end.
pub(super) struct Consumer(Rc<RefCell<Queue>>);

struct Queue {
    chunks: VecDeque<Bytes>,
    queued_bytes: usize,
    /// Announced bytes that the consumer did not take yet.
    remaining: Option<u64>,
    end: End,
    trailers: FieldPairs,
    /// Set while the consumer waits for bytes.
    consumer: Option<Waker>,
    /// Set while the service waits for room.
    service: Option<Waker>,
    is_abandoned: bool,
}

enum End {
    Open,
    Ended,
    Failed(BodyError),
}

impl Feed {
    /// Both ends of a body of `len` bytes, or of unknown length.
    pub fn new(len: Option<u64>) -> (Feed, Body) {
        let queue = Rc::new(RefCell::new(Queue {
            chunks: VecDeque::new(),
            queued_bytes: 0,
            remaining: len,
            end: End::Open,
            trailers: FieldPairs::new(),
            consumer: None,
            service: None,
            is_abandoned: false,
        }));
        (Feed(queue.clone()), Body::fed(Consumer(queue)))
    }

    /// Hands bytes to the consumer; without effect after the end or when the body was dropped.
    pub fn push(&self, bytes: Bytes) {
        let mut queue = self.0.borrow_mut();
        if queue.is_abandoned || bytes.is_empty() || !matches!(queue.end, End::Open) {
            return;
        }
        queue.queued_bytes += bytes.len();
        queue.chunks.push_back(bytes);
        let consumer = queue.consumer.take();
        drop(queue);
        wake(consumer);
    }

    /// The body is complete.
    pub fn end(&self, trailers: FieldPairs) {
        self.finish(End::Ended, trailers);
    }

    /// The body breaks off here: the consumer gets what was pushed, then `error`.
    pub fn fail(&self, error: BodyError) {
        self.finish(End::Failed(error), FieldPairs::new());
    }

    fn finish(&self, end: End, trailers: FieldPairs) {
        let mut queue = self.0.borrow_mut();
        if !matches!(queue.end, End::Open) {
            return;
        }
        queue.end = end;
        queue.trailers = trailers;
        let consumer = queue.consumer.take();
        drop(queue);
        wake(consumer);
    }

    /// Whether the consumer polled and found nothing: the time to send `100 Continue` and to read on.
    pub fn is_wanted(&self) -> bool {
        self.0.borrow().consumer.is_some()
    }

    /// Whether the body was dropped: what still comes is to be thrown away.
    pub fn is_abandoned(&self) -> bool {
        self.0.borrow().is_abandoned
    }

    /// Bytes pushed and not yet taken.
    pub fn queued_bytes(&self) -> usize {
        self.0.borrow().queued_bytes
    }

    /// Ready when fewer than `queued_bytes_max` bytes are queued, or the body was dropped. The waker is
    /// for a body that another task reads; it is called when that task takes bytes or drops the body.
    pub fn poll_room(&self, cx: &mut Context<'_>, queued_bytes_max: usize) -> Poll<()> {
        let mut queue = self.0.borrow_mut();
        if queue.is_abandoned || queue.queued_bytes < queued_bytes_max {
            return Poll::Ready(());
        }
        remember(&mut queue.service, cx);
        Poll::Pending
    }
}

impl Consumer {
    /// Announced bytes that are still to be taken, if their number is known.
    pub(super) fn remaining(&self) -> Option<u64> {
        self.0.borrow().remaining
    }

    pub(super) fn take_trailers(&self) -> FieldPairs {
        std::mem::take(&mut self.0.borrow_mut().trailers)
    }

    pub(super) fn poll_chunk(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let mut queue = self.0.borrow_mut();
        if let Some(chunk) = queue.chunks.pop_front() {
            queue.queued_bytes -= chunk.len();
            queue.remaining = queue.remaining.map(|remaining| remaining.saturating_sub(chunk.len() as u64));
            let service = queue.service.take();
            drop(queue);
            wake(service);
            return Poll::Ready(Some(Ok(chunk)));
        }
        match std::mem::replace(&mut queue.end, End::Ended) {
            End::Open => {
                queue.end = End::Open;
                remember(&mut queue.consumer, cx);
                let service = queue.service.take();
                drop(queue);
                wake(service);
                Poll::Pending
            }
            End::Ended => Poll::Ready(None),
            End::Failed(error) => Poll::Ready(Some(Err(error))),
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let mut queue = self.0.borrow_mut();
        queue.is_abandoned = true;
        queue.consumer = None;
        queue.queued_bytes = 0;
        let chunks = std::mem::take(&mut queue.chunks);
        let service = queue.service.take();
        drop(queue);
        drop(chunks);
        wake(service);
    }
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed")
            .field("queued_bytes", &self.queued_bytes())
            .field("is_abandoned", &self.is_abandoned())
            .finish()
    }
}

fn remember(slot: &mut Option<Waker>, cx: &mut Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *slot = Some(cx.waker().clone()),
    }
}

/// Never called while a queue is borrowed: a waker may run code of others.
fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
