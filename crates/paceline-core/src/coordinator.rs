//! The coordinator: round machine, data ledger and assembly of contributions, as one sans-IO whole.
//!
//! This is what the network server, the simulator and the tests drive. They report what happened,
//! call [`Coordinator::advance`], and act on [`Coordinator::poll_event`].

use std::collections::VecDeque;

use crate::{
    Contribution, Event, EventKind, LeaveReason, Ledger, LedgerError, MachineError, NoiseScale,
    Phase, Policy, Round, RoundConfig, RoundMachine, ShardId, Shards, StopReason, Straggler, Time,
    Version, Work, WorkerId,
    assembly::{Assembly, Awaited, WaitRule},
};

/// Whoever is nearly as fast as the median is given as much.
const EVEN: f64 = 0.87;
/// The least share of a portion: whoever is slower still is left to the cut.
const LEAST_SHARE: f64 = 1.0 / 16.0;

/// Decides who computes what, what counts, and when a round ends.
pub struct Coordinator {
    machine: RoundMachine,
    ledger: Ledger,
    assembly: Assembly,
    /// Samples a worker is given per round.
    batch: u32,
    straggler: Straggler,
    rebalance: bool,
    shards: Shards,
    /// The shard that the next round waits for at its bound, if one is.
    awaited: Option<ShardId>,
    /// Nothing of this version, or of an older one, is of use any more.
    given_up: Option<Version>,
    /// The shard whose parts this round's contributions wait for at the bound.
    parts_awaited: Option<(Round, ShardId)>,
    noise: NoiseScale,
    events: VecDeque<Event>,
}

impl Coordinator {
    /// Rounds from `first` on over `shards`, each worker given `batch` samples a round.
    pub fn new(
        config: RoundConfig,
        policy: Box<dyn Policy>,
        ledger: Ledger,
        batch: u32,
        shards: Shards,
        first: Round,
    ) -> Self {
        let config = RoundConfig { batch, ..config };
        Coordinator {
            straggler: config.straggler,
            rebalance: config.rebalance,
            machine: RoundMachine::new(config, policy, first),
            ledger,
            assembly: Assembly::default(),
            batch,
            shards,
            awaited: None,
            given_up: None,
            parts_awaited: None,
            noise: NoiseScale::default(),
            events: VecDeque::new(),
        }
    }

    /// The same, but contributions count once they are complete on as many shards, of so many blocks
    /// each, as the rule waits for. What comes to the others while the round is open counts there.
    pub fn with_partial_pushes(self, blocks: &[u32], rule: WaitRule) -> Self {
        Coordinator { assembly: Assembly::partial(blocks, rule), ..self }
    }

    /// The same, but with what was known of the noise before.
    pub fn with_noise(mut self, noise: NoiseScale) -> Self {
        if let Some(scale) = noise.scale() {
            self.machine.hear_noise(scale);
        }
        Coordinator { noise, ..self }
    }

    /// The round machine, to look at.
    pub fn machine(&self) -> &RoundMachine {
        &self.machine
    }

    /// The shards, to look at.
    pub fn shards(&self) -> &Shards {
        &self.shards
    }

    /// The books, to look at.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The next thing that happened, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// A worker is here.
    pub fn handle_join(
        &mut self,
        worker: WorkerId,
        name: &str,
        now: Time,
    ) -> Result<(), MachineError> {
        self.catch_up(now);
        self.machine.handle_join(worker, name, now)
    }

    /// A worker is gone; what it held goes to others.
    pub fn handle_leave(
        &mut self,
        worker: WorkerId,
        why: LeaveReason,
        now: Time,
    ) -> Result<(), MachineError> {
        self.catch_up(now);
        self.machine.handle_leave(worker, why, now)?;
        self.pump();
        Ok(())
    }

    /// A worker has finished some of its micro-batches.
    pub fn handle_progress(&mut self, worker: WorkerId, base: Version, done: u32, now: Time) {
        self.catch_up(now);
        self.machine.handle_progress(worker, base, done, now);
        self.pump();
    }

    /// A straggler stopped, having pushed nothing or half. An error is the worker's.
    pub fn handle_aborted(
        &mut self,
        worker: WorkerId,
        base: Version,
        done: u32,
        now: Time,
    ) -> Result<(), MachineError> {
        self.catch_up(now);
        self.machine.handle_aborted(worker, base, done, now)?;
        self.assembly.abandon(worker, base);
        self.forget_before(worker, base);
        self.pump();
        Ok(())
    }

    /// A worker says what it has put, or is putting, on the shards. An error is the worker's.
    pub fn handle_done(
        &mut self,
        contribution: Contribution,
        now: Time,
    ) -> Result<(), MachineError> {
        let (worker, base) = (contribution.worker, contribution.base);
        self.catch_up(now);
        self.machine.check(&contribution)?;
        self.machine.note_done(&contribution);
        self.forget_before(worker, base);
        let whole = self.assembly.said(contribution, now)?;
        self.note_awaited_parts(now);
        match whole {
            Some(whole) => self.arrive(whole, now),
            None => Ok(()),
        }
    }

