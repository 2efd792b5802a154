//! A shard as its author's code sees it, and how shards talk. Floor 4.
//!
//! Shards share nothing but bounded mailboxes, their doorbells, and one connection count each. A message is
//! moved into the other shard's mailbox and its doorbell is rung: it is read there in the next turn.

mod drain;
mod mail;

pub(crate) use drain::DrainSignal;
pub use drain::Draining;
pub(crate) use mail::{Mail, Peers, Reply};

use crate::{
    limits::{MAILBOX_MAX, METRICS_MAX},
    ring::{Ring, Sleep, ThreadTime},
    stats::{Counter, Counters, Durations, Recent, Registry, Sample, ShardReport},
};
use std::{
    any::{Any, TypeId, type_name},
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    fmt,
    future::{Future, poll_fn},
    rc::{Rc, Weak},
    sync::{Arc, mpsc::TrySendError},
    task::{Poll, Waker},
    time::Duration,
};

/// A handle to the shard this code runs on. Cheap to clone; never leaves its thread.
///
/// Handlers get it from the closure that builds their router:
///
/// ```no_run
/// # use everycore::{Router, Server};
/// # use std::time::Duration;
/// Server::bind("127.0.0.1:8080").run(|shard| {
///     Router::new().get("/slow", move |_| {
///         let shard = shard.clone();
///         async move {
///             shard.sleep(Duration::from_millis(20)).await;
///             format!("from shard {}", shard.id())
///         }
///     })
/// })
/// # ?; Ok::<(), everycore::Error>(())
/// ```
#[derive(Clone)]
pub struct Shard(Rc<Inner>);

thread_local! {
    /// The shard of this thread, for what is built on it without being handed it.
    static CURRENT: RefCell<Weak<Inner>> = const { RefCell::new(Weak::new()) };
}

struct Inner {
    id: usize,
    core: Option<usize>,
    ring: Ring,
    counters: Rc<Counters>,
    recent: Rc<RefCell<Recent>>,
    metrics: Registry,
    /// What the thread had used when the ring's clock began.
    used_before: ThreadTime,
    peers: Arc<Peers>,
    drain: Rc<DrainSignal>,
    inboxes: RefCell<HashMap<TypeId, Rc<dyn Deliver>>>,
    /// Questions to the other shards that are not answered yet.
    asked: RefCell<HashMap<u64, Asked>>,
    questions: Cell<u64>,
}

struct Asked {
    answers: Vec<ShardReport>,
    waker: Option<Waker>,
}

impl Shard {
    pub(crate) fn new(id: usize, core: Option<usize>, ring: Ring, counters: Rc<Counters>, peers: Arc<Peers>) -> Self {
        let recent = Rc::new(RefCell::new(Recent::default()));
        let used_before = ThreadTime::read();
        let (noted, counted) = (recent.clone(), counters.clone());
        ring.each_second(move |second, ring, times| {
            let sample = Sample {
                requests: counted.requests.get(),
                received: ring.bytes_in,
                sent: ring.bytes_out,
                accepted: counted.connections.accepted.get(),
                busy_ns: ThreadTime::running_ns(),
            };
            noted.borrow_mut().note(second, sample, ring.turn_ns_max_this_second, times);
        });
        let shard = Rc::new(Inner {
            id,
            core,
            ring,
            counters,
            recent,
            metrics: Registry::default(),
            used_before,
            peers,
            drain: Rc::default(),
            inboxes: RefCell::default(),
            asked: RefCell::default(),
            questions: Cell::new(0),
        });
        CURRENT.set(Rc::downgrade(&shard));
        Shard(shard)
    }

    /// The shard that this thread runs; none in a test without a server.
    pub(crate) fn current() -> Option<Shard> {
        CURRENT.with_borrow(Weak::upgrade).map(Shard)
    }

    /// Its number, from 0.
    pub fn id(&self) -> usize {
        self.0.id
    }

    /// The core it is tied to, if it is.
    pub fn core(&self) -> Option<usize> {
        self.0.core
    }

    /// How many shards the server has.
    pub fn count(&self) -> usize {
        self.0.peers.0.len()
    }

