//! The settings of a run, each declared once: its flag, environment variable, key in a config file,
//! default and help.
//!
//! A field `max_stale` is the flag `--max-stale` and the key `max-stale`. Groups are one command line and
//! one flat file; they only keep together what is passed on together.

use clap::{ArgAction, Args, Command, builder::Resettable};
use paceline_core::{Enough, Late, Span, Straggler};
use paceline_nn::{CostSpec, DataSource};
use paceline_params::{Clip, LrScaling, OptimizerGroups, Schedule, WireType};
use paceline_policy::{Objective, PolicySpec};
use paceline_wire::Transport;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::offered::ModelSource;

/// Where a run is recorded, and how often it is measured and saved.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct RecordSettings {
    /// Name of the run, and of its folder; made up when not given
    #[arg(long, env = "PACELINE_NAME")]
    pub(crate) name: Option<String>,
    /// Folder that holds the folders of all runs
    #[arg(long, env = "PACELINE_RUN_DIR", value_name = "DIR", default_value = "runs")]
    pub(crate) run_dir: String,
    /// Rounds between measurements on the test set [default: one epoch]
    #[arg(long, env = "PACELINE_EVAL_EVERY", value_name = "ROUNDS")]
    pub(crate) eval_every: Option<u64>,
    /// Rounds between checkpoints [default: one epoch; at most 500 where workers bring their model]
    #[arg(long, env = "PACELINE_CHECKPOINT_EVERY", value_name = "ROUNDS")]
    pub(crate) checkpoint_every: Option<u64>,
    /// Checkpoints to keep
    #[arg(long, env = "PACELINE_KEEP_CHECKPOINTS", value_name = "N", default_value = "2")]
    pub(crate) keep_checkpoints: usize,
}

/// What is trained, on which data, in which order.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct TaskSettings {
    /// Model: softmax, mlp, cnn, resnet, synthetic:N to measure the data plane, or offered: workers
    /// bring their own
    #[arg(long, env = "PACELINE_MODEL", default_value = "cnn")]
    #[serde(serialize_with = "text", deserialize_with = "parsed")]
    pub(crate) model: ModelSource,
    /// `embedded`, or a folder with the files of MNIST (IDX) or CIFAR-10 (binary), plain or gzip
    #[arg(long, env = "PACELINE_DATA", value_name = "DIR", default_value = "embedded")]
    #[serde(serialize_with = "text", deserialize_with = "parsed")]
    pub(crate) data: DataSource,
    /// Relative cost of each training sample (such as its length), by which batches are balanced: a
    /// text file with one number per line, or lognormal:SIGMA to draw them. Workers padded by
    /// --nominal take that long [default: all alike]
    #[arg(long, env = "PACELINE_COSTS", value_name = "FILE")]
    #[serde(serialize_with = "some_text", deserialize_with = "some_parsed")]
    pub(crate) costs: Option<CostSpec>,
    /// Whether batches are balanced by --costs
    #[arg(
        long,
        env = "PACELINE_BALANCE",
        num_args = 0..=1,
        action = ArgAction::Set,
        default_missing_value = "true",
        default_value = "true"
    )]
    pub(crate) balance: bool,
    /// Seed of everything random
    #[arg(long, env = "PACELINE_SEED", default_value = "1")]
    pub(crate) seed: u64,
}

/// How many workers and shards there are, and how data travels between them.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct ClusterSettings {
    /// Worker processes
    #[arg(long, env = "PACELINE_WORKERS", value_name = "N", default_value = "4")]
    pub(crate) workers: u32,
    /// Shards that hold the parameters
    #[arg(long, env = "PACELINE_SHARDS", value_name = "N", default_value = "2")]
    pub(crate) shards: u32,
    /// The most memory for contributions that wait to be folded, in MiB
    #[arg(long, env = "PACELINE_STAGING_MB", value_name = "MIB", default_value = "2048")]
    pub(crate) staging_mb: u64,
    /// Size of a block of parameters on the wire, in KiB, up to 65536
    #[arg(long, env = "PACELINE_BLOCK_KIB", value_name = "KIB", default_value = "1024")]
    pub(crate) block_kib: usize,
    /// Transport of gradients and parameters: auto (shared memory where worker and shard are on the
    /// same host, else TCP) or tcp
    #[arg(long, env = "PACELINE_TRANSPORT", default_value = "auto")]
    pub(crate) transport: Transport,
    /// Type of gradients and parameters on the wire: f32, or bf16 or f16 for half the bytes. Sums and
    /// parameters stay f32, and so does shared memory
    #[arg(long, env = "PACELINE_WIRE", value_name = "TYPE", default_value = "f32")]
    pub(crate) wire: WireType,
}

