//! Sets of blocks, and what closing one names.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::WorkerId;

/// Which blocks something is about. Without partial pushes it is always `All`.
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

    /// Whether these are all.
    pub fn is_all(&self) -> bool {
        *self == Blocks::All
    }

    /// Takes `more` in.
    pub fn extend(&mut self, more: &Blocks) {
        match (self, more) {
            (Blocks::All, _) => {}
            (all, Blocks::All) => *all = Blocks::All,
            (Blocks::Only(mine), Blocks::Only(more)) => mine.extend(more),
        }
    }
}

/// The membership of a set of blocks, fixed when they close: who is in the sum, with what weight.
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
}
