//! The endpoints that are there whatever application runs, and the merging of stats behind them. Floor 7.
//!
//! The shard that is asked asks the others over their mailboxes and merges what comes back in time; a shard that is
//! late is listed as missing, never waited for. What it looks like is `stats`' business (JSON, CSV, Prometheus) and that of
//! the page, which draws the JSON in the browser.

mod negotiate;
mod process;

use self::negotiate::Format;
use crate::{
    config::{Endpoints, Secret, ServerConfig},
    handler::Reply,
    http::{Request, Response, StatusCode},
    limits::{ANSWER_PATIENCE, PROCESS_READ_EVERY},
    ring::process_cpu_ns,
    router::Router,
    shard::Shard,
    stats::{CSV_MEDIA_TYPE, Engine, Process, ServerFacts, ServerSnapshot, ShardReport, write_csv},
    topology::Quota,
};
use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// What the endpoints have to know of the server.
pub(crate) struct About {
    started: Instant,
    started_unix_s: u64,
    engine: Engine,
    connections_max: usize,
    quota: Option<Quota>,
    /// What the kernel told of the process, and when: for all shards, so that no count ever seems to go back.
    process: Mutex<Option<(Instant, Process)>>,
    pub(crate) is_draining: AtomicBool,
    /// By listener: whether the stats may be read through it.
    pub(crate) shows_stats: Vec<bool>,
    pub(crate) endpoints: Endpoints,
    token: Option<Secret>,
    /// Lines of the access log that were lost, if there is one.
    lines_lost: Option<LinesLost>,
}

type LinesLost = Box<dyn Fn() -> u64 + Send + Sync>;

impl About {
    pub(crate) fn new(
        config: &ServerConfig,
        engine: Engine,
        connections_max: usize,
        quota: Option<Quota>,
        lines_lost: Option<LinesLost>,
    ) -> Self {
        About {
            started: Instant::now(),
            started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            engine,
            connections_max,
            quota,
            process: Mutex::default(),
            is_draining: AtomicBool::new(false),
            shows_stats: config.listen.iter().map(|address| config.stats.is_on_at(address)).collect(),
            endpoints: config.endpoints.clone(),
            token: config.stats_token.clone(),
            lines_lost,
        }
    }

    /// All shards' counters, merged.
    async fn snapshot(&self, shard: &Shard) -> ServerSnapshot {
        let answers = shard.ask_all(ANSWER_PATIENCE).await;
        self.merge(shard.count(), answers)
    }

    /// What the shards answered, with what is known of the server.
    pub(crate) fn merge(&self, shard_count: usize, answers: Vec<ShardReport>) -> ServerSnapshot {
        let facts = ServerFacts {
            uptime_s: self.started.elapsed().as_secs(),
            is_draining: self.is_draining(),
            connections_max: self.connections_max as u64,
            access_log_dropped: self.lines_lost.as_ref().map_or(0, |lost| lost()),
            engine: self.engine.clone(),
            process: self.process(),
        };
        ServerSnapshot::new(facts, shard_count, answers)
    }

    /// The process. What is dear to ask is asked once a second: it would be a third of what a scrape costs.
    fn process(&self) -> Process {
        let mut known = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = known.as_ref().is_none_or(|(since, _)| since.elapsed() >= PROCESS_READ_EVERY);
        if is_old {
            *known = Some((Instant::now(), process::read(Path::new("/"), self.quota.as_ref())));
        }
        let process = known.as_ref().map(|(_, process)| process.clone()).unwrap_or_default();
        Process { started_unix_s: self.started_unix_s, cpu_ns: process_cpu_ns(), ..process }
    }

    /// Whether the listener that the request came by shows the stats.
    fn is_shown_to(&self, request: &Request) -> bool {
        let listener = request.conn().map_or(0, |conn| conn.listener());
        self.shows_stats.get(listener).copied().unwrap_or(false)
    }

    fn is_authorized(&self, request: &Request) -> bool {
        let Some(token) = &self.token else { return true };
        // The scheme's case does not matter (RFC 9110 §11.1).
        let given = request.header("authorization").and_then(|value| value.split_once(' '));
        given.is_some_and(|(scheme, given)| scheme.eq_ignore_ascii_case("bearer") && token.is(given.trim_start()))
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }
}

/// Who can reach an endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Audience {
    /// The clients of the application.
    Public,
    /// Those of the listener for the stats.
    Operator,
}

/// The author's routes with the built-in ones before them.
pub(crate) fn install(router: Router, shard: &Shard, about: &Arc<About>) -> Router {
    router.beside(own_routes(shard, about, Audience::Public))
}

