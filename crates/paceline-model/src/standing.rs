//! Level, spread and recent residuals of each worker. The networks see residuals in units of these, so
//! one model fits clusters of any speed and variability.

use crate::math::{exp, ln, sigmoid};

/// Rates at which levels, spreads and the recent mean move.
const LEVEL_RATE: f32 = 0.02;
const SPREAD_RATE: f32 = 0.03;
const RECENT_RATE: f32 = 0.3;
/// Pseudo-observations behind the cluster's spread in a worker's own.
const SPREAD_PRIOR: f32 = 6.0;
/// Residuals are clipped to this many spreads, to limit the influence of a stall.
const CLIP: f32 = 3.0;
/// The mean size of a normal residual of unit spread.
const MEAN_SIZE: f32 = 0.8;
/// The scale of the logistic whose spread is about 1.
const LOGISTIC: f32 = 0.55;
/// Largest residual.
const FARTHEST: f32 = 200.0;

/// The state of all workers, by number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Standing {
    pub(crate) level: Vec<f32>,
    pub(crate) spread: Vec<f32>,
    /// The last residual and the recent mean, in spreads above the level.
    pub(crate) last: Vec<f32>,
    pub(crate) late: Vec<f32>,
    /// Observations behind the level; 0 for a worker that has only been censored.
    seen: Vec<f32>,
    deviation: Vec<(f32, f32)>,
    /// The cluster's spread, its sum and its weight.
    pub(crate) unit: f32,
    deviations: (f32, f32),
    /// Mean and spread of levels, for a worker that was never seen.
    newcomer: (f32, f32),
    rounds: u64,
}

/// Residuals of one worker in a round, in spreads. A censored worker's are the expectation beyond its
/// bound.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerResidual {
    /// From its prediction.
    pub(crate) surprise: f32,
    /// From its level.
    pub(crate) from_level: f32,
    pub(crate) observed: bool,
    /// Information, 0 to 1: a bound far below the expectation has none.
    told: f32,
}

impl Standing {
    pub(crate) fn workers(&self) -> usize {
        self.level.len()
    }

    pub(crate) fn is_new(&self) -> bool {
        self.rounds == 0
    }

    pub(crate) fn is_seen(&self, worker: usize) -> bool {
        self.seen[worker] > 0.0
    }

    /// Starts from the first round: levels are its run-times, and their spread is the spread.
    pub(crate) fn begin(&mut self, log_times: &[f32], observed: &[bool]) {
        let mut seen: Vec<f32> =
            log_times.iter().zip(observed).filter(|(_, o)| **o).map(|(y, _)| *y).collect();
        if seen.is_empty() {
            seen.extend(log_times);
        }
        seen.sort_unstable_by(f32::total_cmp);
        let at = |share: f32| seen[((seen.len() - 1) as f32 * share) as usize];
        let spread = ((at(0.8) - at(0.2)) / 1.7).clamp(1e-4, 1.0);
        self.newcomer = (at(0.5), spread.max(0.1));
        self.unit = spread;
        self.deviations = (spread, 1.0);
    }

    /// The state of every `stride`-th worker, renumbered.
    pub(crate) fn every(&self, stride: usize) -> Standing {
        let pick = |all: &[f32]| all.iter().step_by(stride).copied().collect::<Vec<f32>>();
        Standing {
            level: pick(&self.level),
            spread: pick(&self.spread),
            last: pick(&self.last),
            late: pick(&self.late),
            seen: pick(&self.seen),
            deviation: self.deviation.iter().step_by(stride).copied().collect(),
            ..self.clone()
        }
    }

    /// Moves every level, in log time.
    pub(crate) fn shift(&mut self, by: f32) {
        self.level.iter_mut().for_each(|level| *level += by);
        self.newcomer.0 += by;
    }

    /// Makes room for workers up to this number.
    pub(crate) fn grow(&mut self, workers: usize) {
        if workers <= self.level.len() {
            return;
        }
        let (level, spread) = self.newcomer;
        self.level.resize(workers, level);
        self.spread.resize(workers, spread);
        self.last.resize(workers, 0.0);
        self.late.resize(workers, 0.0);
        self.seen.resize(workers, 0.0);
        self.deviation.resize(workers, (0.0, 0.0));
    }

    /// The residual of a log run-time, or of its lower bound, for a worker predicted at `location`;
    /// both less the common factors.
    pub(crate) fn residual(
        &self,
        worker: usize,
        y: f32,
        location: f32,
        observed: bool,
    ) -> WorkerResidual {
        let spread = self.spread[worker];
        let expected = (location - self.level[worker]) / spread;
        let u = ((y - location) / spread).clamp(-FARTHEST, FARTHEST);
        let (surprise, told) = match observed {
            true => (u, 1.0),
            false => (beyond(u), sigmoid(u / LOGISTIC)),
        };
        let from_level = (expected + surprise).clamp(-FARTHEST, FARTHEST);
        WorkerResidual { surprise, from_level, observed, told }
    }

