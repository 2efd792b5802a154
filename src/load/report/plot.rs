//! Line plots as SVG text. Floor 6, pure.

use std::fmt::{self, Write};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 42.0;
/// Room for a label of the x axis.
const TICK_LABEL: f64 = 56.0;

/// How values become positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    Log,
}

/// One line of a plot.
pub(super) struct Line {
    /// In the legend, and the CSS class with a dash for each blank.
    pub(super) name: &'static str,
    /// Where y is no number, the line has a gap.
    pub(super) points: Vec<(f64, f64)>,
}

/// A plot of some lines over one x axis.
pub(super) struct Plot<'a> {
    pub(super) x_name: &'a str,
    pub(super) y_name: &'a str,
    pub(super) y_scale: Scale,
    /// Positions and labels of the x axis.
    pub(super) x_ticks: Vec<(f64, String)>,
    /// Of the values, where a point is pointed at.
    pub(super) x_label: fn(f64) -> String,
    pub(super) y_label: fn(f64) -> String,
    pub(super) lines: Vec<Line>,
}

impl Plot<'_> {
    /// Appends the SVG element, or a note that there is nothing to show.
    pub(super) fn write(&self, out: &mut String) -> fmt::Result {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        if points().filter(|point| !point.1.is_nan()).count() < 2 {
            return writeln!(out, "<p class=\"none\">Too short a run to plot.</p>");
        }
        let (x_low, x_high) = bounds(points().map(|point| point.0).chain(self.x_ticks.iter().map(|tick| tick.0)));
        let (y_low, y_high) = match self.y_scale {
            Scale::Linear => (0.0, bounds(points().map(|point| point.1)).1 * 1.05),
            Scale::Log => bounds(points().filter(|point| !point.1.is_nan()).map(|point| point.1.max(1.0))),
        };
        let ticks = match self.y_scale {
            Scale::Linear => linear_ticks(y_high),
            Scale::Log => log_ticks(y_low, y_high),
        };
        let (y_low, y_high) = match (self.y_scale, ticks.first(), ticks.last()) {
            (Scale::Log, Some(&first), Some(&last)) => (y_low.min(first), y_high.max(last)),
            _ => (y_low, y_high),
        };
        let share = |value: f64, low: f64, high: f64| (value - low) / (high - low).max(f64::MIN_POSITIVE);
        let x = |value: f64| LEFT + share(value, x_low, x_high) * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| {
            let share = match self.y_scale {
                Scale::Linear => share(value, y_low, y_high),
                Scale::Log => share(value.max(1.0).ln(), y_low.ln(), y_high.ln()),
            };
            HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
        };
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        writeln!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{} over {}\">",
            self.y_name, self.x_name
        )?;
        for tick in &ticks {
            let (at, label) = (y(*tick), (self.y_label)(*tick));
            writeln!(out, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/>")?;
            writeln!(out, "<text class=\"y\" x=\"{}\" y=\"{:.1}\">{label}</text>", LEFT - 8.0, at + 4.0)?;
        }
        for (tick, label) in &self.x_ticks {
            let at = x(*tick);
            writeln!(out, "<path class=\"grid\" d=\"M{at:.1} {bottom}v5\"/>")?;
            let end = if at > right - TICK_LABEL / 2.0 { " end" } else { "" }; // or it would be cut off
            writeln!(out, "<text class=\"x{end}\" x=\"{at:.1}\" y=\"{}\">{label}</text>", bottom + 18.0)?;
        }
        writeln!(
            out,
            "<text class=\"x\" x=\"{}\" y=\"{}\">{}</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 6.0,
            self.x_name
        )?;
        for line in &self.lines {
            write!(out, "<path class=\"line {}\" d=\"", class(line.name))?;
            let mut step = 'M';
            for point in &line.points {
                if point.1.is_nan() {
                    step = 'M';
                    continue;
                }
                write!(out, "{step}{:.1} {:.1}", x(point.0), y(point.1))?;
                step = 'L';
            }
            writeln!(out, "\"/>")?;
        }
        self.tips(out, x)?;
        writeln!(out, "</svg>\n<p class=\"legend\">")?;
        for line in &self.lines {
            writeln!(out, "<span><i class=\"{}\"></i>{}</span>", class(line.name), line.name)?;
        }
        writeln!(out, "</p>")
    }
}

