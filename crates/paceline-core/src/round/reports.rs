//! Reports on workers and their contributions: joins, progress, answers to a cut, arrivals.

use super::{Phase, RoundMachine};
use crate::{
    Announcement, Arrival, Blocks, Contribution, ContributionId, EventKind, Late, LeaveReason,
    MachineError, RunTime, State, Time, WorkerId,
};

impl RoundMachine {
    /// A worker has joined.
    pub fn handle_join(
        &mut self,
        worker: WorkerId,
        name: &str,
        now: Time,
    ) -> Result<(), MachineError> {
        self.catch_up(now);
        if self.live.contains_key(&worker) {
            return Err(MachineError::AlreadyLive(worker));
        }
        self.live.insert(worker, name.to_owned());
        self.wait.ask_again();
        self.emit(now, EventKind::WorkerJoined { worker, name: name.to_owned() });
        Ok(())
    }

    /// A worker is gone. Its delivered contributions stay; its current work will not arrive.
    pub fn handle_leave(
        &mut self,
        worker: WorkerId,
        why: LeaveReason,
        now: Time,
    ) -> Result<(), MachineError> {
        self.catch_up(now);
        if self.live.remove(&worker).is_none() {
            return Err(MachineError::Unknown(worker));
        }
        self.splits.remove(&worker);
        self.contributions_mut().leave(worker);
        self.useless.forget(worker);
        self.wait.ask_again();
        self.emit(now, EventKind::WorkerLeft { worker, why });
        Ok(())
    }

    /// The round must not be cut before this contribution has arrived: a shard has not received its part.
    pub(crate) fn wait_for_shard(&mut self, worker: WorkerId, id: ContributionId) {
        if let Some(contribution) = self.contributions_mut().get_mut(worker, id) {
            contribution.awaits_shard = true;
        }
    }

    /// A worker has finished some of its micro-batches.
    pub fn handle_progress(&mut self, worker: WorkerId, id: ContributionId, done: u32, now: Time) {
        self.catch_up(now);
        let done = done.min(self.config.micro_batches);
        let current = |c: &&mut Contribution| c.state().may_arrive() && c.done < done;
        let work = self.contributions_mut().get_mut(worker, id).filter(current);
        let Some(work) = work else { return };
        if work.state() == State::Given {
            work.become_state(State::Computing).expect("it was given");
        }
        (work.done, work.done_at) = (done, now);
        work.first.get_or_insert((done, now));
        let base = work.base;
        if self.config.straggler.counts_parts() {
            self.emit(now, EventKind::Progress { worker, base, done });
        }
    }

    /// A worker splits its batches into this many micro-batches, not into those of the run's setting.
    pub fn handle_split(&mut self, worker: WorkerId, parts: u32, now: Time) {
        self.catch_up(now);
        if self.config.straggler.counts_parts() && self.live.contains_key(&worker) {
            let parts = parts.clamp(1, self.config.micro_batches.max(1));
            if self.splits.insert(worker, parts) != Some(parts) {
                self.emit(now, EventKind::Split { worker, parts });
            }
        }
    }

    /// A straggler stopped after `done` micro-batches: its round has closed without it, or will.
    pub fn handle_aborted(
        &mut self,
        worker: WorkerId,
        id: ContributionId,
        done: u32,
        now: Time,
    ) -> Result<(), MachineError> {
        self.catch_up(now);
        self.check_live(worker)?;
        let (phase, round) = (self.phase, self.round().base());
        let Some(work) = self.contributions_mut().get_mut(worker, id) else {
            self.contributions().check_abort_of_forgotten(worker, id)?;
            self.contributions_mut().speak(worker, id);
            return Ok(());
        };
        let (base, cut, present) = (work.base, work.cut, work.cut.is_none());
        let in_round = present && base == round && work.state() != State::Late;
        if in_round && phase == Phase::Open {
            return Err(MachineError::NotCut { worker, id });
        }
        work.become_state(State::Abandoned)?;
        if let Some(cut) = cut {
            self.grace.answered(now.since(cut));
        }
        self.contributions_mut().speak(worker, id);
        // The close takes its work and records its run-time as censored.
        if !(in_round && matches!(phase, Phase::Cut { .. })) {
            if let Some(mut work) = self.contributions_mut().remove(worker, id) {
                self.contributions_mut().release(&mut work);
            }
            if present {
                self.wait.ask_again();
            }
        }
        self.emit(now, EventKind::Aborted { id, base, worker, done });
        Ok(())
    }

