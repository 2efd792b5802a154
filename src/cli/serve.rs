//! `everycore serve`: says what it starts, serves files or the demo, ends with a code.

use super::{
    args::{CompressArg, ServeArgs, exit},
    diagnostics,
    site::{Mount, SitePlan},
};
use crate::{
    Error, Running, Server, TcpConnection,
    config::{Address, ServerConfig},
    demo,
    limits::ECHO_ONCE_BYTES_MAX,
    middleware::Compression,
};
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use std::{
    io::{self, Write},
    process::ExitCode,
};

pub(super) fn run(mut args: ServeArgs) -> ExitCode {
    if let Err(error) = diagnostics::to_stderr(args.log.as_ref(), args.log_format) {
        return fail(exit::USAGE, &error);
    }
    let compress = args.compress;
    let site = match SitePlan::new(std::mem::take(&mut args.site)) {
        Ok(site) => site,
        Err(error) => return fail(exit::USAGE, &error),
    };
    let config = match ServerConfig::try_from(args) {
        Ok(config) => config,
        Err(error) => {
            let code = fail(exit::USAGE, &error);
            super::tell_variable(error.name);
            return code;
        }
    };
    let wanted = config.connections_max;
    let others = (config.echo.len(), config.ajp.len());
    let mounts = site.as_ref().map(|site| site.mounts().to_vec()).unwrap_or_default();
    let is_pointless = compress == CompressArg::Dynamic && site.is_some();
    match start(config, site, compress) {
        Err(error) => fail(code(&error), &error),
        Ok(running) => {
            let _ = announce(&running, others, &mounts); // nobody reads it: no reason not to serve
            if is_pointless {
                tracing::warn!(
                    "--compress dynamic compresses nothing here: with --root all answers are files; expected --compress all"
                );
            }
            let checked = running.preflight();
            let few_files = checked.nofile_warning(wanted, running.plan().shards());
            for warning in checked.memlock.warning().into_iter().chain(few_files) {
                tracing::warn!("{warning}");
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

fn start(config: ServerConfig, site: Option<SitePlan>, compress: CompressArg) -> Result<Running, Error> {
    let mut server = Server::new(config.clone()).handle_signals().systemd();
    for address in &config.echo {
        server = server.tcp(address, |_shard| echo_once);
    }
    server.start(move |_| {
        let router = site.as_ref().map_or_else(demo::router, SitePlan::router);
        let is_compressed = match compress {
            CompressArg::Off => false,
            CompressArg::Dynamic => site.is_none(),
            CompressArg::All => true,
        };
        if is_compressed { router.wrap(Compression::new().layer()) } else { router }
    })
}

/// Reads once, writes the same back, closes: the server of the concurrency demo that this one was measured against.
async fn echo_once(mut connection: TcpConnection) -> io::Result<()> {
    let mut buffer = [0; ECHO_ONCE_BYTES_MAX];
    let count = connection.read(&mut buffer).await?;
    connection.write_all(&buffer[..count]).await
}

/// One line each: addresses (`http` ones first, then those of the echo and of AJP), directories, shards, engine, limits.
fn announce(running: &Running, (echo, ajp): (usize, usize), mounts: &[Mount]) -> io::Result<()> {
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
    for Mount { path, root } in mounts {
        writeln!(out, "files of {} at {path}", root.display())?;
    }
    let checked = running.preflight();
    writeln!(out, "shards: {}", running.plan())?;
    writeln!(out, "engine: io_uring on Linux {} ({}): {}", checked.kernel, checked.platform, checked.features)?;
    let connections = running.connections_max();
    let plural = if connections == 1 { "" } else { "s" };
    writeln!(out, "limits: {}; {connections} connection{plural} at most", checked.limits)
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
