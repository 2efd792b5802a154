//! What all HTTP/1 connections of a shard share: application, configuration, counters, the date. Floor 5.

use crate::{
    access_log::AccessLog,
    app::App,
    config::ServerConfig,
    http::{BodyFraming, ConnInfo, HeadEncoder, HeadLimits, Response, TrustedProxies, Version},
    stats::Counters,
};
use std::{
    cell::{Cell, Ref, RefCell},
    rc::Rc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Limits and deadlines of HTTP/1 connections. Times are in milliseconds; `u64::MAX` is none.
#[derive(Clone, Debug)]
pub struct Http1Config {
    /// Bounds on a request head.
    pub head: HeadLimits,
    /// Bytes of a body that a handler collects at most; streamed bodies have no bound.
    pub body_bytes_max: usize,
    /// From the first byte of a head to its last.
    pub header_timeout_ms: u64,
    /// Without a request on a kept connection, or before the first.
    pub idle_timeout_ms: u64,
    /// Longest pause in a body, and the time before its minimum rate counts.
    pub body_timeout_ms: u64,
    /// Bytes a second a body must bring after that; 0: no such bound.
    pub body_rate_min: u64,
    /// In which a peer takes no byte of an answer.
    pub write_stall_ms: u64,
    /// Until a handler has an answer.
    pub handler_timeout_ms: u64,
    /// Peers whose word on the client's address is taken, if any.
    pub trusted_proxies: Option<Rc<TrustedProxies>>,
    /// Requests answered on one connection.
    pub requests_per_connection_max: Option<u64>,
}

impl From<&ServerConfig> for Http1Config {
    fn from(config: &ServerConfig) -> Self {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Http1Config {
            head: HeadLimits {
                head_bytes_max: config.head_bytes_max,
                headers_max: config.headers_max,
                uri_bytes_max: config.uri_bytes_max,
            },
            body_bytes_max: config.body_bytes_max,
            header_timeout_ms: ms(config.header_timeout),
            idle_timeout_ms: ms(config.idle_timeout),
            body_timeout_ms: ms(config.body_timeout),
            body_rate_min: config.body_rate_min.into(),
            write_stall_ms: ms(config.write_stall_timeout),
            handler_timeout_ms: config.handler_timeout.map_or(u64::MAX, ms),
            trusted_proxies: (!config.trusted_proxies.is_empty())
                .then(|| Rc::new(TrustedProxies(config.trusted_proxies.clone()))),
            requests_per_connection_max: config.requests_per_connection_max,
        }
    }
}

/// Shared by the connections of one shard.
#[derive(Debug)]
pub struct Context {
    /// The application.
    pub app: App,
    /// Limits and deadlines.
    pub config: Http1Config,
    /// The shard's counters.
    pub counters: Rc<Counters>,
    pub(in crate::service) access_log: Option<Rc<AccessLog>>,
    heads: RefCell<HeadEncoder>,
    date_until_ms: Cell<u64>,
    is_draining: Cell<bool>,
    /// Of connections that wait, for those that work: as many as worked at once.
    spare_infos: RefCell<Vec<Rc<ConnInfo>>>,
}

impl Context {
    /// A context for `app`.
    pub fn new(app: App, config: Http1Config, counters: Rc<Counters>) -> Self {
        Context {
            app,
            config,
            counters,
            access_log: None,
            heads: RefCell::default(),
            date_until_ms: Cell::new(0),
            is_draining: Cell::new(false),
            spare_infos: RefCell::default(),
        }
    }

    /// The same, with a line in the log for each answer.
    pub(crate) fn with_access_log(self, access_log: Option<Rc<AccessLog>>) -> Self {
        Context { access_log, ..self }
    }

    /// Puts what requests tell of their connection behind a shared pointer.
    pub(super) fn share_info(&self, info: ConnInfo) -> Rc<ConnInfo> {
        let spare = self.spare_infos.borrow_mut().pop();
        match spare {
            Some(mut shared) => {
                *Rc::get_mut(&mut shared).expect("spare ones are nobody else's") = info;
                shared
            }
            None => Rc::new(info),
        }
    }

    /// Takes an idle connection's back, unless somebody has it still, or it took system calls to know what it says.
    pub(super) fn spare_info(&self, info: &mut Option<Rc<ConnInfo>>) {
        if let Some(spare) = info.take_if(|info| !info.has_addrs() && Rc::get_mut(info).is_some()) {
            self.spare_infos.borrow_mut().push(spare);
        }
    }

    /// From now on every answer closes its connection, and connections that wait are closed after a grace. The
    /// caller wakes their tasks.
    pub fn drain(&self) {
        self.is_draining.set(true);
    }

    /// Whether [`drain`](Self::drain) was called.
    pub fn is_draining(&self) -> bool {
        self.is_draining.get()
    }

    /// Appends an answer's head; the arguments are those of [`Encoding`](crate::http::Encoding).
    #[inline]
    pub(in crate::service) fn encode_head(
        &self,
        out: &mut Vec<u8>,
        response: &Response,
        version: Version,
        head_only: bool,
        keep_alive: bool,
        now_ms: u64,
    ) -> BodyFraming {
        self.refresh_date(now_ms);
        self.heads.borrow_mut().encode(out, response, version, head_only, keep_alive)
    }

    /// The `Server` and `Date` lines.
    pub(crate) fn date_lines(&self, now_ms: u64) -> Ref<'_, [u8]> {
        self.refresh_date(now_ms);
        Ref::map(self.heads.borrow(), HeadEncoder::server_and_date)
    }

    /// The system's clock is read once a second of the shard's.
    #[inline]
    fn refresh_date(&self, now_ms: u64) {
        if now_ms >= self.date_until_ms.get() {
            let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.heads.borrow_mut().set_time(unix.as_secs());
            self.date_until_ms.set(now_ms + 1000 - u64::from(unix.subsec_millis()));
        }
    }
}
