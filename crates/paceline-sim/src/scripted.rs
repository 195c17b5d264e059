//! A policy that knows the future: one precomputed count per round. For the simulator only.

use paceline_core::{Decision, Policy, RoundView};

/// Waits for a given count in every round.
#[derive(Debug, Clone)]
pub struct Scripted {
    name: &'static str,
    counts: Vec<usize>,
}

impl Scripted {
    /// Waits for `counts[r]` contributions in round r, and for all in later rounds.
    pub fn new(name: &'static str, counts: Vec<usize>) -> Scripted {
        Scripted { name, counts }
    }
}

impl Policy for Scripted {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        let wanted = self.counts.get(view.round.0 as usize).copied();
        view.wait_for(wanted.unwrap_or(view.participants()))
    }
}
