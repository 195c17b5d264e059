//! The sums of a shard's open round, and the values that are left out of them because they are not finite.

use std::{
    collections::BTreeMap,
    ops::Range,
    time::{Duration, Instant},
};

use paceline_core::{BlockClose, ContributionId, WorkerId};
use paceline_params::norm_squared;

use super::{
    Parts, Staged,
    tiles::{Source, Tiles},
};

/// The sums of the open round, one for each block.
pub(crate) struct Sums {
    /// Each block's sum, if it has contributions from this round.
    blocks: Vec<Option<Vec<f32>>>,
    /// Buffers of former sums. The last one is reused first: it is still in the cache.
    spent: Vec<Vec<f32>>,
    tiles: Tiles,
    /// Values found in this round that are not finite.
    spoilt: Vec<Spoilt>,
    fold_time: Duration,
}

/// Values of a contribution that are not finite. It is left out there, and the other members make up for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spoilt {
    pub(crate) worker: WorkerId,
    pub(crate) session: u64,
    pub(crate) id: ContributionId,
    /// Index of the first such value in the flat vector.
    pub(crate) at: usize,
    block: usize,
    /// The range of the block in which it is left out.
    tile: Range<usize>,
}

impl Sums {
    /// No sums yet, for a shard with this number of blocks.
    pub(crate) fn new(blocks: usize) -> Self {
        Sums {
            blocks: vec![None; blocks],
            spent: Vec::new(),
            tiles: Tiles::default(),
            spoilt: Vec::new(),
            fold_time: Duration::ZERO,
        }
    }

    /// Adds contributions to the sum of a block, which has these elements of the flat vector.
    pub(crate) fn fold<'a>(
        &mut self,
        block: usize,
        elements: Range<usize>,
        staged: impl Iterator<Item = &'a Staged>,
    ) {
        let staged: Vec<&Staged> = staged.collect();
        if staged.is_empty() {
            return;
        }
        let began = Instant::now();
        let sources: Vec<Source<'_>> =
            staged.iter().map(|s| s.block(block, elements.start)).collect();
        let first = self.blocks[block].is_none();
        let mut sum = self.blocks[block].take().or_else(|| self.spent.pop()).unwrap_or_default();
        sum.resize(elements.len(), 0.0);
        for (source, tile, at) in self.tiles.fold(&mut sum, first, &sources) {
            let Staged { worker, session, id, .. } = *staged[source];
            let at = elements.start + at;
            self.spoilt.push(Spoilt { worker, session, id, at, block, tile });
        }
        self.blocks[block] = Some(sum);
        self.fold_time += began.elapsed();
    }

    /// Rescales a sum where members are left out, so that the other members make up for them.
    pub(crate) fn make_up(&mut self, block: usize, close: &BlockClose) {
        let Some(sum) = &mut self.blocks[block] else { return };
        let mut lost: BTreeMap<usize, (Range<usize>, f64)> = BTreeMap::new();
        for Spoilt { worker, tile, .. } in self.spoilt.iter().filter(|s| s.block == block) {
            let weight = close.members.iter().find(|(member, _)| member == worker);
            let (_, lost) = lost.entry(tile.start).or_insert((tile.clone(), 0.0));
            *lost += weight.map_or(0.0, |&(_, weight)| weight);
        }
        for (tile, lost) in lost.into_values() {
            let left = close.weight() - lost;
            let factor = if left > 0.0 { (close.weight() / left) as f32 } else { 0.0 };
            sum[tile].iter_mut().for_each(|x| *x *= factor);
        }
    }

    /// The squared norm of a block's sum.
    pub(crate) fn norm_squared(&self, block: usize) -> f64 {
        norm_squared(self.blocks[block].as_deref().unwrap_or_default())
    }

    /// Takes a block's sum, unless it has no contribution.
    pub(crate) fn take(&mut self, block: usize) -> Option<Vec<f32>> {
        self.blocks[block].take()
    }

    /// Keeps the buffer of a sum that was taken, for another sum.
    pub(crate) fn reuse(&mut self, sum: Vec<f32>) {
        self.spent.push(sum);
    }

    /// Takes the values that were found since the last call and are not finite.
    pub(crate) fn take_spoilt(&mut self) -> Vec<Spoilt> {
        std::mem::take(&mut self.spoilt)
    }

    /// Takes the time spent on sums since the last call.
    pub(crate) fn take_fold_time(&mut self) -> Duration {
        std::mem::take(&mut self.fold_time)
    }

    /// Buffers that are kept for further sums.
    #[cfg(test)]
    pub(crate) fn buffers(&self) -> usize {
        self.spent.len()
    }
}

impl Staged {
    /// The values of the shard's block `block`, which begins at `at` of the flat vector.
    fn block(&self, block: usize, at: usize) -> Source<'_> {
        match &self.parts {
            Parts::Received(parts) => Source::Values(&parts[block]),
            Parts::Mapped { view, share } => Source::Mapped { view, at, share: *share },
        }
    }
}