/// Which shards a round, a pull and a push wait for.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct WeakSettings {
    /// Which blocks a round waits for before workers compute: all, a share of them (0.75), or as many
    /// as it pays to wait for (auto); the others keep their last values and catch up
    #[arg(long, env = "PACELINE_PULL", value_name = "RULE", default_value = "all")]
    pub(crate) pull: Enough,
    /// On which blocks a gradient must be complete to count: all, a share of them (0.75), or as many
    /// as it pays to wait for (auto); a block's mean is over the gradients that reached it
    #[arg(long, env = "PACELINE_PUSH", value_name = "RULE", default_value = "all")]
    pub(crate) push: Enough,
    /// Updates, pulls or pushes that a shard may miss before it is waited for
    #[arg(long, env = "PACELINE_MAX_STALE", value_name = "N", default_value = "8")]
    pub(crate) max_stale: u64,
}

/// When a round ends, and what becomes of stragglers.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct RoundSettings {
    /// When a round stops waiting; `paceline policies` lists the policies
    #[arg(long, env = "PACELINE_POLICY", default_value = "auto")]
    pub(crate) policy: PolicySpec,
    /// Model of run-times that bdsgd and auto begin with, as `paceline model fit` writes it
    /// [default: a generic prior]
    #[arg(long, env = "PACELINE_RUN_TIME_MODEL", value_name = "FILE")]
    pub(crate) run_time_model: Option<String>,
    /// What to maximise per second: samples, or progress (samples discounted by gradient noise)
    /// [default: progress with auto, samples with others]
    #[arg(long, env = "PACELINE_OBJECTIVE")]
    pub(crate) objective: Option<Objective>,
    /// The fewest workers that a round may close with and that must be live
    #[arg(long, env = "PACELINE_QUORUM", value_name = "N", default_value = "1")]
    pub(crate) quorum: u32,
    /// How long the run may stay below the quorum before it stops
    #[arg(long, env = "PACELINE_QUORUM_GRACE", value_name = "TIME", default_value = "10s")]
    pub(crate) quorum_grace: Span,
    /// How long the first round waits for all workers
    #[arg(long, env = "PACELINE_JOIN_GRACE", value_name = "TIME", default_value = "60s")]
    pub(crate) join_grace: Span,
    /// A worker silent for longer is dead
    #[arg(long, env = "PACELINE_LIVENESS", value_name = "TIME", default_value = "10s")]
    pub(crate) liveness: Span,
    /// What a straggler does at the cut: salvage (push what is finished), abort or finish
    /// [default: salvage where there are two or more micro-batches]
    #[arg(long, env = "PACELINE_STRAGGLER")]
    pub(crate) straggler: Option<Straggler>,
    /// What becomes of a gradient that arrives after its round has closed, with --straggler finish:
    /// drop, or fold it into the next round by its staleness
    #[arg(long, env = "PACELINE_LATE", default_value = "drop")]
    pub(crate) late: Late,
    /// Give slower workers less to do, so that they arrive with the others (with auto or filter)
    #[arg(
        long,
        env = "PACELINE_REBALANCE",
        num_args = 0..=1,
        action = ArgAction::Set,
        default_missing_value = "true",
        default_value = "false"
    )]
    pub(crate) rebalance: bool,
    /// Samples per worker and round
    #[arg(long, env = "PACELINE_BATCH", value_name = "N", default_value = "32")]
    pub(crate) batch: u32,
    /// Parts of a worker's batch, between which it can stop
    #[arg(long, env = "PACELINE_MICRO_BATCHES", value_name = "N", default_value = "4")]
    pub(crate) micro_batches: u32,
    /// Sum in worker order, and hash the parameters every round
    #[arg(
        long,
        env = "PACELINE_DETERMINISTIC",
        num_args = 0..=1,
        action = ArgAction::Set,
        default_missing_value = "true",
        default_value = "false"
    )]
    pub(crate) deterministic: bool,
}

