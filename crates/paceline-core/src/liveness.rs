//! Liveness: who has been heard of lately. Slow is not dead; silent is.

use std::{collections::BTreeMap, time::Duration};

use crate::{Time, WorkerId};

/// The last sign of life of every worker (or shard), from heartbeats or any other message.
#[derive(Debug, Clone)]
pub struct Liveness<Id = WorkerId> {
    timeout: Duration,
    heard: BTreeMap<Id, Time>,
    /// When somebody last looked.
    looked: Time,
}

impl<Id: Ord + Copy> Liveness<Id> {
    /// Who is silent for longer than `timeout` counts as dead.
    pub fn new(timeout: Duration) -> Self {
        Liveness { timeout, heard: BTreeMap::new(), looked: Time::ZERO }
    }

    /// `id` gave a sign of life.
    pub fn heard(&mut self, id: Id, now: Time) {
        self.heard.insert(id, now);
    }

    /// Stop watching `id`: it has left.
    pub fn forget(&mut self, id: Id) {
        self.heard.remove(&id);
    }

    /// Those who have been silent for too long, with how long. To be asked at least four times in
    /// the timeout: time in which nobody listened does not count as silence, since what was said
    /// meanwhile is still to be heard.
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
        // Held up for a minute, of which a quarter of the timeout counts.
        for second in 61..=66 {
            assert!(liveness.silent(at(second)).is_empty());
        }
        assert_eq!(liveness.silent(at(67)), [(WorkerId(1), Duration::from_secs(9))]);
    }
}
