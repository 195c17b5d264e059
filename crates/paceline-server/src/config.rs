//! The settings of a run, with the defaults that a user gets.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use paceline_core::{Enough, LedgerState, NoiseScale, RoundConfig, Version};
use paceline_model::Model;
use paceline_params::{
    Checkpoint, FlatVec, LrScaling, OptimizerSpec, TensorSpec, UpdateConfig, WireType,
};
use paceline_policy::{Objective, PolicySpec};
use paceline_wire::{Listener, Transport, offer::Offer};
use serde::{Deserialize, Serialize};

use crate::{error::ServerError, faults::ShardFaults};

/// One run, from its first round to its last.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The run's name, for display.
    pub name: String,
    /// The model, as the user wrote it. Sent to workers.
    pub model: String,
    /// The data, as the user wrote it. Sent to workers.
    pub data: String,
    /// The costs of its samples, as the user wrote them; empty if all cost the same. Sent to workers.
    pub costs: String,
    /// Fingerprint of the costs by which batches are balanced, if they are (`Costs::fingerprint`).
    pub balance: Option<u64>,
    /// Seed of sample order, model and generated data.
    pub seed: u64,
    /// Samples in an epoch; `None` where workers bring streams of data, of which only weights count.
    pub samples: Option<u32>,
    /// Whether an epoch begins only when every sample of the one before is used.
    pub epoch_barrier: bool,
    /// When a round stops waiting.
    pub policy: PolicySpec,
    /// The quantity that the policy maximises.
    pub objective: Objective,
    /// The initial run-time model of policies that use one.
    pub run_time_model: Arc<Model>,
    /// Quorum, graces, stragglers, batches, and how many workers the first round waits for.
    pub round: RoundConfig,
    /// The split of the parameters into blocks and shards.
    pub placement: Placement,
    /// How far rounds and workers wait for slow shards.
    pub weak: WeakSync,
    /// Faults that shards of this process bear on purpose, by their number.
    pub shard_faults: BTreeMap<u32, Arc<dyn ShardFaults>>,
    /// The encoding of gradients and parameters on the wire.
    pub wire: WireType,
    /// How an update is made.
    pub update: UpdateConfig,
    /// When the run is over.
    pub limits: Limits,
    /// Whether to sum in worker order and to hash the parameters every round.
    pub deterministic: bool,
    /// Checkpoints, if any are to be written.
    pub checkpoints: Option<CheckpointConfig>,
    /// Rounds between evaluations on the test set.
    pub evaluate_every: u64,
    /// Time between a worker's heartbeats.
    pub heartbeat: Duration,
    /// A worker silent for longer is dead.
    pub liveness: Duration,
    /// The token that peers must present, if one is required.
    pub token: Option<String>,
    /// The transport of gradients and parameters.
    pub transport: Transport,
}

impl ServerConfig {
    /// Whether contributions stay in the staging memory until their round closes.
    pub(crate) fn folds_at_close(&self) -> bool {
        self.deterministic
    }

    /// Whether versions are mean gradients that every worker loads in order.
    pub(crate) fn keeps_history(&self) -> bool {
        *self.update.optimizer.of(0) == OptimizerSpec::Mean
    }

    /// Whether a shard may be left behind, by rounds, by pulls or by pushes.
    pub(crate) fn is_weak(&self) -> bool {
        self.weak.pull != Enough::All || self.weak.push != Enough::All
    }

    /// Whether any setting depends on the gradient noise scale.
    pub(crate) fn wants_noise(&self) -> bool {
        self.objective == Objective::Progress || self.update.scaling == LrScaling::AdaScale
    }
}

/// Weak synchronisation: how far rounds and workers wait for slow shards.
#[derive(Debug, Clone, Copy)]
pub struct WeakSync {
    /// The shards that a round needs, and the blocks whose newest values a worker needs.
    pub pull: Enough,
    /// The number of blocks on which a contribution must be complete to count.
    pub push: Enough,
    /// Updates, pulls or pushes that a shard may miss before it is waited for.
    pub max_stale: u64,
}

impl Default for WeakSync {
    /// Everybody waits for every shard.
    fn default() -> Self {
        WeakSync { pull: Enough::All, push: Enough::All, max_stale: 0 }
    }
}

/// Shards, blocks, and memory for contributions that wait to be folded.
#[derive(Debug, Clone)]
pub struct Placement {
    /// Number of shards.
    pub shards: u32,
    /// Whether the shards are other processes, which connect to the coordinator.
    pub remote: bool,
    /// Elements in a block; at most as many as fit in a frame.
    pub block_elems: usize,
    /// The most memory that staged contributions may take, over all shards. At least one
    /// contribution always fits.
    pub staging_bytes: u64,
}

/// Limits of a run. It is over at whichever comes first.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// Total rounds, including those before a resume.
    pub rounds: Option<u64>,
    /// Total epochs.
    pub epochs: Option<u32>,
    /// Test accuracy, 0 to 1.
    pub accuracy: Option<f64>,
    /// Test loss.
    pub loss: Option<f64>,
    /// Time since this process began the run.
    pub time: Option<Duration>,
    /// Whether the run is over once all workers that joined it have finished and left.
    pub workers_finish: bool,
}

