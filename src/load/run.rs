//! A whole run: threads, intervals, and the merging of what the shards count. Floor 6.

use super::{
    client::{Client, Shard},
    collect::collect,
    pace::{Gate, Next, Schedule},
    plan::{Model, Plan},
    record::Figures,
    request::Mix,
    target::{Address, LoadError},
};
use crate::{
    limits::*,
    ring::{Ring, RingOptions, ThreadTime, rlimit::raise_limits},
};
use futures_lite::future;
use glommio::{LocalExecutorBuilder, Placement};
use hdrhistogram::Histogram;
use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    io,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, SyncSender},
    },
    task::Poll,
    thread,
    time::{Duration, Instant},
};

/// One interval of the time series, all shards together.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Row {
    /// Its begin, seconds since counting began.
    pub at_s: f64,
    /// Its length, seconds.
    pub seconds: f64,
    /// Answers.
    pub answers: u64,
    /// Errors of all kinds.
    pub errors: u64,
    /// Bytes received.
    pub received: u64,
    /// Median latency, ns; of the open model from when requests were due.
    pub p50_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
    /// Longest, ns.
    pub max_ns: u64,
}

impl Row {
    pub(super) fn new(at: Duration, length: Duration, figures: &Figures) -> Row {
        let latency = figures.latency();
        Row {
            at_s: at.as_secs_f64(),
            seconds: length.as_secs_f64(),
            answers: figures.answers,
            errors: figures.errors(),
            received: figures.received,
            p50_ns: quantile(latency, 0.5),
            p99_ns: quantile(latency, 0.99),
            max_ns: quantile(latency, 1.0),
        }
    }

    /// Answers a second.
    pub fn rate(&self) -> f64 {
        self.answers as f64 / self.seconds.max(1e-9)
    }
}

/// A quantile of a histogram, never above its exact maximum; 0 of an empty one.
pub(super) fn quantile(histogram: &Histogram<u64>, q: f64) -> u64 {
    histogram.value_at_quantile(q).min(histogram.max())
}

/// How one shard ended.
#[derive(Clone, Debug, Default)]
pub struct ShardEnd {
    /// Time that was counted.
    pub elapsed: Duration,
    /// CPU time of its thread meanwhile.
    pub cpu: Duration,
    /// Time that it was ready and others had its core.
    pub delayed: Duration,
    /// Answers on each of its connections.
    pub served: Vec<u64>,
    /// Requests without an answer at the end.
    pub unanswered: u64,
    /// How long the oldest of them had waited.
    pub oldest: Duration,
    /// Requests that were due before the end and not sent: the server did not keep up.
    pub unsent: u64,
}

/// A finished run.
#[derive(Debug)]
pub struct Outcome {
    /// Where the connections went.
    pub address: String,
    /// Merged over shards and intervals.
    pub figures: Figures,
    /// The time series.
    pub series: Vec<Row>,
    /// Time that was counted.
    pub elapsed: Duration,
    /// Each shard's end.
    pub shards: Vec<ShardEnd>,
    /// It was told to stop before its end.
    pub was_stopped: bool,
}

/// What a shard tells the collector.
pub(super) enum Event {
    Ready,
    Failed(io::Error),
    Interval { shard: usize, index: u64, figures: Box<Figures> },
    Ended { shard: usize, index: u64, figures: Box<Figures>, end: ShardEnd },
}

/// What a shard's thread is given.
struct Order {
    shard: usize,
    plan: Arc<Plan>,
    mix: Arc<Mix>,
    address: Arc<Address>,
    core: Option<usize>,
    begin: Receiver<Instant>,
    events: SyncSender<Event>,
    stop: Arc<AtomicBool>,
}

