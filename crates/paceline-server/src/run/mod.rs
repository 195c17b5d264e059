//! A run: the sans-IO coordinator driven by sockets and a clock.

mod ending;
mod snapshot;
mod updating;

use std::{
    future::Future,
    sync::{Arc, Mutex, OnceLock, mpsc},
    time::{Duration, Instant},
};

use paceline_core::{
    Blocks, Contribution, Coordinator, Event, EventKind, LeaveReason, Ledger, LedgerError,
    Liveness, Round, ShardId, StopReason, Straggler, Time, Version, Work, WorkerId,
};
use paceline_params::{Block, DEFAULT_BLOCK_ELEMS, Layout, LayoutError, ParamHash};
use paceline_wire::{
    FrameError, Listener,
    message::{FromShard, FromWorker, Job, ToShard, ToWorker},
};
use thiserror::Error;
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
    time::sleep_until,
};

use crate::{
    config::{ServerConfig, Start},
    door::Door,
    input::{Call, Ended, Input},
    placement::Shards,
    workers::{MAX_WORKERS, PushSlots, Workers},
};

pub use ending::Outcome;
use snapshot::Snapshot;
use updating::Updating;

/// How often liveness and limits are looked at when nothing happens.
const TICK: Duration = Duration::from_millis(200);

/// How long workers have to leave after the end of a run.
const PARTING: Duration = Duration::from_secs(3);

/// Mean loss and share of correct answers on the test set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Mean loss.
    pub loss: f64,
    /// Share of correct answers, 0 to 1.
    pub accuracy: f64,
}

/// Measures parameters on the test set.
pub type Evaluator = Box<dyn FnMut(&[f32]) -> Evaluation + Send>;

/// Why a run could not be begun, or broke down.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The model cannot be laid out.
    #[error("failed to lay out the model: {0}")]
    Layout(#[from] LayoutError),
    /// What the run is to begin with does not fit it.
    #[error("failed to begin: {0}")]
    Start(String),
    /// The checkpoint's books do not fit the data.
    #[error("failed to resume: {0}")]
    Ledger(#[from] LedgerError),
    /// Deterministic sums need all contributions at once.
    #[error(
        "deterministic runs stage the contributions of all {workers} workers: {needed} bytes, but \
         staging is bounded to {bound}; raise --staging-mb"
    )]
    Staging {
        /// Workers.
        workers: u32,
        /// Bytes needed.
        needed: u64,
        /// Bytes allowed.
        bound: u64,
    },
    /// There are more workers than a run takes.
    #[error("{0} workers are more than the {MAX_WORKERS} that a run takes")]
    TooManyWorkers(usize),
    /// A shard failed.
    #[error("{0}")]
    Shard(String),
    /// A connection that the run depends on failed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Everybody left.
    #[error("the server was stopped before it was ready")]
    Stopped,
}

/// Runs a server until the run is over or `interrupt` resolves. Every event goes to `events`.
pub async fn serve(
    config: ServerConfig,
    start: Start,
    listener: impl Listener,
    evaluator: Option<Evaluator>,
    events: mpsc::Sender<Event>,
    interrupt: impl Future<Output = ()>,
) -> Result<Outcome, ServerError> {
    let (inputs, mut queue) = unbounded_channel();
    let layout = Layout::new(
        start.tensors.clone(),
        config.placement.block_elems.min(DEFAULT_BLOCK_ELEMS * 16),
        config.placement.shards,
    )?;
    check_start(&start, &config, &layout)?;
    let staging = staging(&config, &layout)?;
    let door = Arc::new(Door {
        token: config.token.clone(),
        coordinator: Some(inputs.clone()),
        shards: OnceLock::new(),
        patience: config.liveness,
        report: Box::new({
            let inputs = inputs.clone();
            move |ended| drop(inputs.send(Input::Ended(ended)))
        }),
    });
    let mut serving = JoinSet::new();
    serving.spawn(Arc::clone(&door).serve(listener));
    tokio::pin!(interrupt);
    let inbox = (&inputs, &mut queue);
    let shards = tokio::select! {
        shards = Shards::place(&config, &layout, staging, &start, &door, inbox) => shards?,
        () = &mut interrupt => return Err(ServerError::Stopped),
    };
    let mut run = Run::new(config, &start, layout, staging, shards, evaluator, events, inputs)?;
    Ok(run.drive(&mut queue, interrupt).await)
}

