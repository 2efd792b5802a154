//! Routes, handlers and middlewares, through `App::handle`: no sockets.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use everycore::handler::Reply;
use everycore::middleware::{self, Next};
use everycore::{App, Request, Response, RouteProblem, Router};
use futures_lite::future::{block_on, yield_now};
use http::{Method, StatusCode};

fn request(line: &str) -> Request {
    let (method, target) = line.split_once(' ').expect("`METHOD target`");
    let method = Method::from_bytes(method.as_bytes()).expect("a token");
    Request::builder(method, target).body(()).expect("well-formed")
}

/// `status body`, and ` [allow]` if there is one.
fn answer(app: &App, line: &str) -> String {
    let response = block_on(async { app.handle(request(line)).await });
    let status = response.status().as_u16();
    let allow = response.header("allow").map(|allow| format!(" [{}]", String::from_utf8_lossy(allow)));
    let body = block_on(response.into_body().bytes(1 << 20)).expect("in memory");
    format!("{status} {}{}", String::from_utf8_lossy(&body), allow.unwrap_or_default())
}

/// Each line: a request, and what its answer begins with.
fn check(router: Router, table: &[(&str, &str)]) {
    let app = router.build().expect("no conflicts");
    for (line, expected) in table {
        let answer = answer(&app, line);
        assert!(answer.starts_with(expected), "{line}: expected `{expected}`, got `{answer}`");
        assert!(!expected.ends_with(']') || answer == *expected, "{line}: expected `{expected}`, got `{answer}`");
    }
}

fn problems(router: Router) -> Vec<RouteProblem> {
    router.build().expect_err("refused").problems().to_vec()
}

/// Answers with a name and the parameters `a`, `b`, `c` that there are.
fn shows(name: &'static str) -> impl Fn(Request) -> String {
    move |request| {
        let params =
            ["a", "b", "c"].into_iter().filter_map(|param| Some(format!(" {param}={}", request.param(param)?)));
        format!("{name}{}", params.collect::<String>())
    }
}

#[test]
fn path_picks_the_most_specific_route() {
    let router = Router::new()
        .get("/", shows("root"))
        .get("/{*a}", shows("all"))
        .get("/u/{a}", shows("user"))
        .get("/u/new", shows("new"))
        .get("/u/{a}/p/{b}", shows("post"))
        .get("/u/{a}/p/{b}/f/{*c}", shows("file"))
        .get("/{{a}}", shows("braces"))
        .get("/v/{a}.json", shows("suffix"));
    check(
        router,
        &[
            ("GET /", "200 root"),
            ("GET /?x=1", "200 root"),
            ("GET /u", "200 all a=u"),
            ("GET /u/", "200 all a=u/"),
            ("GET /u/7", "200 user a=7"),
            ("GET /u/7?x=1", "200 user a=7"),
            ("GET /u/new", "200 new"),
            ("GET /u/news", "200 user a=news"),
            ("GET /u/new/", "200 all a=u/new/"),
            ("GET /u/1/p/2", "200 post a=1 b=2"),
            ("GET /u/1/p/2/f/x/y", "200 file a=1 b=2 c=x/y"),
            ("GET /{a}", "200 braces"),
            ("GET /v/x.json", "200 suffix a=x"),
            ("GET http://host/u/7", "200 user a=7"),
        ],
    );
}

#[test]
fn path_is_matched_raw_and_parameters_are_decoded() {
    let router = Router::new().get("/caf%C3%A9", shows("café")).get("/x/{a}", shows("x"));
    check(
        router,
        &[
            ("GET /caf%C3%A9", "200 café"),
            ("GET /caf%c3%a9", "404"),
            ("GET /%78/1", "404"),
            ("GET /X/1", "404"),
            ("GET /x/a%2Fb%20c", "200 x a=a/b c"),
            ("GET /x/%FF", "200 x a=\u{fffd}"),
            ("GET /x/../x/1", "404"),
        ],
    );
}

