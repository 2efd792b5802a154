//! Who may send when: the closed model's rest of work, the open model's schedule. Floor 6, pure.
//!
//! Times are handed in. A shard has one [`Gate`]; each of its connections is a *lane* that asks it for leave to send.
//! The requests of an open model that nobody could send yet are not queued anywhere: the schedule stands still, and
//! whoever is free next takes the oldest. So memory stays flat however far the server falls behind, and each request
//! keeps the time at which it was due.

use super::plan::Arrivals;
use std::{
    collections::VecDeque,
    task::Waker,
    time::{Duration, Instant},
};

/// The times at which an open model's requests are due.
#[derive(Debug)]
pub(super) struct Schedule {
    start: Instant,
    end: Option<Instant>,
    /// Requests left from `counted_from` on.
    left: u64,
    counted_from: Option<Instant>,
    arrivals: Arrivals,
    /// Mean time between two, ns. Of a double's 53 bits a week takes 50.
    gap: f64,
    /// Time of the first, ns after the start.
    offset: f64,
    count: u64,
    /// Time of the next, ns after the start.
    next: f64,
    random: fastrand::Rng,
}

impl Schedule {
    /// `rate` requests a second from `start` on, the first after `offset`, none at `end` or later.
    pub(super) fn new(
        start: Instant,
        end: Option<Instant>,
        rate: f64,
        offset: Duration,
        arrivals: Arrivals,
        random: fastrand::Rng,
    ) -> Schedule {
        let gap = 1e9 / rate;
        let offset = offset.as_nanos() as f64;
        let mut schedule = Schedule {
            start,
            end,
            left: u64::MAX,
            counted_from: None,
            arrivals,
            gap,
            offset,
            count: 0,
            next: offset,
            random,
        };
        if arrivals == Arrivals::Poisson {
            schedule.next = schedule.exponential();
        }
        schedule
    }

    /// When the next request is due; `None` after the last.
    #[inline]
    pub(super) fn peek(&self) -> Option<Instant> {
        let next = self.start + Duration::from_nanos(self.next as u64);
        (self.left > 0 && self.end.is_none_or(|end| next < end)).then_some(next)
    }

    /// Goes on to the one after.
    #[inline]
    pub(super) fn advance(&mut self) {
        if self.counted_from.is_some_and(|from| self.start + Duration::from_nanos(self.next as u64) >= from) {
            self.left = self.left.saturating_sub(1);
        }
        self.count += 1;
        self.next = match self.arrivals {
            Arrivals::Constant => self.offset + self.count as f64 * self.gap, // not summed: no drift
            Arrivals::Poisson => self.next + self.exponential(),
        };
    }

    fn exponential(&mut self) -> f64 {
        -(1.0 - self.random.f64()).ln() * self.gap
    }
}

/// Leave to send, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permit {
    /// Send a request that was due then.
    Go(Instant),
    /// Later: the lane's task will be woken.
    Wait,
    /// Never again.
    End,
}

/// What the pacer is to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Come back then.
    At(Instant),
    /// Come back when woken: no lane is free.
    Woken,
    /// The schedule is over.
    Over,
}

#[derive(Debug, Default)]
struct Lane {
    /// Drawn, not yet used: requests of a batch.
    drawn: u64,
    granted: Option<Instant>,
    waker: Option<Waker>,
    is_queued: bool,
}

#[derive(Debug)]
enum Model {
    Closed { left: u64, batch: u64 },
    Open { schedule: Schedule, idle: VecDeque<u32>, pacer: Option<Waker> },
}

/// Gives leave to send to the lanes of one shard.
#[derive(Debug)]
pub(super) struct Gate {
    model: Model,
    lanes: Vec<Lane>,
}

impl Gate {
    /// Each lane sends when it can, drawing `batch` requests at once from what is left; no bound until there is one.
    pub(super) fn closed(lanes: usize, batch: u64) -> Gate {
        Gate::new(lanes, Model::Closed { left: u64::MAX, batch })
    }

