//! The flags of `paceline simulate`.

use std::{fmt, path::PathBuf, str::FromStr};

use clap::Args;
use paceline_core::{Enough, Straggler};
use paceline_policy::{PolicySpec, PolicySpecError};
use paceline_sim::SystemSpec;

use crate::traces::{TraceArgs, not_negative};

#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    #[command(flatten)]
    pub(super) traces: TraceArgs,
    /// Policies, with commas between (`paceline policies` lists them); and, knowing the future,
    /// oracle and best-static
    #[arg(
        long,
        value_name = "POLICY",
        value_delimiter = ',',
        default_value = "full,static:0.9,auto"
    )]
    pub(super) policy: Vec<Contender>,
    /// Replays of each: seed 0 is the trace as it is, others begin at another round and number the
    /// workers in another order
    #[arg(long, value_name = "K", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(super) seeds: u64,
    /// What a worker past the cut does: abort (its run-time is never seen), finish (it is busy into
    /// the following rounds), salvage (finished micro-batches count; needs a trace that has them)
    #[arg(long, default_value = "abort")]
    pub(super) straggler: Straggler,
    /// Time between a close and the next round: seconds, or a multiple of the median run-time (0.1x)
    #[arg(long, value_name = "SECONDS", default_value = "0")]
    pub(super) overhead: Overhead,
    /// The least contributions that a round may close with
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) quorum: u32,
    /// Simulate the network and the shards too: lan, wan, high-communication or tiny, with changes
    /// after a colon (lan:model=1GB,shards=8; also server-bandwidth, worker-bandwidth, delay, fold;
    /// and for shard 0: slow-shard, its share of the bandwidth, slow-fold, how many times as long it
    /// takes to fold and update, stop-every and stop-for, a stop every so many rounds). The trace is
    /// then how long workers compute
    #[arg(long, value_name = "SYSTEM")]
    pub(super) system: Option<SystemSpec>,
    /// Which shards a round of --system needs, and a worker new values of: all, a share of them (0.75),
    /// or as many as it pays to wait for (auto)
    #[arg(long, value_name = "RULE", default_value = "all", requires = "system")]
    pub(super) pull: Enough,
    /// The same of the shards that must have a gradient before it counts: all, a share of them, or auto
    #[arg(long, value_name = "RULE", default_value = "all", requires = "system")]
    pub(super) push: Enough,
    /// A shard that has missed so many updates is waited for, with --pull and --push
    #[arg(long, value_name = "N", default_value_t = 8, requires = "system", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) max_stale: u64,
    /// The model of run-times that bdsgd and auto begin with, as `paceline model fit` writes it;
    /// a generic prior without
    #[arg(long, value_name = "FILE")]
    pub(super) run_time_model: Option<PathBuf>,
    /// Print one JSON object a trace, policy, seed and line
    #[arg(long)]
    pub(super) json: bool,
    /// Write every round of every replay: trace,policy,seed,round,accepted,seconds
    #[arg(long, value_name = "FILE")]
    pub(super) decisions: Option<PathBuf>,
    /// Write a page with charts, which needs nothing but a browser
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

/// Who is compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Contender {
    /// A policy that may be used live.
    Policy(PolicySpec),
    /// The best fixed count, in hindsight.
    BestStatic,
    /// The best count of every round, in hindsight.
    Oracle,
}

impl FromStr for Contender {
    type Err = PolicySpecError;

    fn from_str(text: &str) -> Result<Self, PolicySpecError> {
        match text.trim() {
            "best-static" => Ok(Contender::BestStatic),
            "oracle" => Ok(Contender::Oracle),
            policy => policy.parse().map(Contender::Policy),
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contender::Policy(spec) => write!(f, "{spec}"),
            Contender::BestStatic => write!(f, "best-static"),
            Contender::Oracle => write!(f, "oracle"),
        }
    }
}

/// Time between rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Overhead {
    Seconds(f64),
    /// So many median run-times.
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
