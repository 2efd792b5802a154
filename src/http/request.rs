//! What a handler gets, and the pool that its head comes from.
//!
//! For: an owned request of a few words that gives its buffers back when dropped. Not for: reading it from
//! a connection, routing it. Floor 1.

use super::{Body, Head, HeaderMap, HeaderName, HeaderValue, Method, Reject, TrustedProxies, Version};
use crate::limits;
use percent_encoding::percent_decode_str;
use std::{
    borrow::Cow,
    cell::{OnceCell, RefCell},
    fmt,
    net::{IpAddr, SocketAddr},
    ops::{Deref, DerefMut},
    rc::Rc,
};

/// A request, owned by its handler.
///
/// Dropping it gives its buffers back to the shard, for the next request.
///
/// ```
/// use everycore::http::{Method, Request};
/// let request = Request::builder(Method::GET, "/yo?name=J%C3%BCrgen+X").header("accept", "*/*").body(())?;
/// assert_eq!(request.path(), "/yo");
/// assert_eq!(request.query("name").as_deref(), Some("Jürgen X"));
/// assert_eq!(request.header("Accept"), Some("*/*"));
/// # Ok::<(), everycore::http::Reject>(())
/// ```
#[derive(Debug)]
pub struct Request {
    head: PooledHead,
    body: Body,
    params: Params,
    conn: Option<Rc<ConnInfo>>,
    extensions: Option<Box<http::Extensions>>,
}

/// The two ends of the connection that a request came on; shared by its requests.
pub struct ConnInfo {
    /// Boxed, since most requests never ask and every connection has a `ConnInfo`.
    addrs: OnceCell<Box<ConnAddrs>>,
    book: Option<(Rc<dyn AddrBook>, u64)>,
    body_bytes_max: usize,
    listener: u32,
    trusted_proxies: Option<Rc<TrustedProxies>>,
    is_tls: bool,
}

impl Default for ConnInfo {
    fn default() -> Self {
        ConnInfo {
            addrs: OnceCell::new(),
            book: None,
            body_bytes_max: limits::BODY_BUFFERED_BYTES_MAX,
            listener: 0,
            trusted_proxies: None,
            is_tls: false,
        }
    }
}

/// The addresses of both ends, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnAddrs {
    /// The client, or what the proxy said of it.
    pub peer: Option<PeerAddr>,
    /// The address that it connected to.
    pub local: Option<PeerAddr>,
}

impl ConnInfo {
    /// Addresses that are known.
    pub fn known(addrs: ConnAddrs) -> Self {
        ConnInfo { addrs: OnceCell::from(Box::new(addrs)), ..ConnInfo::default() }
    }

    /// Addresses that are looked up (a system call each) when somebody asks first.
    pub fn looked_up(book: Rc<dyn AddrBook>, key: u64) -> Self {
        ConnInfo { book: Some((book, key)), ..ConnInfo::default() }
    }

    /// Whether the addresses are known by now, so that it is worth keeping.
    pub(crate) fn has_addrs(&self) -> bool {
        self.addrs.get().is_some()
    }

    /// The same, as accepted by the server's listener of this number.
    pub fn on_listener(self, listener: usize) -> Self {
        ConnInfo { listener: listener as u32, ..self }
    }

    /// The same, of a client that came by TLS, or did not.
    pub fn with_tls(self, is_tls: bool) -> Self {
        ConnInfo { is_tls, ..self }
    }

    /// Whether the client came by TLS, as far as the server or its proxy knows.
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The same, with another bound than the default on bodies that are collected.
    pub fn with_body_bytes_max(self, max: usize) -> Self {
        ConnInfo { body_bytes_max: max, ..self }
    }

    /// The same, believing these proxies; see [`Request::client_addr`].
    pub fn with_trusted_proxies(self, trusted_proxies: Option<Rc<TrustedProxies>>) -> Self {
        ConnInfo { trusted_proxies, ..self }
    }

    /// The client of a request with this head that came on the connection; see [`TrustedProxies::client`].
    pub fn client_addr(&self, head: &Head) -> Option<IpAddr> {
        match (self.addrs().peer?, &self.trusted_proxies) {
            (peer, Some(trusted)) => trusted.client(peer, head),
            (PeerAddr::Ip(address), None) => Some(address.ip().to_canonical()),
            (PeerAddr::Unix, None) => None,
        }
    }

