//! The round machine: Open → Cut → Closed, driven by the server, the simulator and the tests.
//!
//! A driver opens a round once the last update is published ([`RoundMachine::open`]) and reports events
//! (`handle_*`). It lets the machine decide ([`RoundMachine::decide`]) after a batch of reports and at
//! [`RoundMachine::next_wake`], and acts on [`RoundMachine::poll_event`].

mod cutting;
mod overdue;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use crate::{
    Announcement, Arrival, Blocks, Contribution, ContributionId, Event, EventKind, Handout, Late,
    LeaveReason, MachineError, Policy, Round, RunTime, ShardId, State, StopReason, Straggler, Time,
    WorkerId, contributions::Contributions, grace::Grace, noise::GradientNorm, patience::Patience,
    roster::Terms, useless::Useless, wait::Wait,
};

/// Settings of a round that hold for every policy.
#[derive(Debug, Clone)]
pub struct RoundConfig {
    /// The least number of contributions that a round may close with, and of workers that must be
    /// live.
    pub quorum: usize,
    /// How long the run may stay below the quorum before it stops.
    pub quorum_grace: Duration,
    /// The first round waits for this many workers.
    pub expected: usize,
    /// How long it waits for them. Then the workers that are there begin, if they make a quorum.
    pub join_grace: Duration,
    /// What stragglers do at the cut.
    pub straggler: Straggler,
    /// The treatment of late contributions, if stragglers finish.
    pub late: Late,
    /// Micro-batches of a worker per round.
    pub micro_batches: u32,
    /// Samples of a whole portion; 0 where all portions are equal.
    pub batch: u32,
    /// Whether slower workers are given fewer samples, so that they arrive with the others.
    pub rebalance: bool,
}

impl Default for RoundConfig {
    fn default() -> Self {
        RoundConfig {
            quorum: 1,
            quorum_grace: Duration::from_secs(10),
            expected: 1,
            join_grace: Duration::from_secs(60),
            straggler: Straggler::Abort,
            late: Late::Drop,
            micro_batches: 1,
            batch: 0,
            rebalance: false,
        }
    }
}

impl RoundConfig {
    /// Micro-batches of a contribution that count one by one; 1 where it counts only as a whole.
    fn parts(&self) -> u32 {
        if self.straggler.counts_parts() { self.micro_batches.max(1) } else { 1 }
    }
}

/// The phases of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Contributions are arriving.
    Open,
    /// The round has stopped waiting. Finished work of stragglers is admitted until the end of the grace.
    Cut {
        /// The end of the grace.
        until: Time,
    },
    /// Membership is fixed. Also the state before the first round.
    Closed,
}

/// The rounds of one run, one after the other.
pub struct RoundMachine {
    config: RoundConfig,
    /// Blocks in the model, where contributions count on some of them.
    blocks: u32,
    wait: Wait,
    phase: Phase,
    begun: bool,
    cut_at: Time,
    /// Names of the live workers.
    live: BTreeMap<WorkerId, String>,
    /// Micro-batches of workers that split their batches otherwise than the configuration says.
    splits: BTreeMap<WorkerId, u32>,
    /// The shards of the open round.
    shards: Arc<BTreeSet<ShardId>>,
    grace: Grace,
    patience: Patience,
    /// When to look for contributions that have become overdue.
    overdue_check: Option<Time>,
    useless: Useless,
    quorum_short_since: Option<Time>,
    events: VecDeque<Event>,
}

impl RoundMachine {
    /// A machine whose first round is `first`, at time zero.
    pub fn new(config: RoundConfig, policy: Box<dyn Policy>, first: Round) -> Self {
        let terms = Terms {
            quorum: config.quorum,
            partial: config.parts(),
            micro_batches: config.micro_batches.max(1),
            batch: config.batch,
            lag: policy.admissible_lag(),
        };
        RoundMachine {
            patience: Patience::default(),
            overdue_check: None,
            config,
            blocks: 1,
            wait: Wait::new(policy, first, terms),
            phase: Phase::Closed,
            begun: false,
            cut_at: Time::ZERO,
            live: BTreeMap::new(),
            splits: BTreeMap::new(),
            shards: Arc::default(),
            grace: Grace::default(),
            useless: Useless::default(),
            quorum_short_since: Some(Time::ZERO),
            events: VecDeque::new(),
        }
    }

    /// For runs in which each sample is bound to one worker.
    pub(crate) fn with_homes(self) -> Self {
        RoundMachine { patience: Patience::at_home(), ..self }
    }

