//! The command line. Floor 8: everything below may be used, nothing below uses it.

pub mod ajp;
pub mod args;
pub mod bench;
mod doctor;
mod fetch;
mod healthcheck;
mod seccomp;
mod serve;
pub mod site;
mod top;

use self::args::{Cli, Command, exit};
use clap::{
    Parser,
    error::{ContextKind, ContextValue},
};
use std::{
    env,
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

/// Runs the command that the process was given; the code says how it went (see [`args::exit`]).
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    match cli.command {
        Command::Serve(args) => serve::run(*args),
        Command::Bench(args) => bench::bench(&args),
        Command::Healthcheck(args) => healthcheck::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Seccomp(args) => seccomp::run(&args),
        Command::Top(args) => top::run(&args),
    }
}

/// Prints what clap has to say: help and versions too come as errors.
fn refuse(error: &clap::Error) -> ExitCode {
    let _ = error.print(); // if anybody reads it
    if let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg) {
        // `--shards <N|auto>`, in clap's words.
        let flag = arg.split(' ').next().unwrap_or_default().trim_start_matches('-');
        tell_variable(flag);
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(exit::USAGE))
}

/// Names the variable that a flag's bad value came from, if it did: who is told of a flag looks for it in vain on a
/// command line that does not have it.
fn tell_variable(flag: &str) {
    let dashed = format!("--{flag}");
    let is_flag = |arg: String| {
        arg == dashed || arg.starts_with(&format!("{dashed}=")) || (flag == "listen" && arg.starts_with("-l"))
    };
    let variable = format!("EVERYCORE_{}", flag.to_uppercase().replace('-', "_"));
    if env::var_os(&variable).is_some() && !env::args_os().any(|arg| arg.into_string().is_ok_and(is_flag)) {
        tell(format_args!("the value comes from the environment: {variable}"));
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
