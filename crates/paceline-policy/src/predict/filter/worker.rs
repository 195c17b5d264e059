//! The filter's state of one worker.

use crate::predict::residuals::{ResidualDistribution, clip};

/// Forgetting rates of the level estimates kept side by side; the cluster's data choose among them.
pub(super) const RATES: [f64; 4] = [0.02, 0.1, 0.35, 0.8];
/// Probability per round that a worker leaves its level (a change point), and that it returns.
const LEAVES: f64 = 0.004;
const RETURNS: f64 = 0.03;
/// Decay of an old lower bound, in log run-time per round.
const BOUND_FADES: f64 = 0.002;
/// Spread of a new level about the old, in log run-time.
const NEW_LEVEL: f64 = 0.7;
/// Assumed distance beyond its bound of a worker that was never seen, in log run-time.
const BEYOND: f64 = 0.4;
/// Pseudo-observations behind the cluster's spread in a worker's own.
const SPREAD_PRIOR: f64 = 6.0;
const SPREAD_RATE: f64 = 0.03;

/// The level of a worker that has left its old one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum LevelShift {
    /// Unknown.
    Somewhere,
    /// Known.
    Level(f64),
    /// Beyond this bound: the worker has only been censored since.
    Beyond(f64),
}

impl LevelShift {
    /// Probability that a shifted worker takes longer than `y`, its old level being `level`.
    pub(super) fn survival(
        self,
        level: f64,
        y: f64,
        spread: f64,
        cluster: &ClusterState<'_>,
    ) -> f64 {
        match self {
            LevelShift::Somewhere => somewhere_survival(y - level),
            LevelShift::Level(at) => cluster.residuals.survival((y - at) / spread),
            LevelShift::Beyond(bound) => (-cluster.hazard_beyond * (y - bound).max(0.0)).exp(),
        }
    }
}

/// One worker's level (log run-time less the round's common factor), spread, and the probability that
/// it has left the level: the run-length posterior of online change-point detection, pruned to the two
/// hypotheses that matter.
#[derive(Debug, Clone)]
pub(super) struct WorkerState {
    pub(super) seen: u32,
    /// Observations behind the level; a censored one counts by its information.
    evidence: f64,
    pub(super) levels: [f64; RATES.len()],
    deviation: f64,
    deviation_weight: f64,
    pub(super) shift: LevelShift,
    /// Probability of the shift.
    pub(super) shifted: f64,
}

/// Pooled estimates that a worker's update uses.
pub(super) struct ClusterState<'a> {
    pub(super) residuals: &'a ResidualDistribution,
    pub(super) reference: &'a ResidualDistribution,
    pub(super) spread: f64,
    /// Hazard, in log run-time, of a worker that is known only to be beyond a bound.
    pub(super) hazard_beyond: f64,
    /// Which of [`RATES`] is in force.
    pub(super) rate: usize,
}

impl WorkerState {
    pub(super) fn new() -> WorkerState {
        WorkerState {
            seen: 0,
            evidence: 0.0,
            levels: [0.0; RATES.len()],
            deviation: 0.0,
            deviation_weight: 0.0,
            shift: LevelShift::Somewhere,
            shifted: LEAVES,
        }
    }

    /// Its own spread, shrunk towards the cluster's.
    pub(super) fn spread(&self, cluster: f64) -> f64 {
        let weight = SPREAD_PRIOR + self.deviation_weight;
        let spread = (SPREAD_PRIOR * cluster + self.deviation) / weight;
        let few = 1.0 + 1.0 / (1.0 + f64::from(self.seen));
        spread * few.sqrt()
    }

    /// Its level, if known; for a worker that was never seen, somewhat beyond its longest silence.
    pub(super) fn typical(&self, rate: usize) -> Option<f64> {
        match self.shift {
            LevelShift::Beyond(bound) if self.seen == 0 => Some(bound + BEYOND),
            _ => (self.seen > 0).then(|| self.levels[rate]),
        }
    }

    /// A round passes: the worker may leave its level or return to it.
    pub(super) fn pass(&mut self) {
        self.shifted = self.shifted * (1.0 - RETURNS) + (1.0 - self.shifted) * LEAVES;
        if let LevelShift::Beyond(bound) = &mut self.shift {
            *bound -= BOUND_FADES;
        }
    }

