//! One shard from its first breath to its last: executor, ring, listeners, connections, drain. Floor 6.
//!
//! ```text
//! Starting ──all shards ready──▶ Serving ──Drain──▶ Draining ──no connection left──▶ (told) ──Stop──▶ ended
//!                                   └───────────────────Stop, at any time──────────────────────────────▲
//! ```

use crate::{
    access_log::AccessLog,
    app::App,
    config::{AjpOptions, Balance, ServerConfig},
    error::Error,
    limits::{ACCEPT_PAUSE, DRAIN_LOOK, GLOMMIO_IO_MEMORY, REFUSALS_MAX, RETRY_AFTER_S, STATS_CONNECTIONS_MAX},
    ring::{
        Doorbell, Listener, Ring, RingOptions, Socket,
        probe::{Features, retry_short_of_memory},
    },
    router::Router,
    service::{
        ajp,
        http1::{self, Context, Http1Config},
        tcp::{self, TcpContext, TcpHandler},
    },
    shard::{Mail, Peers, Shard},
    stats::{CloseCause, Count, Counters},
    transport::{Outgoing, Transport},
};
use futures_lite::future;
use std::{
    cell::Cell,
    future::{Future, poll_fn},
    io,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    rc::Rc,
    sync::{
        Arc,
        mpsc::{Receiver, Sender},
    },
};

/// Builds a shard's application, on that shard.
pub(crate) type Factory = Arc<dyn Fn(Shard) -> Router + Send + Sync>;
/// Builds a shard's handler of raw connections.
pub(crate) type TcpFactory = Arc<dyn Fn(Shard) -> TcpHandler + Send + Sync>;

/// What a listener's connections are for.
#[derive(Clone)]
pub(crate) enum Purpose {
    Http,
    /// The stats and health endpoints alone.
    Stats,
    Tcp(TcpFactory),
    Ajp(Arc<AjpOptions>),
}

/// What a worker is started with.
pub(crate) struct Setup {
    pub(crate) id: usize,
    pub(crate) core: Option<usize>,
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) connections_max: usize,
    pub(crate) features: Features,
    /// This shard's own descriptor of every listener, and what it is for.
    pub(crate) listeners: Vec<(OwnedFd, Purpose)>,
    pub(crate) factory: Factory,
    /// Builds what the listener for the stats serves.
    pub(crate) stats_factory: Factory,
    pub(crate) access_log: Option<AccessLog>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) mailbox: Receiver<Mail>,
    pub(crate) doorbell: Doorbell,
    pub(crate) notes: Sender<Note>,
}

/// What the server's keeper hears: from its workers, its handles and the signals.
#[derive(Debug)]
pub(crate) enum Note {
    /// It is ready, or could not be made so.
    Ready(Result<(), Error>),
    /// It has no connection left and accepts none.
    Drained,
    /// Its thread is about to end.
    Ended(Result<(), Error>),
    /// A handle: drain.
    Shutdown,
    /// A handle: end now.
    Stop,
    /// SIGTERM or SIGINT: drain; a second one: end now.
    Signal,
    /// SIGHUP, or a handle: open the access log anew.
    Reopen,
}

/// The body of a worker's thread.
pub(crate) fn run(setup: Setup) {
    let notes = setup.notes.clone();
    let result = catch_unwind(AssertUnwindSafe(|| work(setup)));
    let result = result.unwrap_or(Err(Error::ShardPanicked));
    // The server is gone if nobody listens: nothing is left to tell.
    let _ = notes.send(Note::Ended(result));
}

