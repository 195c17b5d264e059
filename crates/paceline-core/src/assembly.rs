//! Assembly: when a contribution is complete on enough shards of its round, and so may count there.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use crate::{Blocks, Contribution, MachineError, ShardId, Shards, Time, Version, WorkerId};

/// Makes what decides, for one worker, how long shards are waited for: with the parts of its
/// contributions, or with values that it pulls.
pub type WaitRule = Box<dyn Fn() -> Shards + Send>;

/// Contributions of which some shards hold their part. A part is whole or does not count; and so is a
/// contribution, unless a rule says for which shards' parts of it to wait.
#[derive(Default)]
pub(crate) struct Assembly {
    parts: BTreeMap<(WorkerId, Version), Parts>,
    /// The shards that each round has, or had, of which something may come.
    shards: BTreeMap<Version, BTreeSet<ShardId>>,
    partial: Option<Partial>,
}

#[derive(Debug, Default)]
struct Parts {
    said: Option<Contribution>,
    staged: BTreeSet<ShardId>,
}

/// Contributions count before they are whole.
struct Partial {
    rule: WaitRule,
    /// Each shard's blocks.
    blocks: Vec<Range<u32>>,
    races: BTreeMap<WorkerId, Race>,
    /// Contributions that a shard at its bound is waited for with, and the pushes it has missed.
    awaited: Vec<Awaited>,
}

/// A contribution that does not count before a shard has its part, which has missed so many.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Awaited {
    pub(crate) worker: WorkerId,
    pub(crate) base: Version,
    pub(crate) shard: ShardId,
    pub(crate) missed: u64,
}

/// How far a worker's last contribution has come.
struct Race {
    base: Version,
    shards: Shards,
}

impl Assembly {
    /// Contributions count once they are complete on as many shards, of so many blocks each, as the
    /// rule waits for.
    pub(crate) fn partial(blocks: &[u32], rule: WaitRule) -> Assembly {
        let ends = blocks.iter().scan(0, |end, &blocks| {
            let start = *end;
            *end += blocks;
            Some(start..*end)
        });
        let blocks = ends.collect();
        let partial = Partial { rule, blocks, races: BTreeMap::new(), awaited: Vec::new() };
        Assembly { partial: Some(partial), ..Assembly::default() }
    }

    /// A round opens on these shards; nothing more will come of rounds before `oldest`.
    pub(crate) fn open(&mut self, base: Version, shards: BTreeSet<ShardId>, oldest: Version) {
        self.shards.extract_if(..oldest, |_, _| true).for_each(drop);
        self.shards.insert(base, shards);
    }

    /// The worker says what it has put on the shards of its round. Returns the contribution if it is to
    /// be counted now.
    pub(crate) fn said(
        &mut self,
        contribution: Contribution,
        now: Time,
    ) -> Result<Option<Contribution>, MachineError> {
        let (worker, base) = (contribution.worker, contribution.base);
        let parts = self.parts.entry((worker, base)).or_default();
        if parts.said.replace(contribution).is_some() {
            return Err(MachineError::SaidTwice { worker, base });
        }
        if let Some((partial, of)) = self.partial.as_mut().zip(self.shards.get(&base)) {
            partial.begin(worker, base, of, &parts.staged, now);
        }
        Ok(self.whole((worker, base), now))
    }

    /// A shard holds its part, checked. Returns the contribution if it is to be counted now.
    pub(crate) fn staged(
        &mut self,
        worker: WorkerId,
        base: Version,
        shard: ShardId,
        now: Time,
    ) -> Option<Contribution> {
        self.parts.entry((worker, base)).or_default().staged.insert(shard);
        self.answered(worker, base, shard, true, now);
        self.whole((worker, base), now)
    }

    /// A shard holds its part of a contribution, which counts there, or was given up before.
    pub(crate) fn answered(
        &mut self,
        worker: WorkerId,
        base: Version,
        shard: ShardId,
        counts: bool,
        now: Time,
    ) {
        let Some(partial) = &mut self.partial else { return };
        if let Some(race) = partial.races.get_mut(&worker).filter(|race| race.base == base) {
            // It may have said so twice.
            let _ = match counts {
                true => race.shards.answered(shard, now),
                false => race.shards.answered_in_vain(shard, now),
            };
        }
    }

    /// The blocks of a shard, where contributions count before they are whole.
    pub(crate) fn blocks_of(&self, ShardId(shard): ShardId) -> Option<Blocks> {
        let blocks = self.partial.as_ref()?.blocks.get(shard as usize)?;
        Some(Blocks::Only(blocks.clone().collect()))
    }

    /// Contributions of which no more parts are waited for by now.
    pub(crate) fn due(&mut self, now: Time) -> Vec<Contribution> {
        let due: Vec<_> = self.wakes().filter(|(_, at)| *at <= now).map(|(key, _)| key).collect();
        due.into_iter().filter_map(|key| self.whole(key, now)).collect()
    }

