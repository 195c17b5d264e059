//! Liveness: who has been heard of lately. Slow is not dead; silent is.

use std::{collections::BTreeMap, time::Duration};

use crate::{Time, WorkerId};

/// The last sign of life of every worker, from heartbeats or any other message.
#[derive(Debug, Clone)]
pub struct Liveness {
    timeout: Duration,
    heard: BTreeMap<WorkerId, Time>,
}

impl Liveness {
    /// Workers silent for longer than `timeout` count as dead.
    pub fn new(timeout: Duration) -> Self {
        Liveness { timeout, heard: BTreeMap::new() }
    }

    /// `worker` gave a sign of life.
    pub fn heard(&mut self, worker: WorkerId, now: Time) {
        self.heard.insert(worker, now);
    }

    /// Stop watching `worker`: it has left.
    pub fn forget(&mut self, worker: WorkerId) {
        self.heard.remove(&worker);
    }

    /// The workers that have been silent for too long, with how long.
    pub fn silent(&self, now: Time) -> Vec<(WorkerId, Duration)> {
        self.heard
            .iter()
            .map(|(&worker, &last)| (worker, now.since(last)))
            .filter(|&(_, silence)| silence > self.timeout)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_dead_only_after_its_silence_passes_the_timeout() {
        let mut liveness = Liveness::new(Duration::from_secs(5));
        liveness.heard(WorkerId(1), Time::ZERO);
        liveness.heard(WorkerId(2), Time::ZERO + Duration::from_secs(3));
        assert!(liveness.silent(Time::ZERO + Duration::from_secs(5)).is_empty());
        let dead = liveness.silent(Time::ZERO + Duration::from_secs(6));
        assert_eq!(dead, [(WorkerId(1), Duration::from_secs(6))]);
        liveness.forget(WorkerId(1));
        assert!(liveness.silent(Time::ZERO + Duration::from_secs(7)).is_empty());
    }
}
