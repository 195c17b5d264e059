//! Assembly: when a contribution is complete on every shard of its round, and so may count there.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Contribution, MachineError, ShardId, Version, WorkerId};

/// Contributions of which some shards hold their part. Half a contribution never reaches a sum:
/// only a whole one leaves here.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    parts: BTreeMap<(WorkerId, Version), Parts>,
    /// How many shards each round has, or had, of which something may come.
    shards: BTreeMap<Version, usize>,
}

#[derive(Debug, Default)]
struct Parts {
    said: Option<Contribution>,
    staged: BTreeSet<ShardId>,
}

impl Assembly {
    /// A round opens on so many shards; nothing more will come of rounds before `oldest`.
    pub(crate) fn open(&mut self, base: Version, shards: usize, oldest: Version) {
        self.shards.extract_if(..oldest, |_, _| true).for_each(drop);
        self.shards.insert(base, shards);
    }

    /// The worker says what it has put on the shards. Returns the contribution if it is whole.
    pub(crate) fn said(
        &mut self,
        contribution: Contribution,
    ) -> Result<Option<Contribution>, MachineError> {
        let (worker, base) = (contribution.worker, contribution.base);
        let said = &mut self.parts.entry((worker, base)).or_default().said;
        if said.replace(contribution).is_some() {
            return Err(MachineError::SaidTwice { worker, base });
        }
        Ok(self.whole((worker, base)))
    }

    /// A shard holds its part, checked. Returns the contribution if it is whole.
    pub(crate) fn staged(
        &mut self,
        worker: WorkerId,
        base: Version,
        shard: ShardId,
    ) -> Option<Contribution> {
        self.parts.entry((worker, base)).or_default().staged.insert(shard);
        self.whole((worker, base))
    }

    /// Nothing more will come of this worker's parts.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.parts.retain(|&(owner, _), _| owner != worker);
    }

    /// Nothing more will come of this worker's parts from before `base`.
    pub(crate) fn forget_before(&mut self, worker: WorkerId, base: Version) {
        let older = (worker, Version(0))..(worker, base);
        self.parts.extract_if(older, |_, _| true).for_each(drop);
    }

    /// The worker gave up before its contribution was whole.
    pub(crate) fn abandon(&mut self, worker: WorkerId, base: Version) {
        self.parts.remove(&(worker, base));
    }

    fn whole(&mut self, key: (WorkerId, Version)) -> Option<Contribution> {
        let parts = self.parts.get(&key)?;
        if parts.staged.len() < *self.shards.get(&key.1)? || parts.said.is_none() {
            return None;
        }
        self.parts.remove(&key)?.said
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Blocks;

    #[test]
    fn a_contribution_is_whole_on_the_shards_that_its_own_round_had() {
        let (worker, older, newer) = (WorkerId(0), Version(3), Version(4));
        let mut assembly = Assembly::default();
        assembly.open(older, 1, older);
        assembly.open(newer, 2, older);
        let said = |base| {
            let blocks = Blocks::All;
            Contribution { worker, base, weight: 1.0, loss: 0.0, square: None, blocks }
        };
        assert_eq!(assembly.said(said(older)).unwrap(), None);
        assert_eq!(assembly.staged(worker, older, ShardId(1)), Some(said(older)));
        assert_eq!(assembly.said(said(newer)).unwrap(), None);
        assert_eq!(assembly.staged(worker, newer, ShardId(1)), None);
        assert_eq!(assembly.staged(worker, newer, ShardId(0)), Some(said(newer)));
    }
}
