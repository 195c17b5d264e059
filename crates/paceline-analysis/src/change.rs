//! Detection of lasting changes of level.

use serde::Serialize;

use crate::{
    batch_means::long_run_sd,
    quantile::{median, robust_sd},
};

/// Least values for a test.
const LEAST_VALUES: usize = 20;

/// Values are clipped to this many standard deviations.
const CLIP: f64 = 3.0;

/// Changes of less than 5 % are not reported.
const LEAST_CHANGE: f64 = 0.05;

/// Largest autocorrelation assumed for noise; more would hide every change.
const MOST_PERSISTENT: f64 = 0.97;

/// Number of tests assumed for a series without changes.
const TESTS: f64 = 4.0;

/// A level changed in a round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Change {
    /// The first round at the new level.
    pub round: usize,
    /// The new level over the old one.
    pub factor: f64,
}

/// Finds the changes of level of a series of logarithms (NaN for missing values), with a false-alarm
/// probability of about `error`.
///
/// The CUSUM test in binary segmentation (Vostrikova, 1981): in noise of long-run standard deviation
/// σ the greatest |S_k − k/m · S_m| / (σ √m) over a stretch of m values follows Kolmogorov's
/// distribution, P(> x) ≤ 2 exp(−2x²), whatever the noise's distribution. σ allows for
/// autocorrelation: the larger of the estimates from batch means and from an AR(1) fitted to the values
/// about the two levels. Outliers are clipped first. A change must be more than 5 % and more than half
/// the noise of a single value: smaller ones are detectable, but not worth acting on.
pub(crate) fn changes(series: &[f64], error: f64) -> Vec<Change> {
    let (rounds, values): (Vec<usize>, Vec<f64>) =
        series.iter().enumerate().filter(|(_, x)| !x.is_nan()).unzip();
    if values.len() < LEAST_VALUES {
        return Vec::new();
    }
    let search = Search::new(&values, error);
    let mut splits = Vec::new();
    search.split(0, values.len(), &mut splits);
    splits.sort_unstable();
    search.refine(&mut splits);
    drop_small(&values, &mut splits);
    let levels = levels(&values, &splits);
    let pairs = levels.windows(2).map(|pair| (pair[1] - pair[0]).exp());
    splits.iter().zip(pairs).map(|(&at, factor)| Change { round: rounds[at], factor }).collect()
}

/// The search in one series.
struct Search {
    clipped: Vec<f64>,
    long_run_sd: f64,
    /// The statistic that a change must exceed.
    critical: f64,
    /// The least values on either side.
    least: usize,
}

impl Search {
    fn new(values: &[f64], error: f64) -> Search {
        let middle = median(&mut values.to_vec());
        let reach = match robust_sd(values, middle) {
            sd if sd > 0.0 => CLIP * sd,
            _ => f64::INFINITY,
        };
        let clipped: Vec<f64> = values.iter().map(|x| (x - middle).clamp(-reach, reach)).collect();
        Search {
            long_run_sd: long_run_sd(&clipped),
            critical: (0.5 * (2.0 * TESTS / error).ln()).sqrt(),
            least: (values.len().isqrt() / 2).max(5),
            clipped,
        }
    }

    /// A stretch that goes up and down again looks level as a whole, so parts of long stretches are
    /// tested too.
    fn split(&self, from: usize, to: usize, splits: &mut Vec<usize>) {
        let quarter = (to - from) / 4;
        let long = 4 * quarter * 2 > self.clipped.len();
        let parts = [(0, 4), (0, 2), (2, 4), (1, 3)];
        let parts = &parts[..if long { 4 } else { 1 }];
        let found = parts.iter().find_map(|(first, last)| match (first, last) {
            (0, 4) => self.best(from, to),
            _ => self.best(from + first * quarter, from + last * quarter),
        });
        if let Some(at) = found {
            splits.push(at);
            self.split(from, at, splits);
            self.split(at, to, splits);
        }
    }

