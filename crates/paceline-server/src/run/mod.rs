//! A run: the sans-IO coordinator driven by sockets and a clock.

mod checkpoint_retry;
mod ending;
mod hearing;
mod snapshot;
mod updating;
mod waiting;

use std::{
    collections::BTreeMap,
    future::Future,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, mpsc},
    time::{Duration, Instant},
};

use paceline_core::{
    Coordinator, Event, EventKind, Ledger, LedgerError, Liveness, MAX_WORKERS, Round, ShardId,
    ShardWork, StopReason, Time, Version, Work, WorkerId,
};
use paceline_params::{Layout, LayoutError, ParamHash};
use paceline_policy::{wait_for_updates, wait_rule};
use paceline_wire::{
    FrameError, Listener,
    message::{ToShard, ToWorker},
};
use thiserror::Error;
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
    time::sleep_until,
};

use crate::{
    config::{MissingToken, ServerConfig, Start, check_listener},
    credits::Credits,
    door::Door,
    input::Input,
    placement::Shards,
    rules::ConfigError,
    shard::unfolded,
    workers::{Workers, roomy},
};

use checkpoint_retry::CheckpointRetry;
pub use ending::Outcome;
use snapshot::Snapshot;
use updating::Updating;
use waiting::WaitNotice;

/// How often liveness and limits are looked at when nothing happens.
const TICK: Duration = Duration::from_millis(200);

