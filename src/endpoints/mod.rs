//! The endpoints that are there whatever application runs, and the merging of stats behind them. Floor 7.
//!
//! The shard that is asked asks the others over their mailboxes and merges what comes back in time; a shard that is
//! late is listed as missing, never waited for.

mod process;

use crate::{
    config::{Endpoints, ServerConfig},
    handler::Reply,
    http::{Request, Response, StatusCode},
    limits::ANSWER_PATIENCE,
    router::Router,
    shard::Shard,
    stats::{Engine, Process, ServerFacts, ServerSnapshot, ShardReport},
    topology::Quota,
};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// What the endpoints have to know of the server.
#[derive(Debug)]
pub(crate) struct About {
    started: Instant,
    started_unix_s: u64,
    engine: Engine,
    connections_max: usize,
    quota: Option<Quota>,
    pub(crate) is_draining: AtomicBool,
    /// By listener: whether the stats may be read through it.
    pub(crate) shows_stats: Vec<bool>,
    pub(crate) endpoints: Endpoints,
}

impl About {
    pub(crate) fn new(config: &ServerConfig, engine: Engine, connections_max: usize, quota: Option<Quota>) -> Self {
        About {
            started: Instant::now(),
            started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            engine,
            connections_max,
            quota,
            is_draining: AtomicBool::new(false),
            shows_stats: config.listen.iter().map(|address| config.stats.is_on_at(address)).collect(),
            endpoints: config.endpoints.clone(),
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
            access_log_dropped: 0,
            engine: self.engine.clone(),
            process: Process {
                started_unix_s: self.started_unix_s,
                ..process::read(Path::new("/"), self.quota.as_ref())
            },
        };
        ServerSnapshot::new(facts, shard_count, answers)
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }
}

/// The author's routes with the built-in ones before them.
pub(crate) fn install(router: Router, shard: &Shard, about: &Arc<About>) -> Router {
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
        let (shard, about) = (shard.clone(), about.clone());
        own = own.get(path, move |request: Request| {
            let listener = request.conn().map_or(0, |conn| conn.listener());
            if !about.shows_stats.get(listener).copied().unwrap_or(false) {
                return Reply::Ready(
                    Response::text("the stats are not shown here (see --stats)\n").with_status(StatusCode::NOT_FOUND),
                );
            }
            let (shard, about) = (shard.clone(), about.clone());
            Reply::Later(Box::pin(async move {
                let json = serde_json::to_string(&about.snapshot(&shard).await).expect("plain data");
                Response::bytes("application/json", json).with_header("cache-control", "no-store")
            }))
        });
    }
    router.beside(own)
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
