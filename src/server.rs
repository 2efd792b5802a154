//! The server: starts the shards, hears signals, drains, ends. Floor 7.
//!
//! ```text
//! start: config → preflight → plan → bind all → threads → all Ready? ──no──▶ stop those that are, Err
//!                                                            │ yes: Serve
//! control thread:  Serving ──shutdown──▶ (drain delay) ──▶ Draining ──all Drained, or deadline──▶ Stop ──▶ all Ended
//!                     └──────────────second signal, a shard ended──────────────────────────────────▲
//! ```

mod bound;
mod keeper;

use self::{
    bound::{Bound, adopt, bind},
    keeper::{Keeper, hear_signals},
};
use crate::{
    access_log::{AccessLog, Writer},
    config::{Address, AjpOptions, ConfigError, ServerConfig},
    endpoints::{About, for_operators, install},
    error::Error,
    limits::{ANSWER_PATIENCE, DRAIN_LOOK, START_PATIENCE, STOP_PATIENCE},
    preflight::{Preflight, explain, preflight},
    ring::{passed::take_passed, rlimit::files_needed},
    router::Router,
    service::tcp::TcpConnection,
    shard::{Mail, Peers, Reply, Shard},
    stats::{Engine, ServerSnapshot},
    systemd::Notifier,
    topology::{Host, ShardPlan},
    worker::{self, Factory, Note, Setup, TcpFactory},
};
use std::{
    fmt,
    future::Future,
    io,
    net::TcpListener,
    rc::Rc,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// An HTTP server, before it runs.
///
/// ```no_run
/// use everycore::{Request, Response, Router, Server};
/// use std::{cell::Cell, rc::Rc};
///
/// fn main() -> Result<(), everycore::Error> {
///     Server::bind("0.0.0.0:8080").handle_signals().run(|_shard| {
///         let served = Rc::new(Cell::new(0u64)); // built on this core, never shared
///         Router::new()
///             .get("/yo", |req: Request| async move {
///                 Response::text(format!("Hey {}!", req.query("name").unwrap_or_default()))
///             })
///             .get("/served", move |_| {
///                 served.set(served.get() + 1);
///                 Response::text(served.get().to_string())
///             })
///             .post("/echo", |req: Request| async move { Response::stream(req.into_body()) })
///     })
/// }
/// ```
pub struct Server {
    config: ServerConfig,
    problem: Option<ConfigError>,
    adopted: Vec<TcpListener>,
    tcp: Vec<(Address, TcpFactory)>,
    handles_signals: bool,
    is_systemd_service: bool,
}

impl Server {
    /// A server with default settings at one address: `host:port` (port 0 lets the kernel choose), `[v6]:port`
    /// or `unix:/path`. An address that cannot be read is reported by [`run`](Self::run).
    pub fn bind(address: impl ToString) -> Self {
        let mut server = Server::new(ServerConfig::default());
        server.config.listen.clear();
        server.listen(address)
    }

    /// A server with these settings.
    pub fn new(config: ServerConfig) -> Self {
        Server {
            config,
            problem: None,
            adopted: Vec::new(),
            tcp: Vec::new(),
            handles_signals: false,
            is_systemd_service: false,
        }
    }

    /// Listens at another address too.
    pub fn listen(mut self, address: impl ToString) -> Self {
        if let Some(address) = self.parsed(&address.to_string()) {
            self.config.listen.push(address);
        }
        self
    }

    /// Serves a listener that the caller made: all shards accept from its one queue.
    pub fn listener(mut self, listener: TcpListener) -> Self {
        self.adopted.push(listener);
        self
    }

    /// Serves raw connections at `address` beside HTTP, on the same shards: `factory` builds, on each shard, the
    /// handler of one connection. [`TcpConnection`] says how its waits end. Connections count for `connections_max`; those
    /// above it are closed in good order, without a word. A handler that panics costs its own connection.
    ///
    /// ```no_run
    /// use everycore::{Router, Server, TcpConnection};
    /// use futures_lite::{AsyncReadExt, AsyncWriteExt};
    ///
    /// Server::bind("127.0.0.1:8080")
    ///     .tcp("127.0.0.1:7000", |_shard| {
    ///         |mut connection: TcpConnection| async move {
    ///             let mut buffer = [0; 1024];
    ///             let count = connection.read(&mut buffer).await?;
    ///             connection.write_all(&buffer[..count]).await
    ///         }
    ///     })
    ///     .run(|_shard| Router::new())
    /// # ?; Ok::<(), everycore::Error>(())
    /// ```
    pub fn tcp<H, F>(mut self, address: impl ToString, factory: impl Fn(Shard) -> H + Send + Sync + 'static) -> Self
    where
        H: Fn(TcpConnection) -> F + 'static,
        F: Future<Output = io::Result<()>> + 'static,
    {
        if let Some(address) = self.parsed(&address.to_string()) {
            let factory: TcpFactory = Arc::new(move |shard| {
                let handler = factory(shard);
                Rc::new(move |connection| Box::pin(handler(connection)))
            });
            self.tcp.push((address, factory));
        }
        self
    }

    /// Serves the same application by AJP/1.3 at `address`, for Apache and other proxies that speak it.
    ///
    /// ```no_run
    /// use everycore::{Router, Server, config::AjpOptions};
    ///
    /// Server::bind("127.0.0.1:8080")
    ///     .ajp("127.0.0.1:8009", AjpOptions::with_secret("the proxy's secret=").allow_attributes("SSL_*"))
    ///     .run(|_shard| Router::new().get("/", |_| "by whichever way"))
    /// # ?; Ok::<(), everycore::Error>(())
    /// ```
    ///
    /// What a proxy says of the client is at [`Request::peer_addr`](crate::Request::peer_addr),
    /// [`Request::scheme`](crate::Request::scheme) and [`Forwarded`](crate::ajp::Forwarded). The stats are not shown
    /// through it: everyone comes from the proxy's address.
    pub fn ajp(mut self, address: impl ToString, options: AjpOptions) -> Self {
        if let Some(address) = self.parsed(&address.to_string()) {
            self.config.ajp.push((address, options));
        }
        self
    }

    fn parsed(&mut self, address: &str) -> Option<Address> {
        address.parse().map_err(|error| self.problem = Some(error)).ok()
    }

    /// Number of shards; by default as many as this host has cores for us.
    pub fn shards(mut self, shards: usize) -> Self {
        self.config.shards = Some(shards);
        self
    }

    /// Changes any other setting.
    pub fn configure(mut self, change: impl FnOnce(&mut ServerConfig)) -> Self {
        change(&mut self.config);
        self
    }

    /// Drains on SIGTERM and SIGINT, and stops at once on a second one; opens the file of the access log anew on SIGHUP,
    /// if there is one. Without this, signals are left alone.
    pub fn handle_signals(mut self) -> Self {
        self.handles_signals = true;
        self
    }

    /// Works with systemd where it runs under it: sockets that are passed (socket activation) take the place of the
    /// addresses for HTTP; it is told when the server is ready and when it stops; and its watchdog is fed as long
    /// as every shard answers. Elsewhere without effect.
    pub fn systemd(mut self) -> Self {
        self.is_systemd_service = true;
        self
    }

    /// Serves until it is shut down; `factory` builds the application, on each shard.
    ///
    /// # Errors
    /// It cannot start (then nothing was started), a shard failed, or the drain was cut short with connections open.
    pub fn run(self, factory: impl Fn(Shard) -> Router + Send + Sync + 'static) -> Result<(), Error> {
        self.start(factory)?.wait()
    }

    /// Starts to serve and returns: all shards accept by then.
    ///
    /// # Errors
    /// It cannot start; then nothing was started.
    pub fn start(self, factory: impl Fn(Shard) -> Router + Send + Sync + 'static) -> Result<Running, Error> {
        if let Some(problem) = self.problem {
            return Err(Error::Config(problem));
        }
        let mut config = self.config;
        let mut adopted = self.adopted.into_iter().map(adopt).collect::<io::Result<Vec<_>>>().map_err(Error::Host)?;
        let passed = if self.is_systemd_service { take_passed().map_err(Error::Host)? } else { Vec::new() };
        if !passed.is_empty() {
            config.listen.clear();
            adopted.extend(passed);
        }
        let addresses = config.listen.len() + adopted.len() + self.tcp.len() + config.ajp.len();
        config.validate_for(addresses).map_err(Error::Config)?;
        let host = Host::read();
        let plan = ShardPlan::decide(config.shards, config.cpus.clone(), config.pin, &host).map_err(Error::Topology)?;
        let shards = plan.shards();
        // On a thread of its own: rings tried on the caller's would go on interrupting its system calls (EINTR).
        let checked = thread::scope(|scope| scope.spawn(|| preflight(shards)).join());
        let checked = checked.map_err(|_| Error::ShardPanicked)?;
        let checked = checked.map_err(|error| Error::RingUnavailable(Box::new(error)))?;
        let (limit, needed) = (checked.limits.nofile.soft, files_needed(shards));
        if limit < needed {
            return Err(Error::FewFiles { limit, needed });
        }
        let connections_max = checked.limits.connections_max(config.connections_max, shards);

        let mut bound = bind(&config, adopted, self.tcp, &plan)?;
        config.listen = bound.http_addresses();
        let log_format = config.access_log;
        let access_log = log_format.map(|_| Writer::start(config.access_log_file.as_deref(), shards)).transpose()?;
        let log_of = |shard| Some(AccessLog::new(log_format?, shard, access_log.as_ref()?));
        let lines_lost = access_log.as_ref().map(Writer::lost);
        let about = About::new(&config, engine(&checked), connections_max, host.quota, lines_lost);
        let about = Arc::new(about);
        let installed = about.clone();
        let factory: Factory = Arc::new(move |shard| install(factory(shard.clone()), &shard, &installed));
        let installed = about.clone();
        let stats_factory: Factory = Arc::new(move |shard| for_operators(&shard, &installed));

        let (peers, ends) = Peers::new(shards).map_err(Error::Host)?;
        let peers = Arc::new(peers);
        let (notes, heard) = channel();
        let config = Arc::new(config);
        let mut threads = Vec::new();
        for (id, (mailbox, doorbell)) in ends.into_iter().enumerate() {
            let setup = Setup {
                id,
                core: plan.core_of(id),
                config: config.clone(),
                connections_max,
                features: checked.features.clone(),
                listeners: bound.take_shard(id),
                factory: factory.clone(),
                stats_factory: stats_factory.clone(),
                access_log: log_of(id),
                peers: peers.clone(),
                mailbox,
                doorbell,
                notes: notes.clone(),
            };
            let thread = thread::Builder::new().name(format!("shard-{id}")).spawn(move || worker::run(setup));
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    let _ = stop_all(&peers, threads, &heard); // what failed first is told
                    return Err(Error::Host(error));
                }
            }
        }
        if let Err(error) = await_ready(&heard, shards) {
            let _ = stop_all(&peers, threads, &heard); // what failed first is told
            return Err(explained(error, shards));
        }
        let (addresses, stats_address) = (bound.addresses(), bound.stats_address());
        let reopens = config.access_log_file.is_some();
        let signals = self.handles_signals.then(|| hear_signals(&notes, reopens)).transpose().map_err(Error::Host);
        let signals = match signals {
            Ok(signals) => signals,
            Err(error) => {
                let _ = stop_all(&peers, threads, &heard); // what failed first is told
                return Err(error);
            }
        };
        post_all(&peers, || Mail::Serve);
        let handle = Handle { notes, peers: peers.clone(), about: about.clone() };
        let notifier = if self.is_systemd_service { Notifier::from_env() } else { None };
        let watchdog = match &notifier {
            Some(notifier) => {
                notifier.tell(&format!("READY=1\nSTATUS=serving: {plan}"));
                Notifier::start_watchdog(handle.clone()).map_err(Error::Host)?
            }
            None => None,
        };
        let keeper =
            Keeper { peers, about, config, threads, heard, notifier, access_log, _watchdog: watchdog, _sockets: bound };
        let keeper = thread::Builder::new().name("everycore".into()).spawn(move || keeper.keep(signals));
        let keeper = keeper.map_err(Error::Host)?;
        Ok(Running { handle, keeper, addresses, stats_address, plan, preflight: checked, connections_max })
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("config", &self.config).finish_non_exhaustive()
    }
}

