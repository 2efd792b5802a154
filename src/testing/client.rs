//! What sends requests. Floor 6.

use super::{
    answer::{Answer, AnswerError, LiveAnswer},
    memory::Wire,
};
use crate::{
    config::ServerConfig,
    http::{Body, ConnAddrs, Method, PeerAddr},
    router::{Router, RouterError},
    service::http1::{self, Context, Http1Config},
    stats::{Counters, ShardSnapshot},
};
use std::{
    cell::{Cell, RefCell},
    fmt,
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    time::Duration,
};

/// A client of an application, in memory; see [`testing`](crate::testing).
///
/// It keeps connections and uses them again, as browsers do. Time stands still but for [`advance`](Client::advance).
pub struct Client {
    context: Rc<Context>,
    peer: Cell<SocketAddr>,
    /// Connections that wait for a request.
    idle: RefCell<Vec<Wire>>,
    /// How many were made.
    opened: Cell<u64>,
}

impl Client {
    /// A client of what `make` builds.
    ///
    /// # Errors
    /// The routes contradict each other.
    pub fn new(make: impl FnOnce() -> Router) -> Result<Self, RouterError> {
        Client::with_config(&ServerConfig::default(), make)
    }

    /// The same, with a server's limits and deadlines.
    ///
    /// ```
    /// use everycore::{Router, config::ServerConfig, testing::Client};
    /// let config = ServerConfig { uri_bytes_max: 20, ..ServerConfig::default() };
    /// let client = Client::with_config(&config, || Router::new().get("/{*path}", |_| "found"))?;
    /// assert_eq!(client.get("/0123456789012345678").send().status(), 200);
    /// assert_eq!(client.get("/01234567890123456789").send().status(), 414);
    /// # Ok::<(), everycore::RouterError>(())
    /// ```
    ///
    /// # Errors
    /// The routes contradict each other.
    pub fn with_config(config: &ServerConfig, make: impl FnOnce() -> Router) -> Result<Self, RouterError> {
        let context = Context::new(make().build()?, Http1Config::from(config), Rc::new(Counters::default()));
        Ok(Client {
            context: Rc::new(context),
            peer: Cell::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 50_000))),
            idle: RefCell::default(),
            opened: Cell::new(0),
        })
    }

    /// A GET request.
    pub fn get(&self, target: &str) -> ClientRequest<'_> {
        self.request(Method::GET, target)
    }

    /// A HEAD request.
    pub fn head(&self, target: &str) -> ClientRequest<'_> {
        self.request(Method::HEAD, target)
    }

    /// A POST request.
    pub fn post(&self, target: &str) -> ClientRequest<'_> {
        self.request(Method::POST, target)
    }

    /// A PUT request.
    pub fn put(&self, target: &str) -> ClientRequest<'_> {
        self.request(Method::PUT, target)
    }

    /// A PATCH request.
    pub fn patch(&self, target: &str) -> ClientRequest<'_> {
        self.request(Method::PATCH, target)
    }

    /// A DELETE request.
    pub fn delete(&self, target: &str) -> ClientRequest<'_> {
        self.request(Method::DELETE, target)
    }

    /// An OPTIONS request.
    pub fn options(&self, target: &str) -> ClientRequest<'_> {
        self.request(Method::OPTIONS, target)
    }

    /// A request of any method. The target goes out as it is: what is wrong with it, the service says.
    pub fn request(&self, method: Method, target: &str) -> ClientRequest<'_> {
        ClientRequest {
            client: self,
            method,
            target: target.to_owned(),
            version: "HTTP/1.1",
            fields: Vec::new(),
            body: Body::empty(),
        }
    }

    /// Sends bytes on a connection of their own, then its end, and gives all that comes back: for what no well-behaved
    /// client sends.
    ///
    /// ```
    /// # use everycore::{Router, testing::Client};
    /// let client = Client::new(|| Router::new().get("/", |_| "hello"))?;
    /// let answers = client.raw("GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n\r\n");
    /// let answers = String::from_utf8_lossy(&answers);
    /// assert!(answers.starts_with("HTTP/1.1 200 OK") && answers.contains("HTTP/1.1 400 Bad Request"));
    /// # Ok::<(), everycore::RouterError>(())
    /// ```
    pub fn raw(&self, bytes: impl AsRef<[u8]>) -> Vec<u8> {
        let mut wire = self.connect();
        wire.send(bytes);
        wire.end();
        wire.run();
        wire.take_received()
    }

    /// Where connections made from now on come from; at first `127.0.0.1:50000`.
    pub fn set_peer_addr(&self, peer: SocketAddr) {
        self.peer.set(peer);
        self.idle.borrow_mut().clear();
    }

    /// Lets time pass for the connections that are kept, so that their deadlines are due.
    pub fn advance(&self, duration: Duration) {
        self.idle.borrow_mut().retain_mut(|wire| {
            wire.advance(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
            wire.run()
        });
    }

    /// Begins to drain, as a server does when it is told to stop: every answer from now on closes its connection.
    pub fn drain(&self) {
        self.context.drain();
        for wire in self.idle.borrow_mut().iter_mut() {
            wire.wake();
            wire.run();
        }
    }

    /// Connections made so far.
    pub fn connections(&self) -> u64 {
        self.opened.get()
    }

    /// What the shard of a server would have counted.
    pub fn stats(&self) -> ShardSnapshot {
        self.context.counters.snapshot()
    }

    fn connect(&self) -> Wire {
        self.opened.set(self.opened.get() + 1);
        let wire = Wire::new(|io| http1::serve(io, self.context.clone(), 0, ()));
        wire.set_addrs(ConnAddrs {
            peer: Some(PeerAddr::Ip(self.peer.get())),
            local: Some(PeerAddr::Ip(SocketAddr::from((Ipv4Addr::LOCALHOST, 80)))),
        });
        wire
    }

    /// A kept connection, or a new one.
    fn take_wire(&self) -> Wire {
        let kept = std::iter::from_fn(|| self.idle.borrow_mut().pop()).find(|wire| !wire.is_ended());
        kept.unwrap_or_else(|| self.connect())
    }

    pub(super) fn keep_wire(&self, wire: Wire) {
        self.idle.borrow_mut().push(wire);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("app", &self.context.app).finish_non_exhaustive()
    }
}

