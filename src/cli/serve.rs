//! `everycore serve`: says what it starts, serves the demo, ends with a code.

use super::args::{ServeArgs, exit};
use crate::{
    Error, Running, Server, TcpConnection,
    config::{Address, ServerConfig},
    demo,
    limits::{ECHO_ONCE_BYTES_MAX, ECHO_ONCE_TIMEOUT},
};
use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
use std::{io, process::ExitCode};

pub(super) fn run(args: ServeArgs) -> ExitCode {
    super::log_to_stderr();
    let config = match ServerConfig::try_from(args) {
        Ok(config) => config,
        Err(error) => return fail(exit::USAGE, &error),
    };
    let http = config.listen.len();
    match start(config) {
        Err(error) => fail(code(&error), &error),
        Ok(running) => {
            announce(&running, http);
            match running.wait() {
                Ok(()) => {
                    eprintln!("drained");
                    ExitCode::from(exit::OK)
                }
                Err(error) => fail(code(&error), &error),
            }
        }
    }
}

fn start(config: ServerConfig) -> Result<Running, Error> {
    let mut server = Server::new(config.clone()).handle_signals();
    for address in &config.echo {
        server = server.tcp(address, |shard| {
            move |connection| {
                let timeout = shard.sleep(ECHO_ONCE_TIMEOUT);
                future::or(echo_once(connection), async {
                    timeout.await;
                    Err(io::ErrorKind::TimedOut.into())
                })
            }
        });
    }
    server.start(|_| demo::router())
}

/// Reads once, writes the same back, closes: the server of the concurrency demo that this one was measured against.
async fn echo_once(mut connection: TcpConnection) -> io::Result<()> {
    let mut buffer = [0; ECHO_ONCE_BYTES_MAX];
    let count = connection.read(&mut buffer).await?;
    connection.write_all(&buffer[..count]).await?;
    connection.flush().await
}

/// One line each: addresses, shards, engine, limits.
fn announce(running: &Running, http: usize) {
    for (index, address) in running.addresses().iter().enumerate() {
        match address {
            Address::Tcp(address) if index < http => println!("listening on http://{address}"),
            address if index < http => println!("listening on {address}"),
            address => println!("echoing on {address}"),
        }
    }
    match running.stats_address() {
        Some(Address::Tcp(address)) => println!("stats on http://{address}"),
        Some(address) => println!("stats on {address}"),
        None => {}
    }
    let checked = running.preflight();
    println!("shards: {}", running.plan());
    println!("engine: io_uring on Linux {} ({}): {}", checked.kernel, checked.platform, checked.features);
    println!("limits: {}; {} connections at most", checked.limits, running.connections_max());
    if let Some(warning) = checked.memlock.warning() {
        eprintln!("warning: {warning}");
    }
}

fn code(error: &Error) -> u8 {
    match error {
        Error::RingUnavailable(_) => exit::UNAVAILABLE,
        Error::Config(_) | Error::Topology(_) => exit::USAGE,
        _ => exit::RUNTIME,
    }
}

fn fail(code: u8, error: &dyn std::error::Error) -> ExitCode {
    eprintln!("everycore: {error}");
    ExitCode::from(code)
}
