//! `everycore doctor`: prints what was found, ends with a code.

use super::args::{DoctorArgs, exit};
use crate::doctor::{Examination, State};
use std::process::ExitCode;

pub(super) fn run(args: &DoctorArgs) -> ExitCode {
    let examination = Examination { shards: args.shards.0, platform: args.platform.map(Into::into) };
    let report = examination.run();
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report).expect("plain data")),
        false => println!("{report}"),
    }
    ExitCode::from(match report.state {
        State::Broken => exit::UNAVAILABLE,
        State::Warning if args.strict => exit::RUNTIME,
        State::Warning | State::Ok => exit::OK,
    })
}
