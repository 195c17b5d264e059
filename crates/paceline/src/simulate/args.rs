//! The flags of `paceline simulate`.

use std::{fmt, path::PathBuf, str::FromStr};

use clap::{Args, builder::ArgPredicate};
use paceline_core::{Enough, Straggler};
use paceline_policy::{PolicySpec, PolicySpecError};
use paceline_sim::SystemSpec;

use super::{clusters::ClusterArgs, study::Study};
use crate::traces::{TraceArgs, not_negative};

/// Flags that do not go with --explain, which replays a trace unchanged under `auto`.
const NOT_EXPLAINED: [&str; 7] =
    ["policy", "seeds", "quorum", "system", "decisions", "html", "random"];

#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    #[command(flatten)]
    pub(super) traces: TraceArgs,
    #[command(flatten)]
    pub(super) clusters: ClusterArgs,
    /// Policies, separated by commas (`paceline policies` lists them); also oracle and best-static,
    /// which know the future. --hunt takes one, by default auto
    #[arg(
        long,
        value_name = "POLICY",
        value_delimiter = ',',
        default_value_if("hunt", ArgPredicate::IsPresent, "auto"),
        default_value = "full,static:0.9,auto"
    )]
    pub(super) policy: Vec<ReplayedPolicy>,
    /// Replays per policy: seed 0 is the trace unchanged, others begin at another round and number
    /// the workers in another order
    #[arg(long, value_name = "K", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(super) seeds: u64,
    /// What a worker past the cut does: abort (its run-time is never seen), finish (it is busy into
    /// the following rounds), salvage (finished micro-batches count; needs a trace that has them)
    #[arg(long, default_value = "abort")]
    pub(super) straggler: Straggler,
    /// Time between a close and the next round: seconds, or a multiple of the median run-time (0.1x)
    #[arg(long, value_name = "SECONDS", default_value = "0")]
    pub(super) overhead: Overhead,
    /// Least contributions of a round
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) quorum: u32,
    /// Simulate the network and the shards too: lan, wan, high-communication or tiny, with changes
    /// after a colon (lan:model=1GB,shards=8; also server-bandwidth, worker-bandwidth, delay, fold;
    /// and for shard 0: slow-shard, its share of the bandwidth, slow-fold, how many times as long it
    /// takes to fold and update, stop-every and stop-for, rounds between stops and their length).
    /// The trace then has the workers' compute times
    #[arg(long, value_name = "SYSTEM")]
    pub(super) system: Option<SystemSpec>,
    /// Shards whose updates a round of --system waits for, and whose new values a worker waits for:
    /// all, a share of them (0.75), or as many as it pays to wait for (auto)
    #[arg(long, value_name = "RULE", default_value = "all", requires = "system")]
    pub(super) pull: Enough,
    /// Shards that a gradient must reach to count: all, a share of them, or auto
    #[arg(long, value_name = "RULE", default_value = "all", requires = "system")]
    pub(super) push: Enough,
    /// Missed updates after which a shard is waited for, with --pull and --push
    #[arg(long, value_name = "N", default_value_t = 8, requires = "system", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) max_stale: u64,
    /// The model of run-times that bdsgd and auto begin with, from `paceline model fit`
    /// [default: a generic prior]
    #[arg(long, value_name = "FILE")]
    pub(super) run_time_model: Option<PathBuf>,
    /// Explain auto round by round: which part led, what it expected, when it cut and why, when the
    /// oracle would have cut, and the loss against the oracle by cause (docs/explain.md)
    #[arg(long, conflicts_with_all = NOT_EXPLAINED)]
    pub(super) explain: bool,
    /// Print one JSON object per trace, policy, seed and line
    #[arg(long)]
    pub(super) json: bool,
    /// Write every round of every replay: trace,policy,seed,round,accepted,seconds
    #[arg(long, value_name = "FILE")]
    pub(super) decisions: Option<PathBuf>,
    /// Write a self-contained HTML page with charts
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

impl SimulateArgs {
    pub(super) fn study(&self) -> Study {
        Study {
            policies: self.policy.clone(),
            seeds: self.seeds,
            straggler: self.straggler,
            overhead: self.overhead,
            quorum: self.quorum,
        }
    }
}

/// A policy to replay, or a reference that knows the future.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReplayedPolicy {
    /// A policy that can run live.
    Policy(PolicySpec),
    /// The best fixed count, in hindsight.
    BestStatic,
    /// The best count of every round, in hindsight.
    Oracle,
}

impl FromStr for ReplayedPolicy {
    type Err = PolicySpecError;

    fn from_str(text: &str) -> Result<Self, PolicySpecError> {
        match text.trim() {
            "best-static" => Ok(ReplayedPolicy::BestStatic),
            "oracle" => Ok(ReplayedPolicy::Oracle),
            policy => policy.parse().map(ReplayedPolicy::Policy),
        }
    }
}

impl fmt::Display for ReplayedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayedPolicy::Policy(spec) => write!(f, "{spec}"),
            ReplayedPolicy::BestStatic => write!(f, "best-static"),
            ReplayedPolicy::Oracle => write!(f, "oracle"),
        }
    }
}

/// Time between rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Overhead {
    /// Seconds.
    Seconds(f64),
    /// A multiple of the median run-time.
    Medians(f64),
}

impl Overhead {
    pub(super) fn seconds(self, median: f64) -> f64 {
        match self {
            Overhead::Seconds(seconds) => seconds,
            Overhead::Medians(times) => times * median,
        }
    }
}

impl FromStr for Overhead {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            not_negative(text)
                .map_err(|_| "write seconds (0.5) or a multiple of the median (0.1x)".to_owned())
        };
        match text.strip_suffix('x') {
            Some(times) => number(times).map(Overhead::Medians),
            None => number(text).map(Overhead::Seconds),
        }
    }
}
