//! Leases: portions that workers hold before the rounds that they are for, so that they can load the samples
//! early.
//!
//! A lease is not work yet. It becomes the work of its worker when a round needs it, or goes to another worker
//! before that: its worker left, or an idle worker had nothing else to do. In both cases no computation is
//! lost, so the samples do not count as returned.

use std::collections::{BTreeMap, VecDeque};

use crate::{HeldRange, Portion, SampleRange, WorkerId};

/// Ranges of one epoch. Never empty.
pub(crate) type Lease = Vec<HeldRange>;

/// The most leases of a worker. Every round sends the worker the complete list.
const MOST: u32 = 256;

/// The leases of all workers that asked for some.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    queues: BTreeMap<WorkerId, Queue>,
}

#[derive(Debug)]
struct Queue {
    /// The number of leases that the worker asked for.
    ahead: usize,
    /// In the order in which they become work: older epochs first.
    leases: VecDeque<Lease>,
    /// Whether the driver does not know of the last change.
    changed: bool,
}

impl Leases {
    /// From now on, `worker` holds up to `ahead` leases.
    pub(crate) fn add(&mut self, worker: WorkerId, ahead: u32) {
        let (ahead, leases) = (ahead.min(MOST) as usize, VecDeque::new());
        self.queues.insert(worker, Queue { ahead, leases, changed: false });
    }

    /// `worker` is gone. Returns its leases.
    pub(crate) fn remove(&mut self, worker: WorkerId) -> impl Iterator<Item = Lease> + use<> {
        self.queues.remove(&worker).into_iter().flat_map(|queue| queue.leases)
    }

    /// Whether `worker` asked for leases.
    pub(crate) fn has(&self, worker: WorkerId) -> bool {
        self.queues.contains_key(&worker)
    }

    /// The workers with fewer than `level` leases that asked for at least as many, in order.
    pub(crate) fn below(&self, level: usize) -> Vec<WorkerId> {
        let wants = |queue: &Queue| queue.leases.len() < level && level <= queue.ahead;
        self.queues.iter().filter(|(_, queue)| wants(queue)).map(|(&worker, _)| worker).collect()
    }

    /// The most leases that any worker asked for.
    pub(crate) fn deepest(&self) -> usize {
        self.queues.values().map(|queue| queue.ahead).max().unwrap_or(0)
    }

    /// Adds a lease behind the others of its epoch.
    pub(crate) fn push(&mut self, worker: WorkerId, lease: Lease) {
        let Some(queue) = self.queues.get_mut(&worker) else { return };
        let place = queue.leases.partition_point(|other| epoch(other) <= epoch(&lease));
        queue.leases.insert(place, lease);
        queue.changed = true;
    }

    /// Takes the first lease of `worker`, if its epoch `may_begin`.
    pub(crate) fn pop(
        &mut self,
        worker: WorkerId,
        may_begin: impl Fn(u32) -> bool,
    ) -> Option<Lease> {
        let queue = self.queues.get_mut(&worker)?;
        let lease = queue.leases.pop_front_if(|lease| may_begin(epoch(lease)))?;
        queue.changed = true;
        Some(lease)
    }

    /// Takes the last lease that `may_begin` from the worker with the most of them; of several such workers
    /// from the one with the largest `typical` run-time, then from the one with the highest number. A worker
    /// in `idle` keeps its first lease, which is its next work.
    pub(crate) fn revoke(
        &mut self,
        idle: &[WorkerId],
        may_begin: impl Fn(u32) -> bool,
        typical: impl Fn(WorkerId) -> Option<f64>,
    ) -> Option<Lease> {
        let ready = |queue: &Queue| queue.leases.partition_point(|lease| may_begin(epoch(lease)));
        let counts = self.queues.iter().map(|(&worker, queue)| (ready(queue), worker));
        let kept = |worker: WorkerId| usize::from(idle.contains(&worker));
        let (ready, worker) =
            counts.filter(|&(ready, worker)| ready > kept(worker)).max_by(|a, b| {
                let slowness = |worker| typical(worker).unwrap_or(0.0);
                let by_time = slowness(a.1).total_cmp(&slowness(b.1));
                a.0.cmp(&b.0).then(by_time).then(a.1.cmp(&b.1))
            })?;
        let queue = self.queues.get_mut(&worker)?;
        queue.changed = true;
        queue.leases.remove(ready - 1)
    }

