//! Workers of which nothing is used.

use std::collections::BTreeMap;

use crate::WorkerId;

/// Rounds without anything of it being used, after which a worker is named.
pub(crate) const USELESS: u32 = 50;

/// Rounds since something of each worker was used.
#[derive(Debug, Default)]
pub(crate) struct Useless(BTreeMap<WorkerId, u32>);

impl Useless {
    /// A round closed in which these took part, and whether something of each is in it: who is to be
    /// named now.
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
