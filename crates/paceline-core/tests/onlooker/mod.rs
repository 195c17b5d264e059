//! An onlooker of a run: it sees what goes into the coordinator and the events that come out, and checks that
//! nothing counts twice, by halves, or after it was dropped.

use std::collections::{BTreeMap, BTreeSet};

use paceline_core::{
    BlockClose, Blocks, ContributionId, Event, EventKind, Portion, Round, SampleRange, ShardId,
    Work, WorkerId,
};

use crate::{SAMPLES, SHARDS, SIZES};

/// What an onlooker knows: who was given which samples, what each shard holds, who has arrived.
#[derive(Default)]
pub(crate) struct Onlooker {
    given: BTreeMap<ContributionId, Given>,
    /// What each shard holds staged.
    staged: Vec<BTreeSet<ContributionId>>,
    /// The open round's arrivals, in order.
    arrived: Vec<Arrived>,
    counted: BTreeSet<ContributionId>,
    /// Contributions that nothing may come of any more.
    discarded: BTreeSet<ContributionId>,
    received: BTreeSet<(ContributionId, u32)>,
    /// The open round's shards.
    shards: BTreeSet<ShardId>,
    /// Rounds that some shards were left out of.
    pub(crate) left_out: usize,
    /// Contributions that another holder of their samples was sooner than.
    pub(crate) superseded: usize,
    /// Reports of shards that crossed an order to drop what they tell of.
    pub(crate) crossed: usize,
    /// The leases that each live worker was told of last.
    leases: BTreeMap<WorkerId, Vec<Portion>>,
    /// Leases that a live worker lost to another one.
    pub(crate) revoked: usize,
    /// Whether an epoch begins when the one before is complete.
    barrier: bool,
    cut: BTreeSet<Round>,
    pub(crate) closed: BTreeSet<Round>,
    used: BTreeMap<u32, Vec<bool>>,
    pub(crate) used_weight: f64,
}

/// The samples that a worker was given, and the shards that its round has.
struct Given {
    portion: Portion,
    shards: BTreeSet<ShardId>,
}

/// Who arrived, with what weight, of which samples, and on which shards.
struct Arrived {
    id: ContributionId,
    worker: WorkerId,
    weight: f64,
    ranges: Vec<SampleRange>,
    shards: BTreeSet<u32>,
}

impl Onlooker {
    pub(crate) fn new(barrier: bool) -> Self {
        let staged = vec![BTreeSet::new(); SHARDS as usize];
        Onlooker { staged, barrier, ..Onlooker::default() }
    }

    pub(crate) fn see(&mut self, event: &Event, fresh: &BTreeSet<ShardId>) {
        match &event.kind {
            EventKind::RoundStarted { work, .. } => {
                assert!(self.arrived.is_empty(), "a round begins with nobody in it");
                self.shards.clone_from(fresh);
                self.left_out += usize::from(fresh.len() < SHARDS as usize);
                work.iter().for_each(|work| self.give(work));
            }
            EventKind::Enlisted { work, .. } => self.give(work),
            EventKind::Arrived { round, id, base, worker, weight, share, blocks, .. } => {
                assert!(!self.closed.contains(round), "closed accepts nothing");
                assert!(*share == 1.0 || *base < round.base(), "what is in time counts whole");
                self.arrived(*id, *worker, *weight, *share, blocks);
            }
            EventKind::Late { id, .. } => self.discard(*id),
            EventKind::Superseded { .. } => self.superseded += 1,
            EventKind::Landed { id, shard, .. } => {
                let staged = &mut self.staged[shard.0 as usize];
                assert!(staged.remove(id), "what landed has come");
                let arrived = self.arrived.iter_mut().find(|arrived| arrived.id == *id);
                let shards = &mut arrived.expect("it has arrived before").shards;
                assert!(shards.insert(shard.0), "it landed once");
            }
            EventKind::Cut { round, .. } => assert!(self.cut.insert(*round), "{round} cut twice"),
            EventKind::Closed { round, closes, .. } => {
                assert!(self.cut.contains(round) && self.closed.insert(*round), "{round}");
                self.closed(closes);
            }
            _ => {}
        }
    }

    fn give(&mut self, work: &Work) {
        let may_begin = |portion: &Portion| {
            let epoch = portion.epoch().expect("a portion has ranges");
            let is_complete =
                |e: u32| self.used.get(&e).is_some_and(|e| e.iter().all(|&used| used));
            !self.barrier || (0..epoch).all(is_complete)
        };
        assert!(may_begin(&work.portion), "{} before its epoch", work.portion);
        // A lease of an older epoch, given back by another worker, may become work before the worker is told of it.
        if let Some(leases) = self.leases.get_mut(&work.worker)
            && leases.first().is_some_and(may_begin)
            && leases.first().and_then(Portion::epoch) <= work.portion.epoch()
        {
            assert_eq!(leases.remove(0), work.portion, "work is the first lease");
        }
        let (portion, shards) = (work.portion.clone(), self.shards.clone());
        self.given.insert(work.id, Given { portion, shards });
    }

