//! The participants of one round at a time: workers that are computing for it and contributions that have
//! arrived.

use std::collections::BTreeSet;

use crate::{
    Arrival, BlockClose, Blocks, Contribution, Round, RoundView, RunTime, Time, Version, WorkerId,
    contributions::Contributions,
};

/// The settings that a policy sees in every round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// The least number of contributions of a round.
    pub(crate) quorum: usize,
    /// Micro-batches that count one by one at the cut; 1 where a contribution counts only as a whole.
    pub(crate) partial: u32,
    /// Micro-batches in whose number workers report their progress.
    pub(crate) micro_batches: u32,
    /// Samples of a whole portion; 0 where all portions are equal.
    pub(crate) batch: u32,
    /// How many versions behind a contribution may be and still be admitted.
    pub(crate) lag: u64,
}

/// The participants of a round.
#[derive(Debug)]
pub(crate) struct Roster {
    terms: Terms,
    /// The open round, or the next one to open.
    pub(crate) round: Round,
    pub(crate) opened: Time,
    pub(crate) contributions: Contributions,
    /// Contributions accepted in this round, in order. Folded late contributions of older rounds are not
    /// included: policies do not see them.
    pub(crate) arrivals: Vec<Arrival>,
}

impl Roster {
    pub(crate) fn new(round: Round, terms: Terms) -> Roster {
        let (contributions, arrivals) = (Contributions::default(), Vec::new());
        Roster { terms, round, opened: Time::ZERO, contributions, arrivals }
    }

    pub(crate) fn lag(&self) -> u64 {
        self.terms.lag
    }

    /// The oldest version that the round (open, or next to open) admits.
    pub(crate) fn oldest_admissible(&self) -> Version {
        Version(self.round.base().0.saturating_sub(self.terms.lag))
    }

    /// Contributions that may still arrive in the round, in worker order.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = &Contribution> {
        let (oldest, round) = (self.oldest_admissible(), self.round.base());
        let all = self.contributions.working().values();
        all.filter(move |work| work.is_outstanding(oldest, round))
    }

    pub(crate) fn is_anyone_outstanding(&self) -> bool {
        self.outstanding().next().is_some()
    }

    /// From now on this many micro-batches of a contribution count one by one.
    pub(crate) fn expect_parts(&mut self, partial: u32) {
        self.terms.partial = partial;
    }

    /// Whether an outstanding worker has finished work that it may still push.
    pub(crate) fn owes_parts(&self) -> bool {
        let view = self.view(self.opened);
        self.outstanding().any(|work| view.partial == 1 || view.finished(work) > 0)
    }

    pub(crate) fn view(&self, now: Time) -> RoundView<'_> {
        let Terms { quorum, partial, micro_batches, batch, .. } = self.terms;
        RoundView {
            round: self.round,
            now,
            opened: self.opened,
            arrivals: &self.arrivals,
            quorum,
            partial,
            micro_batches,
            batch,
            working: self.contributions.working(),
            oldest: self.oldest_admissible(),
            outstanding: self.outstanding().count(),
        }
    }

    /// Samples behind all accepted contributions; late ones count by their share.
    pub(crate) fn weight(&self) -> f64 {
        let weight = |c: &Contribution| match c.folded {
            true => c.counts * c.weight(),
            false => c.weight(),
        };
        self.contributions.accepted().iter().map(weight).sum()
    }

    /// The workers whose contributions are in the open round.
    pub(crate) fn members(&self) -> BTreeSet<WorkerId> {
        self.contributions.accepted().iter().map(|contribution| contribution.worker).collect()
    }

    /// The membership of the blocks: one for all of them or, in a model of `blocks` blocks, one for each set
    /// of blocks that the same contributions are complete on.
    pub(crate) fn memberships(&self, blocks: u32) -> Vec<BlockClose> {
        let mut all: Vec<&Contribution> = self.contributions.accepted().iter().collect();
        all.sort_by_key(|contribution| contribution.worker);
        let of = |block: u32| -> Vec<(WorkerId, f64)> {
            let members = all.iter().filter(|c| c.blocks.contains(block));
            members.map(|c| (c.worker, c.counts * c.weight())).collect()
        };
        if all.iter().all(|contribution| contribution.blocks.is_all()) {
            return vec![BlockClose { blocks: Blocks::All, members: of(0) }];
        }
        let mut closes: Vec<BlockClose> = Vec::new();
        for block in 0..blocks {
            let members = of(block);
            let more = Blocks::Only(BTreeSet::from([block]));
            match closes.iter_mut().find(|close| close.members == members) {
                Some(close) => close.blocks.extend(&more),
                None => closes.push(BlockClose { blocks: more, members }),
            }
        }
        closes
    }

    /// The run-time of each worker that has arrived in this round, or is live and was given work in it.
    pub(crate) fn run_times(&self, now: Time) -> Vec<(WorkerId, RunTime)> {
        let arrived = self.arrivals.iter().map(|arrival| (arrival.worker, arrival.run_time));
        let silent = self
            .silent()
            .map(|work| (work.worker, RunTime::Censored { at_least: now.since(work.started) }));
        let mut all: Vec<_> = arrived.chain(silent).collect();
        all.sort_by_key(|&(worker, _)| worker);
        all
    }

    fn silent(&self) -> impl Iterator<Item = &Contribution> {
        let base = self.round.base();
        self.contributions.working().values().filter(move |work| work.base == base)
    }

    /// The loads below 1 of the workers in [`Self::run_times`], in worker order.
    pub(crate) fn loads(&self, now: Time) -> Vec<(WorkerId, f64)> {
        let view = self.view(now);
        let arrived = self.arrivals.iter().map(|a| (a.worker, view.load(a.weight / a.share)));
        let silent = self.silent().map(|work| (work.worker, view.load(f64::from(work.samples))));
        let mut loads: Vec<_> = arrived.chain(silent).filter(|(_, load)| *load < 1.0).collect();
        loads.sort_by_key(|&(worker, _)| worker);
        loads
    }
}
