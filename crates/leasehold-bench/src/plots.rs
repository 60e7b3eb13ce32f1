//! The plots on the page, as SVG that is readable on a light and on a dark background.

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::figure::{Figure, short};
use crate::results::Results;
use crate::system::System;
use crate::{Error, Result};

const SIZE: (u32, u32) = (720, 400);
/// The colour of text and axes: equally far from white and from black.
const GREY: RGBColor = RGBColor(0x80, 0x80, 0x80);

/// A line of a plot, for one system.
struct Line {
    system: System,
    points: Vec<(f64, f64)>,
}

/// Returns each plot with the name of its file.
pub(crate) fn all(results: &Results) -> Result<[(&'static str, String); 3]> {
    Ok([
        ("throughput.svg", throughput(results)?),
        ("hand-over.svg", hand_over(results)?),
        ("holds.svg", holds(results)?),
    ])
}

fn throughput(results: &Results) -> Result<String> {
    let hot = [
        ("hot-2", 2.0),
        ("hot-8", 8.0),
        ("hot-64", 64.0),
        ("hot-1024", 1024.0),
    ];
    let lines = by_scenario(results, &hot, Figure::Pairs);
    Plot {
        title: "One lock that many tasks of a process want",
        x: ("tasks", 2.0..1024.0),
        y: "pairs of acquire and release a second",
    }
    .draw(&lines)
}

fn holds(results: &Results) -> Result<String> {
    let held = [("held-1k", 1e3), ("held-10k", 1e4), ("held-100k", 1e5)];
    let lines = by_scenario(results, &held, Figure::ClientPercent);
    Plot {
        title: "CPU time of a client that holds many locks, lease 30 s",
        x: ("locks held", 1e3..1e5),
        y: "% of a core",
    }
    .draw(&lines)
}

/// Plots the share of the hand-overs that took no longer than a given delay.
fn hand_over(results: &Results) -> Result<String> {
    let line = |system: System| {
        let row = results.row("hand-over", system.name())?;
        let points = row.delays_us.iter().map(|(percent, us)| (*percent, *us));
        let points: Vec<_> = points.filter(|(percent, _)| *percent <= 99.0).collect();
        (!points.is_empty()).then_some(Line { system, points })
    };
    let lines: Vec<Line> = System::ALL.into_iter().filter_map(line).collect();
    Plot {
        title: "From a release to the grant in another process",
        x: ("% of the hand-overs that took no longer", 0.0..100.0),
        y: "microseconds",
    }
    .draw_linear(&lines)
}

fn by_scenario(results: &Results, scenarios: &[(&str, f64)], figure: Figure) -> Vec<Line> {
    let line = |system: System| {
        let point = |(name, x): &(&str, f64)| {
            let spread = results.row(name, system.name())?.spread(figure)?;
            // A logarithmic axis has no zero.
            Some((*x, spread.median.max(1e-3)))
        };
        let points: Vec<_> = scenarios.iter().filter_map(point).collect();
        (points.len() > 1).then_some(Line { system, points })
    };
    System::ALL.into_iter().filter_map(line).collect()
}

fn colour(system: System) -> RGBColor {
    match system {
        System::Leasehold => RGBColor(0xe0, 0x52, 0x2d),
        System::NoHandOver => RGBColor(0xd9, 0x95, 0x20),
        System::RustOnly => RGBColor(0xb0, 0x3a, 0x5b),
        System::OneReplica => RGBColor(0xc7, 0x6f, 0x8b),
        System::TwoReplicas => RGBColor(0x8a, 0x4b, 0x2d),
        System::OnDisk => RGBColor(0x6b, 0x5b, 0x4b),
        System::Bare => GREY,
        System::Rslock => RGBColor(0x2f, 0x9e, 0x5b),
        System::Redisson3 => RGBColor(0x8e, 0x6b, 0xd8),
        System::Redisson4 => RGBColor(0x2f, 0x85, 0xd6),
    }
}

/// The title and the axes of a plot. The y axis is always logarithmic.
struct Plot {
    title: &'static str,
    x: (&'static str, std::ops::Range<f64>),
    y: &'static str,
}

impl Plot {
    /// Draws the plot with a logarithmic x axis.
    fn draw(&self, lines: &[Line]) -> Result<String> {
        let x = self.x.1.clone().log_scale();
        self.draw_on(x, lines)
    }

    fn draw_linear(&self, lines: &[Line]) -> Result<String> {
        self.draw_on(self.x.1.clone(), lines)
    }

    fn draw_on<X>(&self, x: X, lines: &[Line]) -> Result<String>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
    {
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            let y = heights(lines).log_scale();
            let text = |size: u32| ("sans-serif", size).into_font().color(&GREY);
            let mut chart = ChartBuilder::on(&area)
                .caption(self.title, text(18))
                .margin(12)
                .margin_right(150)
                .x_label_area_size(44)
                .y_label_area_size(76)
                .build_cartesian_2d(x, y)
                .map_err(failed)?;
            chart
                .configure_mesh()
                .disable_x_mesh()
                .light_line_style(TRANSPARENT)
                .bold_line_style(GREY.mix(0.3))
                .axis_style(GREY)
                .label_style(text(13))
                .axis_desc_style(text(14))
                .x_desc(self.x.0)
                .y_desc(self.y)
                .x_label_formatter(&|x| tick(*x))
                .y_label_formatter(&|y| tick(*y))
                .draw()
                .map_err(failed)?;
            for line in lines {
                let style = colour(line.system).stroke_width(2);
                let points = line.points.iter().copied();
                let series = LineSeries::new(points, style).point_size(3);
                chart.draw_series(series).map_err(failed)?;
            }
            for (line, place) in labels(lines, |point| chart.backend_coord(&point)) {
                let anchor = Pos::new(HPos::Left, VPos::Center);
                let style = ("sans-serif", 13).into_font().color(&colour(line.system));
                let style = style.pos(anchor);
                area.draw_text(line.system.name(), &style, place)
                    .map_err(failed)?;
            }
            area.present().map_err(failed)?;
        }
        Ok(svg)
    }
}

/// Places the name of each line at the end of the line, so that names do not overlap.
fn labels(lines: &[Line], place: impl Fn((f64, f64)) -> (i32, i32)) -> Vec<(&Line, (i32, i32))> {
    const HEIGHT: i32 = 15;
    let end = |line| {
        let line: &Line = line;
        let (x, y) = place(*line.points.last()?);
        Some((line, (x + 8, y)))
    };
    let mut labels: Vec<_> = lines.iter().filter_map(end).collect();
    labels.sort_by_key(|(_, (_, y))| *y);
    for next in 1..labels.len() {
        let above = labels[next - 1].1.1;
        let (_, (_, y)) = &mut labels[next];
        *y = (*y).max(above + HEIGHT);
    }
    labels
}

/// Returns a range between whole powers of ten that contains all points.
fn heights(lines: &[Line]) -> std::ops::Range<f64> {
    let all = || lines.iter().flat_map(|line| &line.points).map(|(_, y)| *y);
    let least = all().fold(f64::INFINITY, f64::min);
    let most = all().fold(0.0, f64::max);
    if most <= 0.0 {
        return 1.0..10.0;
    }
    let low = 10_f64.powf(least.log10().floor());
    let high = 10_f64.powf(most.log10().ceil());
    low..high.max(low * 10.0)
}

/// Formats a number without trailing zeros after the decimal point.
fn tick(number: f64) -> String {
    let text = short(number);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    format!("a plot can't be drawn: {error}").into()
}