// ---- a running server ----------------------------------------------------------------------------

/// A server that runs. Dropping it does not end it: [`shutdown`](Handle::shutdown) does.
#[derive(Debug)]
pub struct Running {
    handle: Handle,
    keeper: JoinHandle<Result<(), Error>>,
    addresses: Vec<Address>,
    stats_address: Option<Address>,
    plan: ShardPlan,
    preflight: Preflight,
    connections_max: usize,
}

impl Running {
    /// The addresses it listens at, with the ports the kernel chose: for HTTP, raw TCP and AJP, each in the order they
    /// were given.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The address of the listener for the stats, if there is one; see `stats_listen` of [`ServerConfig`].
    pub fn stats_address(&self) -> Option<&Address> {
        self.stats_address.as_ref()
    }

    /// Its shards and their cores.
    pub fn plan(&self) -> &ShardPlan {
        &self.plan
    }

    /// What this host offers.
    pub fn preflight(&self) -> &Preflight {
        &self.preflight
    }

    /// Connections it serves at most: what was asked for, as far as descriptors go.
    pub fn connections_max(&self) -> usize {
        self.connections_max
    }

    /// A handle that other threads may have.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// A shard failed, or the drain was cut short with connections open.
    pub fn wait(self) -> Result<(), Error> {
        self.keeper.join().unwrap_or(Err(Error::ShardPanicked))
    }
}

