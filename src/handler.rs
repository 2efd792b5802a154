//! What a handler is, and all that it may give back. Floor 4.
//!
//! A handler is any `Fn(Request) -> R + 'static` where `R` is an answer ([`IntoResponse`]) or a future of
//! one. It lives on one shard, so it may hold `Rc` and `Cell`; it need not be `Send`. An answer that is
//! there at once costs no allocation, a future costs one `Box`.
//!
//! Not here: which handler gets a request ([`Router`](crate::Router)), and what runs it (the service,
//! which also catches its panics and bounds its time).
//!
//! ```
//! use everycore::{Request, Response, Router};
//! use http::StatusCode;
//!
//! async fn find(req: Request) -> Result<Response, StatusCode> {
//!     let name = req.query("name").ok_or(StatusCode::BAD_REQUEST)?;
//!     Ok(Response::text(format!("hello {name}")))
//! }
//!
//! let app = Router::new()
//!     .get("/plain", |_| "text")
//!     .get("/later", |req| async move { req.path().to_owned() })
//!     .get("/gone", |_| (StatusCode::GONE, "moved out"))
//!     .get("/find", find)
//!     .build();
//! # app.expect("no conflicts");
//! ```
//!
//! What cannot be an answer does not compile, and the compiler says what would do:
//!
//! ```compile_fail,E0277
//! # use everycore::Router;
//! Router::new().get("/count", |_| 42u32);
//! // error[E0277]: a handler cannot answer with `u32`
//! //   |     Router::new().get("/count", |_| 42u32);
//! //   |                   ^^^ this is neither a response nor a future of one
//! //   = note: return a `Response`, text (`&'static str` or `String`), bytes, a `StatusCode`, a pair
//! //     `(StatusCode, answer)`, or a `Result` or `Option` of these; implement `IntoResponse` to answer …
//! //   = note: an `async` block or function must return one of these, and own what it uses …
//! ```
//!
//! ```compile_fail,E0277
//! # use everycore::Router;
//! Router::new().get("/count", |_| async { 42u32 }); // "cannot answer with `{async block@…}`", the same notes
//! ```

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use crate::http::{Body, BodyError, Request, Response};

/// A response that is there, or one that will be.
///
/// `reply.await` gives the [`Response`] in both cases. Dropping a `Later` drops the handler's future: it is
/// cancelled where it last awaited.
pub enum Reply {
    /// The handler has answered.
    Ready(Response),
    /// The handler has begun and is still waiting for something.
    Later(Pin<Box<dyn Future<Output = Response>>>),
}

impl Reply {
    /// Changes the response, now or when it is there. Costs an allocation only for a `Later`.
    ///
    /// ```
    /// # use everycore::{Response, handler::Reply};
    /// let reply = Reply::Ready(Response::text("yo"));
    /// let reply = reply.map(|response| response.with_header("x-served-by", "everycore"));
    /// assert!(matches!(reply, Reply::Ready(_)));
    /// ```
    pub fn map(self, change: impl FnOnce(Response) -> Response + 'static) -> Reply {
        match self {
            Reply::Ready(response) => Reply::Ready(change(response)),
            Reply::Later(future) => Reply::Later(Box::pin(async move { change(future.await) })),
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Ready(response) => f.debug_tuple("Ready").field(&response.status()).finish(),
            Reply::Later(_) => f.write_str("Later"),
        }
    }
}

impl IntoFuture for Reply {
    type Output = Response;
    type IntoFuture = ReplyFuture;

    fn into_future(self) -> ReplyFuture {
        ReplyFuture(Some(self))
    }
}

/// Waits for a [`Reply`]; made by `reply.await`.
// Not `Reply` itself: a `Reply` that were a future would be boxed again on its way out of a middleware.
#[derive(Debug)]
pub struct ReplyFuture(Option<Reply>);

impl Future for ReplyFuture {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        if let Some(Reply::Later(future)) = &mut self.0 {
            return future.as_mut().poll(cx);
        }
        match self.0.take() {
            Some(Reply::Ready(response)) => Poll::Ready(response),
            _ => panic!("a ReplyFuture was polled after it had answered"),
        }
    }
}

/// What is an answer by itself: a [`Response`], text, bytes, a status, or a `Result` or `Option` of these.
///
/// Implement it for your own error type and `?` works in handlers that return `Result<Response, YourError>`.
///
/// ```
/// use everycore::{Response, handler::IntoResponse};
/// use http::StatusCode;
///
/// enum Refusal { NoSuchUser, Busy }
///
/// impl IntoResponse for Refusal {
///     fn into_response(self) -> Response {
///         match self {
///             Refusal::NoSuchUser => (StatusCode::NOT_FOUND, "no such user").into_response(),
///             Refusal::Busy => StatusCode::SERVICE_UNAVAILABLE.into_response(),
///         }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "a handler cannot answer with `{Self}`",
    label = "this is not a response",
    note = "return a `Response`, text (`&'static str` or `String`), bytes, a `StatusCode`, a pair `(StatusCode, answer)`, \
            or a `Result` or `Option` of these; implement `IntoResponse` to answer with a type of your own"
)]
pub trait IntoResponse {
    /// The response that this stands for.
    fn into_response(self) -> Response;
}

