//! Names routes, and checks them when the app is built. Floor 4.
//!
//! Not here: finding a route for a request ([`App`](crate::App)), running handlers, files (`files`).

mod layout;
mod problem;

use std::fmt;
use std::rc::Rc;

use http::Method;

use crate::app::{ErrorInfo, ErrorPage};
use crate::files::{Files, Mounted};
use crate::handler::{Handler, IntoReply, erase};
use crate::http::{Request, Response};
use crate::middleware::{Layer, Next, layer};
use problem::check_path;
pub use problem::{RouteProblem, RouterError};

/// Routes, and what is around them.
///
/// **Paths** are matched as they came, percent-encoded and case-sensitive, with or without a slash at the end as
/// written: nothing is rewritten before the match, so what a middleware checks is what is matched. A pattern is
/// written the same way. `{name}` stands for one segment or a part of it, `{*rest}` for all that is left (one byte
/// at least), `{{` and `}}` for braces; `request.param("name")` gives the value, decoded. A fixed path wins over one
/// with parameters, whatever the order: if `/users/{id}` has GET and `/users/new` only POST, then
/// `GET /users/new` is 405.
///
/// **Methods.** HEAD is answered by the GET handler (the service leaves the body out) and OPTIONS with the path's
/// Allow, unless the author named handlers for them. A path without the request's method answers 405 with Allow,
/// and a method that no route of the app has, 501.
///
/// **Errors** in the routes are collected and returned by [`build`](Router::build), all at once; nothing panics.
///
/// ```
/// use everycore::{Request, Response, Router};
/// use everycore::http::StatusCode;
///
/// let users = Router::new()
///     .get("/{id}", |req: Request| Response::text(req.param("id").unwrap_or_default().into_owned()))
///     .delete("/{id}", |_| "gone");
/// let app = Router::new()
///     .get("/", |_| "home")
///     .nest("/users", users)
///     .fallback(|_| (StatusCode::NOT_FOUND, "nothing here"))
///     .build();
/// # app.expect("no conflicts");
/// ```
#[derive(Default)]
pub struct Router {
    endpoints: Vec<Endpoint>,
    fallbacks: Vec<Fallback>,
    layers: Vec<Layer>,
    error_pages: Vec<ErrorPage>,
    problems: Vec<RouteProblem>,
    /// The server's own routes.
    beside: Option<Box<Router>>,
}

#[derive(Clone)]
struct Endpoint {
    path: String,
    /// `None`: any method.
    method: Option<Method>,
    handler: Handler,
    /// It has what is beneath its path, too: nested, a `/` keeps its slash beside what becomes of it.
    is_mount: bool,
    /// Of the routers around it that are merged or nested already, outermost first.
    layers: Vec<Layer>,
}

struct Fallback {
    prefix: String,
    handler: Handler,
    layers: Vec<Layer>,
}

impl Router {
    /// A router without routes: it answers everything with 404.
    pub fn new() -> Self {
        Router::default()
    }

    /// Adds a handler of a path for GET, and for HEAD unless it has its own.
    pub fn get<R: IntoReply<M>, M>(self, path: &str, handler: impl Fn(Request) -> R + 'static) -> Self {
        self.route(Method::GET, path, handler)
    }

    /// Adds a handler of a path for POST.
    pub fn post<R: IntoReply<M>, M>(self, path: &str, handler: impl Fn(Request) -> R + 'static) -> Self {
        self.route(Method::POST, path, handler)
    }

    /// Adds a handler of a path for PUT.
    pub fn put<R: IntoReply<M>, M>(self, path: &str, handler: impl Fn(Request) -> R + 'static) -> Self {
        self.route(Method::PUT, path, handler)
    }

    /// Adds a handler of a path for DELETE.
    pub fn delete<R: IntoReply<M>, M>(self, path: &str, handler: impl Fn(Request) -> R + 'static) -> Self {
        self.route(Method::DELETE, path, handler)
    }

    /// Adds a handler of a path for PATCH.
    pub fn patch<R: IntoReply<M>, M>(self, path: &str, handler: impl Fn(Request) -> R + 'static) -> Self {
        self.route(Method::PATCH, path, handler)
    }

    /// Adds a handler of a path for HEAD, in place of the GET handler.
    pub fn head<R: IntoReply<M>, M>(self, path: &str, handler: impl Fn(Request) -> R + 'static) -> Self {
        self.route(Method::HEAD, path, handler)
    }

    /// Adds a handler of a path for OPTIONS, in place of the answer with Allow.
    pub fn options<R: IntoReply<M>, M>(self, path: &str, handler: impl Fn(Request) -> R + 'static) -> Self {
        self.route(Method::OPTIONS, path, handler)
    }

    /// Adds a handler for all methods of a path that have none of their own, HEAD, OPTIONS and unknown ones included.
    pub fn any<R: IntoReply<M>, M>(self, path: &str, handler: impl Fn(Request) -> R + 'static) -> Self {
        self.add(path, None, erase(handler))
    }

    /// Adds a handler for a method of a path, standard or not.
    pub fn route<R: IntoReply<M>, M>(
        self,
        method: Method,
        path: &str,
        handler: impl Fn(Request) -> R + 'static,
    ) -> Self {
        self.add(path, Some(method), erase(handler))
    }