#[test]
fn method_without_handler_gets_405_with_allow() {
    let router = Router::new().get("/g", shows("get")).post("/g", shows("post")).put("/p/{a}", shows("put"));
    check(
        router,
        &[
            ("GET /g", "200 get"),
            ("POST /g", "200 post"),
            ("HEAD /g", "200 get"),
            (
                "DELETE /g",
                "405 405 Method Not Allowed: this path does not have this method\n [GET, HEAD, OPTIONS, POST]",
            ),
            ("TRACE /g", "405"),
            ("GET /p/1", "405 405 Method Not Allowed: this path does not have this method\n [OPTIONS, PUT]"),
            ("HEAD /p/1", "405"),
            ("OPTIONS /g", "204  [GET, HEAD, OPTIONS, POST]"),
            ("OPTIONS /p/1", "204  [OPTIONS, PUT]"),
            ("OPTIONS *", "204  [GET, HEAD, OPTIONS, POST, PUT]"),
            ("OPTIONS /none", "404 404 Not Found: no route has this path\n"),
        ],
    );
}

#[test]
fn method_that_no_route_has_gets_501() {
    let router = Router::new()
        .route(Method::from_bytes(b"PURGE").expect("a token"), "/cache", shows("purge"))
        .get("/cache", shows("get"))
        .get("/other", shows("other"));
    check(
        router,
        &[
            ("PURGE /cache", "200 purge"),
            ("PURGE /other", "405"),
            ("OPTIONS /cache", "204  [GET, HEAD, OPTIONS, PURGE]"),
            ("PURGE /none", "404"),
            ("BREW /cache", "501 501 Not Implemented: no route has this method\n"),
            ("BREW /none", "501"),
            ("CONNECT host:443", "501"),
        ],
    );
}

#[test]
fn named_methods_win_over_what_is_answered_for_them() {
    let router = Router::new()
        .any("/any", shows("any"))
        .get("/any", shows("get"))
        .get("/own", shows("get"))
        .head("/own", shows("head"))
        .options("/own", shows("options"));
    check(
        router,
        &[
            ("GET /any", "200 get"),
            ("HEAD /any", "200 get"),
            ("OPTIONS /any", "200 any"),
            ("DELETE /any", "200 any"),
            ("BREW /any", "200 any"),
            ("HEAD /own", "200 head"),
            ("OPTIONS /own", "200 options"),
        ],
    );
}

#[test]
fn handlers_answer_with_all_that_is_documented() {
    async fn function(request: Request) -> Result<String, StatusCode> {
        request.query("x").map(|x| x.into_owned()).ok_or(StatusCode::BAD_REQUEST)
    }
    let router = Router::new()
        .get("/response", |_| Response::text("x"))
        .get("/str", |_| "str")
        .get("/bytes", |_| bytes::Bytes::from_static(b"bytes"))
        .get("/vec", |_| vec![b'v'])
        .get("/teapot", |_| StatusCode::IM_A_TEAPOT)
        .get("/accepted", |_| StatusCode::ACCEPTED)
        .get("/pair", |_| (StatusCode::CREATED, String::from("made")))
        .get("/none", |_| None::<&str>)
        .get("/later", |req| async move {
            yield_now().await;
            Response::text(req.path().to_owned())
        })
        .get("/function", function);
    check(
        router,
        &[
            ("GET /response", "200 x"),
            ("GET /str", "200 str"),
            ("GET /bytes", "200 bytes"),
            ("GET /vec", "200 v"),
            ("GET /teapot", "418 418 I'm a teapot\n"),
            ("GET /accepted", "202 "),
            ("GET /pair", "201 made"),
            ("GET /none", "404 404 Not Found\n"),
            ("GET /later", "200 /later"),
            ("GET /function?x=y", "200 y"),
            ("GET /function", "400 400 Bad Request\n"),
        ],
    );
}

