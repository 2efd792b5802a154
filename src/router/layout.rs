//! Lays a router's routes out for look-up: every decision that a request would take is taken here. Floor 4.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use http::{HeaderValue, Method};

use super::{Endpoint, Fallback, RouteProblem, Router, RouterError};
use crate::app::{App, ErrorPage, KnownMethods, ParamNames, Route, SLOTS, options};
use crate::handler::Handler;
use crate::limits::PARAMS_MAX;
use crate::middleware::{Layer, stack};

const TOO_MANY_PARAMS: &str = "it has more parameters than `limits::PARAMS_MAX`";

impl Router {
    /// Checks the routes and lays them out for look-up. `Server::run` does this for you, on each shard.
    ///
    /// # Errors
    /// All that is wrong with the routes: bad patterns, conflicts, things named twice.
    pub fn build(mut self) -> Result<App, RouterError> {
        let root_layers = self.layers.clone();
        let mut flat = Router::new();
        let beside = self.beside.take();
        flat.absorb("", self);
        if let Some(mut beside) = beside {
            beside.endpoints.retain(|own| {
                let is_taken = flat.endpoints.iter().any(|other| other.path == own.path && other.method == own.method);
                if is_taken {
                    flat.problems.push(RouteProblem::BuiltIn { path: own.path.clone() });
                }
                !is_taken
            });
            flat.absorb("", *beside);
        }
        let Router { endpoints, fallbacks, mut error_pages, mut problems, .. } = flat;

        if error_pages.len() > 1 {
            problems.push(RouteProblem::SecondErrorPage);
        }
        let error_page = error_pages.pop().unwrap_or_default();
        let named: Vec<Method> = endpoints.iter().filter_map(|endpoint| endpoint.method.clone()).collect();
        let known = Rc::new(KnownMethods(named));
        let not_found = error_page.clone().not_found(known.clone());
        let mut app = App {
            fixed: HashMap::default(),
            routes: Vec::new(),
            id: next_id(),
            patterns: matchit::Router::new(),
            fallbacks: matchit::Router::new(),
            asterisk: stack(&root_layers, options(allow(&known.0))),
            unmatched: stack(&root_layers, not_found),
            error_page,
        };

        let mut paths: BTreeMap<String, Vec<Endpoint>> = BTreeMap::new();
        for endpoint in endpoints {
            paths.entry(endpoint.path.clone()).or_default().push(endpoint);
        }
        for (path, endpoints) in paths {
            let route = route(&path, endpoints, &app.error_page, &known, &mut problems);
            if !path.contains(['{', '}']) {
                app.fixed.insert(path.into(), app.routes.len() as u32);
                app.routes.push(route);
                continue;
            }
            let names = param_names(&path);
            if names.len() > PARAMS_MAX {
                problems.push(RouteProblem::Unparsable { path, why: TOO_MANY_PARAMS });
            } else if let Err(error) = app.patterns.insert(path.as_str(), (names, route)) {
                problems.push(RouteProblem::from_matchit(path, error));
            }
        }
        add_fallbacks(&mut app, fallbacks, &mut problems);
        if problems.is_empty() { Ok(app) } else { Err(RouterError { problems }) }
    }
}

/// Apps that are built on different threads are never asked about each other's heads: a thread's count will do.
fn next_id() -> u32 {
    thread_local! {
        static BUILT: Cell<u32> = const { Cell::new(0) };
    }
    let id = BUILT.get().checked_add(1).expect("fewer apps than that are built on a thread");
    BUILT.set(id);
    id
}

