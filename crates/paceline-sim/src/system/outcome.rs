//! The outcome of a simulated run.

use paceline_core::{CutReason, SampleCounts};

use crate::timed::Cost;

/// One round, with its time split along the critical path: that of the last contribution that it
/// waited for. The parts add up to [`SystemRound::seconds`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SystemRound {
    /// Accepted contributions, each weighted by the share of its work.
    pub accepted: f64,
    /// Workers that were given work in the round.
    pub given: usize,
    /// From the last publication to this round's.
    pub seconds: f64,
    /// From the opening until the last contribution's worker had its parameters.
    pub pull: f64,
    /// That worker's computation.
    pub compute: f64,
    /// From the end of the computation until the gradient was on every shard: push and queueing.
    pub push: f64,
    /// Idle time: before the opening or the worker's own start, and between the last arrival and
    /// the cut.
    pub wait: f64,
    /// From the close to the publication.
    pub overhead: f64,
    /// The share of shards, and so of blocks, that the round left out or whose values were old.
    pub stale: f64,
    /// The share of the round's blocks that accepted contributions did not reach.
    pub missed: f64,
    /// Why the round was cut.
    pub reason: CutReason,
}

/// The outcome of a simulated run.
#[derive(Debug, Clone)]
pub struct SystemOutcome {
    /// Its rounds.
    pub rounds: Vec<SystemRound>,
    /// The simulated time of the run.
    pub seconds: f64,
    /// Mean share of its bandwidth that the busiest shard used in its busier direction.
    pub server_utilisation: f64,
    /// Samples by what became of them.
    pub samples: SampleCounts,
    /// Whether no sample was lost or used twice.
    pub ledger_balanced: bool,
    /// Contributions that arrived after their round had closed.
    pub late: u64,
    /// How often a round waited for a shard that had missed the most updates allowed.
    pub awaited: u64,
    /// The CPU time of decisions.
    pub cost: Cost,
}

impl SystemOutcome {
    /// Contributions per second.
    pub fn rate(&self) -> f64 {
        let accepted: f64 = self.rounds.iter().map(|round| round.accepted).sum();
        if self.seconds > 0.0 { accepted / self.seconds } else { 0.0 }
    }

    /// Rounds per second.
    pub fn round_rate(&self) -> f64 {
        if self.seconds > 0.0 { self.rounds.len() as f64 / self.seconds } else { 0.0 }
    }

    /// The mean of a figure over the rounds.
    pub fn mean(&self, figure: impl Fn(&SystemRound) -> f64) -> f64 {
        self.rounds.iter().map(figure).sum::<f64>() / self.rounds.len().max(1) as f64
    }

    /// The accepted share of the work handed out.
    pub fn accepted_share(&self) -> f64 {
        self.mean(|round| round.accepted) / self.mean(|round| round.given as f64).max(1e-300)
    }

    /// The share of rounds that were cut while a worker was still computing for them.
    pub fn cut_share(&self) -> f64 {
        self.mean(|round| f64::from(u8::from(round.accepted < round.given as f64)))
    }
}
