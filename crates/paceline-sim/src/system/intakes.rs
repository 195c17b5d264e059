//! What workers have of the shards' values, where they do not wait for all.

use std::{collections::BTreeSet, ops::Range};

use paceline_core::{Intake, ShardId, Time, Version, WaitRule, WorkerId};

/// One intake for each worker.
pub(super) struct Intakes {
    rule: WaitRule,
    max_stale: u64,
    of: Vec<Intake>,
    /// Those who wait for values.
    waiting: BTreeSet<WorkerId>,
    /// The version that is on its way to each worker from a shard, or came last.
    sent: Vec<Vec<Version>>,
    /// The newest of each shard that a worker could ask for.
    newest: Vec<Version>,
}

impl Intakes {
    pub(super) fn new(rule: WaitRule, max_stale: u64, workers: usize) -> Intakes {
        let of: Vec<Intake> = (0..workers).map(|_| Intake::new(rule(), max_stale)).collect();
        let shards = rule().count();
        Intakes {
            rule,
            max_stale,
            of,
            waiting: BTreeSet::new(),
            sent: vec![vec![Version(0); shards]; workers],
            newest: vec![Version(0); shards],
        }
    }

    /// A round opens on these shards.
    pub(super) fn open(&mut self, base: Version, shards: &BTreeSet<ShardId>) {
        for &ShardId(shard) in shards {
            self.newest[shard as usize] = base;
        }
    }

    /// A worker is to begin; returns which shards it asks now.
    pub(super) fn want(
        &mut self,
        worker: WorkerId,
        base: Version,
        behind: &[u32],
        now: Time,
    ) -> BTreeSet<ShardId> {
        self.waiting.insert(worker);
        let wants = self.of[worker.0 as usize].want(base, behind, now);
        wants.into_iter().map(|(shard, _)| self.send(worker, shard)).collect()
    }

    /// Values have come from these shards; returns which are asked for newer ones.
    pub(super) fn landed(
        &mut self,
        worker: WorkerId,
        shards: Range<u32>,
        now: Time,
    ) -> BTreeSet<ShardId> {
        let index = worker.0 as usize;
        let asked = shards.map(ShardId).filter(|shard| {
            let found = self.sent[index][shard.0 as usize];
            self.of[index].landed(*shard, found, now).is_some()
        });
        let asked: Vec<ShardId> = asked.collect();
        asked.into_iter().map(|shard| self.send(worker, shard)).collect()
    }

    fn send(&mut self, worker: WorkerId, shard: ShardId) -> ShardId {
        self.sent[worker.0 as usize][shard.0 as usize] = self.newest[shard.0 as usize];
        shard
    }

    /// Whether a worker that waits may begin, which it then does: of how many shards it has old values.
    pub(super) fn begin(&mut self, worker: WorkerId, now: Time) -> Option<usize> {
        let intake = &mut self.of[worker.0 as usize];
        if !self.waiting.contains(&worker) {
            return None;
        }
        intake.advance(now);
        intake.is_ready().then(|| {
            self.waiting.remove(&worker);
            intake.stale().count()
        })
    }

    /// Those who wait and are to look again by now.
    pub(super) fn due(&self, now: Time) -> Vec<WorkerId> {
        let due = |worker: &&WorkerId| self.wake(**worker).is_some_and(|at| at <= now);
        self.waiting.iter().filter(due).copied().collect()
    }

    /// The next moment at which one is to look again.
    pub(super) fn next(&self) -> Option<Time> {
        self.waiting.iter().filter_map(|&worker| self.wake(worker)).min()
    }

    fn wake(&self, worker: WorkerId) -> Option<Time> {
        self.of[worker.0 as usize].next_wake()
    }

    /// Nothing comes of what a worker waits for; values that are on their way land all the same.
    pub(super) fn stop(&mut self, worker: WorkerId) {
        self.waiting.remove(&worker);
    }

    /// A worker has left: whoever comes in its place has nothing.
    pub(super) fn leave(&mut self, worker: WorkerId) {
        self.stop(worker);
        self.of[worker.0 as usize] = Intake::new((self.rule)(), self.max_stale);
    }
}