    /// Bytes of a body that a handler collects at most.
    pub fn body_bytes_max(&self) -> usize {
        self.body_bytes_max
    }

    /// Which of the server's listeners accepted the connection, from 0 in the order they were named.
    pub fn listener(&self) -> usize {
        self.listener as usize
    }

    /// The addresses.
    pub fn addrs(&self) -> ConnAddrs {
        let look_up = || self.book.as_ref().map(|(book, key)| book.addrs(*key)).unwrap_or_default();
        **self.addrs.get_or_init(|| Box::new(look_up()))
    }
}

/// Who knows the addresses of connections, by a key that is its own.
pub trait AddrBook {
    /// The addresses; none if the connection is gone.
    fn addrs(&self, key: u64) -> ConnAddrs;
}

impl fmt::Debug for ConnInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnInfo").field("addrs", &self.addrs.get()).finish_non_exhaustive()
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PeerAddr {
    /// TCP
    Ip(SocketAddr),
    /// A Unix socket; its clients have no address.
    Unix,
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerAddr::Ip(addr) => addr.fmt(f),
            PeerAddr::Unix => f.write_str("unix"),
        }
    }
}

impl Request {
    /// A request from what the service has read.
    pub fn new(head: PooledHead, body: Body, conn: Option<Rc<ConnInfo>>) -> Request {
        Request { head, body, params: Params::default(), conn, extensions: None }
    }

    /// A request made by hand, for tests and for services that speak other protocols than HTTP/1.
    pub fn builder(method: Method, target: &str) -> RequestBuilder {
        RequestBuilder::new(method, target)
    }

    /// The method.
    pub fn method(&self) -> &Method {
        self.head.method()
    }

    /// The target as it came, e.g. `/yo?name=X`.
    pub fn target(&self) -> &str {
        self.head.target()
    }

    /// The path as it came, percent-encoded; see [`Head::path`].
    pub fn path(&self) -> &str {
        self.head.path()
    }

    /// The query as it came, without its question mark.
    pub fn query_str(&self) -> Option<&str> {
        self.head.query()
    }

