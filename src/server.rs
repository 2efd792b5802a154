//! The server: starts the shards, hears signals, drains, ends. Floor 7.
//!
//! ```text
//! start: config → preflight → plan → bind all → threads → all Ready? ──no──▶ stop those that are, Err
//!                                                            │ yes: Serve
//! control thread:  Serving ──shutdown──▶ (drain delay) ──▶ Draining ──all Drained, or deadline──▶ Stop ──▶ all Ended
//!                     └──────────────second signal, a shard ended──────────────────────────────────▲
//! ```

use crate::{
    config::{Address, ConfigError, ServerConfig},
    endpoints::{About, for_operators, install},
    error::Error,
    limits::{ANSWER_PATIENCE, START_PATIENCE},
    preflight::{Preflight, preflight},
    ring::listen::{ListenOptions, Listeners, bind_all},
    router::Router,
    service::tcp::TcpConnection,
    shard::{Mail, Peers, Reply, Shard},
    stats::{Engine, ServerSnapshot},
    topology::{Host, ShardPlan},
    worker::{self, Factory, Note, Purpose, Setup, TcpFactory},
};
use std::{
    fmt,
    future::Future,
    io,
    net::TcpListener,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

/// An HTTP server, before it runs.
///
/// ```no_run
/// use everycore::{Request, Response, Router, Server};
/// use std::{cell::Cell, rc::Rc};
///
/// fn main() -> Result<(), everycore::Error> {
///     Server::bind("0.0.0.0:8080").run(|_shard| {
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
        Server { config, problem: None, adopted: Vec::new(), tcp: Vec::new(), handles_signals: false }
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
    /// handler of one connection.
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
    ///             connection.write_all(&buffer[..count]).await?;
    ///             connection.close().await
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
                Box::new(move |connection| Box::pin(handler(connection)))
            });
            self.tcp.push((address, factory));
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

    /// Drains on SIGTERM and SIGINT, and stops at once on a second one. Without this, signals are left alone.
    pub fn handle_signals(mut self) -> Self {
        self.handles_signals = true;
        self
    }

    /// Serves until it is shut down; `factory` builds the application, on each shard.
    ///
    /// # Errors
    /// It cannot start (then nothing was started), or a shard failed.
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
        if config.listen.is_empty() && !self.adopted.is_empty() {
            config.listen = Vec::new();
        }
        config.validate().map_err(Error::Config)?;
        let host = Host::read();
        let plan = ShardPlan::decide(config.shards, config.cpus.clone(), config.pin, &host).map_err(Error::Topology)?;
        let shards = plan.shards();
        let checked = preflight(shards).map_err(|error| Error::RingUnavailable(Box::new(error)))?;
        let connections_max = checked.limits.connections_max(config.connections_max, shards);

        let mut bound = bind(&config, self.adopted, self.tcp, &plan)?;
        config.listen = bound.http_addresses();
        let about = Arc::new(About::new(&config, engine(&checked), connections_max, host.quota));
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
                peers: peers.clone(),
                mailbox,
                doorbell,
                notes: notes.clone(),
            };
            let thread = thread::Builder::new().name(format!("shard-{id}")).spawn(move || worker::run(setup));
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    stop_all(&peers, threads);
                    return Err(Error::Host(error));
                }
            }
        }
        if let Err(error) = await_ready(&heard, shards) {
            stop_all(&peers, threads);
            return Err(error);
        }
        let (addresses, stats_address) = (bound.addresses(), bound.stats_address());
        let signals = self.handles_signals.then(|| hear_signals(&notes)).transpose().map_err(Error::Host);
        let signals = match signals {
            Ok(signals) => signals,
            Err(error) => {
                stop_all(&peers, threads);
                return Err(error);
            }
        };
        post_all(&peers, || Mail::Serve);
        let handle = Handle { notes, peers: peers.clone(), about: about.clone() };
        let keeper = Keeper { peers, about, config, threads, heard, _sockets: bound };
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
    /// The addresses it listens at, in the order they were given, with the ports the kernel chose.
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
    /// A shard failed.
    pub fn wait(self) -> Result<(), Error> {
        self.keeper.join().unwrap_or(Err(Error::ShardPanicked))
    }
}

/// Ends a server, and asks it. Clones are handles to the same.
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

/// What all shards listen at.
struct Bound {
    listeners: Vec<(Listeners, Purpose)>,
}

fn bind(
    config: &ServerConfig,
    adopted: Vec<TcpListener>,
    tcp: Vec<(Address, TcpFactory)>,
    plan: &ShardPlan,
) -> Result<Bound, Error> {
    let options = ListenOptions::new(config, plan);
    let shards = plan.shards();
    let mut listeners = Vec::new();
    for address in &config.listen {
        listeners.push((bind_all(address, shards, &options).map_err(Error::Bind)?, Purpose::Http));
    }
    for listener in adopted {
        let address = Address::Tcp(listener.local_addr().map_err(Error::Host)?);
        let fds = (0..shards).map(|_| listener.try_clone().map(OwnedFd::from));
        let fds = fds.collect::<io::Result<Vec<_>>>().map_err(Error::Host)?;
        listeners.push((Listeners { address, fds, socket_file: None }, Purpose::Http));
    }
    for (address, factory) in tcp {
        listeners.push((bind_all(&address, shards, &options).map_err(Error::Bind)?, Purpose::Tcp(factory)));
    }
    // Last: the others' numbers are those of their addresses.
    if let Some(address) = &config.stats_listen {
        listeners.push((bind_all(address, shards, &options).map_err(Error::Bind)?, Purpose::Stats));
    }
    Ok(Bound { listeners })
}

