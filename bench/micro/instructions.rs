//! One shard and one client in one process, for counting the instructions of a request: see `bench/instructions`.
//!
//! usage: instructions REQUESTS CONNECTIONS DEPTH

use everycore::{Router, Server, topology::PinMode};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<usize>().expect("a number"));
    let mut number = || numbers.next().expect("usage: instructions REQUESTS CONNECTIONS DEPTH");
    let (requests, connections, depth) = (number(), number(), number());
    let server = Server::bind("127.0.0.1:0").shards(1).configure(|config| config.pin = PinMode::Off);
    let running = server.start(|_| Router::new().get("/small", |_| "OK")).expect("it starts");
    let address: SocketAddr = running.addresses()[0].to_string().parse().expect("an address");
    let mut streams: Vec<TcpStream> = (0..connections)
        .map(|_| {
            let stream = TcpStream::connect(address).expect("it accepts");
            stream.set_nodelay(true).expect("an option");
            stream
        })
        .collect();
    let asked = b"GET /small HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n".repeat(depth);
    let mut answer = vec![0; 64 * 1024];
    let mut answer_bytes = 0;
    for _ in 0..requests / (connections * depth) {
        for stream in &mut streams {
            stream.write_all(&asked).expect("it reads");
        }
        for stream in &mut streams {
            if answer_bytes == 0 {
                // The first answers tell how long one is.
                while !answer[..answer_bytes].ends_with(b"OK") || count(&answer[..answer_bytes]) < depth {
                    answer_bytes += stream.read(&mut answer[answer_bytes..]).expect("it answers");
                }
                continue;
            }
            stream.read_exact(&mut answer[..answer_bytes]).expect("it answers");
        }
    }
    drop(streams);
    running.handle().shutdown();
    running.wait().expect("it drains");
}

fn count(answers: &[u8]) -> usize {
    answers.windows(4).filter(|end| end == b"\r\n\r\n").count()
}
