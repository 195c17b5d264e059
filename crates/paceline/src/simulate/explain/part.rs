//! The best part of `auto` in hindsight.

use std::sync::Arc;

use paceline_model::Model;
use paceline_policy::{Objective, PolicySpec};
use paceline_sim::Replay;
use paceline_trace::Trace;
use rayon::prelude::*;

use super::{loss::Cut, run};
use crate::simulate::clusters::parts;

/// A part that ran alone.
pub(super) struct Part {
    policy: PolicySpec,
    /// Contributions per second.
    pub(super) rate: f64,
    pub(super) cuts: Vec<Cut>,
}

impl Part {
    /// The part with the greatest rate over the whole trace.
    pub(super) fn best(replay: &Replay, trace: &Trace, model: &Arc<Model>) -> Part {
        let alone = |(_, policy): (String, PolicySpec)| {
            let outcome = run(replay, trace, policy.build_with(model, Objective::Samples));
            let rate = outcome.rate(replay.overhead);
            Part { policy, rate, cuts: outcome.rounds.iter().map(Cut::from).collect() }
        };
        let parts: Vec<Part> = parts(trace.workers().len()).into_par_iter().map(alone).collect();
        let best = parts.into_iter().max_by(|a, b| a.rate.total_cmp(&b.rate));
        best.expect("there are several parts")
    }

    /// Its name in a round of so many participants, as [`paceline_policy::Belief`] has it.
    pub(super) fn name(&self, participants: usize) -> String {
        match self.policy {
            PolicySpec::Static(cutoff) => match cutoff.count(participants) {
                count if count < participants => format!("static:{count}"),
                _ => PolicySpec::Full.to_string(),
            },
            other => other.to_string(),
        }
    }
}
