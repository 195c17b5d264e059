//! Line charts as inline SVG.

use std::fmt::Write;

use crate::{
    html::Escaped,
    number::short,
    scale::{AxisRange, Scale},
};

/// A line chart with common axes.
#[derive(Debug, Clone, Default)]
pub struct LineChart {
    /// The caption above the chart.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The series. From the ninth on, colours repeat.
    pub series: Vec<Series>,
    /// Vertical lines, each at an x value with a label, such as a cutoff or a change.
    pub marks: Vec<(f64, String)>,
}

/// An axis with its label.
#[derive(Debug, Clone, Default)]
pub struct Axis {
    label: String,
    scale: Scale,
}

impl Axis {
    /// A linear axis.
    pub fn linear(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), scale: Scale::Linear }
    }

    /// A logarithmic axis.
    pub fn log(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), scale: Scale::Log }
    }
}

/// A line, a band or a horizontal level.
#[derive(Debug, Clone)]
pub struct Series {
    name: String,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Line { points: Vec<(f64, f64)>, dashed: bool },
    Band(Vec<(f64, f64, f64)>),
    Level(f64),
}

impl Series {
    /// A solid line through the points (x, y).
    pub fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), kind: Kind::Line { points, dashed: false } }
    }

    /// A dashed line, for comparison.
    pub fn dashed(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), kind: Kind::Line { points, dashed: true } }
    }

    /// A band of points (x, low, high).
    pub fn band(name: impl Into<String>, points: Vec<(f64, f64, f64)>) -> Series {
        Series { name: name.into(), kind: Kind::Band(points) }
    }

    /// A horizontal dashed line.
    pub fn level(name: impl Into<String>, height: f64) -> Series {
        Series { name: name.into(), kind: Kind::Level(height) }
    }

    fn xs(&self) -> Vec<f64> {
        match &self.kind {
            Kind::Line { points, .. } => points.iter().map(|p| p.0).collect(),
            Kind::Band(points) => points.iter().map(|p| p.0).collect(),
            Kind::Level(_) => Vec::new(),
        }
    }

    fn ys(&self) -> Vec<f64> {
        match &self.kind {
            Kind::Line { points, .. } => points.iter().map(|p| p.1).collect(),
            Kind::Band(points) => points.iter().flat_map(|p| [p.1, p.2]).collect(),
            Kind::Level(height) => vec![*height],
        }
    }
}

/// The most points that are drawn of a line. Of a longer line, each stretch's lowest and highest point
/// are drawn.
const MAX_POINTS: usize = 600;

/// The most points of a line that have a tooltip.
const MAX_TIPS: usize = 60;

/// Colours in the style sheet.
const COLOURS: usize = 8;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 18.0;
const BOTTOM: f64 = 46.0;

impl LineChart {
    /// The chart as an HTML figure.
    pub(crate) fn html(&self) -> String {
        let (x, y) = (self.range(&self.x, Series::xs), self.range(&self.y, Series::ys));
        let plot = Plot { x, y };
        let mut html = format!("<figure>\n<figcaption>{}</figcaption>\n", Escaped(&self.title));
        html += &self.legend();
        let _ = writeln!(
            html,
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            Escaped(&self.title)
        );
        html += &plot.axes(&self.x.label, &self.y.label);
        for (i, series) in self.series.iter().enumerate() {
            html += &plot.series(series, i % COLOURS);
        }
        html += &plot.marks(&self.marks);
        html + "</svg>\n</figure>\n"
    }

    fn range(&self, axis: &Axis, values: fn(&Series) -> Vec<f64>) -> AxisRange {
        AxisRange::covering(axis.scale, self.series.iter().flat_map(values))
    }

    fn legend(&self) -> String {
        let mut html = "<div class=\"legend\">".to_owned();
        for (i, series) in self.series.iter().enumerate() {
            let kind = match series.kind {
                Kind::Line { dashed: false, .. } => "line",
                Kind::Line { dashed: true, .. } | Kind::Level(_) => "line dash",
                Kind::Band(_) => "band",
            };
            let _ = write!(
                html,
                "<span><i class=\"{kind} c{}\"></i>{}</span>",
                i % COLOURS,
                Escaped(&series.name)
            );
        }
        html + "</div>\n"
    }
}

/// The plot area.
struct Plot {
    x: AxisRange,
    y: AxisRange,
}

impl Plot {
    fn across(&self, x: f64) -> Option<f64> {
        Some(LEFT + self.x.position(x)? * (WIDTH - LEFT - RIGHT))
    }

    fn up(&self, y: f64) -> Option<f64> {
        Some(HEIGHT - BOTTOM - self.y.position(y)?.clamp(-0.02, 1.02) * (HEIGHT - TOP - BOTTOM))
    }

    fn at(&self, (x, y): (f64, f64)) -> Option<(f64, f64)> {
        Some((self.across(x)?, self.up(y)?))
    }

