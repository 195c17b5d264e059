//! Assembly: when a contribution is complete on every shard of its round, and so may count there.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Contribution, MachineError, ShardId, Version, WorkerId};

/// Contributions of which some shards hold their part. Half a contribution never reaches a sum:
/// only a whole one leaves here.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    parts: BTreeMap<(WorkerId, Version), Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    said: Option<Contribution>,
    staged: BTreeSet<ShardId>,
}

impl Assembly {
    /// The worker says what it has put on the shards. Returns the contribution if it is whole on so
    /// many.
    pub(crate) fn said(
        &mut self,
        contribution: Contribution,
        shards: usize,
    ) -> Result<Option<Contribution>, MachineError> {
        let (worker, base) = (contribution.worker, contribution.base);
        let said = &mut self.parts.entry((worker, base)).or_default().said;
        if said.replace(contribution).is_some() {
            return Err(MachineError::SaidTwice { worker, base });
        }
        Ok(self.whole((worker, base), shards))
    }

    /// A shard holds its part, checked. Returns the contribution if it is whole on so many.
    pub(crate) fn staged(
        &mut self,
        worker: WorkerId,
        base: Version,
        shard: ShardId,
        shards: usize,
    ) -> Option<Contribution> {
        self.parts.entry((worker, base)).or_default().staged.insert(shard);
        self.whole((worker, base), shards)
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

    fn whole(&mut self, key: (WorkerId, Version), shards: usize) -> Option<Contribution> {
        let parts = self.parts.get(&key)?;
        if parts.staged.len() < shards || parts.said.is_none() {
            return None;
        }
        self.parts.remove(&key)?.said
    }
}
