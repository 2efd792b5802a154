//! The time series as comma-separated values (RFC 4180, with LF). Floor 6, pure.

use super::Report;
use crate::load::Row;
use std::fmt::Write;

/// One line an interval, times in seconds and nanoseconds.
pub fn render(report: &Report) -> String {
    let mut out = String::from("at_s,seconds,answers,errors,received_bytes,requests_per_s,p50_ns,p99_ns,max_ns\n");
    for row in &report.series {
        let Row { at_s, seconds, answers, errors, received, p50_ns, p99_ns, max_ns } = row;
        writeln!(
            out,
            "{at_s:.3},{seconds:.3},{answers},{errors},{received},{:.1},{p50_ns},{p99_ns},{max_ns}",
            row.rate()
        )
        .expect("a string takes all");
    }
    out
}
