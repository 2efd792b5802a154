//! What a run is to do, checked. Floor 6, pure.

use super::{
    request::{Common, Mix, Wanted},
    target::{LoadError, Scheme, Url},
};
use crate::limits::*;
use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Model {
    /// Each connection sends its next request when the last is answered.
    Closed,
    /// Requests are due at given times, whatever the server does.
    Open {
        /// Requests a second, of all shards together.
        rate: f64,
        /// How the times are spread.
        arrivals: Arrivals,
    },
}

/// How the times of an open model are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// The same time between any two.
    Constant,
    /// Independent of each other, as from many users.
    Poisson,
}

/// When a run ends: at whichever comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// After so long, warm-up not counted.
    pub duration: Option<Duration>,
    /// After so many requests, warm-up not counted.
    pub requests: Option<u64>,
}

/// Which status codes are expected: `200`, `2xx`, `200,304`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusSet(Vec<(u16, u16)>);

impl StatusSet {
    /// Whether `status` is one of them.
    pub fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|&(first, last)| (first..=last).contains(&status))
    }
}

impl fmt::Display for StatusSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.0.iter().enumerate() {
            f.write_str(if index > 0 { " or " } else { "" })?;
            if first == last { write!(f, "{first}") } else { write!(f, "{}xx", first / 100) }?;
        }
        Ok(())
    }
}

impl std::str::FromStr for StatusSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = |part: &str| {
            let class = part.strip_suffix("xx").and_then(|class| class.parse::<u16>().ok());
            let range = match class {
                Some(class) => Some((class * 100, class * 100 + 99)),
                None => part.parse().ok().map(|code| (code, code)),
            };
            range.filter(|&(first, last)| first >= 100 && last <= 599)
        };
        let ranges: Option<Vec<_>> = text.split(',').map(str::trim).map(one).collect();
        ranges.map(StatusSet).ok_or_else(|| format!("expected status codes such as 200 or 2xx,304, got {text:?}"))
    }
}

/// A checked run: what the engine needs, and nothing else.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The server.
    pub url: Url,
    /// Reach it over this unix socket.
    pub unix: Option<PathBuf>,
    /// The requests and their weights.
    pub wanted: Vec<Wanted>,
    /// What all requests share.
    pub common: Common,
    /// Connections of all shards together.
    pub connections: usize,
    /// Shards: one pinned thread and ring each.
    pub shards: usize,
    /// When it ends.
    pub extent: Extent,
    /// Load before anything is counted.
    pub warmup: Duration,
    /// When requests are sent.
    pub model: Model,
    /// Requests in flight on one connection.
    pub pipeline: usize,
    /// Requests after which a connection is closed and opened anew.
    pub requests_per_connection: Option<u64>,
    /// Requests a connection draws at once from what is left to do.
    pub batch: u64,
    /// Until a connection is established.
    pub connect_timeout: Duration,
    /// From sending a request to the last byte of its answer.
    pub timeout: Duration,
    /// Statuses that are no error.
    pub expect_status: Option<StatusSet>,
    /// The body that is no error, byte for byte.
    pub expect_body: Option<Arc<[u8]>>,
    /// Of the time series.
    pub interval: Duration,
    /// Seed of weights and arrivals.
    pub seed: u64,
}

impl Plan {
    /// A closed run of ten seconds over 64 connections on one shard.
    pub fn new(url: Url) -> Plan {
        let wanted = vec![Wanted { weight: 1, method: None, path: url.path.clone() }];
        Plan {
            url,
            unix: None,
            wanted,
            common: Common::default(),
            connections: 64,
            shards: 1,
            extent: Extent { duration: Some(Duration::from_secs(10)), requests: None },
            warmup: Duration::ZERO,
            model: Model::Closed,
            pipeline: 1,
            requests_per_connection: None,
            batch: 1,
            connect_timeout: LOAD_CONNECT_TIMEOUT,
            timeout: LOAD_REQUEST_TIMEOUT,
            expect_status: None,
            expect_body: None,
            interval: Duration::from_secs(1),
            seed: 0,
        }
    }

    /// Checks every bound and every combination.
    ///
    /// # Errors
    /// The first argument that does not fit, and what was expected.
    pub fn validate(mut self) -> Result<Plan, LoadError> {
        let check = |argument, is_ok, expected: String| match is_ok {
            true => Ok(()),
            false => Err(LoadError::usage(argument, expected)),
        };
        let time = |argument, time: Duration, least: Duration| {
            let most = LOAD_TIME_MAX;
            check(argument, time >= least && time <= most, format!("expected {least:?} to {most:?}, got {time:?}"))
        };
        check(
            "--connections",
            (1..=LOAD_CONNECTIONS_MAX).contains(&self.connections),
            format!("expected 1 to {LOAD_CONNECTIONS_MAX}, got {}", self.connections),
        )?;
        check(
            "--threads",
            (1..=LOAD_SHARDS_MAX).contains(&self.shards) && self.shards <= self.connections,
            format!("expected 1 to {LOAD_SHARDS_MAX}, and no more than connections, got {}", self.shards),
        )?;
        check(
            "--pipeline",
            (1..=PIPELINE_MAX).contains(&self.pipeline),
            format!("expected 1 to {PIPELINE_MAX}, got {}", self.pipeline),
        )?;
        if let Some(requests) = self.extent.requests {
            check("--requests", requests > 0, "expected 1 or more".into())?;
        }
        if let Some(duration) = self.extent.duration {
            time("--duration", duration, Duration::from_millis(1))?;
        }
        check(
            "--duration",
            self.extent.duration.is_some() || self.extent.requests.is_some(),
            "expected a duration or a number of requests".into(),
        )?;
        time("--warmup", self.warmup, Duration::ZERO)?;
        time("--timeout", self.timeout, Duration::from_millis(1))?;
        time("--connect-timeout", self.connect_timeout, Duration::from_millis(1))?;
        time("--interval", self.interval, LOAD_INTERVAL_MIN)?;
        check("--batch", self.batch > 0, "expected 1 or more".into())?;
        check("--requests-per-connection", self.requests_per_connection != Some(0), "expected 1 or more".into())?;
        if let Model::Open { rate, .. } = self.model {
            let is_ok = rate > 0.0 && rate <= LOAD_RATE_MAX;
            check("--rate", is_ok, format!("expected more than 0 and at most {LOAD_RATE_MAX}, got {rate}"))?;
            check("--batch", self.batch == 1, "expected no --rate with it".into())?;
        }
        if self.url.scheme == Scheme::Tcp {
            // One read is one answer: only a connection a request tells which is whose.
            check("--pipeline", self.pipeline == 1, "expected http:// with it".into())?;
            check("--expect-status", self.expect_status.is_none(), "expected http:// with it".into())?;
            self.requests_per_connection = Some(1);
        }
        if self.requests_per_connection == Some(1) {
            check("--pipeline", self.pipeline == 1, "expected kept connections with it".into())?;
            self.common.keep_alive = false;
        }
        Ok(self)
    }