fn check_start(start: &Start, config: &ServerConfig, layout: &Layout) -> Result<(), ServerError> {
    let (optimizer, total) = (&config.update.optimizer, layout.total());
    let (slots, kept) = (start.slots.len(), optimizer.slot_names().len());
    if slots != 0 && slots != kept {
        return Err(ServerError::Start(format!(
            "{slots} vectors of optimizer state where {optimizer} keeps {kept}"
        )));
    }
    match std::iter::once(&start.params).chain(&start.slots).find(|flat| flat.len() != total) {
        Some(flat) => {
            let error = format!("{} values for {total} parameters", flat.len());
            Err(ServerError::Start(error))
        }
        None => Ok(()),
    }
}

/// Contributions that may be staged at once.
fn staging(config: &ServerConfig, layout: &Layout) -> Result<u32, ServerError> {
    let expected = config.round.expected;
    let workers = u32::try_from(expected)
        .ok()
        .filter(|&workers| workers <= MAX_WORKERS)
        .ok_or(ServerError::TooManyWorkers(expected))?;
    let one = layout.total() as u64 * size_of::<f32>() as u64;
    let fit = u32::try_from(config.placement.staging_bytes / one).unwrap_or(u32::MAX).max(1);
    if config.deterministic && fit < workers {
        let (needed, bound) = (one * u64::from(workers), config.placement.staging_bytes);
        return Err(ServerError::Staging { workers, needed, bound });
    }
    // Room for a few more than are expected: workers may join.
    Ok(fit.min(workers.saturating_mul(2).saturating_add(8)))
}

struct Run {
    config: ServerConfig,
    layout: Layout,
    core: Coordinator,
    workers: Workers,
    slots: PushSlots,
    shards: Shards,
    liveness: Liveness,
    clock: Instant,
    events: mpsc::Sender<Event>,
    inputs: UnboundedSender<Input>,
    update: Option<Updating>,
    snapshot: Option<Snapshot>,
    evaluator: Option<Arc<Mutex<Evaluator>>>,
    /// Background work that has not reported back.
    evaluating: bool,
    checkpointing: bool,
    stop: Option<StopReason>,
    step: u64,
    first_version: Version,
    progress: Progress,
}

/// What the summary will say.
#[derive(Default)]
struct Progress {
    version: Version,
    began: Option<Time>,
    updated: Option<Time>,
    loss: Option<f64>,
    /// Sum of the loss over the samples accepted into the open round.
    open_loss: f64,
    evaluation: Option<(Version, Evaluation)>,
    checkpointed: Option<Version>,
    param_hash: Option<(Version, ParamHash)>,
    samples_before: u64,
    next_evaluation: u64,
    next_checkpoint: u64,
}

impl Run {
    #[expect(clippy::too_many_arguments, reason = "what `serve` has made, handed over once")]
    fn new(
        config: ServerConfig,
        start: &Start,
        layout: Layout,
        staging: u32,
        shards: Shards,
        evaluator: Option<Evaluator>,
        events: mpsc::Sender<Event>,
        inputs: UnboundedSender<Input>,
    ) -> Result<Self, ServerError> {
        let ledger = match &start.ledger {
            Some(state) => Ledger::resume(state, config.samples, config.limits.epochs)?,
            None => Ledger::new(config.samples, config.limits.epochs),
        };
        let samples_before = ledger.counts().used;
        let mut round = config.round.clone();
        round.blocks = layout.blocks();
        let first = Round(start.version.0);
        let policy = config.policy.build();
        let core = Coordinator::new(round, policy, ledger, config.batch, layout.shards(), first);
        let mut run = Run {
            core,
            workers: Workers::default(),
            slots: PushSlots::new(staging as usize),
            shards,
            liveness: Liveness::new(config.liveness),
            clock: Instant::now(),
            events,
            inputs,
            update: None,
            snapshot: None,
            evaluator: evaluator.map(|evaluator| Arc::new(Mutex::new(evaluator))),
            evaluating: false,
            checkpointing: false,
            stop: None,
            step: start.step,
            first_version: start.version,
            progress: Progress {
                version: start.version,
                samples_before,
                next_evaluation: start.version.0 + config.evaluate_every.max(1),
                next_checkpoint: start.version.0
                    + config.checkpoints.as_ref().map_or(0, |c| c.every.max(1)),
                ..Progress::default()
            },
            layout,
            config,
        };
        run.announce(staging);
        Ok(run)
    }

