//! The settings of a run as flags and environment variables: a layer over the config file.

use anyhow::{Context, Result};
use clap::Args;
use paceline_core::{Enough, Late, Straggler};
use paceline_nn::{CostSpec, DataSource, ModelSpec};
use paceline_params::{Clip, LrScaling, OptimizerSpec, Schedule, WireType};
use paceline_policy::{Objective, PolicySpec};
use paceline_wire::Transport;
use serde::{Serialize, Serializer};

use crate::{
    config::{RunConfig, text},
    span::Span,
};

/// Settings as flags and environment variables.
#[derive(Debug, Clone, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = "Run")]
pub(crate) struct RunFlags {
    /// Name of the run, and of its folder; made up when not given
    #[arg(long, env = "PACELINE_NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Folder that holds the folders of all runs [default: runs]
    #[arg(long, env = "PACELINE_RUN_DIR", value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run_dir: Option<String>,
    /// Worker processes [default: 4]
    #[arg(long, env = "PACELINE_WORKERS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) workers: Option<u32>,
    /// Shards that hold the parameters [default: 2]
    #[arg(long, env = "PACELINE_SHARDS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shards: Option<u32>,
    /// Model: softmax, mlp, cnn, resnet, or synthetic:N to measure the data plane [default: cnn]
    #[arg(long, env = "PACELINE_MODEL")]
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "some_text")]
    pub(crate) model: Option<ModelSpec>,
    /// `embedded`, or a folder with the files of MNIST (IDX) or CIFAR-10 (binary), plain or gzip
    /// [default: embedded]
    #[arg(long, env = "PACELINE_DATA", value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "some_text")]
    pub(crate) data: Option<DataSource>,
    /// What training samples cost next to each other (their lengths), by which batches are balanced:
    /// a text file with a number a line, or lognormal:SIGMA to draw them; workers padded by --nominal
    /// take as long [default: all alike]
    #[arg(long, env = "PACELINE_COSTS", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "some_text")]
    pub(crate) costs: Option<CostSpec>,
    /// Whether batches are balanced by --costs [default: true]
    #[arg(long, env = "PACELINE_BALANCE", num_args = 0..=1, default_missing_value = "true")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) balance: Option<bool>,
    /// Which blocks a round waits for before workers compute: all, a share of them (0.75), or as many
    /// as it pays to wait for (auto); the others keep their last values and catch up [default: all]
    #[arg(long, env = "PACELINE_PULL", value_name = "RULE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pull: Option<Enough>,
    /// On which blocks a gradient must be complete to count: all, a share of them (0.75), or as many
    /// as it pays to wait for (auto); a block's mean is over those that came to it [default: all]
    #[arg(long, env = "PACELINE_PUSH", value_name = "RULE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) push: Option<Enough>,
    /// A shard that has missed so many updates, pulls or pushes is waited for [default: 8]
    #[arg(long, env = "PACELINE_MAX_STALE", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_stale: Option<u64>,
    /// Pad a shard's update to this long, to see what slow ones do (shard:1:5)
    #[arg(long, env = "PACELINE_SHARD_NOMINAL", value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shard_nominal: Option<Span>,
    /// Seed of everything random [default: 1]
    #[arg(long, env = "PACELINE_SEED")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seed: Option<u64>,
    /// When a round stops waiting; `paceline policies` lists the ways [default: auto]
    #[arg(long, env = "PACELINE_POLICY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<PolicySpec>,
    /// The model of run-times that bdsgd and auto begin with, as `paceline model fit` writes it
    /// [default: a generic prior]
    #[arg(long, env = "PACELINE_RUN_TIME_MODEL", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run_time_model: Option<String>,
    /// The least workers that a round may close with and that must be live [default: 1]
    #[arg(long, env = "PACELINE_QUORUM", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) quorum: Option<u32>,
    /// How long fewer live workers than the quorum are borne [default: 10s]
    #[arg(long, env = "PACELINE_QUORUM_GRACE", value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) quorum_grace: Option<Span>,
    /// How long the first round waits for all workers [default: 60s]
    #[arg(long, env = "PACELINE_JOIN_GRACE", value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) join_grace: Option<Span>,
    /// A worker silent for longer is dead [default: 10s]
    #[arg(long, env = "PACELINE_LIVENESS", value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) liveness: Option<Span>,
    /// What a straggler does at the cut: salvage (push what is finished), abort or finish
    /// [default: salvage where there are two or more micro-batches]
    #[arg(long, env = "PACELINE_STRAGGLER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) straggler: Option<Straggler>,
    /// What becomes of a gradient that comes after its round has closed, with --straggler finish:
    /// drop, or fold it into the next round by its staleness [default: drop]
    #[arg(long, env = "PACELINE_LATE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) late: Option<Late>,
    /// What a round wants the most of, a second: progress (by the gradient noise scale) or samples
    /// [default: progress with auto, samples with others]
    #[arg(long, env = "PACELINE_OBJECTIVE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) objective: Option<Objective>,
    /// Give a worker that takes longer than the others less to do, so that it arrives with them (with
    /// auto or filter)
    #[arg(long, env = "PACELINE_REBALANCE", num_args = 0..=1, default_missing_value = "true")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rebalance: Option<bool>,
    /// Samples per worker and round [default: 32]
    #[arg(long, env = "PACELINE_BATCH", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<u32>,
    /// Parts of a round's work, between which a worker can stop [default: 4]
    #[arg(long, env = "PACELINE_MICRO_BATCHES", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) micro_batches: Option<u32>,
    /// sgd, momentum, adamw or mean, with options: momentum:0.95,nesterov [default: momentum:0.9]
    #[arg(long, env = "PACELINE_OPTIMIZER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) optimizer: Option<OptimizerSpec>,
    /// Learning rate at the reference weight [default: 0.02]
    #[arg(long, env = "PACELINE_LR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lr: Option<f32>,
    /// Learning rate over rounds: constant, step:EVERY:FACTOR, cosine:TOTAL[:FLOOR], each after an
    /// optional warmup:ROUNDS+ [default: constant]
    #[arg(long, env = "PACELINE_SCHEDULE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) schedule: Option<Schedule>,
    /// How the learning rate follows the contributed weight: linear, sqrt, adascale, none
    /// [default: adascale with --objective progress, else linear]
    #[arg(long, env = "PACELINE_LR_SCALING")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lr_scaling: Option<LrScaling>,
    /// Weight (samples) at which the learning rate is as given [default: workers × batch]
    #[arg(long, env = "PACELINE_REFERENCE_WEIGHT", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reference_weight: Option<f64>,
    /// Bound on the gradient's norm: none, or norm:BOUND [default: none]
    #[arg(long, env = "PACELINE_CLIP")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) clip: Option<Clip>,
    /// Stop after so many rounds
    #[arg(long, env = "PACELINE_ROUNDS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rounds: Option<u64>,
    /// Stop after so many epochs [default: 5, if nothing else says when]
    #[arg(long, env = "PACELINE_EPOCHS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) epochs: Option<u32>,
    /// Stop at this test accuracy, 0 to 1
    #[arg(long, env = "PACELINE_TARGET_ACCURACY", value_name = "SHARE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target_accuracy: Option<f64>,
    /// Stop at this test loss
    #[arg(long, env = "PACELINE_TARGET_LOSS", value_name = "LOSS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target_loss: Option<f64>,
    /// Stop after this time: 90s, 5m, 2h
    #[arg(long, env = "PACELINE_TIME_LIMIT", value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time_limit: Option<Span>,
    /// Sums in worker order and a hash of the parameters every round
    #[arg(long, env = "PACELINE_DETERMINISTIC", num_args = 0..=1, default_missing_value = "true")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deterministic: Option<bool>,
    /// Rounds between measurements on the test set [default: an epoch's]
    #[arg(long, env = "PACELINE_EVAL_EVERY", value_name = "ROUNDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) eval_every: Option<u64>,
    /// Rounds between checkpoints [default: an epoch's]
    #[arg(long, env = "PACELINE_CHECKPOINT_EVERY", value_name = "ROUNDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoint_every: Option<u64>,
    /// Checkpoints that are kept [default: 2]
    #[arg(long, env = "PACELINE_KEEP_CHECKPOINTS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keep_checkpoints: Option<usize>,
    /// The most memory for contributions that wait to be folded, in MiB [default: 2048]
    #[arg(long, env = "PACELINE_STAGING_MB", value_name = "MIB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) staging_mb: Option<u64>,
    /// Size of a block of parameters on the wire, in KiB, up to 65536 [default: 1024]
    #[arg(long, env = "PACELINE_BLOCK_KIB", value_name = "KIB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) block_kib: Option<usize>,
    /// What gradients and parameters go by: auto (memory shared by worker and shard where they are on
    /// the same host, else TCP) or tcp [default: auto]
    #[arg(long, env = "PACELINE_TRANSPORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) transport: Option<Transport>,
    /// How gradients and parameters travel: f32, or bf16 or f16 for half the bytes. They are added up
    /// and kept as f32, and go as f32 where memory is shared [default: f32]
    #[arg(long, env = "PACELINE_WIRE", value_name = "TYPE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wire: Option<WireType>,
    /// Slowness on purpose, separated by commas. Inside a worker: slow:WORKER:FACTOR,
    /// stalls:P99_OVER_P50, kill:WORKER@ROUND, node:FIRST-LAST:FACTOR. From outside: hog:WORKER
    /// (a busy loop beside it), crowd:FIRST-LAST (on one core), nice:WORKER:1..19,
    /// stop:WORKER:EVERY:FOR (SIGSTOP, SIGCONT), preempt:WORKER@ROUND:FOR (killed, and back after
    /// FOR), delay:WORKER:TIME and loss:WORKER:PERCENT (on its way to the server, each way),
    /// link:WORKER:RATE (a link of 10mbit; needs root and iproute2). Shards: shard:SHARD:FACTOR,
    /// shard-link:SHARD:RATE, shard-stop:SHARD:EVERY:FOR
    #[arg(long, env = "PACELINE_STRAGGLERS", value_name = "SPEC")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stragglers: Option<String>,
    /// Pad a worker's round to this long, so that workers that share cores do not set each other's
    /// pace
    #[arg(long, env = "PACELINE_NOMINAL", value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nominal: Option<Span>,
}

impl RunFlags {
    /// The settings of the run that are given. Where runs are kept may be a habit of the machine.
    pub(crate) fn given(&self) -> Result<Vec<String>> {
        let table = toml::Table::try_from(self).context("failed to read the flags")?;
        Ok(table.into_iter().map(|(name, _)| name).filter(|name| name != "run-dir").collect())
    }

    /// The folder that holds the folders of all runs.
    pub(crate) fn run_dir(&self) -> String {
        self.run_dir.clone().unwrap_or_else(|| RunConfig::default().run_dir)
    }
}

fn some_text<T: ToString, S: Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => text(value, serializer),
        None => serializer.serialize_none(),
    }
}
