//! What a simulated system did.

use paceline_core::{CutReason, SampleCounts};

use crate::timed::Cost;

/// One round, with its time split along its critical path: the way of the last contribution that it
/// waited for. The parts add up to [`SystemRound::seconds`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SystemRound {
    /// Contributions accepted, by the share of their work.
    pub accepted: f64,
    /// Workers that were given work in it.
    pub given: usize,
    /// From the last publication to this round's.
    pub seconds: f64,
    /// From the opening until the last contribution's worker had its parameters.
    pub pull: f64,
    /// It computed.
    pub compute: f64,
    /// From then until it was whole on every shard: push and queueing.
    pub push: f64,
    /// Nobody came: before the opening or the worker's own start, and between the last arrival and
    /// the cut.
    pub wait: f64,
    /// From the close to the publication.
    pub overhead: f64,
    /// The share of the shards, and so of the blocks, that it did without, or of which its workers had
    /// old values.
    pub stale: f64,
    /// The share of the blocks it had that what it accepted did not reach.
    pub missed: f64,
    /// Why it stopped waiting.
    pub reason: CutReason,
}

/// A whole run.
#[derive(Debug, Clone)]
pub struct SystemOutcome {
    /// Round by round.
    pub rounds: Vec<SystemRound>,
    /// The simulated time of all of it.
    pub seconds: f64,
    /// The share of its bandwidth that the busiest shard used in its busier direction, over time.
    pub server_utilisation: f64,
    /// What became of the samples.
    pub samples: SampleCounts,
    /// No sample was lost or used twice.
    pub ledger_balanced: bool,
    /// Contributions that came after their round had closed.
    pub late: u64,
    /// How often a round waited for a shard because it had missed as many updates as it may.
    pub awaited: u64,
    /// What deciding took.
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

    /// The share of the work handed out that was accepted.
    pub fn accepted_share(&self) -> f64 {
        self.mean(|round| round.accepted) / self.mean(|round| round.given as f64).max(1e-300)
    }

    /// The share of the rounds that were cut while somebody was still working for them.
    pub fn cut_share(&self) -> f64 {
        self.mean(|round| f64::from(u8::from(round.accepted < round.given as f64)))
    }
}