/// Puts the handlers of one path into slots, and fills the others with what the server answers there.
fn route(
    path: &str,
    endpoints: Vec<Endpoint>,
    error_page: &ErrorPage,
    known: &Rc<KnownMethods>,
    problems: &mut Vec<RouteProblem>,
) -> Route {
    let shared = shared_layers(&endpoints);
    let mut named: Vec<(Method, Handler)> = Vec::new();
    let mut any: Option<Handler> = None;
    for Endpoint { method, handler, layers, .. } in endpoints {
        let handler = stack(&layers, handler);
        let is_second = match &method {
            None => any.replace(handler).is_some(),
            Some(method) => {
                let is_second = named.iter().any(|(other, _)| other == method);
                named.push((method.clone(), handler));
                is_second
            }
        };
        if is_second {
            problems.push(RouteProblem::SecondHandler { path: path.to_owned(), method });
        }
    }

    let allow = allow(named.iter().map(|(method, _)| method));
    let rest =
        any.clone().unwrap_or_else(|| stack(&shared, error_page.clone().not_allowed(known.clone(), allow.clone())));
    let find = |method: &Method| named.iter().find(|(name, _)| name == method).map(|(_, handler)| handler.clone());
    let slots = SLOTS.map(|method| {
        let own = find(&method).or_else(|| if method == Method::HEAD { find(&Method::GET) } else { None });
        own.or_else(|| any.clone()).unwrap_or_else(|| match method {
            Method::OPTIONS => stack(&shared, options(allow.clone())),
            _ => rest.clone(),
        })
    });
    let others = named.into_iter().filter(|(method, _)| !SLOTS.contains(method)).collect();
    Route { slots, others, rest }
}

/// The layers that are around all handlers of a path, and so around the server's own answers there.
fn shared_layers(endpoints: &[Endpoint]) -> Vec<Layer> {
    let Some((first, others)) = endpoints.split_first() else {
        return Vec::new();
    };
    let is_shared = |(depth, layer): &(usize, &Layer)| {
        others.iter().all(|other| other.layers.get(*depth).is_some_and(|its| Rc::ptr_eq(its, layer)))
    };
    first.layers.iter().enumerate().take_while(is_shared).map(|(_, layer)| layer.clone()).collect()
}

/// The value of Allow for a path with these methods; with those that are answered without having been named.
fn allow<'a>(named: impl IntoIterator<Item = &'a Method>) -> HeaderValue {
    let mut names: Vec<&str> = vec!["OPTIONS"];
    for method in named {
        names.push(method.as_str());
        if *method == Method::GET {
            names.push("HEAD");
        }
    }
    names.sort_unstable();
    names.dedup();
    HeaderValue::from_str(&names.join(", ")).expect("a method is a token, which is a header value")
}

fn add_fallbacks(app: &mut App, fallbacks: Vec<Fallback>, problems: &mut Vec<RouteProblem>) {
    let mut has_root = false;
    for Fallback { prefix, handler, layers } in fallbacks {
        let handler = stack(&layers, handler);
        if prefix.is_empty() {
            if std::mem::replace(&mut has_root, true) {
                problems.push(RouteProblem::SecondFallback { prefix: "/".to_owned() });
            }
            app.unmatched = handler;
            continue;
        }
        let names = param_names(&prefix);
        if names.len() > PARAMS_MAX {
            problems.push(RouteProblem::Unparsable { path: prefix, why: TOO_MANY_PARAMS });
            continue;
        }
        // matchit's catch-all takes one byte at least, so that the prefix needs routes of its own.
        for end in ["", "/", "/{*under_prefix}"] {
            if app.fallbacks.insert(format!("{prefix}{end}"), (names.clone(), handler.clone())).is_err() {
                problems.push(RouteProblem::SecondFallback { prefix: prefix.clone() });
                break;
            }
        }
    }
}

/// The names of a pattern's parameters, from left to right. Doubled braces are literal ones.
fn param_names(pattern: &str) -> ParamNames {
    let literals_gone = pattern.replace("{{", "").replace("}}", "");
    let starts = literals_gone.split('{').skip(1);
    starts.filter_map(|start| start.split_once('}')).map(|(name, _)| name.trim_start_matches('*').into()).collect()
}
