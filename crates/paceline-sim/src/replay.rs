//! Replays the run-times of a [`World`] under a policy, with the production round machine.

use std::{cmp::Reverse, collections::BinaryHeap};

use paceline_core::{
    Announcement, ContributionId, CutReason, EventKind, Handout, LeaveReason, Phase, Policy, Round,
    RoundConfig, RoundMachine, SampleRange, Straggler, Time, WorkerId,
};

use crate::{
    timed::{Cost, Timed},
    turns::Turns,
    world::{World, comings_and_goings},
};

/// How run-times are replayed.
///
/// A run-time belongs to its round: an aborted worker starts the next round afresh, a finishing one
/// is busy into it. A lower bound in a trace is taken for the run-time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Replay {
    /// What workers past the cut do.
    pub straggler: Straggler,
    /// Seconds between a close and the next opening.
    pub overhead: f64,
    /// Least contributions of a round.
    pub quorum: usize,
}

impl Default for Replay {
    /// Strict censoring, no overhead.
    fn default() -> Self {
        Replay { straggler: Straggler::Abort, overhead: 0.0, quorum: 1 }
    }
}

/// One replayed round.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundOutcome {
    /// Contributions, each weighted by the accepted share of its work.
    pub accepted: f64,
    /// The workers that contributed, in order.
    pub members: Vec<WorkerId>,
    /// From opening to close.
    pub seconds: f64,
    /// Why the round was cut.
    pub reason: CutReason,
    /// The prediction that the policy trusted.
    pub trusts: Option<String>,
}

/// The outcome of a replay.
#[derive(Debug, Clone)]
pub struct ReplayOutcome {
    /// Its rounds.
    pub rounds: Vec<RoundOutcome>,
    /// The CPU time of decisions.
    pub cost: Cost,
}

impl ReplayOutcome {
    /// Contributions per second over the whole replay.
    pub fn rate(&self, overhead: f64) -> f64 {
        let accepted: f64 = self.rounds.iter().map(|r| r.accepted).sum();
        let seconds: f64 = self.rounds.iter().map(|r| r.seconds + overhead).sum();
        if seconds > 0.0 { accepted / seconds } else { 0.0 }
    }
}

impl Replay {
    /// Replays `rounds` rounds of `world`. Rounds without workers are left out.
    pub fn run(
        &self,
        world: &mut dyn World,
        rounds: usize,
        policy: Box<dyn Policy>,
    ) -> ReplayOutcome {
        let world = Turns::new(world, policy.as_ref());
        let workers = world.workers();
        let (policy, cost) = Timed::new(policy);
        let config = RoundConfig {
            quorum: self.quorum,
            straggler: self.straggler,
            micro_batches: world.micro_batches() as u32,
            ..RoundConfig::default()
        };
        let mut driver = ReplayDriver {
            world,
            straggler: self.straggler,
            machine: RoundMachine::new(config, Box::new(policy), Round(0)),
            busy: BinaryHeap::new(),
            given: vec![ContributionId::default(); workers],
            now: Time::ZERO,
            closed: None,
        };
        let mut outcomes = Vec::with_capacity(rounds);
        let mut seconds = 0.0;
        for _ in 0..rounds {
            driver.world.next_round(seconds);
            let before = driver.now;
            outcomes.extend(driver.round());
            driver.now += Time::span(self.overhead);
            seconds = driver.now.since(before).as_secs_f64();
        }
        let cost = cost.lock().expect("nobody panicked with it").clone();
        ReplayOutcome { rounds: outcomes, cost }
    }
}

/// Drives the round machine, with the workers' computations under way.
struct ReplayDriver<'a> {
    world: Turns<'a>,
    straggler: Straggler,
    machine: RoundMachine,
    /// When each contribution in the making will be done.
    busy: BinaryHeap<Reverse<(Time, WorkerId, ContributionId)>>,
    /// What each worker was given last.
    given: Vec<ContributionId>,
    now: Time,
    closed: Option<RoundOutcome>,
}

