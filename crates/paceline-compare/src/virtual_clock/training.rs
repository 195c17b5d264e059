//! A training run in virtual time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    time::Duration,
};

use paceline_core::{
    Accepted, Announcement, BlockClose, ContributionId, Coordinator, CostBias, Costs, Driver,
    EpochOrder, Event, Late, LeaveReason, Ledger, LedgerReport, OrderSpec, Phase, Policy, Portion,
    Round, RoundConfig, RunTime, SampleCounts, ShardId, Shards, State, Straggler, Time, Version,
    Work, WorkerId, act,
};
use paceline_params::{
    Block, Spares, SumOfBlocks, Update, UpdateConfig, UpdatePlan, add_scaled, norm_squared,
};
use paceline_sim::{Turns, World, comings_and_goings};
use paceline_worker::{Compute, micro_batch, part_of};
use serde::{Deserialize, Serialize};

use super::worker::{Task, Worker};

/// The settings of a run.
#[derive(Debug, Clone)]
pub struct TrainingConfig {
    /// The order in which samples are visited, with homes and balancing.
    pub orders: OrderSpec,
    /// The costs of the samples, if they differ.
    pub costs: Option<Costs>,
    /// Samples that a worker is given per round.
    pub batch: u32,
    /// Micro-batches of a portion.
    pub micro_batches: u32,
    /// What stragglers do at the cut.
    pub straggler: Straggler,
    /// The treatment of late contributions.
    pub late: Late,
    /// Whether slow workers are given fewer samples.
    pub rebalance: bool,
    /// Returns after which a round waits for a range.
    pub patience: u32,
    /// Whether samples of underrepresented homes weigh more, where data lives on workers.
    pub reweigh: bool,
    /// The least number of contributions of a round.
    pub quorum: usize,
    /// How updates are made.
    pub update: UpdateConfig,
    /// Seconds from a close to the next opening.
    pub overhead: f64,
    /// Samples used between evaluations.
    pub evaluate_every: u64,
    /// Stops at this test accuracy.
    pub target_accuracy: Option<f64>,
    /// Stops at this test loss.
    pub target_loss: Option<f64>,
    /// Stops after this many epochs.
    pub epochs: u32,
    /// Stops after this many samples.
    pub most_samples: u64,
    /// Stops after this many virtual seconds.
    pub seconds: f64,
}

/// One evaluation on the test set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Virtual seconds since the start.
    pub seconds: f64,
    /// Rounds closed.
    pub round: u64,
    /// Samples used.
    pub samples: u64,
    /// Mean loss.
    pub loss: f64,
    /// Share of correct answers.
    pub accuracy: f64,
}

/// One round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct VirtualRound {
    /// Virtual seconds at its close.
    pub at: f64,
    /// Seconds from its opening to its close.
    pub seconds: f64,
    /// Workers that were given work in it, or arrived in it.
    pub workers: u32,
    /// Contributions in the update, each counted by its share of a full one.
    pub accepted: f64,
    /// The estimate of the noise scale at that time, in samples.
    pub noise: Option<f64>,
    /// The learning rate used.
    pub learning_rate: f32,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainingRecord {
    /// Evaluations, in order.
    pub points: Vec<Point>,
    /// Rounds, in order.
    pub rounds: Vec<VirtualRound>,
    /// Virtual seconds in total.
    pub seconds: f64,
    /// When the target was reached, if it was.
    pub reached: Option<f64>,
    /// Counts of used, dropped, requeued and salvaged samples.
    pub samples: SampleCounts,
    /// Whether the ledger balances.
    pub balanced: bool,
    /// Share of the workers' time in which they were idle.
    pub idle: f64,
    /// Whether parameters stayed finite.
    pub finite: bool,
    /// Mean over updates of (cost of a sample in the update / cost of a sample handed out) − 1. Negative
    /// values mean that updates favour cheap samples.
    pub cost_bias: Option<f64>,
}

/// A time at which a worker finishes a micro-batch of a contribution, with the number of the micro-batch.
type Due = Reverse<(Time, WorkerId, ContributionId, u32)>;

/// A run under way.
pub struct Training<'a> {
    config: TrainingConfig,
    coordinator: Coordinator,
    world: Turns<'a>,
    compute: &'a mut dyn Compute,
    evaluate: &'a mut dyn FnMut(&[f32]) -> (f64, f64),
    block: Block,
    spares: Spares,
    sum: Vec<f32>,
    staged: BTreeMap<ContributionId, Vec<f32>>,
    workers: Vec<Worker>,
    due: BinaryHeap<Due>,
    now: Time,
    opened: Time,
    /// When the update under way is published, and the squared norm of its sum.
    publishing: Option<(Time, f64)>,
    order: EpochOrder,
    bias: Option<CostBias>,
    next_evaluation: u64,
    record: TrainingRecord,
}

