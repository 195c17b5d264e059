//! How late the system wakes a policy: what a wait costs beside the workers' time.
//!
//! A policy that asks to be woken at a moment is woken a little later: by a fraction of a millisecond on an
//! idle host, by several on a busy one, and not at all late in a replay. Thresholds that are about the system,
//! and not about the workers, are multiples of this time. So a replay decides the same whatever the unit of its
//! run-times.

use std::{collections::VecDeque, time::Duration};

use paceline_core::{Decision, Round, Time};

/// Wake-ups remembered.
const MEMORY: usize = 15;
/// Rounds at whose opening the policy asks to be woken at once: the first, and then one in as many.
const FIRST: u64 = 8;
const EVERY: u64 = 32;
/// The core wakes a policy this long after a question at the earliest.
const SHORTEST: Duration = Duration::from_micros(1);

/// The lateness of recent wake-ups.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lateness {
    recent: VecDeque<Duration>,
    usual: Duration,
    /// When the policy asked to be woken.
    due: Option<Time>,
}

impl Lateness {
    /// The usual lateness; zero before the first wake-up.
    pub(crate) fn usual(&self) -> Duration {
        self.usual
    }

    /// What to answer at a round's opening.
    pub(crate) fn at_opening(&self, round: Round, now: Time) -> Decision {
        match round.0 < FIRST || round.0.is_multiple_of(EVERY) {
            true => Decision::Wait { until: Some(now + SHORTEST), arrivals: 1 },
            false => Decision::WAIT,
        }
    }

    /// The policy is asked.
    pub(crate) fn asked(&mut self, now: Time) {
        let Some(due) = self.due.take_if(|due| *due <= now) else { return };
        self.recent.push_back(now.since(due));
        if self.recent.len() > MEMORY {
            self.recent.pop_front();
        }
        let mut sorted: Vec<Duration> = self.recent.iter().copied().collect();
        sorted.sort_unstable();
        self.usual = sorted[sorted.len() / 2];
    }

    /// The policy answered.
    pub(crate) fn answered(&mut self, decision: &Decision, now: Time) {
        self.due = match decision {
            Decision::Wait { until, .. } => until.map(|at| at.max(now + SHORTEST)),
            Decision::Cut { .. } => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Asks to be woken at `due` and is asked again at `now`.
    fn woken(lateness: &mut Lateness, due: Time, now: Time) {
        lateness.answered(&Decision::Wait { until: Some(due), arrivals: 1 }, Time::ZERO);
        lateness.asked(now);
    }

    #[test]
    fn the_usual_lateness_is_a_median() {
        let mut lateness = Lateness::default();
        let due = Time::ZERO + 10 * MS;
        for late in [1, 500, 2, 1, 1] {
            woken(&mut lateness, due, due + late * MS);
        }
        assert_eq!(lateness.usual(), MS);
        (0..MEMORY).for_each(|_| woken(&mut lateness, due, due + 4 * MS));
        assert_eq!(lateness.usual(), 4 * MS, "a host that becomes busy");
    }

    #[test]
    fn an_arrival_before_the_wake_up_says_nothing_and_a_replay_is_never_late() {
        let mut lateness = Lateness::default();
        let due = Time::ZERO + 10 * MS;
        woken(&mut lateness, due, Time::ZERO + 3 * MS);
        assert!(lateness.recent.is_empty());
        woken(&mut lateness, due, due);
        // A moment that has passed is moved to the next that the core allows.
        lateness.answered(&Decision::Wait { until: Some(Time::ZERO), arrivals: 1 }, due);
        lateness.asked(due + SHORTEST);
        assert_eq!((lateness.recent.len(), lateness.usual()), (2, Duration::ZERO));
    }
}
