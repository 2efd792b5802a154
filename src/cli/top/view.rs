//! `top` on the screen. Floor 8.

use super::model::{Column, Level, Model, Row};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Cell, Paragraph, Row as TableRow, Table},
};

/// Lines that are no rows: two of totals, one free, the table's head, the keys.
pub(super) const LINES_AROUND: u16 = 5;
/// Width of a shard's graph.
const GRAPH: usize = 24;

pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, url: &str) {
    let [head, _, table, keys] =
        Layout::vertical([Constraint::Length(2), Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(vec![first_line(model, url), totals(model)]), head);
    draw_table(frame, model, table);
    let keys_text = " q quit  p pause  ←→ sort  r reverse  ↑↓ scroll";
    frame.render_widget(Paragraph::new(keys_text).style(Style::new().add_modifier(Modifier::DIM)), keys);
}

fn first_line(model: &Model, url: &str) -> Line<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut spans = vec![Span::styled("everycore", bold)];
    if let Some(last) = &model.last {
        spans.push(Span::raw(format!(" {} at {url}, up {}", last.version, uptime(last.server.uptime_s))));
    } else {
        spans.push(Span::raw(format!(" at {url}")));
    }
    let red = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
    match (&model.error, &model.last) {
        (Some(error), _) => spans.push(Span::styled(format!("  ■ no answer: {error}"), red)),
        (None, None) => spans.push(Span::raw("  asking")),
        (None, Some(last)) if last.server.is_draining => {
            spans.push(Span::styled("  ▲ draining", Style::new().fg(Color::Yellow)));
        }
        (None, Some(_)) => {}
    }
    if model.is_paused {
        spans.push(Span::styled("  paused", bold));
    }
    Line::from(spans)
}

fn totals(model: &Model) -> Line<'static> {
    let Some(last) = &model.last else { return Line::default() };
    let sum = |of: fn(&Row) -> f64| model.rows.iter().map(of).sum::<f64>();
    let times = &last.service_time_recent;
    Line::from(format!(
        "{}/s  {} of {} connections  p50 {}  p99 {}  p99.9 {}  busy {:.2} of {}  in {}/s  out {}/s  5xx {}",
        count(sum(|row| row.requests)),
        last.total.connections.active,
        last.server.connections_max,
        time(times.p50_ns),
        time(times.p99_ns),
        time(times.p999_ns),
        sum(|row| row.busy),
        model.rows.len(),
        bytes(sum(|row| row.received)),
        bytes(sum(|row| row.sent)),
        last.total.responses.server_error,
    ))
}

fn draw_table(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let highest = model.history.values().flatten().copied().max().unwrap_or(0);
    let rows = model.rows.iter().skip(model.top).map(|row| {
        let style = match row.level {
            Level::Good => Style::new(),
            Level::Amber => Style::new().fg(Color::Yellow),
            Level::Red => Style::new().fg(Color::Red),
        };
        TableRow::new(cells(row, model, highest)).style(style)
    });
    let titles = ["shard", "req/s", "busy", "conns", "p50", "p99", "p99.9", "turn", "queue"];
    let titles = titles.iter().zip(Column::ALL).map(|(title, column)| {
        let arrow = if (column == Column::Shard) != model.is_reversed { "↑" } else { "↓" };
        match model.sort == column {
            true => right(format!("{title}{arrow}")).style(Style::new().add_modifier(Modifier::BOLD)),
            false => right((*title).to_owned()),
        }
    });
    let head = TableRow::new(titles.chain([Cell::from("")])).style(Style::new().add_modifier(Modifier::UNDERLINED));
    // In 80 columns all numbers have room; the graph takes what is left.
    let numbers = [12, 8, 5, 6, 8, 8, 8, 8, 6].map(Constraint::Length);
    let widths = numbers.into_iter().chain([Constraint::Max(GRAPH as u16)]);
    frame.render_widget(Table::new(rows, widths).header(head), area);
}

fn cells(row: &Row, model: &Model, highest: u64) -> Vec<Cell<'static>> {
    // Not by colour alone.
    let mark = match row.level {
        Level::Good => " ",
        Level::Amber => "▲",
        Level::Red => "■",
    };
    let name = match row.core {
        Some(core) if core != row.shard => format!("{mark} {} on {core}", row.shard),
        _ => format!("{mark} {}", row.shard),
    };
    let mut cells = vec![right(name)];
    if row.is_missing {
        cells.push(right("silent".to_owned()));
        return cells;
    }
    let values = [
        count(row.requests),
        format!("{:.0}%", row.busy * 100.0),
        row.connections.to_string(),
        time(row.p50_ns),
        time(row.p99_ns),
        time(row.p999_ns),
        time(row.turn_ns),
        row.queue.to_string(),
    ];
    cells.extend(values.map(right));
    let history = model.history.get(&row.shard).into_iter().flatten().copied().collect::<Vec<_>>();
    cells.push(Cell::from(graph(&history, highest)));
    cells
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