fn work(mut setup: Setup) -> Result<(), Error> {
    let make = || {
        glommio::LocalExecutorBuilder::new(glommio::Placement::Unbound)
            .io_memory(GLOMMIO_IO_MEMORY)
            .blocking_thread_pool_placement(glommio::PoolPlacement::Unbound(1))
            .make()
            .map_err(io::Error::from)
    };
    // Before the thread is pinned: the blocking thread must not inherit the shard's core.
    let executor = retry_short_of_memory(crate::limits::MEMLOCK_RETRY, make).map_err(Error::Executor)?;
    if let Some(core) = setup.core
        && !core_affinity::set_for_current(core_affinity::CoreId { id: core })
    {
        return Err(Error::Pin { core });
    }
    executor.run(async move {
        let options = RingOptions {
            tick: setup.config.tick,
            has_multishot_timeout: setup.features.multishot_timeout,
            ..RingOptions::default()
        };
        let ring = Ring::with_doorbell(&options, setup.doorbell.clone()).map_err(Error::Ring)?;
        let access_log = setup.access_log.take().map(Rc::new);
        let worker = Rc::new(Worker::new(&setup, &ring, access_log.clone())?);
        if let Some(log) = access_log {
            let shard = worker.shard.clone();
            ring.spawn(async move { log.hand_over_in_time(&shard).await });
        }
        let notes = setup.notes.clone();
        let _ = notes.send(Note::Ready(Ok(())));
        ring.drive(worker.main(setup)).await.map_err(Error::Ring)
    })
}

struct Worker {
    shard: Shard,
    http: Rc<Context>,
    tcp: Rc<TcpContext>,
    /// Of each listener: how to serve its connections.
    services: Vec<Service>,
    balance: Balance,
    connections_max: usize,
    /// For round-robin: who is next.
    next: Cell<usize>,
    acceptors: Cell<usize>,
    refusals: Cell<usize>,
    /// Open connections of the listener for the stats.
    readers: Rc<Cell<usize>>,
}

enum Service {
    Http,
    /// Has a context of its own, which does not drain.
    Stats(Rc<Context>),
    Tcp(TcpHandler),
    /// On the context for HTTP.
    Ajp(Rc<AjpOptions>),
}

impl Worker {
    fn new(setup: &Setup, ring: &Ring, access_log: Option<Rc<AccessLog>>) -> Result<Self, Error> {
        let counters = Rc::new(Counters::default());
        let shard = Shard::new(setup.id, setup.core, ring.clone(), counters.clone(), setup.peers.clone());
        let context = |factory: &Factory| {
            let app: App = factory(shard.clone()).build().map_err(Error::Router)?;
            let context = Context::new(app, Http1Config::from(&*setup.config), counters.clone());
            Ok(Rc::new(context.with_access_log(access_log.clone())))
        };
        let http = context(&setup.factory)?;
        let services = setup.listeners.iter().map(|(_, purpose)| match purpose {
            Purpose::Http => Ok(Service::Http),
            Purpose::Stats => Ok(Service::Stats(context(&setup.stats_factory)?)),
            Purpose::Tcp(factory) => Ok(Service::Tcp(factory(shard.clone()))),
            Purpose::Ajp(options) => Ok(Service::Ajp(Rc::new((**options).clone()))),
        });
        Ok(Worker {
            services: services.collect::<Result<_, Error>>()?,
            http,
            tcp: Rc::new(TcpContext::new(&setup.config, counters, shard.drain_signal().clone())),
            balance: setup.config.balance,
            connections_max: setup.connections_max,
            next: Cell::new(setup.id),
            acceptors: Cell::new(0),
            refusals: Cell::new(0),
            readers: Rc::default(),
            shard,
        })
    }

    /// Reads the shard's mail until it is told to stop.
    async fn main(self: Rc<Self>, setup: Setup) {
        let mut listeners = Some(setup.listeners);
        loop {
            while let Ok(mail) = setup.mailbox.try_recv() {
                match mail {
                    Mail::Serve => self.accept_on(listeners.take().unwrap_or_default()),
                    Mail::Connection { fd, listener } => {
                        self.shard.counters().connections.handoffs_in.add(1);
                        self.serve(fd, listener);
                    }
                    Mail::Ask { question, reply } => self.shard.answer(question, &reply),
                    Mail::Answer { question, report } => self.shard.take_answer(question, *report),
                    Mail::Message(message) => self.shard.deliver(message),
                    Mail::Drain => self.clone().start_drain(setup.notes.clone()),
                    Mail::Stop => return,
                }
            }
            poll_fn(|cx| self.shard.ring().poll_bell(cx)).await;
        }
    }

    // ---- accepting -------------------------------------------------------------------------------

