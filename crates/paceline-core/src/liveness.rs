//! Liveness: when each worker or shard was last heard from. A slow worker is alive; a silent one is dead.

use std::{collections::BTreeMap, time::Duration};

use crate::{Time, WorkerId};

/// When the last heartbeat or other message of each worker (or shard) arrived.
#[derive(Debug, Clone)]
pub struct Liveness<Id = WorkerId> {
    timeout: Duration,
    heard: BTreeMap<Id, Time>,
    /// When [`Self::silent`] was called last.
    looked: Time,
}

impl<Id: Ord + Copy> Liveness<Id> {
    /// A worker or shard that is silent for longer than `timeout` counts as dead.
    pub fn new(timeout: Duration) -> Self {
        Liveness { timeout, heard: BTreeMap::new(), looked: Time::ZERO }
    }

    /// A heartbeat or other message of `id` arrived.
    pub fn heard(&mut self, id: Id, now: Time) {
        self.heard.insert(id, now);
    }

    /// Stop watching `id`: it has left.
    pub fn forget(&mut self, id: Id) {
        self.heard.remove(&id);
    }

    /// Those that have been silent for too long, with the length of their silence. Call this at least four
    /// times per timeout. Time in which nobody listened does not count as silence, since messages sent
    /// meanwhile are still queued.
    pub fn silent(&mut self, now: Time) -> Vec<(Id, Duration)> {
        let away = now.since(std::mem::replace(&mut self.looked, now));
        let held_up = away.saturating_sub(self.timeout / 4);
        self.heard.values_mut().for_each(|last| *last = now.min(*last + held_up));
        self.heard
            .iter()
            .map(|(&id, &last)| (id, now.since(last)))
            .filter(|&(_, silence)| silence > self.timeout)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_worker_is_dead_only_after_its_silence_passes_the_timeout() {
        let mut liveness = Liveness::new(Duration::from_secs(5));
        liveness.heard(WorkerId(1), Time::ZERO);
        for second in 1..=5 {
            assert!(liveness.silent(at(second)).is_empty());
        }
        liveness.heard(WorkerId(2), at(3));
        assert_eq!(liveness.silent(at(6)), [(WorkerId(1), Duration::from_secs(6))]);
        liveness.forget(WorkerId(1));
        assert!(liveness.silent(at(7)).is_empty());
    }

    #[test]
    fn nobody_is_blamed_for_what_was_not_listened_to() {
        let mut liveness = Liveness::new(Duration::from_secs(8));
        liveness.heard(WorkerId(1), Time::ZERO);
        assert!(liveness.silent(at(1)).is_empty());
        // A minute without listening, of which only a quarter of the timeout counts.
        for second in 61..=66 {
            assert!(liveness.silent(at(second)).is_empty());
        }
        assert_eq!(liveness.silent(at(67)), [(WorkerId(1), Duration::from_secs(9))]);
    }
}
