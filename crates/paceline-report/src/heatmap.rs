//! Heat maps: one row per worker, one column per round.

use std::fmt::Write;

use crate::{
    html::Escaped,
    number::short,
    palette::{self, ABSENT},
    scale::{AxisRange, Scale},
};

/// The most pixels across and down. With more cells, each pixel shows the largest of several cells.
const MAX_PIXELS: usize = 2000;

/// One cell of a heat map.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeatmapCell {
    /// No value.
    Absent,
    /// This value.
    Value(f64),
    /// At least this value.
    LowerBound(f64),
}

/// A heat map of positive values on a logarithmic colour scale.
pub struct Heatmap {
    /// The caption above the heat map.
    pub title: String,
    /// The label of the columns.
    pub x: String,
    /// The label of the rows.
    pub y: String,
    /// The label of the colour scale.
    pub values: String,
    pixels: Pixels,
}

/// The cells, merged to at most [`MAX_PIXELS`] in each direction.
struct Pixels {
    rows: usize,
    columns: usize,
    /// Cells per pixel, down and across.
    per_pixel: (usize, usize),
    width: usize,
    cells: Vec<HeatmapCell>,
}

const WIDTH: f64 = 1120.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 14.0;
const BOTTOM: f64 = 46.0;

impl Heatmap {
    /// A heat map of `rows` × `columns` cells, each given by `cell(row, column)`.
    pub fn new(
        title: impl Into<String>,
        (rows, columns): (usize, usize),
        cell: impl Fn(usize, usize) -> HeatmapCell,
    ) -> Heatmap {
        let per_pixel = (rows.div_ceil(MAX_PIXELS).max(1), columns.div_ceil(MAX_PIXELS).max(1));
        let (height, width) = (rows.div_ceil(per_pixel.0), columns.div_ceil(per_pixel.1));
        let mut cells = vec![HeatmapCell::Absent; width * height];
        for column in 0..columns {
            for row in 0..rows {
                let pixel = &mut cells[row / per_pixel.0 * width + column / per_pixel.1];
                *pixel = pixel.or_larger(cell(row, column));
            }
        }
        let pixels = Pixels { rows, columns, per_pixel, width, cells };
        let [x, y, values] = Default::default();
        Heatmap { title: title.into(), x, y, values, pixels }
    }

    /// The heat map as a figure across the whole page.
    pub(crate) fn html(&self) -> String {
        let Pixels { rows, columns, per_pixel, width, cells } = &self.pixels;
        let range = self.pixels.range();
        let colours: Vec<u8> = cells.iter().map(|cell| cell.colour(&range)).collect();
        let height = (*rows as f64 * 6.0).clamp(160.0, 460.0);
        let (floor, across) = (height + 8.0, WIDTH - LEFT - RIGHT);
        let pixelated = (cells.len() / width) as f64 <= height && *width as f64 <= across;
        let mut html = format!(
            "<figure class=\"wide\">\n<figcaption>{}</figcaption>\n{}<svg viewBox=\"0 0 {WIDTH} \
             {:.0}\" role=\"img\" aria-label=\"{0}\">\n<image x=\"{LEFT}\" y=\"8\" \
             width=\"{across}\" height=\"{height}\" preserveAspectRatio=\"none\"{} href=\"{}\"/>\n",
            Escaped(&self.title),
            self.legend(&range),
            height + 8.0 + BOTTOM,
            if pixelated { " class=\"pixels\"" } else { "" },
            palette::data_uri(*width, cells.len() / width, &colours),
        );
        html += &self.axes(floor, across, *rows as f64, *columns as f64);
        html += "</svg>\n";
        if *per_pixel != (1, 1) {
            let _ = writeln!(
                html,
                "<p class=\"note\">A dot is the largest of {} × {} cells.</p>",
                per_pixel.0, per_pixel.1
            );
        }
        html + "</figure>\n"
    }

