//! What there is to learn from, until there is time.

use paceline_core::{KeptRecord, RoundRecord, RunTime, Version, WorkerId};

/// Lessons in the order in which they came. Between a close and the next opening everyone waits, so
/// that whoever learns slowly keeps what comes, and learns when workers have been sent off.
#[derive(Debug, Default)]
pub(crate) struct Backlog(Vec<Lesson>);

/// One thing to learn from.
#[derive(Debug)]
pub(crate) enum Lesson {
    Closed(KeptRecord),
    /// The run-time of a whole portion.
    Late {
        worker: WorkerId,
        base: Version,
        run_time: RunTime,
    },
}

impl Backlog {
    pub(crate) fn closed(&mut self, record: &RoundRecord<'_>) {
        self.0.push(Lesson::Closed(record.keep()));
    }

    pub(crate) fn late(&mut self, worker: WorkerId, base: Version, run_time: RunTime, load: f64) {
        let run_time = run_time.per_portion(load);
        self.0.push(Lesson::Late { worker, base, run_time });
    }

    /// Whether a round waits to be learned from.
    pub(crate) fn has_round(&self) -> bool {
        self.0.iter().any(|lesson| matches!(lesson, Lesson::Closed(_)))
    }

    pub(crate) fn take(&mut self) -> Vec<Lesson> {
        std::mem::take(&mut self.0)
    }
}