/// Runs the plan on threads of its own and blocks until its end, or until shortly after `stop` is set.
/// `observe` is shown each interval as it is complete.
///
/// # Errors
/// The server cannot be reached, or this host does not give what the run needs. Errors during the run are figures.
pub fn run(plan: &Plan, stop: &Arc<AtomicBool>, observe: &mut dyn FnMut(&Row, &Figures)) -> Result<Outcome, LoadError> {
    allow_descriptors(plan)?;
    let address = Arc::new(Address::find(&plan.url, plan.unix.as_ref(), plan.connect_timeout)?);
    let shared = Arc::new(plan.clone());
    let mix = Arc::new(plan.mix());
    let cores = cores(plan.shards);
    let (events_in, events) = mpsc::sync_channel(LOAD_INTERVALS_QUEUED + 2 * plan.shards);
    let mut begins = Vec::new();
    let mut threads = Vec::new();
    for shard in 0..plan.shards {
        let (begin_in, begin) = mpsc::sync_channel(1);
        let order = Order {
            shard,
            plan: shared.clone(),
            mix: mix.clone(),
            address: address.clone(),
            core: cores.get(shard).copied(),
            begin,
            events: events_in.clone(),
            stop: stop.clone(),
        };
        let thread = thread::Builder::new().name(format!("load-{shard}")).spawn(move || run_shard(order));
        threads.push(thread.map_err(LoadError::Shard)?);
        begins.push(begin_in);
    }
    drop(events_in);
    let ended = || LoadError::Shard(io::Error::other("a shard ended before it began"));
    for _ in 0..plan.shards {
        match events.recv().map_err(|_| ended())? {
            Event::Failed(error) => return Err(LoadError::Shard(error)),
            _ => continue,
        }
    }
    let begin = Instant::now();
    for sender in &begins {
        sender.send(begin).map_err(|_| ended())?;
    }
    let outcome = collect(plan, &events, observe, stop)?;
    for thread in threads {
        thread.join().map_err(|_| LoadError::Shard(io::Error::other("a shard panicked")))?;
    }
    Ok(Outcome { address: address.to_string(), ..outcome })
}

/// Raises the soft limit of descriptors and checks that it allows the run.
fn allow_descriptors(plan: &Plan) -> Result<(), LoadError> {
    let needed = plan.connections as u64 + (plan.shards * FILES_PER_SHARD) as u64 + LOAD_SPARE_DESCRIPTORS;
    let allowed = raise_limits().map_err(LoadError::Shard)?.nofile.soft;
    if needed > allowed {
        return Err(LoadError::Descriptors { needed, allowed });
    }
    Ok(())
}

/// A core for each shard, the last ones first, since servers take the first; none if there are too few.
fn cores(shards: usize) -> Vec<usize> {
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    if allowed.len() < shards {
        return Vec::new();
    }
    allowed.into_iter().rev().map(|core| core.id).take(shards).collect()
}

// ---- one shard -----------------------------------------------------------------------------------

fn run_shard(order: Order) {
    let events = order.events.clone();
    if let Some(id) = order.core {
        // Not by glommio, which panics where /sys is not mounted. Refused, the run goes on wherever the kernel lets it.
        core_affinity::set_for_current(core_affinity::CoreId { id });
    }
    let executor = LocalExecutorBuilder::new(Placement::Unbound).io_memory(64 << 10).make();
    let result = match executor {
        Ok(executor) => executor.run(drive(order)),
        Err(error) => Err(io::Error::other(error.to_string())),
    };
    if let Err(error) = result {
        let _ = events.send(Event::Failed(error));
    }
}

async fn drive(order: Order) -> io::Result<()> {
    let ring = Ring::new(&RingOptions { is_ring_only: true, ..RingOptions::default() })?;
    let failed = |_| io::Error::other("the run was called off");
    order.events.send(Event::Ready).map_err(failed)?;
    // Nothing else lives on this thread yet, so it may block.
    let Ok(begin) = order.begin.recv() else { return Ok(()) };
    let shard = Rc::new(Shard::new(ring.clone(), &order, begin));
    let supervisor = Rc::new(RefCell::new(None));
    let (slot, supervised) = (supervisor.clone(), shard.clone());
    let (shard_index, events) = (order.shard, order.events.clone());
    ring.drive(async move {
        let ended = Supervisor::new(supervised, order, begin).run().await;
        *slot.borrow_mut() = Some(ended);
    })
    .await?;
    let (index, mut end) = supervisor.take().expect("the supervisor ran to its end");
    // The lanes were dropped by now and have told what they left behind.
    let (unanswered, oldest) = shard.unanswered.get();
    end.unanswered = unanswered;
    end.oldest = oldest.map(|sent| sent.elapsed()).unwrap_or_default();
    let figures = Box::new(shard.figures.replace(Figures::new(false)));
    events.send(Event::Ended { shard: shard_index, index, figures, end }).map_err(failed)
}

