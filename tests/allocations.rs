//! What the path of every request may allocate: nothing, up to the handler's own.

use everycore::handler::Reply;
use everycore::middleware;
use everycore::{Request, Router};
use http::Method;

#[test]
fn handling_a_request_allocates_only_for_futures() {
    let router = Router::new()
        .get("/now", |_| "now")
        .get("/u/{a}/{b}", |_| "pattern")
        .get("/later", |_| async { "later" })
        .nest(
            "/in",
            Router::new()
                .get("/x", |_| "x")
                .wrap(|req, next| next.run(req))
                .wrap(middleware::log("quiet")),
        );
    let app = router.build().expect("no conflicts");
    drop(Request::builder(Method::GET, "/").body(())); // The list of heads to use again grows once.
    for (target, expected) in [("/now", 0), ("/u/1/2", 0), ("/in/x", 0), ("/later", 1)] {
        let request = Request::builder(Method::GET, target)
            .body(())
            .expect("well-formed");
        let mut reply: Option<Reply> = None;
        let counted = allocation_counter::measure(|| reply = Some(app.handle(request)));
        assert_eq!(counted.count_total, expected, "{target}");
    }
}