    /// The worker took `y`. Returns the residual (in spreads) and its weight in the pool.
    pub(super) fn observe(&mut self, y: f64, cluster: &ClusterState<'_>) -> Option<(f64, f64)> {
        if self.seen == 0 {
            self.restart(y);
            return None;
        }
        let level = self.levels[cluster.rate];
        let spread = self.spread(cluster.spread);
        let u = (y - level) / spread;
        let stays = cluster.residuals.log_density(u).exp() / spread;
        let shifts = match self.shift {
            LevelShift::Somewhere => somewhere_density(y - level),
            LevelShift::Level(at) => {
                cluster.residuals.log_density((y - at) / spread).exp() / spread
            }
            LevelShift::Beyond(bound) if y >= bound => {
                cluster.hazard_beyond * (-cluster.hazard_beyond * (y - bound)).exp()
            }
            LevelShift::Beyond(_) => 0.02 * somewhere_density(y - level),
        };
        let before = self.shifted;
        self.shifted = posterior(before, shifts, stays);
        if self.shifted > 0.5 {
            let known = match self.shift {
                LevelShift::Level(at) if before < 0.9 => Some(at),
                _ => None,
            };
            match known {
                _ if before >= 0.9 => self.swap(y),
                Some(at) if self.shifted > 0.9 => self.swap(0.5 * (at + y)),
                Some(at) => self.shift = LevelShift::Level(0.5 * (at + y)),
                None => self.shift = LevelShift::Level(y),
            }
            return Some((u, 1.0 - self.shifted));
        }
        self.seen = self.seen.saturating_add(1);
        self.evidence += 1.0;
        self.follow(y, spread, |u| clip(u) - cluster.reference.mean());
        self.widen(clip(u).abs() / cluster.reference.size() * spread, 1.0);
        Some((u, 1.0 - self.shifted))
    }

    /// The worker took longer than `y`.
    pub(super) fn censor(&mut self, y: f64, cluster: &ClusterState<'_>) -> Option<(f64, f64)> {
        if self.seen == 0 {
            let bound = match self.shift {
                LevelShift::Beyond(bound) => bound.max(y),
                _ => y,
            };
            (self.shift, self.shifted) = (LevelShift::Beyond(bound), 1.0);
            return None;
        }
        let spread = self.spread(cluster.spread);
        let u = (y - self.levels[cluster.rate]) / spread;
        let stays = cluster.residuals.survival(u);
        let shifts = self.shift.survival(self.levels[cluster.rate], y, spread, cluster);
        self.shifted = posterior(self.shifted, shifts, stays);
        match self.shift {
            LevelShift::Beyond(bound) => self.shift = LevelShift::Beyond(bound.max(y)),
            LevelShift::Level(at) if y < at + 2.0 * spread => {}
            _ if self.shifted > 0.5 => self.shift = LevelShift::Beyond(y),
            _ => {}
        }
        if self.shifted < 0.5 {
            let reference = cluster.reference;
            // A bound far below the level is uninformative about level and spread.
            let told = 1.0 - reference.survival(u);
            self.evidence += told;
            self.follow(y, spread, |u| reference.beyond(u).0 - reference.mean());
            self.widen(reference.beyond(u).1 / reference.size() * spread, told);
        }
        Some((u, 1.0 - self.shifted))
    }

    fn restart(&mut self, y: f64) {
        (self.seen, self.evidence) = (1, 1.0);
        self.levels = [y; RATES.len()];
        self.shift = LevelShift::Somewhere;
        self.shifted = LEAVES;
    }

    /// Adopts the shifted level; the worker may return to the old one.
    fn swap(&mut self, level: f64) {
        let old = self.levels[0];
        self.restart(level);
        (self.seen, self.evidence) = (2, 2.0);
        self.shift = LevelShift::Level(old);
    }

    /// Moves every level estimate by its clipped residual to `y`, in spreads.
    fn follow(&mut self, y: f64, spread: f64, residual: impl Fn(f64) -> f64) {
        for (level, rate) in self.levels.iter_mut().zip(RATES) {
            let gain = rate.max(1.0 / self.evidence.max(1.0));
            *level += gain * residual((y - *level) / spread) * spread;
        }
    }

    /// Moves the spread by the size of a residual, weighted by its information.
    fn widen(&mut self, size: f64, told: f64) {
        let keep = 1.0 - SPREAD_RATE * told;
        self.deviation = keep * self.deviation + told * size;
        self.deviation_weight = keep * self.deviation_weight + told;
    }
}

fn posterior(prior: f64, shifts: f64, stays: f64) -> f64 {
    let odds = prior * shifts;
    let all = odds + (1.0 - prior) * stays;
    if all > 0.0 { (odds / all).clamp(1e-6, 1.0 - 1e-6) } else { prior }
}

fn somewhere_density(r: f64) -> f64 {
    0.5 / NEW_LEVEL * (-r.abs() / NEW_LEVEL).exp()
}

fn somewhere_survival(r: f64) -> f64 {
    let beyond = 0.5 * (-r.abs() / NEW_LEVEL).exp();
    if r > 0.0 { beyond } else { 1.0 - beyond }
}