/// The built-in routes alone, for the listener of the stats. `/` leads to them.
pub(crate) fn for_operators(shard: &Shard, about: &Arc<About>) -> Router {
    let router = own_routes(shard, about, Audience::Operator);
    match about.endpoints.stats.clone() {
        Some(path) if about.endpoints.named().iter().all(|(_, path)| *path != Some("/")) => {
            router.get("/", move |_| Response::redirect(StatusCode::FOUND, &path))
        }
        _ => router,
    }
}

fn own_routes(shard: &Shard, about: &Arc<About>, audience: Audience) -> Router {
    let mut own = Router::new();
    let paths = &about.endpoints;
    if let Some(path) = &paths.livez {
        own = own.get(path, health(shard, about, Health::Live));
    }
    if let Some(path) = &paths.readyz {
        own = own.get(path, health(shard, about, Health::Ready));
    }
    if let Some(path) = &paths.healthz {
        own = own.get(path, health(shard, about, Health::Both));
    }
    if let Some(path) = &paths.stats {
        own = own.get(path, stats(shard, about, audience, Shows::Stats));
    }
    if let Some(path) = &paths.metrics {
        own = own.get(path, stats(shard, about, audience, Shows::Metrics));
    }
    own
}

/// The page: its own data come from the JSON beside it.
const PAGE: &str = include_str!("page.html");
/// Nothing but what the page itself holds, and requests to its own server.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; \
                           connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shows {
    Stats,
    Metrics,
}

fn stats(shard: &Shard, about: &Arc<About>, audience: Audience, shows: Shows) -> impl Fn(Request) -> Reply + 'static {
    let (shard, about) = (shard.clone(), about.clone());
    move |request: Request| {
        let refuse = |status, text: &'static str| Reply::Ready(Response::text(text).with_status(status));
        if audience == Audience::Public && !about.is_shown_to(&request) {
            return refuse(StatusCode::NOT_FOUND, "the stats are not shown here (see --stats)\n");
        }
        let accept = request.header("accept");
        let format = match shows {
            Shows::Metrics => Some(Format::of_metrics(accept)),
            Shows::Stats => Format::of_stats(request.query("format").as_deref(), accept),
        };
        let Some(format) = format else {
            return refuse(StatusCode::BAD_REQUEST, "expected format=json, html, prometheus, openmetrics or csv\n");
        };
        if format == Format::Page {
            // It holds no figures, so it needs no token: it asks for one.
            return Reply::Ready(finish(Response::html(PAGE).with_header("content-security-policy", PAGE_POLICY)));
        }
        if !about.is_authorized(&request) {
            return Reply::Ready(
                Response::text("a bearer token is needed (see --stats-token)\n")
                    .with_status(StatusCode::UNAUTHORIZED)
                    .with_header("www-authenticate", "Bearer realm=\"everycore\""),
            );
        }
        let has_all_buckets = request.query("buckets").as_deref() == Some("all");
        let (shard, about) = (shard.clone(), about.clone());
        Reply::Later(Box::pin(async move {
            let snapshot = about.snapshot(&shard).await;
            finish(match format {
                Format::Prometheus(exposition) => Response::bytes(exposition.media_type(), exposition.write(&snapshot)),
                Format::Csv => Response::bytes(CSV_MEDIA_TYPE, write_csv(&snapshot)),
                Format::Json | Format::Page => {
                    let shown = if has_all_buckets { snapshot } else { snapshot.without_shard_buckets() };
                    Response::bytes("application/json", serde_json::to_string(&shown).expect("plain data"))
                }
            })
        }))
    }
}

fn finish(response: Response) -> Response {
    response
        .with_header("cache-control", "no-store")
        .with_header("vary", "accept")
        .with_header("x-content-type-options", "nosniff")
}

#[derive(Clone, Copy)]
enum Health {
    Live,
    Ready,
    Both,
}

fn health(shard: &Shard, about: &Arc<About>, asked: Health) -> impl Fn(Request) -> Reply + 'static {
    let (shard, about) = (shard.clone(), about.clone());
    move |_| {
        let is_unready = about.is_draining() && !matches!(asked, Health::Live);
        if is_unready {
            return Reply::Ready(Response::text("draining\n").with_status(StatusCode::SERVICE_UNAVAILABLE));
        }
        if matches!(asked, Health::Ready) {
            return Reply::Ready(Response::text("ready\n"));
        }
        let shard = shard.clone();
        Reply::Later(Box::pin(async move {
            let answers = shard.ask_all(ANSWER_PATIENCE).await;
            let silent: Vec<String> = (0..shard.count())
                .filter(|id| answers.iter().all(|answer| answer.shard != *id))
                .map(|id| id.to_string())
                .collect();
            match silent.is_empty() {
                true => Response::text("ok\n"),
                false => Response::text(format!("no answer from shard {}\n", silent.join(", ")))
                    .with_status(StatusCode::SERVICE_UNAVAILABLE),
            }
        }))
    }
}
