//! A synthetic cluster, round by round.

use super::{
    Phases, RoundSource,
    drift::{Drift, DriftModel},
    incident::{Incident, node_of},
    minority::{Minority, Roving, fixed_factors},
    noise::Noise,
    regimes::{RegimeModel, Regimes},
    shifts::{ShiftModel, Shifts},
    stalls::{StallModel, Stalls},
    stream::{Component, ComponentStream},
};

/// The components of a cluster, which multiply:
///
/// log x_i(t) = level_i + own_i(t) + common(t) + slow_node(t) + log noise_i(t) + log stall_i(t)
///
/// Minorities, shifts and the trend are further factors. The clock comes last: it rounds up.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ClusterModel {
    pub(super) workers: usize,
    pub(super) nodes: usize,
    /// Standard deviation of the workers' fixed levels.
    pub(super) level_sd: f64,
    /// Drift of each worker.
    pub(super) own: Option<DriftModel>,
    /// Drift common to all workers.
    pub(super) common: Option<DriftModel>,
    pub(super) regimes: Option<RegimeModel>,
    pub(super) noise: Noise,
    pub(super) stalls: StallModel,
    pub(super) incident: Option<Incident>,
    /// Workers that are always faster than the rest.
    pub(super) fast: Minority,
    /// Workers that are always slower.
    pub(super) slow: Minority,
    /// Workers that differ from the rest for one round.
    pub(super) roving: Minority,
    pub(super) shifts: Option<ShiftModel>,
    /// The logarithm of the factor that all run-times gain from round to round.
    pub(super) trend: f64,
    /// Run-times are multiples of this; 0 is a continuous clock.
    pub(super) clock: f64,
    /// The scale of all run-times.
    pub(super) unit: f64,
}

impl ClusterModel {
    /// Nothing but independent draws.
    pub(super) fn of_noise(workers: usize, noise: Noise, p: f64) -> ClusterModel {
        ClusterModel {
            workers,
            nodes: 1,
            level_sd: 0.0,
            own: None,
            common: None,
            regimes: None,
            noise,
            stalls: StallModel::preset(p),
            incident: None,
            fast: Minority::NONE,
            slow: Minority::NONE,
            roving: Minority::NONE,
            shifts: None,
            trend: 0.0,
            clock: 0.0,
            unit: 1.0,
        }
    }
}

/// A cluster whose rounds are drawn one after the other.
///
/// Drifts and the states of nodes advance by rounds or by the clock; noise and stalls are drawn anew
/// each round; a shift or a failure happens in a given round.
pub struct Cluster {
    model: ClusterModel,
    phases: Phases,
    round: u64,
    /// Logarithms of the workers' fixed factors.
    levels: Vec<f64>,
    own: Option<Drift>,
    common: Option<Drift>,
    regimes: Option<Regimes>,
    noise: ComponentStream,
    stalls: Stalls,
    roving: Roving,
    shifts: Option<Shifts>,
}

impl Cluster {
    pub(super) fn new(model: ClusterModel, phases: Phases, seed: u64) -> Cluster {
        let n = model.workers;
        let mut levels = ComponentStream::new(seed, Component::Level);
        let fixed = fixed_factors(model.fast, model.slow, n, seed);
        Cluster {
            phases,
            round: 0,
            levels: fixed.iter().map(|f| model.level_sd * levels.normal() + f.ln()).collect(),
            own: model.own.map(|drift| Drift::new(drift, n, seed, Component::Own)),
            common: model.common.map(|drift| Drift::new(drift, 1, seed, Component::Common)),
            regimes: model.regimes.map(|regimes| Regimes::new(regimes, model.nodes, seed)),
            noise: ComponentStream::new(seed, Component::Noise),
            stalls: Stalls::new(model.stalls, seed),
            roving: Roving::new(model.roving, n, seed),
            shifts: model.shifts.map(|shifts| Shifts::new(shifts, n, seed)),
            model,
        }
    }

    fn advance(&mut self, elapsed: f64) {
        for drift in [&mut self.own, &mut self.common].into_iter().flatten() {
            drift.advance(elapsed);
        }
        if let Some(regimes) = &mut self.regimes {
            regimes.advance(elapsed);
        }
    }
}

impl RoundSource for Cluster {
    fn workers(&self) -> usize {
        self.model.workers
    }

    fn undisturbed_mean(&self) -> f64 {
        let ClusterModel { level_sd, own, common, noise, unit, .. } = &self.model;
        let drifts = [own, common].into_iter().flatten().map(|drift| drift.variance());
        let variance = level_sd * level_sd + drifts.sum::<f64>();
        unit * (variance / 2.0).exp() * noise.mean()
    }

    fn next_round(&mut self, elapsed: f64, row: &mut [f64]) {
        let n = self.model.workers;
        assert_eq!(row.len(), n, "one run-time a worker");
        if self.round > 0 {
            self.advance(match self.phases {
                Phases::Rounds => 1.0,
                Phases::WallClock => elapsed.max(0.0),
            });
        }
        let common = self.common.as_ref().map_or(0.0, |drift| drift.values()[0]);
        for (i, x) in row.iter_mut().enumerate() {
            let own = self.own.as_ref().map_or(0.0, |drift| drift.values()[i]);
            let node = node_of(i, self.model.nodes, n);
            let slow = self.regimes.as_mut().map_or(0.0, |regimes| regimes.log_factor(node));
            *x = (self.levels[i] + own + common + slow).exp()
                * self.model.noise.draw(&mut self.noise)
                * self.stalls.factor();
        }
        if let Some(incident) = &self.model.incident {
            incident.touch(self.round, row);
        }
        self.roving.touch(row);
        if let Some(shifts) = &mut self.shifts {
            shifts.touch(self.round, row);
        }
        let ClusterModel { trend, clock, unit, .. } = self.model;
        let growth = (trend * self.round as f64).exp();
        row.iter_mut().for_each(|x| *x = unit * ticked(*x * growth, clock));
        self.round += 1;
    }
}

/// A run-time on a clock of this resolution: rounded up, so that it stays positive.
fn ticked(x: f64, clock: f64) -> f64 {
    if clock > 0.0 { (x / clock).ceil() * clock } else { x }
}
