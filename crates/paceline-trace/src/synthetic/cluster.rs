//! A synthetic cluster, round by round.

use super::{
    Phases, RoundSource,
    drift::{Drift, DriftModel},
    incident::{Incident, node_of},
    noise::Noise,
    regimes::{RegimeModel, Regimes},
    stalls::{StallModel, Stalls},
    stream::{Component, ComponentStream},
};

/// The components of a cluster, which multiply:
///
/// log x_i(t) = level_i + own_i(t) + common(t) + slow_node(t) + log noise_i(t) + log stall_i(t)
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
    levels: Vec<f64>,
    own: Option<Drift>,
    common: Option<Drift>,
    regimes: Option<Regimes>,
    noise: ComponentStream,
    stalls: Stalls,
}

impl Cluster {
    pub(super) fn new(model: ClusterModel, phases: Phases, seed: u64) -> Cluster {
        let n = model.workers;
        let mut levels = ComponentStream::new(seed, Component::Level);
        Cluster {
            phases,
            round: 0,
            levels: (0..n).map(|_| model.level_sd * levels.normal()).collect(),
            own: model.own.map(|drift| Drift::new(drift, n, seed, Component::Own)),
            common: model.common.map(|drift| Drift::new(drift, 1, seed, Component::Common)),
            regimes: model.regimes.map(|regimes| Regimes::new(regimes, model.nodes, seed)),
            noise: ComponentStream::new(seed, Component::Noise),
            stalls: Stalls::new(model.stalls, seed),
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
        let ClusterModel { level_sd, own, common, noise, .. } = &self.model;
        let drifts = [own, common].into_iter().flatten().map(|drift| drift.variance());
        let variance = level_sd * level_sd + drifts.sum::<f64>();
        (variance / 2.0).exp() * noise.mean()
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
        self.round += 1;
    }
}
