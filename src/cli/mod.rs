//! The command line. Floor 8: everything below may be used, nothing below uses it.

pub mod args;
pub mod bench;
mod doctor;
mod healthcheck;
mod seccomp;
mod serve;

use self::args::{Cli, Command};
use clap::Parser;
use std::{
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

/// Runs the command that the process was given; the code says how it went (see [`args::exit`]).
pub fn run() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve::run(*args),
        Command::Bench(args) => bench::bench(&args),
        Command::Healthcheck(args) => healthcheck::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Seccomp(args) => seccomp::run(&args),
    }
}

/// Says something on standard error, if anybody reads it: `eprintln!` would panic if nobody does.
fn tell(what: impl Display) {
    let _ = writeln!(io::stderr(), "{what}");
}

/// Warnings and errors of the server go to standard error, one line each.
fn log_to_stderr() {
    struct Stderr;
    impl log::Log for Stderr {
        fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
            // glommio warns of what it does without, such as registered memory under a small limit.
            let is_glommio = metadata.target().starts_with("glommio");
            metadata.level() <= if is_glommio { log::Level::Error } else { log::Level::Warn }
        }
        fn log(&self, record: &log::Record<'_>) {
            if self.enabled(record.metadata()) {
                tell(format_args!("{}: {}", record.level().as_str().to_lowercase(), record.args()));
            }
        }
        fn flush(&self) {}
    }
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(log::LevelFilter::Warn);
    }
}
