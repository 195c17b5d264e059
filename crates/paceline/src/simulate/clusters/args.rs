//! The flags of studies over clusters.

use clap::{Args, ValueEnum};

/// Flags that do not go with random clusters, which have neither files nor micro-batches.
const OTHER_SOURCES: [&str; 11] = [
    "traces",
    "synthetic",
    "columns",
    "rounds",
    "unit",
    "seeds",
    "quorum",
    "system",
    "decisions",
    "html",
    "pull",
];

#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Replay this many clusters drawn at random (--seed) from a broad distribution of sizes, noise,
    /// minorities, nodes, stalls, drifts, shifts and clocks, instead of traces
    #[arg(long, value_name = "COUNT", group = "drawn", conflicts_with_all = OTHER_SOURCES, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(super) random: Option<u64>,
    /// Search this distribution (--seed) for the clusters on which a policy gets the least of
    /// --against. An evaluation is one replay of a cluster
    #[arg(long, value_name = "EVALUATIONS", group = "drawn", conflicts_with_all = OTHER_SOURCES, value_parser = clap::value_parser!(u64).range(3..=1_000_000))]
    pub(super) hunt: Option<u64>,
    /// With --random: also replay the parts of auto, each alone, and compare with the best of them
    #[arg(long, requires = "random")]
    pub(super) parts: bool,
    /// Reference by which the worst clusters are chosen
    #[arg(long, value_name = "REFERENCE", default_value = "full", requires = "drawn")]
    pub(super) against: Against,
}

/// A rate that a policy should not stay behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Against {
    /// Waiting for all
    Full,
    /// The best fixed count in hindsight
    BestStatic,
    /// The best part of auto in hindsight, each replayed alone
    Parts,
}

impl ClusterArgs {
    /// The number of random clusters, if traces are not wanted.
    pub(crate) fn random(&self) -> Option<u64> {
        self.random
    }

    /// The evaluations of a search for the worst clusters, if that is wanted.
    pub(crate) fn hunt(&self) -> Option<u64> {
        self.hunt
    }
}
