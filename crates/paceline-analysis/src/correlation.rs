//! Correlations of workers' run-times.

use pulp::{Arch, NullaryFnOnce};

use crate::{
    quantile::{median, robust_sd},
    residual::Residuals,
};

/// Most stretches of rounds that series are averaged over; fewer for clusters of thousands.
const WIDTHS: [usize; 2] = [512, 256];

/// More workers than this get the smaller width.
const LARGE: usize = 4096;

/// Lengths of series are multiples of this, padded with zeros, so that one loop serves all.
const LANES: usize = 32;

/// Residuals are clipped to √T/4 standard deviations, within these bounds: a round in which two workers
/// stalled together adds no more than a sixteenth to their correlation.
const CLIP: (f64, f64) = (2.5, 5.0);

/// Number of series from which autocorrelation is estimated.
const AUTOCORRELATED: usize = 256;

/// Workers' residuals as series of mean 0 and length 1, so that a product is a correlation.
pub(crate) struct ResidualSeries {
    /// The workers that have a series: present in half of the rounds, and not constant.
    pub(crate) workers: Vec<usize>,
    /// Rounds per value.
    pub(crate) rounds_per_value: usize,
    /// Effective number of independent values.
    pub(crate) effective: f64,
    width: usize,
    values: Vec<f32>,
}

impl ResidualSeries {
    pub(crate) fn from_residuals(
        residuals: &Residuals,
        workers: usize,
        rounds: usize,
    ) -> ResidualSeries {
        let most = WIDTHS[usize::from(workers > LARGE)];
        let rounds_per_value = rounds.div_ceil(most).max(1);
        let bins = rounds.div_ceil(rounds_per_value);
        let width = bins.next_multiple_of(LANES);
        let mut series = ResidualSeries {
            workers: Vec::new(),
            rounds_per_value,
            effective: 0.0,
            width,
            values: vec![],
        };
        for worker in 0..workers {
            if let Some(unit) = unit(residuals.of_worker(worker), rounds_per_value) {
                series.workers.push(worker);
                series.values.extend(unit.iter().map(|&x| x as f32));
                series.values.resize(series.workers.len() * width, 0.0);
            }
        }
        series.effective = series.effective_length(bins);
        series
    }

    pub(crate) fn len(&self) -> usize {
        self.workers.len()
    }

    pub(crate) fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn at(&self, index: usize) -> &[f32] {
        &self.values[index * self.width..(index + 1) * self.width]
    }

    /// The correlation that independent series exceed in any of `trials` trials with a probability of
    /// one in a hundred.
    ///
    /// Under independence Fisher's z = artanh r is normal with variance 1 / (effective − 3); the
    /// normal tail is bounded by P(Z > z) ≤ exp(−z²/2) / 2.
    pub(crate) fn by_chance(&self, trials: f64) -> f64 {
        let z = (2.0 * (trials.max(1.0) / 0.02).ln()).sqrt();
        (z / (self.effective - 3.0).max(0.5).sqrt()).tanh()
    }

    /// The number of pairs of series.
    pub(crate) fn pairs(&self) -> f64 {
        (self.len() * self.len().saturating_sub(1)) as f64 / 2.0
    }

    /// Bartlett's formula: correlations of independent series vary as those of
    /// T / (1 + 2 Σ ρ(k)²) independent values, ρ the autocorrelation (here on average over workers).
    fn effective_length(&self, bins: usize) -> f64 {
        let step = self.len().div_ceil(AUTOCORRELATED).max(1);
        let chosen: Vec<&[f32]> =
            (0..self.len()).step_by(step).map(|i| &self.at(i)[..bins]).collect();
        let mut sum = 1.0;
        for lag in 1..bins / 3 {
            let products = chosen.iter().map(|s| product(&s[..bins - lag], &s[lag..]));
            let mean = products.sum::<f64>() / chosen.len().max(1) as f64;
            let corrected = mean + 1.0 / bins as f64;
            if corrected < 0.05 {
                break;
            }
            sum += 2.0 * corrected * corrected;
        }
        bins as f64 / sum
    }
}

