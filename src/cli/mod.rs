//! The command line. Floor 8: everything below may be used, nothing below uses it.

pub mod args;
mod fetch;
mod healthcheck;
mod serve;
mod top;

use self::args::{Cli, Command, exit};
use clap::Parser;
use std::process::ExitCode;

/// Runs the command that the process was given; the code says how it went (see [`exit`]).
pub fn run() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve::run(*args),
        Command::Healthcheck(args) => healthcheck::run(&args),
        Command::Doctor(args) => doctor(&args),
        Command::Top(args) => top::run(&args),
    }
}

fn doctor(args: &args::DoctorArgs) -> ExitCode {
    let shards = std::thread::available_parallelism().map_or(1, usize::from);
    let checked = crate::preflight::preflight(shards);
    let warning = checked.as_ref().ok().and_then(|host| host.memlock.warning());
    match (&checked, args.json) {
        (Ok(host), true) => println!("{}", serde_json::to_string_pretty(host).expect("plain data")),
        (Err(error), true) => println!("{}", serde_json::json!({ "error": error.to_string(), "cure": error.cure() })),
        (Ok(host), false) => println!("ok: {host}"),
        (Err(error), false) => println!("broken: {error}"),
    }
    if let (Some(warning), false) = (&warning, args.json) {
        println!("warning: {warning}");
    }
    ExitCode::from(match checked {
        Err(_) => exit::UNAVAILABLE,
        Ok(_) if args.strict && warning.is_some() => exit::RUNTIME,
        Ok(_) => exit::OK,
    })
}

/// Warnings and errors of the server go to standard error, one line each.
fn log_to_stderr() {
    struct Stderr;
    impl log::Log for Stderr {
        fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
            metadata.level() <= log::Level::Warn
        }
        fn log(&self, record: &log::Record<'_>) {
            if self.enabled(record.metadata()) {
                eprintln!("{}: {}", record.level().as_str().to_lowercase(), record.args());
            }
        }
        fn flush(&self) {}
    }
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(log::LevelFilter::Warn);
    }
}