#[test]
fn nested_routes_are_under_their_prefix() {
    let inner = Router::new().get("/", shows("index")).get("/x/{b}", shows("x")).fallback(shows("inner"));
    let outer =
        Router::new().nest("/in", inner).merge(Router::new().get("/m", shows("merged"))).fallback(shows("outer"));
    let router = Router::new()
        .nest("/t/{a}", outer)
        .nest("/slash/", Router::new().get("/", shows("slash")))
        .nest("/", Router::new().get("/flat", shows("flat")));
    check(
        router,
        &[
            ("GET /t/1/in", "200 index a=1"),
            ("GET /t/1/in/", "200 inner a=1"),
            ("GET /t/1/in/x/2", "200 x a=1 b=2"),
            ("POST /t/1/in/x/2", "405"),
            ("GET /t/1/in/y/z", "200 inner a=1"),
            ("GET /t/1/inn", "200 outer a=1"),
            ("GET /t/1/m", "200 merged a=1"),
            ("GET /t/1", "200 outer a=1"),
            ("BREW /t/1/y", "200 outer a=1"),
            ("GET /t", "404"),
            ("GET /slash", "200 slash"),
            ("GET /slash/", "404"),
            ("GET /flat", "200 flat"),
        ],
    );
}

#[test]
fn error_page_replaces_the_text_but_not_the_status() {
    let router = Router::new().get("/x", shows("x")).error_page(|error| {
        let path = error.request.map(Request::path)?;
        (error.status != StatusCode::NOT_IMPLEMENTED).then(|| Response::html(format!("page for {path}")))
    });
    check(
        router,
        &[
            ("GET /y", "404 page for /y"),
            ("POST /x", "405 page for /x [GET, HEAD, OPTIONS]"),
            ("BREW /x", "501 501 Not Implemented: no route has this method\n"),
        ],
    );
}

/// A middleware that notes when a request passes it.
fn notes(name: &'static str, log: &Rc<RefCell<Vec<&'static str>>>) -> impl Fn(Request, Next) -> Reply + use<> {
    let log = log.clone();
    move |request, next| {
        log.borrow_mut().push(name);
        next.run(request)
    }
}

#[test]
fn middlewares_run_in_reading_order_around_their_own_routes() {
    let log = Rc::default();
    let inner = Router::new()
        .wrap(notes("inner", &log))
        .get("/x", middleware::wrapped(notes("handler", &log), |_| "x"))
        .fallback(shows("fallback"));
    let merged = Router::new().post("/in/x", shows("post")).get("/m", shows("m")).wrap(notes("merged", &log));
    let router = Router::new()
        .wrap(notes("first", &log))
        .nest("/in", inner)
        .merge(merged)
        .get("/", shows("root"))
        .wrap(notes("second", &log));
    let app = router.build().expect("no conflicts");
    for (line, expected) in [
        ("GET /in/x", &["first", "second", "inner", "handler"][..]),
        ("GET /in/y", &["first", "second", "inner"]),
        ("GET /m", &["first", "second", "merged"]),
        ("PUT /m", &["first", "second", "merged"]),
        ("OPTIONS /m", &["first", "second", "merged"]),
        ("POST /in/x", &["first", "second", "merged"]),
        ("PUT /in/x", &["first", "second"]),
        ("GET /", &["first", "second"]),
        ("GET /none", &["first", "second"]),
        ("OPTIONS *", &["first", "second"]),
    ] {
        answer(&app, line);
        assert_eq!(log.take(), expected, "{line}");
    }
}

#[test]
fn middleware_changes_answers_now_and_later() {
    let router = Router::new()
        .get("/now", |_| "now")
        .get("/own", |_| Response::text("own").with_header("x-a", "own"))
        .get("/later", |_| async {
            yield_now().await;
            "later"
        })
        .wrap(middleware::header("x-a", "1"));
    let app = router.build().expect("no conflicts");
    for (path, is_ready, expected) in
        [("/now", true, "1"), ("/own", true, "own"), ("/later", false, "1"), ("/none", true, "1")]
    {
        let reply = app.handle(request(&format!("GET {path}")));
        assert_eq!(matches!(reply, Reply::Ready(_)), is_ready, "{path}");
        let response = block_on(async { reply.await });
        assert_eq!(response.header("x-a"), Some(expected.as_bytes()), "{path}");
        assert_eq!(response.headers().len(), 1, "{path}");
    }
}

#[test]
fn middleware_answers_by_itself_without_running_the_handler() {
    let ran = Rc::new(Cell::new(false));
    let has_run = ran.clone();
    let router = Router::new()
        .get("/", move |_| {
            has_run.set(true);
            "home"
        })
        .wrap(|req, next| async move {
            match req.header("authorization") {
                Some(_) => next.run(req).await,
                None => Response::new(StatusCode::UNAUTHORIZED),
            }
        });
    check(router, &[("GET /", "401 ")]);
    assert!(!ran.get());
}

