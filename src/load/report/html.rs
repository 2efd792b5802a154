//! A report as one page that needs nothing else: no script, no font, no network. Floor 6, pure.

use super::{
    Latency, QUANTILES, Report,
    plot::{Line, Plot, Scale, linear_ticks},
    text::{Bytes, Count, Nanos},
};
use crate::{limits::PLOT_POINTS_MAX, load::Row};
use std::fmt::{self, Display, Write};

const STYLE: &str = "
:root{--bg:#fff;--fg:#1c2430;--soft:#667085;--line:#e4e7ec;--card:#f7f8fa;--a:#2563eb;--b:#d97706;--c:#dc2626}
@media(prefers-color-scheme:dark){:root{--bg:#12161c;--fg:#e6e9ee;--soft:#98a2b3;--line:#2b323c;--card:#1a2029;--a:#6ea0ff;--b:#f0a94a;--c:#ff7b72}}
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:900px;padding:0 1rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1.05rem;margin:2.2rem 0 .6rem}p.sub,.none,.legend{color:var(--soft)}p.sub{margin:.2rem 0 1.2rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:.7rem}.tiles div{background:var(--card);border-radius:8px;padding:.7rem .9rem}
.tiles b{display:block;font-size:1.35rem;font-variant-numeric:tabular-nums}.tiles span{color:var(--soft);font-size:.85rem}
.warn{border-left:4px solid var(--b);background:var(--card);padding:.5rem .9rem;margin:.5rem 0;border-radius:0 8px 8px 0}
svg{width:100%;height:auto;display:block}.tip{fill:transparent}.tip:hover{fill:var(--fg);fill-opacity:.08}svg text{fill:var(--soft);font-size:12px}text.y{text-anchor:end}text.x{text-anchor:middle}text.end{text-anchor:end}
.grid{stroke:var(--line);fill:none}.line{fill:none;stroke:var(--a);stroke-width:1.8;stroke-linejoin:round}
.legend{margin:.2rem 0;font-size:.85rem}.legend span{margin-right:1.2rem}.legend i{display:inline-block;width:14px;height:3px;background:var(--a);margin-right:.4rem;vertical-align:middle}
.line.p99,.line.since-sent{stroke:var(--b)}i.p99,i.since-sent{background:var(--b)}.line.max,.line.errors-s{stroke:var(--c)}i.max,i.errors-s{background:var(--c)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums}th,td{text-align:right;padding:.3rem .45rem;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child,td.text{text-align:left}td.text{white-space:normal}th{color:var(--soft);font-weight:500}code{font-size:.9em;overflow-wrap:anywhere}
";

/// Renders the whole page.
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    write(&mut out, report).expect("a string takes all");
    out
}

fn write(out: &mut String, report: &Report) -> fmt::Result {
    let load = &report.load;
    let title = Escaped(&load.url);
    writeln!(out, "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">")?;
    writeln!(
        out,
        "<meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>{STYLE}</style>"
    )?;
    writeln!(out, "<h1>{title}</h1>")?;
    let rate = load.rate.map(|rate| format!(", {} requests/s asked", Count(rate as u64))).unwrap_or_default();
    let began = httpdate::fmt_http_date(
        std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(report.started_unix_s),
    );
    writeln!(
        out,
        "<p class=\"sub\">{} model{rate} · {} connections · shards: {} · pipelined: {} · {:.1} s · {began}</p>",
        load.model,
        Count(load.connections as u64),
        load.shards,
        load.pipeline,
        report.elapsed_s
    )?;
    let quantile = |name| Nanos(report.latency.quantile(name)).to_string();
    writeln!(out, "<div class=\"tiles\">")?;
    for (value, name) in [
        (Count(report.rate.mean as u64).to_string(), "requests/s"),
        (quantile("p50"), "p50"),
        (quantile("p99"), "p99"),
        (quantile("p99.9"), "p99.9"),
        (Nanos(report.latency.max_ns).to_string(), "max"),
        (Count(report.failures).to_string(), "errors"),
    ] {
        writeln!(out, "<div><b>{value}</b><span>{name}</span></div>")?;
    }
    writeln!(out, "</div>")?;
    for warning in &report.warnings {
        writeln!(out, "<p class=\"warn\">{}</p>", Escaped(warning))?;
    }

    writeln!(out, "<h2>Latency by percentile</h2>")?;
    percentiles(report).write(out)?;
    latencies(out, report)?;

    let rows = coarse(&report.series);
    let x_ticks = || {
        let end = rows.last().map_or(0.0, |row| row.at_s + row.seconds);
        linear_ticks(end).into_iter().map(|tick| (tick, format!("{}", (tick * 1e3).round() / 1e3))).collect()
    };
    let line =
        |name, of: &dyn Fn(&Row) -> f64| Line { name, points: rows.iter().map(|row| (row.at_s, of(row))).collect() };
    // The last interval is cut short: its rate would be a jump that never was.
    let longest = rows.iter().map(|row| row.seconds).fold(0.0, f64::max);
    let rate = |row: &Row, count: u64| if row.seconds > 0.5 * longest { count as f64 / row.seconds } else { f64::NAN };
    writeln!(out, "<h2>Requests/s over time</h2>")?;
    let mut lines = vec![line("answers/s", &|row| rate(row, row.answers))];
    if report.failures > 0 {
        lines.push(line("errors/s", &|row| rate(row, row.errors)));
    }
    let x_label: fn(f64) -> String = |value| format!("{value:.1} s");
    let y_label: fn(f64) -> String = |value| Count(value as u64).to_string();
    Plot { x_name: "s", y_name: "requests/s", y_scale: Scale::Linear, x_ticks: x_ticks(), x_label, y_label, lines }
        .write(out)?;
    writeln!(out, "<h2>Latency over time</h2>")?;
    let lines = vec![
        line("p50", &|row| if_answered(row, row.p50_ns)),
        line("p99", &|row| if_answered(row, row.p99_ns)),
        line("max", &|row| if_answered(row, row.max_ns)),
    ];
    Plot { x_name: "s", y_name: "latency", y_scale: Scale::Log, x_ticks: x_ticks(), x_label, y_label: nanos, lines }
        .write(out)?;

    answers(out, report)?;
    details(out, report)?;
    writeln!(out, "</html>")
}

/// An interval without answers has no latency, and leaves a gap.
fn if_answered(row: &Row, ns: u64) -> f64 {
    if row.answers > 0 { ns as f64 } else { f64::NAN }
}

fn nanos(value: f64) -> String {
    Nanos(value as u64).to_string()
}

/// The whole curve; each nine gets the same width.
fn percentiles(report: &Report) -> Plot<'static> {
    let x = |q: f64| -(1.0 - q).max(1e-12).log10();
    let deepest = report.latency.count.max(10) as f64;
    let line = |name, latency: &Latency| Line {
        name,
        points: latency.curve.iter().map(|&(q, ns)| (x(q).min(deepest.log10()), ns as f64)).collect(),
    };
    let mut lines = Vec::new();
    match &report.service {
        Some(service) => lines.extend([line("since due", &report.latency), line("since sent", service)]),
        None => lines.push(line("since sent", &report.latency)),
    }
    let ticks = [("0 %", 0.0), ("90 %", 1.0), ("99 %", 2.0), ("99.9 %", 3.0), ("99.99 %", 4.0), ("99.999 %", 5.0)];
    let ticks = ticks.into_iter().filter(|tick| tick.1 <= deepest.log10());
    Plot {
        x_name: "percentile",
        y_name: "latency",
        y_scale: Scale::Log,
        x_ticks: ticks.map(|(label, at)| (at, label.to_owned())).collect(),
        x_label: |nines| format!("{} %", (1e6 * (1.0 - 10f64.powf(-nines))).round() / 1e4),
        y_label: nanos,
        lines,
    }
}

fn latencies(out: &mut String, report: &Report) -> fmt::Result {
    write!(out, "<div class=\"wide\"><table><tr><th></th><th>min</th><th>mean</th>")?;
    for (name, _) in QUANTILES {
        write!(out, "<th>{name}</th>")?;
    }
    writeln!(out, "<th>max</th></tr>")?;
    let is_open = report.service.is_some();
    let rows = [
        (if is_open { "since due" } else { "since sent" }, Some(&report.latency)),
        ("since sent", report.service.as_ref()),
        ("connect", report.connect.as_ref()),
    ];
    for (name, latency) in rows {
        let Some(latency) = latency else { continue };
        write!(out, "<tr><td>{name}</td><td>{}</td><td>{}</td>", Nanos(latency.min_ns), Nanos(latency.mean_ns as u64))?;
        for (name, _) in QUANTILES {
            write!(out, "<td>{}</td>", Nanos(latency.quantile(name)))?;
        }
        writeln!(out, "<td>{}</td></tr>", Nanos(latency.max_ns))?;
    }
    writeln!(out, "</table></div>")
}

fn answers(out: &mut String, report: &Report) -> fmt::Result {
    writeln!(
        out,
        "<h2>Answers and errors</h2>\n<div class=\"wide\"><table><tr><th>what</th><th>count</th><th></th></tr>"
    )?;
    for (status, count) in &report.statuses {
        writeln!(out, "<tr><td>status {status}</td><td>{}</td><td></td></tr>", Count(*count))?;
    }
    for error in &report.errors {
        let (what, example) = (Escaped(&error.what), Escaped(&error.example));
        writeln!(
            out,
            "<tr><td class=\"text\">{}: {what}</td><td>{}</td><td class=\"text\">first: {example}</td></tr>",
            error.kind,
            Count(error.count)
        )?;
    }
    writeln!(out, "</table></div>")
}

fn details(out: &mut String, report: &Report) -> fmt::Result {
    let (connections, client) = (&report.connections, &report.client);
    writeln!(out, "<h2>Details</h2>\n<div class=\"wide\"><table>")?;
    let rows: [(&str, String); 7] = [
        (
            "Rate",
            format!(
                "{} to {} requests/s in intervals of {} s, standard deviation {}",
                Count(report.rate.min as u64),
                Count(report.rate.max as u64),
                report.rate.interval_s,
                Count(report.rate.stdev as u64)
            ),
        ),
        (
            "Bytes",
            format!("{} received, {} sent", Bytes(report.bytes.received as f64), Bytes(report.bytes.sent as f64)),
        ),
        (
            "Concurrency",
            format!("{:.1} by Little's law, {} possible", report.concurrency.measured, report.concurrency.asked),
        ),
        (
            "Connections",
            format!(
                "{} opened; least served {}, median {}, most {}, never {}",
                Count(connections.opened),
                Count(connections.least),
                Count(connections.median),
                Count(connections.most),
                connections.never
            ),
        ),
        (
            "Client",
            format!(
                "busiest shard {:.0} % of a core, {:.2} us CPU an answer",
                client.busiest * 100.0,
                client.cpu_us_per_answer
            ),
        ),
        ("Address", report.load.address.clone()),
        ("Command", format!("everycore {} {}", report.everycore, report.command)),
    ];
    for (name, text) in rows {
        writeln!(out, "<tr><td>{name}</td><td class=\"text\"><code>{}</code></td></tr>", Escaped(&text))?;
    }
    writeln!(out, "</table></div>")
}

/// Neighbours put together until there are few enough; of latencies the longest is kept.
fn coarse(rows: &[Row]) -> Vec<Row> {
    let size = rows.len().div_ceil(PLOT_POINTS_MAX).max(1);
    let merge = |rows: &[Row]| {
        let mut all = rows[0].clone();
        for row in &rows[1..] {
            all.seconds += row.seconds;
            all.answers += row.answers;
            all.errors += row.errors;
            all.p50_ns = all.p50_ns.max(row.p50_ns);
            all.p99_ns = all.p99_ns.max(row.p99_ns);
            all.max_ns = all.max_ns.max(row.max_ns);
        }
        all
    };
    rows.chunks(size).map(merge).collect()
}

/// Text inside HTML.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '&' => f.write_str("&amp;"),
            '"' => f.write_str("&quot;"),
            c => f.write_char(c),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_escapes_what_servers_and_users_say() {
        let mut report = Report::default();
        report.load.url = "http://h/<script>".to_owned();
        report.errors.push(crate::load::report::ErrorLine { example: "<b>\"&".to_owned(), ..Default::default() });
        report.warnings.push("<i>".to_owned());
        let page = render(&report);
        assert!(!page.contains("<script>") && !page.contains("<b>\"") && !page.contains("<i>"));
        assert!(page.contains("http://h/&lt;script&gt;") && page.contains("&lt;b&gt;&quot;&amp;"));
        assert!(page.contains("Too short a run to plot"));
    }

    #[test]
    fn long_series_is_shown_coarser_and_keeps_its_peaks() {
        let rows: Vec<Row> = (0..10_000_u64)
            .map(|i| Row { at_s: i as f64, seconds: 1.0, answers: 5, max_ns: i, ..Row::default() })
            .collect();
        let few = coarse(&rows);
        assert!(few.len() <= PLOT_POINTS_MAX);
        assert_eq!(few.iter().map(|row| row.answers).sum::<u64>(), 50_000);
        assert_eq!(few.last().map(|row| row.max_ns), Some(9_999));
    }
}
