//! What the flags for logs mean; where diagnostics go: to standard error, filtered, as text or JSON. Floor 8.
//!
//! For `tracing`'s events and, by way of it, the `log` crate's. Not for what a command says of itself: that is printed.

use super::args::Off;
use crate::config::AccessLogFormat;
use clap::ValueEnum;
use std::{env, error::Error, fmt, io};
use tracing_subscriber::{filter::Targets, fmt::layer, layer::SubscriberExt, util::SubscriberInitExt};

/// What is shown if nobody says. glommio warns of what it does without, such as registered memory under a small limit.
const DEFAULT: &str = "warn,everycore=info,glommio=error";

/// How they look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Time, level, module, message
    Text,
    /// A JSON object each
    Json,
}

/// The value of `--access-log`.
pub(super) fn access_log(text: &str) -> Result<Off<AccessLogFormat>, String> {
    match text {
        "off" => Ok(Off(None)),
        "combined" => Ok(Off(Some(AccessLogFormat::Combined))),
        "json" => Ok(Off(Some(AccessLogFormat::Json))),
        _ => Err("expected off, combined or json".to_owned()),
    }
}

/// `RUST_LOG` is no filter.
#[derive(Debug)]
pub(super) struct BadFilter(String);

impl fmt::Display for BadFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RUST_LOG: expected a filter such as info or warn,everycore=debug, got {:?}", self.0)
    }
}

impl Error for BadFilter {}

/// Shows what `filter` lets through, or else `RUST_LOG`.
pub(super) fn to_stderr(filter: Option<&Targets>, format: LogFormat) -> Result<(), BadFilter> {
    let filter = match (filter, env::var("RUST_LOG")) {
        (Some(filter), _) => filter.clone(),
        (None, Ok(text)) if !text.is_empty() => text.parse().map_err(|_| BadFilter(text))?,
        (None, _) => DEFAULT.parse().expect("a filter"),
    };
    // A standard error that nobody reads is no reason to panic, which is how errors of the layer would be told.
    let lines = layer().with_writer(io::stderr).with_ansi(false).log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(filter);
    let is_set = match format {
        LogFormat::Text => registry.with(lines).try_init(),
        LogFormat::Json => {
            // What tools read must be JSON to the last line.
            std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
            registry.with(lines.json().flatten_event(true)).try_init()
        }
    };
    debug_assert!(is_set.is_ok(), "the first and only subscriber of this process");
    Ok(())
}
