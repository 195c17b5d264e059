//! The event type: decisions of the round machine and actions of its driver, in order.
//!
//! The log file, the terminal, replay and reports all read these events. The machine emits those that are
//! decisions. A driver acts on exactly the events that the machine emits, so the record cannot differ from
//! the run.

use std::{fmt, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    BlockClose, Blocks, ContributionId, LedgerReport, Round, RunTime, SampleCounts, ShardId,
    ShardWork, Time, Version, Work, WorkerId,
};

/// One line of the event log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The time, on the coordinator's clock.
    pub at: Time,
    /// The event.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// The kinds of events, with their data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// The server is up and its parameters are placed.
    RunStarted {
        /// The run's name.
        name: String,
        /// The policy, as the user writes it.
        policy: String,
        /// Workers expected before the first round.
        workers: u32,
        /// Shards that hold the parameters.
        shards: u32,
        /// Total number of parameters.
        parameters: u64,
        /// Samples in an epoch; `None` where workers bring streams of data.
        samples: Option<u32>,
        /// Samples used before this process began, by the run that it resumes.
        #[serde(default)]
        used: u64,
        /// The first version: 0, or the version of the checkpoint that it resumes from.
        version: Version,
        /// The most memory that staged contributions may take, over all shards.
        staging_bytes: u64,
    },
    /// A worker has joined and may be given work.
    WorkerJoined {
        /// The worker.
        worker: WorkerId,
        /// Host and process, for display.
        name: String,
    },
    /// A worker is gone. Its samples return to the ledger.
    WorkerLeft {
        /// The worker.
        worker: WorkerId,
        /// The reason.
        why: LeaveReason,
    },
    /// A round opened: its version is published and these workers are computing.
    RoundStarted {
        /// The round.
        round: Round,
        /// The workers at its start, with their samples.
        work: Vec<Work>,
    },
    /// A worker became free and was given work inside a round that could not close without it.
    Enlisted {
        /// The round.
        round: Round,
        /// The worker and its samples.
        work: Work,
    },
    /// A contribution is complete, on every shard or on as many as are waited for, and is accepted into the
    /// open round.
    Arrived {
        /// The round it is counted in.
        round: Round,
        /// The contribution.
        #[serde(default)]
        id: ContributionId,
        /// The version it was computed from.
        base: Version,
        /// The worker.
        worker: WorkerId,
        /// Samples behind it.
        weight: f64,
        /// The share of its weight that counts: 1, or less for a late contribution that was folded in.
        #[serde(skip_serializing_if = "is_one", default = "one")]
        share: f64,
        /// Sum of the loss over its samples, if its worker knows it.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        loss: Option<f64>,
        /// How long it took.
        run_time: RunTime,
        /// The blocks that it is complete on.
        #[serde(skip_serializing_if = "Blocks::is_all", default)]
        blocks: Blocks,
    },
    /// Another shard's part of an accepted contribution has arrived and counts on that shard.
    Landed {
        /// The contribution.
        #[serde(default)]
        id: ContributionId,
        /// The version it was computed from.
        base: Version,
        /// The worker.
        worker: WorkerId,
        /// The shard.
        shard: ShardId,
        /// The share of its weight that counts.
        #[serde(skip_serializing_if = "is_one", default = "one")]
        share: f64,
    },
    /// A contribution arrived after its round had closed and is dropped.
    Late {
        /// The contribution.
        #[serde(default)]
        id: ContributionId,
        /// The version it was computed from.
        base: Version,
        /// The worker.
        worker: WorkerId,
        /// Samples behind it, none of which is used.
        weight: f64,
        /// How long it took.
        run_time: RunTime,
    },
    /// A worker computes its batches in another number of micro-batches than the run's setting, in runs where
    /// micro-batches count one by one. The policy expects that from the next round on.
    Split {
        /// The worker.
        worker: WorkerId,
        /// Micro-batches of each of its batches.
        parts: u32,
    },
    /// A worker has finished a micro-batch, in runs where micro-batches count one by one.
    Progress {
        /// The worker.
        worker: WorkerId,
        /// The version it works from.
        base: Version,
        /// Micro-batches it has finished.
        done: u32,
    },
    /// A straggler stopped after `done` micro-batches.
    Aborted {
        /// The contribution.
        #[serde(default)]
        id: ContributionId,
        /// The version it was working from.
        base: Version,
        /// The worker.
        worker: WorkerId,
        /// Micro-batches it had finished.
        done: u32,
    },
    /// Another worker with the same samples was faster. This one is told to stop, and its contribution will
    /// not count.
    Superseded {
        /// The contribution.
        id: ContributionId,
        /// The worker.
        worker: WorkerId,
        /// The version it is computed from.
        base: Version,
        /// The worker that was faster.
        by: WorkerId,
    },
    /// The round stops waiting. Stragglers are told.
    Cut {
        /// The round.
        round: Round,
        /// The reason.
        reason: CutReason,
        /// The component that the policy relies on, if it combines several.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        trusts: Option<String>,
        /// Contributions accepted so far.
        accepted: u32,
        /// Workers still computing for it.
        stragglers: Vec<WorkerId>,
        /// When the policy was asked, and how many contributions had arrived by then. These times and the
        /// arrivals are enough to replay a round to the same end.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        asked: Vec<(Time, u32)>,
    },
    /// The round's membership is fixed; nothing more is accepted into it.
    Closed {
        /// The round.
        round: Round,
        /// Members and weights, for all blocks or by block set.
        closes: Vec<BlockClose>,
        /// The run-time of each worker that was given work in this round.
        run_times: Vec<(WorkerId, RunTime)>,
    },
    /// No work of this worker was used for `rounds` rounds: it may as well be removed.
    Useless {
        /// The worker.
        worker: WorkerId,
        /// Its name.
        #[serde(default)]
        name: String,
        /// Rounds since its work was last used.
        rounds: u32,
    },
    /// The open round has waited far longer than the rounds before it. Repeated whenever the wait has
    /// doubled.
    Waiting {
        /// The round.
        round: Round,
        /// Time since it opened.
        waited: Duration,
        /// Workers that were given work in it and have not delivered, with their names.
        workers: Vec<(WorkerId, String)>,
    },
    /// The system's timers usually fire this late. Written before a round opens, when it has changed.
    TimersLate {
        /// The usual lateness.
        usual: Duration,
    },
    /// A shard has missed `rounds` updates, so the next round waits for it.
    ShardAwaited {
        /// The shard.
        shard: ShardId,
        /// Updates that it has missed.
        rounds: u64,
    },
    /// The update is applied, on every shard that is not left behind, and the new version published.
    Updated {
        /// The round that produced it.
        round: Round,
        /// The version that it produced.
        version: Version,
        /// The learning rate used.
        learning_rate: f32,
        /// Norm of the mean gradient before clipping.
        gradient_norm: f64,
        /// The current estimate of the gradient noise scale, in samples.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        noise_scale: Option<f64>,
        /// Mean loss of the samples used, if every worker knows its loss.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        loss: Option<f64>,
        /// Samples used.
        weight: f64,
        /// Hash of all parameters of the new version, if the run asks for it.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        param_hash: Option<String>,
        /// The work of each shard for this update, by shard number.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        shards: Vec<ShardWork>,
    },
    /// A worker that keeps the parameters itself has other values than most workers. It takes the run's state.
    Mismatch {
        /// The worker.
        worker: WorkerId,
        /// The version after which the states were compared.
        version: Version,
        /// The first tensor that differs.
        tensor: String,
        /// How many tensors differ, counting their optimizer state apart.
        differing: u32,
    },
    /// The parameters were evaluated on the test set.
    Evaluated {
        /// The version that was evaluated.
        version: Version,
        /// Mean loss.
        loss: f64,
        /// Share of correct answers, 0 to 1.
        accuracy: f64,
    },
    /// A checkpoint is complete on disk.
    Checkpointed {
        /// The version it holds.
        version: Version,
        /// Its path.
        path: PathBuf,
    },
    /// A checkpoint could not be written. The run goes on and tries again later.
    CheckpointFailed {
        /// The version it would have held.
        version: Version,
        /// The error.
        error: String,
    },
    /// A connection was closed because of an error on it. The run goes on.
    ConnectionClosed {
        /// The peer, or its worker.
        peer: String,
        /// The error.
        error: String,
    },
    /// The run is over.
    Stopped {
        /// The reason.
        reason: StopReason,
        /// Counts of used, dropped, requeued and salvaged samples.
        samples: SampleCounts,
        /// The ledger's final report.
        ledger: LedgerReport,
    },
}