impl<'a> Training<'a> {
    /// A run from these parameters. `evaluate` returns loss and accuracy on the test set.
    pub fn new(
        config: TrainingConfig,
        policy: Box<dyn Policy>,
        world: &'a mut dyn World,
        compute: &'a mut dyn Compute,
        evaluate: &'a mut dyn FnMut(&[f32]) -> (f64, f64),
        params: Vec<f32>,
    ) -> Training<'a> {
        let round = RoundConfig {
            quorum: config.quorum,
            quorum_grace: Duration::MAX,
            // A worker that is absent from a trace's first round may join in a later one.
            expected: 1,
            join_grace: Duration::MAX,
            straggler: config.straggler,
            late: config.late,
            micro_batches: config.micro_batches,
            batch: config.batch,
            rebalance: config.rebalance,
        };
        let ledger = Ledger::new(config.orders.samples, Some(config.epochs))
            .with_patience(config.patience)
            .with_homes(config.orders.homes);
        let ledger = if config.reweigh { ledger.reweighing() } else { ledger };
        Training {
            workers: vec![Worker::default(); world.workers()],
            world: Turns::new(world, policy.as_ref()),
            coordinator: Coordinator::new(round, policy, ledger, Shards::all(1), Round(0)),
            sum: vec![0.0; params.len()],
            block: Block::new(params, config.update.optimizer.of(0)),
            spares: Spares::new(4),
            staged: BTreeMap::new(),
            due: BinaryHeap::new(),
            now: Time::ZERO,
            opened: Time::ZERO,
            publishing: None,
            order: EpochOrder::none(),
            bias: config.costs.clone().map(|costs| CostBias::new(config.orders.clone(), costs)),
            next_evaluation: config.evaluate_every,
            record: TrainingRecord {
                points: Vec::new(),
                rounds: Vec::new(),
                seconds: 0.0,
                reached: None,
                samples: SampleCounts::default(),
                balanced: false,
                idle: 0.0,
                finite: true,
                cost_bias: None,
            },
            compute,
            evaluate,
            config,
        }
    }

    /// Trains until the target, a limit on epochs or time, or until `stop` returns true.
    pub fn run(mut self, mut stop: impl FnMut() -> bool) -> TrainingRecord {
        self.attend();
        while !self.is_over() && !stop() {
            self.coordinator.advance(self.now);
            while act(&mut self) {
                // The finished work of stragglers arrived at once.
                self.coordinator.advance(self.now);
            }
            if self.publishing.is_some_and(|(at, _)| at <= self.now) {
                self.publish();
                continue;
            }
            self.coordinator.study();
            let Some(next) = self.next() else { break };
            self.now = next.max(self.now);
            self.settle();
        }
        self.conclude()
    }

    fn is_over(&self) -> bool {
        self.record.reached.is_some()
            || !self.record.finite
            || self.used() >= self.config.most_samples
            || self.now.as_secs_f64() >= self.config.seconds
            || self.coordinator.stop_reason(self.now).is_some()
    }

    fn conclude(mut self) -> TrainingRecord {
        let points = &self.record.points;
        if self.record.finite && points.last().is_none_or(|p| p.samples < self.used()) {
            self.measure();
        }
        let seconds = self.now.as_secs_f64();
        let busy: f64 = self.workers.iter().map(|worker| worker.busy).sum();
        let LedgerReport { balanced, .. } = self.coordinator.report();
        let there = seconds * self.workers.len() as f64;
        TrainingRecord {
            seconds,
            samples: self.coordinator.ledger().counts(),
            balanced,
            cost_bias: self.bias.as_ref().and_then(CostBias::mean),
            idle: (1.0 - busy / there.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0),
            ..self.record
        }
    }

    /// The next time at which something happens.
    fn next(&mut self) -> Option<Time> {
        while let Some(&Reverse((_, worker, id, part))) = self.due.peek()
            && !self.is_due(worker, id, part)
        {
            self.due.pop();
        }
        let due = self.due.peek().map(|Reverse((at, ..))| *at);
        let closed = self.coordinator.machine().phase() == Phase::Closed;
        let wake = match closed {
            true => self.coordinator.next_second_holder(),
            false => self.coordinator.next_wake(),
        };
        [due, self.publishing.map(|(at, _)| at), wake].into_iter().flatten().min()
    }

    fn is_due(&self, worker: WorkerId, id: ContributionId, part: u32) -> bool {
        let task = self.workers[worker.0 as usize].task.as_ref();
        task.is_some_and(|task| task.id == id && task.done + 1 == part)
    }

    /// Handles all micro-batches that end by now.
    fn settle(&mut self) {
        while let Some(&Reverse((at, worker, id, part))) = self.due.peek()
            && at <= self.now
        {
            self.due.pop();
            if self.is_due(worker, id, part) {
                self.finished(worker, part);
                // Where every arrival makes a round, the first arrival at a time does not wait for the
                // others. They join the next round, with all that arrive while the update is made.
                if self.coordinator.machine().policy().admissible_lag() > 0 {
                    self.coordinator.advance(self.now);
                    act(self);
                }
            }
        }
    }

    /// A worker has finished its `part`-th micro-batch.
    fn finished(&mut self, worker: WorkerId, part: u32) {
        let parts = self.config.micro_batches;
        let slot = &mut self.workers[worker.0 as usize];
        let task = slot.task.as_mut().expect("what is due has a task");
        task.done = part;
        if part < parts {
            let (id, next) = (task.id, task.end(part + 1));
            self.due.push(Reverse((next, worker, id, part + 1)));
            self.coordinator.handle_progress(worker, id, part, self.now);
            return;
        }
        let task = slot.task.take().expect("it was just there");
        slot.busy += self.now.since(task.began).as_secs_f64();
        slot.free_at = self.now;
        self.contribute(worker, &task);
    }

    /// A worker's finished work arrives, if it may still count.
    fn contribute(&mut self, worker: WorkerId, task: &Task) {
        let &Task { id, base, .. } = task;
        let weight = part_of(task.portion.len(), task.done, self.config.micro_batches);
        let machine = self.coordinator.machine();
        let Ok(contribution) = machine.work_of(worker, id) else { return };
        if weight == 0 {
            return;
        }
        let late = contribution.state() == State::Late
            || base < machine.round().base()
                && self.config.late == Late::Drop
                && machine.policy().admissible_lag() == 0;
        let (mut loss, mut square) = (0.0, None);
        if !late {
            let mut gradient = self.spares.take(self.sum.len());
            self.compute.load(0, &task.params);
            self.compute.clear(&mut gradient);
            loss = self.gradient(task, weight, &mut gradient);
            square = Some(norm_squared(&gradient));
            self.staged.insert(id, gradient);
        }
        self.record.finite &= loss.is_finite() && square.is_none_or(f64::is_finite);
        if !self.record.finite {
            return;
        }
        let weight = f64::from(weight);
        let announcement = Announcement { id, weight, loss: Some(loss), square };
        let done = self.coordinator.handle_done(worker, announcement, self.now);
        done.expect("it was given that work");
        self.coordinator.handle_staged(worker, id, ShardId(0), self.now);
        act(self);
    }

    fn gradient(&mut self, task: &Task, weight: u32, gradient: &mut [f32]) -> f64 {
        let samples = self.samples(&task.portion);
        self.compute.gradient(&samples[..weight as usize], gradient)
    }

    fn samples(&mut self, portion: &Portion) -> Vec<u32> {
        if let Some(epoch) = portion.epoch().filter(|&epoch| epoch != self.order.epoch()) {
            self.order = self.config.orders.epoch(epoch);
        }
        portion.samples(&self.order).expect("the ledger's ranges lie in its epoch")
    }

    /// Seconds after which each micro-batch of a portion is done, if a whole portion takes `whole`.
    fn ends(&mut self, portion: &Portion, whole: f64) -> Vec<f64> {
        let parts = self.config.micro_batches;
        let Some(costs) = self.config.costs.clone() else {
            let seconds = whole * f64::from(portion.len()) / f64::from(self.config.batch);
            return (1..=parts).map(|p| seconds * f64::from(p) / f64::from(parts)).collect();
        };
        let samples = self.samples(portion);
        let mut seconds = 0.0;
        let end = |part| {
            seconds += whole * costs.share(micro_batch(&samples, part, parts));
            seconds
        };
        (0..parts).map(end).collect()
    }

    fn give_one(&mut self, work: &Work, base: Version) {
        let Work { id, worker, portion, .. } = work.clone();
        let whole = self.world.take(worker.0 as usize).expect("a live worker has run-times");
        let ends = self.ends(&portion, whole);
        let slot = &mut self.workers[worker.0 as usize];
        let task = Task {
            id,
            base,
            ends,
            portion,
            params: self.block.snapshot(),
            began: self.now.max(slot.free_at),
            done: 0,
        };
        let first = task.end(1);
        self.due.push(Reverse((first, worker, id, 1)));
        slot.task = Some(task);
    }

    /// A straggler learns of the cut: it pushes its finished work, or gives up. It is free once its current
    /// step is done.
    fn stop_one(&mut self, worker: WorkerId) {
        let slot = &mut self.workers[worker.0 as usize];
        let Some(task) = slot.task.take() else { return };
        // It may still be completing the step in which it was last cut.
        if task.began < self.now {
            slot.free_at = task.stops(self.now);
            slot.busy += slot.free_at.since(task.began).as_secs_f64();
        }
        let salvages = self.config.straggler.counts_parts();
        if salvages && task.done > 0 && self.coordinator.machine().phase() != Phase::Closed {
            self.contribute(worker, &task);
        } else {
            let gave_up = self.coordinator.handle_aborted(worker, task.id, task.done, self.now);
            gave_up.expect("it was cut");
        }
    }

    /// Membership is fixed: the update is made, and published after the overhead.
    fn update(&mut self, round: Round, closes: &[BlockClose], workers: usize, at: Time) {
        let weight: f64 = closes.iter().map(BlockClose::weight).sum();
        let square = norm_squared(&self.sum);
        let (rule, noise) = (&self.config.update, self.coordinator.noise_scale());
        let sums = [SumOfBlocks { weight, square }];
        let plan = UpdatePlan::new(rule, round.0, &sums, noise, None);
        let lr = plan.learning_rates[0];
        let update = Update { step: round.0 + 1, lr, scale: plan.scales[0] };
        self.block.apply(rule.optimizer.of(0), update, &self.sum, &self.spares);
        self.sum.fill(0.0);
        self.record.finite &= square.is_finite();
        self.record.rounds.push(VirtualRound {
            at: at.as_secs_f64(),
            seconds: at.since(self.opened).as_secs_f64(),
            workers: workers as u32,
            accepted: weight / f64::from(self.config.batch),
            noise,
            learning_rate: lr,
        });
        self.publishing = Some((at + Time::span(self.config.overhead), square));
    }

    fn publish(&mut self) {
        let (_, square) = self.publishing.take().expect("an update is under way");
        self.coordinator.handle_applied(ShardId(0), self.now).expect("it was told to update");
        self.coordinator.handle_square(square);
        if self.used() >= self.next_evaluation {
            self.next_evaluation = self.used() + self.config.evaluate_every;
            self.measure();
        }
        self.attend();
    }

    fn used(&self) -> u64 {
        self.coordinator.ledger().counts().used
    }

    fn measure(&mut self) {
        let (loss, accuracy) = (self.evaluate)(self.block.values());
        let seconds = self.now.as_secs_f64();
        let (round, samples) = (self.coordinator.machine().round().0, self.used());
        self.record.points.push(Point { seconds, round, samples, loss, accuracy });
        let reached = self.config.target_accuracy.is_some_and(|target| accuracy >= target)
            || self.config.target_loss.is_some_and(|target| loss <= target);
        if reached {
            self.record.reached.get_or_insert(seconds);
        }
    }

    /// Draws the next round's run-times. Workers with a run-time are live, the others are not.
    fn attend(&mut self) {
        self.world.next_round(self.now.since(self.opened).as_secs_f64());
        let changes = comings_and_goings(&self.world, self.coordinator.machine().live());
        for (worker, comes) in changes {
            if comes {
                self.coordinator.handle_join(worker, "", self.now).expect("it was not live");
                continue;
            }
            self.workers[worker.0 as usize].task = None;
            let why = LeaveReason::Disconnected;
            self.coordinator.handle_leave(worker, why, self.now).expect("it was live");
        }
        act(self);
    }
}

impl Driver for Training<'_> {
    fn coordinator(&mut self) -> &mut Coordinator {
        &mut self.coordinator
    }

    fn opened(&mut self, _round: Round, at: Time) {
        self.opened = at;
    }

    fn give(&mut self, base: Version, work: &[Work]) {
        work.iter().for_each(|work| self.give_one(work, base));
    }

    fn accept(&mut self, accepted: &Accepted<'_>) {
        let gradient = self.staged.remove(&accepted.id).expect("it was computed");
        add_scaled(&mut self.sum, accepted.share as f32, &gradient);
        self.spares.retire(gradient.into());
    }

    fn discard(&mut self, _worker: WorkerId, id: ContributionId) {
        self.staged.remove(&id);
    }

    fn stop(&mut self, _base: Version, stragglers: &[WorkerId]) {
        stragglers.iter().for_each(|&worker| self.stop_one(worker));
    }

    fn close(
        &mut self,
        round: Round,
        closes: &[BlockClose],
        run_times: &[(WorkerId, RunTime)],
        at: Time,
    ) {
        self.update(round, closes, run_times.len(), at);
    }

    fn see(&mut self, event: &Event) {
        if let Some(bias) = &mut self.bias {
            bias.see(&event.kind);
        }
    }
}
