//! The command line. Floor 8: everything below may be used, nothing below uses it.

pub mod ajp;
pub mod args;
pub mod bench;
pub mod diagnostics;
mod doctor;
mod fetch;
mod healthcheck;
mod seccomp;
mod serve;
pub mod site;
mod top;

use self::args::{Cli, Command, exit};
use clap::{
    CommandFactory, Parser,
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
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for (name, meant) in mistyped(names) {
        tell(format_args!("{name} is no setting of everycore and has no effect: expected {meant}?"));
    }
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
    // Docker keeps 2 for itself: a health check ends with 0 or 1.
    let is_healthcheck = env::args_os().nth(1).is_some_and(|arg| arg == "healthcheck");
    ExitCode::from(match u8::try_from(error.exit_code()) {
        Ok(exit::OK) => exit::OK,
        _ if is_healthcheck => exit::RUNTIME,
        _ => exit::USAGE,
    })
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

/// Variables whose names are nearly those of settings, and the settings. Others are somebody else's: Kubernetes, for one,
/// sets `EVERYCORE_SERVICE_HOST` and the like beside a service called everycore.
fn mistyped(names: impl Iterator<Item = String>) -> Vec<(String, String)> {
    let mut command = Cli::command();
    command.build();
    let args = command.get_subcommands().flat_map(|sub| sub.get_arguments());
    let known: Vec<&str> = args.filter_map(|arg| arg.get_env()?.to_str()?.strip_prefix(PREFIX)).collect();
    let meant = |name: String| {
        let own = name.strip_prefix(PREFIX)?;
        if known.contains(&own) || ["PORT", "SERVICE_"].iter().any(|begin| own.starts_with(begin)) {
            return None;
        }
        let likeness = |known: &str| strsim::jaro_winkler(own, known);
        let nearest = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
        (likeness(nearest) > 0.9).then(|| (name.clone(), format!("{PREFIX}{nearest}")))
    };
    names.filter_map(meant).collect()
}

const PREFIX: &str = "EVERYCORE_";

/// Says something on standard error, if anybody reads it: `eprintln!` would panic if nobody does.
fn tell(what: impl Display) {
    let _ = writeln!(io::stderr(), "{what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_variables_are_told_from_those_of_others() {
        let check = |name: &str, meant: Option<&str>| {
            let found = mistyped(std::iter::once(name.to_owned()));
            assert_eq!(found.first().map(|(_, meant)| meant.as_str()), meant, "{name}");
        };
        check("EVERYCORE_LISTEN", None);
        check("EVERYCORE_LISTN", Some("EVERYCORE_LISTEN"));
        check("EVERYCORE_IDLE_TIMOUT", Some("EVERYCORE_IDLE_TIMEOUT"));
        check("EVERYCORE_MAXCONNECTIONS", Some("EVERYCORE_MAX_CONNECTIONS"));
        check("EVERYCORE_PORT", None);
        check("EVERYCORE_PORT_8080_TCP_ADDR", None);
        check("EVERYCORE_SERVICE_HOST", None);
        check("EVERYCORE_CASES_ADDR", None);
        check("LISTN", None);
    }
}
