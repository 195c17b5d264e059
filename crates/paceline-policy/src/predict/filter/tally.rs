//! Sums over all workers of one round.

use super::worker::{ClusterState, LevelShift, RATES, WorkerState};
use crate::predict::residuals::clip;

/// A residual (in spreads), its weight in the pool, and whether it is only a bound.
pub(super) type Pooled = (f64, f64, bool);

/// Sums over the workers of a round.
#[derive(Debug, Default)]
pub(super) struct RoundTally {
    pub(super) pool: Vec<Pooled>,
    /// Sizes of residuals, and their number.
    pub(super) deviations: (f64, f64),
    /// Summed errors of each of [`RATES`], and the number of comparisons.
    pub(super) errors: [f64; RATES.len()],
    pub(super) scored: f64,
    /// For workers known only to be beyond a bound: arrivals, and log run-time at risk.
    pub(super) beyond: (f64, f64),
    /// Summed changes of arrived workers' levels, and their number.
    moved: (f64, f64),
    /// Levels, their squares, and their number.
    levels: (f64, f64, f64),
}

impl RoundTally {
    /// Adds a worker that took `y` (log run-time less common and group factors), or longer.
    pub(super) fn add(
        &mut self,
        state: &mut WorkerState,
        y: f64,
        censored: bool,
        cluster: &ClusterState<'_>,
    ) {
        state.pass();
        self.watch_bound(state, y, censored);
        self.compare_rates(state, y, censored, cluster.spread);
        let (before, known) = (state.levels[cluster.rate], state.seen > 0);
        let residual = match censored {
            true => state.censor(y, cluster),
            false => state.observe(y, cluster),
        };
        let moved = state.levels[cluster.rate] - before;
        if !censored && known && moved.abs() < 3.0 * cluster.spread {
            self.moved = (self.moved.0 + moved, self.moved.1 + 1.0);
        }
        if let Some((u, weight)) = residual {
            self.pool.push((u, weight, censored));
            let size = match censored {
                true => cluster.reference.beyond(u).1,
                false => clip(u).abs(),
            };
            self.deviations.0 +=
                weight * size / cluster.reference.size() * state.spread(cluster.spread);
            self.deviations.1 += weight;
        }
        if state.seen > 0 {
            let level = state.levels[cluster.rate];
            let (sum, square, count) = self.levels;
            self.levels = (sum + level, square + level * level, count + 1.0);
        }
    }

    fn watch_bound(&mut self, state: &WorkerState, y: f64, censored: bool) {
        if let LevelShift::Beyond(bound) = state.shift
            && state.shifted > 0.5
            && y > bound
        {
            self.beyond.0 += f64::from(u8::from(!censored));
            self.beyond.1 += y - bound;
        }
    }

    fn compare_rates(&mut self, state: &WorkerState, y: f64, censored: bool, spread: f64) {
        if !censored && state.seen > 1 && state.shifted < 0.5 {
            self.scored += 1.0;
            for (error, level) in self.errors.iter_mut().zip(state.levels) {
                *error += (y - level).abs().min(3.0 * spread);
            }
        }
    }

    /// Mean change of the levels of workers that arrived.
    pub(super) fn drift(&self) -> f64 {
        if self.moved.1 > 0.0 { self.moved.0 / self.moved.1 } else { 0.0 }
    }

    /// Mean and variance of levels, if there are any.
    pub(super) fn levels(&self) -> Option<(f64, f64)> {
        let (sum, square, count) = self.levels;
        let mean = sum / count;
        (count > 0.0).then(|| (mean, (square / count - mean * mean).max(0.0)))
    }
}
