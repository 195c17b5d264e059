//! The state of a shard: staged and accepted contributions, their sums, and the blocks that the sums update.

use std::{collections::BTreeMap, ops::Range, sync::Arc, time::Duration};

use paceline_core::{BlockClose, ContributionId, Version, WorkerId};
use paceline_params::{Block, OptimizerSpec, ParamHash, Spares, Update, WireType, narrow};
use paceline_wire::message::{Apply, ShardSpec};
use thiserror::Error;

use super::{
    Outgoing, Parts, Staged,
    sharing::Mirror,
    sums::{Spoilt, Sums},
    tiles::FUSE,
};

/// The coordinator's command contradicts the shard's state: the two no longer agree.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum ShardError {
    #[error("{worker}'s contribution {id} was accepted but is not staged here")]
    NotStaged { worker: WorkerId, id: ContributionId },
    #[error("{0} is a member of the close but was not accepted here")]
    NotAccepted(WorkerId),
    #[error("blocks were sent for {got} of {expected} blocks")]
    WrongBlocks { got: usize, expected: usize },
    #[error("update with {got} scales for {expected} closes")]
    WrongScales { got: usize, expected: usize },
    #[error("update with {got} learning rates for {expected} parameter groups")]
    WrongRates { got: usize, expected: usize },
    #[error("optimizers for {got} parameter groups where the tensors are in {expected}")]
    WrongGroups { got: usize, expected: usize },
}

/// How many accepted contributions may wait, in a staging memory for `staging` of them, until there are more
/// to fold in the same pass.
pub(crate) fn unfolded(staging: u32) -> usize {
    FUSE.min((staging as usize).div_ceil(2)).saturating_sub(1)
}

/// One shard's blocks, with the sums of the open round beside them.
pub(crate) struct ShardState {
    spec: ShardSpec,
    first_block: u32,
    blocks: Vec<Block>,
    /// Each block's values as 16-bit floats, if they are sent so.
    halves: Vec<Arc<[u16]>>,
    sums: Sums,
    spares: Spares,
    staged: BTreeMap<(WorkerId, ContributionId), Staged>,
    /// Accepted contributions that are not folded, in order of acceptance.
    accepted: Vec<(WorkerId, Staged)>,
    /// Workers whose contributions are in the sums.
    folded: Vec<WorkerId>,
    closes: Vec<BlockClose>,
    mirror: Option<Mirror>,
}

impl ShardState {
    pub(crate) fn new(
        spec: ShardSpec,
        blocks: Vec<Block>,
        mirror: Option<Mirror>,
    ) -> Result<Self, ShardError> {
        let (got, expected) = (spec.optimizer.len(), spec.layout.groups());
        if got < expected {
            return Err(ShardError::WrongGroups { got, expected });
        }
        let range = spec.layout.shard_blocks(spec.index);
        let lengths: Vec<usize> = range.clone().map(|b| spec.layout.block_range(b).len()).collect();
        let got: Vec<usize> = blocks.iter().map(|block| block.values().len()).collect();
        if got != lengths {
            return Err(ShardError::WrongBlocks { got: got.len(), expected: lengths.len() });
        }
        let mut state = ShardState {
            first_block: range.start,
            sums: Sums::new(lengths.len()),
            spares: Spares::new(
                blocks.len() * (1 + spec.optimizer.slot_names().len() + spec.history as usize),
            ),
            blocks,
            halves: Vec::new(),
            staged: BTreeMap::new(),
            accepted: Vec::new(),
            folded: Vec::new(),
            closes: Vec::new(),
            mirror,
            spec,
        };
        if state.spec.wire != WireType::F32 {
            state.halves = lengths.iter().map(|&len| vec![0; len].into()).collect();
            (0..lengths.len()).for_each(|block| state.narrow(block));
        }
        Ok(state)
    }

    /// Begins the next version in shared memory, too, if a segment is free.
    pub(crate) fn begin_mirror(&mut self) {
        if let Some(mirror) = &mut self.mirror {
            mirror.begin();
        }
    }

