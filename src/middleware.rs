//! What runs around handlers: middlewares, and the ready-made ones. Floor 4.
//!
//! A middleware is any `Fn(Request, Next) -> R + 'static`, `R` as for a handler. It may answer by itself, or
//! pass the request on with [`Next::run`] and change what comes back. [`Router::wrap`](crate::Router::wrap)
//! puts one around all of a router, [`wrapped`] around one handler. A middleware that hands on the [`Reply`]
//! without awaiting it costs no allocation, so that what answers at once still does.
//!
//! A time limit for all handlers is a setting of the server (`handler_timeout`); [`timeout`] is one for some.
//!
//! ```
//! use everycore::{Response, Router, middleware};
//! use everycore::http::StatusCode;
//!
//! let admin = Router::new()
//!     .get("/stop", |_| "stopped")
//!     .wrap(|req, next| async move {
//!         if req.header("authorization") != Some("Bearer 1234") {
//!             return Response::new(StatusCode::UNAUTHORIZED);
//!         }
//!         next.run(req).await
//!     });
//! let app = Router::new()
//!     .get("/", |_| "home")
//!     .nest("/admin", admin)
//!     .wrap(middleware::header("x-content-type-options", "nosniff"))
//!     .build();
//! # app.expect("no conflicts");
//! ```

#[cfg(feature = "compression")]
mod compression;

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};

use crate::handler::{Handler, IntoReply, Reply, erase};
use crate::http::{Request, Response};
use crate::shard::Shard;

#[cfg(feature = "compression")]
pub use self::compression::{Compression, Level};

/// What is inside a middleware: the next middleware, or at last the handler.
///
/// Dropping it without running it is how a middleware answers by itself.
pub struct Next(Handler);

impl Next {
    /// Passes the request on. `next.run(req).await` gives the response; the [`Reply`] itself can be handed on
    /// or [mapped](Reply::map) without waiting.
    pub fn run(self, request: Request) -> Reply {
        (self.0)(request)
    }
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Next")
    }
}

/// A middleware behind one pointer, as routers hold it.
pub(crate) type Layer = Rc<dyn Fn(Request, Next) -> Reply>;

/// Forgets the type of a middleware.
pub(crate) fn layer<R: IntoReply<M>, M>(middleware: impl Fn(Request, Next) -> R + 'static) -> Layer {
    Rc::new(move |request, next| middleware(request, next).into_reply())
}

/// Puts layers around a handler, the first outermost. Costs an `Rc` clone and a call a layer and request.
pub(crate) fn stack(layers: &[Layer], handler: Handler) -> Handler {
    layers
        .iter()
        .rev()
        .cloned()
        .fold(handler, |inner, layer| -> Handler { Rc::new(move |request| layer(request, Next(inner.clone()))) })
}

/// One handler with a middleware around it.
///
/// ```
/// # use everycore::{Router, middleware::{header, wrapped}};
/// Router::new().get("/logo.svg", wrapped(header("cache-control", "max-age=3600"), |_| "<svg/>"));
/// ```
pub fn wrapped<V: IntoReply<N>, N, R: IntoReply<M>, M>(
    middleware: impl Fn(Request, Next) -> V + 'static,
    handler: impl Fn(Request) -> R + 'static,
) -> impl Fn(Request) -> Reply + 'static {
    let handler = erase(handler);
    move |request| middleware(request, Next(handler.clone())).into_reply()
}

/// Adds a field to every response that does not have one of its name: the handler's own word wins.
///
/// A name or value that is not allowed turns every answer into a 500 and is logged, as in
/// [`Response::with_header`].
pub fn header(
    name: impl TryInto<HeaderName>,
    value: impl TryInto<HeaderValue>,
) -> impl Fn(Request, Next) -> Reply + 'static {
    let field = name.try_into().ok().zip(value.try_into().ok());
    if field.is_none() {
        tracing::error!("a header middleware has a field that HTTP does not allow");
    }
    move |request, next| {
        let field = field.clone();
        next.run(request).map(move |mut response| {
            let Some((name, value)) = field else {
                return Response::from(StatusCode::INTERNAL_SERVER_ERROR);
            };
            if response.header(name.as_str()).is_none() {
                response.add_header(name, value);
            }
            response
        })
    }
}

/// Answers 503 in place of a handler that has not answered after `limit`, and drops it where it waits.
///
/// A handler that answers at once costs nothing; one that waits, a timer on the shard's wheel. A handler that
/// never waits cannot be interrupted.
///
/// ```no_run
/// # use everycore::{Router, Server, middleware};
/// # use std::time::Duration;
/// Server::bind("127.0.0.1:8080").run(|shard| {
///     let slow = Router::new().get("/report", |_| async { "…" });
///     Router::new().nest("/slow", slow.wrap(middleware::timeout(&shard, Duration::from_secs(2))))
/// })
/// # ?; Ok::<(), everycore::Error>(())
/// ```
pub fn timeout(shard: &Shard, limit: Duration) -> impl Fn(Request, Next) -> Reply + 'static {
    let shard = shard.clone();
    move |request, next| match next.run(request) {
        Reply::Ready(response) => Reply::Ready(response),
        Reply::Later(answer) => {
            let sleep = shard.sleep(limit);
            Reply::Later(Box::pin(futures_lite::future::or(answer, async move {
                sleep.await;
                Response::text("no answer in time\n").with_status(StatusCode::SERVICE_UNAVAILABLE)
            })))
        }
    }
}

/// Logs a line a request, `GET /path 200`, at level info to this target of the `log` crate.
///
/// Nothing is kept, and nothing allocated, while the level is off. A request whose client goes away before
/// the answer is not logged. The path is logged as it came, percent-encoded, so it cannot forge lines.
///
/// ```
/// # use everycore::{Router, middleware};
/// Router::new().get("/", |_| "home").wrap(middleware::log("access"));
/// ```
pub fn log(target: &'static str) -> impl Fn(Request, Next) -> Reply + 'static {
    move |request, next| {
        if !log::log_enabled!(target: target, log::Level::Info) {
            return next.run(request);
        }
        let method = request.method().clone();
        let path = request.path().to_owned();
        next.run(request).map(move |response| {
            log::info!(target: target, "{method} {path} {}", response.status().as_u16());
            response
        })
    }
}