    /// A worker announces what it pushes. Returns whether the contribution is still known.
    pub(crate) fn handle_announced(
        &mut self,
        worker: WorkerId,
        announcement: Announcement,
        now: Time,
    ) -> Result<bool, MachineError> {
        self.catch_up(now);
        self.check_live(worker)?;
        let known = self.contributions_mut().announce(worker, announcement, now)?;
        if self.config.straggler.counts_parts()
            && matches!(self.phase, Phase::Cut { .. })
            && let Some(work) = self.contributions_mut().get_mut(worker, announcement.id)
        {
            work.past_cut = true;
        }
        Ok(known)
    }

    /// A worker announces its contribution, which is complete.
    pub fn handle_arrival(
        &mut self,
        worker: WorkerId,
        announcement: Announcement,
        now: Time,
    ) -> Result<(), MachineError> {
        if self.handle_announced(worker, announcement, now)? {
            self.arrive(worker, announcement.id, Blocks::All, now);
        }
        Ok(())
    }

    /// An announced contribution is complete on `blocks`: on all, or on those that are waited for. It is
    /// accepted or late; the event says which.
    pub(crate) fn arrive(
        &mut self,
        worker: WorkerId,
        id: ContributionId,
        blocks: Blocks,
        now: Time,
    ) {
        self.catch_up(now);
        let Some(mut given) = self.contributions_mut().remove(worker, id) else { return };
        given.blocks = blocks;
        let in_time = given.state() == State::Announced;
        let (base, weight, run_time) = (given.base, given.weight(), given.run_time(now));
        let cut = matches!(self.phase, Phase::Cut { .. }).then_some(self.cut_at);
        if let Some(cut) = given.cut.or(cut) {
            self.grace.answered(now.since(cut));
        }
        if let RunTime::Observed(took) = run_time {
            let is_first = self.patience.duration().is_none();
            self.patience.observe(took);
            if is_first {
                self.plan_overdue_check();
            }
        }
        let fresh = base >= self.wait.roster.oldest_admissible();
        if !fresh {
            self.wait.late(&given, now);
        }
        if !in_time || !(fresh || self.config.late == Late::Fold) {
            self.contributions_mut().release(&mut given);
            self.emit(now, EventKind::Late { id, base, worker, weight, run_time });
            return;
        }
        let share = weight / f64::from(given.samples);
        // Only the weight of a stream's contribution may exceed its samples.
        let share = if given.is_partial() { share.min(1.0) } else { share };
        let arrival = Arrival { worker, weight, at: now, run_time, share };
        match self.phase {
            Phase::Closed => {
                self.supersede_twin(&given, now);
                self.contributions_mut().stage(given, arrival);
            }
            Phase::Open | Phase::Cut { .. } => {
                let waited_for = given.waited_for || given.awaits_shard;
                self.accept(given, arrival, now);
                if waited_for {
                    self.wait.ask_again();
                }
            }
        }
    }

    pub(super) fn accept(&mut self, mut contribution: Contribution, arrival: Arrival, now: Time) {
        self.supersede_twin(&contribution, now);
        let round = self.round();
        let Contribution { id, worker, base, worth, ref blocks, .. } = contribution;
        let (weight, blocks) = (contribution.weight(), blocks.clone());
        let loss = contribution.announcement().and_then(|announcement| announcement.loss);
        let (run_time, mut share) = (arrival.run_time, worth);
        if base >= self.wait.roster.oldest_admissible() {
            self.wait.accept(contribution, arrival);
        } else {
            share *= Late::share(round.base().0 - base.0);
            contribution.folded = true;
            self.contributions_mut().accept(contribution, share);
        }
        let arrived =
            EventKind::Arrived { round, id, base, worker, weight, share, loss, run_time, blocks };
        self.emit(now, arrived);
    }

    /// The other worker with the same samples is told to stop.
    fn supersede_twin(&mut self, first: &Contribution, now: Time) {
        let twin = first.twin.and_then(|twin| {
            self.contributions().working().values().find(|contribution| contribution.id == twin)
        });
        if let Some(&Contribution { id, worker, base, .. }) = twin {
            self.emit(now, EventKind::Superseded { id, worker, base, by: first.worker });
        }
    }

    /// More blocks have arrived of a contribution that was accepted before it was whole. Returns it, if its
    /// round is not closed yet.
    pub(crate) fn extend(
        &mut self,
        worker: WorkerId,
        id: ContributionId,
        more: &Blocks,
    ) -> Option<&Contribution> {
        if self.phase == Phase::Closed {
            return None;
        }
        let contribution =
            self.contributions_mut().accepted_mut(worker, id).filter(|c| !c.folded)?;
        contribution.blocks.extend(more);
        Some(contribution)
    }
}
