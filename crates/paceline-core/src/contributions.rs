//! The table of contributions under way: the only record of each worker's current work.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    Announcement, Arrival, Contribution, ContributionId, Handout, HeldRange, MachineError, ShardId,
    State, Time, Version, Work, WorkerId,
};

/// The effect of a contribution's end, or of the end of a part of it, on its samples.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LedgerEntry {
    /// An update contains them.
    Used { ranges: Vec<HeldRange>, weight: f64, salvaged: bool },
    /// They are handed out again.
    Returned { ranges: Vec<HeldRange>, by: WorkerId },
    /// The worker's last work led to an accepted contribution.
    Delivered(WorkerId),
    /// The worker's last work was not used.
    Missed(WorkerId),
    /// The worker left.
    Left(WorkerId),
}

/// Contributions by worker. A worker computes one at a time, so it has at most one of each kind.
#[derive(Debug, Default)]
pub(crate) struct Contributions {
    next: u64,
    /// The current contribution of each worker. It stays after its worker gave it up, until its round closes.
    /// It also stays after another holder of its samples was faster, until its worker answers.
    working: BTreeMap<WorkerId, Contribution>,
    /// The newest contribution that a close took from each worker, until the worker reports on it.
    late: BTreeMap<WorkerId, Contribution>,
    /// Complete between two rounds, in order of completion.
    staged: Vec<(Contribution, Arrival)>,
    /// Accepted into the open round, or into the round that closed last.
    accepted: Vec<Contribution>,
    words: BTreeMap<WorkerId, Words>,
    entries: Vec<LedgerEntry>,
    /// Contributions that will not be used although shards may hold parts of them.
    discards: Vec<(WorkerId, ContributionId)>,
}

/// The newest contributions that a worker has answered for, or need not answer for.
#[derive(Debug, Clone, Copy, Default)]
struct Words {
    /// The newest contribution that it has announced or given up.
    spoken: Option<ContributionId>,
    /// The newest contribution that was forgotten before the worker had answered.
    forgotten: Option<ContributionId>,
}

impl Contributions {
    /// Hands out work on `base`, for a round on these `shards`.
    ///
    /// # Panics
    /// If the worker already has work.
    pub(crate) fn give(
        &mut self,
        handout: Handout,
        base: Version,
        shards: &Arc<BTreeSet<ShardId>>,
        now: Time,
    ) -> Work {
        let id = ContributionId(self.next);
        self.next += 1;
        let Handout { worker, waited_for, worth, .. } = handout;
        let portion = handout.portion();
        let twin = handout.twin;
        if let Some(twin) = twin
            && let Some(first) = self.working.values_mut().find(|first| first.id == twin)
        {
            first.twin = Some(id);
        }
        let contribution = Contribution::new(id, handout, base, Arc::clone(shards), now);
        let before = self.working.insert(worker, contribution);
        assert!(before.is_none(), "{worker} is not idle");
        Work { id, worker, portion, waited_for, worth }
    }

    /// The current contributions of all workers, in worker order.
    pub(crate) fn working(&self) -> &BTreeMap<WorkerId, Contribution> {
        &self.working
    }

    pub(crate) fn is_working(&self, worker: WorkerId) -> bool {
        self.working.contains_key(&worker)
    }

    pub(crate) fn working_mut(&mut self) -> impl Iterator<Item = &mut Contribution> {
        self.working.values_mut()
    }

    /// Whether a worker's contribution waits for the next round to open.
    pub(crate) fn waits(&self, worker: WorkerId) -> bool {
        self.staged.iter().any(|(contribution, _)| contribution.worker == worker)
    }

    pub(crate) fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    pub(crate) fn accepted(&self) -> &[Contribution] {
        &self.accepted
    }

    /// A complete contribution that waits for the next round to open.
    pub(crate) fn staged_mut(
        &mut self,
        worker: WorkerId,
        id: ContributionId,
    ) -> Option<&mut Contribution> {
        let mut all = self.staged.iter_mut().map(|(contribution, _)| contribution);
        all.find(|c| c.id == id && c.worker == worker)
    }

    pub(crate) fn accepted_mut(
        &mut self,
        worker: WorkerId,
        id: ContributionId,
    ) -> Option<&mut Contribution> {
        self.accepted.iter_mut().find(|c| c.id == id && c.worker == worker)
    }

    /// A worker's current contribution, or one that a close took from it, by its id.
    pub(crate) fn get(&self, worker: WorkerId, id: ContributionId) -> Option<&Contribution> {
        let at = [self.working.get(&worker), self.late.get(&worker)];
        at.into_iter().flatten().find(|contribution| contribution.id == id)
    }

    pub(crate) fn get_mut(
        &mut self,
        worker: WorkerId,
        id: ContributionId,
    ) -> Option<&mut Contribution> {
        let at = [self.working.get_mut(&worker), self.late.get_mut(&worker)];
        at.into_iter().flatten().find(|contribution| contribution.id == id)
    }