impl Bound {
    /// This shard's descriptors; each shard takes its own once.
    fn take_shard(&mut self, id: usize) -> Vec<(OwnedFd, Purpose)> {
        debug_assert!(self.listeners.iter().all(|(listeners, _)| !listeners.fds.is_empty()), "shard {id}");
        self.listeners.iter_mut().map(|(listeners, purpose)| (listeners.fds.remove(0), purpose.clone())).collect()
    }

    fn addresses(&self) -> Vec<Address> {
        self.addresses_of(|purpose| !matches!(purpose, Purpose::Stats)).collect()
    }

    fn http_addresses(&self) -> Vec<Address> {
        self.addresses_of(|purpose| matches!(purpose, Purpose::Http)).collect()
    }

    fn stats_address(&self) -> Option<Address> {
        self.addresses_of(|purpose| matches!(purpose, Purpose::Stats)).next()
    }

    fn addresses_of(&self, is_wanted: impl Fn(&Purpose) -> bool) -> impl Iterator<Item = Address> {
        let wanted = self.listeners.iter().filter(move |(_, purpose)| is_wanted(purpose));
        wanted.map(|(listeners, _)| listeners.address.clone())
    }
}

fn engine(checked: &Preflight) -> Engine {
    let set_up = ["SINGLE_ISSUER", "DEFER_TASKRUN", "COOP_TASKRUN", "TASKRUN_FLAG", "SUBMIT_ALL", "CQSIZE", "CLAMP"];
    let features = checked.features.names().into_iter().map(|name| name.replace(' ', "_").to_uppercase());
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

fn post_all(peers: &Peers, mail: impl Fn() -> Mail) {
    for (id, peer) in peers.iter().enumerate() {
        // A full mailbox is a shard that does not run; one that ended wants no mail.
        if peer.post(mail()).is_err() {
            log::warn!("shard {id} takes no mail");
        }
    }
}

fn stop_all(peers: &Peers, threads: Vec<JoinHandle<()>>) {
    post_all(peers, || Mail::Stop);
    for thread in threads {
        let _ = thread.join(); // a panic was caught and told inside
    }
}

// ---- ending --------------------------------------------------------------------------------------

fn hear_signals(notes: &Sender<Note>) -> io::Result<signal_hook::iterator::Handle> {
    let mut signals = signal_hook::iterator::Signals::new([libc::SIGTERM, libc::SIGINT])?;
    let handle = signals.handle();
    let notes = notes.clone();
    thread::Builder::new().name("signals".into()).spawn(move || {
        for _ in signals.forever() {
            if notes.send(Note::Signal).is_err() {
                return;
            }
        }
    })?;
    Ok(handle)
}

/// Owns the shards' threads from start to end.
struct Keeper {
    peers: Arc<Peers>,
    about: Arc<About>,
    config: Arc<ServerConfig>,
    threads: Vec<JoinHandle<()>>,
    heard: Receiver<Note>,
    /// Keeps unix socket files until the end.
    _sockets: Bound,
}

impl Keeper {
    fn keep(mut self, signals: Option<signal_hook::iterator::Handle>) -> Result<(), Error> {
        let result = self.serve();
        stop_all(&self.peers, std::mem::take(&mut self.threads));
        if let Some(signals) = signals {
            signals.close();
        }
        // A shard that failed says so with its last word.
        let failed = self.heard.try_iter().find_map(|event| match event {
            Note::Ended(result) => result.err(),
            _ => None,
        });
        result.and(failed.map_or(Ok(()), Err))
    }

    /// Until every shard is to stop.
    fn serve(&mut self) -> Result<(), Error> {
        let mut phase = Phase::Serving;
        let mut drained = 0;
        loop {
            let note = match phase {
                Phase::Serving => self.heard.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Phase::Delaying(until) | Phase::Draining(until) => {
                    self.heard.recv_timeout(until.saturating_duration_since(Instant::now()))
                }
            };
            match (note, phase) {
                (Ok(Note::Shutdown | Note::Signal), Phase::Serving) => {
                    self.about.is_draining.store(true, Ordering::Relaxed);
                    phase = Phase::Delaying(Instant::now() + self.config.drain_delay);
                }
                (Ok(Note::Stop), _) | (Ok(Note::Signal), _) => return Ok(()),
                (Ok(Note::Drained), _) => {
                    drained += 1;
                    if drained == self.threads.len() {
                        return Ok(());
                    }
                }
                (Ok(Note::Ended(result)), _) => return result,
                (Ok(Note::Shutdown | Note::Ready(_)), _) => {}
                (Err(RecvTimeoutError::Timeout), Phase::Delaying(_)) => {
                    phase = Phase::Draining(Instant::now() + self.config.drain_timeout);
                    post_all(&self.peers, || Mail::Drain);
                }
                // The deadline; or no shard is left.
                (Err(_), _) => return Ok(()),
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Phase {
    Serving,
    /// Unready, but accepting, until then.
    Delaying(Instant),
    /// Finishing, until then.
    Draining(Instant),
}