    /// Learns a worker's residual; `y` is its log run-time less the common factors.
    pub(crate) fn learn(&mut self, worker: usize, y: f32, residual: WorkerResidual) {
        if residual.observed && self.seen[worker] == 0.0 {
            self.seen[worker] = 1.0;
            self.level[worker] = y;
            (self.last[worker], self.late[worker]) = (0.0, 0.0);
            self.spread[worker] = self.unit;
            return;
        }
        let WorkerResidual { surprise, from_level, told, .. } = residual;
        let spread = self.spread[worker];
        // In proportion to the information, which is 1 for an observation.
        self.last[worker] += told * (from_level - self.last[worker]);
        let off = from_level - self.late[worker];
        self.late[worker] += told * RECENT_RATE * off.clamp(-2.0 * CLIP, 2.0 * CLIP);
        if self.seen[worker] > 0.0 {
            self.seen[worker] += told;
            let rate = told * LEVEL_RATE.max(1.0 / self.seen[worker]);
            let move_by = (rate * from_level).clamp(-rate * CLIP, rate * CLIP);
            self.level[worker] += move_by * spread;
            // The same residuals, from the level where it is now.
            self.last[worker] -= move_by;
            self.late[worker] -= move_by;
            let size = surprise.abs().min(CLIP) / MEAN_SIZE * spread;
            let keep = 1.0 - SPREAD_RATE * told;
            let (sum, weight) = self.deviation[worker];
            self.deviation[worker] = (keep * sum + told * size, keep * weight + told);
        }
    }

    /// Ends a round: updates the cluster's spread, the expectation for new workers, and with them every
    /// worker's spread.
    pub(crate) fn end_round(&mut self, residuals: &[(usize, WorkerResidual)]) {
        self.rounds += 1;
        let (mut sizes, mut told) = (0.0, 0.0);
        for &(worker, residual) in residuals.iter().filter(|(w, _)| self.seen[*w] > 1.0) {
            let size = residual.surprise.abs().min(CLIP) / MEAN_SIZE * self.spread[worker];
            sizes += residual.told * size;
            told += residual.told;
        }
        if told > 0.0 {
            let n = residuals.len() as f32;
            let keep = 1.0 - SPREAD_RATE.max(1.0 / (self.rounds as f32 + 1.0));
            self.deviations =
                (keep * self.deviations.0 + sizes / n, keep * self.deviations.1 + told / n);
            self.unit = (self.deviations.0 / self.deviations.1).clamp(1e-5, 1.5);
        }
        let levels = || self.level.iter().zip(&self.seen).filter(|(_, s)| **s > 0.0);
        let count = levels().count() as f32;
        if count > 0.0 {
            let mean = levels().map(|(level, _)| level).sum::<f32>() / count;
            let square = levels().map(|(l, _)| (l - mean) * (l - mean)).sum::<f32>() / count;
            self.newcomer = (mean, (square + self.unit * self.unit).sqrt().max(0.1));
        }
        for worker in 0..self.level.len() {
            let (sum, weight) = self.deviation[worker];
            if self.seen[worker] > 0.0 {
                let few = 1.0 + 1.0 / (1.0 + self.seen[worker]);
                let pooled = (SPREAD_PRIOR * self.unit + sum) / (SPREAD_PRIOR + weight);
                let spread = (pooled * few.sqrt()).max(1e-5);
                // Residuals are in spreads.
                let ratio = self.spread[worker] / spread;
                self.last[worker] *= ratio;
                self.late[worker] *= ratio;
                self.spread[worker] = spread;
            } else {
                self.spread[worker] = self.newcomer.1;
            }
        }
    }
}

/// The mean of a logistic of unit spread beyond `u`.
pub(crate) fn beyond(u: f32) -> f32 {
    let v = (u / LOGISTIC).clamp(-30.0, 30.0);
    // The mean beyond v is v + ln(1 + e^−v)·(1 + e^v).
    let beyond = if v > 8.0 { v + 1.0 } else { v + ln(1.0 + exp(-v)) * (1.0 + exp(v)) };
    // Beyond the clamp: far above, the bound plus one scale; far below, the mean of all.
    ((u / LOGISTIC - v).max(0.0) + beyond) * LOGISTIC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_far_below_is_uninformative_and_one_far_above_is_not() {
        for u in [-150.0, -20.0, -16.0, -5.0] {
            assert!(beyond(u).abs() < 0.01, "{u}: {}", beyond(u));
        }
        for u in [5.0, 16.0, 20.0, 150.0] {
            assert!((beyond(u) - u - LOGISTIC).abs() < 0.02, "{u}: {}", beyond(u));
        }
    }
}
