//! What is seen while a run lasts: a bar on a terminal, a line a second elsewhere. Floor 6.

use super::{
    plan::Plan,
    report::text::{Count, Nanos},
    run::Row,
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    io::{IsTerminal, Write},
    time::Duration,
};

/// Shows a run on standard error.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    is_quiet: bool,
    requests: Option<u64>,
    /// What was seen since the last line.
    since: Row,
    answers: u64,
}

/// Between two lines where there is no terminal.
const LINE_EVERY: f64 = 1.0;

impl Progress {
    /// Begins to show it, or nothing if `is_quiet`.
    pub fn new(plan: &Plan, is_quiet: bool) -> Progress {
        let is_terminal = std::io::stderr().is_terminal() && !is_quiet;
        let bar = is_terminal.then(|| {
            let length = match (plan.extent.requests, plan.extent.duration) {
                (None, Some(duration)) => u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
                (requests, _) => requests.unwrap_or(0),
            };
            let template = "{elapsed_precise} {wide_bar:.cyan/blue} {percent:>3} %  {msg}";
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr()).with_style(style);
            bar.set_message(if plan.warmup.is_zero() { "connecting" } else { "warming up" });
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Progress { bar, is_quiet, requests: plan.extent.requests, since: Row::default(), answers: 0 }
    }

    /// Takes a complete interval in.
    pub fn show(&mut self, row: &Row) {
        self.answers += row.answers + row.errors;
        if let Some(bar) = &self.bar {
            let end_ms = ((row.at_s + row.seconds) * 1e3) as u64;
            bar.set_position(if self.requests.is_some() { self.answers } else { end_ms });
            bar.set_message(message(row));
            return;
        }
        let since = &mut self.since;
        since.seconds += row.seconds;
        since.answers += row.answers;
        since.errors += row.errors;
        since.max_ns = since.max_ns.max(row.max_ns);
        (since.p50_ns, since.p99_ns) = (row.p50_ns, row.p99_ns);
        if since.seconds >= 0.999 * LINE_EVERY {
            if !self.is_quiet {
                // Whoever closed the other end does not want to know.
                let _ = writeln!(std::io::stderr(), "{:>7.1} s  {}", row.at_s + row.seconds, message(since));
            }
            self.since = Row::default();
        }
    }

    /// Ends it: what is printed next stands alone.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn message(row: &Row) -> String {
    format!(
        "{:>10}/s  p50 {:>7}  p99 {:>7}  max {:>7}  errors {}",
        Count(row.rate() as u64).to_string(),
        Nanos(row.p50_ns).to_string(),
        Nanos(row.p99_ns).to_string(),
        Nanos(row.max_ns).to_string(),
        Count(row.errors)
    )
}
