//! A run: the sans-IO coordinator driven by sockets and a clock.

mod checkpoint_retry;
mod ending;
mod members;
mod offers;
mod rates;
mod record_wait;
mod replica_checkpoints;
mod replicas;
mod snapshots;
mod states;
mod timing;
mod updates;
mod waiting;

use std::{
    collections::BTreeMap,
    future::Future,
    sync::mpsc,
    time::{Duration, Instant},
};

use paceline_core::{
    Accepted, AcceptedPart, BlockClose, ContributionId, Coordinator, Driver, Event, EventKind,
    Ledger, LedgerError, Liveness, MAX_WORKERS, Portion, Round, RunTime, ShardId, StopReason, Time,
    Version, Work, WorkerId, act,
};
use paceline_params::Layout;
use paceline_policy::{wait_for_updates, wait_rule};
use paceline_wire::{
    message::{ToShard, ToWorker},
    offer::Offer,
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender},
    time::sleep_until,
};

use crate::{
    config::{ServerConfig, Start, WeakSync},
    credits::Credits,
    error::ServerError,
    input::Input,
    placement::ShardChannels,
    shard::unfolded,
    state::StateBlob,
    workers::Workers,
};

use ending::Ending;
pub use ending::Outcome;
use members::Members;
use replica_checkpoints::ReplicaCheckpoints;
use replicas::Replicas;
use snapshots::Snapshots;
use states::States;
use timing::{Lateness, Study};
use updates::Updates;
use waiting::WaitNotice;

/// How often liveness and limits are checked when nothing happens.
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

/// Evaluates parameters on the test set.
pub type Evaluator = Box<dyn FnMut(&[f32]) -> Evaluation + Send>;

/// Where a run starts from.
pub(crate) struct Origin {
    pub(crate) start: Start,
    pub(crate) offered: Option<OfferedOrigin>,
}

/// Where a run starts from whose workers bring their model.
pub(crate) struct OfferedOrigin {
    /// The offer that the others are compared with.
    pub(crate) offer: Offer,
    /// The state that workers start from, if it is not with the shards.
    pub(crate) state: Option<StateBlob>,
    /// A worker's record of the last step.
    pub(crate) record: Option<Vec<u8>>,
    pub(crate) is_resumed: bool,
}

/// Bytes of one contribution in the staging memory.
pub(crate) fn contribution_bytes(layout: &Layout) -> u64 {
    layout.total() as u64 * size_of::<f32>() as u64
}

/// The ledger that the run begins with.
fn ledger(config: &ServerConfig, start: &Start) -> Result<Ledger, LedgerError> {
    let (batch, epochs) = (config.round.batch, config.limits.epochs);
    let ledger = match (config.samples, &start.ledger) {
        (Some(samples), Some(state)) => Ledger::resume(state, samples, epochs)?,
        (Some(samples), None) => Ledger::new(samples, epochs),
        (None, Some(state)) => Ledger::resume_stream(state, batch)?,
        (None, None) => Ledger::stream(batch),
    };
    Ok(if config.epoch_barrier { ledger.with_epoch_barrier() } else { ledger })
}

/// A run, with its state grouped by subject.
pub(crate) struct Run {
    config: ServerConfig,
    layout: Layout,
    core: Coordinator,
    shards: ShardChannels,
    /// Heartbeats of shards in other processes.
    shards_alive: Liveness<u32>,
    members: Members,
    replicas: Replicas,
    updates: Updates,
    snapshots: Snapshots,
    /// The offer that defined the run, if a worker brought its model.
    offer: Option<Offer>,
    /// Whether all workers must take the run's state.
    is_resumed: bool,
    states: States,
    replica_checkpoints: ReplicaCheckpoints,
    ending: Ending,
    study: Study,
    lateness: Lateness,
    wait_notice: WaitNotice,
    clock: Instant,
    events: mpsc::Sender<Event>,
    inputs: UnboundedSender<Input>,
}