/// Averages over stretches of rounds, with mean 0 and length 1; `None` for too few or constant values.
fn unit(residuals: &[f32], rounds_per_value: usize) -> Option<Vec<f64>> {
    let mut present: Vec<f64> =
        residuals.iter().filter(|x| !x.is_nan()).map(|&x| f64::from(x)).collect();
    if present.len() * 2 < residuals.len() || present.len() < 8 {
        return None;
    }
    let middle = median(&mut present);
    let reach = match robust_sd(&present, middle) {
        sd if sd > 0.0 => sd * (0.25 * (residuals.len() as f64).sqrt()).clamp(CLIP.0, CLIP.1),
        _ => f64::INFINITY,
    };
    let bins: Vec<Option<f64>> = residuals
        .chunks(rounds_per_value)
        .map(|bin| {
            let there = bin.iter().filter(|x| !x.is_nan());
            let (sum, count) = there.fold((0.0, 0.0), |(sum, count), &x| {
                (sum + (f64::from(x) - middle).clamp(-reach, reach), count + 1.0)
            });
            (count > 0.0).then(|| sum / count)
        })
        .collect();
    let known = bins.iter().flatten();
    let mean = known.clone().sum::<f64>() / known.count() as f64;
    let values: Vec<f64> = bins.iter().map(|bin| bin.map_or(0.0, |x| x - mean)).collect();
    let length = values.iter().map(|x| x * x).sum::<f64>().sqrt();
    (length > 1e-9).then(|| values.iter().map(|x| x / length).collect())
}

fn product(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// The products of each of `rows` with each of `columns` (series of `width` values, end to end), row
/// by row. Columns pass once for all rows, so rows should be few enough to stay in the cache.
pub(crate) fn products(rows: &[f32], columns: &[f32], width: usize, out: &mut Vec<f32>) {
    out.clear();
    out.resize(rows.len() / width * (columns.len() / width), 0.0);
    Arch::new().dispatch(Products { rows, columns, width, out });
}

/// A type, not a closure, so that the loop itself is compiled for the widest vectors.
struct Products<'a> {
    rows: &'a [f32],
    columns: &'a [f32],
    width: usize,
    out: &'a mut [f32],
}

impl NullaryFnOnce for Products<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Products { rows, columns, width, out } = self;
        let count = columns.len() / width;
        for (j, column) in columns.chunks_exact(width).enumerate() {
            for (i, row) in rows.chunks_exact(width).enumerate() {
                let mut sums = [0.0f32; LANES];
                let chunks = row.as_chunks::<LANES>().0.iter().zip(column.as_chunks::<LANES>().0);
                for (a, b) in chunks {
                    for lane in 0..LANES {
                        sums[lane] += a[lane] * b[lane];
                    }
                }
                out[i * count + j] = sums.iter().sum();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_trace::generate;

    use super::*;

    fn series(spec: &str) -> ResidualSeries {
        let trace = generate(&spec.parse().expect(spec), 1);
        ResidualSeries::from_residuals(
            &Residuals::from_trace(&trace),
            trace.workers().len(),
            trace.rounds(),
        )
    }

    #[test]
    fn fast_products_are_correlations() {
        let series = series("nodes158:n=20,rounds=500");
        let mut fast = Vec::new();
        products(series.at(3), &series.values, series.width(), &mut fast);
        for (i, fast) in fast.iter().enumerate() {
            let plain = product(series.at(3), series.at(i));
            assert!((f64::from(*fast) - plain).abs() < 1e-5, "{i}: {fast} {plain}");
        }
        assert!((fast[3] - 1.0).abs() < 1e-5);
    }

    #[test]
    fn autocorrelation_makes_series_worth_less() {
        let white = series("iid-lognormal:n=50,rounds=500").effective;
        assert!((white / 500.0 - 1.0).abs() < 0.05, "{white}");
        let drifting = series("ar:n=50,rounds=500,coefficient=0.9").effective;
        let expected = 500.0 / (1.0 + 2.0 * 0.81 / 0.19);
        assert!((drifting / expected - 1.0).abs() < 0.4, "{drifting} {expected}");
    }

    #[test]
    fn a_constant_or_mostly_absent_worker_has_no_series() {
        assert_eq!(
            series("failure:node=1,at=50,rounds=400").workers,
            [0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15]
        );
        assert!(unit(&[0.5; 100], 1).is_none());
    }
}
