//! hyper on tokio's single-threaded runtime.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue, SERVER};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;

fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let listener = raw::listen(raw::port())?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        // Without it every reply of a pipelined batch is a write of its own.
        let mut http = http1::Builder::new();
        http.pipeline_flush(true);
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(http.serve_connection(TokioIo::new(stream), service_fn(answer)));
        }
    })
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = match request.uri().path() {
        "/echo" => request.into_body().collect().await?.to_bytes(),
        "/16k" => Bytes::from_static(raw::BIG.as_bytes()),
        _ => Bytes::from_static(b"OK"),
    };
    let mut response = Response::new(Full::new(body));
    response
        .headers_mut()
        .insert(SERVER, HeaderValue::from_static("hyper"));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}