    /// The first value called `name` in the query, decoded; `+` is a space. Bytes that are no UTF-8 become U+FFFD.
    pub fn query(&self, name: &str) -> Option<Cow<'_, str>> {
        let pairs = form_urlencoded::parse(self.head.query()?.as_bytes());
        pairs.into_iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The path parameter called `name`, percent-decoded. Bytes that are no UTF-8 become U+FFFD.
    pub fn param(&self, name: &str) -> Option<Cow<'_, str>> {
        Some(percent_decode_str(self.param_raw(name)?).decode_utf8_lossy())
    }

    /// The path parameter called `name` as it came.
    pub fn param_raw(&self, name: &str) -> Option<&str> {
        self.params.get(self.path(), name)
    }

    /// Sets the path parameters; for routers.
    pub fn set_params(&mut self, params: Params) {
        self.params = params;
    }

    /// The first field called `name`, whatever the case; `None` also where it is no UTF-8.
    pub fn header(&self, name: &str) -> Option<&str> {
        str::from_utf8(self.head.header(name)?).ok()
    }

    /// As [`header`](Request::header), as bytes.
    pub fn header_bytes(&self, name: &str) -> Option<&[u8]> {
        self.head.header(name)
    }

    /// All fields in the order they came.
    pub fn headers(&self) -> impl ExactSizeIterator<Item = (&str, &[u8])> {
        self.head.headers()
    }

    /// All fields as the `http` crate's map; built anew at each call.
    pub fn header_map(&self) -> HeaderMap {
        let fields = self.head.headers();
        let mut map = HeaderMap::with_capacity(fields.len());
        for (name, value) in fields {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value)) {
                map.append(name, value);
            }
        }
        map
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.head.version()
    }

    /// The head with all that the parser knows of it.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// `host` or `host:port` that was asked for; see [`Head::authority`].
    pub fn authority(&self) -> Option<&str> {
        self.head.authority()
    }

    /// The connection it came on.
    pub fn conn(&self) -> Option<&ConnInfo> {
        self.conn.as_deref()
    }

    /// The client's address: the peer's, or, where that is one of the server's trusted proxies (`--trusted-proxy`), what it
    /// says in Forwarded or X-Forwarded-For; see [`TrustedProxies::client`]. `None`: unknown, as of clients of a unix
    /// socket. Worked out anew at each call.
    ///
    /// ```
    /// use everycore::http::{ConnAddrs, ConnInfo, Method, PeerAddr, Request, TrustedProxies, TrustedProxy};
    /// use std::rc::Rc;
    /// let addrs = ConnAddrs { peer: Some(PeerAddr::Unix), local: None };
    /// let conn = ConnInfo::known(addrs).with_trusted_proxies(Some(Rc::new(TrustedProxies(vec![TrustedProxy::Unix]))));
    /// let request = Request::builder(Method::GET, "/").header("x-forwarded-for", "192.0.2.7").conn(Rc::new(conn)).body(())?;
    /// assert_eq!(request.client_addr(), Some([192, 0, 2, 7].into()));
    /// # Ok::<(), everycore::http::Reject>(())
    /// ```
    pub fn client_addr(&self) -> Option<IpAddr> {
        self.conn.as_ref()?.client_addr(&self.head)
    }

    /// The address of whoever opened the connection, a proxy perhaps; see [`client_addr`](Self::client_addr).
    pub fn peer_addr(&self) -> Option<PeerAddr> {
        self.conn.as_ref()?.addrs().peer
    }

    /// The address that the client connected to.
    pub fn local_addr(&self) -> Option<PeerAddr> {
        self.conn.as_ref()?.addrs().local
    }

    /// `https` for a client that came by TLS, as far as the server or its proxy (by AJP) knows; else `http`.
    pub fn scheme(&self) -> &'static str {
        if self.conn.as_ref().is_some_and(|conn| conn.is_tls()) { "https" } else { "http" }
    }

    /// The body.
    pub fn body_mut(&mut self) -> &mut Body {
        &mut self.body
    }

    /// The body alone.
    pub fn into_body(self) -> Body {
        self.body
    }

    /// The body, leaving an empty one: for handlers that go on to use the head.
    pub fn take_body(&mut self) -> Body {
        std::mem::take(&mut self.body)
    }

    /// What others attached to the request.
    pub fn extensions(&self) -> Option<&http::Extensions> {
        self.extensions.as_deref()
    }

    /// What others attached to the request, to attach more.
    pub fn extensions_mut(&mut self) -> &mut http::Extensions {
        self.extensions.get_or_insert_default()
    }
}

/// Makes a [`Request`] by hand; see [`Request::builder`].
#[derive(Debug)]
pub struct RequestBuilder {
    head: PooledHead,
    conn: Option<Rc<ConnInfo>>,
    refused: Option<Reject>,
}

impl RequestBuilder {
    fn new(method: Method, target: &str) -> RequestBuilder {
        let mut head = PooledHead::take();
        let refused = match target.len() {
            0..=limits::URI_BYTES_MAX => head.assemble(method, target).err(),
            _ => Some(Reject::UriTooLong),
        };
        RequestBuilder { head, conn: None, refused }
    }

    /// Adds a field. It frames nothing: the body does.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> RequestBuilder {
        let refused = self.head.push_field(name, value.as_ref()).err();
        self.refused = self.refused.or(refused);
        self
    }

    /// The version; HTTP/1.1 if not called.
    pub fn version(mut self, version: Version) -> RequestBuilder {
        self.head.set_version(version);
        self
    }

    /// Where it came from.
    pub fn conn(mut self, conn: Rc<ConnInfo>) -> RequestBuilder {
        self.conn = Some(conn);
        self
    }

    /// The request with its body.
    ///
    /// # Errors
    /// The first part that no request may have: a target, a field name or value.
    pub fn body(mut self, body: impl Into<Body>) -> Result<Request, Reject> {
        if let Some(reject) = self.refused {
            return Err(reject);
        }
        let body = body.into();
        self.head.set_framing(body.len());
        Ok(Request::new(self.head, body, self.conn))
    }
}