    /// Publishes in shared memory, if that was begun. Returns the segment.
    pub(crate) fn finish_mirror(&mut self, version: Version) -> Option<u32> {
        self.mirror.as_mut()?.finish(version.0, &self.blocks)
    }

    /// Takes the values of the closed round that are not finite.
    pub(crate) fn take_spoilt(&mut self) -> Vec<Spoilt> {
        self.sums.take_spoilt()
    }

    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The blocks as they are sent to workers.
    pub(crate) fn outgoing(&self) -> Arc<[Outgoing]> {
        match self.spec.wire {
            WireType::F32 => self.blocks.iter().map(|b| Outgoing::F32(b.snapshot())).collect(),
            WireType::Half(half) => {
                self.halves.iter().map(|bits| Outgoing::Half(half, Arc::clone(bits))).collect()
            }
        }
    }

    /// Narrows a block once for all workers that pull it, while it is in the cache. Connections that still
    /// read the earlier halves keep them.
    fn narrow(&mut self, block: usize) {
        if let WireType::Half(half) = self.spec.wire {
            narrow(half, self.blocks[block].values(), Arc::make_mut(&mut self.halves[block]));
        }
    }

    /// A whole contribution has arrived.
    pub(crate) fn stage(&mut self, staged: Staged) {
        self.staged.insert((staged.worker, staged.id), staged);
    }

