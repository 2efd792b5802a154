//! One connection of the load generator, opened again as often as needed: a task of the shard's ring. Floor 6.
//!
//! ```text
//! leave to send ─▶ connect ─▶ send what the window takes ─▶ read, record ─┐
//!      ▲   ▲                     ▲───────────────────────────────────────┘
//!      │   └─ wait a little ◀── failed
//!      └────── closed in order
//! ```
//! The clock is read once a wake. There is one deadline a connection, set again only when it has passed.

use super::{
    pace::{Gate, Permit},
    plan::{Model, Plan},
    record::{Fault, Figures},
    request::Mix,
    response::{Answer, Malformed, ResponseParser, Step},
    target::{Address, Scheme},
};
use crate::{
    limits::RECONNECT_WAIT_MAX,
    ring::{Ring, Socket},
    transport::{Outgoing, Transport, give_buffer, take_buffer},
};
use futures_lite::future;
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    io,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

/// What the connections of one shard share.
pub(super) struct Shard {
    pub(super) ring: Ring,
    pub(super) plan: Arc<Plan>,
    pub(super) mix: Arc<Mix>,
    pub(super) address: Arc<Address>,
    pub(super) gate: RefCell<Gate>,
    pub(super) figures: RefCell<Figures>,
    pub(super) random: RefCell<fastrand::Rng>,
    /// Requests that were due before are not counted; `None` during warm-up.
    pub(super) counted_from: Cell<Option<Instant>>,
    /// Answers counted on each lane.
    pub(super) served: Vec<Cell<u64>>,
    /// Lanes that have not ended, and who waits for the last.
    pub(super) live: Cell<usize>,
    pub(super) all_done: Cell<Option<Waker>>,
    /// Requests without an answer when the lanes were dropped, and when the oldest was sent.
    pub(super) unanswered: Cell<(u64, Option<Instant>)>,
}

impl Shard {
    fn is_counted(&self, due: Instant) -> bool {
        self.counted_from.get().is_some_and(|from| due >= from)
    }

    fn fault(&self, due: Instant, fault: Fault, example: impl FnOnce() -> String) {
        if self.is_counted(due) {
            self.figures.borrow_mut().fault(fault, example);
        }
    }
}

/// A request that was sent, or is to be sent (again).
#[derive(Clone, Copy)]
struct Flight {
    request: u32,
    due: Instant,
    sent: Instant,
}

/// How a conversation ended early: what, and how it looked.
struct Failure {
    fault: Fault,
    example: Option<String>,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Failure { fault, example: None }
    }
}

