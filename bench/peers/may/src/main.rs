//! may_minihttp with one worker. It binds its socket itself, ignores `Connection: close`, and its
//! Server header is its own.

use may_minihttp::{HttpServer, HttpService, Request, Response};
use std::io::{self, Read};

#[derive(Clone)]
struct Answer;

impl HttpService for Answer {
    fn call(&mut self, request: Request, response: &mut Response) -> io::Result<()> {
        response.header("Content-Type: text/plain");
        match request.path() {
            "/echo" => {
                let mut body = Vec::with_capacity(4096);
                request.body().read_to_end(&mut body)?;
                response.body_vec(body);
            }
            "/16k" => response.body(raw::BIG),
            _ => response.body("OK"),
        }
        Ok(())
    }
}

fn main() -> io::Result<()> {
    may::config().set_workers(1).set_worker_pin(false);
    let server = HttpServer(Answer).start(("127.0.0.1", raw::port()))?;
    server
        .join()
        .map_err(|_| io::Error::other("the server panicked"))
}