impl Run {
    #[expect(clippy::too_many_arguments, reason = "what the entrance has made, handed over once")]
    pub(crate) fn new(
        config: ServerConfig,
        origin: Origin,
        layout: Layout,
        staging: u32,
        shards: ShardChannels,
        evaluator: Option<Evaluator>,
        events: mpsc::Sender<Event>,
        inputs: UnboundedSender<Input>,
    ) -> Result<Self, ServerError> {
        let Origin { start, offered } = origin;
        let ledger = ledger(&config, &start)?;
        let samples_before = ledger.counts().used;
        let first = Round(start.version.0);
        let policy = config.policy.build_with(&config.run_time_model, config.objective);
        let sizes: Vec<u32> =
            (0..layout.shards()).map(|shard| layout.shard_blocks(shard).len() as u32).collect();
        let WeakSync { pull, push, max_stale } = config.weak;
        let shard_wait = wait_for_updates(pull, &sizes, max_stale);
        for (flag, enough) in [("pull", pull), ("push", push)] {
            if enough.needs_all(&sizes) {
                tracing::warn!(
                    "--{flag} {enough}: with {} shards that is all of them, and a slow one is waited \
                     for; use more shards, a smaller share, or auto",
                    sizes.len()
                );
            }
        }
        let mut core = Coordinator::new(config.round.clone(), policy, ledger, shard_wait, first);
        if config.wants_noise() {
            core = core.with_noise(start.noise.clone());
        }
        if let Some(rule) = wait_rule(push, &sizes, max_stale) {
            core = core.with_partial_pushes(&sizes, rule);
        }
        let members = Members {
            workers: Workers::new(config.round.expected),
            // A worker that holds a place finds room on every shard, whatever still waits there to be folded.
            credits: Credits::new(
                staging as usize - unfolded(staging),
                contribution_bytes(&layout),
            ),
            most: match config.folds_at_close() {
                true => staging as usize,
                false => MAX_WORKERS as usize,
            },
            liveness: Liveness::new(config.liveness),
            doubtful: false,
        };
        let is_resumed = offered.as_ref().is_some_and(|offered| offered.is_resumed);
        let (offer, state, record) = match offered {
            Some(OfferedOrigin { offer, state, record, .. }) => (Some(offer), state, record),
            None => (None, None, None),
        };
        let frozen_bytes = offer.as_ref().map_or(0, |offer| offer.frozen_bytes);
        let mut run = Run {
            core,
            shards,
            shards_alive: Liveness::new(config.liveness),
            members,
            replicas: Replicas::new(start.version, record),
            updates: Updates::new(start.version, start.step, layout.shards() as usize),
            snapshots: Snapshots::new(&config, start.version, evaluator),
            states: States::new(StateBlob::bound(layout.total(), frozen_bytes), state),
            replica_checkpoints: ReplicaCheckpoints::default(),
            offer,
            is_resumed,
            ending: Ending {
                reason: None,
                first_version: start.version,
                samples_before,
                departed: BTreeMap::new(),
            },
            study: Study::default(),
            lateness: Lateness::default(),
            wait_notice: WaitNotice::default(),
            clock: Instant::now(),
            events,
            inputs,
            layout,
            config,
        };
        for shard in (0..run.shards.len() as u32).filter(|_| run.config.placement.remote) {
            run.shards_alive.heard(shard, Time::ZERO);
        }
        run.announce(staging);
        run.keep_moment();
        if !is_resumed {
            run.want_replica_checkpoint();
        }
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
            used: self.ending.samples_before,
            version: self.updates.version,
            staging_bytes: one * u64::from(staging),
        });
    }

    pub(crate) async fn drive(
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
                    // Inputs that are queued already are decided on together. Inputs that arrive meanwhile
                    // wait for the next pass, or a flood would delay every decision.
                    for _ in 0..queue.len() {
                        let Ok(input) = queue.try_recv() else { break };
                        self.handle(input);
                    }
                }
                () = sleep_until(deadline.into()) => {
                    if let Some(usual) = self.lateness.fired(deadline.elapsed()) {
                        self.core.handle_lateness(usual);
                    }
                }
                reason = &mut interrupt, if !interrupted => {
                    interrupted = true;
                    self.stop_because(reason);
                }
            }
            self.look_around();
            self.grant();
            // The same time for both, or a round could open on a version that is not published.
            let now = self.now();
            self.publish(now);
            self.check_limits();
            if self.ending.reason.is_none() {
                self.core.advance(now);
                act(self);
                if self.study.is_due(now) {
                    self.core.study();
                }
            }
            self.tell_of_wait(now);
            if self.ending.reason.is_some() && self.is_settled() && self.replicas_are_level() {
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
        let wakes =
            [self.core.next_wake(), self.members.credits.next_wake(self.now()), self.study.at];
        let wake = wakes.into_iter().flatten().min().filter(|_| self.ending.reason.is_none());
        let tick = self.now() + TICK.min(self.config.liveness / 4);
        self.clock + Duration::from_nanos(wake.map_or(tick, |wake| wake.min(tick)).as_nanos())
    }

    fn emit(&mut self, kind: EventKind) {
        let at = self.now();
        self.record(Event { at, kind });
    }

    fn handle(&mut self, input: Input) {
        match input {
            Input::Call(call) => self.meet(call),
            Input::Worker { worker, session, message, _place } => {
                if self.members.workers.is_current(worker, session) {
                    let now = self.now();
                    self.members.liveness.heard(worker, now);
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
            Input::Offer(call) => self.compare(call),
            Input::State(call) => self.grant_state(call),
            Input::Uploaded { worker, session, blob } => self.uploaded(worker, session, blob),
        }
    }

    /// The first failure is the cause; others follow from it.
    fn fail(&mut self, error: String) {
        self.updates.current = None;
        self.snapshots.gathering = None;
        if !matches!(self.ending.reason, Some(StopReason::Failed(_))) {
            self.ending.reason = Some(StopReason::Failed(error));
        }
    }

    fn check_limits(&mut self) {
        let now = self.now();
        let limits = &self.config.limits;
        let live = self.core.machine().live().len();
        let reason = match () {
            () if self.updates.current.is_none()
                && limits.rounds.is_some_and(|r| self.updates.version.0 >= r) =>
            {
                Some(StopReason::Rounds)
            }
            () if limits.time.is_some_and(|limit| now >= Time::ZERO + limit) => {
                Some(StopReason::TimeLimit)
            }
            () if limits.workers_finish && self.ending.all_finished(live) => {
                Some(StopReason::WorkersFinished)
            }
            () => self.core.stop_reason(now),
        };
        if let Some(reason) = reason {
            self.stop_because(reason);
        }
    }
}

impl Driver for Run {
    fn coordinator(&mut self) -> &mut Coordinator {
        &mut self.core
    }

    fn opened(&mut self, round: Round, at: Time) {
        self.updates.open(at);
        self.members.doubtful = false;
        self.study.open(at);
        self.bring_up_to_date(round.base());
    }

    fn give(&mut self, base: Version, work: &[Work]) {
        for Work { id, worker, portion, .. } in work {
            let (id, worker, portion) = (*id, *worker, portion.clone());
            let workers = self.members.workers.len();
            let push_at_once = self.members.credits.reserve(worker, id, workers);
            let behind = self.core.shards().left_out().map(|shard| shard.0).collect();
            let message = ToWorker::Work { id, base, portion, push_at_once, behind };
            self.members.workers.send(worker, &message);
        }
    }

    fn leases(&mut self, worker: WorkerId, leases: Vec<Portion>) {
        self.members.workers.send(worker, &ToWorker::Leases(leases));
    }

    fn accept(&mut self, accepted: &Accepted<'_>) {
        let &Accepted { id, worker, loss, blocks, share, .. } = accepted;
        self.updates.open.loss =
            self.updates.open.loss.zip(loss).map(|(sum, loss)| sum + share * loss);
        if let Some(conflict) = self.updates.rates.accept(worker, id) {
            tracing::warn!("{conflict}");
        }
        self.members.doubtful = false;
        let accept = ToShard::Accept { worker, id, share: share as f32 };
        let there = |shard: &&ShardId| blocks.contains(self.layout.shard_blocks(shard.0).start);
        let fresh = self.core.shards().fresh().iter();
        self.shards.send_to(fresh.filter(there), &accept);
        self.release(worker, id);
    }

    fn accept_part(&mut self, part: &AcceptedPart) {
        let &AcceptedPart { id, worker, shard, share, .. } = part;
        let accept = ToShard::Accept { worker, id, share: share as f32 };
        self.shards.send_to([&shard], &accept);
    }

    fn discard(&mut self, worker: WorkerId, id: ContributionId) {
        self.shards.send_all(&ToShard::Discard { worker, id });
        self.release(worker, id);
    }

    fn stop(&mut self, base: Version, stragglers: &[WorkerId]) {
        self.members.workers.send_all(stragglers.iter().copied(), &ToWorker::Cut { base });
    }

    fn close(
        &mut self,
        round: Round,
        closes: &[BlockClose],
        run_times: &[(WorkerId, RunTime)],
        _at: Time,
    ) {
        self.states.donors.observe(run_times);
        self.begin_update(round, closes);
        if self.config.is_weak() && self.core.machine().stops_stragglers() {
            // Threads that still carry parts of a closed round do not report that they stop.
            self.core.give_up_parts(round.base());
        }
    }

    fn record(&mut self, event: Event) {
        self.wait_notice.see(&event);
        if let EventKind::Cut { reason, .. } = &event.kind {
            let after = event.at.since(self.study.opened);
            self.updates.open.cut = Some((after, reason.to_string()));
        }
        // There may be no receiver left; the run goes on.
        let _ = self.events.send(event);
    }
}
