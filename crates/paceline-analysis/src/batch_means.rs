//! Means of autocorrelated series.

/// The mean of a series and its standard error, by the method of batch means: means of stretches of √T
/// values are nearly independent although neighbouring values are not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BatchMeans {
    pub(crate) mean: f64,
    /// Standard error of the mean.
    pub(crate) error: f64,
    /// Degrees of freedom of the error.
    pub(crate) degrees: usize,
}

impl BatchMeans {
    /// `None` for fewer than four values.
    pub(crate) fn from_series(series: &[f64]) -> Option<BatchMeans> {
        let means = batches(series);
        if means.len() < 2 {
            return None;
        }
        let mean = series.iter().sum::<f64>() / series.len() as f64;
        let center = means.iter().sum::<f64>() / means.len() as f64;
        let degrees = means.len() - 1;
        let variance = means.iter().map(|m| (m - center).powi(2)).sum::<f64>() / degrees as f64;
        Some(BatchMeans { mean, error: (variance / means.len() as f64).sqrt(), degrees })
    }
}

/// The standard deviation that white noise would need for its sums to vary as those of the series.
///
/// Computed from differences of neighbouring batches, without the largest tenth, which is compensated
/// as for normal values: so one or two changes of level do not count as noise. 0 for too few values.
pub(crate) fn long_run_sd(series: &[f64]) -> f64 {
    const TRIMMED: f64 = 0.1;
    const MADE_UP: f64 = 1.6;
    let means = batches(series);
    if means.len() < 2 {
        return 0.0;
    }
    let mut squares: Vec<f64> = means.windows(2).map(|pair| (pair[1] - pair[0]).powi(2)).collect();
    squares.sort_unstable_by(f64::total_cmp);
    squares.truncate(squares.len() - (squares.len() as f64 * TRIMMED).ceil() as usize);
    let length = series.len() as f64 / means.len() as f64;
    let mean = squares.iter().sum::<f64>() / squares.len().max(1) as f64;
    (MADE_UP * mean / 2.0 * length).sqrt()
}

/// Means of ⌊T/⌊√T⌋⌋ stretches of nearly the same length.
fn batches(series: &[f64]) -> Vec<f64> {
    let length = series.len().isqrt().max(1);
    let count = series.len() / length;
    (0..count)
        .map(|i| {
            let batch = &series[i * series.len() / count..(i + 1) * series.len() / count];
            batch.iter().sum::<f64>() / batch.len() as f64
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An AR(1) series with uniform innovations, from a linear congruence.
    fn series(coefficient: f64, length: usize, mut seed: u64) -> Vec<f64> {
        let mut value = 0.0;
        let mut draw = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 11) as f64 / (1u64 << 53) as f64 - 0.5
        };
        (0..length)
            .map(|_| {
                value = coefficient * value + draw();
                value
            })
            .collect()
    }

    #[test]
    fn the_error_grows_with_autocorrelation_as_theory_says() {
        for coefficient in [0.0, 0.5, 0.8] {
            let expected = (1.0f64 / 12.0).sqrt() / (1.0 - coefficient);
            let errors: Vec<f64> = (0..40)
                .map(|seed| {
                    BatchMeans::from_series(&series(coefficient, 2500, seed)).expect("long").error
                })
                .collect();
            let rms = (errors.iter().map(|e| e * e).sum::<f64>() / 40.0).sqrt() * 50.0;
            assert!((rms / expected - 1.0).abs() < 0.2, "{coefficient}: {rms} {expected}");
            let long_run: f64 =
                (0..40).map(|seed| long_run_sd(&series(coefficient, 2500, seed))).sum();
            assert!((long_run / 40.0 / expected - 1.0).abs() < 0.2, "{coefficient}: {long_run}");
        }
    }

    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        let held = (0..400).filter(|&seed| {
            let seen = BatchMeans::from_series(&series(0.7, 900, 1000 + seed)).expect("long");
            seen.mean.abs() < crate::student::exceeded_with(0.025, seen.degrees) * seen.error
        });
        let held = held.count();
        assert!((360..=392).contains(&held), "{held} of 400");
    }

    #[test]
    fn too_few_values_give_no_estimate() {
        assert_eq!(BatchMeans::from_series(&[1.0]), None);
        assert_eq!(long_run_sd(&[]), 0.0);
        assert!(BatchMeans::from_series(&[1.0, 2.0, 1.0, 2.0]).is_some());
    }
}
