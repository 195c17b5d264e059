//! `filter`: log run-time = worker's level + the round's common factor + its group's factor + a
//! pooled residual.
//!
//! Levels, spreads and change points are per worker ([`worker`]); the common factor is fitted anew
//! whenever the round is looked at ([`common`]), groups are found from the data ([`groups`]); the
//! residual's distribution is pooled over workers, standardised by each one's spread, by product
//! limit. O(n) per round.

mod common;
mod groups;
mod tally;
#[cfg(test)]
mod tests;
mod worker;

use std::collections::VecDeque;

use paceline_core::{Round, RunTime, Version, WorkerId};

use self::{
    common::{CommonFactor, Sight, fit_first},
    groups::GroupFactors,
    tally::RoundTally,
    worker::{ClusterState, LevelShift, RATES, WorkerState},
};
use super::{Predictor, log_seconds, residuals::ResidualDistribution};
use crate::scene::Scene;

/// Rounds that the pooled residuals remember.
const MEMORY: f64 = 150.0;
const SPREAD_RATE: f64 = 0.03;
/// Rounds whose common factor is kept for late reports.
const LATEST: usize = 256;
/// Most workers that the common factor is estimated from; of more, every k-th.
const SAMPLE: usize = 96;

/// The prediction for one worker, precomputed.
#[derive(Debug, Clone, Copy)]
struct WorkerOutlook {
    level: f64,
    spread: f64,
    per_spread: f64,
    shift: LevelShift,
    shifted: f64,
}

/// The filter.
pub struct Filter {
    workers: Vec<Option<WorkerState>>,
    /// One per worker, computed after every round.
    outlooks: Vec<WorkerOutlook>,
    residuals: ResidualDistribution,
    /// The prior's shape, with which locations and spreads are fitted: fitted with the learned shape,
    /// both could drift together.
    reference: ResidualDistribution,
    /// Spread of residuals over the cluster, in log run-time.
    spread: f64,
    /// Sizes of residuals and their number, decayed.
    deviations: (f64, f64),
    common: CommonFactor,
    groups: GroupFactors,
    rate: usize,
    rate_errors: [f64; RATES.len()],
    rates_scored: f64,
    /// For workers known only to be beyond a bound: arrivals, and log run-time at risk.
    beyond: (f64, f64),
    /// Mean and spread of levels, for a worker that was never seen.
    newcomer: (f64, f64),
    rounds: u64,
    /// The common factor of the round last looked at.
    factor: f64,
    /// Common factors of rounds whose stragglers may still report.
    factors: VecDeque<(Version, f64)>,
}

impl Default for Filter {
    fn default() -> Self {
        Filter {
            workers: Vec::new(),
            outlooks: Vec::new(),
            residuals: ResidualDistribution::new(0.1),
            reference: ResidualDistribution::new(0.1),
            spread: 0.1,
            deviations: (0.0, 0.0),
            common: CommonFactor::default(),
            groups: GroupFactors::default(),
            rate: 1,
            rate_errors: [0.0; RATES.len()],
            rates_scored: 0.0,
            beyond: (1.0, 1.0),
            newcomer: (0.0, 0.3),
            rounds: 0,
            factor: 0.0,
            factors: VecDeque::new(),
        }
    }
}

impl Filter {
    fn cluster(&self) -> ClusterState<'_> {
        ClusterState {
            residuals: &self.residuals,
            reference: &self.reference,
            spread: self.spread,
            hazard_beyond: self.beyond.0 / self.beyond.1,
            rate: self.rate,
        }
    }

    /// The prediction for a worker; the cluster's for a worker that was never seen.
    fn outlook(&self, worker: WorkerId) -> WorkerOutlook {
        self.outlooks.get(worker.0 as usize).copied().unwrap_or_else(|| self.outlook_of(None))
    }

    fn outlook_of(&self, state: Option<&WorkerState>) -> WorkerOutlook {
        let (level, spread) = match state {
            Some(state) if state.seen > 0 => (state.levels[self.rate], state.spread(self.spread)),
            _ => self.newcomer,
        };
        let (shift, shifted) =
            state.map_or((LevelShift::Somewhere, 0.0), |state| (state.shift, state.shifted));
        WorkerOutlook { level, spread, per_spread: 1.0 / spread, shift, shifted }
    }

    fn look_ahead(&mut self) {
        let outlooks = self.workers.iter().map(|state| self.outlook_of(state.as_ref())).collect();
        self.outlooks = outlooks;
    }

    fn sight(&self, worker: WorkerId, y: f64, observed: bool) -> Sight {
        let WorkerOutlook { level, per_spread, shifted, .. } = self.outlook(worker);
        let residual = y - level - self.groups.factor(worker.0 as usize);
        Sight { residual, per_spread, observed, trust: 1.0 - shifted }
    }
}