    pub(crate) fn discard(&mut self, worker: WorkerId, id: ContributionId) {
        self.staged.remove(&(worker, id));
    }

    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.staged.retain(|&(owner, _), _| owner != worker);
    }

    /// A contribution counts, with weight `share`.
    pub(crate) fn accept(
        &mut self,
        worker: WorkerId,
        id: ContributionId,
        share: f32,
    ) -> Result<(), ShardError> {
        let staged = self.staged.remove(&(worker, id));
        let mut staged = staged.ok_or(ShardError::NotStaged { worker, id })?;
        match &mut staged.parts {
            Parts::Received(parts) if share != 1.0 => {
                parts.iter_mut().flat_map(|part| part.iter_mut()).for_each(|x| *x *= share);
            }
            Parts::Received(_) => {}
            Parts::Mapped { share: counts, .. } => *counts = share,
        }
        self.accepted.push((worker, staged));
        Ok(())
    }

    /// Folds the accepted contributions into every sum, if sums are made as contributions arrive and there
    /// are more than may wait ([`unfolded`]). Once all `workers` have contributed, the close is next, which
    /// folds and updates block by block: that saves a pass over memory.
    pub(crate) fn fold_accepted(&mut self, workers: usize) {
        let all = self.accepted.len() + self.folded.len() >= workers;
        if all || self.spec.fold_at_close || self.accepted.len() <= unfolded(self.spec.staging) {
            return;
        }
        let accepted = std::mem::take(&mut self.accepted);
        for group in accepted.chunks(FUSE) {
            for block in 0..self.blocks.len() {
                let elements = self.elements(block);
                self.sums.fold(block, elements, group.iter().map(|(_, staged)| staged));
            }
            self.folded.extend(group.iter().map(|&(worker, _)| worker));
        }
    }

    /// Takes the time spent on sums since the last call.
    pub(crate) fn take_fold_time(&mut self) -> Duration {
        self.sums.take_fold_time()
    }

    /// Completes the sums of the members of each close, in worker order where they are not folded
    /// yet, and returns the squared norm of each close's sums. With `apply`, each block is summed,
    /// measured and updated while it is in the cache.
    pub(crate) fn close(
        &mut self,
        closes: Vec<BlockClose>,
        apply: Option<&Apply>,
    ) -> Result<Vec<f64>, ShardError> {
        let accepted = std::mem::take(&mut self.accepted);
        let mut norms = Vec::with_capacity(closes.len());
        if let Some(apply) = apply {
            self.check_update(&closes, apply)?;
        }
        for (index, close) in closes.iter().enumerate() {
            let blocks = self.blocks_of(close);
            if blocks.is_empty() {
                norms.push(0.0);
                continue;
            }
            let pending = self.pending(close, &accepted)?;
            let mut norm = 0.0;
            for block in blocks {
                let elements = self.elements(block);
                self.sums.fold(block, elements, pending.iter().copied());
                self.sums.make_up(block, close);
                let group = self.spec.layout.group(self.first_block + block as u32);
                if self.spec.optimizer.is_gradient(group) {
                    norm += self.sums.norm_squared(block);
                }
                if let Some(apply) = apply {
                    self.update(block, apply, index);
                }
            }
            norms.push(norm);
        }
        self.folded.clear();
        self.closes = closes;
        Ok(norms)
    }

    /// The members of a close that are not in the sums yet.
    fn pending<'a>(
        &self,
        close: &BlockClose,
        accepted: &'a [(WorkerId, Staged)],
    ) -> Result<Vec<&'a Staged>, ShardError> {
        let mut pending = Vec::new();
        for &(member, _) in &close.members {
            match accepted.iter().find(|&&(worker, _)| worker == member) {
                Some((_, staged)) => pending.push(staged),
                None if self.folded.contains(&member) => {}
                None => return Err(ShardError::NotAccepted(member)),
            }
        }
        Ok(pending)
    }

    /// A block's elements of the flat vector.
    fn elements(&self, block: usize) -> Range<usize> {
        self.spec.layout.block_range(self.first_block + block as u32)
    }

    /// This shard's blocks in a close, by their index here.
    fn blocks_of(&self, close: &BlockClose) -> Vec<usize> {
        let here = 0..self.blocks.len();
        here.filter(|&block| close.blocks.contains(self.first_block + block as u32)).collect()
    }

    fn check_update(&self, closes: &[BlockClose], apply: &Apply) -> Result<(), ShardError> {
        let (got, expected) = (apply.scales.len(), closes.len());
        if got != expected {
            return Err(ShardError::WrongScales { got, expected });
        }
        let (got, expected) = (apply.learning_rates.len(), self.spec.optimizer.len());
        match got == expected {
            true => Ok(()),
            false => Err(ShardError::WrongRates { got, expected }),
        }
    }

    /// Applies the closed round's update to every block, with the scale of its close.
    pub(crate) fn apply(&mut self, apply: &Apply) -> Result<(), ShardError> {
        let closes = std::mem::take(&mut self.closes);
        self.check_update(&closes, apply)?;
        for (index, close) in closes.iter().enumerate() {
            for block in self.blocks_of(close) {
                self.update(block, apply, index);
            }
        }
        Ok(())
    }

    /// Applies a block's sum, unless it has no contribution. The sum's buffer is then free.
    fn update(&mut self, block: usize, apply: &Apply, close: usize) {
        if let Some(sum) = self.sums.take(block) {
            let group = self.spec.layout.group(self.first_block + block as u32);
            let (lr, scale) = (apply.learning_rates[group as usize], apply.scales[close]);
            let update = Update { step: apply.step, lr, scale };
            let optimizer = self.spec.optimizer.of(group);
            self.blocks[block].apply(optimizer, update, &sum, &self.spares);
            self.sums.reuse(sum);
            // While the block is in the cache.
            self.narrow(block);
            self.round_mean(block, group);
            if let Some(mirror) = &mut self.mirror {
                mirror.write(block, self.blocks[block].values());
            }
        }
    }

    /// Rounds a mean to the values that are sent. Workers step by it, so that all must get the same values, in
    /// shared memory or not.
    fn round_mean(&mut self, block: usize, group: u32) {
        if let (OptimizerSpec::Mean, WireType::Half(half)) =
            (self.spec.optimizer.of(group), self.spec.wire)
        {
            self.blocks[block].widen(half, &self.halves[block]);
        }
    }

    /// Hash of this shard's part of the parameters. The hashes of all shards add up.
    pub(crate) fn hash(&self) -> ParamHash {
        let offset = self.spec.layout.shard_range(self.spec.index).start;
        let mut at = offset;
        let parts = self.blocks.iter().map(|block| {
            let hash = ParamHash::from_values(at, block.values());
            at += block.values().len();
            hash
        });
        parts.reduce(ParamHash::combine).unwrap_or(ParamHash::from_values(0, &[]))
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use paceline_core::Blocks;
    use paceline_params::{BufferPool, Layout, TensorSpec};
    use paceline_shm::{Segment, View};

    use super::*;

    fn spec(tensors: Vec<TensorSpec>, optimizer: &str, fold_at_close: bool) -> ShardSpec {
        ShardSpec {
            index: 0,
            layout: Layout::new(tensors, 2, 1).unwrap(),
            optimizer: optimizer.parse().unwrap(),
            wire: WireType::F32,
            version: Version(0),
            staging: 9,
            fold_at_close,
            patience: Duration::ZERO,
            sharers: None,
            history: 0,
        }
    }

    /// A shard of three blocks of two values, all zero, plain SGD.
    fn shard(fold_at_close: bool) -> ShardState {
        let spec = spec(vec![TensorSpec::new("w", [6])], "sgd", fold_at_close);
        let blocks = (0..3).map(|_| Block::new(vec![0.0; 2], spec.optimizer.of(0))).collect();
        ShardState::new(spec, blocks, None).unwrap()
    }

    fn staged(worker: u32, values: [f32; 6]) -> Staged {
        in_blocks(worker, values.chunks(2))
    }

    fn in_blocks<'a>(worker: u32, blocks: impl Iterator<Item = &'a [f32]>) -> Staged {
        let pool = Arc::new(BufferPool::new(1 << 20));
        let part = |values: &[f32]| {
            let mut lease = pool.lease(values.len()).unwrap();
            lease.copy_from_slice(values);
            lease
        };
        Staged {
            worker: WorkerId(worker),
            id: ContributionId(0),
            session: 0,
            parts: Parts::Received(blocks.map(part).collect()),
            _place: None,
        }
    }

    fn close(blocks: Blocks, members: &[u32]) -> BlockClose {
        BlockClose { blocks, members: members.iter().map(|&w| (WorkerId(w), 1.0)).collect() }
    }

    fn update(scales: &[f32]) -> Apply {
        let (version, step, learning_rates) = (Version(1), 1, vec![1.0]);
        Apply { version, step, learning_rates, scales: scales.to_vec(), hash: false }
    }

    fn values(shard: &ShardState) -> Vec<f32> {
        shard.blocks.iter().flat_map(|block| block.values().to_vec()).collect()
    }

    #[test]
    fn only_members_reach_the_parameters_whether_folded_early_or_at_the_close() {
        for fold_at_close in [false, true] {
            let mut shard = shard(fold_at_close);
            for worker in 0..3 {
                shard.stage(staged(worker, [1.0; 6]));
            }
            shard.accept(WorkerId(2), ContributionId(0), 1.0).unwrap();
            shard.fold_accepted(9);
            shard.accept(WorkerId(0), ContributionId(0), 1.0).unwrap();
            let norms = shard.close(vec![close(Blocks::All, &[0, 2])], None).unwrap();
            assert_eq!(norms, [6.0 * 4.0]);
            shard.apply(&update(&[0.5])).unwrap();
            assert_eq!(values(&shard), [-1.0; 6]);
        }
    }

    #[test]
    fn a_late_contribution_counts_by_its_share() {
        let mut shard = shard(false);
        shard.stage(staged(0, [1.0; 6]));
        shard.stage(staged(1, [2.0; 6]));
        shard.accept(WorkerId(0), ContributionId(0), 1.0).unwrap();
        shard.accept(WorkerId(1), ContributionId(0), 0.5).unwrap();
        shard.close(vec![close(Blocks::All, &[0, 1])], Some(&update(&[1.0]))).unwrap();
        assert_eq!(values(&shard), [-2.0; 6]);
    }

    #[test]
    fn a_contribution_in_shared_memory_folds_like_a_received_one_and_never_spoils_the_sum() {
        let mut shard = shard(true);
        let mut segment = Segment::new(6).unwrap();
        segment.fill(2.0);
        let view = Arc::new(View::map(&segment, 6).unwrap());
        let parts = Parts::Mapped { view, share: 1.0 };
        shard.stage(Staged { parts, session: 7, ..staged(0, [0.0; 6]) });
        shard.stage(staged(1, [1.0; 6]));
        shard.accept(WorkerId(0), ContributionId(0), 0.5).unwrap();
        shard.accept(WorkerId(1), ContributionId(0), 1.0).unwrap();
        // One block is not finite.
        segment[5] = f32::INFINITY;
        let members = vec![(WorkerId(0), 3.0), (WorkerId(1), 1.0)];
        let close = BlockClose { blocks: Blocks::All, members };
        shard.close(vec![close], Some(&update(&[0.25]))).unwrap();
        // There the mean is over the other workers: 1 of weight 1, not of weight 4.
        assert_eq!(values(&shard), [-0.5, -0.5, -0.5, -0.5, -1.0, -1.0]);
        let spoilt: Vec<_> =
            shard.take_spoilt().iter().map(|s| (s.worker, s.session, s.at)).collect();
        assert_eq!(spoilt, [(WorkerId(0), 7, 5)]);
        assert_eq!(shard.take_spoilt(), []);
    }

    #[test]
    fn what_nobody_gives_a_finite_value_for_stays_as_it_is() {
        let mut shard = shard(true);
        let mut segment = Segment::new(6).unwrap();
        segment.fill(1.0);
        segment[0] = f32::NAN;
        let view = Arc::new(View::map(&segment, 6).unwrap());
        let parts = Parts::Mapped { view, share: 1.0 };
        shard.stage(Staged { parts, ..staged(0, [0.0; 6]) });
        shard.accept(WorkerId(0), ContributionId(0), 1.0).unwrap();
        let norms = shard.close(vec![close(Blocks::All, &[0])], Some(&update(&[1.0]))).unwrap();
        assert_eq!(values(&shard), [0.0, 0.0, -1.0, -1.0, -1.0, -1.0]);
        assert_eq!(norms, [4.0]);
    }

    #[test]
    fn sums_are_folded_early_only_while_somebody_is_missing() {
        let mut shard = shard(false);
        for worker in 0..8 {
            shard.stage(staged(worker, [1.0; 6]));
            shard.accept(WorkerId(worker), ContributionId(0), 1.0).unwrap();
            shard.fold_accepted(8);
        }
        assert_eq!((shard.folded.len(), shard.accepted.len()), (4, 4));
        let all: Vec<u32> = (0..8).collect();
        shard.close(vec![close(Blocks::All, &all)], Some(&update(&[1.0]))).unwrap();
        assert_eq!(values(&shard), [-8.0; 6]);
        assert_eq!(shard.sums.buffers(), 3, "kept for the next round");
    }

    #[test]
    fn blocks_close_on_their_own_members_with_their_own_denominator() {
        let mut shard = shard(true);
        for worker in 0..2 {
            shard.stage(staged(worker, [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]));
            shard.accept(WorkerId(worker), ContributionId(0), 1.0).unwrap();
        }
        let first = Blocks::Only(BTreeSet::from([0, 2]));
        let rest = Blocks::Only(BTreeSet::from([1]));
        let closes = vec![close(first, &[1]), close(rest, &[0, 1])];
        shard.close(closes, Some(&update(&[1.0, 0.5]))).unwrap();
        assert_eq!(values(&shard), [-1.0, -1.0, -2.0, -2.0, -3.0, -3.0]);
    }

    /// Steps two groups of three values, each block in one group, and compares them with those that
    /// `torch.optim` gives with the same options and rates.
    #[track_caller]
    fn check_groups(optimizer: &str, expected: [f32; 6]) {
        let tensors = ["a", "b"].map(|name| TensorSpec::new(name, [3]));
        let tensors = tensors.into_iter().zip(0..).map(|(tensor, group)| tensor.in_group(group));
        let spec = spec(tensors.collect(), optimizer, true);
        let layout = spec.layout.clone();
        let ranges = || (0..layout.blocks()).map(|block| layout.block_range(block));
        let start = [1.0, -0.5, 0.25, 2.0, -1.5, 0.75];
        let block = |range: Range<usize>| Block::new(start[range].to_vec(), spec.optimizer.of(0));
        let blocks = ranges().map(block).collect();
        let mut shard = ShardState::new(spec, blocks, None).unwrap();
        for step in 1..=5 {
            let gradient = |i: u64| ((37 * i + 23 * step) % 64) as f32 / 32.0 - 31.0 / 32.0;
            let gradients: Vec<f32> = (0..6).map(gradient).collect();
            shard.stage(in_blocks(0, ranges().map(|range| &gradients[range])));
            shard.accept(WorkerId(0), ContributionId(0), 1.0).unwrap();
            let learning_rates = vec![0.1 / step as f32, 0.03];
            let apply = Apply { step, learning_rates, ..update(&[1.0]) };
            shard.close(vec![close(Blocks::All, &[0])], Some(&apply)).unwrap();
        }
        for (value, expected) in values(&shard).into_iter().zip(expected) {
            assert!(
                (value - expected).abs() <= 1e-6 * (0.5 + expected.abs()),
                "{value} {expected}"
            );
        }
    }

    #[test]
    fn each_group_has_its_own_options_and_rates() {
        check_groups(
            "adam:weight_decay=0.1;adam:beta1=0.8,beta2=0.95",
            [1.078_925, -0.615_225_4, 0.083_838_75, 2.063_596_5, -1.489_993_3, 0.750_659_8],
        );
        check_groups(
            "momentum:0.9,nesterov,weight_decay=0.1;momentum:0.5",
            [0.996_822_54, -0.627_142_2, 0.098_308_47, 2.039_785, -1.462_382_9, 0.714_199_24],
        );
    }

    #[test]
    fn groups_without_an_optimizer_or_a_rate_are_refused() {
        let tensors = vec![TensorSpec::new("w", [2]).in_group(1)];
        let refused = ShardState::new(spec(tensors, "sgd", true), Vec::new(), None).err();
        assert_eq!(refused, Some(ShardError::WrongGroups { got: 1, expected: 2 }));
        let apply = Apply { learning_rates: vec![0.1, 0.2], ..update(&[1.0]) };
        let refused = shard(true).close(vec![close(Blocks::All, &[])], Some(&apply));
        assert_eq!(refused, Err(ShardError::WrongRates { got: 2, expected: 1 }));
    }

    #[test]
    fn a_dead_workers_accepted_contribution_stays_and_its_staged_one_goes() {
        let mut shard = shard(true);
        shard.stage(staged(0, [1.0; 6]));
        shard.stage(staged(1, [1.0; 6]));
        shard.accept(WorkerId(0), ContributionId(0), 1.0).unwrap();
        shard.forget(WorkerId(0));
        shard.forget(WorkerId(1));
        let missing = shard.accept(WorkerId(1), ContributionId(0), 1.0).unwrap_err();
        let (worker, id) = (WorkerId(1), ContributionId(0));
        assert_eq!(missing, ShardError::NotStaged { worker, id });
        shard.close(vec![close(Blocks::All, &[0])], Some(&update(&[1.0]))).unwrap();
        assert_eq!(values(&shard), [-1.0; 6]);
    }

    #[test]
    fn a_member_that_was_never_accepted_is_an_error_not_a_silent_loss() {
        let mut shard = shard(false);
        let refused = shard.close(vec![close(Blocks::All, &[4])], None).unwrap_err();
        assert_eq!(refused, ShardError::NotAccepted(WorkerId(4)));
    }
}