    /// Runs `future` on this shard, beside the requests, until it ends or the shard does. A panic ends it alone.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        self.0.ring.spawn(future);
    }

    /// Completes after `duration`, never early. On the shard's own timer wheel: cheaper and, under load, more
    /// punctual than glommio's timers.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.0.ring.sleep(duration)
    }

    /// Completes when the server begins to drain; at once if it has. For what goes on by itself: an endless stream, a
    /// task beside the requests. HTTP connections are looked after without it.
    pub fn draining(&self) -> Draining {
        self.0.drain.wait()
    }

    /// The shard's ring, for sockets of your own.
    pub fn ring(&self) -> &Ring {
        &self.0.ring
    }

    /// Moves `message` to shard `to` (this one included), where the [`Inbox`] of its type gets it.
    ///
    /// # Errors
    /// There is no such shard, it has ended, or its mailbox is full; the message comes back.
    pub fn send_to<M: Send + 'static>(&self, to: usize, message: M) -> Result<(), SendError<M>> {
        let Some(peer) = self.0.peers.0.get(to) else { return Err(SendError::NoSuchShard(message)) };
        peer.post(Mail::Message(Box::new(message))).map_err(|error| {
            let (mail, is_full) = match error {
                TrySendError::Full(mail) => (mail, true),
                TrySendError::Disconnected(mail) => (mail, false),
            };
            let Mail::Message(message) = mail else { unreachable!("what was posted comes back") };
            let message = *message.downcast::<M>().expect("what was posted comes back");
            if is_full { SendError::Full(message) } else { SendError::Ended(message) }
        })
    }

    /// Receives the messages of type `M` from now on. One inbox a type: a second replaces the first.
    pub fn inbox<M: 'static>(&self) -> Inbox<M> {
        let slot = Rc::new(InboxSlot::<M> { queue: RefCell::default(), waker: RefCell::default() });
        self.0.inboxes.borrow_mut().insert(TypeId::of::<M>(), slot.clone());
        Inbox(slot)
    }

    /// The counter called `name` of this shard, made at the first call. It appears beside the server's own in
    /// `/__stats` and `/metrics` (there as `name_total`), the shards' added up and one by one. Adding to it costs
    /// what adding to a number costs: get it once, when the shard is built, not in each request.
    ///
    /// A name has letters, digits and `_`, no unit or `_total` at its end, and is not one of the server's own. With any
    /// other, or when the shard has too many, the counter is
    /// one that nobody sees, and that is logged.
    ///
    /// ```
    /// # use everycore::{Router, Shard};
    /// fn app(shard: Shard) -> Router {
    ///     let orders = shard.counter("orders");
    ///     Router::new().post("/order", move |_| {
    ///         orders.increment();
    ///         "thank you"
    ///     })
    /// }
    /// ```
    pub fn counter(&self, name: &str) -> Counter {
        self.0.metrics.counter(name).unwrap_or_else(|| refused(name))
    }

    /// The histogram of durations called `name` of this shard; otherwise as [`counter`](Self::counter).
    /// In `/metrics` it is `name_seconds`.
    pub fn histogram(&self, name: &str) -> Durations {
        self.0.metrics.durations(name).unwrap_or_else(|| refused(name))
    }

    /// This shard's own counters, now. Looks at every connection, and asks the kernel for some.
    pub(crate) fn report(&self) -> ShardReport {
        let mut counters = self.0.counters.snapshot();
        counters.fill_in();
        let ring = self.0.ring.stats();
        let recent = self.0.recent.borrow();
        let service_times = self.0.ring.service_times();

        let used = ThreadTime::read();
        counters.driver.busy_ns = used.running_ns.saturating_sub(self.0.used_before.running_ns);
        counters.driver.delayed_ns = used.delayed_ns.saturating_sub(self.0.used_before.delayed_ns);
        counters.driver.parked_ns = ring.parked_ns;
        let awake_ns = self.0.ring.now_ns().saturating_sub(ring.parked_ns);
        counters.driver.waiting_ns = awake_ns.saturating_sub(counters.driver.busy_ns);
        counters.driver.turn_max_ns = ring.turn_ns_max;
        counters.driver.turn_max_60s_ns = recent.turn_ns_max().max(ring.turn_ns_max_this_second);
        counters.recent = recent.snapshot();

        let census = self.0.ring.census();
        let connections = &mut counters.connections;
        [connections.idle, connections.reading_head, connections.in_handler, connections.writing] = census.by_phase;
        let ages = &mut connections.ages;
        [ages.below_1s, ages.below_10s, ages.below_1m, ages.below_10m, ages.below_1h, ages.older] = census.by_age;
        counters.buffers.in_use = census.buffers;
        counters.buffers.in_use_bytes = census.buffer_bytes;
        counters.buffers.filled = ring.buffers_filled;
        counters.buffers.peak = ring.buffers_filled_peak;
        let queue = self.0.ring.accept_queue();
        counters.accept_queue.waiting = queue.waiting;
        counters.accept_queue.room = queue.room;

        counters.bytes.received = ring.bytes_in;
        counters.bytes.sent = ring.bytes_out;
        counters.driver.turns = ring.turns;
        counters.driver.visits = ring.visits;
        counters.driver.parks = ring.parks;
        counters.driver.ticks = ring.ticks;
        counters.driver.ring_enters = ring.enters;
        counters.driver.cq_overflows = ring.cq_overflows;
        counters.driver.send_short = ring.short_sends;
        counters.buffers.enobufs = ring.enobufs;
        ShardReport {
            shard: self.0.id,
            core: self.0.core,
            counters,
            recent_times: recent.times(&service_times),
            service_times,
            metrics: self.0.metrics.snapshot(),
        }
    }

    /// Asks all shards for their counters and waits at most `patience`; who is late is not in the answer.
    pub(crate) async fn ask_all(&self, patience: Duration) -> Vec<ShardReport> {
        let question = self.0.questions.get();
        self.0.questions.set(question.wrapping_add(1));
        let own = Asked { answers: vec![self.report()], waker: None };
        self.0.asked.borrow_mut().insert(question, own);
        let _forget = Forget { shard: self, question };
        let mut wanted = 1;
        for (id, peer) in self.0.peers.0.iter().enumerate() {
            if id != self.0.id && peer.post(Mail::Ask { question, reply: Reply::To(self.0.id) }).is_ok() {
                wanted += 1;
            }
        }
        let all_in = poll_fn(|cx| {
            let mut asked = self.0.asked.borrow_mut();
            let asked = asked.get_mut(&question).expect("forgotten only below");
            if asked.answers.len() >= wanted {
                return Poll::Ready(());
            }
            asked.waker = Some(cx.waker().clone());
            Poll::Pending
        });
        futures_lite::future::or(all_in, self.sleep(patience)).await;
        let mut asked = self.0.asked.borrow_mut();
        asked.get_mut(&question).map(|asked| std::mem::take(&mut asked.answers)).unwrap_or_default()
    }

    pub(crate) fn answer(&self, question: u64, reply: &Reply) {
        match reply {
            // A shard that has ended, or is too busy to take it, will list us as missing.
            Reply::To(id) => drop(self.0.peers.0[*id].post(Mail::Answer { question, report: Box::new(self.report()) })),
            Reply::Thread(sender) => drop(sender.try_send(self.report())),
        }
    }

    pub(crate) fn take_answer(&self, question: u64, report: ShardReport) {
        if let Some(asked) = self.0.asked.borrow_mut().get_mut(&question) {
            asked.answers.push(report);
            if let Some(waker) = asked.waker.take() {
                waker.wake();
            }
        }
    }

    pub(crate) fn deliver(&self, message: Box<dyn Any + Send>) {
        let inbox = self.0.inboxes.borrow().get(&(*message).type_id()).cloned();
        match inbox {
            Some(inbox) => inbox.deliver(message),
            None => tracing::warn!("shard {} has no inbox for a message that another shard sent", self.0.id),
        }
    }

    pub(crate) fn drain_signal(&self) -> &Rc<DrainSignal> {
        &self.0.drain
    }

    pub(crate) fn peers(&self) -> &Arc<Peers> {
        &self.0.peers
    }

    pub(crate) fn counters(&self) -> &Rc<Counters> {
        &self.0.counters
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("id", &self.0.id).field("core", &self.0.core).finish_non_exhaustive()
    }
}

