//! Who is working for the open round and who has arrived: what a policy is shown of it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Arrival, BlockClose, Blocks, Contribution, Round, RoundConfig, RoundView, RunTime, Straggler,
    Time, Version, WorkerId,
};

/// Work that a worker was given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assignment {
    /// The version it computes from.
    pub base: Version,
    /// When it could begin: the round's opening, or its own later start.
    pub started: Time,
    /// Samples it was given.
    pub samples: u32,
    /// Micro-batches it has reported finished.
    pub done: u32,
    /// When it reported the last of them.
    pub done_at: Time,
    /// How many it reported first, and when.
    pub first: Option<(u32, Time)>,
    /// Micro-batches of it that are on their way. Policies do not see them: whoever pushes arrives.
    pub said: u32,
    /// It was cut and has said that nothing will come.
    pub stopped: bool,
    /// The round must not be cut before it has arrived (unless it dies).
    pub waited_for: bool,
    /// What a sample of it counts for in an update.
    pub worth: f64,
    /// When it was cut, if its round has closed without it.
    pub cut: Option<Time>,
}

impl Assignment {
    /// Micro-batches that a cut now could bring.
    pub(crate) fn finished(&self) -> u32 {
        self.done.max(self.said)
    }
}

/// The participants of one round at a time.
#[derive(Debug)]
pub(crate) struct Roster {
    pub(crate) round: Round,
    pub(crate) opened: Time,
    pub(crate) arrivals: Vec<Arrival>,
    /// Late ones of older rounds that ride along, with their shares. Policies do not see them.
    pub(crate) folded: Vec<(Contribution, f64)>,
    pub(crate) working: BTreeMap<WorkerId, Assignment>,
    quorum: usize,
    /// Micro-batches that count one by one at the cut; 1 where a contribution is all or nothing.
    partial: u32,
    /// Samples of a whole portion; 0 where all are alike.
    batch: u32,
    lag: u64,
}

impl Roster {
    pub(crate) fn new(round: Round, config: &RoundConfig, lag: u64) -> Self {
        let partial = match config.straggler {
            Straggler::Salvage => config.micro_batches.max(1),
            Straggler::Abort | Straggler::Finish => 1,
        };
        Roster {
            round,
            opened: Time::ZERO,
            arrivals: Vec::new(),
            folded: Vec::new(),
            working: BTreeMap::new(),
            quorum: config.quorum,
            partial,
            batch: config.batch,
            lag,
        }
    }

    /// A straggler has said that nothing will come of its work.
    pub(crate) fn stop(&mut self, worker: WorkerId) {
        if let Some(work) = self.working.get_mut(&worker) {
            work.stopped = true;
        }
    }

    pub(crate) fn view(&self, now: Time) -> RoundView<'_> {
        RoundView {
            round: self.round,
            now,
            opened: self.opened,
            arrivals: &self.arrivals,
            quorum: self.quorum,
            partial: self.partial,
            batch: self.batch,
            working: &self.working,
            oldest: self.oldest_admissible(),
            outstanding: self.outstanding().count(),
        }
    }

    /// The oldest version that the round (open, or next to open) admits.
    pub(crate) fn oldest_admissible(&self) -> Version {
        Version(self.round.base().0.saturating_sub(self.lag))
    }

    /// Samples behind all that is accepted, late ones by their share.
    pub(crate) fn weight(&self) -> f64 {
        let fresh = self.arrivals.iter().map(|arrival| arrival.contribution.weight);
        fresh.chain(self.folded.iter().map(|(late, share)| share * late.weight)).sum()
    }

    /// Whether somebody's work is in the open round.
    pub(crate) fn holds(&self, worker: WorkerId) -> bool {
        let fresh = self.arrivals.iter().map(|arrival| &arrival.contribution);
        fresh.chain(self.folded.iter().map(|(late, _)| late)).any(|c| c.worker == worker)
    }

    /// Nothing is accepted yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.arrivals.is_empty() && self.folded.is_empty()
    }

    pub(crate) fn outstanding(&self) -> impl Iterator<Item = (WorkerId, &Assignment)> {
        let oldest = self.oldest_admissible();
        let may_come = move |work: &Assignment| work.base >= oldest && !work.stopped;
        self.working.iter().filter(move |(_, w)| may_come(w)).map(|(&id, w)| (id, w))
    }

    /// Whether somebody who has finished a part of its work may still bring it.
    pub(crate) fn owes_parts(&self) -> bool {
        self.outstanding().any(|(_, work)| self.partial == 1 || work.finished() > 0)
    }

    /// Who is in the sum of which blocks: one membership for all, or, of a model of so many blocks, one
    /// for each set of blocks that the same contributions are complete on.
    pub(crate) fn memberships(&self, blocks: u32) -> Vec<BlockClose> {
        let fresh = self.arrivals.iter().map(|arrival| (&arrival.contribution, arrival.worth));
        let folded = self.folded.iter().map(|(contribution, share)| (contribution, *share));
        let mut all: Vec<(&Contribution, f64)> = fresh.chain(folded).collect();
        all.sort_by_key(|(contribution, _)| contribution.worker);
        let of = |block: u32| -> Vec<(WorkerId, f64)> {
            let members = all.iter().filter(|(c, _)| c.blocks.contains(block));
            members.map(|(c, share)| (c.worker, share * c.weight)).collect()
        };
        if all.iter().all(|(contribution, _)| contribution.blocks.is_all()) {
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

    /// The loads below 1 of the workers in [`Self::run_times`], in worker order.
    pub(crate) fn loads(&self, now: Time) -> Vec<(WorkerId, f64)> {
        let view = self.view(now);
        let arrived = self.arrivals.iter().map(|arrival| {
            (arrival.contribution.worker, view.load(arrival.contribution.weight / arrival.share))
        });
        let silent = self.working.iter().filter(|(_, work)| work.base == self.round.base());
        let silent = silent.map(|(&worker, work)| (worker, view.load(f64::from(work.samples))));
        let mut loads: Vec<_> = arrived.chain(silent).filter(|(_, load)| *load < 1.0).collect();
        loads.sort_by_key(|&(worker, _)| worker);
        loads
    }

    /// Of everyone who was given work in this round and lives, or has arrived in it.
    pub(crate) fn run_times(&self, now: Time) -> Vec<(WorkerId, RunTime)> {
        let arrived = self.arrivals.iter().map(|a| (a.contribution.worker, a.run_time));
        let silent = self.working.iter().filter(|(_, work)| work.base == self.round.base()).map(
            |(&worker, work)| (worker, RunTime::Censored { at_least: now.since(work.started) }),
        );
        let mut all: Vec<_> = arrived.chain(silent).collect();
        all.sort_by_key(|&(worker, _)| worker);
        all
    }
}