    fn axes(&self, x_label: &str, y_label: &str) -> String {
        let (floor, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        let mut svg = String::new();
        for tick in self.y.ticks(6) {
            let Some(at) = self.up(tick) else { continue };
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/><text class=\"tick\" x=\"{:.1}\" \
                 y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                short(tick)
            );
        }
        for tick in self.x.ticks(7) {
            let Some(at) = self.across(tick) else { continue };
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{at:.1} {TOP}V{floor}\"/><text class=\"tick\" \
                 x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                floor + 17.0,
                short(tick)
            );
        }
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{LEFT} {TOP}V{floor}H{right}\"/>\n<text class=\"label\" \
             x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n<text class=\"label\" \
             transform=\"translate(13 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 8.0,
            Escaped(x_label),
            (TOP + floor) / 2.0,
            Escaped(y_label)
        );
        svg
    }

    fn series(&self, series: &Series, colour: usize) -> String {
        match &series.kind {
            Kind::Line { points, dashed } => {
                let class = if *dashed { "line dash" } else { "line" };
                let path = path(thinned(points).into_iter().filter_map(|point| self.at(point)));
                let tips = self.tips(&series.name, points, colour);
                format!("<path class=\"{class} c{colour}\" d=\"{path}\"/>\n{tips}")
            }
            Kind::Band(points) => {
                let low = points.iter().map(|p| (p.0, p.1));
                let high = points.iter().rev().map(|p| (p.0, p.2));
                let path = path(low.chain(high).filter_map(|point| self.at(point)));
                format!("<path class=\"band c{colour}\" d=\"{path}Z\"/>\n")
            }
            Kind::Level(height) => {
                let Some(at) = self.up(*height) else { return String::new() };
                let (name, value) = (Escaped(&series.name), short(*height));
                format!(
                    "<path class=\"line dash c{colour}\" d=\"M{LEFT} {at:.1}H{:.1}\"><title>{name}: \
                     {value}</title></path>\n",
                    WIDTH - RIGHT
                )
            }
        }
    }

    fn tips(&self, name: &str, points: &[(f64, f64)], colour: usize) -> String {
        let mut svg = String::new();
        for &(x, y) in points.iter().step_by(points.len().div_ceil(MAX_TIPS).max(1)) {
            let Some((across, up)) = self.at((x, y)) else { continue };
            let _ = writeln!(
                svg,
                "<circle class=\"tip c{colour}\" cx=\"{across:.1}\" cy=\"{up:.1}\" r=\"6\">\
                 <title>{}: {} at {}</title></circle>",
                Escaped(name),
                short(y),
                short(x)
            );
        }
        svg
    }

    /// Vertical lines. A label that would overlap an earlier one is shown as a tooltip only.
    fn marks(&self, marks: &[(f64, String)]) -> String {
        const LETTER: f64 = 6.8;
        let mut taken: Vec<(f64, f64)> = Vec::new();
        let mut svg = String::new();
        for (at, label) in marks {
            let Some(at) = self.across(*at) else { continue };
            let (width, label) = (LETTER * label.chars().count() as f64, Escaped(label));
            let start = if at > 0.6 * WIDTH { at - 4.0 - width } else { at + 4.0 };
            let _ = write!(
                svg,
                "<path class=\"mark\" d=\"M{at:.1} {TOP}V{:.1}\"><title>{label}</title></path>",
                HEIGHT - BOTTOM
            );
            if taken.iter().all(|(from, to)| start > *to || start + width < *from) {
                taken.push((start, start + width));
                let _ = write!(
                    svg,
                    "<text class=\"mark\" x=\"{start:.1}\" y=\"{:.1}\">{label}</text>",
                    TOP - 5.0
                );
            }
            svg.push('\n');
        }
        svg
    }
}

fn path(points: impl Iterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    for (i, (x, y)) in points.enumerate() {
        let _ = write!(path, "{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' });
    }
    path
}

/// At most about [`MAX_POINTS`] points, with the extremes of every stretch.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= MAX_POINTS {
        return points.to_vec();
    }
    let mut kept = Vec::with_capacity(MAX_POINTS);
    for stretch in points.chunks(points.len().div_ceil(MAX_POINTS / 2)) {
        let by_height = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let (low, high) = (stretch.iter().min_by(by_height), stretch.iter().max_by(by_height));
        let mut both: Vec<(f64, f64)> = low.into_iter().chain(high).copied().collect();
        both.sort_by(|a, b| a.0.total_cmp(&b.0));
        both.dedup();
        kept.extend(both);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_axes_a_legend_and_tooltips() {
        let chart = LineChart {
            title: "Rate <against> cutoff".into(),
            x: Axis::linear("cutoff"),
            y: Axis::log("rate"),
            series: vec![
                Series::line("measured", vec![(1.0, 0.1), (2.0, 10.0)]),
                Series::level("full", 1.0),
                Series::band("range", vec![(1.0, 0.1, 0.2), (2.0, 5.0, 10.0)]),
            ],
            marks: vec![(1.5, "best".into())],
        };
        let html = chart.html();
        for part in [
            "Rate &lt;against&gt; cutoff",
            "<title>measured: 10 at 2</title>",
            "<title>full: 1</title>",
            ">best</text>",
            ">range</span>",
            "class=\"band c2\"",
        ] {
            assert!(html.contains(part), "{part} in {html}");
        }
        assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
    }

    #[test]
    fn a_chart_without_points_is_empty_and_not_broken() {
        for y in [Axis::linear("y"), Axis::log("y")] {
            let series = vec![Series::line("none", vec![]), Series::line("zero", vec![(1.0, 0.0)])];
            let html = LineChart { y, series, ..LineChart::default() }.html();
            assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
        }
    }

    #[test]
    fn spikes_survive_thinning() {
        let mut points: Vec<(f64, f64)> = (0..10_000).map(|i| (f64::from(i), 1.0)).collect();
        points[7777].1 = 45.0;
        let kept = thinned(&points);
        assert!(kept.len() <= MAX_POINTS + 2 && kept.contains(&(7777.0, 45.0)));
        assert!(kept.is_sorted_by(|a, b| a.0 <= b.0));
    }
}