/// The values that a route's parameters have in a path.
///
/// ```
/// use everycore::http::{Method, Params, Request};
/// let names: std::rc::Rc<[Box<str>]> = std::rc::Rc::from(["id".into()]);
/// let mut request = Request::builder(Method::GET, "/item/a%20b").body(())?;
/// let value = &request.path()[6..]; // as the router found it
/// let params = Params::new(names, request.path(), [value]);
/// request.set_params(params);
/// assert_eq!(request.param("id").as_deref(), Some("a b"));
/// # Ok::<(), everycore::http::Reject>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Params {
    names: Option<Rc<[Box<str>]>>,
    spans: [(u16, u16); limits::PARAMS_MAX],
}

impl Params {
    /// Parameters called `names`, with `values` in the same order; each value is a part of `path`.
    /// Those after the first [`limits::PARAMS_MAX`] are left out: a router refuses such a route.
    pub fn new<'a>(names: Rc<[Box<str>]>, path: &str, values: impl IntoIterator<Item = &'a str>) -> Params {
        let mut spans = [(0, 0); limits::PARAMS_MAX];
        for (span, value) in spans.iter_mut().zip(values) {
            let at = (value.as_ptr() as usize).wrapping_sub(path.as_ptr() as usize);
            debug_assert!(at + value.len() <= path.len(), "a value is a part of the path");
            *span = (at as u16, value.len() as u16);
        }
        Params { names: Some(names), spans }
    }

    fn get<'a>(&self, path: &'a str, name: &str) -> Option<&'a str> {
        let names = self.names.as_ref()?;
        let index = names.iter().position(|other| **other == *name)?;
        let (at, len) = self.spans.get(index)?;
        path.get(usize::from(*at)..usize::from(*at) + usize::from(*len))
    }
}

thread_local! {
    #[expect(clippy::vec_box, reason = "the boxes themselves go in and out")]
    /// Heads to use again. Each shard is one thread, so this is the shard's.
    static POOL: RefCell<Vec<Box<Head>>> = const { RefCell::new(Vec::new()) };
}

/// A [`Head`] from the shard's free list, to which it returns when dropped.
#[derive(Debug)]
pub struct PooledHead(Option<Box<Head>>);

impl PooledHead {
    /// A head with whatever its last use left in it: parse into it before reading.
    #[inline]
    pub fn take() -> PooledHead {
        let head = POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten();
        PooledHead(Some(head.unwrap_or_default()))
    }
}

impl Deref for PooledHead {
    type Target = Head;

    fn deref(&self) -> &Head {
        self.0.as_ref().expect("present until dropped")
    }
}

impl DerefMut for PooledHead {
    fn deref_mut(&mut self) -> &mut Head {
        self.0.as_mut().expect("present until dropped")
    }
}

