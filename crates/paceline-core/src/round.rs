//! The round machine: Open → Cut → Closed, driven by the server, the simulator and the tests.
//!
//! A driver opens a round once the last update is published ([`RoundMachine::open`]) and reports events
//! (`handle_*`). It lets the machine decide ([`RoundMachine::decide`]) after a batch of reports and at
//! [`RoundMachine::next_wake`], and acts on [`RoundMachine::poll_event`].

mod cutting;
mod overdue;
mod reports;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use crate::{
    Announcement, Contribution, ContributionId, Event, EventKind, Handout, Late, MachineError,
    Policy, Round, ShardId, StopReason, Straggler, Time, WorkerId, contributions::Contributions,
    grace::Grace, noise::GradientNorm, patience::Patience, quorum::QuorumWatch, roster::Terms,
    useless::Useless, wait::Wait,
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
    cut_at: Time,
    /// Names of the live workers.
    live: BTreeMap<WorkerId, String>,
    /// Micro-batches of workers that split their batches otherwise than the configuration says.
    splits: BTreeMap<WorkerId, u32>,
    /// The shards of the open round.
    shards: Arc<BTreeSet<ShardId>>,
    quorum: QuorumWatch,
    grace: Grace,
    patience: Patience,
    /// When to look for contributions that have become overdue.
    overdue_check: Option<Time>,
    useless: Useless,
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
            quorum: QuorumWatch::new(&config),
            patience: Patience::default(),
            overdue_check: None,
            config,
            blocks: 1,
            wait: Wait::new(policy, first, terms),
            phase: Phase::Closed,
            cut_at: Time::ZERO,
            live: BTreeMap::new(),
            splits: BTreeMap::new(),
            shards: Arc::default(),
            grace: Grace::default(),
            useless: Useless::default(),
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

    /// The work of `worker`: its current work, or the last that a close took.
    pub fn work_of(
        &self,
        worker: WorkerId,
        id: ContributionId,
    ) -> Result<&Contribution, MachineError> {
        self.check_live(worker)?;
        self.contributions().get(worker, id).ok_or(MachineError::NotGiven { worker, id })
    }

    fn check_live(&self, worker: WorkerId) -> Result<(), MachineError> {
        match self.live.contains_key(&worker) {
            true => Ok(()),
            false => Err(MachineError::Unknown(worker)),
        }
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

    /// Micro-batches in which the next round's batches are expected: of the workers that split theirs the
    /// finest.
    fn expect_parts(&mut self) {
        let parts = self.live.keys().map(|worker| self.splits.get(worker).copied());
        let finest = parts.map(|parts| parts.unwrap_or(self.config.parts())).max();
        self.wait.roster.expect_parts(finest.unwrap_or(self.config.parts()));
    }

    /// Whether the next round may open: the last is closed, enough workers are live, one is idle.
    pub fn can_open(&self, now: Time) -> bool {
        let enough = self.quorum.is_enough(self.live.len(), now);
        // Scans the workers, so it is evaluated last.
        let anyone =
            || self.has_staged() || self.live.keys().any(|worker| !self.is_working(*worker));
        self.phase == Phase::Closed && enough && anyone()
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
        self.quorum.opened();
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
        let wakes = [round, self.quorum.next_wake(self.live.len()), self.next_overdue()];
        wakes.into_iter().flatten().min()
    }

    /// The reason to stop, once the run has been below the quorum for longer than the grace.
    pub fn quorum_lost(&self, now: Time) -> Option<StopReason> {
        self.quorum.lost(self.live.len(), now)
    }

    fn emit(&mut self, at: Time, kind: EventKind) {
        self.events.push_back(Event { at, kind });
    }
}
