//! The settings by which a round's sum becomes an update.

use crate::{Clip, LrScaling, OptimizerGroups, Schedule};

/// The settings of all updates of a run.
#[derive(Debug, Clone)]
pub struct UpdateConfig {
    /// The optimizer of each parameter group.
    pub optimizer: OptimizerGroups,
    /// Learning rate of all groups before schedule and scaling, unless workers give the rates.
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
    /// The learning rate of each group in a round that closed with this weight. It is the rate in
    /// `given`, or else the schedule's, times the scaling; `noise` is the gradient noise scale, if
    /// it is known.
    pub fn learning_rates(
        &self,
        round: u64,
        weight: f64,
        noise: Option<f64>,
        given: Option<&[f32]>,
    ) -> Vec<f32> {
        let factor = self.scaling.factor(weight, self.reference_weight, noise);
        match given {
            Some(rates) => rates.iter().map(|rate| rate * factor).collect(),
            None => {
                let rate = self.learning_rate * self.schedule.at(round) * factor;
                vec![rate; self.optimizer.len()]
            }
        }
    }
}
