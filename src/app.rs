//! A built router: from a request to its handler's reply. Floor 4.
//!
//! This is on the path of every request: a path without parameters is one hash look-up away from its handler, and
//! neither it nor a handler that answers at once allocates. How routes are named and checked is in
//! [`Router`](crate::Router); what runs a reply is the service.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

use http::{HeaderValue, Method, StatusCode, header};

use crate::handler::{Handler, Reply};
use crate::http::{Params, Request, Response};

/// A router that was checked and laid out for look-up; [`Router::build`](crate::Router::build) makes it.
///
/// ```
/// use everycore::{Request, Router, handler::Reply};
/// use everycore::http::Method;
///
/// let app = Router::new().get("/yo", |_| "hello").build().expect("no conflicts");
/// let request = Request::builder(Method::GET, "/yo").body(()).expect("well-formed");
/// let Reply::Ready(response) = app.handle(request) else { unreachable!("it answers at once") };
/// assert_eq!(response.status(), 200);
/// ```
pub struct App {
    /// Routes without parameters: one hash look-up costs half of what matchit does, and less with many routes.
    /// The hash may be weak: the keys are the author's, so that a peer cannot lengthen a chain.
    pub(crate) fixed: HashMap<Box<str>, u32, rustc_hash::FxBuildHasher>,
    /// Those routes; `fixed` has indices into it.
    pub(crate) routes: Vec<Route>,
    /// Tells its notes on heads from another app's; not 0.
    pub(crate) id: u32,
    /// Routes with parameters. matchit too prefers a fixed path to these, so that asking it second changes nothing.
    pub(crate) patterns: matchit::Router<(ParamNames, Route)>,
    /// Fallbacks of nested routers, by prefix.
    pub(crate) fallbacks: matchit::Router<(ParamNames, Handler)>,
    /// `OPTIONS *`.
    pub(crate) asterisk: Handler,
    /// The fallback of the whole, or 404.
    pub(crate) unmatched: Handler,
    pub(crate) error_page: ErrorPage,
}

impl App {
    /// Calls the handler that the request's path and method name.
    ///
    /// Panics if the handler does; the service catches that.
    pub fn handle(&self, request: Request) -> Reply {
        // Of a head that came before, and so is the same, the handler is known.
        if let Some(memo) = request.head().memo(self.id) {
            return self.routes[memo as usize / SLOTS.len()].slots[memo as usize % SLOTS.len()](request);
        }
        let Some(&index) = self.fixed.get(request.path()) else { return self.handle_pattern(request) };
        let route = &self.routes[index as usize];
        match slot(request.method()) {
            Some(slot) => {
                request.head().set_memo(self.id, index * SLOTS.len() as u32 + slot as u32);
                route.slots[slot](request)
            }
            None => route.handler(request.method())(request),
        }
    }

    /// What the server itself answers when it cannot serve a request: the author's error page, or the reason as text.
    pub fn error_answer(&self, error: &ErrorInfo<'_>) -> Response {
        self.error_page.answer(error)
    }

    fn handle_pattern(&self, mut request: Request) -> Reply {
        let path = request.path();
        let (handler, params) = if let Ok(found) = self.patterns.at(path) {
            let (names, route) = found.value;
            (route.handler(request.method()), params(names, path, &found.params))
        } else if path == "*" && *request.method() == Method::OPTIONS {
            (&self.asterisk, Params::default())
        } else if let Ok(found) = self.fallbacks.at(path) {
            let (names, handler) = found.value;
            (handler, params(names, path, &found.params))
        } else {
            (&self.unmatched, Params::default())
        };
        request.set_params(params);
        handler(request)
    }
}

/// The names of a pattern's parameters, from left to right.
pub(crate) type ParamNames = Rc<[Box<str>]>;

fn params(names: &ParamNames, path: &str, found: &matchit::Params<'_, '_>) -> Params {
    Params::new(names.clone(), path, found.iter().map(|(_, value)| value))
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("fixed", &self.fixed.keys()).finish_non_exhaustive()
    }
}