    fn add(mut self, path: &str, method: Option<Method>, handler: Handler) -> Self {
        self.problems.extend(check_path(path));
        let path = path.to_owned();
        self.endpoints.push(Endpoint { path, method, handler, is_mount: false, layers: Vec::new() });
        self
    }

    /// Serves the files beneath a directory under a prefix, for GET and HEAD. Routes that are named win over files.
    ///
    /// ```
    /// # use everycore::{Files, Router};
    /// Router::new().files("/static", Files::new("/srv/static")).get("/static/hello", |_| "no file");
    /// ```
    pub fn files(mut self, prefix: &str, files: Files) -> Self {
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let mounted = match files.open(prefix) {
            Ok(mounted) => mounted,
            Err(problems) => {
                self.problems.extend(problems);
                return self;
            }
        };
        let handler = erase(move |request| mounted.serve(request));
        let tail = Mounted::TAIL;
        for path in [prefix.to_owned(), format!("{prefix}/"), format!("{prefix}/{{*{tail}}}")] {
            if !path.is_empty() {
                self = self.add(&path, Some(Method::GET), handler.clone());
                self.endpoints.last_mut().expect("just added").is_mount = true;
            }
        }
        self
    }

    /// Puts another router's routes under a prefix: its `/` becomes the prefix itself, its `/x` becomes `prefix/x`.
    ///
    /// The prefix may have parameters. Handlers see the whole path. The other router's middlewares stay around its own
    /// routes, its fallback gets what is under the prefix and has no route.
    pub fn nest(mut self, prefix: &str, other: Router) -> Self {
        self.problems.extend(check_path(prefix));
        if prefix.contains("{*") {
            self.problems.push(RouteProblem::Unparsable {
                path: prefix.to_owned(),
                why: "a prefix cannot take all that is left",
            });
        }
        self.absorb(prefix.strip_suffix('/').unwrap_or(prefix), other);
        self
    }

    /// Adds another router's routes. Its middlewares stay around its own routes.
    pub fn merge(mut self, other: Router) -> Self {
        self.absorb("", other);
        self
    }

    /// Adds routes that none of this router's middlewares are around: the server's own endpoints.
    pub(crate) fn beside(mut self, other: Router) -> Self {
        self.beside = Some(Box::new(other));
        self
    }

    fn absorb(&mut self, prefix: &str, other: Router) {
        let Router { endpoints, fallbacks, layers: outer, error_pages, problems, beside: _ } = other;
        let around = |inner: Vec<Layer>| -> Vec<Layer> { outer.iter().cloned().chain(inner).collect() };
        let slashes = endpoints.iter().filter(|mount| mount.is_mount && mount.path == "/" && !prefix.is_empty());
        let slashes: Vec<_> = slashes.map(|mount| Endpoint { path: "//".to_owned(), ..mount.clone() }).collect();
        self.endpoints.extend(endpoints.into_iter().chain(slashes).map(|endpoint| Endpoint {
            path: match endpoint.path.as_str() {
                "/" if !prefix.is_empty() => prefix.to_owned(),
                "//" => format!("{prefix}/"),
                path => format!("{prefix}{path}"),
            },
            layers: around(endpoint.layers),
            ..endpoint
        }));
        self.fallbacks.extend(fallbacks.into_iter().map(|fallback| Fallback {
            prefix: format!("{prefix}{}", fallback.prefix),
            layers: around(fallback.layers),
            ..fallback
        }));
        self.error_pages.extend(error_pages);
        self.problems.extend(problems);
    }

    /// Puts a middleware around all of this router: every route, named before or after, its fallback, and the
    /// server's own 404, 405 and OPTIONS answers (of a nested or merged router: those of its paths). The first one wrapped is the outermost.
    ///
    /// See [`middleware`](crate::middleware); [`wrapped`](crate::middleware::wrapped) is for one handler.
    pub fn wrap<R: IntoReply<M>, M>(mut self, middleware: impl Fn(Request, Next) -> R + 'static) -> Self {
        self.layers.push(layer(middleware));
        self
    }

    /// Sets the handler for paths that no route has, whatever the method.
    pub fn fallback<R: IntoReply<M>, M>(mut self, handler: impl Fn(Request) -> R + 'static) -> Self {
        self.fallbacks.push(Fallback { prefix: String::new(), handler: erase(handler), layers: Vec::new() });
        self
    }

    /// Sets the page for error answers that the server itself makes: 404, 405, 501 here, and 400, 413, 431, 500, … in the
    /// service. `None` gives the plain text. The page's status is replaced by the error's. An app has one.
    ///
    /// What a handler answers is not the server's, an [`ExtractError`](crate::extract::ExtractError) that `?` returned
    /// included: to have these in a form of yours, return an error of your own that implements
    /// [`IntoResponse`](crate::handler::IntoResponse).
    ///
    /// ```
    /// # use everycore::{Response, Router};
    /// Router::new().error_page(|error| Some(Response::html(format!("<h1>{}</h1>", error.status))));
    /// ```
    pub fn error_page(mut self, page: impl Fn(&ErrorInfo<'_>) -> Option<Response> + 'static) -> Self {
        self.error_pages.push(ErrorPage(Some(Rc::new(page))));
        self
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut routes = f.debug_list();
        for endpoint in &self.endpoints {
            let method = endpoint.method.as_ref().map_or("*", Method::as_str);
            routes.entry(&format_args!("{method} {}", endpoint.path));
        }
        routes.finish()
    }
}