    /// The samples of all leases.
    pub(crate) fn held(&self) -> impl Iterator<Item = SampleRange> + '_ {
        let leases = self.queues.values().flat_map(|queue| &queue.leases);
        leases.flatten().map(|held| held.range)
    }

    /// Takes the complete lists of the workers whose leases have changed since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<(WorkerId, Vec<Portion>)> {
        let changed = self.queues.iter_mut().filter(|(_, queue)| queue.changed);
        changed
            .map(|(&worker, queue)| {
                queue.changed = false;
                (worker, queue.leases.iter().map(|lease| Portion::of(lease)).collect())
            })
            .collect()
    }
}

fn epoch(lease: &Lease) -> u32 {
    lease[0].range.epoch
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(epoch: u32, start: u32) -> Lease {
        vec![HeldRange { range: SampleRange { epoch, start, end: start + 1 }, returns: 0 }]
    }

    /// Leases of epoch 0 for each worker, by their number.
    fn leases(counts: &[u32]) -> Leases {
        let mut leases = Leases::default();
        for (worker, &count) in (0..).map(WorkerId).zip(counts) {
            leases.add(worker, 9);
            (0..count).for_each(|start| leases.push(worker, lease(0, start)));
        }
        leases
    }

    #[test]
    fn older_epochs_come_first_however_late_they_are_leased() {
        let mut leases = leases(&[0]);
        for (epoch, start) in [(1, 0), (0, 5), (1, 3), (0, 2)] {
            leases.push(WorkerId(0), lease(epoch, start));
        }
        let order = std::iter::from_fn(|| leases.pop(WorkerId(0), |_| true));
        let order: Vec<Lease> = order.collect();
        assert_eq!(order, [lease(0, 5), lease(0, 2), lease(1, 0), lease(1, 3)]);
    }

    #[test]
    fn a_lease_is_revoked_at_the_back_of_the_longest_queue_then_from_the_slowest_worker() {
        let take = |counts: &[u32], idle: &[WorkerId], slow: Option<u32>| {
            let mut all = leases(counts);
            let typical = |worker: WorkerId| (Some(worker.0) == slow).then_some(1.0);
            let lease = all.revoke(idle, |_| true, typical)?;
            let left = |w: &WorkerId| all.queues[w].leases.len() < counts[w.0 as usize] as usize;
            let from = all.queues.keys().copied().find(left)?;
            Some((from.0, lease[0].range.start))
        };
        assert_eq!(take(&[2, 3, 1], &[], Some(0)), Some((1, 2)), "the longest");
        assert_eq!(take(&[2, 2, 2], &[], None), Some((2, 1)), "the highest number");
        assert_eq!(take(&[2, 2, 2], &[], Some(0)), Some((0, 1)), "the slowest");
        assert_eq!(take(&[1, 1], &[WorkerId(1)], None), Some((0, 0)), "1 needs its own");
        assert_eq!(take(&[1, 1], &[WorkerId(0), WorkerId(1)], None), None);
    }

    #[test]
    fn of_an_epoch_that_may_not_begin_no_lease_is_taken() {
        let mut leases = leases(&[2]);
        leases.push(WorkerId(0), lease(1, 0));
        let first = |epoch| epoch == 0;
        assert_eq!(leases.revoke(&[], first, |_| None), Some(lease(0, 1)));
        assert_eq!(leases.pop(WorkerId(0), first), Some(lease(0, 0)));
        assert_eq!(leases.pop(WorkerId(0), first), None);
        assert_eq!(leases.revoke(&[], first, |_| None), None);
        assert_eq!(leases.held().count(), 1);
    }
}
