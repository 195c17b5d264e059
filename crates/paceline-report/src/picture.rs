//! Pictures of many values: a row each worker, a column each round.

use std::fmt::Write;

use crate::{
    html::Escaped,
    number::short,
    paint::{self, NOTHING},
    scale::{Scale, Span},
};

/// Pixels across and down at most; of more cells, each pixel shows the largest.
const MOST: usize = 2000;

/// What a cell shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shade {
    /// Nothing.
    Nothing,
    /// This value.
    Value(f64),
    /// More than this value.
    Bound(f64),
}

/// A picture of positive values on a logarithmic scale of colours.
pub struct Picture {
    /// Above the picture.
    pub title: String,
    /// What columns are.
    pub x: String,
    /// What rows are.
    pub y: String,
    /// What colours are.
    pub values: String,
    pixels: Pixels,
}

/// The cells, as few as can be shown.
struct Pixels {
    rows: usize,
    columns: usize,
    /// Cells that one pixel stands for, down and across.
    per_pixel: (usize, usize),
    width: usize,
    shades: Vec<Shade>,
}

const WIDTH: f64 = 1120.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 14.0;
const BOTTOM: f64 = 46.0;

impl Picture {
    /// A picture of `rows` × `columns` cells; `cell(row, column)` says what is in each.
    pub fn new(
        title: impl Into<String>,
        (rows, columns): (usize, usize),
        cell: impl Fn(usize, usize) -> Shade,
    ) -> Picture {
        let per_pixel = (rows.div_ceil(MOST).max(1), columns.div_ceil(MOST).max(1));
        let (height, width) = (rows.div_ceil(per_pixel.0), columns.div_ceil(per_pixel.1));
        let mut shades = vec![Shade::Nothing; width * height];
        for column in 0..columns {
            for row in 0..rows {
                let pixel = &mut shades[row / per_pixel.0 * width + column / per_pixel.1];
                *pixel = pixel.or_larger(cell(row, column));
            }
        }
        let pixels = Pixels { rows, columns, per_pixel, width, shades };
        let [x, y, values] = Default::default();
        Picture { title: title.into(), x, y, values, pixels }
    }

    /// The picture as a figure over the whole width.
    pub(crate) fn html(&self) -> String {
        let Pixels { rows, columns, per_pixel, width, shades } = &self.pixels;
        let span = self.pixels.span();
        let colours: Vec<u8> = shades.iter().map(|shade| shade.colour(&span)).collect();
        let height = (*rows as f64 * 6.0).clamp(160.0, 460.0);
        let (floor, across) = (height + 8.0, WIDTH - LEFT - RIGHT);
        let pixelated = (shades.len() / width) as f64 <= height && *width as f64 <= across;
        let mut html = format!(
            "<figure class=\"wide\">\n<figcaption>{}</figcaption>\n{}<svg viewBox=\"0 0 {WIDTH} \
             {:.0}\" role=\"img\" aria-label=\"{0}\">\n<image x=\"{LEFT}\" y=\"8\" \
             width=\"{across}\" height=\"{height}\" preserveAspectRatio=\"none\"{} href=\"{}\"/>\n",
            Escaped(&self.title),
            self.legend(&span),
            height + 8.0 + BOTTOM,
            if pixelated { " class=\"pixels\"" } else { "" },
            paint::data_uri(*width, shades.len() / width, &colours),
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
        for tick in Span::exactly(Scale::Linear, 0.0, columns).ticks(8) {
            let at = LEFT + tick / columns * across;
            let _ = writeln!(
                svg,
                "<text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                floor + 17.0,
                short(tick)
            );
        }
        for tick in Span::exactly(Scale::Linear, 0.0, rows).ticks(6) {
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

    /// What colours mean, as a strip with three values.
    fn legend(&self, span: &Span) -> String {
        let stops: Vec<String> = (0..=8).map(|i| paint::css(f64::from(i) / 8.0)).collect();
        let (low, high) = span.ends();
        let mut html = format!(
            "<div class=\"legend\"><span>{}</span><span>{} <i class=\"ramp\" style=\"background:\
             linear-gradient(90deg,{})\"></i> {}</span>",
            Escaped(&self.values),
            short(low),
            stops.join(","),
            short(high)
        );
        if self.pixels.shades.iter().any(|shade| matches!(shade, Shade::Bound(_))) {
            html += "<span><i class=\"censored\"></i>cut off: longer than this</span>";
        }
        if self.pixels.shades.contains(&Shade::Nothing) {
            html += "<span><i class=\"absent\"></i>not there</span>";
        }
        html + "</div>\n"
    }
}

impl Pixels {
    /// From the first to the last hundredth of all values, and at least 10 % wide, so that neither an
    /// outlier nor mere noise takes all the colours.
    fn span(&self) -> Span {
        let mut values: Vec<f64> = self.shades.iter().filter_map(|shade| shade.value()).collect();
        if values.is_empty() {
            return Span::exactly(Scale::Log, 1.0, 2.0);
        }
        values.sort_unstable_by(f64::total_cmp);
        let at = |q: f64| values[((values.len() - 1) as f64 * q) as usize];
        let (low, high) = (at(0.01), at(0.995));
        let middle = (low * high).sqrt();
        Span::exactly(Scale::Log, low.min(middle / 1.05), high.max(middle * 1.05))
    }
}

impl Shade {
    fn value(self) -> Option<f64> {
        match self {
            Shade::Nothing => None,
            Shade::Value(x) | Shade::Bound(x) => Some(x),
        }
    }

    fn or_larger(self, other: Shade) -> Shade {
        if other.value() > self.value() { other } else { self }
    }

    fn colour(self, span: &Span) -> u8 {
        match self.value().and_then(|x| span.place(x)) {
            Some(at) => paint::colour(at, matches!(self, Shade::Bound(_))),
            None => NOTHING,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pictures_are_bounded_and_keep_the_largest() {
        let picture = Picture::new("large", (4500, 100), |row, column| match (row, column) {
            (4321, 50) => Shade::Value(45.0),
            _ => Shade::Value(1.0),
        });
        assert_eq!((picture.pixels.per_pixel, picture.pixels.width), ((3, 1), 100));
        assert_eq!(picture.pixels.shades.len(), 1500 * 100);
        assert_eq!(picture.pixels.shades[4321 / 3 * 100 + 50], Shade::Value(45.0));
        assert!(picture.html().contains("the largest of 3 × 1 cells"));
    }

    #[test]
    fn what_is_missing_or_bounded_is_in_the_legend() {
        let shades = [Shade::Value(1.0), Shade::Bound(2.0), Shade::Nothing];
        let all = Picture::new("all", (1, 3), |_, column| shades[column]).html();
        assert!(all.contains("cut off") && all.contains("not there"));
        let plain = Picture::new("plain", (1, 3), |_, _| Shade::Value(1.0)).html();
        assert!(!plain.contains("cut off") && !plain.contains("not there"));
    }
}