/// Ends a server, and asks it. Clones are handles to the same.
///
/// It is there once the shards are: a handler that is to end its own server gets it later (`examples/shutdown.rs`).
#[derive(Clone)]
pub struct Handle {
    notes: Sender<Note>,
    peers: Arc<Peers>,
    about: Arc<About>,
}

impl Handle {
    /// Begins to drain: see `drain_delay` and `drain_timeout` of [`ServerConfig`]. Without effect when it has begun.
    pub fn shutdown(&self) {
        let _ = self.notes.send(Note::Shutdown);
    }

    /// Ends it now; requests in flight are lost.
    pub fn stop(&self) {
        let _ = self.notes.send(Note::Stop);
    }

    /// Opens the file of the access log anew, after it was moved away: what SIGHUP does where the server handles signals.
    pub fn reopen_access_log(&self) {
        let _ = self.notes.send(Note::Reopen);
    }

    /// All shards' counters, merged. Waits for a shard at most half a second, then lists it as missing.
    pub fn stats(&self) -> ServerSnapshot {
        let count = self.peers.count();
        let (sender, answers) = sync_channel(count);
        let deadline = Instant::now() + ANSWER_PATIENCE;
        for peer in self.peers.iter() {
            let _ = peer.post(Mail::Ask { question: 0, reply: Reply::Thread(sender.clone()) });
        }
        drop(sender);
        let next = || answers.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
        let answers = std::iter::from_fn(next).collect();
        self.about.merge(count, answers)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle")
    }
}