/// The default share.
pub(crate) fn one() -> f64 {
    1.0
}

pub(crate) fn is_one(share: &f64) -> bool {
    *share == 1.0
}

/// Why a worker left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaveReason {
    /// It said goodbye.
    Finished,
    /// Its connection ended.
    Disconnected,
    /// Nothing was received from it for this long.
    Silent(Duration),
    /// It broke the protocol or sent unusable data.
    Misbehaved(String),
    /// Its gradient or loss is not finite: the worker is faulty, or the training diverges.
    NotFinite(String),
}

impl fmt::Display for LeaveReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeaveReason::Finished => write!(f, "finished"),
            LeaveReason::Disconnected => write!(f, "its connection ended"),
            LeaveReason::Silent(d) => write!(f, "silent for {:.1} s", d.as_secs_f64()),
            LeaveReason::Misbehaved(what) | LeaveReason::NotFinite(what) => write!(f, "{what}"),
        }
    }
}

/// Why a round stopped waiting.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutReason {
    /// No worker is left to wait for.
    AllArrived,
    /// As many contributions arrived as the policy waits for.
    Count {
        /// The number of contributions.
        wanted: u32,
    },
    /// The policy's deadline passed.
    Deadline,
    /// No further wait for the outstanding workers was worth its time.
    NotWorthWaiting {
        /// Outstanding workers.
        missing: u32,
    },
}

