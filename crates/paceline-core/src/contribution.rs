//! Contributions: gradient sums with a weight and the version they were computed from.

use serde::{Deserialize, Serialize};

use crate::{Blocks, RunTime, Time, Version, WorkerId};

/// What a worker says of the gradient sum that it has put on the shards. The sum itself never
/// passes through the core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contribution {
    /// Whose it is.
    pub worker: WorkerId,
    /// The version of the parameters it was computed from.
    pub base: Version,
    /// Samples behind the sum. The update divides by the sum of weights, so unequal batches are
    /// right by construction.
    pub weight: f64,
    /// Sum of the loss over those samples.
    pub loss: f64,
    /// Squared norm of the gradient sum, where the run asks for it.
    pub square: Option<f64>,
    /// The blocks it is complete on.
    pub blocks: Blocks,
}

/// A contribution accepted into a round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arrival {
    /// What came.
    pub contribution: Contribution,
    /// When it was complete on every shard.
    pub at: Time,
    /// How long it took; censored if only a part of the work was salvaged.
    pub run_time: RunTime,
    /// The share of its work that came.
    pub share: f64,
    /// What a sample of it counts for in the update.
    pub worth: f64,
}
