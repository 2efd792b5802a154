//! The `everycore` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    everycore::cli::run()
}