impl From<Malformed> for Failure {
    fn from(error: Malformed) -> Self {
        Failure { fault: Fault::Malformed, example: Some(error.to_string()) }
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// One lane of a shard.
pub(super) struct Client {
    shard: Rc<Shard>,
    lane: usize,
    pipeline: usize,
    is_open: bool,
    is_churn: bool,
    is_raw: bool,
    /// Oldest first. The first `on_wire` were sent on this connection.
    flights: VecDeque<Flight>,
    on_wire: usize,
    /// Requests this connection may still carry.
    left_here: u64,
    opened: Instant,
    /// The server announced that it closes.
    is_closing: bool,
    /// There is no more work.
    is_over: bool,
    has_deadline: bool,
    /// Since when the oldest thing we wait for is waited for, when nothing is in flight.
    waits_since: Instant,
    failures: u32,
    parser: ResponseParser,
    input: Vec<u8>,
    out: Outgoing,
    /// Of the body that is being read: bytes compared, and whether all were as expected.
    body_at: usize,
    body_is_wrong: bool,
}

impl Client {
    pub(super) fn new(shard: Rc<Shard>, lane: usize) -> Client {
        let now = Instant::now();
        let plan = shard.plan.clone();
        Client {
            lane,
            pipeline: plan.pipeline,
            is_open: plan.model != Model::Closed,
            is_churn: plan.is_churn(),
            is_raw: plan.url.scheme == Scheme::Tcp,
            flights: VecDeque::with_capacity(plan.pipeline),
            on_wire: 0,
            left_here: 0,
            opened: now,
            is_closing: false,
            is_over: false,
            has_deadline: false,
            waits_since: now,
            failures: 0,
            parser: ResponseParser::default(),
            input: Vec::new(),
            out: Outgoing::default(),
            body_at: 0,
            body_is_wrong: false,
            shard,
        }
    }

    /// Runs until there is no more work. `is_eager`: opens the connection before there is any.
    pub(super) async fn run(mut self, mut is_eager: bool) {
        while !self.is_over || !self.flights.is_empty() {
            if self.flights.is_empty() && !std::mem::take(&mut is_eager) {
                match poll_fn(|cx| self.poll_leave(cx)).await {
                    Some(due) => self.push(due),
                    None => break,
                }
            }
            self.opened = Instant::now();
            let ended = match self.connect().await {
                Ok(mut socket) => {
                    self.begin();
                    poll_fn(|cx| self.poll_talk(cx, &mut socket)).await
                }
                Err(failure) => {
                    self.on_wire = self.flights.len().min(1); // the request that asked for the connection
                    Err(failure)
                }
            };
            if let Err(failure) = ended {
                self.fail(failure);
                let wait = Duration::from_millis(1 << (self.failures - 1).min(16)).min(RECONNECT_WAIT_MAX);
                self.shard.ring.sleep(wait).await;
            }
        }
        give_buffer(std::mem::take(&mut self.input));
    }

    fn poll_leave(&mut self, cx: &mut Context<'_>) -> Poll<Option<Instant>> {
        match self.shard.gate.borrow_mut().ask(self.lane, Instant::now(), cx.waker()) {
            Permit::Go(due) => Poll::Ready(Some(due)),
            Permit::Wait => Poll::Pending,
            Permit::End => Poll::Ready(None),
        }
    }

    fn push(&mut self, due: Instant) {
        let request = self.shard.mix.pick(&mut self.shard.random.borrow_mut());
        self.flights.push_back(Flight { request, due, sent: due });
    }

    async fn connect(&self) -> Result<Socket, Failure> {
        let shard = &self.shard;
        let refused = |error: io::Error| Failure::from(Fault::Connect(errno(&error)));
        let fd = shard.address.socket().map_err(refused)?;
        let connected = async { Some(shard.ring.connect(fd.into(), shard.address.sock_addr().clone()).await) };
        let timed_out = async {
            shard.ring.sleep(shard.plan.connect_timeout).await;
            None
        };
        match future::or(connected, timed_out).await {
            Some(connected) => connected.map_err(refused),
            None => Err(Fault::ConnectTimeout.into()),
        }
    }

    /// A connection is established.
    fn begin(&mut self) {
        let now = Instant::now();
        if self.shard.is_counted(self.opened) {
            self.shard.figures.borrow_mut().connected(now - self.opened);
        }
        self.on_wire = 0;
        self.left_here = self.shard.plan.requests_per_connection.unwrap_or(u64::MAX);
        self.is_closing = false;
        self.has_deadline = false;
        self.waits_since = now;
        self.parser.reset();
        self.input.clear();
        (self.body_at, self.body_is_wrong) = (0, false);
    }

    /// Sends and reads until the connection is to be closed in order, or has failed.
    fn poll_talk<T: Transport>(&mut self, cx: &mut Context<'_>, socket: &mut T) -> Poll<Result<(), Failure>> {
        let mut now = None;
        loop {
            // The closed model's pipelined requests go together, the next ones when all are answered, as wrk's do:
            // else each answer of a server that sends them one by one would cost a send.
            if (self.is_open || self.on_wire == 0)
                && self.wants_to_send()
                && let Poll::Ready(Ok(())) = socket.poll_sent(cx)
            {
                // A send that failed is not the end: the answer, or the reason, may be there to be read.
                self.send(cx, socket, *now.get_or_insert_with(Instant::now));
            }
            if self.on_wire == 0 && (self.left_here == 0 || self.is_over && self.flights.is_empty()) {
                return Poll::Ready(Ok(()));
            }
            match socket.poll_read(cx, &mut self.input) {
                Poll::Ready(Ok(0)) => return Poll::Ready(self.end_of_stream()),
                Poll::Ready(Ok(_)) => {
                    let read_at = Instant::now();
                    now = Some(read_at);
                    self.take_answers(read_at)?;
                    if self.is_closing {
                        // RFC 9112 §9.6: what was sent behind the last answer was not processed; it is sent again.
                        self.shard.figures.borrow_mut().resent += self.on_wire as u64;
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(Fault::Broken(errno(&error)).into())),
                Poll::Pending => {
                    if self.has_deadline && socket.poll_deadline(cx).is_ready() {
                        self.check_deadline(socket)?;
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    #[inline]
    fn wants_to_send(&self) -> bool {
        self.on_wire < self.pipeline && self.left_here > 0 && !(self.is_over && self.on_wire == self.flights.len())
    }

    fn send<T: Transport>(&mut self, cx: &mut Context<'_>, socket: &mut T, now: Instant) {
        if self.out.buf.capacity() == 0 {
            self.out.buf = take_buffer();
        }
        while self.wants_to_send() {
            if self.on_wire == self.flights.len() {
                let permit = self.shard.gate.borrow_mut().ask(self.lane, now, cx.waker());
                match permit {
                    Permit::Go(due) => self.push(due),
                    Permit::Wait => break,
                    Permit::End => {
                        self.is_over = true;
                        break;
                    }
                }
            }
            let flight = &mut self.flights[self.on_wire];
            flight.sent = if self.is_churn { self.opened } else { now };
            self.shard.mix.write(flight.request, &mut self.out);
            self.on_wire += 1;
            self.left_here -= 1;
        }
        if !self.out.is_empty() {
            self.waits_since = now;
            socket.send(&mut self.out);
            if !self.has_deadline {
                self.has_deadline = true;
                set_deadline(socket, self.shard.plan.timeout);
            }
        }
    }

    fn take_answers(&mut self, now: Instant) -> Result<(), Failure> {
        let mut at = 0;
        while at < self.input.len() && !self.is_closing {
            if self.on_wire == 0 {
                return Err(Malformed::Unasked.into());
            }
            let is_head = self.shard.mix.is_head(self.flights[0].request);
            let input = &self.input[at..];
            let expected = self.shard.plan.expect_body.as_deref();
            let (body_at, body_is_wrong) = (&mut self.body_at, &mut self.body_is_wrong);
            let see = |part: &[u8]| {
                if let Some(expected) = expected {
                    *body_is_wrong |= expected.get(*body_at..*body_at + part.len()) != Some(part);
                    *body_at += part.len();
                }
            };
            let step = if self.is_raw {
                let mut see = see;
                see(input);
                let answer = Answer { status: 0, keep_alive: false, body_bytes: input.len() as u64 };
                Step::Done { consumed: input.len(), answer }
            } else {
                self.parser.parse(input, is_head, see)?
            };
            match step {
                Step::More { consumed } => {
                    at += consumed;
                    break;
                }
                Step::Done { consumed, answer } => {
                    at += consumed;
                    self.answered(&answer, now);
                }
            }
        }
        if at == self.input.len() {
            self.input.clear();
        } else {
            self.input.drain(..at);
        }
        Ok(())
    }

    #[inline]
    fn answered(&mut self, answer: &Answer, now: Instant) {
        let flight = self.flights.pop_front().expect("an answer is looked for only while a request is in flight");
        self.on_wire -= 1;
        self.waits_since = now;
        self.failures = 0;
        self.is_closing = !answer.keep_alive;
        let shard = &*self.shard;
        if shard.is_counted(flight.due) {
            let mut figures = shard.figures.borrow_mut();
            figures.answer(answer, now - flight.sent, now - flight.due);
            let served = &shard.served[self.lane];
            served.set(served.get() + 1);
            if let Some(statuses) = &shard.plan.expect_status
                && !statuses.contains(answer.status)
            {
                figures.fault(Fault::Status, || format!("expected {statuses}, got {}", answer.status));
            }
            if let Some(expected) = &shard.plan.expect_body
                && !(shard.mix.is_head(flight.request))
                && (self.body_is_wrong || self.body_at != expected.len())
            {
                let (expected, got) = (expected.len(), self.body_at);
                figures.fault(Fault::Body, || match got == expected {
                    true => format!("expected other bytes than the {got} that came"),
                    false => format!("expected {expected} bytes, got {got}"),
                });
            }
        }
        (self.body_at, self.body_is_wrong) = (0, false);
    }

    fn end_of_stream(&mut self) -> Result<(), Failure> {
        if let Some(answer) = self.parser.finish() {
            self.answered(&answer, Instant::now());
            self.shard.figures.borrow_mut().resent += self.on_wire as u64;
            return Ok(());
        }
        match self.on_wire {
            0 => Ok(()), // an idle connection that the server had enough of
            _ if self.parser.is_between_answers() && self.input.is_empty() => Err(Fault::Closed.into()),
            _ => Err(Fault::Short.into()),
        }
    }

    /// The deadline has passed: for the request that is oldest by now, or only for one that was answered since.
    fn check_deadline<T: Transport>(&mut self, socket: &mut T) -> Result<(), Failure> {
        let timeout = self.shard.plan.timeout;
        let is_waiting = self.on_wire > 0 || self.wants_to_send() && !self.flights.is_empty();
        if !is_waiting {
            self.has_deadline = false;
            socket.set_deadline(u64::MAX);
            return Ok(());
        }
        let since = if self.on_wire > 0 { self.flights[0].sent } else { self.waits_since };
        match timeout.checked_sub(since.elapsed()).filter(|rest| !rest.is_zero()) {
            Some(rest) => {
                set_deadline(socket, rest);
                Ok(())
            }
            None => Err(Fault::Timeout.into()),
        }
    }

    /// Everything on the wire is lost; the first for the reason given.
    fn fail(&mut self, failure: Failure) {
        self.failures += 1;
        let Failure { fault, mut example } = failure;
        let rest = match fault {
            Fault::Short | Fault::Malformed | Fault::Timeout => Fault::Lost,
            all => all,
        };
        // An idle connection that the server resets costs no request.
        if self.on_wire == 0 && !matches!(fault, Fault::Broken(_)) {
            self.shard.fault(self.opened, fault, || example.take().unwrap_or_else(|| fault.to_string()));
        }
        for (index, flight) in self.flights.drain(..self.on_wire).enumerate() {
            let fault = if index == 0 { fault } else { rest };
            self.shard.fault(flight.due, fault, || match example.take() {
                Some(example) => example,
                None => format!("{} after it was sent", Millis(flight.sent.elapsed())),
            });
        }
        self.on_wire = 0;
    }
}

struct Millis(Duration);

impl std::fmt::Display for Millis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} ms", self.0.as_secs_f64() * 1e3)
    }
}

/// On the shard's clock of milliseconds; never early.
fn set_deadline<T: Transport>(socket: &mut T, wait: Duration) {
    let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    socket.set_deadline(socket.now_ms().saturating_add(wait_ms).saturating_add(1));
}

impl Drop for Client {
    fn drop(&mut self) {
        let shard = &*self.shard;
        let (count, oldest) = shard.unanswered.get();
        let counted = self.flights.iter().take(self.on_wire).filter(|flight| shard.is_counted(flight.due));
        let (mut more, mut first) = (0, oldest);
        for flight in counted {
            more += 1;
            first = Some(first.map_or(flight.sent, |first| first.min(flight.sent)));
        }
        shard.unanswered.set((count + more, first));
        shard.live.set(shard.live.get() - 1);
        if shard.live.get() == 0 {
            shard.all_done.take().into_iter().for_each(Waker::wake);
        }
    }
}
