//! Retries of failed checkpoints: the time of the next attempt, and when the run gives up.

use std::time::Duration;

use paceline_core::Time;

/// The pause after a first failure; each further failure doubles it.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest pause: a full disk stays full for a while, and each attempt copies the model.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The pause between attempts at the last checkpoint of a run.
const FINAL_PAUSE: Duration = Duration::from_millis(500);

/// Failures of the last checkpoint after which the run has failed.
const FINAL_ATTEMPTS: u32 = 3;

/// Failures since the last checkpoint that was written.
#[derive(Debug, Default)]
pub(super) struct CheckpointRetry {
    failures: u32,
    /// Failures since the run began to end.
    final_failures: u32,
    last: Option<Time>,
}

impl CheckpointRetry {
    /// A checkpoint was written.
    pub(super) fn succeeded(&mut self) {
        *self = CheckpointRetry::default();
    }

    /// A checkpoint failed. Returns whether that ends the run: it does once the last checkpoint of an ending
    /// run has failed [`FINAL_ATTEMPTS`] times. A run that continues needs none yet.
    pub(super) fn failed(&mut self, now: Time, is_ending: bool) -> bool {
        self.failures += 1;
        self.final_failures += u32::from(is_ending);
        self.last = Some(now);
        self.final_failures >= FINAL_ATTEMPTS
    }

    /// Whether a checkpoint may be tried now.
    pub(super) fn is_due(&self, now: Time, is_ending: bool) -> bool {
        let pause = match is_ending {
            true => FINAL_PAUSE,
            false => PAUSE * (1 << self.failures.saturating_sub(1).min(6)),
        };
        self.last.is_none_or(|last| now >= last + pause.min(LONGEST_PAUSE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn pauses_double_up_to_a_minute_and_a_success_ends_them() {
        let mut retry = CheckpointRetry::default();
        assert!(retry.is_due(at(0), false));
        for pause in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000] {
            assert!(!retry.failed(at(0), false), "a run that goes on does not fail");
            assert!(!retry.is_due(at(pause - 1), false) && retry.is_due(at(pause), false));
        }
        retry.succeeded();
        assert!(retry.is_due(at(0), false));
    }

    #[test]
    fn the_last_checkpoint_is_tried_three_times_however_often_one_failed_before() {
        let mut retry = CheckpointRetry::default();
        assert!(!(0..10).any(|_| retry.failed(at(0), false)));
        assert!(retry.is_due(at(500), true) && !retry.is_due(at(500), false));
        assert_eq!(
            [600, 1_200, 1_800].map(|millis| retry.failed(at(millis), true)),
            [false, false, true]
        );
    }
}
