//! A policy that knows the future: counts written down beforehand. For the simulator only.

use paceline_core::{CutReason, Decision, Policy, RoundView};

/// Waits for a given count in every round.
#[derive(Debug, Clone)]
pub struct Scripted {
    name: &'static str,
    counts: Vec<usize>,
}

impl Scripted {
    /// `counts[r]` in round r; all, in rounds beyond.
    pub fn new(name: &'static str, counts: Vec<usize>) -> Scripted {
        Scripted { name, counts }
    }
}

impl Policy for Scripted {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        let all = view.participants();
        let wanted = self.counts.get(view.round.0 as usize).map_or(all, |&c| c.clamp(1, all));
        match wanted.saturating_sub(view.arrivals.len()) {
            0 => Decision::cut(CutReason::Count { wanted: wanted as u32 }),
            missing => Decision::Wait { until: None, arrivals: missing },
        }
    }
}