impl Shard {
    fn new(ring: Ring, order: &Order, begin: Instant) -> Shard {
        let plan = order.plan.clone();
        let lanes = plan.connections_of(order.shard);
        let seed = plan.seed.wrapping_add(order.shard as u64);
        let gate = match plan.model {
            Model::Closed => Gate::closed(lanes, plan.batch),
            Model::Open { rate, arrivals } => {
                let own_rate = rate * lanes as f64 / plan.connections as f64;
                let offset = Duration::from_secs_f64(order.shard as f64 / rate); // shards in between each other
                let end = plan.extent.duration.map(|duration| begin + plan.warmup + duration);
                let random = fastrand::Rng::with_seed(!seed);
                Gate::open(lanes, Schedule::new(begin, end, own_rate, offset, arrivals, random))
            }
        };
        Shard {
            ring,
            mix: order.mix.clone(),
            address: order.address.clone(),
            gate: RefCell::new(gate),
            figures: RefCell::new(Figures::new(plan.model != Model::Closed)),
            random: RefCell::new(fastrand::Rng::with_seed(seed)),
            counted_from: Cell::new(None),
            served: vec![Cell::new(0); lanes],
            live: Cell::new(lanes),
            all_done: Cell::new(None),
            unanswered: Cell::new((0, None)),
            plan,
        }
    }

