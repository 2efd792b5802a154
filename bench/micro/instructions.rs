//! One shard on the only thread of this process, for counting the instructions of a request: see `bench/instructions`.
//!
//! It has what a shard of the server has (driver, sockets, HTTP service, router, counters), but no mailboxes, and hardly any
//! ticks: those go by time, which valgrind stretches.
//!
//! usage: instructions CONNECTIONS     prints its port, serves so many connections, ends with the last

use everycore::{
    Router,
    config::ServerConfig,
    limits::TICK_MAX,
    ring::{Ring, RingOptions},
    service::http1::{Context, Http1Config, serve},
    stats::Counters,
};
use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    net::TcpListener,
    rc::Rc,
    task::{Poll, Waker},
};

fn main() {
    let connections: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).expect("a number of connections");
    let socket = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    println!("{}", socket.local_addr().expect("it is bound").port());
    let executor = glommio::LocalExecutorBuilder::default().io_memory(64 * 1024).make().expect("an executor");
    executor.run(async move {
        let ring = Ring::new(&RingOptions { tick: TICK_MAX, ..RingOptions::default() }).expect("a ring");
        let app = Router::new().get("/small", |_| "OK").build().expect("a router");
        let config = Http1Config::from(&ServerConfig::default());
        let context = Rc::new(Context::new(app, config, Rc::new(Counters::default())));
        let left = Rc::new(Cell::new(connections));
        let last = Rc::new(RefCell::new(None::<Waker>));
        let inner = ring.clone();
        let all = async move {
            let listener = inner.listen(socket.into());
            for _ in 0..connections {
                let service = serve(inner.adopt(listener.accept().await.expect("a connection")), context.clone(), 0, ());
                let (left, last) = (left.clone(), last.clone());
                inner.spawn(async move {
                    service.await;
                    left.set(left.get() - 1);
                    if left.get() == 0 {
                        last.take().into_iter().for_each(Waker::wake);
                    }
                });
            }
            poll_fn(|cx| {
                last.replace(Some(cx.waker().clone()));
                if left.get() == 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        };
        ring.drive(all).await.expect("it works to the end");
    });
}
