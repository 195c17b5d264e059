//! From a closed round's sums to the update: learning rate, denominators, clipping.

use paceline_core::BlockClose;
use paceline_params::UpdateConfig;

/// How a round's sums become its update.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) learning_rate: f32,
    /// What turns each close's sum into the clipped mean.
    pub(crate) scales: Vec<f32>,
}

impl Plan {
    /// `gradient_norm` is that of the mean gradient; without clipping it does not matter. `noise` is
    /// the gradient noise scale, if it is known.
    pub(crate) fn new(
        config: &UpdateConfig,
        round: u64,
        closes: &[BlockClose],
        gradient_norm: f64,
        noise: Option<f64>,
    ) -> Self {
        let clip = config.clip.factor(gradient_norm);
        Plan {
            learning_rate: config.learning_rate(round, weight(closes), noise),
            scales: closes.iter().map(|close| clip * (1.0 / close.weight()) as f32).collect(),
        }
    }
}

/// Samples behind an update: those of its best-fed blocks.
pub(crate) fn weight(closes: &[BlockClose]) -> f64 {
    closes.iter().map(BlockClose::weight).fold(0.0, f64::max)
}

/// Norm of the mean gradient over all blocks, from the squared norms of each close's sum.
pub(crate) fn gradient_norm(closes: &[BlockClose], norms: &[f64]) -> f64 {
    let squares = norms.iter().zip(closes).map(|(norm, close)| norm / close.weight().powi(2));
    squares.filter(|square| square.is_finite()).sum::<f64>().sqrt()
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
        let closes = [close(&[10.0, 20.0])];
        let norm = gradient_norm(&closes, &[900.0]);
        assert_eq!(norm, 1.0);
        let plan = Plan::new(&config(), 0, &closes, norm, None);
        assert_eq!(plan.scales, [1.0 / 30.0]);
        assert!((plan.learning_rate - 0.075).abs() < 1e-7);
    }

    #[test]
    fn a_long_gradient_is_clipped_to_its_bound() {
        let config = UpdateConfig { clip: "norm:0.5".parse().unwrap(), ..config() };
        let plan = Plan::new(&config, 0, &[close(&[10.0])], 1.0, None);
        assert!((plan.scales[0] - 0.05).abs() < 1e-7);
    }
}
