//! JSON in and out, path parameters, middlewares, an error page.
//!
//! `cargo run --release --example json_api`, then
//! `curl -H 'Content-Type: application/json' -d '{"numbers": [1, 2, 3]}' http://127.0.0.1:8080/api/mean`; leave something
//! out, and the answer says what was expected.

use everycore::{
    Request, Response, Router, Server,
    extract::ExtractError,
    http::StatusCode,
    middleware::{self, Next},
};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Numbers {
    numbers: Vec<f64>,
}

#[derive(Serialize)]
struct Mean {
    count: usize,
    mean: f64,
}

/// `?` answers 415, 413, 400 or 422 for a body that is not what was asked for.
async fn mean(mut req: Request) -> Result<Response, ExtractError> {
    let Numbers { numbers } = req.json().await?;
    let count = numbers.len();
    Ok(Response::json(&Mean { count, mean: numbers.iter().sum::<f64>() / count.max(1) as f64 }))
}

/// A middleware answers by itself, or passes the request on and may change what comes back.
async fn only_with_key(req: Request, next: Next) -> Response {
    match req.header("x-key") {
        Some("opensesame") => next.run(req).await,
        _ => Response::text("say the magic word in X-Key\n").with_status(StatusCode::FORBIDDEN),
    }
}

fn main() -> Result<(), everycore::Error> {
    Server::bind("127.0.0.1:8080").handle_signals().run(|_shard| {
        let admin = Router::new().get("/secret", |_| "the cake is in the fridge\n").wrap(only_with_key);
        let api = Router::new()
            .post("/mean", mean)
            .get("/square/{n}", |req: Request| match req.param("n").and_then(|n| n.parse::<f64>().ok()) {
                Some(n) => Response::json(&(n * n)),
                None => Response::text("expected a number\n").with_status(StatusCode::BAD_REQUEST),
            })
            .nest("/admin", admin);
        Router::new()
            .nest("/api", api)
            .wrap(middleware::header("cache-control", "no-store"))
            .error_page(|error| Some(Response::json(&serde_json::json!({ "error": error.reason }))))
    })
}