    /// The worker announces a contribution. Returns whether it is still known: the announcement of one
    /// that was forgotten changes nothing.
    pub(crate) fn announce(
        &mut self,
        worker: WorkerId,
        announcement: Announcement,
        now: Time,
    ) -> Result<bool, MachineError> {
        let id = announcement.id;
        let known = match self.get_mut(worker, id) {
            Some(contribution) => {
                contribution.announce(announcement, now)?;
                true
            }
            None => {
                self.check_forgotten(worker, id)?;
                false
            }
        };
        self.speak(worker, id);
        Ok(known)
    }

    /// Accepts an announcement of a contribution that is not in the table, if that contribution was forgotten.
    pub(crate) fn check_forgotten(
        &self,
        worker: WorkerId,
        id: ContributionId,
    ) -> Result<(), MachineError> {
        match self.words.get(&worker).is_some_and(|words| words.spoken < Some(id)) {
            true => self.check_abort_of_forgotten(worker, id),
            false => Err(MachineError::NotGiven { worker, id }),
        }
    }

    /// The same for a report that the worker gave up, which may follow its announcement.
    pub(crate) fn check_abort_of_forgotten(
        &self,
        worker: WorkerId,
        id: ContributionId,
    ) -> Result<(), MachineError> {
        let words = self.words.get(&worker);
        match words.is_some_and(|w| w.forgotten >= Some(id) && w.spoken <= Some(id)) {
            true => Ok(()),
            false => Err(MachineError::NotGiven { worker, id }),
        }
    }

    /// The worker has answered for `id`. It will not report on earlier work.
    pub(crate) fn speak(&mut self, worker: WorkerId, id: ContributionId) {
        self.words.entry(worker).or_default().spoken = Some(id);
        if self.late.get(&worker).is_some_and(|late| late.id < id)
            && let Some(late) = self.late.remove(&worker)
        {
            self.forget(&late);
        }
    }

    /// Forgets a contribution that its worker may still report on. It may hold a permission to push, and
    /// shards may hold parts of it.
    pub(crate) fn forget(&mut self, late: &Contribution) {
        let words = self.words.entry(late.worker).or_default();
        words.forgotten = words.forgotten.max(Some(late.id));
        self.discards.push((late.worker, late.id));
    }

    /// Takes a contribution out of the table: it is complete, or will not be used.
    pub(crate) fn remove(&mut self, worker: WorkerId, id: ContributionId) -> Option<Contribution> {
        let of = |c: &Contribution| c.id == id;
        if self.working.get(&worker).is_some_and(of) {
            return self.working.remove(&worker);
        }
        if self.late.get(&worker).is_some_and(of) {
            return self.late.remove(&worker);
        }
        None
    }

    /// A complete contribution waits for the next round to open.
    pub(crate) fn stage(&mut self, mut contribution: Contribution, arrival: Arrival) {
        contribution.become_state(State::Staged).expect("it was announced");
        self.decide_twin(&mut contribution);
        self.staged.push((contribution, arrival));
    }

    pub(crate) fn take_staged(&mut self) -> Vec<(Contribution, Arrival)> {
        std::mem::take(&mut self.staged)
    }

    /// A complete contribution counts, at `counts` per sample. Samples that its worker did not reach are
    /// handed out again.
    pub(crate) fn accept(&mut self, mut contribution: Contribution, counts: f64) {
        contribution.become_state(State::Accepted).expect("it was announced");
        self.decide_twin(&mut contribution);
        contribution.counts = counts;
        let by = contribution.worker;
        self.entries.push(LedgerEntry::Delivered(by));
        let rest = contribution.keep_first(contribution.weight() as u32);
        if !rest.is_empty() {
            self.entries.push(LedgerEntry::Returned { ranges: rest, by });
        }
        self.accepted.push(contribution);
    }

    /// `first` was faster than the other contribution with the same samples, which is now late.
    fn decide_twin(&mut self, first: &mut Contribution) {
        let Some(twin) = first.twin.take() else { return };
        if let Some(twin) = self.working.values_mut().find(|other| other.id == twin) {
            // One that was given up stays so.
            if twin.state().may_arrive() {
                twin.become_state(State::Late).expect("it had not arrived");
            }
            twin.twin = None;
            twin.ranges.clear();
            // A second holder that was beaten is not slow.
            if twin.id < first.id {
                self.entries.push(LedgerEntry::Missed(twin.worker));
            }
        }
    }

