//! What a run is told: all settings, with the defaults that a user gets.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use paceline_core::{Enough, LedgerState, NoiseScale, RoundConfig, Version};
use paceline_model::Model;
use paceline_params::{Checkpoint, FlatVec, LrScaling, TensorSpec, UpdateConfig, WireType};
use paceline_policy::{Objective, PolicySpec};
use paceline_wire::{Listener, Transport};
use serde::{Deserialize, Serialize};

use crate::{faults::ShardFaults, run::ServerError};

/// One run, from its first round to its last.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The run's name, for people.
    pub name: String,
    /// The model, as the user wrote it; workers are told.
    pub model: String,
    /// The data, as the user wrote it; workers are told.
    pub data: String,
    /// What its samples cost, as the user wrote it, empty if they are all alike; workers are told.
    pub costs: String,
    /// By what exactly batches are balanced, if they are (`Costs::fingerprint`).
    pub balance: Option<u64>,
    /// Seed of sample order, model and generated data.
    pub seed: u64,
    /// Samples in an epoch.
    pub samples: u32,
    /// When a round stops waiting.
    pub policy: PolicySpec,
    /// What it wants the most of.
    pub objective: Objective,
    /// The model of run-times that such policies begin with as have one.
    pub run_time_model: Arc<Model>,
    /// Quorum, graces, stragglers, batches, and how many workers the first round waits for.
    pub round: RoundConfig,
    /// How the parameters are cut up and spread.
    pub placement: Placement,
    /// How far rounds and workers wait for slow shards.
    pub weak: WeakSync,
    /// Faults that shards of this process bear on purpose, by their number.
    pub shard_faults: BTreeMap<u32, Arc<dyn ShardFaults>>,
    /// How gradients and parameters travel between workers and shards.
    pub wire: WireType,
    /// How an update is made.
    pub update: UpdateConfig,
    /// When the run is over.
    pub limits: Limits,
    /// Sums in worker order and a hash of the parameters every round.
    pub deterministic: bool,
    /// Checkpoints, if any are to be written.
    pub checkpoints: Option<CheckpointConfig>,
    /// Rounds between evaluations on the test set.
    pub evaluate_every: u64,
    /// How often workers give a sign of life.
    pub heartbeat: Duration,
    /// A worker silent for longer is dead.
    pub liveness: Duration,
    /// What peers must show to be let in.
    pub token: Option<String>,
    /// What gradients and parameters go by.
    pub transport: Transport,
}

impl ServerConfig {
    /// Whether contributions stay in the staging memory until their round closes.
    pub(crate) fn folds_at_close(&self) -> bool {
        self.deterministic
    }

    /// Whether a shard may be left behind, by rounds, by pulls or by pushes.
    pub(crate) fn is_weak(&self) -> bool {
        self.weak.pull != Enough::All || self.weak.push != Enough::All
    }

    /// Whether something depends on the gradient noise scale.
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
    /// Shards.
    pub shards: u32,
    /// Whether they are other processes, which will call.
    pub remote: bool,
    /// Elements in a block; at most what a frame carries.
    pub block_elems: usize,
    /// The most memory that staged contributions may take, over all shards. At least one
    /// contribution always fits.
    pub staging_bytes: u64,
}

/// When the run is over; whichever comes first.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// Rounds in all, those before a resume included.
    pub rounds: Option<u64>,
    /// Epochs in all.
    pub epochs: Option<u32>,
    /// Test accuracy, 0 to 1.
    pub accuracy: Option<f64>,
    /// Test loss.
    pub loss: Option<f64>,
    /// Time since this process began the run.
    pub time: Option<Duration>,
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

/// Where a run begins: fresh parameters, or those of a checkpoint.
#[derive(Debug, Clone)]
pub struct Start {
    /// The tensors, in the order of the flat vector.
    pub tensors: Vec<TensorSpec>,
    /// All parameters.
    pub params: FlatVec,
    /// The optimiser's state, one flat vector per slot; empty for a fresh start.
    pub slots: Vec<FlatVec>,
    /// The version these are.
    pub version: Version,
    /// Updates they have seen.
    pub step: u64,
    /// The books at that point, if any.
    pub ledger: Option<LedgerState>,
    /// What is known of the gradient noise.
    pub noise: NoiseScale,
}

/// What a checkpoint keeps beside the parameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SavedState {
    /// The data ledger.
    pub ledger: LedgerState,
    /// Seed of the run: the sample order depends on it.
    pub seed: u64,
    /// The data, as the user wrote it.
    pub data: String,
    /// By what batches are balanced ([`SavedState::balance`]).
    #[serde(default = "unbalanced")]
    pub balance: String,
    /// What is known of the gradient noise.
    #[serde(default)]
    pub noise: NoiseScale,
}

impl SavedState {
    /// By what batches are balanced, in words: the sample order depends on all of it.
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
    /// Goes on from a checkpoint.
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

/// A server without a token may not listen where other machines reach it.
#[derive(Debug, thiserror::Error)]
#[error(
    "refusing to listen on {0} without a token: anybody who can reach it could join the run. Give \
     one with --token-file or PACELINE_TOKEN, or bind 127.0.0.1"
)]
pub struct MissingToken(pub SocketAddr);

/// Only this machine reaches a loopback address; to listen on any other takes a token. [`crate::serve`]
/// and [`crate::serve_shard`] check their listeners; call this to find out before.
pub fn check_bind(address: SocketAddr, token: Option<&str>) -> Result<(), MissingToken> {
    match address.ip().is_loopback() || token.is_some_and(|token| !token.is_empty()) {
        true => Ok(()),
        false => Err(MissingToken(address)),
    }
}

/// [`check_bind`] for a listener, if others than this process can reach it at all.
pub(crate) fn check_listener(
    listener: &impl Listener,
    token: Option<&str>,
) -> Result<(), ServerError> {
    match listener.address().map_err(ServerError::Listener)? {
        Some(address) => Ok(check_bind(address, token)?),
        None => Ok(()),
    }
}