impl fmt::Display for CutReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CutReason::AllArrived => write!(f, "all arrived"),
            CutReason::Count { wanted } => write!(f, "{wanted} arrived"),
            CutReason::Deadline => write!(f, "deadline"),
            CutReason::NotWorthWaiting { missing } => {
                write!(f, "not worth waiting for {missing} more")
            }
        }
    }
}

/// Why the run stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The requested number of rounds is done.
    Rounds,
    /// The requested number of epochs is done.
    Epochs,
    /// The requested accuracy is reached.
    TargetAccuracy,
    /// The requested loss is reached.
    TargetLoss,
    /// The time is up.
    TimeLimit,
    /// All workers have finished and left.
    WorkersFinished,
    /// The run was interrupted.
    Interrupted,
    /// Too few live workers for too long.
    QuorumLost {
        /// Live workers.
        live: u32,
        /// Live workers that the run needs.
        quorum: u32,
        /// How long it waited for more.
        grace: Duration,
    },
    /// No worker has a finite gradient from this version, or it is not finite itself.
    Diverged(Version),
    /// A shard or the server itself failed.
    Failed(String),
}

impl StopReason {
    /// Whether the run reached its goal or was interrupted on request.
    pub fn is_success(&self) -> bool {
        !matches!(
            self,
            StopReason::QuorumLost { .. } | StopReason::Diverged(_) | StopReason::Failed(_)
        )
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopReason::Rounds => write!(f, "all rounds done"),
            StopReason::Epochs => write!(f, "all epochs done"),
            StopReason::TargetAccuracy => write!(f, "target accuracy reached"),
            StopReason::TargetLoss => write!(f, "target loss reached"),
            StopReason::TimeLimit => write!(f, "time limit reached"),
            StopReason::WorkersFinished => write!(f, "all workers have finished"),
            StopReason::Interrupted => write!(f, "interrupted"),
            StopReason::QuorumLost { live, quorum, grace } => write!(
                f,
                "quorum lost: {live} live workers, {quorum} needed, waited {:.1} s for more",
                grace.as_secs_f64()
            ),
            StopReason::Diverged(version) => write!(
                f,
                "training diverged: parameters or gradients are not finite at {version}; lower the \
                 learning rate"
            ),
            StopReason::Failed(what) => write!(f, "{what}"),
        }
    }
}