    /// Where a stretch is split best, if it should be.
    fn best(&self, from: usize, to: usize) -> Option<usize> {
        let stretch = &self.clipped[from..to];
        if stretch.len() < 2 * self.least {
            return None;
        }
        let mean = stretch.iter().sum::<f64>() / stretch.len() as f64;
        let (mut sum, mut best) = (0.0, (0.0, 0));
        for (i, x) in stretch.iter().enumerate() {
            if i >= self.least && i + self.least <= stretch.len() && f64::abs(sum) > best.0 {
                best = (f64::abs(sum), i);
            }
            sum += x - mean;
        }
        let (size, at) = best;
        let sd = self.long_run_sd.max(autoregressive_sd(stretch, at));
        let found = size > self.critical * sd * (stretch.len() as f64).sqrt() && size > 1e-9;
        found.then_some(from + at)
    }

    /// Places each split again between its neighbours, which the first search did not know yet.
    fn refine(&self, splits: &mut Vec<usize>) {
        let mut refined = Vec::with_capacity(splits.len());
        for (i, _) in splits.iter().enumerate() {
            let from = refined.last().copied().unwrap_or(0);
            let to = splits.get(i + 1).copied().unwrap_or(self.clipped.len());
            refined.extend(self.best(from, to));
        }
        *splits = refined;
    }
}

/// The long-run standard deviation of an AR(1) with the lag-one correlation and the variance that
/// values have about two levels.
fn autoregressive_sd(values: &[f64], split: usize) -> f64 {
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len().max(1) as f64;
    let (before, after) = values.split_at(split);
    let means = (mean(before), mean(after));
    let rest: Vec<f64> =
        before.iter().map(|x| x - means.0).chain(after.iter().map(|x| x - means.1)).collect();
    let variance = rest.iter().map(|x| x * x).sum::<f64>() / rest.len() as f64;
    if variance <= 0.0 {
        return 0.0;
    }
    let lagged = rest.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / rest.len() as f64;
    // Kendall's correction: about a fitted mean the estimate is low by (1 + 3ρ) / T, and here two
    // means were fitted to half as many values each.
    let (raw, length) = (lagged / variance, rest.len() as f64);
    let persistence = ((raw + 2.0 / length) / (1.0 - 6.0 / length)).clamp(0.0, MOST_PERSISTENT);
    (variance * (1.0 + persistence) / (1.0 - persistence)).sqrt()
}

/// The medians between splits.
fn levels(values: &[f64], splits: &[usize]) -> Vec<f64> {
    let ends = splits.iter().copied().chain([values.len()]);
    let starts = [0].into_iter().chain(splits.iter().copied());
    starts.zip(ends).map(|(from, to)| median(&mut values[from..to].to_vec())).collect()
}

/// Removes changes that are too small, the smallest first.
fn drop_small(values: &[f64], splits: &mut Vec<usize>) {
    while !splits.is_empty() {
        let levels = levels(values, splits);
        let ends = splits.iter().copied().chain([values.len()]);
        let mut from = 0;
        let mut rest = Vec::with_capacity(values.len());
        for (level, to) in levels.iter().zip(ends) {
            rest.extend(values[from..to].iter().map(|x| x - level));
            from = to;
        }
        let least = LEAST_CHANGE.ln_1p().max(0.5 * robust_sd(&rest, 0.0));
        let size = |i: usize| (levels[i + 1] - levels[i]).abs();
        let smallest = (0..splits.len()).min_by(|&a, &b| size(a).total_cmp(&size(b)));
        match smallest {
            Some(i) if size(i) < least => drop(splits.remove(i)),
            _ => break,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_changes_are_found_across_gaps() {
        let mut series = vec![0.0; 300];
        for (i, x) in series.iter_mut().enumerate() {
            *x = 0.01 * ((i * 7919) % 13) as f64 + if (100..200).contains(&i) { 1.0 } else { 0.0 };
            if i % 10 == 3 {
                *x = f64::NAN;
            }
        }
        let found = changes(&series, 0.01);
        assert_eq!(found.iter().map(|change| change.round).collect::<Vec<_>>(), [100, 200]);
        assert!((found[0].factor * found[1].factor - 1.0).abs() < 0.05);
        assert_eq!(changes(&series[..10], 0.01), []);
        assert_eq!(changes(&[1.0; 100], 0.01), []);
    }
}
