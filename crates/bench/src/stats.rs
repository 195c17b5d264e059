//! Small statistics: medians, and ratios of interleaved pairs with a confidence interval.

use std::fmt;

use anyhow::Result;

/// The median; NaN without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// A quantile of sorted values; NaN without values.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// A mean over pairs with its 95 % confidence interval, best and worst.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConfidenceInterval {
    pairs: usize,
    pub(crate) mean: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    worst: f64,
    best: f64,
}

impl fmt::Display for ConfidenceInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConfidenceInterval { pairs, mean, low, high, worst, best } = self;
        match pairs {
            // One pair gives no variance.
            1 => write!(f, "one pair: {mean:.2}, without an interval"),
            _ => write!(
                f,
                "{pairs} pairs: mean {mean:.2}, 95 % {low:.2}–{high:.2}, worst {worst:.2}, \
                 best {best:.2}"
            ),
        }
    }
}

/// Measures a and b in the order a b b a, `pairs` times, and returns b / a.
pub(crate) fn abba_ratio(
    pairs: usize,
    mut a: impl FnMut() -> Result<f64>,
    mut b: impl FnMut() -> Result<f64>,
) -> Result<ConfidenceInterval> {
    let turns = interleaved(pairs, 2, |who| if who == 0 { a() } else { b() })?;
    Ok(ratio(&turns[0], &turns[1]))
}

/// Measures `contestants` there and back (a b c c b a), `pairs` times, so that slow drift of the
/// machine cancels between any two of them; returns the measurements of each.
pub(crate) fn interleaved(
    pairs: usize,
    contestants: usize,
    mut measure: impl FnMut(usize) -> Result<f64>,
) -> Result<Vec<Vec<f64>>> {
    let mut turns = vec![Vec::with_capacity(2 * pairs); contestants];
    for _ in 0..pairs {
        for who in (0..contestants).chain((0..contestants).rev()) {
            turns[who].push(measure(who)?);
        }
    }
    Ok(turns)
}

/// b / a of measurements by [`interleaved`].
pub(crate) fn ratio(a: &[f64], b: &[f64]) -> ConfidenceInterval {
    let pairs = a.chunks(2).zip(b.chunks(2));
    let log = |turn: &[f64]| turn.iter().map(|value| value.ln()).sum::<f64>() / turn.len() as f64;
    interval(&pairs.map(|(a, b)| log(b) - log(a)).collect::<Vec<_>>())
}

/// b / a of measurements paired by their conditions.
pub(crate) fn paired_ratio(a: &[f64], b: &[f64]) -> ConfidenceInterval {
    interval(&a.iter().zip(b).map(|(a, b)| (b / a).ln()).collect::<Vec<_>>())
}

/// b - a of paired measurements, and the lower end of its 95 % interval.
pub(crate) fn paired_difference(a: &[f64], b: &[f64]) -> (f64, f64) {
    // The logarithm of a ratio of exponentials is a difference.
    let found = interval(&a.iter().zip(b).map(|(a, b)| b - a).collect::<Vec<_>>());
    (found.mean.ln(), found.low.ln())
}

/// The interval of the exponentials of logarithms.
fn interval(logs: &[f64]) -> ConfidenceInterval {
    let n = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / n;
    let variance = logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    let half = student(logs.len()) * (variance / n).sqrt();
    let fold = |f: fn(f64, f64) -> f64, start| logs.iter().copied().fold(start, f).exp();
    ConfidenceInterval {
        pairs: logs.len(),
        mean: mean.exp(),
        low: (mean - half).exp(),
        high: (mean + half).exp(),
        worst: fold(f64::min, f64::INFINITY),
        best: fold(f64::max, f64::NEG_INFINITY),
    }
}

/// The 97.5th percentile of Student's t for a sample of `n`.
fn student(n: usize) -> f64 {
    const T: [f64; 21] = [
        0.0, 0.0, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201,
        2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
    ];
    // An upper bound for larger samples.
    T.get(n).copied().unwrap_or(2.093)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_there() {
        let sorted: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!((percentile(&sorted, 0.5), percentile(&sorted, 0.99)), (100.0, 198.0));
        assert_eq!(percentile(&sorted, 1.0), 200.0);
        assert!(percentile(&[], 0.5).is_nan());
    }

    #[test]
    fn drift_that_is_linear_in_log_cancels() {
        let mut time = 0.0;
        let mut tick = |factor: f64| {
            time += 1.0;
            Ok(factor * f64::exp(0.01 * time))
        };
        let clock = std::cell::RefCell::new(&mut tick);
        let ratio = abba_ratio(3, || clock.borrow_mut()(2.0), || clock.borrow_mut()(6.0)).unwrap();
        assert!((ratio.mean - 3.0).abs() < 1e-9);
        assert!(ratio.low <= ratio.mean && ratio.mean <= ratio.high);
    }

    #[test]
    fn one_pair_has_no_interval_and_several_have_one_that_holds_the_mean() {
        assert!(!interval(&[0.5]).to_string().contains("95 %"));
        let several = interval(&[0.0, 0.1, 0.2]);
        assert!(several.low < several.mean && several.mean < several.high);
        assert!(several.to_string().contains("3 pairs: mean 1.11, 95 %"), "{several}");
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