    /// Requests are due when the schedule says.
    pub(super) fn open(lanes: usize, schedule: Schedule) -> Gate {
        Gate::new(lanes, Model::Open { schedule, idle: VecDeque::with_capacity(lanes), pacer: None })
    }

    fn new(lanes: usize, model: Model) -> Gate {
        let lanes = std::iter::repeat_with(Lane::default).take(lanes).collect();
        Gate { model, lanes }
    }

    /// From `from` on requests are counted, `requests` at most.
    pub(super) fn begin(&mut self, from: Instant, requests: Option<u64>) {
        let Some(requests) = requests else { return };
        self.lanes.iter_mut().for_each(|lane| lane.drawn = 0);
        match &mut self.model {
            Model::Closed { left, .. } => *left = requests,
            Model::Open { schedule, .. } => (schedule.left, schedule.counted_from) = (requests, Some(from)),
        }
    }

    /// Asks for leave. On `Wait` the waker is woken when the lane is to ask again.
    #[inline]
    pub(super) fn ask(&mut self, lane_index: usize, now: Instant, waker: &Waker) -> Permit {
        let lane = &mut self.lanes[lane_index];
        match &mut self.model {
            Model::Closed { left, batch } => {
                if lane.drawn == 0 {
                    lane.drawn = (*left).min(*batch);
                    if lane.drawn == 0 {
                        return Permit::End;
                    }
                    *left -= lane.drawn;
                }
                lane.drawn -= 1;
                Permit::Go(now)
            }
            Model::Open { schedule, idle, pacer } => {
                if let Some(due) = lane.granted.take() {
                    return Permit::Go(due);
                }
                match schedule.peek() {
                    None => return Permit::End,
                    Some(due) if due <= now => {
                        schedule.advance();
                        return Permit::Go(due);
                    }
                    Some(_) => {}
                }
                if !lane.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
                    lane.waker = Some(waker.clone());
                }
                if !lane.is_queued {
                    lane.is_queued = true;
                    idle.push_back(lane_index as u32);
                    if idle.len() == 1
                        && let Some(pacer) = pacer.take()
                    {
                        pacer.wake();
                    }
                }
                Permit::Wait
            }
        }
    }

    /// Gives what is due to free lanes, the longest free first, and says when to come back.
    pub(super) fn dispatch(&mut self, now: Instant, waker: &Waker) -> Next {
        let Model::Open { schedule, idle, pacer } = &mut self.model else { return Next::Over };
        loop {
            let Some(due) = schedule.peek() else {
                // Whoever waits is told the end.
                for index in idle.drain(..) {
                    let lane = &mut self.lanes[index as usize];
                    lane.is_queued = false;
                    lane.waker.take().into_iter().for_each(Waker::wake);
                }
                return Next::Over;
            };
            let Some(&index) = idle.front() else {
                *pacer = Some(waker.clone());
                return Next::Woken;
            };
            if due > now {
                return Next::At(due);
            }
            schedule.advance();
            idle.pop_front();
            let lane = &mut self.lanes[index as usize];
            lane.is_queued = false;
            lane.granted = Some(due);
            lane.waker.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Ends it: nothing is due after `now`. Says how many requests were due before and not sent.
    pub(super) fn stop(&mut self, now: Instant) -> u64 {
        match &mut self.model {
            Model::Closed { left, .. } => {
                *left = 0;
                0
            }
            Model::Open { schedule, .. } => {
                let mut unsent = self.lanes.iter_mut().filter_map(|lane| lane.granted.take()).count() as u64;
                while schedule.peek().is_some_and(|due| due <= now) {
                    schedule.advance();
                    unsent += 1;
                }
                schedule.left = 0;
                unsent
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    const SECOND: Duration = Duration::from_secs(1);

    fn schedule(start: Instant, rate: f64, arrivals: Arrivals) -> Schedule {
        Schedule::new(start, Some(start + SECOND), rate, Duration::ZERO, arrivals, fastrand::Rng::with_seed(1))
    }

    fn times(mut schedule: Schedule, start: Instant) -> Vec<Duration> {
        let mut times = Vec::new();
        while let Some(due) = schedule.peek() {
            times.push(due - start);
            schedule.advance();
        }
        times
    }

    #[test]
    fn constant_schedule_has_exactly_its_rate() {
        let start = Instant::now();
        for rate in [1.0, 3.0, 1_000.0, 99_999.0] {
            let times = times(schedule(start, rate, Arrivals::Constant), start);
            assert_eq!(times.len(), rate as usize);
            assert_eq!(times[0], Duration::ZERO);
        }
    }

    #[test]
    fn poisson_schedule_has_its_rate_and_its_spread() {
        let start = Instant::now();
        let times = times(schedule(start, 10_000.0, Arrivals::Poisson), start);
        assert!((9_700..10_300).contains(&times.len()), "{}", times.len());
        // Gaps are exponential: 1 - 1/e of them are shorter than the mean.
        let short = times.windows(2).filter(|pair| pair[1] - pair[0] < SECOND / 10_000).count();
        assert!((6_000..6_650).contains(&short), "{short}");
    }

    #[test]
    fn closed_gate_gives_out_exactly_what_there_is() {
        for batch in [1, 3, 100] {
            let (now, waker) = (Instant::now(), Waker::noop());
            let mut gate = Gate::closed(2, batch);
            assert_eq!(gate.ask(0, now, waker), Permit::Go(now)); // warm-up
            gate.begin(now, Some(7));
            let mut given = [0; 2];
            for turn in 0..100 {
                given[turn % 2] += u64::from(gate.ask(turn % 2, now, waker) != Permit::End);
            }
            assert_eq!(given[0] + given[1], 7, "batch {batch}");
            assert_eq!(gate.ask(0, now, waker), Permit::End);
        }
    }

    #[test]
    fn open_gate_grants_in_order_and_keeps_due_times() {
        struct Count(AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let woken = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(woken.clone());
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut gate = Gate::open(2, schedule(start, 1_000.0, Arrivals::Constant));
        assert_eq!(gate.dispatch(start, Waker::noop()), Next::Woken, "no lane is free");
        assert_eq!(gate.ask(0, start, &waker), Permit::Go(start), "due now");
        assert_eq!(gate.ask(0, start, &waker), Permit::Wait);
        assert_eq!(gate.ask(0, start, &waker), Permit::Wait, "queued once");
        assert_eq!(gate.ask(1, start, &waker), Permit::Wait);
        assert_eq!(gate.dispatch(start, Waker::noop()), Next::At(at(1)));
        assert_eq!(gate.dispatch(at(5), Waker::noop()), Next::Woken, "two lanes for five requests");
        assert_eq!(woken.0.load(Ordering::Relaxed), 2);
        assert_eq!(gate.ask(0, at(5), &waker), Permit::Go(at(1)));
        assert_eq!(gate.ask(0, at(5), &waker), Permit::Go(at(3)), "the oldest that is due");
        assert_eq!(gate.stop(at(7)), 5, "4 to 7, and the grant of lane 1");
        assert_eq!(gate.ask(0, at(8), &waker), Permit::End);
        assert_eq!(gate.dispatch(at(8), Waker::noop()), Next::Over);
    }

    #[test]
    fn open_gate_counts_from_where_counting_begins() {
        let (start, waker) = (Instant::now(), Waker::noop());
        let mut gate = Gate::open(1, schedule(start, 1_000.0, Arrivals::Constant));
        gate.begin(start + Duration::from_millis(10), Some(5));
        let mut given = 0;
        while let Permit::Go(_) = gate.ask(0, start + SECOND, waker) {
            given += 1;
        }
        assert_eq!(given, 10 + 5);
    }
}