    fn announce(&mut self, staging: u32) {
        let one = self.layout.total() as u64 * size_of::<f32>() as u64;
        self.emit(EventKind::RunStarted {
            name: self.config.name.clone(),
            policy: self.core.machine().policy().name(),
            workers: self.config.round.expected as u32,
            shards: self.layout.shards(),
            parameters: self.layout.total() as u64,
            samples: self.config.samples,
            version: self.progress.version,
            staging_bytes: one * u64::from(staging),
        });
    }

    async fn drive(
        &mut self,
        queue: &mut UnboundedReceiver<Input>,
        interrupt: impl Future<Output = ()>,
    ) -> Outcome {
        tokio::pin!(interrupt);
        for early in std::mem::take(&mut self.shards.early) {
            self.handle(early);
        }
        let mut interrupted = false;
        loop {
            let deadline = self.deadline();
            tokio::select! {
                input = queue.recv() => {
                    let Some(input) = input else { break };
                    self.handle(input);
                    // What has come meanwhile is decided on together; what comes during that is
                    // not, or a flood would put off every decision.
                    for _ in 0..queue.len() {
                        let Ok(input) = queue.try_recv() else { break };
                        self.handle(input);
                    }
                }
                () = sleep_until(deadline.into()) => {}
                () = &mut interrupt, if !interrupted => {
                    interrupted = true;
                    self.stop_because(StopReason::Interrupted);
                }
            }
            self.look_around();
            self.check_limits();
            if self.stop.is_none() {
                let now = self.now();
                self.core.advance(now);
                self.act();
            }
            if self.stop.is_some() && self.is_settled() {
                break;
            }
        }
        let outcome = self.conclude();
        self.part(queue).await;
        outcome
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.clock.elapsed().as_nanos() as u64)
    }

    fn deadline(&self) -> Instant {
        let wake = self.core.next_wake().filter(|_| self.stop.is_none());
        let tick = self.now() + TICK;
        self.clock + Duration::from_nanos(wake.map_or(tick, |wake| wake.min(tick)).as_nanos())
    }

    fn emit(&mut self, kind: EventKind) {
        let at = self.now();
        self.record(Event { at, kind });
    }

    fn record(&mut self, event: Event) {
        // Whoever watched has gone; the run goes on.
        let _ = self.events.send(event);
    }

    fn handle(&mut self, input: Input) {
        match input {
            Input::Call(call) => self.meet(call),
            Input::Worker { worker, session, message, _place } => {
                if self.workers.is_current(worker, session) {
                    let now = self.now();
                    self.liveness.heard(worker, now);
                    self.hear(worker, message);
                }
            }
            Input::Ended(ended) => self.ended(ended),
            Input::ShardCall(call) => {
                let _ = call.reply.send(Err("all shards are there already".to_owned()));
            }
            Input::Shard { index, report: Ok(report) } => {
                self.hear_shard(index, report.message, report.blocks);
            }
            Input::Shard { report: Err(error), .. } => self.fail(error),
            Input::Evaluated { version, evaluation } => self.evaluated(version, evaluation),
            Input::Checkpointed { version, result } => {
                self.checkpointing = false;
                match result {
                    Ok(path) => {
                        self.progress.checkpointed = Some(version);
                        self.emit(EventKind::Checkpointed { version, path });
                    }
                    Err(error) => self.fail(format!("failed to write a checkpoint: {error}")),
                }
            }
        }
    }

    fn meet(&mut self, call: Call) {
        let Call { wish, name, outbox, reply } = call;
        let refusal = match () {
            () if self.stop.is_some() => Some("the run is over".to_owned()),
            () if self.workers.len() >= MAX_WORKERS as usize => Some("the run is full".to_owned()),
            () => None,
        };
        if let Some(why) = refusal {
            let _ = reply.send(Err(why));
            return;
        }
        let worker = self.workers.number(wish);
        let session = rand::random();
        let now = self.now();
        self.shards.send_all(&ToShard::Admit { worker, session });
        self.workers.add(worker, session, name, outbox);
        self.liveness.heard(worker, now);
        let _ = reply.send(Ok(self.job(worker, session)));
    }

    fn job(&self, worker: WorkerId, session: u64) -> Job {
        Job {
            worker,
            session,
            heartbeat: self.config.heartbeat,
            seed: self.config.seed,
            model: self.config.model.clone(),
            data: self.config.data.clone(),
            samples: self.config.samples,
            micro_batches: self.config.micro_batches,
            straggler: self.config.round.straggler,
            layout: self.layout.clone(),
            shards: self.shards.addresses.clone(),
        }
    }

    fn hear(&mut self, worker: WorkerId, message: FromWorker) {
        let now = self.now();
        let heard = match message {
            FromWorker::Heartbeat => Ok(()),
            FromWorker::Ready { samples } => self.join(worker, samples),
            FromWorker::Progress { base, done } => {
                self.core.handle_progress(worker, base, done);
                Ok(())
            }
            FromWorker::Done { base, weight, loss } => {
                let blocks = Blocks::All;
                self.done(Contribution { worker, base, weight, loss, blocks })
            }
            FromWorker::Aborted { base, done } => {
                let aborted = self.core.handle_aborted(worker, base, done, now);
                self.shards.discard(worker, base);
                self.release(worker, base);
                aborted.map_err(|error| error.to_string())
            }
            FromWorker::Bye => {
                self.leave(worker, LeaveReason::Finished);
                Ok(())
            }
        };
        if let Err(error) = heard {
            self.leave(worker, LeaveReason::Misbehaved(error));
        }
        self.act();
    }

    fn join(&mut self, worker: WorkerId, samples: u32) -> Result<(), String> {
        let (now, expected) = (self.now(), self.config.samples);
        if samples != expected {
            return Err(format!(
                "its training set has {samples} samples, this run's has {expected}; give it the \
                 same --data"
            ));
        }
        let joined = self.core.handle_join(worker, self.workers.name(worker), now);
        joined.map_err(|error| error.to_string())
    }

    fn done(&mut self, contribution: Contribution) -> Result<(), String> {
        let (now, worker, base) = (self.now(), contribution.worker, contribution.base);
        self.core.handle_done(contribution, now).map_err(|error| error.to_string())?;
        if self.slots.request(worker, base) {
            self.workers.send(worker, &ToWorker::Push { base });
        }
        Ok(())
    }

    fn hear_shard(&mut self, index: u32, message: FromShard, blocks: Vec<Block>) {
        match message {
            FromShard::Ready => {}
            FromShard::Staged { worker, session, base } => {
                if self.workers.is_current(worker, session) {
                    self.staged(worker, base, index);
                }
            }
            FromShard::Gone { worker, session, why } => {
                self.ended(Ended::Worker { worker, session, why });
            }
            FromShard::Rejected { peer, error } => self.ended(Ended::Stranger { peer, error }),
            FromShard::Summed { norms } => self.summed(&norms),
            FromShard::Applied { hash, .. } => self.applied(hash),
            FromShard::Snapshot { version } => self.gathered(index, version, blocks),
        }
    }

    fn staged(&mut self, worker: WorkerId, base: Version, shard: u32) {
        let now = self.now();
        match self.core.handle_staged(worker, base, ShardId(shard), now) {
            Ok(true) => {}
            // Other shards may hold their parts of what was given up, and wait for these.
            Ok(false) => self.shards.discard(worker, base),
            Err(error) => self.leave(worker, LeaveReason::Misbehaved(error.to_string())),
        }
        self.act();
    }

    /// One connection less, and nothing else.
    fn ended(&mut self, ended: Ended) {
        match ended {
            Ended::Stranger { peer, error } => {
                self.emit(EventKind::ConnectionClosed { peer, error });
            }
            Ended::Worker { worker, session, why } => {
                if self.workers.is_current(worker, session) {
                    self.leave(worker, why);
                }
            }
        }
    }

    /// Everything of a worker goes: its connections, its place, what is staged of it.
    fn leave(&mut self, worker: WorkerId, why: LeaveReason) {
        if let LeaveReason::Misbehaved(error) = &why {
            self.workers.send(worker, &ToWorker::Expelled(error.clone()));
        }
        let name = self.workers.remove(worker);
        self.liveness.forget(worker);
        self.release(worker, Version(u64::MAX));
        let now = self.now();
        match self.core.handle_leave(worker, why.clone(), now) {
            Ok(()) => self.act(),
            Err(_) => {
                let error = format!("left before it was ready: {why}");
                self.emit(EventKind::ConnectionClosed { peer: name, error });
            }
        }
        self.shards.send_all(&ToShard::Forget { worker });
    }

    fn release(&mut self, worker: WorkerId, base: Version) {
        if let Some((next, base)) = self.slots.release(worker, base) {
            self.workers.send(next, &ToWorker::Push { base });
        }
    }

    /// The first failure is the cause; others follow from it.
    fn fail(&mut self, error: String) {
        self.update = None;
        self.snapshot = None;
        if !matches!(self.stop, Some(StopReason::Failed(_))) {
            self.stop = Some(StopReason::Failed(error));
        }
    }

    /// Carries out what the core decided.
    fn act(&mut self) {
        while let Some(event) = self.core.poll_event() {
            match &event.kind {
                EventKind::RoundStarted { round, work } => {
                    self.progress.began.get_or_insert(event.at);
                    self.progress.open_loss = 0.0;
                    for work in work {
                        self.give(work, round.base());
                    }
                }
                EventKind::Enlisted { round, work } => self.give(work, round.base()),
                EventKind::Arrived { worker, base, loss, .. } => {
                    self.progress.open_loss += loss;
                    self.shards.send_all(&ToShard::Accept { worker: *worker, base: *base });
                    self.release(*worker, *base);
                }
                EventKind::Late { worker, base, .. } => {
                    self.shards.discard(*worker, *base);
                    self.release(*worker, *base);
                }
                EventKind::Cut { round, stragglers, .. }
                    if self.config.round.straggler == Straggler::Abort =>
                {
                    let cut = ToWorker::Cut { base: round.base() };
                    self.workers.send_all(stragglers.iter().copied(), &cut);
                }
                EventKind::Closed { round, closes, .. } => self.close(*round, closes),
                _ => {}
            }
            self.record(event);
        }
    }

    fn give(&mut self, work: &Work, base: Version) {
        let push_at_once = self.slots.reserve(work.worker, base, self.workers.len());
        let message = ToWorker::Work { base, range: work.range, push_at_once };
        self.workers.send(work.worker, &message);
    }

    /// Who has fallen silent.
    fn look_around(&mut self) {
        let now = self.now();
        for (worker, silence) in self.liveness.silent(now) {
            self.leave(worker, LeaveReason::Silent(silence));
        }
    }

    fn check_limits(&mut self) {
        let now = self.now();
        let limits = &self.config.limits;
        let reason = match () {
            () if self.update.is_none()
                && limits.rounds.is_some_and(|r| self.progress.version.0 >= r) =>
            {
                Some(StopReason::Rounds)
            }
            () if limits.time.is_some_and(|limit| now >= Time::ZERO + limit) => {
                Some(StopReason::TimeLimit)
            }
            () => self.core.stop_reason(now),
        };
        if let Some(reason) = reason {
            self.stop_because(reason);
        }
    }
}
