//! What a shard counts while it runs: histograms and counters, no record of a single request. Floor 6, pure.

use super::response::Answer;
use crate::limits::LATENCY_MAX;
use hdrhistogram::Histogram;
use std::{collections::BTreeMap, fmt, io, time::Duration};

/// Why a request got no good answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// No connection; the errno.
    Connect(i32),
    /// No connection in time.
    ConnectTimeout,
    /// The connection broke; the errno (104: reset).
    Broken(i32),
    /// The server ended the connection without a byte of the answer.
    Closed,
    /// The server ended the connection inside the answer.
    Short,
    /// The bytes were no HTTP answer.
    Malformed,
    /// No whole answer in time.
    Timeout,
    /// Pipelined behind a request that failed.
    Lost,
    /// A status that was not expected; the answer is counted too.
    Status,
    /// A body that was not expected; the answer is counted too.
    Body,
}

impl Fault {
    /// The kind, for machines.
    pub fn kind(self) -> &'static str {
        match self {
            Fault::Connect(_) => "connect",
            Fault::ConnectTimeout => "connect-timeout",
            Fault::Broken(libc::ECONNRESET) => "reset",
            Fault::Broken(_) => "broken",
            Fault::Closed => "closed",
            Fault::Short => "short",
            Fault::Malformed => "malformed",
            Fault::Timeout => "timeout",
            Fault::Lost => "lost",
            Fault::Status => "status",
            Fault::Body => "body",
        }
    }

    /// Whether the request was answered all the same.
    pub fn has_answer(self) -> bool {
        matches!(self, Fault::Status | Fault::Body)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Fault::Connect(libc::EADDRNOTAVAIL) => {
                return f.write_str("no local port is left: widen net.ipv4.ip_local_port_range, or keep connections");
            }
            Fault::Connect(errno) | Fault::Broken(errno) => {
                return write!(f, "{}", io::Error::from_raw_os_error(*errno));
            }
            Fault::ConnectTimeout => "no connection in time",
            Fault::Closed => "the server closed the connection without an answer",
            Fault::Short => "the server closed the connection inside the answer",
            Fault::Malformed => "not an HTTP/1 answer",
            Fault::Timeout => "no whole answer in time",
            Fault::Lost => "pipelined behind a request that failed",
            Fault::Status => "unexpected status",
            Fault::Body => "unexpected body",
        };
        f.write_str(text)
    }
}

/// How often something went wrong, and how the first time looked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How often.
    pub count: u64,
    /// The first time.
    pub example: String,
}

const STATUSES: std::ops::Range<usize> = 100..600;

/// The figures of one shard in one interval, or merged ones.
#[derive(Clone, Debug)]
pub struct Figures {
    /// From sending to the last byte, ns; with a connection a request, from the beginning of connecting.
    pub service: Histogram<u64>,
    /// From when it was due to the last byte, ns; of an open model.
    pub response: Option<Histogram<u64>>,
    /// Until established, ns.
    pub connect: Histogram<u64>,
    /// Answers, good or bad.
    pub answers: u64,
    /// Body bytes of answers.
    pub body_bytes: u64,
    /// Bytes received, heads included.
    pub received: u64,
    /// Bytes the kernel took for sending.
    pub sent: u64,
    /// Requests sent again because the server announced that it closes.
    pub resent: u64,
    statuses: Vec<u64>,
    faults: BTreeMap<Fault, Tally>,
}