    fn accept_on(self: &Rc<Self>, listeners: Vec<(OwnedFd, Purpose)>) {
        for (index, (fd, _)) in listeners.into_iter().enumerate() {
            let worker = self.clone();
            let listener = self.shard.ring().listen(fd);
            if let Service::Stats(_) = self.services[index] {
                // To the end: a drain does not wait for it, and it goes on answering.
                self.shard.spawn(async move { worker.accept(&listener, index, std::future::pending()).await });
                continue;
            }
            self.acceptors.set(self.acceptors.get() + 1);
            self.shard.spawn(async move {
                worker.accept(&listener, index, worker.shard.draining()).await;
                // The drain began: what has arrived is still served.
                for fd in listener.close().await {
                    worker.place(fd, index);
                }
                worker.acceptors.set(worker.acceptors.get() - 1);
            });
        }
    }

    async fn accept(self: &Rc<Self>, listener: &Listener, index: usize, until: impl Future<Output = ()>) {
        let mut until = pin!(until);
        let mut is_pausing = false;
        loop {
            let accepted = future::or(async { Some(listener.accept().await) }, async {
                until.as_mut().await;
                None
            });
            match accepted.await {
                None => return,
                Some(Ok(fd)) => {
                    is_pausing = false;
                    self.place(fd, index);
                }
                Some(Err(error)) => match error.raw_os_error() {
                    // Connections wait in the kernel's queue until a descriptor is free again.
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => {
                        self.shard.counters().connections.accept_pauses.add(1);
                        // Told once, not with each try.
                        if !std::mem::replace(&mut is_pausing, true) {
                            tracing::warn!("shard {}: accepting pauses: {error}", self.shard.id());
                        }
                        future::or(self.shard.sleep(ACCEPT_PAUSE), self.shard.draining()).await;
                    }
                    // The client was gone before it was accepted, and the like: on to the next.
                    _ => tracing::debug!("shard {}: accept: {error}", self.shard.id()),
                },
            }
        }
    }

    /// Gives a new connection to the shard that is to serve it.
    fn place(self: &Rc<Self>, fd: OwnedFd, listener: usize) {
        let peers = self.shard.peers().clone();
        self.shard.counters().connections.accepted.add(1);
        if let Service::Stats(context) = &self.services[listener] {
            self.serve_reader(fd, listener, context.clone());
            return;
        }
        if peers.connections() >= self.connections_max {
            self.refuse(fd, listener);
            return;
        }
        let own = self.shard.id();
        let target = match self.balance {
            Balance::Kernel | Balance::Cpu | Balance::Random => own,
            Balance::RoundRobin => {
                let next = self.next.get();
                self.next.set((next + 1) % peers.count());
                next
            }
            Balance::LeastConn => {
                // Of equals, this one: a hand-over costs more than it gives.
                let key = |id: usize| (peers.get(id).connections(), id != own);
                (0..peers.count()).min_by_key(|&id| key(id)).unwrap_or(own)
            }
        };
        peers.get(target).count_connection();
        if target == own {
            self.serve(fd, listener);
            return;
        }
        match peers.get(target).post(Mail::Connection { fd, listener }) {
            Ok(()) => self.shard.counters().connections.handoffs_out.add(1),
            Err(error) => {
                // Full or ended: serve it here.
                peers.get(target).uncount_connection();
                let (std::sync::mpsc::TrySendError::Full(mail) | std::sync::mpsc::TrySendError::Disconnected(mail)) =
                    error;
                if let Mail::Connection { fd, listener } = mail {
                    peers.get(own).count_connection();
                    self.serve(fd, listener);
                }
            }
        }
    }

    /// A connection for the stats: it has a bound of its own, and no drain waits for it.
    fn serve_reader(&self, fd: OwnedFd, listener: usize, context: Rc<Context>) {
        let readers = Reader::new(&self.readers);
        if self.readers.get() > STATS_CONNECTIONS_MAX {
            self.shard.counters().rejects.overload.add(1);
            self.shard.counters().connections.closed.by(CloseCause::Rejected).add(1);
            return; // dropped, and so closed
        }
        self.shard.spawn(http1::serve(self.shard.ring().adopt(fd), context, listener, readers));
    }