impl Predictor for Filter {
    fn name(&self) -> &'static str {
        "filter"
    }

    fn knows_beginnings(&self) -> bool {
        true
    }

    fn typical(&self, worker: WorkerId) -> Option<f64> {
        let state = self.workers.get(worker.0 as usize)?.as_ref()?;
        state.typical(self.rate).map(f64::exp)
    }

    fn look(&mut self, scene: &Scene) {
        self.groups.expect();
        let stride = scene.participants().div_ceil(SAMPLE).max(1);
        let arrived = scene
            .arrived
            .iter()
            .step_by(stride)
            .map(|a| self.sight(a.worker, a.run_time.max(1e-9).ln(), true));
        let silent = scene
            .silent
            .iter()
            .step_by(stride)
            .filter(|s| s.elapsed > 0.0)
            .map(|s| self.sight(s.worker, s.elapsed.ln(), false));
        let sights: Vec<Sight> = arrived.chain(silent).collect();
        if self.rounds == 0 {
            let (factor, spread) = fit_first(&sights);
            self.factor = factor;
            self.newcomer = (0.0, spread);
            self.spread = spread;
            self.residuals = ResidualDistribution::new(spread);
        } else {
            self.factor = self.common.fit(&sights, &self.reference);
            self.look_at_groups(scene);
        }
    }

    fn expect(&mut self) {
        self.groups.expect();
        self.factor = self.common.expected();
    }

    fn doubt(&mut self) -> bool {
        let expected = self.common.expected();
        let doubtful = self.rounds > 0 && self.factor != expected;
        if doubtful {
            self.factor = expected;
        }
        self.groups.expect_no_worse() || doubtful
    }

    fn survival(&self, worker: WorkerId, log_elapsed: f64) -> f64 {
        let y = log_elapsed - self.factor - self.groups.factor(worker.0 as usize);
        let WorkerOutlook { level, spread, per_spread, shift, shifted } = self.outlook(worker);
        let stays = self.residuals.survival((y - level) * per_spread);
        if shifted < 1e-3 {
            return stays;
        }
        let shifts = shift.survival(level, y, spread, &self.cluster());
        stays + shifted * (shifts - stays)
    }

    fn learn(&mut self, round: Round, times: &[(WorkerId, RunTime)]) {
        if times.is_empty() {
            return;
        }
        self.groups.expect();
        let sights: Vec<Sight> = times
            .iter()
            .step_by(times.len().div_ceil(SAMPLE).max(1))
            .map(|&(worker, run_time)| {
                self.sight(worker, log_seconds(run_time), !run_time.is_censored())
            })
            .collect();
        if self.rounds == 0 {
            let (factor, spread) = fit_first(&sights);
            // Levels carry the whole: the first factor is zero by definition.
            self.factor = 0.0;
            self.newcomer = (factor, spread.max(0.2));
            self.spread = spread;
            self.deviations = (spread, 1.0);
            self.residuals = ResidualDistribution::new(spread);
        } else {
            self.factor = self.common.fit(&sights, &self.reference);
            self.learn_groups(times);
        }
        self.rounds += 1;
        let drift = self.learn_workers(times);
        self.anchor(times, drift);
        self.factors.push_back((round.base(), self.factor));
        if self.factors.len() > LATEST {
            self.factors.pop_front();
        }
        self.residuals.rebuild(1.0 - 1.0 / MEMORY, self.spread);
        self.reference = ResidualDistribution::new(self.spread);
        self.look_ahead();
    }

    fn late(&mut self, worker: WorkerId, base: Version, run_time: RunTime) {
        self.learn_late(worker, base, run_time);
    }
}

impl Filter {
    fn learn_late(&mut self, worker: WorkerId, base: Version, run_time: RunTime) {
        let found = self.factors.iter().rev().find(|(version, _)| *version == base);
        let (Some(&(_, factor)), false) = (found, run_time.is_censored()) else { return };
        let Some(mut state) = self.workers.get_mut(worker.0 as usize).and_then(Option::take) else {
            return;
        };
        let index = worker.0 as usize;
        let y = log_seconds(run_time) - factor - self.groups.factor(index);
        let seen = state.observe(y, &self.cluster());
        self.workers[index] = Some(state);
        if let Some((u, weight)) = seen {
            self.residuals.observe(u, weight);
        }
    }

    /// Fits the groups' factors to arrivals and silences.
    fn look_at_groups(&mut self, scene: &Scene) {
        if self.groups.is_empty() {
            return;
        }
        let mut seen: Vec<Option<(f64, bool)>> = vec![None; self.workers.len()];
        let mut see = |worker: WorkerId, seconds: f64, observed: bool| {
            if let Some(cell) = seen.get_mut(worker.0 as usize) {
                *cell = Some((seconds.max(1e-9).ln(), observed));
            }
        };
        scene.arrived.iter().for_each(|a| see(a.worker, a.run_time, true));
        scene.silent.iter().for_each(|s| see(s.worker, s.elapsed, false));
        self.fit_groups(&seen, false);
    }

