//! The endpoints that are there whatever application runs, and the merging of stats behind them. Floor 7.
//!
//! The shard that is asked asks the others over their mailboxes and merges what comes back in time; a shard that is
//! late is listed as missing, never waited for.

use crate::{
    config::{Endpoints, ServerConfig},
    handler::Reply,
    http::{Request, Response, StatusCode},
    limits::ANSWER_PATIENCE,
    router::Router,
    shard::Shard,
    stats::{Engine, ServerSnapshot},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// What the endpoints have to know of the server.
#[derive(Debug)]
pub(crate) struct About {
    pub(crate) started: Instant,
    pub(crate) engine: Engine,
    pub(crate) is_draining: AtomicBool,
    /// By listener: whether the stats may be read through it.
    pub(crate) shows_stats: Vec<bool>,
    pub(crate) endpoints: Endpoints,
}

impl About {
    pub(crate) fn new(config: &ServerConfig, engine: Engine) -> Self {
        About {
            started: Instant::now(),
            engine,
            is_draining: AtomicBool::new(false),
            shows_stats: config.listen.iter().map(|address| config.stats.is_on_at(address)).collect(),
            endpoints: config.endpoints.clone(),
        }
    }

    /// All shards' counters, merged.
    pub(crate) async fn snapshot(&self, shard: &Shard) -> ServerSnapshot {
        let answers = shard.ask_all(ANSWER_PATIENCE).await;
        ServerSnapshot::new(self.started.elapsed().as_secs(), self.engine.clone(), shard.count(), answers)
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
