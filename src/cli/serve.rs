//! `everycore serve`: says what it starts, serves the demo, ends with a code.

use super::args::{ServeArgs, exit};
use crate::{
    Error, Running, Server, TcpConnection,
    config::{Address, ServerConfig},
    demo,
    limits::{ECHO_ONCE_BYTES_MAX, ECHO_ONCE_TIMEOUT},
};
use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
use std::{
    io::{self, Write},
    process::ExitCode,
};

pub(super) fn run(args: ServeArgs) -> ExitCode {
    super::log_to_stderr();
    let config = match ServerConfig::try_from(args) {
        Ok(config) => config,
        Err(error) => {
            let code = fail(exit::USAGE, &error);
            super::tell_variable(error.name);
            return code;
        }
    };
    let others = (config.echo.len(), config.ajp.len());
    match start(config) {
        Err(error) => fail(code(&error), &error),
        Ok(running) => {
            let _ = announce(&running, others); // nobody reads it: no reason not to serve
            if let Some(warning) = running.preflight().memlock.warning() {
                super::tell(format_args!("warning: {warning}"));
            }
            match running.wait() {
                Ok(()) => {
                    super::tell("drained");
                    ExitCode::from(exit::OK)
                }
                Err(error) => fail(code(&error), &error),
            }
        }
    }
}

fn start(config: ServerConfig) -> Result<Running, Error> {
    let mut server = Server::new(config.clone()).handle_signals().systemd();
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

/// One line each: addresses (`http` ones first, then those of the echo and of AJP), shards, engine, limits.
fn announce(running: &Running, (echo, ajp): (usize, usize)) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let http = running.addresses().len() - echo - ajp;
    for (index, address) in running.addresses().iter().enumerate() {
        match address {
            Address::Tcp(address) if index < http => writeln!(out, "listening on http://{address}")?,
            address if index < http => writeln!(out, "listening on {address}")?,
            address if index < http + echo => writeln!(out, "echoing on {address}")?,
            address => writeln!(out, "AJP on {address}")?,
        }
    }
    match running.stats_address() {
        Some(Address::Tcp(address)) => println!("stats on http://{address}"),
        Some(address) => println!("stats on {address}"),
        None => {}
    }
    let checked = running.preflight();
    writeln!(out, "shards: {}", running.plan())?;
    writeln!(out, "engine: io_uring on Linux {} ({}): {}", checked.kernel, checked.platform, checked.features)?;
    writeln!(out, "limits: {}; {} connections at most", checked.limits, running.connections_max())
}

fn code(error: &Error) -> u8 {
    match error {
        Error::RingUnavailable(_) => exit::UNAVAILABLE,
        // The demo's routes go together: a flag has put an endpoint where one of them is.
        Error::Config(_) | Error::Topology(_) | Error::Router(_) => exit::USAGE,
        _ => exit::RUNTIME,
    }
}

fn fail(code: u8, error: &dyn std::error::Error) -> ExitCode {
    super::tell(format_args!("everycore: {error}"));
    ExitCode::from(code)
}