    /// A worker is told of its leases. Any that it knew and is not told of now is revoked.
    pub(crate) fn lease(&mut self, worker: WorkerId, leases: Vec<Portion>) {
        let before = self.leases.insert(worker, leases).unwrap_or_default();
        let left = &self.leases[&worker];
        self.revoked += before.iter().filter(|lease| !left.contains(lease)).count();
    }

    /// The shards drop what they hold of the contributions of a worker that has left.
    pub(crate) fn leave(&mut self, worker: WorkerId, ids: impl Iterator<Item = ContributionId>) {
        self.leases.remove(&worker);
        ids.for_each(|id| self.unstage(id));
    }

    /// A shard receives its part of a contribution, once, if the contribution's round has the shard. Returns
    /// whether it does.
    pub(crate) fn receive(&mut self, id: ContributionId, shard: u32) -> bool {
        let is_pushed = self.given[&id].shards.contains(&ShardId(shard));
        let receives = is_pushed && self.received.insert((id, shard));
        if receives {
            self.staged[shard as usize].insert(id);
        }
        receives
    }

    /// The coordinator hears that a shard has its part.
    pub(crate) fn hear(&mut self, id: ContributionId) {
        self.crossed += usize::from(self.discarded.contains(&id));
    }

    /// The shards are told to drop what they hold of a contribution.
    pub(crate) fn discard(&mut self, id: ContributionId) {
        self.discarded.insert(id);
        self.unstage(id);
    }

    fn unstage(&mut self, id: ContributionId) {
        self.staged.iter_mut().for_each(|staged| {
            staged.remove(&id);
        });
    }

    fn arrived(
        &mut self,
        id: ContributionId,
        worker: WorkerId,
        weight: f64,
        share: f64,
        blocks: &Blocks,
    ) {
        assert!(self.counted.insert(id), "{id} counted twice");
        assert!(!self.discarded.contains(&id), "{id} counts after shards were told to drop it");
        let mut shards = BTreeSet::new();
        let mut first = 0;
        for (shard, size) in (0..).zip(SIZES) {
            let here = blocks.contains(first) && self.given[&id].shards.contains(&ShardId(shard));
            let of = blocks.contains(first);
            assert!((first..first + size).all(|block| blocks.contains(block) == of));
            first += size;
            if here {
                let staged = &mut self.staged[shard as usize];
                assert!(staged.remove(&id), "half a contribution was counted");
                shards.insert(shard);
            }
        }
        assert!(!shards.is_empty(), "something of it has come");
        let given = &self.given[&id].portion;
        assert!(weight as u32 <= given.len(), "more than was given");
        let mut left = weight as u32;
        let mut ranges = given.ranges().to_vec();
        for range in &mut ranges {
            range.end = range.end.min(range.start + left);
            left -= range.end - range.start;
        }
        self.arrived.push(Arrived { id, worker, weight: share * weight, ranges, shards });
    }

    /// Every block closes once, with all who have arrived there.
    fn closed(&mut self, closes: &[BlockClose]) {
        let mut arrived = std::mem::take(&mut self.arrived);
        arrived.sort_by_key(|arrived| arrived.worker);
        let shards = (0..).zip(SIZES).flat_map(|(shard, size)| vec![shard; size as usize]);
        for (block, shard) in (0..).zip(shards) {
            let of = |close: &&BlockClose| close.blocks.contains(block);
            let mine: Vec<&BlockClose> = closes.iter().filter(of).collect();
            assert_eq!(mine.len(), 1, "block {block} closes once");
            if !self.shards.contains(&ShardId(shard)) {
                continue; // It is left out, and hears nothing of the close.
            }
            let there = arrived.iter().filter(|arrived| arrived.shards.contains(&shard));
            let members: Vec<_> = there.map(|arrived| (arrived.worker, arrived.weight)).collect();
            assert_eq!(mine[0].members, members, "block {block} of {closes:?}");
        }
        for range in arrived.into_iter().flat_map(|arrived| arrived.ranges) {
            self.used_weight += f64::from(range.len());
            let fresh = || vec![false; SAMPLES as usize];
            let epoch = self.used.entry(range.epoch).or_insert_with(fresh);
            for sample in &mut epoch[range.start as usize..range.end as usize] {
                assert!(!std::mem::replace(sample, true), "a sample of {range} was used twice");
            }
        }
    }

    /// Epochs of which every sample was used.
    pub(crate) fn complete_epochs(&self) -> u32 {
        self.used.values().take_while(|epoch| epoch.iter().all(|&used| used)).count() as u32
    }
}
