//! The settings by which a round's sum becomes an update.

use crate::{Clip, LrScaling, OptimizerSpec, Schedule};

/// The settings of all updates of a run.
#[derive(Debug, Clone)]
pub struct UpdateConfig {
    /// The optimizer.
    pub optimizer: OptimizerSpec,
    /// Learning rate before schedule and scaling.
    pub learning_rate: f32,
    /// The learning rate over rounds.
    pub schedule: Schedule,
    /// How the learning rate follows the contributed weight.
    pub scaling: LrScaling,
    /// The weight at which scaling is 1.
    pub reference_weight: f64,
    /// Bound on the norm of the mean gradient.
    pub clip: Clip,
}

impl UpdateConfig {
    /// The learning rate of a round that closed with this weight; `noise` is the gradient noise
    /// scale, if it is known.
    pub fn learning_rate(&self, round: u64, weight: f64, noise: Option<f64>) -> f32 {
        self.learning_rate
            * self.schedule.at(round)
            * self.scaling.factor(weight, self.reference_weight, noise)
    }
}