#[test]
fn header_middleware_with_a_bad_value_answers_500() {
    check(Router::new().get("/", |_| "x").wrap(middleware::header("x", "a\nb")), &[("GET /", "500")]);
}

#[test]
fn build_reports_every_problem_at_once() {
    let conflict = |path: &str, with: &str| RouteProblem::Conflict { path: path.into(), with: with.into() };
    let second = |path: &str, method| RouteProblem::SecondHandler { path: path.into(), method };
    let router = Router::new()
        .get("/u/{a}", shows("a"))
        .post("/u/{b}", shows("b"))
        .get("/x", shows("x"))
        .any("/y", shows("y"))
        .merge(Router::new().get("/x", shows("x")).any("/y", shows("y")));
    assert_eq!(problems(router), [conflict("/u/{b}", "/u/{a}"), second("/x", Some(Method::GET)), second("/y", None)],);

    let fallbacks = Router::new().fallback(shows("1")).fallback(shows("2"));
    assert_eq!(problems(Router::new().nest("/p", fallbacks)), [RouteProblem::SecondFallback { prefix: "/p".into() }]);
    let fallbacks = Router::new().fallback(shows("1")).merge(Router::new().fallback(shows("2")));
    assert_eq!(problems(fallbacks), [RouteProblem::SecondFallback { prefix: "/".into() }]);

    let pages = Router::new().error_page(|_| None).nest("/x", Router::new().error_page(|_| None));
    assert_eq!(problems(pages), [RouteProblem::SecondErrorPage]);
}

#[test]
fn path_that_no_request_can_match_is_refused() {
    let too_many = "/{a}".repeat(everycore::limits::PARAMS_MAX);
    assert!(Router::new().get(&too_many.replace("/{a}", "/{x}"), shows("")).build().is_ok());
    let too_many = too_many + "/{a}";
    for path in
        ["", "x", "/a b", "/café", "/a?b", "/a#b", "/{a", "/{}", "/{a}{b}", "/{*a}/b", "/{*}", "*", "/x/:id", &too_many]
    {
        let refused = problems(Router::new().get(path, shows("")));
        assert!(
            matches!(&refused[..], [RouteProblem::Unparsable { path: named, .. }] if named == path),
            "{path}: {refused:?}"
        );
    }
    for prefix in ["", "x", "/{*a}", "/a?"] {
        let refused = problems(Router::new().nest(prefix, Router::new().get("/x", shows(""))));
        assert!(matches!(&refused[0], RouteProblem::Unparsable { .. }), "{prefix}: {refused:?}");
    }
}

#[test]
fn router_error_reads_as_a_sentence() {
    let error = Router::new()
        .get("x", shows(""))
        .get("/u/{a}", shows(""))
        .put("/u/{b}", shows(""))
        .build()
        .expect_err("refused");
    assert_eq!(
        error.to_string(),
        "the routes contradict each other or themselves: `x` cannot be matched: it does not start with `/`; \
         `/u/{b}` and `/u/{a}` match the same paths: give the parameters the same names, or drop one",
    );
}

thread_local! {
    static LOGGED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Keeps what this thread logs.
struct Logger;

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target() == "access"
    }

    fn log(&self, record: &log::Record<'_>) {
        LOGGED.with_borrow_mut(|lines| lines.push(record.args().to_string()));
    }

    fn flush(&self) {}
}

#[test]
fn log_middleware_writes_a_line_a_request_to_its_target() {
    log::set_logger(&Logger).expect("the only one");
    log::set_max_level(log::LevelFilter::Info);
    let router = Router::new().get("/x", shows("x")).wrap(middleware::log("access")).wrap(middleware::log("quiet"));
    check(router, &[("GET /x?y", "200"), ("POST /x", "405"), ("GET /%0A", "404")]);
    assert_eq!(LOGGED.take(), ["GET /x 200", "POST /x 405", "GET /%0A 404"]);
}
