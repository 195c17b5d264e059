//! The links of all shards.

use std::ops::Range;

use paceline_core::Time;

use super::{SystemSpec, link::SimLink, servers::Present};

/// The direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Parameters, from the shards to a worker.
    Pull,
    /// A gradient, from a worker to the shards.
    Push,
}

/// The links of all shards. A worker exchanges the model with all shards of its round at once, and
/// each of these transfers has an equal share of the worker's own link.
///
/// Equal shards hold equal parts of the model and transfer them at the same moments, so one link
/// stands for all of them: the cost of a simulation does not grow with their number.
#[derive(Debug, Clone)]
pub(super) struct Network {
    /// Empty if there is nothing to transfer.
    groups: Vec<EqualShards>,
}

/// Shards with equal links.
#[derive(Debug, Clone)]
struct EqualShards {
    shards: Range<u32>,
    pull: SimLink,
    push: SimLink,
}

impl Network {
    pub(super) fn new(spec: &SystemSpec, workers: usize) -> Network {
        let part = spec.part();
        let cap = spec.worker_bandwidth / f64::from(spec.shards);
        let group = |(shards, slow): (Range<u32>, bool)| {
            let share = if slow { spec.slow_shard } else { 1.0 };
            let link = SimLink::new(workers, part, spec.server_bandwidth * share, cap);
            EqualShards { shards, pull: link.clone(), push: link }
        };
        Network { groups: spec.kinds().filter(|_| part > 0.0).map(group).collect() }
    }

    /// Begins a worker's transfers with these shards; false if there is nothing to transfer.
    pub(super) fn enter(&mut self, way: Way, worker: usize, shards: Present, now: Time) -> bool {
        for (group, _) in self.groups.iter_mut().zip(shards).filter(|(_, here)| *here) {
            group.link(way).enter(worker, now);
        }
        !self.groups.is_empty()
    }

    /// Stops a worker's transfers in one direction.
    pub(super) fn leave(&mut self, way: Way, worker: usize, now: Time) {
        self.groups.iter_mut().for_each(|group| group.link(way).leave(worker, now));
    }

    /// The next moment at which a transfer ends, if nothing changes.
    pub(super) fn next(&mut self) -> Option<Time> {
        self.groups
            .iter_mut()
            .flat_map(|group| [group.pull.next(), group.push.next()])
            .flatten()
            .min()
    }

    /// Removes and returns a transfer that has ended by now: worker, direction, shards.
    pub(super) fn ended(&mut self, now: Time) -> Option<(usize, Way, Range<u32>)> {
        self.groups.iter_mut().find_map(|group| {
            let (worker, way) = match group.pull.ended(now) {
                Some(worker) => (worker, Way::Pull),
                None => (group.push.ended(now)?, Way::Push),
            };
            Some((worker, way, group.shards.clone()))
        })
    }

    /// The share of its bandwidth that the busiest link uses.
    pub(super) fn load(&self) -> f64 {
        self.groups.iter().map(|group| group.pull.load().max(group.push.load())).fold(0.0, f64::max)
    }
}

impl EqualShards {
    fn link(&mut self, way: Way) -> &mut SimLink {
        match way {
            Way::Pull => &mut self.pull,
            Way::Push => &mut self.push,
        }
    }
}
