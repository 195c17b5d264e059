//! The round machine: Open → Cut → Closed, driven by the server, the simulator and the tests.
//!
//! A driver opens a round once the last update is published ([`RoundMachine::open`]), reports what
//! happens (`handle_*`), lets the machine decide ([`RoundMachine::decide`]) after a batch of
//! reports and at [`RoundMachine::next_wake`], and acts on [`RoundMachine::poll_event`].

mod cutting;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use crate::{
    Arrival, Blocks, Contribution, Event, EventKind, Late, LeaveReason, MachineError, Policy,
    Round, RunTime, StopReason, Straggler, Time, Version, Work, WorkerId,
    grace::Grace,
    noise::GradientNorm,
    roster::{Assignment, Roster},
    useless::Useless,
};

/// What a round is bound by, whatever the policy.
#[derive(Debug, Clone)]
pub struct RoundConfig {
    /// The least number of contributions that a round may close with, and of workers that must be
    /// live.
    pub quorum: usize,
    /// How long fewer live workers than the quorum are borne before the run stops.
    pub quorum_grace: Duration,
    /// The first round waits for this many workers.
    pub expected: usize,
    /// How long it waits for them; then those who are there begin, if they make a quorum.
    pub join_grace: Duration,
    /// What stragglers do.
    pub straggler: Straggler,
    /// What becomes of their work if they finish.
    pub late: Late,
    /// Micro-batches that a worker does in a round.
    pub micro_batches: u32,
    /// Samples of a whole portion; 0 where all portions are alike.
    pub batch: u32,
    /// Whether those who take longer are given less, so that they arrive with the others.
    pub rebalance: bool,
    /// Blocks in the model.
    pub blocks: u32,
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
            blocks: 1,
        }
    }
}

/// The life of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Contributions are coming.
    Open,
    /// It has stopped waiting; what stragglers have finished is admitted until then.
    Cut {
        /// The end of the grace.
        until: Time,
    },
    /// Membership is fixed. Also the state before the first round.
    Closed,
}

/// One run's rounds, one after the other.
pub struct RoundMachine {
    config: RoundConfig,
    policy: Box<dyn Policy>,
    roster: Roster,
    phase: Phase,
    begun: bool,
    cut_at: Time,
    /// By name.
    live: BTreeMap<WorkerId, String>,
    /// Work that closes took from workers who have not answered yet; what still comes of it is
    /// late.
    cancelled: BTreeMap<(WorkerId, Version), Assignment>,
    /// Admissible contributions that came between a close and the next opening.
    pending: Vec<Arrival>,
    grace: Grace,
    useless: Useless,
    wake: Wake,
    /// When the policy was asked in this round, and how many had arrived.
    asked: Vec<(Time, u32)>,
    quorum_short_since: Option<Time>,
    events: VecDeque<Event>,
}

/// When the policy wants to be asked again.
#[derive(Debug, Clone, Copy)]
struct Wake {
    at: Option<Time>,
    arrivals: usize,
}

impl RoundMachine {
    /// A machine whose first round is `first`, at time zero.
    pub fn new(config: RoundConfig, policy: Box<dyn Policy>, first: Round) -> Self {
        let lag = policy.admissible_lag();
        RoundMachine {
            roster: Roster::new(first, &config, lag),
            config,
            policy,
            phase: Phase::Closed,
            begun: false,
            cut_at: Time::ZERO,
            live: BTreeMap::new(),
            cancelled: BTreeMap::new(),
            pending: Vec::new(),
            grace: Grace::default(),
            useless: Useless::default(),
            wake: Wake { at: None, arrivals: 0 },
            asked: Vec::new(),
            quorum_short_since: Some(Time::ZERO),
            events: VecDeque::new(),
        }
    }

    /// The open round, or the next one to open.
    pub fn round(&self) -> Round {
        self.roster.round
    }