    fn axes(&self, floor: f64, across: f64, rows: f64, columns: f64) -> String {
        let mut svg = String::new();
        for tick in AxisRange::new(Scale::Linear, 0.0, columns).ticks(8) {
            let at = LEFT + tick / columns * across;
            let _ = writeln!(
                svg,
                "<text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                floor + 17.0,
                short(tick)
            );
        }
        for tick in AxisRange::new(Scale::Linear, 0.0, rows).ticks(6) {
            let at = 8.0 + tick / rows * (floor - 8.0);
            let _ = writeln!(
                svg,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                short(tick)
            );
        }
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{LEFT} 8V{floor}H{:.1}\"/>\n<text class=\"label\" \
             x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n<text class=\"label\" \
             transform=\"translate(13 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            LEFT + across,
            LEFT + across / 2.0,
            floor + 38.0,
            Escaped(&self.x),
            floor / 2.0,
            Escaped(&self.y)
        );
        svg
    }

    /// The colour scale with its lowest and highest value.
    fn legend(&self, range: &AxisRange) -> String {
        let stops: Vec<String> = (0..=8).map(|i| palette::css(f64::from(i) / 8.0)).collect();
        let (low, high) = range.ends();
        let mut html = format!(
            "<div class=\"legend\"><span>{}</span><span>{} <i class=\"ramp\" style=\"background:\
             linear-gradient(90deg,{})\"></i> {}</span>",
            Escaped(&self.values),
            short(low),
            stops.join(","),
            short(high)
        );
        if self.pixels.cells.iter().any(|cell| matches!(cell, HeatmapCell::LowerBound(_))) {
            html += "<span><i class=\"censored\"></i>cut off: longer than this</span>";
        }
        if self.pixels.cells.contains(&HeatmapCell::Absent) {
            html += "<span><i class=\"absent\"></i>not there</span>";
        }
        html + "</div>\n"
    }
}

impl Pixels {
    /// The range of the colour scale: the 1st to the 99.5th percentile of all values, and at least
    /// 10 % wide. Neither an outlier nor noise uses up the colours.
    fn range(&self) -> AxisRange {
        let mut values: Vec<f64> = self.cells.iter().filter_map(|cell| cell.value()).collect();
        if values.is_empty() {
            return AxisRange::new(Scale::Log, 1.0, 2.0);
        }
        values.sort_unstable_by(f64::total_cmp);
        let at = |q: f64| values[((values.len() - 1) as f64 * q) as usize];
        let (low, high) = (at(0.01), at(0.995));
        let middle = (low * high).sqrt();
        AxisRange::new(Scale::Log, low.min(middle / 1.05), high.max(middle * 1.05))
    }
}

impl HeatmapCell {
    fn value(self) -> Option<f64> {
        match self {
            HeatmapCell::Absent => None,
            HeatmapCell::Value(x) | HeatmapCell::LowerBound(x) => Some(x),
        }
    }

    fn or_larger(self, other: HeatmapCell) -> HeatmapCell {
        if other.value() > self.value() { other } else { self }
    }

    fn colour(self, range: &AxisRange) -> u8 {
        match self.value().and_then(|x| range.position(x)) {
            Some(at) => palette::colour(at, matches!(self, HeatmapCell::LowerBound(_))),
            None => ABSENT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_heat_maps_are_bounded_and_keep_the_largest_values() {
        let heatmap = Heatmap::new("large", (4500, 100), |row, column| match (row, column) {
            (4321, 50) => HeatmapCell::Value(45.0),
            _ => HeatmapCell::Value(1.0),
        });
        assert_eq!((heatmap.pixels.per_pixel, heatmap.pixels.width), ((3, 1), 100));
        assert_eq!(heatmap.pixels.cells.len(), 1500 * 100);
        assert_eq!(heatmap.pixels.cells[4321 / 3 * 100 + 50], HeatmapCell::Value(45.0));
        assert!(heatmap.html().contains("the largest of 3 × 1 cells"));
    }

    #[test]
    fn absent_and_censored_cells_are_in_the_legend() {
        let cells = [HeatmapCell::Value(1.0), HeatmapCell::LowerBound(2.0), HeatmapCell::Absent];
        let all = Heatmap::new("all", (1, 3), |_, column| cells[column]).html();
        assert!(all.contains("cut off") && all.contains("not there"));
        let plain = Heatmap::new("plain", (1, 3), |_, _| HeatmapCell::Value(1.0)).html();
        assert!(!plain.contains("cut off") && !plain.contains("not there"));
    }
}