fn histogram(digits: u8) -> Histogram<u64> {
    Histogram::new_with_bounds(1, nanos(LATENCY_MAX), digits).expect("valid bounds")
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Figures {
    /// None yet.
    pub fn new(is_open: bool) -> Figures {
        Figures {
            service: histogram(3),
            response: is_open.then(|| histogram(3)),
            connect: histogram(2),
            answers: 0,
            body_bytes: 0,
            received: 0,
            sent: 0,
            resent: 0,
            statuses: vec![0; STATUSES.len()],
            faults: BTreeMap::new(),
        }
    }

    /// Counts a whole answer.
    #[inline]
    pub fn answer(&mut self, answer: &Answer, service: Duration, response: Duration) {
        self.answers += 1;
        self.body_bytes += answer.body_bytes;
        self.service.saturating_record(nanos(service));
        if let Some(histogram) = &mut self.response {
            histogram.saturating_record(nanos(response));
        }
        if let Some(count) =
            usize::from(answer.status).checked_sub(STATUSES.start).and_then(|at| self.statuses.get_mut(at))
        {
            *count += 1;
        }
    }

    /// Counts an established connection.
    pub fn connected(&mut self, took: Duration) {
        self.connect.saturating_record(nanos(took));
    }

    /// Counts what went wrong; `example` is asked for the first time only.
    pub fn fault(&mut self, fault: Fault, example: impl FnOnce() -> String) {
        let tally = self.faults.entry(fault).or_insert_with(|| Tally { count: 0, example: example() });
        tally.count += 1;
    }

    /// Adds another shard's or interval's.
    pub fn merge(&mut self, other: &Figures) {
        const SAME: &str = "all histograms have the same bounds";
        self.service.add(&other.service).expect(SAME);
        if let (Some(all), Some(more)) = (&mut self.response, &other.response) {
            all.add(more).expect(SAME);
        }
        self.connect.add(&other.connect).expect(SAME);
        self.answers += other.answers;
        self.body_bytes += other.body_bytes;
        self.received += other.received;
        self.sent += other.sent;
        self.resent += other.resent;
        self.statuses.iter_mut().zip(&other.statuses).for_each(|(all, more)| *all += more);
        for (&fault, tally) in &other.faults {
            let all = self.faults.entry(fault).or_insert_with(|| Tally { count: 0, example: tally.example.clone() });
            all.count += tally.count;
        }
    }

    /// The latencies a reader asks for first: of the open model those from when requests were due.
    pub fn latency(&self) -> &Histogram<u64> {
        self.response.as_ref().unwrap_or(&self.service)
    }

    /// Status codes that came, and how often.
    pub fn statuses(&self) -> impl Iterator<Item = (u16, u64)> {
        STATUSES.zip(&self.statuses).filter(|&(_, &count)| count > 0).map(|(status, &count)| (status as u16, count))
    }

    /// What went wrong, and how often.
    pub fn faults(&self) -> impl Iterator<Item = (Fault, &Tally)> {
        self.faults.iter().map(|(&fault, tally)| (fault, tally))
    }

    /// Errors of all kinds.
    pub fn errors(&self) -> u64 {
        self.faults.values().map(|tally| tally.count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_figures_are_those_of_all_shards() {
        let answer = |status| Answer { status, keep_alive: true, body_bytes: 2 };
        let (mut a, mut b) = (Figures::new(true), Figures::new(true));
        a.answer(&answer(200), Duration::from_micros(1), Duration::from_micros(5));
        a.fault(Fault::Closed, || "first".into());
        b.answer(&answer(200), Duration::from_micros(3), Duration::from_micros(7));
        b.answer(&answer(599), Duration::from_secs(7200), Duration::ZERO);
        b.answer(&answer(600), Duration::ZERO, Duration::ZERO);
        b.fault(Fault::Closed, || "second".into());
        b.fault(Fault::Closed, || unreachable!("one example is enough"));
        b.fault(Fault::Connect(111), || "refused".into());
        b.connected(Duration::from_micros(9));
        a.merge(&b);
        assert_eq!((a.answers, a.body_bytes, a.service.len(), a.connect.len()), (4, 8, 4, 1));
        assert!(a.service.max() >= nanos(LATENCY_MAX), "a longer one is recorded as the longest");
        assert_eq!(a.statuses().collect::<Vec<_>>(), [(200, 2), (599, 1)]);
        let faults: Vec<_> = a.faults().map(|(fault, tally)| (fault, tally.count, tally.example.as_str())).collect();
        assert_eq!(faults, [(Fault::Connect(111), 1, "refused"), (Fault::Closed, 3, "first")]);
        assert_eq!(a.errors(), 4);
    }

    #[test]
    fn faults_speak_plainly() {
        assert_eq!(Fault::Broken(libc::ECONNRESET).kind(), "reset");
        assert!(Fault::Connect(libc::ECONNREFUSED).to_string().contains("refused"));
        assert!(Fault::Connect(libc::EADDRNOTAVAIL).to_string().contains("ip_local_port_range"));
    }
}
