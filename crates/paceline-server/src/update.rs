//! From a closed round's sums to the update: learning rate, denominators, clipping.

use paceline_core::BlockClose;

use crate::config::UpdateConfig;

/// What every shard must know to apply a round's update.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PlannedUpdate {
    pub(crate) learning_rate: f32,
    /// What turns each close's sum into the clipped mean.
    pub(crate) scales: Vec<f32>,
    /// Norm of the mean gradient over all blocks, before clipping.
    pub(crate) gradient_norm: f64,
}

impl PlannedUpdate {
    /// `norms` are the squared norms of each close's sum, over all shards.
    pub(crate) fn new(
        config: &UpdateConfig,
        round: u64,
        closes: &[BlockClose],
        norms: &[f64],
    ) -> Self {
        let weights: Vec<f64> = closes.iter().map(BlockClose::weight).collect();
        let squares = norms.iter().zip(&weights).map(|(norm, weight)| norm / (weight * weight));
        let gradient_norm = squares.filter(|square| square.is_finite()).sum::<f64>().sqrt();
        let clip = config.clip.factor(gradient_norm);
        let heaviest = weights.iter().copied().fold(0.0, f64::max);
        PlannedUpdate {
            learning_rate: config.learning_rate
                * config.schedule.at(round)
                * config.scaling.factor(heaviest, config.reference_weight),
            scales: weights.iter().map(|weight| clip * (1.0 / weight) as f32).collect(),
            gradient_norm,
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_core::{Blocks, WorkerId};
    use paceline_params::{Clip, LrScaling, OptimizerSpec, Schedule};

    use super::*;

    fn config() -> UpdateConfig {
        UpdateConfig {
            optimizer: OptimizerSpec::SGD,
            learning_rate: 0.1,
            schedule: Schedule::default(),
            scaling: LrScaling::Linear,
            reference_weight: 40.0,
            clip: Clip::default(),
        }
    }

    fn close(weights: &[f64]) -> BlockClose {
        let members = (0..).map(WorkerId).zip(weights.iter().copied()).collect();
        BlockClose { blocks: Blocks::All, members }
    }

    #[test]
    fn the_mean_is_over_weights_and_the_rate_follows_them() {
        let plan = PlannedUpdate::new(&config(), 0, &[close(&[10.0, 20.0])], &[900.0]);
        assert_eq!(plan.scales, [1.0 / 30.0]);
        assert_eq!(plan.gradient_norm, 1.0);
        assert!((plan.learning_rate - 0.075).abs() < 1e-7);
    }

    #[test]
    fn a_long_gradient_is_clipped_to_its_bound() {
        let config = UpdateConfig { clip: "norm:0.5".parse().unwrap(), ..config() };
        let plan = PlannedUpdate::new(&config, 0, &[close(&[10.0])], &[100.0]);
        assert_eq!(plan.gradient_norm, 1.0);
        assert!((plan.scales[0] - 0.05).abs() < 1e-7);
    }
}
