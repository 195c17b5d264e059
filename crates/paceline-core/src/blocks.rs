//! Sets of blocks, and the membership with which a set of blocks closes.

use std::{collections::BTreeSet, ops::Range};

use serde::{Deserialize, Serialize};

use crate::WorkerId;

/// The blocks that a contribution or a close covers. Without partial pushes it is always `All`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blocks {
    /// Every block of the model.
    #[default]
    All,
    /// These blocks.
    Only(BTreeSet<u32>),
}

impl Blocks {
    /// Whether `block` is among them.
    pub fn contains(&self, block: u32) -> bool {
        match self {
            Blocks::All => true,
            Blocks::Only(set) => set.contains(&block),
        }
    }

    /// Whether the set is `All`.
    pub fn is_all(&self) -> bool {
        *self == Blocks::All
    }

    /// Adds `more`.
    pub fn extend(&mut self, more: &Blocks) {
        match (self, more) {
            (Blocks::All, _) => {}
            (all, Blocks::All) => *all = Blocks::All,
            (Blocks::Only(mine), Blocks::Only(more)) => mine.extend(more),
        }
    }
}

/// The membership of a set of blocks, fixed when they close: the workers in the sum, with their weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlockClose {
    /// The blocks that close with this membership.
    pub blocks: Blocks,
    /// Members in worker order, each with its weight. No worker is named twice.
    pub members: Vec<(WorkerId, f64)>,
}

impl BlockClose {
    /// The denominator of the update of these blocks.
    pub fn weight(&self) -> f64 {
        self.members.iter().map(|&(_, weight)| weight).sum()
    }

    /// The part of this close that a shard with `blocks` needs. `All` if all of `blocks` close with it;
    /// without members if none does.
    pub fn within(&self, mut blocks: Range<u32>) -> BlockClose {
        let Blocks::Only(set) = &self.blocks else { return self.clone() };
        let here: BTreeSet<u32> = set.range(blocks.clone()).copied().collect();
        let members = if here.is_empty() { Vec::new() } else { self.members.clone() };
        let whole = !here.is_empty() && blocks.all(|block| here.contains(&block));
        BlockClose { blocks: if whole { Blocks::All } else { Blocks::Only(here) }, members }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_told_of_its_own_blocks_and_their_members_alone() {
        let only = |blocks: &[u32]| Blocks::Only(blocks.iter().copied().collect());
        let close = |blocks| BlockClose { blocks, members: vec![(WorkerId(7), 2.0)] };
        let none = BlockClose { blocks: only(&[]), members: Vec::new() };
        assert_eq!(close(Blocks::All).within(2..4), close(Blocks::All));
        assert_eq!(close(only(&[1, 2, 3])).within(2..4), close(Blocks::All));
        assert_eq!(close(only(&[1, 3, 4])).within(2..4), close(only(&[3])));
        assert_eq!(close(only(&[1, 4])).within(2..4), none);
        assert_eq!(close(only(&[1, 4])).within(2..2), none);
    }
}
