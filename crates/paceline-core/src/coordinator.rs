//! The coordinator: round machine, data ledger and shards behind one sans-IO interface.
//!
//! The network server, the simulators and the tests drive it. They report what happened, call
//! [`Coordinator::advance`], and act on its events ([`crate::act`]).

use std::{collections::VecDeque, time::Duration};

use crate::{
    Announcement, Blocks, Contribution, ContributionId, Event, EventKind, Handout, LeaveReason,
    Ledger, LedgerReport, MachineError, NoiseScale, Phase, Policy, Portion, Round, RoundConfig,
    RoundMachine, ShardId, Shards, State, StopReason, Time, Version, WorkerId,
    leases::Leases,
    pushes::{AwaitedPart, PartialPushes, WaitRule},
};

/// A worker whose speed, relative to the median, exceeds this gets a whole portion.
const EVEN: f64 = 0.87;
/// The least share of a portion. A slower worker gets this share, and the cut deals with the rest.
const LEAST_SHARE: f64 = 1.0 / 16.0;

/// Decides which samples each worker gets, which contributions count, and when a round ends.
pub struct Coordinator {
    machine: RoundMachine,
    ledger: Ledger,
    leases: Leases,
    /// Set where contributions may count before they are whole.
    pushes: Option<PartialPushes>,
    /// Samples a worker is given per round.
    batch: u32,
    rebalance: bool,
    shards: Shards,
    /// The shard at its staleness bound that the next round waits for, if there is one.
    awaited: Option<ShardId>,
    /// Parts of contributions from this version, or from an older one, no longer count.
    given_up: Option<Version>,
    /// The shard at its staleness bound whose parts this round's contributions wait for.
    parts_awaited: Option<(Round, ShardId)>,
    noise: NoiseScale,
    /// The lateness of timers that the policy hears of before the next round opens.
    lateness: Option<Duration>,
    /// When [`Self::advance`] was called last.
    advanced: Time,
    events: VecDeque<Event>,
}

impl Coordinator {
    /// Rounds from `first` on over `shards`.
    pub fn new(
        config: RoundConfig,
        policy: Box<dyn Policy>,
        ledger: Ledger,
        shards: Shards,
        first: Round,
    ) -> Self {
        let RoundConfig { batch, rebalance, .. } = config;
        let machine = RoundMachine::new(config, policy, first);
        Coordinator {
            machine: if ledger.data_moves() { machine } else { machine.with_homes() },
            rebalance,
            ledger,
            leases: Leases::default(),
            pushes: None,
            batch,
            shards,
            awaited: None,
            given_up: None,
            parts_awaited: None,
            noise: NoiseScale::default(),
            lateness: None,
            advanced: Time::ZERO,
            events: VecDeque::new(),
        }
    }

    /// Contributions count once they are complete on as many shards as `rule` waits for; `blocks` gives the
    /// number of blocks on each shard. Parts that reach the other shards while the round is open count there.
    pub fn with_partial_pushes(self, blocks: &[u32], rule: WaitRule) -> Self {
        let machine = self.machine.with_blocks(blocks.iter().sum());
        Coordinator { machine, pushes: Some(PartialPushes::new(blocks, rule)), ..self }
    }

    /// Continues with an earlier estimate of the noise scale.
    pub fn with_noise(mut self, noise: NoiseScale) -> Self {
        if let Some(scale) = noise.scale() {
            self.machine.hear_noise(scale);
        }
        Coordinator { noise, ..self }
    }

    /// The round machine.
    pub fn machine(&self) -> &RoundMachine {
        &self.machine
    }

