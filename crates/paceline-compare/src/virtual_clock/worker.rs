//! The state of a virtual worker.

use std::sync::Arc;

use paceline_core::{ContributionId, Portion, Time, Version};

/// One worker's current work, and when it is free for the next.
#[derive(Debug, Clone, Default)]
pub(super) struct Worker {
    pub(super) task: Option<Task>,
    /// When it has completed the step in which it was cut.
    pub(super) free_at: Time,
    /// Seconds spent computing, used or not.
    pub(super) busy: f64,
}

/// Work on a version.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) id: ContributionId,
    pub(super) base: Version,
    pub(super) portion: Portion,
    /// The parameters it computes from.
    pub(super) params: Arc<Vec<f32>>,
    pub(super) began: Time,
    /// Seconds after which each of its micro-batches is done.
    pub(super) ends: Vec<f64>,
    /// Micro-batches done.
    pub(super) done: u32,
}

/// Steps of a micro-batch, between which a worker checks whether it was cut. Layers differ in length; on
/// average a native network stops as if there were this many equal ones: half a step is a twelfth of a
/// micro-batch (measured: 0.07 for two images through the CNN, 0.09 for eight, 0.09 through the residual
/// network).
const STEPS: f64 = 6.0;

impl Task {
    /// When the first `part` micro-batches are done.
    pub(super) fn end(&self, part: u32) -> Time {
        self.began + Time::span(self.ends[part as usize - 1])
    }

    /// When a worker that is cut now stops.
    pub(super) fn stops(&self, now: Time) -> Time {
        let from = if self.done == 0 { self.began } else { self.end(self.done) };
        let step = self.end(self.done + 1).since(from).as_secs_f64() / STEPS;
        let steps = (now.since(from).as_secs_f64() / step).ceil().min(STEPS);
        (from + Time::span(steps * step)).max(now)
    }
}

#[cfg(test)]
mod tests {
    use paceline_core::SampleRange;

    use super::*;

    #[test]
    fn who_is_cut_completes_its_step() {
        let at = |seconds: f64| Time::ZERO + Time::span(seconds);
        let task = Task {
            id: ContributionId(0),
            base: Version(0),
            portion: Portion::new(SampleRange { epoch: 0, start: 0, end: 4 }),
            params: Arc::default(),
            began: at(1.0),
            ends: vec![6.0, 12.0],
            done: 1,
        };
        // Its second micro-batch lasts from 7 to 13, one step per second.
        for (cut, stops) in [(7.0, 7.0), (7.5, 8.0), (12.1, 13.0)] {
            assert_eq!(task.stops(at(cut)), at(stops));
        }
        let first = Task { done: 0, ..task };
        assert_eq!(first.stops(at(2.5)), at(3.0));
    }
}
