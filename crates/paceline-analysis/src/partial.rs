//! Rates of deadlines for rounds of several micro-batches.

use paceline_trace::{Trace, deadlines};
use serde::Serialize;

/// Rates in hindsight of rounds that close at a deadline and keep finished micro-batches, over full sync.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PartialWork {
    /// Micro-batches per worker and round.
    pub micro_batches: usize,
    /// The best deadline that is the same in every round, in the trace's unit.
    pub deadline: f64,
    /// Its rate over that of full sync.
    pub fixed_gain: f64,
    /// The rate with the best deadline of every round over that of full sync.
    pub oracle_gain: f64,
    /// The rate if work were spread evenly and no worker waited, over that of full sync.
    pub balance_gain: f64,
}

impl PartialWork {
    /// `None` if the trace has no micro-batches.
    pub(crate) fn from_trace(trace: &Trace, overhead: f64) -> Option<PartialWork> {
        let micro_batches = trace.micro_batches();
        if micro_batches < 2 {
            return None;
        }
        let seen = deadlines(trace, overhead);
        let gain = |rate: f64| if seen.full_rate > 0.0 { rate / seen.full_rate } else { 1.0 };
        Some(PartialWork {
            micro_batches,
            deadline: seen.best_fixed,
            fixed_gain: gain(seen.best_fixed_rate),
            oracle_gain: gain(seen.clairvoyant_rate),
            balance_gain: gain(seen.balance_rate),
        })
    }
}