    /// Whether every request has a connection of its own, whose opening is part of the latency.
    pub fn is_churn(&self) -> bool {
        self.requests_per_connection == Some(1)
    }

    /// The rendered requests.
    pub fn mix(&self) -> Mix {
        Mix::new(&self.url, &self.wanted, &self.common)
    }

    /// Connections of one shard.
    pub fn connections_of(&self, shard: usize) -> usize {
        self.connections / self.shards + usize::from(shard < self.connections % self.shards)
    }

    /// Requests of one shard, in proportion to its connections.
    pub fn requests_of(&self, shard: usize) -> Option<u64> {
        let requests = u128::from(self.extent.requests?);
        let before = |shard: usize| -> u64 {
            let connections: usize = (0..shard).map(|shard| self.connections_of(shard)).sum();
            (requests * connections as u128 / self.connections as u128) as u64
        };
        Some(before(shard + 1) - before(shard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan::new("http://h/".parse().unwrap())
    }

    #[test]
    fn defaults_are_valid_and_bounds_are_checked() {
        assert!(plan().validate().is_ok());
        #[track_caller]
        fn check(argument: &str, change: impl FnOnce(&mut Plan)) {
            let mut plan = plan();
            change(&mut plan);
            let error = plan.validate().map(|_| ()).unwrap_err().to_string();
            assert!(error.starts_with(argument) && error.contains("expected"), "{argument}: {error}");
        }
        check("--connections", |p| p.connections = 0);
        check("--connections", |p| p.connections = LOAD_CONNECTIONS_MAX + 1);
        check("--threads", |p| p.shards = 0);
        check("--threads", |p| (p.shards, p.connections) = (3, 2));
        check("--pipeline", |p| p.pipeline = 0);
        check("--pipeline", |p| p.pipeline = PIPELINE_MAX + 1);
        check("--pipeline", |p| (p.pipeline, p.requests_per_connection) = (2, Some(1)));
        check("--requests", |p| p.extent.requests = Some(0));
        check("--duration", |p| p.extent.duration = Some(Duration::ZERO));
        check("--duration", |p| p.extent.duration = None);
        check("--warmup", |p| p.warmup = LOAD_TIME_MAX + Duration::from_secs(1));
        check("--timeout", |p| p.timeout = Duration::ZERO);
        check("--connect-timeout", |p| p.connect_timeout = Duration::ZERO);
        check("--interval", |p| p.interval = LOAD_INTERVAL_MIN - Duration::from_millis(1));
        check("--batch", |p| p.batch = 0);
        check("--requests-per-connection", |p| p.requests_per_connection = Some(0));
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            check("--rate", |p| p.model = Model::Open { rate, arrivals: Arrivals::Constant });
        }
    }

    #[test]
    fn tcp_means_a_connection_a_request() {
        let plan = Plan::new("tcp://h:7".parse().unwrap()).validate().unwrap();
        assert!(plan.is_churn() && !plan.common.keep_alive);
    }

    #[test]
    fn shards_share_all_there_is() {
        for (connections, shards, requests) in [(64, 1, 1_000), (10, 3, 7), (5, 5, 3), (7, 2, u64::MAX)] {
            let mut plan = plan();
            (plan.connections, plan.shards, plan.extent.requests) = (connections, shards, Some(requests));
            assert_eq!((0..shards).map(|shard| plan.connections_of(shard)).sum::<usize>(), connections);
            assert_eq!((0..shards).filter_map(|shard| plan.requests_of(shard)).sum::<u64>(), requests);
        }
    }

    #[test]
    fn status_set_reads_codes_and_classes() {
        let set: StatusSet = "2xx, 304".parse().unwrap();
        for (status, is_in) in [(199, false), (200, true), (299, true), (300, false), (304, true), (305, false)] {
            assert_eq!(set.contains(status), is_in, "{status}");
        }
        assert_eq!(set.to_string(), "2xx or 304");
        for bad in ["", "x", "99", "600", "0xx", "6xx", "200,", "2x"] {
            assert!(bad.parse::<StatusSet>().is_err(), "{bad:?}");
        }
    }
}