/// A request that is being written; nothing happens before [`send`](ClientRequest::send).
#[must_use = "a request does nothing before it is sent"]
#[derive(Debug)]
pub struct ClientRequest<'a> {
    client: &'a Client,
    method: Method,
    target: String,
    version: &'static str,
    fields: Vec<(String, Vec<u8>)>,
    body: Body,
}

impl<'a> ClientRequest<'a> {
    /// Adds a field, as it is. `Host: localhost` and the body's framing go out where you set none yourself.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.fields.push((name.to_owned(), value.as_ref().to_owned()));
        self
    }

    /// The body: text, bytes, or a [`Body::stream`], which goes out in chunks. With the field `Expect: 100-continue`
    /// it is held until the service asks for it.
    ///
    /// ```
    /// # use everycore::{Request, Response, Router, http::Body, testing::Client};
    /// # use futures_lite::stream;
    /// let client = Client::new(|| {
    ///     Router::new().post("/length", |req: Request| async move {
    ///         Response::text(req.into_body().bytes(1024).await.map_or(0, |bytes| bytes.len()).to_string())
    ///     })
    /// })?;
    /// let pieces = stream::iter(["one", "two"].map(|piece| Ok(piece.into())));
    /// assert_eq!(client.post("/length").body(Body::stream(pieces)).send().text(), "6");
    /// # Ok::<(), everycore::RouterError>(())
    /// ```
    pub fn body(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self
    }

    /// A JSON body and its content type.
    ///
    /// # Panics
    /// If `value` cannot be serialised.
    #[cfg(feature = "json")]
    pub fn json<T: serde::Serialize + ?Sized>(self, value: &T) -> Self {
        let json = serde_json::to_vec(value).expect("the test's own value can be serialised");
        self.header("Content-Type", "application/json").body(json)
    }

    /// Sends it as HTTP/1.0.
    pub fn http10(mut self) -> Self {
        self.version = "HTTP/1.0";
        self
    }

    /// Sends it and reads the answer to its end.
    ///
    /// # Panics
    /// If there is no whole answer; [`try_send`](Self::try_send) says why instead.
    #[track_caller]
    pub fn send(self) -> Answer {
        let what = format!("{} {}", self.method, self.target);
        self.try_send().unwrap_or_else(|error| panic!("{what}: {error}"))
    }

    /// As [`send`](Self::send), for requests that may fail.
    ///
    /// # Errors
    /// There is no answer, or it broke off.
    pub fn try_send(self) -> Result<Answer, AnswerError> {
        self.open()?.finish()
    }

    /// Sends it and reads the head of the answer; its body is read as you ask for it.
    ///
    /// ```
    /// # use everycore::{Response, Router, http::Body, testing::Client};
    /// # use futures_lite::stream;
    /// let client = Client::new(|| {
    ///     Router::new().get("/ticks", |_| Response::stream(Body::stream(stream::repeat_with(|| Ok("tick".into())))))
    /// })?;
    /// let mut answer = client.get("/ticks").open()?;
    /// assert_eq!(answer.chunk()?.as_deref(), Some(&b"tick"[..]));
    /// drop(answer); // the client goes away: the endless stream is dropped
    /// assert_eq!(client.stats().connections.closed.reset, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There is no answer.
    pub fn open(self) -> Result<LiveAnswer<'a>, AnswerError> {
        let has = |wanted: &str| self.fields.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted));
        let mut head = format!("{} {} {}\r\n", self.method, self.target, self.version).into_bytes();
        let mut line = |name: &str, value: &[u8]| {
            head.extend_from_slice(name.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value);
            head.extend_from_slice(b"\r\n");
        };
        if !has("host") {
            line("Host", b"localhost");
        }
        let mut is_chunked = false;
        if !has("content-length") && !has("transfer-encoding") {
            match self.body.len() {
                // RFC 9110 §8.6: stated also where it is 0, if the method anticipates content.
                Some(0) if ![Method::POST, Method::PUT, Method::PATCH].contains(&self.method) => {}
                Some(length) => line("Content-Length", length.to_string().as_bytes()),
                None => {
                    is_chunked = true;
                    line("Transfer-Encoding", b"chunked");
                }
            }
        }
        self.fields.iter().for_each(|(name, value)| line(name, value));
        head.extend_from_slice(b"\r\n");
        let waits = self
            .fields
            .iter()
            .any(|(name, value)| name.eq_ignore_ascii_case("expect") && value.eq_ignore_ascii_case(b"100-continue"));
        let wire = self.client.take_wire();
        wire.send(head);
        LiveAnswer::open(self.client, wire, &self.method, super::answer::Upload::new(self.body, is_chunked, waits))
    }
}