    /// The same, where contributions count on some of so many `blocks`.
    pub(crate) fn with_blocks(self, blocks: u32) -> Self {
        RoundMachine { blocks, ..self }
    }

    /// The open round, or the next one to open.
    pub fn round(&self) -> Round {
        self.wait.roster.round
    }

    /// The phase of the round.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Live workers, in order.
    pub fn live(&self) -> impl ExactSizeIterator<Item = WorkerId> + '_ {
        self.live.keys().copied()
    }

    /// The policy.
    pub fn policy(&self) -> &dyn Policy {
        self.wait.policy()
    }

    /// Whether complete contributions wait for a round to open.
    pub fn has_staged(&self) -> bool {
        self.contributions().has_staged()
    }

    /// Whether stragglers are told to stop at a cut. They are not if they finish, or if later rounds admit
    /// their work.
    pub fn stops_stragglers(&self) -> bool {
        !self.config.straggler.keeps_work() && self.wait.roster.lag() == 0
    }

    /// Live workers that have no work, in order. A worker whose contribution already counts for the
    /// next round gets no new work.
    pub fn idle(&self) -> Vec<WorkerId> {
        let contributions = self.contributions();
        let is_idle = |w: &WorkerId| !contributions.is_working(*w) && !contributions.waits(*w);
        self.live().filter(is_idle).collect()
    }

    /// Whether `worker` has work.
    pub fn is_working(&self, worker: WorkerId) -> bool {
        self.contributions().is_working(worker)
    }

    pub(crate) fn contributions(&self) -> &Contributions {
        &self.wait.roster.contributions
    }

    pub(crate) fn contributions_mut(&mut self) -> &mut Contributions {
        &mut self.wait.roster.contributions
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

    /// Micro-batches in which the next round's batches are expected: of the workers that split theirs the
    /// finest.
    fn expect_parts(&mut self) {
        let parts = self.live.keys().map(|worker| self.splits.get(worker).copied());
        let finest = parts.map(|parts| parts.unwrap_or(self.config.parts())).max();
        self.wait.roster.expect_parts(finest.unwrap_or(self.config.parts()));
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

    fn check_live(&self, worker: WorkerId) -> Result<(), MachineError> {
        match self.live.contains_key(&worker) {
            true => Ok(()),
            false => Err(MachineError::Unknown(worker)),
        }
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

    /// The work of `worker`: its current work, or the last that a close took.
    pub fn work_of(
        &self,
        worker: WorkerId,
        id: ContributionId,
    ) -> Result<&Contribution, MachineError> {
        self.check_live(worker)?;
        self.contributions().get(worker, id).ok_or(MachineError::NotGiven { worker, id })
    }

    fn accept(&mut self, mut contribution: Contribution, arrival: Arrival, now: Time) {
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

    /// Whether the next round may open: the last is closed, enough workers are live, one is idle.
    pub fn can_open(&self, now: Time) -> bool {
        let enough = self.live.len() >= self.config.quorum.max(1);
        let begun = self.begun
            || self.live.len() >= self.config.expected
            || now >= Time::ZERO + self.config.join_grace;
        // Scans the workers, so it is evaluated last.
        let anyone =
            || self.has_staged() || self.live.keys().any(|worker| !self.is_working(*worker));
        self.phase == Phase::Closed && enough && begun && anyone()
    }

    /// Opens the next round, once its version is published, without naming shards. Returns the contributions,
    /// in the order of `handouts`.
    ///
    /// # Panics
    /// If the last round is not closed, or a worker in `handouts` is not idle.
    pub fn open(&mut self, handouts: Vec<Handout>, now: Time) -> Vec<ContributionId> {
        self.open_on(BTreeSet::new(), handouts, now)
    }

    /// [`Self::open`] on these `shards`.
    pub(crate) fn open_on(
        &mut self,
        shards: BTreeSet<ShardId>,
        handouts: Vec<Handout>,
        now: Time,
    ) -> Vec<ContributionId> {
        assert_eq!(self.phase, Phase::Closed, "a round opens when the last is closed");
        self.begun = true;
        self.phase = Phase::Open;
        if *self.shards != shards {
            self.shards = Arc::new(shards);
        }
        self.expect_parts();
        self.wait.open(now);
        let work: Vec<_> = handouts.into_iter().map(|handout| self.give(handout, now)).collect();
        let ids = work.iter().map(|work| work.id).collect();
        self.emit(now, EventKind::RoundStarted { round: self.round(), work });
        for (contribution, arrival) in self.contributions_mut().take_staged() {
            self.accept(contribution, arrival, now);
        }
        self.plan_overdue_check();
        ids
    }

    /// Idle workers that the open round needs: it has fewer participants than its quorum. A worker that has
    /// arrived in it is not asked twice.
    pub fn wanted(&self) -> Vec<WorkerId> {
        if self.phase != Phase::Open {
            return Vec::new();
        }
        let roster = &self.wait.roster;
        // Called after every arrival, so it counts no further than the quorum.
        let missing = self.config.quorum.max(1).saturating_sub(roster.arrivals.len());
        if roster.outstanding().filter(|work| !work.overdue).take(missing).count() == missing {
            return Vec::new();
        }
        let members = roster.members();
        self.idle().into_iter().filter(|worker| !members.contains(worker)).collect()
    }

    /// Gives a wanted worker work in the open round; its run-time counts from now.
    ///
    /// # Panics
    /// If no round is open, or the worker is not idle.
    pub fn enlist(&mut self, handout: Handout, now: Time) {
        assert_eq!(self.phase, Phase::Open, "only an open round takes workers");
        let work = self.give(handout, now);
        self.wait.ask_again();
        self.emit(now, EventKind::Enlisted { round: self.round(), work });
    }

    fn give(&mut self, handout: Handout, now: Time) -> crate::Work {
        let worker = handout.worker;
        assert!(self.live.contains_key(&worker), "{worker} is not live");
        let (base, shards) = (self.round().base(), Arc::clone(&self.shards));
        self.contributions_mut().give(handout, base, &shards, now)
    }

    /// The norms of the closed round's contributions, late ones included. Empty if any norm is unknown, or if
    /// a contribution is from an older version without being late or is weighted for another reason.
    pub(crate) fn norms(&self) -> Vec<GradientNorm> {
        let norm = |contribution: &Contribution| {
            let Announcement { weight, square, .. } = *contribution.announcement()?;
            let plain =
                contribution.base.next() == self.round().base() && contribution.counts == 1.0;
            let worth = if contribution.folded { contribution.counts } else { 1.0 };
            let norm = GradientNorm { samples: weight, worth, square: square? };
            (plain || contribution.folded).then_some(norm)
        };
        self.contributions().accepted().iter().map(norm).collect::<Option<_>>().unwrap_or_default()
    }

    /// Passes the noise scale to the policy.
    pub fn hear_noise(&mut self, scale: f64) {
        self.wait.policy_mut().noise(scale);
    }

    /// Passes the usual lateness of the system's timers to the policy.
    pub fn hear_lateness(&mut self, usual: Duration, now: Time) {
        self.wait.policy_mut().lateness(usual);
        self.emit(now, EventKind::TimersLate { usual });
    }

    /// All decisions have been carried out. If a round is open, its workers are busy, and the policy may
    /// learn.
    pub fn study(&mut self) {
        if matches!(self.phase, Phase::Open) {
            self.wait.policy_mut().study();
        }
    }

    /// The next moment at which [`Self::decide`] must be called even if nothing happens.
    pub fn next_wake(&self) -> Option<Time> {
        let round = match self.phase {
            Phase::Open => self.wait.next_wake(),
            Phase::Cut { until } => Some(until),
            Phase::Closed => None,
        };
        let join =
            (!self.begun && !self.live.is_empty()).then_some(Time::ZERO + self.config.join_grace);
        let wakes = [round, join, self.quorum_deadline(), self.next_overdue()];
        wakes.into_iter().flatten().min()
    }

    /// The reason to stop, once the run has been below the quorum for longer than the grace.
    pub fn quorum_lost(&self, now: Time) -> Option<StopReason> {
        let grace = self.quorum_grace();
        self.quorum_deadline().filter(|&deadline| now >= deadline).map(|_| StopReason::QuorumLost {
            live: self.live.len() as u32,
            quorum: self.config.quorum.max(1) as u32,
            grace,
        })
    }

    fn quorum_deadline(&self) -> Option<Time> {
        self.quorum_short_since.map(|since| since + self.quorum_grace())
    }

    fn quorum_grace(&self) -> Duration {
        match self.begun {
            true => self.config.quorum_grace,
            false => self.config.join_grace,
        }
    }

    fn watch_quorum(&mut self, now: Time) {
        let short = self.live.len() < self.config.quorum.max(1);
        self.quorum_short_since = short.then(|| self.quorum_short_since.unwrap_or(now));
    }

    fn emit(&mut self, at: Time, kind: EventKind) {
        self.events.push_back(Event { at, kind });
    }
}