/// The last values as bars of eight heights, the same scale for all shards.
fn graph(values: &[u64], highest: u64) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let latest = &values[values.len().saturating_sub(GRAPH)..];
    latest.iter().map(|&value| BARS[(value * 8).div_ceil(highest.max(1)) as usize]).collect()
}

// ---- numbers -------------------------------------------------------------------------------------

/// Three digits.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let (mut value, mut unit) = (value, 0);
    while value >= 999.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{}", units[unit])
}

fn count(value: f64) -> String {
    scaled(value, 1000.0, &["", "k", "M", "G"])
}

fn bytes(value: f64) -> String {
    scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB"])
}

fn time(ns: u64) -> String {
    match ns {
        0 => "-".into(),
        _ => scaled(ns as f64, 1000.0, &["ns", "us", "ms", "s"]),
    }
}

fn uptime(seconds: u64) -> String {
    match seconds {
        86_400.. => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
        3600.. => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        60.. => format!("{}m {}s", seconds / 60, seconds % 60),
        _ => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::model::tests::snapshot;
    use ratatui::{Terminal, backend::TestBackend};

    fn screen(model: &Model, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen in memory");
        terminal.draw(|frame| draw(frame, model, "http://x")).expect("it draws");
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    #[test]
    fn screen_shows_totals_and_a_line_for_each_shard() {
        let mut model = Model::default();
        assert_eq!(screen(&model, 60, 6)[0], "everycore at http://x  asking");
        model.take(Ok(snapshot(2, 99)));
        let mut now = snapshot(3, 100);
        now.shards.remove(2);
        now.missing = vec![2];
        now.shards[1].counters.driver.turn_max_60s_ns = 150_000_000;
        model.take(Ok(now));
        let expected = [
            "everycore 0.1.0 at http://x, up 1m 40s",
            "300/s  24 of 1000 connections  p50 -  p99 -  p99.9 -  busy 0.30 of 3  in 0B/s  out 4.00KiB/s  5xx 0",
            "",
            "      shard↑    req/s  busy  conns      p50      p99    p99.9     turn  queue",
            "      0 on 4      100   10%      9   21.0us    180us   2.50ms        -      0  ▄",
            "    ■ 1 on 5      200   20%      8   21.0us    360us   2.50ms    150ms      0  █",
            "         ■ 2   silent",
            "",
            " q quit  p pause  ←→ sort  r reverse  ↑↓ scroll",
        ];
        assert_eq!(screen(&model, 120, 9), expected);
    }

    #[test]
    fn screen_says_when_nobody_answers_and_when_it_is_paused() {
        let mut model = Model::default();
        model.take(Ok(snapshot(40, 10)));
        model.take(Err("refused".into()));
        model.is_paused = true;
        model.scroll(35, 5);
        let screen = screen(&model, 80, 10);
        assert_eq!(screen[0], "everycore 0.1.0 at http://x, up 10s  ■ no answer: refused  paused");
        assert_eq!(screen[4].trim(), "35 on 39        0    0%      4   21.0us   6.48ms   2.50ms        -      0");
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, expected) in
            [(0.0, "0"), (999.4, "999"), (999.5, "1.00k"), (12_345.0, "12.3k"), (999_499.0, "999k"), (1e6, "1.00M")]
        {
            assert_eq!(count(value), expected, "{value}");
        }
        assert_eq!(
            (bytes(1024.0), time(1_000), time(150_000_000), time(0)),
            ("1.00KiB".into(), "1.00us".into(), "150ms".into(), "-".into())
        );
        assert_eq!(
            (uptime(59), uptime(61), uptime(3600), uptime(90_000)),
            ("59s".into(), "1m 1s".into(), "1h 0m".into(), "1d 1h".into())
        );
    }

    #[test]
    fn graph_is_as_high_as_the_highest_of_all() {
        assert_eq!(graph(&[0, 1, 4, 8], 8), " ▁▄█");
        assert_eq!(graph(&[0, 0], 0), "  ");
        assert_eq!(graph(&vec![8; 100], 16).chars().count(), GRAPH);
    }
}
