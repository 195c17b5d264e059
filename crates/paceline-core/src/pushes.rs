//! Partial pushes: a contribution counts once enough shards hold their part of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use crate::{Blocks, Contribution, ContributionId, ShardId, Shards, Time, WorkerId};

/// Makes what decides, for one worker, how long shards are waited for: with the parts of its
/// contributions, or with values that it pulls.
pub type WaitRule = Box<dyn Fn() -> Shards + Send>;

/// The rule by which contributions count before they are whole, and how far each worker's last one is.
pub(crate) struct PartialPushes {
    rule: WaitRule,
    /// Each shard's blocks.
    blocks: Vec<Range<u32>>,
    pushes: BTreeMap<WorkerId, Push>,
}

/// A contribution that does not count before a shard at its bound has its part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AwaitedPart {
    pub(crate) shard: ShardId,
    /// Pushes that the shard has missed.
    pub(crate) missed: u64,
}

/// How far a worker's last contribution has come.
struct Push {
    id: ContributionId,
    shards: Shards,
}

impl PartialPushes {
    /// Contributions count once they are complete on as many shards, of so many blocks each, as the
    /// rule waits for.
    pub(crate) fn new(blocks: &[u32], rule: WaitRule) -> PartialPushes {
        let ends = blocks.iter().scan(0, |end, &blocks| {
            let start = *end;
            *end += blocks;
            Some(start..*end)
        });
        PartialPushes { rule, blocks: ends.collect(), pushes: BTreeMap::new() }
    }

    /// A contribution was announced. Returns the shard that it has to wait for, if one is at its bound.
    pub(crate) fn begin(&mut self, contribution: &Contribution, now: Time) -> Option<AwaitedPart> {
        let &Contribution { id, worker, .. } = contribution;
        let new = || Push { id, shards: (self.rule)() };
        let push = self.pushes.entry(worker).or_insert_with(new);
        push.id = id;
        push.shards.update(|shard| contribution.shards.contains(&shard), now);
        for &shard in &contribution.staged {
            // A part of it may have come before the shard was left out.
            let _ = push.shards.answered(shard, now);
        }
        push.shards.at_bound().map(|(shard, missed)| AwaitedPart { shard, missed })
    }

    /// A shard holds its part of a contribution, which counts there or came too late.
    pub(crate) fn answered(
        &mut self,
        worker: WorkerId,
        id: ContributionId,
        shard: ShardId,
        counts: bool,
        now: Time,
    ) {
        if let Some(push) = self.pushes.get_mut(&worker).filter(|push| push.id == id) {
            // It may have said so twice.
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

    /// When the rule is to be asked again, of every contribution that is on its way.
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