impl Plot<'_> {
    /// A column around each point of the first line, which shows the values of all lines there when it is pointed at.
    fn tips(&self, out: &mut String, x: impl Fn(f64) -> f64) -> fmt::Result {
        let places: Vec<f64> = self.lines.iter().take(1).flat_map(|line| &line.points).map(|point| point.0).collect();
        let middle = |a: usize, b: usize| (x(places[a]) + x(places[b])) / 2.0;
        for (index, &place) in places.iter().enumerate() {
            let values = self.lines.iter().filter_map(|line| {
                let point = line.points.get(index).filter(|point| point.0 == place && !point.1.is_nan())?;
                Some(format!("{} {}", line.name, (self.y_label)(point.1)))
            });
            let values: Vec<_> = values.collect();
            let left = middle(index.saturating_sub(1), index);
            let width = middle(index, (index + 1).min(places.len() - 1)) - left;
            writeln!(
                out,
                "<rect class=\"tip\" x=\"{left:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{}\"><title>{}: {}</title></rect>",
                HEIGHT - TOP - BOTTOM,
                (self.x_label)(place),
                values.join(", ")
            )?;
        }
        Ok(())
    }
}

fn class(name: &str) -> String {
    name.replace([' ', '/'], "-")
}

fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}

/// About five round numbers from 0 up to `high`.
pub(super) fn linear_ticks(high: f64) -> Vec<f64> {
    if high.is_nan() || high <= 0.0 {
        return vec![0.0];
    }
    let rough = high / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power).find(|&step| step >= rough).unwrap_or(rough);
    (0..).map(|index| f64::from(index) * step).take_while(|&tick| tick <= high).collect()
}

/// The powers of ten around `low` and `high`.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    (first..=last.max(first + 1)).map(|power| 10f64.powi(power)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_values() {
        assert_eq!(linear_ticks(10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(linear_ticks(123_456.0), [0.0, 50_000.0, 100_000.0]);
        assert_eq!(linear_ticks(0.0), [0.0]);
        assert_eq!(log_ticks(150.0, 9_000.0), [100.0, 1_000.0, 10_000.0]);
        assert_eq!(log_ticks(100.0, 100.0), [100.0, 1_000.0]);
    }

    #[test]
    fn plot_stays_inside_its_frame() {
        for y_scale in [Scale::Linear, Scale::Log] {
            let plot = Plot {
                x_name: "x",
                y_name: "y",
                y_scale,
                x_ticks: vec![(0.0, "0".into())],
                x_label: |value| format!("at {value}"),
                y_label: |value| format!("{value} ms"),
                lines: vec![Line {
                    name: "p50",
                    points: vec![(0.0, 0.0), (5.0, 3_000.0), (7.0, f64::NAN), (9.0, 7.0)],
                }],
            };
            let mut out = String::new();
            plot.write(&mut out).expect("a string takes all");
            assert!(out.contains("<title>at 5: p50 3000 ms</title>") && out.contains("<title>at 7: </title>"), "{out}");
            let path = out.split("class=\"line p50\" d=\"M").nth(1).and_then(|rest| rest.split('"').next());
            for point in path.expect("a line").split(['L', 'M']) {
                let (x, y) = point.split_once(' ').expect("a point");
                let (x, y): (f64, f64) = (x.parse().expect("a number"), y.parse().expect("a number"));
                assert!((LEFT..=WIDTH - RIGHT).contains(&x) && (TOP..=HEIGHT - BOTTOM).contains(&y), "{point}");
            }
        }
    }
}
