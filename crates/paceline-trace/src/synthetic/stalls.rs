//! Workers that stall for a round.

use super::stream::{Component, ComponentStream, pareto};

/// Frequency and length of stalls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct StallModel {
    /// Probability per worker and round.
    pub(super) p: f64,
    /// A stall multiplies by 1 + scale · L,
    pub(super) scale: f64,
    /// L being Lomax of this shape.
    pub(super) shape: f64,
}

impl StallModel {
    /// The stalls of the presets, this often.
    pub(super) fn preset(p: f64) -> StallModel {
        StallModel { p, scale: 2.0, shape: 1.2 }
    }
}

/// Draws stalls.
pub(super) struct Stalls {
    model: StallModel,
    stream: ComponentStream,
}

impl Stalls {
    pub(super) fn new(model: StallModel, seed: u64) -> Stalls {
        Stalls { model, stream: ComponentStream::new(seed, Component::Stall) }
    }

    /// The factor of one worker in one round; 1 if it does not stall. Always draws twice, so that the
    /// stalls of a smaller probability are a subset of those of a larger, with equal lengths.
    pub(super) fn factor(&mut self) -> f64 {
        let (chance, length) = (self.stream.uniform(), self.stream.uniform_above_zero());
        if chance < self.model.p {
            1.0 + self.model.scale * (pareto(length, self.model.shape) - 1.0)
        } else {
            1.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::statistics::same_distribution;

    fn factors(p: f64) -> Vec<f64> {
        let mut stalls = Stalls::new(StallModel::preset(p), 5);
        (0..500_000).map(|_| stalls.factor()).collect()
    }

    #[test]
    fn as_often_and_as_bad_as_stated() {
        let mut stalled: Vec<f64> = factors(0.02).into_iter().filter(|&f| f != 1.0).collect();
        let share = stalled.len() as f64 / 500_000.0;
        assert!((share - 0.02).abs() < 0.001, "{share}");
        same_distribution(&mut stalled, |f| 1.0 - (1.0 + (f - 1.0) / 2.0).powf(-1.2));
        assert!(factors(0.0).iter().all(|&f| f == 1.0));
    }

    #[test]
    fn rarer_stalls_are_among_the_more_frequent() {
        for (rare, often) in factors(0.002).into_iter().zip(factors(0.02)) {
            assert!(rare == 1.0 || rare == often);
        }
    }
}