    /// A shard holds its whole part of a contribution, checked. Says whether that is of use: what
    /// was given up meanwhile is not, and every shard that holds a part may drop it.
    pub fn handle_staged(
        &mut self,
        worker: WorkerId,
        base: Version,
        shard: ShardId,
        now: Time,
    ) -> Result<bool, MachineError> {
        self.catch_up(now);
        if self.machine.work_of(worker, base).is_err() || self.has_given_up(base) {
            return Ok(self.land(worker, base, shard, now));
        }
        if let Some(whole) = self.assembly.staged(worker, base, shard, now) {
            self.arrive(whole, now)?;
        }
        Ok(true)
    }

    /// Contributions that are under way and were computed from `base`, or before, are given up: their
    /// workers deliver parts one by one and need not say what becomes of them. Returns of which parts may
    /// have come.
    pub fn give_up_parts(&mut self, base: Version) -> Vec<(WorkerId, Version)> {
        self.given_up = Some(base);
        self.assembly.give_up(base)
    }

    /// Whether what is computed from `base` was given up.
    pub fn has_given_up(&self, base: Version) -> bool {
        self.given_up >= Some(base)
    }

    /// A part comes of what is not waited for any more; says whether it still counts on its shard.
    fn land(&mut self, worker: WorkerId, base: Version, shard: ShardId, now: Time) -> bool {
        let blocks =
            self.assembly.blocks_of(shard).filter(|_| self.shards.fresh().contains(&shard));
        let share = blocks.and_then(|blocks| self.machine.extend(worker, base, &blocks));
        self.assembly.answered(worker, base, shard, share.is_some(), now);
        if let Some(share) = share {
            let kind = EventKind::Landed { worker, base, shard, share };
            self.events.push_back(Event { at: now, kind });
        }
        share.is_some()
    }

    /// What was due before comes first, in the books as well: who arrives after a close that nobody has
    /// heard of yet is working until then.
    fn catch_up(&mut self, now: Time) {
        self.machine.catch_up(now);
        self.pump();
    }

    /// The worker speaks of `base`: nothing more will come of what it was given before.
    fn forget_before(&mut self, worker: WorkerId, base: Version) {
        self.machine.forget_before(worker, base);
        self.assembly.forget_before(worker, base);
    }

    fn arrive(&mut self, whole: Contribution, now: Time) -> Result<(), MachineError> {
        self.machine.handle_arrival(whole, now)?;
        self.pump();
        Ok(())
    }

    /// A shard has applied the update it was told of last. An error is the shard's.
    pub fn handle_applied(&mut self, shard: ShardId, now: Time) -> Result<(), MachineError> {
        self.shards.answered(shard, now)
    }

    /// Decides whether enough shards have applied the last update, so that the next round may open;
    /// says whether it may. What the driver does for a new version it does before [`Self::advance`].
    pub fn settle(&mut self, now: Time) -> bool {
        let awaited = self.shards.advance(now);
        if let Some((shard, rounds)) = awaited.filter(|&(shard, _)| self.awaited != Some(shard)) {
            let kind = EventKind::ShardAwaited { shard, rounds };
            self.events.push_back(Event { at: now, kind });
        }
        self.awaited = awaited.map(|(shard, _)| shard);
        self.shards.is_ready()
    }

    /// The squared norm of the sum of the last round's gradients, where all shards had a part in it.
    pub fn handle_square(&mut self, square: f64) {
        self.noise.observe(&self.machine.parts(), square);
        if let Some(scale) = self.noise.scale() {
            self.machine.hear_noise(scale);
        }
    }

    /// What is known of the noise, to go on from.
    pub fn noise(&self) -> &NoiseScale {
        &self.noise
    }

    /// The gradient noise scale, in samples, if workers report norms and enough is known.
    pub fn noise_scale(&self) -> Option<f64> {
        self.noise.scale()
    }

    /// Nothing is urgent: the policy may think ([`RoundMachine::study`]).
    pub fn study(&mut self) {
        self.machine.study();
    }

    /// Does what follows from all that was reported: opens a round, gives work, cuts, closes.
    pub fn advance(&mut self, now: Time) {
        if self.settle(now) && self.machine.can_open(now) {
            let idle = self.machine.idle();
            let shares = if self.rebalance { self.shares(&idle) } else { vec![1.0; idle.len()] };
            let mut given: Vec<(WorkerId, f64)> = idle.into_iter().zip(shares).collect();
            // What others gave back goes to those first of whom something comes.
            given.sort_by_key(|&(worker, _)| !self.ledger.delivers(worker));
            let mut work: Vec<Work> =
                given.into_iter().filter_map(|(worker, share)| self.take(worker, share)).collect();
            work.sort_by_key(|work| work.worker);
            // What came since the last close may be all that is left of an epoch.
            if !work.is_empty() || self.machine.has_pending() {
                self.machine.open(work, now);
            }
        }
        for worker in self.machine.wanted() {
            if let Some(work) = self.take(worker, 1.0) {
                self.machine.enlist(work, now);
            }
        }
        for whole in self.assembly.due(now) {
            self.arrive(whole, now).expect("it was checked when it was said");
        }
        self.machine.decide(now);
        self.pump();
    }