/// All handlers of one path. Each slot is filled when the app is built (with what answers HEAD, OPTIONS or 405
/// where the author named none), so that finding one takes no decision.
pub(crate) struct Route {
    pub(crate) slots: [Handler; SLOTS.len()],
    /// Methods without a slot that the author named.
    pub(crate) others: Box<[(Method, Handler)]>,
    /// Any other method.
    pub(crate) rest: Handler,
}

/// The methods that have a slot in a route.
pub(crate) const SLOTS: [Method; 7] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS];

impl Route {
    fn handler(&self, method: &Method) -> &Handler {
        match slot(method) {
            Some(slot) => &self.slots[slot],
            None => self.others.iter().find(|(name, _)| name == method).map_or(&self.rest, |(_, handler)| handler),
        }
    }
}

/// Which of [`SLOTS`] a method is.
fn slot(method: &Method) -> Option<usize> {
    SLOTS.iter().position(|other| other == method)
}

/// What an error page is told: an error answer that the server makes, not one of a handler's.
#[derive(Debug)]
pub struct ErrorInfo<'a> {
    /// The status that goes out, whatever the page's own.
    pub status: StatusCode,
    /// A sentence that says what was wrong.
    pub reason: Cow<'static, str>,
    /// The request, unless it could not be read (400) or its handler has it (500).
    pub request: Option<&'a Request>,
}

type Hook = Rc<dyn Fn(&ErrorInfo<'_>) -> Option<Response>>;

/// The author's error page, if any.
#[derive(Clone, Default)]
pub(crate) struct ErrorPage(pub(crate) Option<Hook>);

impl ErrorPage {
    pub(crate) fn answer(&self, error: &ErrorInfo<'_>) -> Response {
        let page = self.0.as_ref().and_then(|hook| hook(error));
        page.unwrap_or_else(|| Response::text(format!("{}: {}\n", error.status, error.reason)))
            .with_status(error.status)
    }

    fn refuse(&self, status: StatusCode, reason: &'static str, request: &Request) -> Response {
        self.answer(&ErrorInfo { status, reason: Cow::Borrowed(reason), request: Some(request) })
    }

    /// 404, or 501 for a method that no route of the app has (RFC 9110 §9.1).
    pub(crate) fn not_found(self, methods: Rc<KnownMethods>) -> Handler {
        Rc::new(move |request| {
            Reply::Ready(if methods.knows(request.method()) {
                self.refuse(StatusCode::NOT_FOUND, "no route has this path", &request)
            } else {
                self.not_implemented(&request)
            })
        })
    }

    /// 405 with Allow (RFC 9110 §15.5.6), or 501 as above.
    pub(crate) fn not_allowed(self, methods: Rc<KnownMethods>, allow: HeaderValue) -> Handler {
        Rc::new(move |request| {
            Reply::Ready(if methods.knows(request.method()) {
                self.refuse(StatusCode::METHOD_NOT_ALLOWED, "this path does not have this method", &request)
                    .with_header(header::ALLOW, allow.clone())
            } else {
                self.not_implemented(&request)
            })
        })
    }

    fn not_implemented(&self, request: &Request) -> Response {
        self.refuse(StatusCode::NOT_IMPLEMENTED, "no route has this method", request)
    }
}

/// Answers OPTIONS (RFC 9110 §9.3.7).
pub(crate) fn options(allow: HeaderValue) -> Handler {
    Rc::new(move |_| Reply::Ready(Response::new(StatusCode::NO_CONTENT).with_header(header::ALLOW, allow.clone())))
}

/// The methods that this app recognises: those of RFC 9110 and PATCH (RFC 5789) except CONNECT, and those that a route names.
pub(crate) struct KnownMethods(pub(crate) Vec<Method>);

impl KnownMethods {
    fn knows(&self, method: &Method) -> bool {
        SLOTS.contains(method) || *method == Method::TRACE || self.0.contains(method)
    }
}