    /// Both holders of the same samples are overdue: the older one loses them to `younger`. Returns it, and
    /// the worker that keeps them.
    pub(crate) fn drop_older_twin(
        &mut self,
        younger: ContributionId,
    ) -> Option<(Contribution, WorkerId)> {
        let mut all = self.working.values_mut();
        let keeper = all.find(|contribution| contribution.id == younger)?;
        let (older, by) = (keeper.twin.take()?, keeper.worker);
        let older = self.working.values_mut().find(|contribution| contribution.id == older)?;
        older.twin = None;
        older.ranges.clear();
        older.become_state(State::Late).ok()?;
        self.entries.push(LedgerEntry::Missed(older.worker));
        Some((older.clone(), by))
    }

    /// A contribution that has left the table will not be used. Its samples are handed out again, unless
    /// another worker holds them, too.
    pub(crate) fn release(&mut self, contribution: &mut Contribution) {
        let ranges = std::mem::take(&mut contribution.ranges);
        match contribution.twin.take() {
            Some(twin) => {
                let mut all = self.working.values_mut();
                if let Some(twin) = all.find(|contribution| contribution.id == twin) {
                    twin.twin = None;
                }
            }
            None if ranges.is_empty() => return,
            None => {
                let again = |held: HeldRange| HeldRange { returns: held.returns + 1, ..held };
                let ranges = ranges.into_iter().map(again).collect();
                self.entries.push(LedgerEntry::Returned { ranges, by: contribution.worker });
            }
        }
        self.entries.push(LedgerEntry::Missed(contribution.worker));
    }

    /// A close has fixed the membership of the round: the samples of its members are used.
    pub(crate) fn use_accepted(&mut self) {
        let mut all: Vec<&mut Contribution> = self.accepted.iter_mut().collect();
        all.sort_by_key(|contribution| contribution.worker);
        for contribution in all {
            let ranges = std::mem::take(&mut contribution.ranges);
            let (weight, salvaged) = (contribution.weight(), contribution.is_partial());
            self.entries.push(LedgerEntry::Used { ranges, weight, salvaged });
        }
    }

    /// The next round opens and forgets the members of the last one.
    pub(crate) fn clear_accepted(&mut self) {
        self.accepted.clear();
        // A machine without a ledger never takes the entries.
        self.entries.clear();
    }

    /// A close takes all work from before `oldest` from its workers. They may still report on it.
    pub(crate) fn take_older(&mut self, oldest: Version, cut: Time) {
        let older = self.working.iter().filter(|(_, c)| c.base < oldest);
        let taken: Vec<WorkerId> = older.map(|(&worker, _)| worker).collect();
        // One after the other: two of them may hold the same samples.
        for worker in taken {
            let Some(mut contribution) = self.working.remove(&worker) else { continue };
            self.release(&mut contribution);
            if contribution.state() == State::Abandoned {
                continue;
            }
            if contribution.state() != State::Late {
                contribution.become_state(State::Late).expect("it had not arrived");
            }
            contribution.cut = Some(cut);
            if let Some(older) = self.late.insert(worker, contribution) {
                self.forget(&older);
            }
        }
    }

    /// A worker left.
    pub(crate) fn leave(&mut self, worker: WorkerId) {
        let mut gone: Vec<Contribution> = self.late.remove(&worker).into_iter().collect();
        gone.extend(self.working.remove(&worker));
        let staged = self.staged.extract_if(.., |(contribution, _)| contribution.worker == worker);
        gone.extend(staged.map(|(contribution, _)| contribution));
        gone.iter_mut().for_each(|contribution| self.release(contribution));
        self.words.remove(&worker);
        self.entries.push(LedgerEntry::Left(worker));
    }

    /// No further part of a contribution from `base` or before counts.
    pub(crate) fn give_up(&mut self, base: Version) {
        for contribution in self.working.values_mut().chain(self.late.values_mut()) {
            if contribution.base <= base && !contribution.staged.is_empty() {
                contribution.staged.clear();
                self.discards.push((contribution.worker, contribution.id));
            }
        }
        let announced =
            |_: &WorkerId, c: &mut Contribution| c.base <= base && c.announcement().is_some();
        let given_up: Vec<_> = self.late.extract_if(.., announced).collect();
        given_up.iter().for_each(|(_, contribution)| self.forget(contribution));
    }

    /// The samples that contributions hold and no update contains, each once.
    pub(crate) fn held(&self) -> impl Iterator<Item = crate::SampleRange> + '_ {
        let staged = self.staged.iter().map(|(contribution, _)| contribution);
        let all = self.working.values().chain(staged).chain(&self.accepted);
        let once = all.filter(|c| c.twin.is_none_or(|twin| c.id < twin));
        once.flat_map(|contribution| &contribution.ranges).map(|held| held.range)
    }

    pub(crate) fn take_entries(&mut self) -> Vec<LedgerEntry> {
        std::mem::take(&mut self.entries)
    }

    pub(crate) fn take_discards(&mut self) -> Vec<(WorkerId, ContributionId)> {
        std::mem::take(&mut self.discards)
    }

    pub(crate) fn discard(&mut self, worker: WorkerId, id: ContributionId) {
        self.discards.push((worker, id));
    }
}