/// How an update is made of a round's sum.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct UpdateSettings {
    /// sgd, momentum, adam, adamw or mean, with options: momentum:0.95,nesterov
    #[arg(long, env = "PACELINE_OPTIMIZER", default_value = "momentum:0.9")]
    pub(crate) optimizer: OptimizerGroups,
    /// Learning rate at the reference weight
    #[arg(long, env = "PACELINE_LR", default_value = "0.02")]
    pub(crate) lr: f32,
    /// Learning rate over rounds: constant, step:EVERY:FACTOR, cosine:TOTAL[:FLOOR], each after an
    /// optional warmup:ROUNDS+
    #[arg(long, env = "PACELINE_SCHEDULE", default_value = "constant")]
    pub(crate) schedule: Schedule,
    /// How the learning rate follows the contributed weight: linear, sqrt, adascale, none
    /// [default: adascale with --objective progress, else linear]
    #[arg(long, env = "PACELINE_LR_SCALING")]
    pub(crate) lr_scaling: Option<LrScaling>,
    /// Weight (samples) at which the learning rate is as given [default: workers × batch]
    #[arg(long, env = "PACELINE_REFERENCE_WEIGHT", value_name = "N")]
    pub(crate) reference_weight: Option<f64>,
    /// Bound on the gradient's norm: none, or norm:BOUND
    #[arg(long, env = "PACELINE_CLIP", default_value = "none")]
    pub(crate) clip: Clip,
}

/// When a run stops: at the first of these.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct StopSettings {
    /// Stop after this many rounds
    #[arg(long, env = "PACELINE_ROUNDS", value_name = "N")]
    pub(crate) rounds: Option<u64>,
    /// Stop after this many epochs [default: 5, if nothing else says when]
    #[arg(long, env = "PACELINE_EPOCHS", value_name = "N")]
    pub(crate) epochs: Option<u32>,
    /// Stop at this test accuracy, 0 to 1
    #[arg(long, env = "PACELINE_TARGET_ACCURACY", value_name = "SHARE")]
    pub(crate) target_accuracy: Option<f64>,
    /// Stop at this test loss
    #[arg(long, env = "PACELINE_TARGET_LOSS", value_name = "LOSS")]
    pub(crate) target_loss: Option<f64>,
    /// Stop after this time: 90s, 5m, 2h
    #[arg(long, env = "PACELINE_TIME_LIMIT", value_name = "TIME")]
    pub(crate) time_limit: Option<Span>,
}

/// Faults and slowness that a run injects on purpose.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct FaultSettings {
    /// Slowness on purpose, separated by commas. Inside a worker: slow:WORKER:FACTOR,
    /// stalls:P99_OVER_P50, kill:WORKER@ROUND, node:FIRST-LAST:FACTOR. From outside: hog:WORKER
    /// (a busy loop beside it), crowd:FIRST-LAST (on one core), nice:WORKER:1..19,
    /// stop:WORKER:EVERY:FOR (SIGSTOP, SIGCONT), preempt:WORKER@ROUND:FOR (killed, and back after
    /// FOR), delay:WORKER:TIME and loss:WORKER:PERCENT (on its way to the server, each way),
    /// link:WORKER:RATE (a link of 10mbit; needs root and iproute2). Shards: shard:SHARD:FACTOR,
    /// shard-link:SHARD:RATE, shard-stop:SHARD:EVERY:FOR
    #[arg(
        long,
        env = "PACELINE_STRAGGLERS",
        value_name = "SPEC",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) stragglers: String,
    /// Pad a worker's round to this long, so that workers that share cores do not set each other's
    /// pace
    #[arg(long, env = "PACELINE_NOMINAL", value_name = "TIME")]
    pub(crate) nominal: Option<Span>,
    /// Pad a shard's update to this long, to see the effect of slow shards (shard:1:5)
    #[arg(long, env = "PACELINE_SHARD_NOMINAL", value_name = "TIME")]
    pub(crate) shard_nominal: Option<Span>,
}

macro_rules! defaults_are_the_flags {
    ($($group:ty),*) => {
        $(impl Default for $group {
            fn default() -> Self {
                defaults()
            }
        })*
    };
}

defaults_are_the_flags!(
    RecordSettings,
    TaskSettings,
    ClusterSettings,
    WeakSettings,
    RoundSettings,
    UpdateSettings,
    StopSettings,
    FaultSettings
);

/// A group as its flags have it where neither command line nor environment say anything.
fn defaults<T: Args>() -> T {
    let command = T::augment_args(Command::new("defaults"));
    let command = command.mut_args(|arg| arg.env(Resettable::Reset));
    let parsed = command.try_get_matches_from(["defaults"]);
    parsed.and_then(|matches| T::from_arg_matches(&matches)).expect("defaults are well-formed")
}

fn text<T: ToString, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.to_string())
}

fn parsed<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
    D: Deserializer<'de>,
{
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
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

fn some_parsed<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
    D: Deserializer<'de>,
{
    parsed(deserializer).map(Some)
}