    /// The next moment at which [`Self::due`] must be asked.
    pub(crate) fn next_wake(&self) -> Option<Time> {
        self.wakes().map(|(_, at)| at).min()
    }

    /// When the rule is to be asked again of what is on its way; of what is not, it never is.
    fn wakes(&self) -> impl Iterator<Item = ((WorkerId, Version), Time)> + '_ {
        let keys = self.partial.iter().flat_map(|partial| {
            self.parts.keys().map(move |&key| (key, partial.races.get(&key.0)))
        });
        keys.filter_map(|(key, race)| {
            let race = race.filter(|race| race.base == key.1)?;
            Some((key, race.shards.next_wake()?))
        })
    }

    /// Contributions that wait for a shard at its bound, since this was last asked.
    pub(crate) fn take_awaited(&mut self) -> Vec<Awaited> {
        self.partial
            .as_mut()
            .map(|partial| std::mem::take(&mut partial.awaited))
            .unwrap_or_default()
    }

    /// Nothing more will come of this worker's parts.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.parts.retain(|&(owner, _), _| owner != worker);
        if let Some(partial) = &mut self.partial {
            partial.races.remove(&worker);
        }
    }

    /// Nothing more will come of this worker's parts from before `base`.
    pub(crate) fn forget_before(&mut self, worker: WorkerId, base: Version) {
        let older = (worker, Version(0))..(worker, base);
        self.parts.extract_if(older, |_, _| true).for_each(drop);
    }

    /// Nothing that was computed from `base`, or before, counts any more: returns whose parts may be
    /// dropped.
    pub(crate) fn give_up(&mut self, base: Version) -> Vec<(WorkerId, Version)> {
        let useless = |&(_, of): &(WorkerId, Version), _: &mut Parts| of <= base;
        self.parts.extract_if(.., useless).map(|(key, _)| key).collect()
    }

    /// The worker gave up before its contribution was whole.
    pub(crate) fn abandon(&mut self, worker: WorkerId, base: Version) {
        self.parts.remove(&(worker, base));
    }

    fn whole(&mut self, key: (WorkerId, Version), now: Time) -> Option<Contribution> {
        // While nothing has come there is nothing to decide, which takes time.
        let ready = |parts: &&Parts| parts.said.is_some() && !parts.staged.is_empty();
        let parts = self.parts.get(&key).filter(ready)?;
        let whole = self.shards.get(&key.1)?.is_subset(&parts.staged);
        if !whole && !self.partial.as_mut().is_some_and(|partial| partial.is_enough(key, now)) {
            return None;
        }
        let Parts { said, staged } = self.parts.remove(&key)?;
        let blocks = match &self.partial {
            Some(partial) if !whole => partial.of(&staged),
            _ => Blocks::All,
        };
        said.map(|said| Contribution { blocks, ..said })
    }
}

impl Partial {
    fn begin(
        &mut self,
        worker: WorkerId,
        base: Version,
        of: &BTreeSet<ShardId>,
        staged: &BTreeSet<ShardId>,
        now: Time,
    ) {
        let new = || Race { base, shards: (self.rule)() };
        let race = self.races.entry(worker).or_insert_with(new);
        race.base = base;
        race.shards.update(|shard| of.contains(&shard), now);
        for &shard in staged {
            // A part of it may have come before it was left out.
            let _ = race.shards.answered(shard, now);
        }
        if let Some((shard, missed)) = race.shards.at_bound() {
            self.awaited.push(Awaited { worker, base, shard, missed });
        }
    }

    fn is_enough(&mut self, (worker, base): (WorkerId, Version), now: Time) -> bool {
        let Some(race) = self.races.get_mut(&worker).filter(|race| race.base == base) else {
            return false;
        };
        race.shards.advance(now);
        race.shards.is_ready()
    }

    fn of(&self, staged: &BTreeSet<ShardId>) -> Blocks {
        let ranges = staged.iter().filter_map(|shard| self.blocks.get(shard.0 as usize));
        Blocks::Only(ranges.flat_map(Range::clone).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contribution_is_whole_on_the_shards_that_its_own_round_had() {
        let (worker, older, newer) = (WorkerId(0), Version(3), Version(4));
        let of = |shards: &[u32]| shards.iter().copied().map(ShardId).collect();
        let mut assembly = Assembly::default();
        assembly.open(older, of(&[1]), older);
        assembly.open(newer, of(&[0, 1]), older);
        let said = |base| {
            let blocks = Blocks::All;
            Contribution { worker, base, weight: 1.0, loss: 0.0, square: None, blocks }
        };
        let now = Time::ZERO;
        assert_eq!(assembly.said(said(older), now).unwrap(), None);
        assert_eq!(assembly.staged(worker, older, ShardId(1), now), Some(said(older)));
        assert_eq!(assembly.said(said(newer), now).unwrap(), None);
        assert_eq!(assembly.staged(worker, newer, ShardId(1), now), None);
        assert_eq!(assembly.staged(worker, newer, ShardId(0), now), Some(said(newer)));
    }
}
