//! The load generator as a program of its own, until the binary has the subcommand.

use clap::Parser;
use everycore::cli::bench::{BenchArgs, bench};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "bench", max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    args: BenchArgs,
}

fn main() -> ExitCode {
    bench(&Cli::parse().args)
}
