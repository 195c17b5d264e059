//! The parameters that workers have pulled, where they do not wait for all shards.

use std::{collections::BTreeSet, ops::Range};

use paceline_core::{Intake, ShardId, Time, Version, WaitRule, WorkerId};

/// One intake per worker.
pub(super) struct Intakes {
    rule: WaitRule,
    max_stale: u64,
    by_worker: Vec<Intake>,
    /// Workers that wait for parameters.
    waiting: BTreeSet<WorkerId>,
    /// The version last sent to each worker by each shard.
    sent: Vec<Vec<Version>>,
    /// The newest version that each shard can send.
    newest: Vec<Version>,
}

impl Intakes {
    pub(super) fn new(rule: WaitRule, max_stale: u64, workers: usize) -> Intakes {
        let by_worker = (0..workers).map(|_| Intake::new(rule(), max_stale)).collect();
        let shards = rule().count();
        Intakes {
            rule,
            max_stale,
            by_worker,
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

    /// A worker is to begin; returns the shards from which it pulls now.
    pub(super) fn want(
        &mut self,
        worker: WorkerId,
        base: Version,
        behind: &[u32],
        now: Time,
    ) -> BTreeSet<ShardId> {
        self.waiting.insert(worker);
        let wants = self.by_worker[worker.0 as usize].want(base, behind, now);
        wants.into_iter().map(|(shard, _)| self.send(worker, shard)).collect()
    }

    /// Parameters have arrived from these shards; returns the shards to pull newer ones from.
    pub(super) fn landed(
        &mut self,
        worker: WorkerId,
        shards: Range<u32>,
        now: Time,
    ) -> BTreeSet<ShardId> {
        let index = worker.0 as usize;
        let asked = shards.map(ShardId).filter(|shard| {
            let found = self.sent[index][shard.0 as usize];
            self.by_worker[index].landed(*shard, found, now).is_some()
        });
        let asked: Vec<ShardId> = asked.collect();
        asked.into_iter().map(|shard| self.send(worker, shard)).collect()
    }

    fn send(&mut self, worker: WorkerId, shard: ShardId) -> ShardId {
        self.sent[worker.0 as usize][shard.0 as usize] = self.newest[shard.0 as usize];
        shard
    }

    /// Begins a waiting worker if its rule allows; returns the number of shards whose values are old.
    pub(super) fn begin(&mut self, worker: WorkerId, now: Time) -> Option<usize> {
        let intake = &mut self.by_worker[worker.0 as usize];
        if !self.waiting.contains(&worker) {
            return None;
        }
        intake.advance(now);
        intake.is_ready().then(|| {
            self.waiting.remove(&worker);
            intake.stale().count()
        })
    }

    /// Waiting workers whose rule is to be asked again by now.
    pub(super) fn due(&self, now: Time) -> Vec<WorkerId> {
        let due = |worker: &&WorkerId| self.wake(**worker).is_some_and(|at| at <= now);
        self.waiting.iter().filter(due).copied().collect()
    }

    /// The next moment at which a waiting worker's rule is to be asked again.
    pub(super) fn next(&self) -> Option<Time> {
        self.waiting.iter().filter_map(|&worker| self.wake(worker)).min()
    }

    fn wake(&self, worker: WorkerId) -> Option<Time> {
        self.by_worker[worker.0 as usize].next_wake()
    }

    /// A worker stops waiting; parameters on their way still arrive.
    pub(super) fn stop(&mut self, worker: WorkerId) {
        self.waiting.remove(&worker);
    }

    /// A worker has left; its successor begins without parameters.
    pub(super) fn leave(&mut self, worker: WorkerId) {
        self.stop(worker);
        self.by_worker[worker.0 as usize] = Intake::new((self.rule)(), self.max_stale);
    }
}