    /// What waits for a shard at its bound must not be cut: it would be given up, and be no nearer.
    fn note_awaited_parts(&mut self, now: Time) {
        for Awaited { worker, base, shard, missed } in self.assembly.take_awaited() {
            self.machine.wait_for(worker, base);
            let here = Some((self.machine.round(), shard));
            if std::mem::replace(&mut self.parts_awaited, here) != here {
                let kind = EventKind::ShardAwaited { shard, rounds: missed };
                self.events.push_back(Event { at: now, kind });
            }
        }
    }

    /// What of a whole portion each of these workers is given: as much as it does in the time that the
    /// median worker takes for all of it. Small differences are left to the cut.
    fn shares(&self, workers: &[WorkerId]) -> Vec<f64> {
        let policy = self.machine.policy();
        let typical: Vec<Option<f64>> = workers.iter().map(|&w| policy.typical(w)).collect();
        let mut known: Vec<f64> = typical.iter().flatten().copied().collect();
        known.sort_by(f64::total_cmp);
        let Some(&median) = known.get(known.len() / 2) else { return vec![1.0; workers.len()] };
        let share = |typical: Option<f64>| match median / typical.unwrap_or(median) {
            ratio if ratio > EVEN => 1.0,
            ratio => ratio.max(LEAST_SHARE),
        };
        typical.into_iter().map(share).collect()
    }

    fn take(&mut self, worker: WorkerId, share: f64) -> Option<Work> {
        let base = self.machine.round().base();
        let want = (share * f64::from(self.batch)).round().max(1.0) as u32;
        self.ledger.take(worker, base, want).expect("an idle worker holds nothing for it")
    }

    /// Enters what the machine decided into the books and passes it on.
    fn pump(&mut self) {
        while let Some(event) = self.machine.poll_event() {
            self.account(&event).expect("the machine and the ledger agree on who holds what");
            self.events.push_back(event);
        }
    }

    fn account(&mut self, event: &Event) -> Result<(), LedgerError> {
        match &event.kind {
            EventKind::RoundStarted { round, .. } => {
                let (shards, oldest) = (self.shards.fresh().clone(), self.machine.oldest_base());
                self.assembly.open(round.base(), shards, oldest);
            }
            EventKind::WorkerLeft { worker, .. } => {
                self.assembly.forget(*worker);
                self.ledger.forget(*worker);
            }
            EventKind::Arrived { worker, base, weight, .. } => {
                self.ledger.accept(*worker, *base, *weight as u32)?;
            }
            EventKind::Late { worker, base, weight, .. } => {
                self.ledger.count_dropped(*weight as u64);
                if self.straggler == Straggler::Finish {
                    self.ledger.give_back(*worker, *base)?;
                }
            }
            // Where a close has not given them to others already, or will.
            EventKind::Aborted { worker, base, .. }
                if !self.machine.is_working(*worker)
                    && self.ledger.held_by(*worker).any(|held| held == *base) =>
            {
                self.ledger.give_back(*worker, *base)?;
            }
            EventKind::Closed { round, .. } => {
                self.shards.update(|_| true, event.at);
                self.ledger.close()?;
                self.give_back_taken(round.base())?;
            }
            _ => {}
        }
        Ok(())
    }

    /// What a close took from stragglers, others get.
    fn give_back_taken(&mut self, base: Version) -> Result<(), LedgerError> {
        let taken: Vec<(WorkerId, Version)> = self
            .machine
            .live()
            .filter(|&worker| !self.machine.is_working(worker))
            .flat_map(|worker| self.ledger.held_by(worker).map(move |base| (worker, base)))
            .filter(|&(_, held)| held <= base)
            .collect();
        taken.into_iter().try_for_each(|(worker, base)| self.ledger.give_back(worker, base))
    }

    /// Why the run is over, if it is: the epochs are done or the quorum is lost.
    pub fn stop_reason(&self, now: Time) -> Option<StopReason> {
        if self.ledger.is_finished()
            && self.shards.is_ready()
            && self.machine.phase() == Phase::Closed
        {
            return Some(StopReason::Epochs);
        }
        self.machine.quorum_lost(now)
    }

    /// The next moment at which [`Self::advance`] must be called even if nothing happens.
    pub fn next_wake(&self) -> Option<Time> {
        let wakes = [self.machine.next_wake(), self.shards.next_wake(), self.assembly.next_wake()];
        wakes.into_iter().flatten().min()
    }
}