    async fn all_done(&self) {
        poll_fn(|cx| {
            if self.live.get() == 0 {
                return Poll::Ready(());
            }
            self.all_done.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

/// Hands out what is due, as exactly as the kernel's timers allow.
async fn pace(shard: Rc<Shard>) {
    loop {
        let (now, mut is_first) = (Instant::now(), true);
        let next = poll_fn(|cx| {
            let next = shard.gate.borrow_mut().dispatch(now, cx.waker());
            match next {
                Next::Woken if std::mem::take(&mut is_first) => Poll::Pending,
                next => Poll::Ready(next),
            }
        })
        .await;
        match next {
            Next::Over => return,
            Next::Woken => {} // a lane is free: look again, with a new clock
            Next::At(at) => shard.ring.alarm(at.max(Instant::now() + ALARM_WAIT_MIN)).await,
        }
    }
}

/// Starts a shard's lanes, ships its intervals, and knows when it is over.
struct Supervisor {
    shard: Rc<Shard>,
    order: Order,
    begin: Instant,
    /// Bytes in and out that were counted already.
    bytes: (u64, u64),
}

impl Supervisor {
    fn new(shard: Rc<Shard>, order: Order, begin: Instant) -> Self {
        Supervisor { shard, order, begin, bytes: (0, 0) }
    }

    /// Runs to the end; the index of the interval that its last figures belong to, and how it ended.
    async fn run(mut self) -> (u64, ShardEnd) {
        let plan = self.shard.plan.clone();
        let is_open = plan.model != Model::Closed;
        self.start_lanes(is_open).await;
        let from = self.begin + plan.warmup;
        while Instant::now() < from && !self.is_stopped() {
            self.shard.ring.sleep((from - Instant::now()).min(LOAD_STOP_LOOK)).await;
        }
        let mut from = from.min(Instant::now());
        if !plan.warmup.is_zero() {
            self.take_bytes();
            if !is_open {
                // From now, not from when this task was to be woken: what was sent in between is warm-up still.
                from = Instant::now();
                self.count_from(from);
            }
        }
        let used = ThreadTime::read();

        let end = plan.extent.duration.map(|duration| from + duration);
        let mut index = 0;
        loop {
            let now = Instant::now();
            let boundary = from + plan.interval * u32::try_from(index + 1).unwrap_or(u32::MAX);
            if now >= boundary {
                index = self.ship(index, ((now - from).as_nanos() / plan.interval.as_nanos()) as u64);
                continue;
            }
            let is_done = self.shard.live.get() == 0 && (!is_open || plan.extent.requests.is_some());
            if self.is_stopped() || is_done || end.is_some_and(|end| now >= end) {
                break;
            }
            let next = end.map_or(boundary, |end| end.min(boundary));
            let wait = (next - now).min(LOAD_STOP_LOOK);
            if is_open && plan.extent.requests.is_none() {
                self.shard.ring.sleep(wait).await;
            } else {
                future::or(self.shard.ring.sleep(wait), self.shard.all_done()).await;
            }
        }
        if is_open && !self.is_stopped() {
            future::or(self.shard.ring.sleep(LOAD_DRAIN), self.shard.all_done()).await;
        }
        let now = Instant::now();
        let unsent = self.shard.gate.borrow_mut().stop(end.map_or(now, |end| end.min(now)));
        self.count_bytes();
        let used_in_all = ThreadTime::read();
        let end = ShardEnd {
            elapsed: now - from,
            cpu: Duration::from_nanos(used_in_all.running_ns - used.running_ns),
            delayed: Duration::from_nanos(used_in_all.delayed_ns - used.delayed_ns),
            served: self.shard.served.iter().map(Cell::get).collect(),
            unsent,
            ..ShardEnd::default()
        };
        (index, end)
    }

    async fn start_lanes(&self, is_open: bool) {
        let shard = &self.shard;
        let plan = &shard.plan;
        // The open model knows beforehand which requests count: those that are due after the warm-up.
        if is_open || plan.warmup.is_zero() {
            self.count_from(self.begin + plan.warmup);
        }
        if is_open {
            shard.ring.spawn(pace(shard.clone()));
        }
        let is_eager = is_open && !plan.is_churn();
        for lane in 0..shard.served.len() {
            if lane > 0 && lane % LOAD_CONNECTS_A_MS == 0 {
                shard.ring.sleep(Duration::from_millis(1)).await;
            }
            shard.ring.spawn(Client::new(shard.clone(), lane).run(is_eager));
        }
    }

    fn count_from(&self, from: Instant) {
        self.shard.counted_from.set(Some(from));
        self.shard.gate.borrow_mut().begin(from, self.shard.plan.requests_of(self.order.shard));
    }

    fn is_stopped(&self) -> bool {
        self.order.stop.load(Ordering::Relaxed)
    }

    /// Sends interval `index` off; if there is no room, what it has stays for interval `next`.
    fn ship(&mut self, index: u64, next: u64) -> u64 {
        self.count_bytes();
        let is_open = self.shard.plan.model != Model::Closed;
        let figures = Box::new(self.shard.figures.replace(Figures::new(is_open)));
        let event = Event::Interval { shard: self.order.shard, index: next.max(index + 1) - 1, figures };
        if let Err(refused) = self.order.events.try_send(event)
            && let mpsc::TrySendError::Full(Event::Interval { figures, .. }) = refused
        {
            *self.shard.figures.borrow_mut() = *figures;
        }
        next.max(index + 1)
    }

    fn take_bytes(&mut self) -> (u64, u64) {
        let stats = self.shard.ring.stats();
        let before = std::mem::replace(&mut self.bytes, (stats.bytes_in, stats.bytes_out));
        (self.bytes.0 - before.0, self.bytes.1 - before.1)
    }

    fn count_bytes(&mut self) {
        let (received, sent) = self.take_bytes();
        let mut figures = self.shard.figures.borrow_mut();
        figures.received += received;
        figures.sent += sent;
    }
}
