//! Maps values to positions on an axis.

/// How positions on an axis follow from values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Scale {
    /// In proportion to the value.
    #[default]
    Linear,
    /// In proportion to the logarithm; only positive values have a position.
    Log,
}

/// The range of values that an axis shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AxisRange {
    scale: Scale,
    low: f64,
    high: f64,
}

impl AxisRange {
    /// A range that holds all `values`, with a margin. A linear range whose values come close to zero
    /// begins at zero.
    pub(crate) fn covering(scale: Scale, values: impl Iterator<Item = f64>) -> AxisRange {
        let shown = values.filter(|x| x.is_finite() && (scale == Scale::Linear || *x > 0.0));
        let (low, high) =
            shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(x), h.max(x)));
        let (low, high) = if low <= high { (low, high) } else { (1.0, 2.0) };
        match scale {
            Scale::Linear => {
                let margin =
                    if high > low { 0.04 * (high - low) } else { 0.05 * high.abs().max(1e-9) };
                let from_zero = low >= 0.0 && low < 0.35 * high;
                AxisRange {
                    scale,
                    low: if from_zero { 0.0 } else { low - margin },
                    high: high + margin,
                }
            }
            Scale::Log => {
                let margin = (high / low).powf(0.04).max(1.02);
                AxisRange { scale, low: low / margin, high: high * margin }
            }
        }
    }

    /// From `low` to `high`, without a margin.
    pub(crate) fn new(scale: Scale, low: f64, high: f64) -> AxisRange {
        AxisRange { scale, low, high }
    }

    /// The lowest and the highest value.
    pub(crate) fn ends(&self) -> (f64, f64) {
        (self.low, self.high)
    }

    /// The position of `x`: 0 at the low end, 1 at the high end, `None` where `x` has none.
    pub(crate) fn position(&self, x: f64) -> Option<f64> {
        let at = match self.scale {
            Scale::Linear => (x - self.low) / (self.high - self.low),
            Scale::Log => (x / self.low).ln() / (self.high / self.low).ln(),
        };
        at.is_finite().then_some(at)
    }

    /// About `wanted` round values within the range.
    pub(crate) fn ticks(&self, wanted: usize) -> Vec<f64> {
        match self.scale {
            Scale::Log if self.high / self.low >= 3.0 => self.log_ticks(wanted),
            _ => self.linear_ticks(wanted),
        }
    }

    fn linear_ticks(&self, wanted: usize) -> Vec<f64> {
        let rough = (self.high - self.low) / wanted.max(1) as f64;
        let unit = 10f64.powf(rough.log10().floor());
        let step =
            unit * [1.0, 2.0, 5.0, 10.0].into_iter().find(|k| k * unit >= rough).unwrap_or(10.0);
        let first = (self.low / step - 1e-9).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last).take(50).map(|i| i as f64 * step).collect()
    }

    /// Powers of ten. Over few decades, their multiples by 2 and 5 as well; over many decades, only
    /// every n-th power.
    fn log_ticks(&self, wanted: usize) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let between: &[f64] = match decades * 3.0 <= wanted as f64 {
            true => &[1.0, 2.0, 5.0],
            false => &[1.0],
        };
        let every = (decades / wanted.max(1) as f64).ceil().max(1.0) as i32;
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        let powers = (first..=last).filter(|power| power % every == 0);
        let all = powers.flat_map(|power| between.iter().map(move |k| k * 10f64.powi(power)));
        all.filter(|x| (self.low..=self.high).contains(x)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within_the_range() {
        let range = AxisRange::new(Scale::Linear, 0.0, 158.0);
        assert_eq!(range.ticks(6), [0.0, 50.0, 100.0, 150.0]);
        let range = AxisRange::new(Scale::Log, 0.9, 1200.0);
        assert_eq!(range.ticks(6), [1.0, 10.0, 100.0, 1000.0]);
        let range = AxisRange::new(Scale::Log, 0.5, 8.0);
        assert_eq!(range.ticks(6), [0.5, 1.0, 2.0, 5.0]);
        let range = AxisRange::new(Scale::Log, 1e-9, 1.0);
        assert!(range.ticks(5).len() <= 6);
    }

    #[test]
    fn positions_run_from_end_to_end() {
        for (range, middle) in [
            (AxisRange::new(Scale::Linear, 2.0, 4.0), 3.0),
            (AxisRange::new(Scale::Log, 1.0, 100.0), 10.0),
        ] {
            assert!((range.position(middle).expect("inside") - 0.5).abs() < 1e-12);
        }
        assert_eq!(AxisRange::new(Scale::Log, 1.0, 2.0).position(0.0), None);
    }

    #[test]
    fn an_empty_range_and_a_single_value_still_make_an_axis() {
        for scale in [Scale::Linear, Scale::Log] {
            for values in [vec![], vec![f64::NAN], vec![3.0], vec![0.0]] {
                let range = AxisRange::covering(scale, values.iter().copied());
                assert!(range.low < range.high, "{range:?}");
                assert!(!range.ticks(5).is_empty() || scale == Scale::Log, "{range:?}");
            }
        }
    }
}
