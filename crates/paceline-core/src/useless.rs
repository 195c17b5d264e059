//! Workers whose contributions have not been used for many rounds.

use std::collections::BTreeMap;

use crate::WorkerId;

/// Rounds without a used contribution after which a worker is reported.
pub(crate) const USELESS: u32 = 50;

/// Rounds since a contribution of each worker was last used.
#[derive(Debug, Default)]
pub(crate) struct Useless(BTreeMap<WorkerId, u32>);

impl Useless {
    /// A round closed; `used` lists its participants and whether their contributions are in it. Returns the
    /// workers to report now.
    pub(crate) fn closed(&mut self, used: impl Iterator<Item = (WorkerId, bool)>) -> Vec<WorkerId> {
        let mut named = Vec::new();
        for (worker, used) in used {
            let rounds = self.0.entry(worker).or_default();
            *rounds = if used { 0 } else { *rounds + 1 };
            if *rounds == USELESS {
                named.push(worker);
            }
        }
        named
    }

    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.0.remove(&worker);
    }
}
