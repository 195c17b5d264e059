//! Observations that a policy has not learnt from yet.

use paceline_core::{KeptRecord, RoundRecord, RunTime, Version, WorkerId};

/// Lessons in order of arrival. Between a close and the next opening every worker waits, so a policy
/// that learns slowly stores its lessons until the workers have their work. All are kept, in order, so
/// it does not matter when the policy learns from them.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    lessons: Vec<Lesson>,
    seen_rounds: bool,
}

/// One observation to learn from.
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
        self.seen_rounds = true;
        self.lessons.push(Lesson::Closed(record.keep()));
    }

    pub(crate) fn late(&mut self, worker: WorkerId, base: Version, run_time: RunTime, load: f64) {
        let run_time = run_time.per_portion(load);
        self.lessons.push(Lesson::Late { worker, base, run_time });
    }

    /// Whether a round has closed, learnt from or not. The decision at an opening then needs no
    /// learning first.
    pub(crate) fn has_seen_rounds(&self) -> bool {
        self.seen_rounds
    }

    /// Whether a closed round is still to be learnt from: the policy has not been asked since.
    pub(crate) fn holds_a_round(&self) -> bool {
        self.lessons.iter().any(|lesson| matches!(lesson, Lesson::Closed(_)))
    }

    pub(crate) fn take(&mut self) -> Vec<Lesson> {
        std::mem::take(&mut self.lessons)
    }
}
