//! `auto`, watched: its beliefs about every round of a replay.

use std::sync::{Arc, Mutex};

use paceline_core::{Decision, Policy, RoundRecord, RoundView, RunTime, Version, WorkerId};
use paceline_policy::{Auto, Belief};

/// The beliefs about a round.
#[derive(Debug, Clone)]
pub(super) struct BelievedRound {
    pub(super) belief: Belief,
    /// When an audited round would have been cut, in seconds since the opening.
    pub(super) cut_was_due: Option<f64>,
}

/// The beliefs about every closed round.
type Beliefs = Arc<Mutex<Vec<BelievedRound>>>;

/// Passes on the answers of `auto` and keeps its beliefs.
pub(super) struct Watched {
    auto: Auto,
    beliefs: Beliefs,
}

impl Watched {
    pub(super) fn new(auto: Auto) -> (Watched, Beliefs) {
        let beliefs = Beliefs::default();
        (Watched { auto, beliefs: Arc::clone(&beliefs) }, beliefs)
    }
}

impl Policy for Watched {
    fn name(&self) -> String {
        self.auto.name()
    }

    fn trusts(&self, participants: usize) -> Option<String> {
        self.auto.trusts(participants)
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        self.auto.decide(view)
    }

    fn typical(&self, worker: WorkerId) -> Option<f64> {
        self.auto.typical(worker)
    }

    fn closed(&mut self, record: &RoundRecord<'_>) {
        let belief = self.auto.belief(record.run_times.len());
        let cut_was_due = belief.cut_was_due.map(|due| due.since(record.opened).as_secs_f64());
        let believed = BelievedRound { belief, cut_was_due };
        self.beliefs.lock().expect("nobody panicked with it").push(believed);
        self.auto.closed(record);
    }

    fn study(&mut self) {
        self.auto.study();
    }

    fn noise(&mut self, scale: f64) {
        self.auto.noise(scale);
    }

    fn late(&mut self, worker: WorkerId, base: Version, run_time: RunTime, load: f64) {
        self.auto.late(worker, base, run_time, load);
    }
}