    fn learn_groups(&mut self, times: &[(WorkerId, RunTime)]) {
        let mut seen: Vec<Option<(f64, bool)>> = vec![None; self.workers.len()];
        let residuals: Vec<(usize, f64)> = times
            .iter()
            .filter_map(|&(worker, time)| {
                let (y, observed) = (log_seconds(time), !time.is_censored());
                let index = worker.0 as usize;
                *seen.get_mut(index)? = Some((y, observed));
                let WorkerOutlook { level, per_spread, .. } = self.outlook(worker);
                let u = (y - self.factor - level) * per_spread;
                Some((index, if observed { u } else { self.reference.beyond(u).0.max(u) }))
            })
            .collect();
        self.fit_groups(&seen, true);
        self.groups.learn(residuals.into_iter());
    }

    fn fit_groups(&mut self, seen: &[Option<(f64, bool)>], learn: bool) {
        let mut groups = std::mem::take(&mut self.groups);
        let sight_of = |worker: usize| {
            let (y, observed) = seen.get(worker).copied().flatten()?;
            // `self.groups` is empty here, so the residual still contains the group's factor.
            let mut sight = self.sight(WorkerId(worker as u32), y, observed);
            sight.residual -= self.factor;
            Some(sight)
        };
        groups.fit(&self.reference, sight_of, learn);
        self.groups = groups;
    }

    /// Chooses the slowest forgetting rate whose errors are not clearly larger than the best's.
    fn choose_rate(&mut self, errors: &[f64; RATES.len()], scored: f64) {
        for (kept, error) in self.rate_errors.iter_mut().zip(errors) {
            *kept = 0.99 * *kept + error;
        }
        self.rates_scored = 0.99 * self.rates_scored + scored;
        let least = self.rate_errors.iter().copied().fold(f64::INFINITY, f64::min);
        let clearly = 1.0 + 1.0 / (1.0 + self.rates_scored).sqrt();
        let good = |&rate: &usize| self.rate_errors[rate] <= clearly * least;
        self.rate = (0..RATES.len()).find(good).unwrap_or(0);
    }

    /// Moves the arrivals' common drift from their levels to the round's factor. Only the sum of factor
    /// and level is ever used, so both may shift against each other as long as this keeps the sum.
    fn anchor(&mut self, times: &[(WorkerId, RunTime)], drift: f64) {
        for (worker, _) in times.iter().filter(|(_, time)| !time.is_censored()) {
            if let Some(state) = &mut self.workers[worker.0 as usize] {
                state.levels.iter_mut().for_each(|level| *level -= drift);
            }
        }
        if self.rounds > 1 {
            self.common.learn(self.factor + drift);
        }
    }

    /// Returns the mean change of the levels of workers that arrived.
    fn learn_workers(&mut self, times: &[(WorkerId, RunTime)]) -> f64 {
        let mut tally = RoundTally::default();
        for &(worker, run_time) in times {
            let index = worker.0 as usize;
            if index >= self.workers.len() {
                self.workers.resize_with(index + 1, || None);
            }
            let mut state = self.workers[index].take().unwrap_or_else(WorkerState::new);
            let y = log_seconds(run_time) - self.factor - self.groups.factor(index);
            tally.add(&mut state, y, run_time.is_censored(), &self.cluster());
            self.workers[index] = Some(state);
        }
        self.take_in(&tally, times.len() as f64);
        tally.drift()
    }

    fn take_in(&mut self, tally: &RoundTally, workers: f64) {
        for &(u, weight, censored) in &tally.pool {
            match censored {
                true => self.residuals.censor(u, weight),
                false => self.residuals.observe(u, weight),
            }
        }
        let (sizes, count) = tally.deviations;
        if count > 0.0 {
            let keep = 1.0 - SPREAD_RATE;
            self.deviations.0 = keep * self.deviations.0 + sizes / workers;
            self.deviations.1 = keep * self.deviations.1 + count / workers;
            self.spread = (self.deviations.0 / self.deviations.1).clamp(1e-5, 1.5);
        }
        self.choose_rate(&tally.errors, tally.scored);
        self.beyond.0 = 0.98 * self.beyond.0 + 0.02 + tally.beyond.0;
        self.beyond.1 = 0.98 * self.beyond.1 + 0.02 + tally.beyond.1;
        if let Some((mean, variance)) = tally.levels() {
            self.newcomer = (mean, (variance + self.spread * self.spread).sqrt().max(0.1));
        }
    }
}
