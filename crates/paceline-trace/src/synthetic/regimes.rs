//! Nodes that are fast or slow for a while.

use super::stream::{Component, ComponentStream};

/// Transitions of nodes between fast and slow, and the factor of slow nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RegimeModel {
    /// Probability that a fast node turns slow in one unit of time.
    pub(super) to_slow: f64,
    /// Probability that a slow node turns fast in one unit of time. The sum with `to_slow` is below 1.
    pub(super) to_fast: f64,
    /// A slow node's workers take this factor to the power of u, uniform over `spread`.
    pub(super) factor: f64,
    /// Least and largest u.
    pub(super) spread: (f64, f64),
}

impl RegimeModel {
    /// The regimes of the presets.
    pub(super) const PRESET: RegimeModel =
        RegimeModel { to_slow: 0.01, to_fast: 0.08, factor: 1.8, spread: (0.7, 1.2) };

    /// The share of time that a node is slow.
    fn slow_share(self) -> f64 {
        self.to_slow / (self.to_slow + self.to_fast)
    }

    /// The probability of being slow after `elapsed`: the two-state chain to the power of `elapsed`,
    /// which for one unit of time is `to_slow` or 1 − `to_fast`.
    fn slow_after(self, slow: bool, elapsed: f64) -> f64 {
        let left = (1.0 - self.to_slow - self.to_fast).powf(elapsed);
        let share = self.slow_share();
        if slow { share + (1.0 - share) * left } else { share * (1.0 - left) }
    }
}

/// The states of a cluster's nodes; they start in the stationary distribution.
pub(super) struct Regimes {
    model: RegimeModel,
    states: ComponentStream,
    slowness: ComponentStream,
    slow: Vec<bool>,
}

impl Regimes {
    pub(super) fn new(model: RegimeModel, nodes: usize, seed: u64) -> Regimes {
        let mut states = ComponentStream::new(seed, Component::State);
        let slow = (0..nodes).map(|_| states.uniform() < model.slow_share()).collect();
        Regimes { model, states, slowness: ComponentStream::new(seed, Component::Slowness), slow }
    }

    /// Lets time pass.
    pub(super) fn advance(&mut self, elapsed: f64) {
        let chance = [false, true].map(|slow| self.model.slow_after(slow, elapsed));
        for slow in &mut self.slow {
            *slow = self.states.uniform() < chance[usize::from(*slow)];
        }
    }

    /// The term that `node` adds to the logarithm of a worker's run-time this round. Draws in either
    /// state, so that a state changes only its own node.
    pub(super) fn log_factor(&mut self, node: usize) -> f64 {
        let (least, most) = self.model.spread;
        let u = least + (most - least) * self.slowness.uniform();
        if self.slow[node] { u * self.model.factor.ln() } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::statistics::same_distribution;

    const MODEL: RegimeModel = RegimeModel::PRESET;

    #[test]
    fn one_unit_of_time_has_the_stated_chances() {
        assert!((MODEL.slow_after(false, 1.0) - 0.01).abs() < 1e-15);
        assert!((MODEL.slow_after(true, 1.0) - 0.92).abs() < 1e-15);
        assert_eq!(MODEL.slow_after(true, 0.0), 1.0);
        let twice = 0.01 * 0.92 + 0.99 * 0.01;
        assert!((MODEL.slow_after(false, 2.0) - twice).abs() < 1e-15);
    }

    #[test]
    fn a_node_is_slow_a_ninth_of_the_time_at_any_pace() {
        for elapsed in [0.3, 1.0, 4.0] {
            let mut regimes = Regimes::new(MODEL, 640, 9);
            let (mut slow, rounds) = (0usize, 5_000);
            for _ in 0..rounds {
                regimes.advance(elapsed);
                slow += regimes.slow.iter().filter(|&&slow| slow).count();
            }
            let share = slow as f64 / (640 * rounds) as f64;
            assert!((share - 1.0 / 9.0).abs() < 0.004, "{share} at {elapsed}");
        }
    }

    #[test]
    fn slow_workers_take_their_factor() {
        let mut regimes = Regimes::new(MODEL, 2, 9);
        regimes.slow = vec![false, true];
        assert!((0..1000).all(|_| regimes.log_factor(0) == 0.0));
        let mut powers: Vec<f64> =
            (0..20_000).map(|_| regimes.log_factor(1) / 1.8f64.ln()).collect();
        same_distribution(&mut powers, |u| ((u - 0.7) / 0.5).clamp(0.0, 1.0));
    }
}