// ---- starting ------------------------------------------------------------------------------------

fn engine(checked: &Preflight) -> Engine {
    let set_up = ["SINGLE_ISSUER", "DEFER_TASKRUN", "COOP_TASKRUN", "TASKRUN_FLAG", "SUBMIT_ALL", "CQSIZE", "CLAMP"];
    let features = checked.features.in_use().into_iter().map(|name| name.replace(' ', "_").to_uppercase());
    Engine { name: "io_uring".into(), features: set_up.into_iter().map(String::from).chain(features).collect() }
}

fn await_ready(heard: &Receiver<Note>, shards: usize) -> Result<(), Error> {
    let deadline = Instant::now() + START_PATIENCE;
    for _ in 0..shards {
        match heard.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Note::Ready(result) | Note::Ended(result)) => result?,
            Ok(_) => {}
            Err(_) => {
                return Err(Error::Host(io::Error::new(io::ErrorKind::TimedOut, "a shard did not start in time")));
            }
        }
    }
    Ok(())
}

/// A ring or an executor for which there is too little locked memory: with the figures and the cure.
fn explained(error: Error, shards: usize) -> Error {
    match &error {
        Error::Executor(cause) | Error::Ring(cause) if cause.raw_os_error() == Some(libc::ENOMEM) => {
            Error::RingUnavailable(Box::new(explain(cause, shards)))
        }
        _ => error,
    }
}

fn post_all(peers: &Peers, mail: impl Fn() -> Mail) {
    for (id, peer) in peers.iter().enumerate() {
        // A full mailbox is a shard that does not run; one that ended wants no mail.
        if peer.post(mail()).is_err() {
            tracing::warn!("shard {id} takes no mail");
        }
    }
}

/// Ends all shards, and tells how it went. One that is stuck in a handler is left behind: no thread can be ended from
/// outside, and to wait for it would be to hang with it.
fn stop_all(peers: &Peers, threads: Vec<JoinHandle<()>>, heard: &Receiver<Note>) -> Result<(), Error> {
    for peer in peers.iter() {
        let _ = peer.post(Mail::Stop); // those that have ended take none
    }
    let deadline = Instant::now() + STOP_PATIENCE;
    let mut outcome = Ok(());
    loop {
        // Before the last look at the notes: a shard tells how it ended before its thread does.
        let has_ended = threads.iter().all(JoinHandle::is_finished);
        while let Ok(note) = heard.recv_timeout(if has_ended { Duration::ZERO } else { DRAIN_LOOK }) {
            if let Note::Ended(Err(error)) = note {
                outcome = outcome.and(Err(error));
            }
        }
        if has_ended {
            return outcome;
        }
        if Instant::now() >= deadline {
            return outcome.and(Err(Error::ShardStuck));
        }
    }
}