impl IntoResponse for Response {
    fn into_response(self) -> Response {
        self
    }
}

/// `impl IntoResponse` for bodies: each goes out with 200 and the named content type.
macro_rules! bodies {
    ($(#[$doc:meta] $body:ty => $make:expr;)*) => {$(
        #[$doc]
        impl IntoResponse for $body {
            fn into_response(self) -> Response {
                $make(self)
            }
        }
    )*};
}

fn octets(body: impl Into<Body>) -> Response {
    Response::bytes(HeaderValue::from_static("application/octet-stream"), body)
}

bodies! {
    /// 200, `text/plain; charset=utf-8`.
    &'static str => Response::text;
    /// 200, `text/plain; charset=utf-8`.
    String => Response::text;
    /// 200, `text/plain; charset=utf-8`.
    Cow<'static, str> => Response::text;
    /// 200, `application/octet-stream`.
    Bytes => octets;
    /// 200, `application/octet-stream`.
    Vec<u8> => octets;
    /// 200, `application/octet-stream`.
    &'static [u8] => octets;
}

/// An error status with its name as text, any other without a body.
impl IntoResponse for StatusCode {
    fn into_response(self) -> Response {
        if self.is_client_error() || self.is_server_error() {
            Response::from(self)
        } else {
            Response::new(self)
        }
    }
}

/// For `?` on what reads a body.
impl IntoResponse for BodyError {
    fn into_response(self) -> Response {
        Response::from(self)
    }
}

/// The answer, with another status.
impl<R: IntoResponse> IntoResponse for (StatusCode, R) {
    fn into_response(self) -> Response {
        self.1.into_response().with_status(self.0)
    }
}

/// Whichever it is.
impl<R: IntoResponse, E: IntoResponse> IntoResponse for Result<R, E> {
    fn into_response(self) -> Response {
        match self {
            Ok(answer) => answer.into_response(),
            Err(error) => error.into_response(),
        }
    }
}

/// `None` is 404.
impl<R: IntoResponse> IntoResponse for Option<R> {
    fn into_response(self) -> Response {
        match self {
            Some(answer) => answer.into_response(),
            None => StatusCode::NOT_FOUND.into_response(),
        }
    }
}

impl IntoResponse for Infallible {
    fn into_response(self) -> Response {
        match self {}
    }
}

/// What a handler may return: an [`IntoResponse`], a future of one, or a [`Reply`].
///
/// `Marker` says which of these it is; the compiler finds it, and you never name it.
#[diagnostic::on_unimplemented(
    message = "a handler cannot answer with `{Self}`",
    label = "this is neither a response nor a future of one",
    note = "return a `Response`, text (`&'static str` or `String`), bytes, a `StatusCode`, a pair `(StatusCode, answer)`, \
            or a `Result` or `Option` of these; implement `IntoResponse` to answer with a type of your own",
    note = "an `async` block or function must return one of these, and own what it uses (`async move`; clone an `Rc` before it)"
)]
pub trait IntoReply<Marker> {
    /// The reply that this stands for.
    fn into_reply(self) -> Reply;
}

/// Marker of [`IntoReply`]: an answer that is there.
#[derive(Debug)]
pub enum Now {}
/// Marker of [`IntoReply`]: a future of an answer.
#[derive(Debug)]
pub enum Later {}
/// Marker of [`IntoReply`]: a [`Reply`] passed on as it is, by a middleware.
#[derive(Debug)]
pub enum AsIs {}

impl<R: IntoResponse> IntoReply<Now> for R {
    fn into_reply(self) -> Reply {
        Reply::Ready(self.into_response())
    }
}

impl<F> IntoReply<Later> for F
where
    F: Future<Output: IntoResponse> + 'static,
{
    fn into_reply(self) -> Reply {
        Reply::Later(Box::pin(async move { self.await.into_response() }))
    }
}

#[diagnostic::do_not_recommend]
impl IntoReply<AsIs> for Reply {
    fn into_reply(self) -> Reply {
        self
    }
}

/// A handler behind one pointer, as routes hold it. `Rc`, since a router may put one under several methods.
pub(crate) type Handler = Rc<dyn Fn(Request) -> Reply>;

/// Forgets the type of a handler.
pub(crate) fn erase<R: IntoReply<M>, M>(handler: impl Fn(Request) -> R + 'static) -> Handler {
    Rc::new(move |request| handler(request).into_reply())
}