    /// Where the round is in its life.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Live workers, in order.
    pub fn live(&self) -> impl ExactSizeIterator<Item = WorkerId> + '_ {
        self.live.keys().copied()
    }

    /// The policy in force.
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// Whether admissible contributions wait for a round to open.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether stragglers are told to stop at a cut: not if they finish, nor if later rounds admit
    /// what they are at.
    pub fn stops_stragglers(&self) -> bool {
        self.config.straggler != Straggler::Finish && self.policy.admissible_lag() == 0
    }

    /// Live workers that have no work, in order; who will be in the next round with what came since
    /// the last close is not asked for more.
    pub fn idle(&self) -> Vec<WorkerId> {
        let waits = |worker| self.pending.iter().any(|a| a.contribution.worker == worker);
        self.live()
            .filter(|worker| !self.roster.working.contains_key(worker) && !waits(*worker))
            .collect()
    }

    /// Whether `worker` has work.
    pub fn is_working(&self, worker: WorkerId) -> bool {
        self.roster.working.contains_key(&worker)
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
        if self.live.contains_key(&worker) {
            return Err(MachineError::AlreadyLive(worker));
        }
        self.live.insert(worker, name.to_owned());
        self.ask_again();
        self.emit(now, EventKind::WorkerJoined { worker, name: name.to_owned() });
        Ok(())
    }

    /// A worker is gone. What it delivered stays; what it was working on will not come.
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
        self.roster.working.remove(&worker);
        self.cancelled.retain(|&(owner, _), _| owner != worker);
        self.useless.forget(worker);
        self.pending.retain(|arrival| arrival.contribution.worker != worker);
        self.ask_again();
        self.emit(now, EventKind::WorkerLeft { worker, why });
        Ok(())
    }

    /// A worker says what it is about to push: at the cut that is worth waiting for, whether or not it
    /// told of its progress.
    pub(crate) fn note_done(&mut self, contribution: &Contribution) {
        let &Contribution { worker, base, weight, .. } = contribution;
        let parts = f64::from(self.config.micro_batches);
        let current = |work: &&mut Assignment| work.base == base;
        if let Some(work) = self.roster.working.get_mut(&worker).filter(current) {
            let done = (weight / f64::from(work.samples.max(1)) * parts).ceil() as u32;
            work.said = done.max(1);
        }
    }

    /// The round must not be cut before this work has arrived.
    pub(crate) fn wait_for(&mut self, worker: WorkerId, base: Version) {
        let current = |work: &&mut Assignment| work.base == base;
        if let Some(work) = self.roster.working.get_mut(&worker).filter(current) {
            work.waited_for = true;
        }
    }

    /// A worker has finished some of its micro-batches.
    pub fn handle_progress(&mut self, worker: WorkerId, base: Version, done: u32, now: Time) {
        self.catch_up(now);
        let done = done.min(self.config.micro_batches);
        let current = |work: &&mut Assignment| work.base == base && work.done < done;
        let Some(work) = self.roster.working.get_mut(&worker).filter(current) else { return };
        (work.done, work.done_at) = (done, now);
        work.first.get_or_insert((done, now));
        if self.config.straggler == Straggler::Salvage {
            self.emit(now, EventKind::Progress { worker, base, done });
        }
    }

    /// A straggler stopped after `done` micro-batches: its round has closed without it, or will.
    pub fn handle_aborted(
        &mut self,
        worker: WorkerId,
        base: Version,
        done: u32,
        now: Time,
    ) -> Result<(), MachineError> {
        self.catch_up(now);
        if let Some(cut) = self.work_of(worker, base)?.cut {
            self.grace.answered(now.since(cut));
        }
        match self.phase {
            Phase::Open if base == self.roster.round.base() => {
                return Err(MachineError::NotCut { worker, base });
            }
            // The close takes its work, and knows its run-time as censored.
            Phase::Cut { .. } if base == self.roster.round.base() => {
                self.roster.stop(worker);
                self.emit(now, EventKind::Aborted { base, worker, done });
                return Ok(());
            }
            Phase::Open | Phase::Cut { .. } | Phase::Closed => {}
        }
        if self.end_work(worker, base) {
            self.ask_again();
        }
        self.emit(now, EventKind::Aborted { base, worker, done });
        Ok(())
    }

    /// A contribution is complete, on every shard or on as many as are waited for. It is accepted or
    /// it is late; the event says which.
    pub fn handle_arrival(
        &mut self,
        contribution: Contribution,
        now: Time,
    ) -> Result<(), MachineError> {
        self.catch_up(now);
        let given = self.check(&contribution)?;
        let Contribution { worker, base, weight, .. } = contribution;
        let share = weight / f64::from(given.samples);
        let in_time = self.end_work(worker, base);
        let elapsed = now.since(given.started);
        // A part of the work says only that the whole takes longer.
        let run_time = match weight < f64::from(given.samples) {
            true => RunTime::Censored { at_least: elapsed },
            false => RunTime::Observed(elapsed),
        };
        let cut = matches!(self.phase, Phase::Cut { .. }).then_some(self.cut_at);
        if let Some(cut) = given.cut.or(cut) {
            self.grace.answered(now.since(cut));
        }
        let fresh = base >= self.roster.oldest_admissible();
        if !fresh {
            let load = self.roster.view(now).load(f64::from(given.samples));
            self.policy.late(worker, base, run_time, load);
        }
        if !in_time || !(fresh || self.config.late == Late::Fold) {
            self.emit(now, EventKind::Late { base, worker, weight, run_time });
            return Ok(());
        }
        let arrival = Arrival { contribution, at: now, run_time, share, worth: given.worth };
        match self.phase {
            Phase::Closed => self.pending.push(arrival),
            Phase::Open | Phase::Cut { .. } => {
                self.accept(arrival, now);
                if given.waited_for {
                    self.wake.arrivals = 0;
                }
            }
        }
        Ok(())
    }

    /// What the contribution comes of, if what is said of it can be.
    pub(crate) fn check(&self, contribution: &Contribution) -> Result<Assignment, MachineError> {
        let &Contribution { worker, base, weight, loss, .. } = contribution;
        let given = self.work_of(worker, base)?;
        if !(weight > 0.0 && weight <= f64::from(given.samples)) {
            return Err(MachineError::BadWeight { worker, weight, samples: given.samples });
        }
        if !loss.is_finite() {
            return Err(MachineError::BadLoss { worker, loss });
        }
        match contribution.square {
            Some(square) if !(square >= 0.0 && square.is_finite()) => {
                return Err(MachineError::BadSquare { worker, square });
            }
            _ => {}
        }
        Ok(given)
    }

    /// More blocks of a contribution that was accepted before it was whole have come. Returns what of it
    /// counts, if its round is not closed yet.
    pub(crate) fn extend(&mut self, worker: WorkerId, base: Version, more: &Blocks) -> Option<f64> {
        if self.phase == Phase::Closed {
            return None;
        }
        let of = |arrival: &&mut Arrival| {
            let Contribution { worker: owner, base: from, .. } = arrival.contribution;
            (owner, from) == (worker, base)
        };
        let arrival = self.roster.arrivals.iter_mut().find(of)?;
        arrival.contribution.blocks.extend(more);
        Some(arrival.worth)
    }

    /// What `worker` was given to compute from `base`: its present work, or what a close took.
    pub fn work_of(&self, worker: WorkerId, base: Version) -> Result<Assignment, MachineError> {
        // Who has work is live; this is asked for every part of every contribution.
        let present = self.roster.working.get(&worker).filter(|work| work.base == base);
        if let Some(work) = present.or_else(|| self.cancelled.get(&(worker, base))) {
            return Ok(*work);
        }
        Err(match self.live.contains_key(&worker) {
            true => MachineError::NotWorking { worker, base },
            false => MachineError::Unknown(worker),
        })
    }

    /// The oldest version that something may still come of.
    pub(crate) fn oldest_base(&self) -> Version {
        let working = self.roster.working.values().map(|work| work.base);
        let cancelled = self.cancelled.keys().map(|&(_, base)| base);
        working.chain(cancelled).min().unwrap_or(self.roster.round.base())
    }

    /// Nothing more comes of this work; says whether no close had taken it.
    fn end_work(&mut self, worker: WorkerId, base: Version) -> bool {
        let present = self.roster.working.get(&worker).is_some_and(|work| work.base == base);
        match present {
            true => self.roster.working.remove(&worker),
            false => self.cancelled.remove(&(worker, base)),
        };
        present
    }

    /// `worker` speaks of `base`: it will say no more of what it was given before.
    pub fn forget_before(&mut self, worker: WorkerId, base: Version) {
        let older = (worker, Version(0))..(worker, base);
        self.cancelled.extract_if(older, |_, _| true).for_each(drop);
    }

    fn accept(&mut self, arrival: Arrival, now: Time) {
        let Contribution { worker, base, weight, loss, ref blocks, .. } = arrival.contribution;
        let (round, run_time, blocks) = (self.roster.round, arrival.run_time, blocks.clone());
        let mut share = arrival.worth;
        if base >= self.roster.oldest_admissible() {
            self.roster.arrivals.push(arrival);
            self.wake.arrivals = self.wake.arrivals.saturating_sub(1);
        } else {
            share *= Late::share(round.base().0 - base.0);
            self.roster.folded.push((arrival.contribution, share));
        }
        let arrived =
            EventKind::Arrived { round, base, worker, weight, share, loss, run_time, blocks };
        self.emit(now, arrived);
    }

    /// Whether the next round may open: the last is closed, enough workers are live, one is idle.
    pub fn can_open(&self, now: Time) -> bool {
        let enough = self.live.len() >= self.config.quorum.max(1);
        let begun = self.begun
            || self.live.len() >= self.config.expected
            || now >= Time::ZERO + self.config.join_grace;
        // Looks through the workers, so it is asked last.
        let anyone = || {
            !self.pending.is_empty()
                || self.live.keys().any(|worker| !self.roster.working.contains_key(worker))
        };
        self.phase == Phase::Closed && enough && begun && anyone()
    }

    /// Opens the next round, its version being published: `work` is who computes which samples.
    ///
    /// # Panics
    /// If the last round is not closed, or somebody in `work` is not idle.
    pub fn open(&mut self, work: Vec<Work>, now: Time) {
        assert_eq!(self.phase, Phase::Closed, "a round opens when the last is closed");
        self.begun = true;
        self.phase = Phase::Open;
        self.roster.opened = now;
        self.roster.arrivals.clear();
        self.roster.folded.clear();
        self.ask_again();
        for work in &work {
            self.give(work, now);
        }
        self.emit(now, EventKind::RoundStarted { round: self.roster.round, work });
        for arrival in std::mem::take(&mut self.pending) {
            self.accept(arrival, now);
        }
    }

    /// Idle workers that the open round cannot do without: it has fewer participants than its
    /// quorum. A worker that has arrived in it is not asked twice.
    pub fn wanted(&self) -> Vec<WorkerId> {
        if self.phase != Phase::Open {
            return Vec::new();
        }
        // Asked after every arrival: counts no further than the quorum.
        let missing = self.config.quorum.max(1).saturating_sub(self.roster.arrivals.len());
        if self.roster.outstanding().take(missing).count() == missing {
            return Vec::new();
        }
        self.idle().into_iter().filter(|&worker| !self.roster.holds(worker)).collect()
    }

    /// Gives a wanted worker work in the open round; its run-time counts from now.
    ///
    /// # Panics
    /// If no round is open, or the worker is not idle.
    pub fn enlist(&mut self, work: Work, now: Time) {
        assert_eq!(self.phase, Phase::Open, "only an open round takes workers");
        self.give(&work, now);
        self.ask_again();
        self.emit(now, EventKind::Enlisted { round: self.roster.round, work });
    }

    fn give(&mut self, work: &Work, now: Time) {
        let worker = work.worker;
        let assignment = Assignment {
            base: self.roster.round.base(),
            started: now,
            samples: work.portion.len(),
            done: 0,
            done_at: now,
            first: None,
            said: 0,
            stopped: false,
            waited_for: work.waited_for,
            worth: work.worth,
            cut: None,
        };
        assert!(self.live.contains_key(&worker), "{worker} is not live");
        let before = self.roster.working.insert(worker, assignment);
        assert!(before.is_none(), "{worker} is not idle");
    }

    /// The closed round's contributions, late ones included, with their norms; nothing if any is not known,
    /// is of an older version without being late, or is weighed for another reason.
    pub(crate) fn parts(&self) -> Vec<GradientNorm> {
        let part = |contribution: &Contribution, worth| {
            let square = contribution.square?;
            Some(GradientNorm { samples: contribution.weight, worth, square })
        };
        let fresh = self.roster.arrivals.iter().map(|Arrival { contribution, worth, .. }| {
            let plain = contribution.base.next() == self.roster.round.base() && *worth == 1.0;
            part(contribution, 1.0).filter(|_| plain)
        });
        let folded = self.roster.folded.iter().map(|(late, worth)| part(late, *worth));
        fresh.chain(folded).collect::<Option<_>>().unwrap_or_default()
    }

    /// The policy hears of the noise scale.
    pub fn hear_noise(&mut self, scale: f64) {
        self.policy.noise(scale);
    }

    /// Everything that was decided has been carried out: if a round is open, its workers are busy,
    /// and the policy may think.
    pub fn study(&mut self) {
        if matches!(self.phase, Phase::Open) {
            self.policy.study();
        }
    }

    /// The next moment at which [`Self::decide`] must be called even if nothing happens.
    pub fn next_wake(&self) -> Option<Time> {
        let round = match self.phase {
            // With nobody to wait for there is nothing to ask: the quorum is short.
            Phase::Open => self.wake.at.filter(|_| self.roster.outstanding().next().is_some()),
            Phase::Cut { until } => Some(until),
            Phase::Closed => None,
        };
        let join =
            (!self.begun && !self.live.is_empty()).then_some(Time::ZERO + self.config.join_grace);
        [round, join, self.quorum_deadline()].into_iter().flatten().min()
    }

    /// Why the run must stop, once the quorum has been short for longer than the grace.
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

    fn ask_again(&mut self) {
        self.wake = Wake { at: None, arrivals: 0 };
    }

    fn emit(&mut self, at: Time, kind: EventKind) {
        self.events.push_back(Event { at, kind });
    }
}
