//! Logarithms of run-times, less each round's median.

use std::ops::Range;

use paceline_trace::{Cell, Trace};

use crate::quantile::median;

/// ln x_i(t) − median over i of ln x_i(t), worker by worker. A lower bound counts as the run-time; NaN
/// is absent.
pub(crate) struct Residuals {
    rounds: usize,
    values: Vec<f32>,
    /// The logarithm of each round's median; NaN without workers.
    pub(crate) medians: Vec<f64>,
    /// The logarithm of each round's slowest, likewise.
    pub(crate) slowest: Vec<f64>,
}

impl Residuals {
    pub(crate) fn from_trace(trace: &Trace) -> Residuals {
        let (workers, rounds) = (trace.workers().len(), trace.rounds());
        let mut values = vec![f32::NAN; workers * rounds];
        let (mut medians, mut slowest) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
        let (mut row, mut there) = (vec![f64::NAN; workers], Vec::with_capacity(workers));
        for round in 0..rounds {
            for (log, cell) in row.iter_mut().zip(trace.row(round)) {
                *log = cell.bound().map_or(f64::NAN, f64::ln);
            }
            there.clear();
            there.extend(row.iter().filter(|log| !log.is_nan()));
            let middle = median(&mut there);
            medians.push(middle);
            slowest.push(there.iter().copied().fold(f64::NAN, f64::max));
            for (worker, log) in row.iter().enumerate() {
                values[worker * rounds + round] = (log - middle) as f32;
            }
        }
        Residuals { rounds, values, medians, slowest }
    }

    /// One worker's residuals, round by round.
    pub(crate) fn of_worker(&self, worker: usize) -> &[f32] {
        &self.values[worker * self.rounds..(worker + 1) * self.rounds]
    }

    /// One worker's residuals in the rounds in which it was present.
    pub(crate) fn present(&self, worker: usize) -> Vec<f64> {
        let all = self.of_worker(worker).iter();
        all.filter(|x| !x.is_nan()).map(|&x| f64::from(x)).collect()
    }

    /// The movement of the median relative to workers that did not change, at these rounds: an offset
    /// for each round.
    ///
    /// When a third of a cluster becomes slow, the median that all are compared with moves up, and the
    /// others seem to have become faster. The half of the workers whose levels moved most alike is
    /// assumed not to have changed.
    pub(crate) fn offsets(&self, rounds: &[usize]) -> Vec<f64> {
        let stretches = stretches(rounds, self.rounds);
        let levels = self.levels(&stretches);
        let longest = (0..stretches.len()).max_by_key(|&i| stretches[i].len()).unwrap_or(0);
        let mut offsets = vec![0.0; self.rounds];
        for (i, stretch) in stretches.iter().enumerate() {
            let moves = levels.iter().map(|levels| levels[i] - levels[longest]);
            let mut moves: Vec<f64> = moves.filter(|x| !x.is_nan()).collect();
            offsets[stretch.clone()].fill(densest_half(&mut moves));
        }
        offsets
    }

    /// Moves each round's reference by its offset.
    pub(crate) fn shift(&mut self, offsets: &[f64]) {
        for series in self.values.chunks_exact_mut(self.rounds.max(1)) {
            series.iter_mut().zip(offsets).for_each(|(x, offset)| *x -= *offset as f32);
        }
        self.medians.iter_mut().zip(offsets).for_each(|(median, offset)| *median += offset);
    }

    /// Removes every worker's levels between these rounds, whether or not it changed there: the rest
    /// varies about the levels, alike for all.
    pub(crate) fn level(&mut self, rounds: &[usize]) {
        let stretches = stretches(rounds, self.rounds);
        let levels = self.levels(&stretches);
        for (series, levels) in self.values.chunks_exact_mut(self.rounds.max(1)).zip(levels) {
            for (stretch, level) in stretches.iter().zip(levels) {
                series[stretch.clone()].iter_mut().for_each(|x| *x -= level as f32);
            }
        }
    }

    /// Every worker's median in each stretch; NaN if it was absent.
    fn levels(&self, stretches: &[Range<usize>]) -> Vec<Vec<f64>> {
        let mut present = Vec::new();
        let mut level = |stretch: &[f32]| {
            present.clear();
            present.extend(stretch.iter().filter(|x| !x.is_nan()).map(|&x| f64::from(x)));
            median(&mut present)
        };
        self.values
            .chunks_exact(self.rounds.max(1))
            .map(|series| stretches.iter().map(|s| level(&series[s.clone()])).collect())
            .collect()
    }
}

/// The stretches between these rounds.
fn stretches(rounds: &[usize], all: usize) -> Vec<Range<usize>> {
    let starts = [0].into_iter().chain(rounds.iter().copied());
    let ends = rounds.iter().copied().chain([all]);
    starts.zip(ends).map(|(start, end)| start..end).collect()
}

/// The mean of the shortest interval that holds half of the values (the shorth), a robust estimate of
/// their mode. 0 for no values.
fn densest_half(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let half = values.len() / 2 + 1;
    let width = |window: &&[f64]| window[window.len() - 1] - window[0];
    let densest = values.windows(half).min_by(|a, b| width(a).total_cmp(&width(b)));
    densest.map_or(0.0, |window| window.iter().sum::<f64>() / window.len() as f64)
}

/// The run-times or lower bounds of a round; NaN is absent.
pub(crate) fn bounds(trace: &Trace, round: usize) -> impl Iterator<Item = f64> + '_ {
    trace.row(round).map(|cell| Cell::bound(cell).unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_densest_half_is_where_most_agree() {
        assert_eq!(densest_half(&mut [0.1, -0.1, 0.0, 5.0, 5.1]), 0.0);
        assert_eq!(densest_half(&mut [3.0]), 3.0);
        assert_eq!(densest_half(&mut []), 0.0);
    }
}