impl ReplayDriver<'_> {
    fn round(&mut self) -> Option<RoundOutcome> {
        self.attend();
        self.deliver();
        // All workers may still be busy with a round that was cut.
        while !self.machine.can_open(self.now) {
            let Reverse((at, ..)) = self.busy.peek()?;
            self.now = *at;
            self.deliver();
        }
        let range = SampleRange { epoch: 0, start: 0, end: self.world.micro_batches() as u32 };
        let idle = self.machine.idle();
        let handouts = idle.iter().map(|&worker| Handout::new(worker, range)).collect();
        let ids = self.machine.open(handouts, self.now);
        for (worker, id) in idle.into_iter().zip(ids) {
            let seconds = self.world.take(worker.0 as usize).expect("a live worker has run-times");
            self.busy.push(Reverse((self.now + Time::span(seconds), worker, id)));
            self.given[worker.0 as usize] = id;
        }
        let opened = self.now;
        self.decide(opened);
        self.machine.study();
        while self.machine.phase() != Phase::Closed {
            let arrival = self.busy.peek().map(|Reverse((at, ..))| *at);
            let next = [arrival, self.machine.next_wake()].into_iter().flatten().min();
            self.now = next.expect("a worker computes or the policy wakes").max(self.now);
            self.deliver();
            self.decide(opened);
        }
        // Work that the close took from stragglers never arrives.
        self.busy.retain(|Reverse((_, worker, ..))| self.machine.is_working(*worker));
        self.closed.take()
    }

    /// Makes exactly the workers that are present in this round live.
    fn attend(&mut self) {
        for (worker, comes) in comings_and_goings(&self.world, self.machine.live()) {
            let told = match comes {
                true => self.machine.handle_join(worker, "", self.now),
                false => self.machine.handle_leave(worker, LeaveReason::Disconnected, self.now),
            };
            told.expect("it was live, or was not");
        }
    }

    /// Hands finished contributions to the machine.
    fn deliver(&mut self) {
        while let Some(&Reverse((at, worker, id))) = self.busy.peek()
            && at <= self.now
        {
            self.busy.pop();
            // A worker that left meanwhile delivers nothing.
            if let Ok(given) = self.machine.work_of(worker, id) {
                self.contribute(worker, id, f64::from(given.samples), at);
            }
        }
    }

    fn contribute(&mut self, worker: WorkerId, id: ContributionId, weight: f64, at: Time) {
        let announcement = Announcement { id, weight, loss: None, square: None };
        self.machine.handle_arrival(worker, announcement, at).expect("it was given that work");
    }

    fn decide(&mut self, opened: Time) {
        self.report_progress(opened);
        self.machine.decide(self.now);
        let (mut cut, mut trusted) = (CutReason::AllArrived, None);
        while let Some(event) = self.machine.poll_event() {
            match event.kind {
                EventKind::Cut { reason, trusts, stragglers, .. } => {
                    (cut, trusted) = (reason, trusts);
                    if self.straggler.counts_parts() {
                        self.salvage(&stragglers, opened);
                    }
                }
                EventKind::Closed { closes, .. } => {
                    let members: Vec<(WorkerId, f64)> =
                        closes.into_iter().flat_map(|close| close.members).collect();
                    let weight: f64 = members.iter().map(|(_, weight)| weight).sum();
                    self.closed = Some(RoundOutcome {
                        accepted: weight / self.world.micro_batches() as f64,
                        members: members.into_iter().map(|(worker, _)| worker).collect(),
                        seconds: event.at.since(opened).as_secs_f64(),
                        reason: cut,
                        trusts: trusted.take(),
                    });
                }
                _ => {}
            }
        }
    }

    /// Reports finished micro-batches, if stragglers are salvaged.
    fn report_progress(&mut self, opened: Time) {
        if !self.straggler.counts_parts() {
            return;
        }
        let elapsed = self.now.since(opened).as_secs_f64();
        for worker in 0..self.world.workers() {
            if let Some(ends) = self.world.micro_ends(worker) {
                let done = ends.partition_point(|&end| end <= elapsed) as u32;
                if let Some(last) = (done as usize).checked_sub(1) {
                    let at = opened + Time::span(ends[last]);
                    let id = self.given[worker];
                    self.machine.handle_progress(WorkerId(worker as u32), id, done, at);
                }
            }
        }
    }

    /// Stragglers contribute the micro-batches that they have finished.
    fn salvage(&mut self, stragglers: &[WorkerId], opened: Time) {
        if self.machine.phase() == Phase::Closed {
            return;
        }
        let elapsed = self.now.since(opened).as_secs_f64();
        for &worker in stragglers {
            let id = self.given[worker.0 as usize];
            let ends = self.world.micro_ends(worker.0 as usize);
            match ends.unwrap_or(&[]).partition_point(|&end| end <= elapsed) {
                0 => self.machine.handle_aborted(worker, id, 0, self.now).expect("it was cut"),
                done => self.contribute(worker, id, done as f64, self.now),
            }
        }
        self.machine.decide(self.now);
    }
}