    /// Runs the service of a connection that this shard was counted for.
    fn serve(self: &Rc<Self>, fd: OwnedFd, listener: usize) {
        let socket = self.shard.ring().adopt(fd);
        let counted = CountedConnection { peers: self.shard.peers().clone(), shard: self.shard.id() };
        match &self.services[listener] {
            Service::Stats(_) => unreachable!("those are neither counted nor handed over"),
            Service::Http => self.shard.spawn(http1::serve(socket, self.http.clone(), listener, counted)),
            Service::Tcp(handler) => {
                let service = tcp::serve(socket, handler.clone(), self.tcp.clone());
                self.shard.spawn(async move {
                    let _counted = counted;
                    service.await;
                });
            }
            Service::Ajp(options) => {
                let service = ajp::serve(socket, self.http.clone(), options.clone(), listener);
                self.shard.spawn(async move {
                    let _counted = counted;
                    service.await;
                });
            }
        }
    }

    /// Over the limit: 503 where it is HTTP or AJP, and a close in good order, as long as refusing is cheap.
    fn refuse(self: &Rc<Self>, fd: OwnedFd, listener: usize) {
        let counters = self.shard.counters();
        counters.rejects.overload.add(1);
        if let (Service::Ajp(options), 0..REFUSALS_MAX) = (&self.services[listener], self.refusals.get()) {
            let service = ajp::refuse(self.shard.ring().adopt(fd), self.http.clone(), options.clone(), listener);
            self.refusals.set(self.refusals.get() + 1);
            let worker = self.clone();
            self.shard.spawn(async move {
                service.await;
                worker.refusals.set(worker.refusals.get() - 1);
            });
            return;
        }
        counters.connections.closed.by(CloseCause::Rejected).add(1);
        let is_http = matches!(self.services[listener], Service::Http);
        match self.services[listener] {
            Service::Tcp(_) => counters.tcp.closed.by(CloseCause::Rejected).add(1),
            Service::Ajp(_) => counters.ajp.closed.by(CloseCause::Rejected).add(1),
            Service::Http | Service::Stats(_) => {}
        }
        if self.refusals.get() >= REFUSALS_MAX {
            return; // dropped, and so closed
        }
        self.refusals.set(self.refusals.get() + 1);
        let worker = self.clone();
        let mut socket = self.shard.ring().adopt(fd);
        self.shard.spawn(async move {
            if is_http {
                worker.shard.counters().responses.by_status(503).add(1);
                let date = worker.http.date_lines(socket.now_ms()).to_vec();
                send_refusal(&mut socket, &date);
            }
            http1::linger(&mut socket).await;
            worker.refusals.set(worker.refusals.get() - 1);
        });
    }

    // ---- draining --------------------------------------------------------------------------------

    fn start_drain(self: Rc<Self>, notes: Sender<Note>) {
        if self.http.is_draining() {
            return;
        }
        self.http.drain();
        self.shard.drain_signal().set(self.shard.ring().now_ms());
        self.shard.ring().wake_sockets();
        let worker = self.clone();
        self.shard.spawn(async move {
            let peers = worker.shard.peers().clone();
            // All shards' connections, not only ours: another one may still hand us what it finds in its queue.
            while worker.acceptors.get() > 0 || worker.refusals.get() > 0 || peers.connections() > 0 {
                worker.shard.sleep(DRAIN_LOOK).await;
            }
            let _ = notes.send(Note::Drained);
        });
    }
}

fn send_refusal(socket: &mut Socket, date: &[u8]) {
    let body = "too many connections; try again later\n";
    let mut out = Outgoing::default();
    out.buf.extend_from_slice(b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n");
    out.buf.extend_from_slice(date);
    out.buf.extend_from_slice(
        format!("Retry-After: {RETRY_AFTER_S}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
            .as_bytes(),
    );
    socket.send(&mut out);
}

/// Takes a connection from its shard's count when its task ends, in whatever way.
struct CountedConnection {
    peers: Arc<Peers>,
    shard: usize,
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.peers.get(self.shard).uncount_connection();
    }
}

/// Counts a connection for the stats as long as it is there.
struct Reader(Rc<Cell<usize>>);

impl Reader {
    fn new(readers: &Rc<Cell<usize>>) -> Self {
        readers.set(readers.get() + 1);
        Reader(readers.clone())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