/// A metric that nobody sees.
fn refused<M: Default>(name: &str) -> M {
    tracing::error!("{name:?} is no metric: expected letters, digits and _, and {METRICS_MAX} metrics at most");
    M::default()
}

struct Forget<'a> {
    shard: &'a Shard,
    question: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.shard.0.asked.borrow_mut().remove(&self.question);
    }
}

// ---- messages ------------------------------------------------------------------------------------

/// Messages of one type from other shards. Dropping it leaves later ones undelivered (logged).
pub struct Inbox<M>(Rc<InboxSlot<M>>);

struct InboxSlot<M> {
    queue: RefCell<VecDeque<M>>,
    waker: RefCell<Option<Waker>>,
}

impl<M: 'static> Inbox<M> {
    /// The next message. Dropping the future loses nothing.
    pub async fn receive(&mut self) -> M {
        poll_fn(|cx| match self.0.queue.borrow_mut().pop_front() {
            Some(message) => Poll::Ready(message),
            None => {
                self.0.waker.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}

impl<M> fmt::Debug for Inbox<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inbox<{}>", type_name::<M>())
    }
}

trait Deliver {
    fn deliver(&self, message: Box<dyn Any + Send>);
}

impl<M: 'static> Deliver for InboxSlot<M> {
    fn deliver(&self, message: Box<dyn Any + Send>) {
        let message = message.downcast::<M>().expect("looked up by its type");
        if self.queue.borrow().len() >= MAILBOX_MAX {
            tracing::warn!("an inbox of {} is full; a message is dropped", type_name::<M>());
            return;
        }
        self.queue.borrow_mut().push_back(*message);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Why a message could not be sent; it comes back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SendError<M> {
    /// The server has fewer shards.
    NoSuchShard(M),
    /// The other shard's mailbox is full: it is overloaded or stuck.
    Full(M),
    /// The other shard has ended.
    Ended(M),
}

impl<M> fmt::Display for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchShard(_) => "there is no such shard: expected a number below `Shard::count`",
            Self::Full(_) => "the mailbox of the other shard is full: send less, or wait and try again",
            Self::Ended(_) => "the other shard has ended",
        })
    }
}

/// As `Display`, so that a message need not be `Debug` for `expect` to be called.
impl<M> fmt::Debug for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<M> std::error::Error for SendError<M> {}
