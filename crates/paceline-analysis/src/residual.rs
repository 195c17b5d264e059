//! Logarithms of run-times, less what all have in common.

use paceline_trace::{Cell, Trace};

use crate::quantile::median;

/// ln x_i(t) − median over i of ln x_i(t), worker by worker. A lower bound counts as the run-time;
/// who is absent has NaN.
pub(crate) struct Residuals {
    rounds: usize,
    values: Vec<f32>,
    /// The logarithm of each round's median; NaN where nobody was there.
    pub(crate) medians: Vec<f64>,
    /// The logarithm of each round's slowest, likewise.
    pub(crate) slowest: Vec<f64>,
}

impl Residuals {
    pub(crate) fn of(trace: &Trace) -> Residuals {
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

    /// One worker's, round by round.
    pub(crate) fn of_worker(&self, worker: usize) -> &[f32] {
        &self.values[worker * self.rounds..(worker + 1) * self.rounds]
    }

    /// One worker's, where it was there.
    pub(crate) fn present(&self, worker: usize) -> Vec<f64> {
        let all = self.of_worker(worker).iter();
        all.filter(|x| !x.is_nan()).map(|&x| f64::from(x)).collect()
    }
}

/// The run-times of a round as they are known; NaN is absent.
pub(crate) fn bounds(trace: &Trace, round: usize) -> impl Iterator<Item = f64> + '_ {
    trace.row(round).map(|cell| Cell::bound(cell).unwrap_or(f64::NAN))
}
