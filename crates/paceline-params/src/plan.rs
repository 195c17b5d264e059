//! From a closed round's sums to its update: learning rate, denominators, clipping.

use crate::UpdateConfig;

/// The gradient sum of a set of blocks that the same contributions are complete on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SumOfBlocks {
    /// Samples behind it.
    pub weight: f64,
    /// Its squared norm; 0 where that is not known yet.
    pub square: f64,
}

/// How a round's sums become its update. Every shard applies the same plan.
#[derive(Debug, Clone, PartialEq)]
pub struct UpdatePlan {
    /// The learning rate of each parameter group.
    pub learning_rates: Vec<f32>,
    /// The factor that turns each sum into the clipped mean.
    pub scales: Vec<f32>,
}

impl UpdatePlan {
    /// The plan for these sums in `round`. Without clipping their norms do not matter. `noise` is the
    /// gradient noise scale, if it is known; `given` are the rates that workers gave, if they did,
    /// one for each group.
    pub fn new(
        config: &UpdateConfig,
        round: u64,
        sums: &[SumOfBlocks],
        noise: Option<f64>,
        given: Option<&[f32]>,
    ) -> Self {
        let clip = config.clip.factor(gradient_norm(sums));
        UpdatePlan {
            learning_rates: config.learning_rates(round, update_weight(sums), noise, given),
            scales: sums.iter().map(|sum| clip * (1.0 / sum.weight) as f32).collect(),
        }
    }
}

/// Samples behind an update: those of its best-fed blocks.
pub fn update_weight(sums: &[SumOfBlocks]) -> f64 {
    sums.iter().map(|sum| sum.weight).fold(0.0, f64::max)
}

/// Norm of the mean gradient over all blocks.
pub fn gradient_norm(sums: &[SumOfBlocks]) -> f64 {
    let squares = sums.iter().map(|sum| sum.square / sum.weight.powi(2));
    squares.filter(|square| square.is_finite()).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clip, LrScaling, OptimizerSpec, Schedule};

    fn config() -> UpdateConfig {
        UpdateConfig {
            optimizer: OptimizerSpec::SGD.into(),
            learning_rate: 0.1,
            schedule: Schedule::default(),
            scaling: LrScaling::Linear,
            reference_weight: 40.0,
            clip: Clip::default(),
        }
    }

    #[test]
    fn the_mean_is_over_weights_and_the_rate_follows_them() {
        let sums = [SumOfBlocks { weight: 30.0, square: 900.0 }];
        assert_eq!(gradient_norm(&sums), 1.0);
        let plan = UpdatePlan::new(&config(), 0, &sums, None, None);
        assert_eq!(plan.scales, [1.0 / 30.0]);
        assert!((plan.learning_rates[0] - 0.075).abs() < 1e-7);
    }

    #[test]
    fn rates_that_workers_give_replace_the_schedule_and_are_scaled() {
        let config = UpdateConfig {
            optimizer: "sgd;sgd:weight_decay=0.1".parse().unwrap(),
            schedule: "step:1:0.5".parse().unwrap(),
            ..config()
        };
        let sums = [SumOfBlocks { weight: 20.0, square: 0.0 }];
        let rates = |given| UpdatePlan::new(&config, 1, &sums, None, given).learning_rates;
        assert_eq!(rates(Some(&[1.0, 0.25])), [0.5, 0.125]);
        assert_eq!(rates(None), [0.025; 2]);
    }

    #[test]
    fn a_long_gradient_is_clipped_to_its_bound() {
        let config = UpdateConfig { clip: "norm:0.5".parse().unwrap(), ..config() };
        let sums = [SumOfBlocks { weight: 10.0, square: 100.0 }];
        let plan = UpdatePlan::new(&config, 0, &sums, None, None);
        assert!((plan.scales[0] - 0.05).abs() < 1e-7);
    }

    #[test]
    fn blocks_that_nobody_contributed_to_count_nothing() {
        let sums =
            [SumOfBlocks { weight: 0.0, square: 0.0 }, SumOfBlocks { weight: 2.0, square: 16.0 }];
        assert_eq!(gradient_norm(&sums), 2.0);
        assert_eq!(update_weight(&sums), 2.0);
    }
}