    /// The shards.
    pub fn shards(&self) -> &Shards {
        &self.shards
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The ledger's report, checked from scratch.
    pub fn report(&self) -> LedgerReport {
        self.ledger.report(self.machine.contributions().held().chain(self.leases.held()))
    }

    /// Takes the complete list of leases of each worker whose leases have changed. Work that was a lease is
    /// not in the list any more.
    pub fn take_leases(&mut self) -> Vec<(WorkerId, Vec<Portion>)> {
        self.leases.take_changes()
    }

    /// Takes the contributions that will not be used although shards may hold parts of them.
    pub fn take_discards(&mut self) -> Vec<(WorkerId, ContributionId)> {
        self.machine.contributions_mut().take_discards()
    }

    /// The next event, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// A worker has joined.
    pub fn handle_join(
        &mut self,
        worker: WorkerId,
        name: &str,
        now: Time,
    ) -> Result<(), MachineError> {
        self.catch_up(now);
        self.machine.handle_join(worker, name, now)
    }

    /// A worker that has joined holds up to `ahead` leases (256 at most) from now on: portions for its next
    /// rounds. In each round its first lease becomes its work, whole, and another one is added behind. A lease
    /// that is not work yet may be given to an idle worker that finds no other samples.
    pub fn lease_ahead(&mut self, worker: WorkerId, ahead: u32) {
        self.leases.add(worker, ahead);
        self.fill_leases();
    }

    /// A worker is gone. Its samples go to other workers.
    pub fn handle_leave(
        &mut self,
        worker: WorkerId,
        why: LeaveReason,
        now: Time,
    ) -> Result<(), MachineError> {
        self.catch_up(now);
        self.machine.handle_leave(worker, why, now)?;
        if let Some(pushes) = &mut self.pushes {
            pushes.forget(worker);
        }
        self.pump();
        self.leases.remove(worker).for_each(|lease| self.ledger.take_back(lease));
        Ok(())
    }

    /// A worker has finished some of its micro-batches.
    pub fn handle_progress(&mut self, worker: WorkerId, id: ContributionId, done: u32, now: Time) {
        self.catch_up(now);
        self.machine.handle_progress(worker, id, done, now);
        self.pump();
    }

    /// A worker splits its batches into this many micro-batches, not into those of the run's setting.
    pub fn handle_split(&mut self, worker: WorkerId, parts: u32, now: Time) {
        self.catch_up(now);
        self.machine.handle_split(worker, parts, now);
        self.pump();
    }

    /// A straggler stopped before its push was complete. An error is the worker's fault.
    pub fn handle_aborted(
        &mut self,
        worker: WorkerId,
        id: ContributionId,
        done: u32,
        now: Time,
    ) -> Result<(), MachineError> {
        self.catch_up(now);
        self.machine.handle_aborted(worker, id, done, now)?;
        self.machine.contributions_mut().discard(worker, id);
        self.pump();
        Ok(())
    }

    /// A worker announces what it has pushed, or is pushing, to the shards. An error is the worker's fault.
    pub fn handle_done(
        &mut self,
        worker: WorkerId,
        announcement: Announcement,
        now: Time,
    ) -> Result<(), MachineError> {
        let id = announcement.id;
        self.catch_up(now);
        if !self.machine.handle_announced(worker, announcement, now)? {
            self.machine.contributions_mut().discard(worker, id);
            return Ok(());
        }
        if self.is_given_up(worker, id) {
            // Its worker does not know of the close yet, and will not report that it stops.
            let contributions = self.machine.contributions_mut();
            if let Some(contribution) = contributions.remove(worker, id) {
                contributions.forget(&contribution);
            }
            return Ok(());
        }
        self.begin_push(worker, id, now);
        self.complete(worker, id, now);
        Ok(())
    }

    /// Starts waiting for shards, where a contribution may count before it is whole. A contribution that
    /// waits for a shard at its bound must not be cut: it would be given up, and the shard would be just as
    /// stale.
    fn begin_push(&mut self, worker: WorkerId, id: ContributionId, now: Time) {
        let contribution = self.machine.contributions().get(worker, id);
        let Some((pushes, contribution)) = self.pushes.as_mut().zip(contribution) else { return };
        let Some(AwaitedPart { shard, missed }) = pushes.begin(contribution, now) else { return };
        self.machine.wait_for_shard(worker, id);
        let here = Some((self.machine.round(), shard));
        if std::mem::replace(&mut self.parts_awaited, here) != here {
            let kind = EventKind::ShardAwaited { shard, rounds: missed };
            self.events.push_back(Event { at: now, kind });
        }
    }

    /// A shard holds its whole, checked part of a contribution. If the contribution has been dropped
    /// meanwhile, all shards that hold parts of it may drop them.
    pub fn handle_staged(
        &mut self,
        worker: WorkerId,
        id: ContributionId,
        shard: ShardId,
        now: Time,
    ) {
        self.catch_up(now);
        let given_up = self.is_given_up(worker, id);
        let contribution = self.machine.contributions_mut().get_mut(worker, id);
        let Some(contribution) =
            contribution.filter(|c| !given_up && c.state() != State::Abandoned)
        else {
            return self.land(worker, id, shard, now);
        };
        contribution.staged.insert(shard);
        if let Some(pushes) = &mut self.pushes {
            pushes.answered(worker, id, shard, true, now);
        }
        self.complete(worker, id, now);
    }

    /// Lets a contribution arrive, if it is announced and enough shards hold their part.
    fn complete(&mut self, worker: WorkerId, id: ContributionId, now: Time) {
        let Some(contribution) = self.machine.contributions().get(worker, id) else { return };
        // Skips the decision, which takes time, while no shard holds a part.
        if contribution.announcement().is_none() || contribution.staged.is_empty() {
            return;
        }
        let blocks = if contribution.is_whole() {
            Blocks::All
        } else if let Some(pushes) = &mut self.pushes
            && pushes.is_enough(worker, id, now)
        {
            pushes.blocks_on(&contribution.staged)
        } else {
            return;
        };
        self.machine.arrive(worker, id, blocks, now);
        self.pump();
    }

    /// Gives up contributions under way that were computed from `base` or before. Their workers deliver parts
    /// one by one and need not report that they stop.
    pub fn give_up_parts(&mut self, base: Version) {
        self.given_up = Some(base);
        self.machine.contributions_mut().give_up(base);
    }

    fn is_given_up(&self, worker: WorkerId, id: ContributionId) -> bool {
        let contribution = self.machine.contributions().get(worker, id);
        contribution.is_some_and(|contribution| self.given_up >= Some(contribution.base))
    }

    /// A worker's contribution, unless it has arrived or is forgotten.
    pub fn contribution(&self, worker: WorkerId, id: ContributionId) -> Option<&Contribution> {
        self.machine.contributions().get(worker, id)
    }

    /// A part arrives of a contribution that has arrived already or is no longer waited for. It still counts
    /// on its shard, or is dropped.
    fn land(&mut self, worker: WorkerId, id: ContributionId, shard: ShardId, now: Time) {
        let is_fresh = self.shards.fresh().contains(&shard);
        let blocks = self.pushes.as_ref().and_then(|pushes| pushes.blocks_of(shard));
        let waiting = self.machine.contributions_mut().staged_mut(worker, id);
        let counts = if let Some((waiting, blocks)) = waiting.zip(blocks.as_ref()) {
            waiting.blocks.extend(blocks);
            true
        } else if let Some(blocks) = blocks.filter(|_| is_fresh)
            && let Some(contribution) = self.machine.extend(worker, id, &blocks)
        {
            let (base, share) = (contribution.base, contribution.counts);
            let kind = EventKind::Landed { id, base, worker, shard, share };
            self.events.push_back(Event { at: now, kind });
            true
        } else {
            self.machine.contributions_mut().discard(worker, id);
            false
        };
        if let Some(pushes) = &mut self.pushes {
            pushes.answered(worker, id, shard, counts, now);
        }
    }

    /// Carries out overdue decisions first, and enters them into the ledger. A contribution that arrives
    /// after an overdue close stays under way until that close is entered.
    fn catch_up(&mut self, now: Time) {
        self.machine.catch_up(now);
        self.pump();
    }

    /// A shard has applied the last update that it was sent. An error is the shard's fault.
    pub fn handle_applied(&mut self, shard: ShardId, now: Time) -> Result<(), MachineError> {
        self.shards.answered(shard, now)
    }

    /// Decides whether enough shards have applied the last update for the next round to open. Returns whether
    /// it may. The driver prepares the new version between this call and [`Self::advance`].
    pub fn settle(&mut self, now: Time) -> bool {
        let awaited = self.shards.advance(now);
        if let Some((shard, rounds)) = awaited.filter(|&(shard, _)| self.awaited != Some(shard)) {
            let kind = EventKind::ShardAwaited { shard, rounds };
            self.events.push_back(Event { at: now, kind });
        }
        self.awaited = awaited.map(|(shard, _)| shard);
        self.shards.is_ready()
    }

    /// The squared norm of the last round's gradient sum. Call it only if all shards took part in the round.
    pub fn handle_square(&mut self, square: f64) {
        self.noise.observe(&self.machine.norms(), square);
        if let Some(scale) = self.noise.scale() {
            self.machine.hear_noise(scale);
        }
    }

    /// The system's timers usually fire this late. The policy hears of it before the next round opens.
    pub fn handle_lateness(&mut self, usual: Duration) {
        self.lateness = Some(usual);
    }

    /// The state of the noise estimate, for a checkpoint.
    pub fn noise(&self) -> &NoiseScale {
        &self.noise
    }

    /// The gradient noise scale, in samples, if workers report norms and the estimate exists.
    pub fn noise_scale(&self) -> Option<f64> {
        self.noise.scale()
    }

    /// Nothing is urgent: the policy may learn ([`RoundMachine::study`]).
    pub fn study(&mut self) {
        self.machine.study();
    }

    /// Carries out everything that follows from the reports so far: opens a round, gives work, cuts, closes.
    pub fn advance(&mut self, now: Time) {
        self.advanced = now;
        if self.settle(now) && self.machine.can_open(now) {
            self.open(now);
        }
        self.machine.note_overdue(now);
        for worker in self.machine.wanted() {
            let handout = self.take(worker, 1.0).or_else(|| {
                let idle = self.machine.idle();
                self.take_from_others(worker, &idle, now)
            });
            if let Some(handout) = handout {
                self.machine.enlist(handout, now);
                self.fill_leases();
            }
        }
        let due = self.pushes.iter().flat_map(PartialPushes::wakes);
        let due: Vec<_> = due.filter(|(.., at)| *at <= now).collect();
        for (worker, id, _) in due {
            self.complete(worker, id, now);
        }
        self.machine.decide(now);
        self.pump();
    }

    fn open(&mut self, now: Time) {
        self.pump();
        let idle = self.machine.idle();
        let shares = if self.rebalance { self.shares(&idle) } else { vec![1.0; idle.len()] };
        let mut wishes: Vec<(WorkerId, f64)> = idle.into_iter().zip(shares).collect();
        // Workers that delivered last time come first and so get the returned samples.
        wishes.sort_by_key(|&(worker, _)| !self.ledger.delivers(worker));
        let mut handouts: Vec<Handout> = Vec::new();
        let mut without: Vec<WorkerId> = Vec::new();
        for (worker, share) in wishes {
            match self.take(worker, share) {
                Some(handout) => handouts.push(handout),
                None => without.push(worker),
            }
        }
        for &worker in &without {
            let handout = self.take_from_others(worker, &without, now);
            // At most one second worker gets the same samples.
            let twin = handout.as_ref().and_then(|handout| handout.twin);
            let taken = |other: &Handout| twin.is_some() && other.twin == twin;
            handouts.extend(handout.filter(|_| !handouts.iter().any(taken)));
        }
        handouts.sort_by_key(|handout| handout.worker);
        // The staged contributions may be the last ones of an epoch.
        if !handouts.is_empty() || self.machine.has_staged() {
            if let Some(usual) = self.lateness.take() {
                self.machine.hear_lateness(usual, now);
            }
            self.machine.open_on(self.shards.fresh().clone(), handouts, now);
            self.fill_leases();
        }
    }

    /// Leases samples of the ledger to workers that hold fewer leases than they asked for: the shortest queues
    /// first, and of equal ones those of workers that delivered last time, which so get the returned samples.
    fn fill_leases(&mut self) {
        for level in 1..=self.leases.deepest() {
            let mut workers = self.leases.below(level);
            workers.sort_by_key(|&worker| !self.ledger.delivers(worker));
            for worker in workers {
                if let Some(lease) = self.ledger.lease(worker, self.batch) {
                    self.leases.push(worker, lease);
                }
            }
        }
    }

    /// The share of a whole portion for each of `workers`: as much as it computes in the time that the median
    /// worker takes for a whole one. Small differences are left to the cut.
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

    /// Samples for `worker`: its first lease, or from the ledger. Leases are always whole portions, for
    /// workers whose data loader makes batches of one size.
    fn take(&mut self, worker: WorkerId, share: f64) -> Option<Handout> {
        if let Some(lease) = self.leases.pop(worker, |epoch| self.ledger.may_begin(epoch)) {
            return Some(self.ledger.begin(worker, lease));
        }
        let share = if self.leases.has(worker) { 1.0 } else { share };
        let want = (share * f64::from(self.batch)).round().max(1.0) as u32;
        self.ledger.take(worker, want)
    }

    /// Samples for a `worker` that the ledger has none for: a lease of another worker, or those of an overdue
    /// contribution. The first leases of workers in `idle` are about to become work.
    fn take_from_others(
        &mut self,
        worker: WorkerId,
        idle: &[WorkerId],
        now: Time,
    ) -> Option<Handout> {
        if self.ledger.data_moves() {
            let may_begin = |epoch| self.ledger.may_begin(epoch);
            let typical = |worker| self.machine.policy().typical(worker);
            if let Some(lease) = self.leases.revoke(idle, may_begin, typical) {
                return Some(self.ledger.begin(worker, lease));
            }
        }
        self.machine.take_overdue(worker, now)
    }

    /// Enters the machine's decisions into the ledger and passes its events on.
    fn pump(&mut self) {
        for entry in self.machine.contributions_mut().take_entries() {
            self.ledger.enter(entry);
        }
        while let Some(event) = self.machine.poll_event() {
            match &event.kind {
                EventKind::Late { weight, .. } => self.ledger.count_dropped(*weight as u64),
                EventKind::Closed { .. } => drop(self.shards.update(|_| true, event.at)),
                _ => {}
            }
            self.events.push_back(event);
        }
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
        let pushes = self.pushes.iter().flat_map(PartialPushes::wakes);
        let is_known = |worker, id| self.contribution(worker, id).is_some();
        let pushes = pushes.filter(|&(worker, id, _)| is_known(worker, id));
        let push = pushes.map(|(.., at)| at).min();
        let wakes =
            [self.machine.next_wake(), self.shards.next_wake(), push, self.next_second_holder()];
        wakes.into_iter().flatten().min()
    }

    /// The next time at which samples of an overdue contribution may get another holder, between rounds.
    pub fn next_second_holder(&self) -> Option<Time> {
        let is_between = self.machine.phase() == Phase::Closed && self.shards.is_ready();
        self.machine.next_second_holder(self.advanced).filter(|_| is_between)
    }
}
