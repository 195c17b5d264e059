//! Partial pushes: a contribution counts once enough shards hold their part of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use crate::{Blocks, Contribution, ContributionId, ShardId, Shards, Time, WorkerId};

/// Creates the wait for shards of one worker: for the parts of its contributions, or for the values that it
/// pulls.
pub type WaitRule = Box<dyn Fn() -> Shards + Send>;

/// The rule by which contributions count before they are whole, and the progress of each worker's last one.
pub(crate) struct PartialPushes {
    rule: WaitRule,
    /// Each shard's blocks.
    blocks: Vec<Range<u32>>,
    pushes: BTreeMap<WorkerId, Push>,
}

/// A contribution that counts only once a shard at its staleness bound holds its part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AwaitedPart {
    pub(crate) shard: ShardId,
    /// Pushes that the shard has missed.
    pub(crate) missed: u64,
}

/// The progress of a worker's last contribution.
struct Push {
    id: ContributionId,
    shards: Shards,
}

impl PartialPushes {
    /// Contributions count once they are complete on as many shards as `rule` waits for; `blocks` gives the
    /// number of blocks on each shard.
    pub(crate) fn new(blocks: &[u32], rule: WaitRule) -> PartialPushes {
        let ends = blocks.iter().scan(0, |end, &blocks| {
            let start = *end;
            *end += blocks;
            Some(start..*end)
        });
        PartialPushes { rule, blocks: ends.collect(), pushes: BTreeMap::new() }
    }

    /// A contribution was announced. Returns the shard at its bound that it must wait for, if there is one.
    pub(crate) fn begin(&mut self, contribution: &Contribution, now: Time) -> Option<AwaitedPart> {
        let &Contribution { id, worker, .. } = contribution;
        let new = || Push { id, shards: (self.rule)() };
        let push = self.pushes.entry(worker).or_insert_with(new);
        push.id = id;
        push.shards.update(|shard| contribution.shards.contains(&shard), now);
        for &shard in &contribution.staged {
            // A part may have arrived before the shard was left out.
            let _ = push.shards.answered(shard, now);
        }
        push.shards.at_bound().map(|(shard, missed)| AwaitedPart { shard, missed })
    }

    /// A shard holds its part of a contribution. The part counts there, or came too late.
    pub(crate) fn answered(
        &mut self,
        worker: WorkerId,
        id: ContributionId,
        shard: ShardId,
        counts: bool,
        now: Time,
    ) {
        if let Some(push) = self.pushes.get_mut(&worker).filter(|push| push.id == id) {
            // The shard may have reported twice.
            let _ = match counts {
                true => push.shards.answered(shard, now),
                false => push.shards.answered_in_vain(shard, now),
            };
        }
    }

    /// Whether enough shards hold their part of a contribution.
    pub(crate) fn is_enough(&mut self, worker: WorkerId, id: ContributionId, now: Time) -> bool {
        let Some(push) = self.pushes.get_mut(&worker).filter(|push| push.id == id) else {
            return false;
        };
        push.shards.advance(now);
        push.shards.is_ready()
    }

    /// The worker left.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.pushes.remove(&worker);
    }

    /// The times at which to ask the rule again, for every contribution on its way.
    pub(crate) fn wakes(&self) -> impl Iterator<Item = (WorkerId, ContributionId, Time)> + '_ {
        let wake =
            |(&worker, push): (&WorkerId, &Push)| Some((worker, push.id, push.shards.next_wake()?));
        self.pushes.iter().filter_map(wake)
    }

    /// The blocks of a shard.
    pub(crate) fn blocks_of(&self, ShardId(shard): ShardId) -> Option<Blocks> {
        let blocks = self.blocks.get(shard as usize)?;
        Some(Blocks::Only(blocks.clone().collect()))
    }

    /// The blocks of several shards.
    pub(crate) fn blocks_on(&self, staged: &BTreeSet<ShardId>) -> Blocks {
        let ranges = staged.iter().filter_map(|shard| self.blocks.get(shard.0 as usize));
        Blocks::Only(ranges.flat_map(Range::clone).collect())
    }
}