/// The policy thinks so long after a round has opened, or half of the last round if that is less:
/// workers fetch the parameters first, and thinking would keep a core from them.
const FETCHING: Duration = Duration::from_millis(3);

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
    /// Other machines could join without a token.
    #[error(transparent)]
    MissingToken(#[from] MissingToken),
    /// The listener does not tell where it listens.
    #[error("failed to tell where the server listens: {0}")]
    Listener(#[source] std::io::Error),
    /// Settings out of range, or that do not go together.
    #[error(transparent)]
    Config(#[from] ConfigError),
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

/// Runs a server until the run is over or `interrupt` says why it must end. Every event goes to `events`.
pub async fn serve(
    config: ServerConfig,
    start: Start,
    listener: impl Listener,
    evaluator: Option<Evaluator>,
    events: mpsc::Sender<Event>,
    interrupt: impl Future<Output = StopReason>,
) -> Result<Outcome, ServerError> {
    config.check()?;
    check_listener(&listener, config.token.as_deref())?;
    let (inputs, mut queue) = unbounded_channel();
    let layout =
        Layout::new(start.tensors.clone(), config.placement.block_elems, config.placement.shards)?;
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
        _ = &mut interrupt => return Err(ServerError::Stopped),
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
    let workers = config.round.expected as u32;
    let one = contribution_bytes(layout);
    let fit = u32::try_from(config.placement.staging_bytes / one).unwrap_or(u32::MAX).max(1);
    if config.deterministic && fit < workers {
        let (needed, bound) = (one * u64::from(workers), config.placement.staging_bytes);
        return Err(ServerError::Staging { workers, needed, bound });
    }
    Ok(fit.min(roomy(config.round.expected) as u32))
}

/// What one contribution takes in the staging memory.
fn contribution_bytes(layout: &Layout) -> u64 {
    layout.total() as u64 * size_of::<f32>() as u64
}

struct Run {
    config: ServerConfig,
    layout: Layout,
    core: Coordinator,
    workers: Workers,
    /// The most workers that may take part.
    most: usize,
    credits: Credits,
    shards: Shards,
    liveness: Liveness,
    /// Signs of life of shards in other processes.
    shards_alive: Liveness<u32>,
    clock: Instant,
    events: mpsc::Sender<Event>,
    inputs: UnboundedSender<Input>,
    update: Option<Updating>,
    /// The version that each shard makes, or has made last.
    versions: Vec<Version>,
    /// When each shard was told to close a round last.
    told: Vec<Time>,
    /// What shards did for updates that were published without them, until the next tells of it.
    belated: Vec<ShardWork>,
    /// Which work each worker has said to be finished last, and when.
    said: BTreeMap<WorkerId, (Version, Time)>,
    snapshot: Option<Snapshot>,
    evaluator: Option<Arc<Mutex<Evaluator>>>,
    /// Background work that has not reported back.
    evaluating: bool,
    checkpointing: bool,
    checkpoint_retry: CheckpointRetry,
    wait_notice: WaitNotice,
    /// In the open round somebody was shown out for values that are not finite, and nobody has
    /// arrived.
    doubtful: bool,
    /// When the last round opened, and when the policy may think.
    opened: Time,
    study_at: Option<Time>,
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
    /// Values that its workers had older ones of, by shard, in workers.
    open_stale: Vec<u64>,
    /// The longest that a part of a gradient has taken to each shard.
    open_parts: Vec<Duration>,
    evaluation: Option<(Version, Evaluation)>,
    checkpointed: Option<(Version, PathBuf)>,
    param_hash: Option<(Version, ParamHash)>,
    samples_before: u64,
    /// What each shard did in all rounds so far.
    shards: Vec<ShardWork>,
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
        let policy = config.policy.build_with(&config.run_time_model, config.objective);
        let sizes: Vec<u32> =
            (0..layout.shards()).map(|shard| layout.shard_blocks(shard).len() as u32).collect();
        let weak = wait_for_updates(config.pull, &sizes, config.max_stale);
        for (flag, enough) in [("pull", config.pull), ("push", config.push)] {
            if enough.needs_all(&sizes) {
                tracing::warn!(
                    "--{flag} {enough}: with {} shards that is all of them, and a slow one is waited \
                     for; use more shards, a smaller share, or auto",
                    sizes.len()
                );
            }
        }
        let mut core = Coordinator::new(round, policy, ledger, config.round.batch, weak, first);
        if config.wants_noise() {
            core = core.with_noise(start.noise.clone());
        }
        if let Some(rule) = wait_rule(config.push, &sizes, config.max_stale) {
            core = core.with_partial_pushes(&sizes, rule);
        }
        let mut run = Run {
            core,
            workers: Workers::new(config.round.expected),
            // Whoever holds a place finds room on every shard, whatever waits there to be folded.
            credits: Credits::new(
                staging as usize - unfolded(staging),
                contribution_bytes(&layout),
            ),
            most: match config.folds_at_close() {
                true => staging as usize,
                false => MAX_WORKERS as usize,
            },
            shards,
            liveness: Liveness::new(config.liveness),
            shards_alive: Liveness::new(config.liveness),
            clock: Instant::now(),
            events,
            inputs,
            update: None,
            versions: vec![start.version; layout.shards() as usize],
            told: vec![Time::ZERO; layout.shards() as usize],
            belated: vec![ShardWork::default(); layout.shards() as usize],
            said: BTreeMap::new(),
            snapshot: None,
            evaluator: evaluator.map(|evaluator| Arc::new(Mutex::new(evaluator))),
            evaluating: false,
            checkpointing: false,
            checkpoint_retry: CheckpointRetry::default(),
            wait_notice: WaitNotice::default(),
            doubtful: false,
            opened: Time::ZERO,
            study_at: None,
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
        for shard in (0..run.shards.len() as u32).filter(|_| run.config.placement.remote) {
            run.shards_alive.heard(shard, Time::ZERO);
        }
        run.announce(staging);
        Ok(run)
    }

    fn announce(&mut self, staging: u32) {
        let one = contribution_bytes(&self.layout);
        self.emit(EventKind::RunStarted {
            name: self.config.name.clone(),
            policy: self.core.machine().policy().name(),
            workers: self.config.round.expected as u32,
            shards: self.layout.shards(),
            parameters: self.layout.total() as u64,
            samples: self.config.samples,
            used: self.progress.samples_before,
            version: self.progress.version,
            staging_bytes: one * u64::from(staging),
        });
    }

    async fn drive(
        &mut self,
        queue: &mut UnboundedReceiver<Input>,
        interrupt: impl Future<Output = StopReason>,
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
                reason = &mut interrupt, if !interrupted => {
                    interrupted = true;
                    self.stop_because(reason);
                }
            }
            self.look_around();
            self.grant();
            // One moment for both, or a round could open on what is not published.
            let now = self.now();
            self.publish(now);
            self.check_limits();
            if self.stop.is_none() {
                self.core.advance(now);
                self.act();
                if self.study_at.is_none_or(|at| at <= now) {
                    self.study_at = None;
                    self.core.study();
                }
            }
            self.tell_of_wait(now);
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
        let wakes = [self.core.next_wake(), self.credits.next_wake(self.now()), self.study_at];
        let wake = wakes.into_iter().flatten().min().filter(|_| self.stop.is_none());
        let tick = self.now() + TICK.min(self.config.liveness / 4);
        self.clock + Duration::from_nanos(wake.map_or(tick, |wake| wake.min(tick)).as_nanos())
    }

    fn emit(&mut self, kind: EventKind) {
        let at = self.now();
        self.record(Event { at, kind });
    }

    fn record(&mut self, event: Event) {
        self.wait_notice.see(&event);
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
                if self.config.placement.remote {
                    let now = self.now();
                    self.shards_alive.heard(index, now);
                }
                self.hear_shard(index, report.message, report.blocks);
            }
            Input::Shard { report: Err(error), .. } => self.fail(error),
            Input::Evaluated { version, result } => self.evaluated(version, result),
            Input::Checkpointed { version, result } => self.checkpointed(version, result),
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
                    self.progress.open_stale = vec![0; self.shards.len()];
                    self.progress.open_parts = vec![Duration::ZERO; self.shards.len()];
                    self.doubtful = false;
                    let last = event.at.since(std::mem::replace(&mut self.opened, event.at));
                    self.study_at = Some(event.at + FETCHING.min(last / 2));
                    self.bring_up_to_date(round.base());
                    for work in work {
                        self.give(work, round.base());
                    }
                }
                EventKind::Enlisted { round, work } => self.give(work, round.base()),
                EventKind::Arrived { worker, base, share, loss, blocks, .. } => {
                    self.progress.open_loss += share * loss;
                    self.doubtful = false;
                    let accept =
                        ToShard::Accept { worker: *worker, base: *base, share: *share as f32 };
                    let there =
                        |shard: &&ShardId| blocks.contains(self.layout.shard_blocks(shard.0).start);
                    let fresh = self.core.shards().fresh().iter();
                    self.shards.send_to(fresh.filter(there), &accept);
                    self.release(*worker, *base);
                }
                EventKind::Landed { worker, base, shard, share } => {
                    let accept =
                        ToShard::Accept { worker: *worker, base: *base, share: *share as f32 };
                    self.shards.send_to([shard], &accept);
                }
                EventKind::Late { worker, base, .. } => {
                    self.shards.discard(*worker, *base);
                    self.release(*worker, *base);
                }
                EventKind::Cut { round, stragglers, .. }
                    if self.core.machine().stops_stragglers() =>
                {
                    let cut = ToWorker::Cut { base: round.base() };
                    self.workers.send_all(stragglers.iter().copied(), &cut);
                }
                EventKind::Closed { round, closes, .. } => {
                    self.close(*round, closes);
                    if self.config.is_weak() && self.core.machine().stops_stragglers() {
                        self.give_up_parts(round.base());
                    }
                }
                _ => {}
            }
            self.record(event);
        }
    }

    /// What couriers still carry of a round that is closed is of no use, and they do not say so.
    fn give_up_parts(&mut self, base: Version) {
        for (worker, base) in self.core.give_up_parts(base) {
            self.shards.discard(worker, base);
            self.release(worker, base);
        }
    }

    fn give(&mut self, work: &Work, base: Version) {
        let push_at_once = self.credits.reserve(work.worker, base, self.workers.len());
        let behind = self.core.shards().left_out().map(|shard| shard.0).collect();
        let portion = work.portion.clone();
        let message = ToWorker::Work { base, portion, push_at_once, behind };
        self.workers.send(work.worker, &message);
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