/// Where and how often checkpoints are written.
#[derive(Debug, Clone)]
pub struct CheckpointConfig {
    /// The directory that holds them.
    pub dir: PathBuf,
    /// Rounds between them; the end of a run always writes one.
    pub every: u64,
    /// How many are kept.
    pub keep: usize,
}

/// The initial state of a run: fresh parameters, or those of a checkpoint.
#[derive(Debug, Clone)]
pub struct Start {
    /// The tensors, in the order of the flat vector.
    pub tensors: Vec<TensorSpec>,
    /// All parameters.
    pub params: FlatVec,
    /// The optimiser's state, one flat vector per slot; empty for a fresh start.
    pub slots: Vec<FlatVec>,
    /// The version of the parameters.
    pub version: Version,
    /// Updates applied to them.
    pub step: u64,
    /// The ledger's state at that point, if there is one.
    pub ledger: Option<LedgerState>,
    /// The state of the gradient noise estimate.
    pub noise: NoiseScale,
}

/// The state that a checkpoint keeps beside the parameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SavedState {
    /// The data ledger.
    pub ledger: LedgerState,
    /// Seed of the run: the sample order depends on it.
    pub seed: u64,
    /// The data, as the user wrote it.
    pub data: String,
    /// The balancing of batches, in words ([`SavedState::balance`]).
    #[serde(default = "unbalanced")]
    pub balance: String,
    /// The state of the gradient noise estimate.
    #[serde(default)]
    pub noise: NoiseScale,
    /// The offer that defined the run, if a worker brought its model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<Offer>,
    /// A worker's record of its last step, where workers that bring their model have none but the shards'
    /// parameters: learning rates and schedulers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
}

impl SavedState {
    /// The balancing of batches, in words. The sample order depends on all of it.
    pub fn balance(fingerprint: Option<u64>, batch: u32) -> String {
        match fingerprint {
            Some(costs) => format!("by the costs {costs:016x} in batches of {batch}"),
            None => "none".to_owned(),
        }
    }
}

fn unbalanced() -> String {
    SavedState::balance(None, 0)
}

impl Start {
    /// Resumes from a checkpoint.
    pub fn resume(checkpoint: Checkpoint) -> Result<(Start, SavedState), serde_json::Error> {
        let state: SavedState = serde_json::from_value(checkpoint.state)?;
        let start = Start {
            tensors: checkpoint.tensors,
            params: checkpoint.params,
            slots: checkpoint.slots,
            version: Version(checkpoint.version),
            step: checkpoint.step,
            ledger: Some(state.ledger.clone()),
            noise: state.noise.clone(),
        };
        Ok((start, state))
    }
}

/// A run to go on with whose workers bring their model.
#[derive(Debug, Clone)]
pub struct ResumedOffer {
    /// Where the shards start.
    pub start: Start,
    /// The offer that defined the run.
    pub offer: Offer,
    /// The state of a worker, where workers keep the parameters.
    pub(crate) worker_state: Option<Arc<Vec<u8>>>,
    /// A worker's record of the last step, where the shards keep them.
    pub(crate) record: Option<Vec<u8>>,
}

impl ResumedOffer {
    /// Resumes from a checkpoint; `None` if it is of a run without offers.
    pub fn new(mut checkpoint: Checkpoint) -> Result<Option<Self>, serde_json::Error> {
        let worker_state = checkpoint.worker_state.take();
        if worker_state.is_some() {
            // The shards hold means.
            let size = |tensor: &TensorSpec| tensor.shape.iter().product::<usize>();
            let total = checkpoint.tensors.iter().map(size).sum();
            checkpoint.params = FlatVec::from(vec![0.0; total]);
        }
        let (start, SavedState { offer, record, .. }) = Start::resume(checkpoint)?;
        let record = record.map(String::into_bytes);
        Ok(offer.map(|offer| ResumedOffer { start, offer, worker_state, record }))
    }
}

/// A server without a token may not listen on an address that other machines can reach.
#[derive(Debug, thiserror::Error)]
#[error(
    "refusing to listen on {0} without a token: anybody who can reach it could join the run. Give \
     one with --token-file or PACELINE_TOKEN, or bind 127.0.0.1"
)]
pub struct MissingToken(pub SocketAddr);

/// Checks that a listener on any address but loopback has a token. [`crate::serve`] and
/// [`crate::serve_shard`] check their listeners; call this to find out earlier.
pub fn check_bind(address: SocketAddr, token: Option<&str>) -> Result<(), MissingToken> {
    match address.ip().is_loopback() || token.is_some_and(|token| !token.is_empty()) {
        true => Ok(()),
        false => Err(MissingToken(address)),
    }
}

/// [`check_bind`] for a listener, if other processes can reach it at all.
pub(crate) fn check_listener(
    listener: &impl Listener,
    token: Option<&str>,
) -> Result<(), ServerError> {
    match listener.address().map_err(ServerError::Listener)? {
        Some(address) => Ok(check_bind(address, token)?),
        None => Ok(()),
    }
}