impl Drop for PooledHead {
    #[inline]
    fn drop(&mut self) {
        let Some(head) = self.0.take() else { return };
        if head.heap_bytes() > limits::POOLED_HEAD_BYTES_MAX {
            return;
        }
        // The list is gone while its thread ends: then the head is simply freed.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < limits::POOLED_HEADS_MAX {
                pool.push(head);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{super::HeadLimits, *};
    use crate::http::Framing;

    fn get(target: &str) -> Request {
        Request::builder(Method::GET, target).body(()).unwrap()
    }

    #[test]
    fn query_table() {
        #[track_caller]
        fn check(target: &str, name: &str, expected: Option<&str>) {
            assert_eq!(get(target).query(name).as_deref(), expected, "{target} {name}");
        }
        check("/yo", "a", None);
        check("/yo?", "a", None);
        check("/yo?a=1", "a", Some("1"));
        check("/yo?a=1&a=2", "a", Some("1"));
        check("/yo?b=1&a", "a", Some(""));
        check("/yo?a=x+y%20z%2B", "a", Some("x y z+"));
        check("/yo?%61=%C3%A9", "a", Some("é"));
        check("/yo?a=%zz%", "a", Some("%zz%"));
        check("/yo?a=%ff", "a", Some("\u{fffd}"));
        check("/yo?a=b=c?d", "a", Some("b=c?d"));
        check("/yo?aa=1", "a", None);
    }

    #[test]
    fn params_are_parts_of_the_path() {
        let names: Rc<[Box<str>]> = Rc::from(["user".into(), "rest".into()]);
        let mut request = get("/u/a%2Fb+c/x/%ff?q");
        let path = request.path();
        let params = Params::new(names, path, [&path[3..10], &path[11..]]);
        assert_eq!(request.param("user"), None);
        request.set_params(params);
        assert_eq!(request.param_raw("user"), Some("a%2Fb+c"));
        assert_eq!(request.param("user").as_deref(), Some("a/b+c"));
        assert_eq!(request.param("rest").as_deref(), Some("x/\u{fffd}"));
        assert_eq!(request.param("other"), None);
    }

    #[test]
    fn params_beyond_the_limit_are_left_out() {
        let count = limits::PARAMS_MAX + 1;
        let names: Rc<[Box<str>]> = (0..count).map(|i| i.to_string().into()).collect();
        let mut request = get("/abc");
        let params = Params::new(names, request.path(), std::iter::repeat_n(&request.path()[1..2], count));
        request.set_params(params);
        assert_eq!(request.param_raw(&(count - 2).to_string()), Some("a"));
        assert_eq!(request.param_raw(&(count - 1).to_string()), None);
    }

    #[test]
    fn builder_checks_like_the_parser() {
        let builder = || Request::builder(Method::POST, "http://h/a?b");
        let request =
            builder().header("Host", "h").header("X-A", b"\xff").version(Version::Http10).body("hello").unwrap();
        assert_eq!((request.path(), request.authority()), ("/a", Some("h")));
        assert_eq!((request.header_bytes("x-a"), request.header("x-a")), (Some(&b"\xff"[..]), None));
        assert_eq!(request.head().framing(), Framing::Length(5));
        assert!(!request.head().keep_alive());
        assert_eq!(request.header_map().len(), 2);
        assert_eq!(request.into_body().as_slice(), Some(&b"hello"[..]));

        let refused = |builder: RequestBuilder| builder.body(()).map(drop).unwrap_err();
        assert_eq!(refused(Request::builder(Method::GET, "yo")), Reject::BadTarget);
        assert_eq!(refused(Request::builder(Method::GET, "/yo x\r\n")), Reject::BadTarget);
        assert_eq!(refused(builder().header("a b", "c").header("d", "\0")), Reject::BadFieldName);
        assert_eq!(refused(builder().header("a", "b\r\nc: d")), Reject::BadFieldValue);
        assert_eq!(refused(builder().header("host", "a").header("Host", "a")), Reject::RepeatedHost);
        assert_eq!(refused(builder().header("a", vec![b'x'; 65_536])), Reject::HeadTooLarge);
    }

    #[test]
    fn dropped_request_gives_its_head_back() {
        let take_all = || std::iter::from_fn(|| POOL.with_borrow_mut(Vec::pop)).count();
        take_all();
        let mut head = PooledHead::take();
        let input = b"GET /yo HTTP/1.1\r\nHost: x\r\n\r\n";
        assert_eq!(head.parse(input, &HeadLimits::default()), Ok(Some(input.len())));
        let address: *const Head = &*head;
        drop(Request::new(head, Body::empty(), None));
        let again = PooledHead::take();
        assert_eq!(&raw const *again, address);
        drop(again);
        assert_eq!(take_all(), 1);
        // One that has grown is not kept, nor are more than the limit.
        drop(Request::builder(Method::GET, "/").header("a", vec![b'x'; limits::POOLED_HEAD_BYTES_MAX]));
        assert_eq!(take_all(), 0);
        let many: Vec<_> = (0..limits::POOLED_HEADS_MAX + 1).map(|_| PooledHead::take()).collect();
        drop(many);
        assert_eq!(take_all(), limits::POOLED_HEADS_MAX);
    }

    #[test]
    fn addresses_and_extensions_come_along() {
        let peer = PeerAddr::Ip(SocketAddr::from(([127, 0, 0, 1], 80)));
        let conn = Rc::new(ConnInfo::known(ConnAddrs { peer: Some(peer), local: Some(PeerAddr::Unix) }));
        let mut request = Request::builder(Method::GET, "/").conn(conn).body(()).unwrap();
        assert_eq!((request.peer_addr(), request.local_addr()), (Some(peer), Some(PeerAddr::Unix)));
        assert_eq!(peer.to_string(), "127.0.0.1:80");
        assert!(request.extensions().is_none());
        request.extensions_mut().insert(5u8);
        assert_eq!(request.extensions().and_then(|e| e.get::<u8>()), Some(&5));
    }
}
