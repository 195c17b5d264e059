//! The one event type: what the round machine decided and what its driver did, in order.
//!
//! Log file, terminal, replay, reports and (later) the page all read these. The machine emits
//! those that are decisions; a driver acts on exactly what it emits, so the record cannot differ
//! from what was done.

use std::{fmt, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    BlockClose, Blocks, ContributionId, LedgerReport, Round, RunTime, SampleCounts, ShardId,
    ShardWork, Time, Version, Work, WorkerId,
};

/// Something that happened, and when. One line of the event log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, on the coordinator's clock.
    pub at: Time,
    /// What.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// The server is up and its parameters are placed.
    RunStarted {
        /// The run's name.
        name: String,
        /// The policy, as the user would write it.
        policy: String,
        /// Workers expected before the first round.
        workers: u32,
        /// Shards that hold the parameters.
        shards: u32,
        /// Parameters in all.
        parameters: u64,
        /// Samples in an epoch.
        samples: u32,
        /// Samples used before this process began, by a run that it goes on with.
        #[serde(default)]
        used: u64,
        /// The first version: 0, or that of the checkpoint it resumed from.
        version: Version,
        /// The most memory that staged contributions may take, over all shards.
        staging_bytes: u64,
    },
    /// A worker is here and may be given work.
    WorkerJoined {
        /// Which.
        worker: WorkerId,
        /// Host and process, for people.
        name: String,
    },
    /// A worker is gone; its samples return to the ledger.
    WorkerLeft {
        /// Which.
        worker: WorkerId,
        /// Why.
        why: LeaveReason,
    },
    /// A round opened: its version is published and these workers are computing.
    RoundStarted {
        /// Which.
        round: Round,
        /// Who was given which samples at its start.
        work: Vec<Work>,
    },
    /// A worker became free and was given work inside a round that could not close without it.
    Enlisted {
        /// The round.
        round: Round,
        /// Who was given which samples.
        work: Work,
    },
    /// A contribution is complete, on every shard or on as many as are waited for, and accepted into the
    /// open round.
    Arrived {
        /// The round it is counted in.
        round: Round,
        /// The contribution.
        #[serde(default)]
        id: ContributionId,
        /// The version it was computed from.
        base: Version,
        /// Whose.
        worker: WorkerId,
        /// Samples behind it.
        weight: f64,
        /// What of that counts: 1, or less for a late one that was folded in.
        #[serde(skip_serializing_if = "is_one", default = "one")]
        share: f64,
        /// Sum of the loss over them.
        loss: f64,
        /// How long it took.
        run_time: RunTime,
        /// The blocks that it is complete on.
        #[serde(skip_serializing_if = "Blocks::is_all", default)]
        blocks: Blocks,
    },
    /// Another shard's part of a contribution that is accepted has come, and counts there.
    Landed {
        /// The contribution.
        #[serde(default)]
        id: ContributionId,
        /// The version it was computed from.
        base: Version,
        /// Whose.
        worker: WorkerId,
        /// Where.
        shard: ShardId,
        /// What of it counts.
        #[serde(skip_serializing_if = "is_one", default = "one")]
        share: f64,
    },
    /// A contribution came after its round had closed and is dropped.
    Late {
        /// The contribution.
        #[serde(default)]
        id: ContributionId,
        /// The version it was computed from.
        base: Version,
        /// Whose.
        worker: WorkerId,
        /// Samples behind it, which nobody uses.
        weight: f64,
        /// How long it took.
        run_time: RunTime,
    },
    /// A worker has finished a micro-batch, where they count one by one.
    Progress {
        /// Who.
        worker: WorkerId,
        /// The version it works from.
        base: Version,
        /// Micro-batches it has finished.
        done: u32,
    },
    /// A straggler stopped, having finished this many micro-batches.
    Aborted {
        /// The contribution.
        #[serde(default)]
        id: ContributionId,
        /// The version it was working from.
        base: Version,
        /// Who.
        worker: WorkerId,
        /// Micro-batches it had finished.
        done: u32,
    },
    /// Another worker that holds the same samples was sooner. This one is told to stop; nothing of its
    /// contribution will count.
    Superseded {
        /// The contribution.
        id: ContributionId,
        /// Whose.
        worker: WorkerId,
        /// The version it is computed from.
        base: Version,
        /// The worker that was sooner.
        by: WorkerId,
    },
    /// The round stops waiting. Stragglers are told.
    Cut {
        /// Which round.
        round: Round,
        /// Why now.
        reason: CutReason,
        /// What the policy trusts, if it weighs several things.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        trusts: Option<String>,
        /// Contributions accepted so far.
        accepted: u32,
        /// Those still working for it.
        stragglers: Vec<WorkerId>,
        /// When the policy was asked, and how many had arrived by then. With these and the arrivals
        /// a round can be re-driven to the same end.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        asked: Vec<(Time, u32)>,
    },
    /// The round's membership is fixed; nothing more is accepted into it.
    Closed {
        /// Which round.
        round: Round,
        /// Members and weights, for all blocks or by block set.
        closes: Vec<BlockClose>,
        /// The run-time of everyone who was given work in this round.
        run_times: Vec<(WorkerId, RunTime)>,
    },
    /// Nothing of a worker was used for so many rounds: it may as well be taken away.
    Useless {
        /// Who.
        worker: WorkerId,
        /// What it is called.
        #[serde(default)]
        name: String,
        /// That many.
        rounds: u32,
    },
    /// The open round has waited far longer than the rounds before it. Comes again whenever the wait
    /// has doubled.
    Waiting {
        /// The round.
        round: Round,
        /// Time since it opened.
        waited: Duration,
        /// Workers that were given work in it and have not delivered, with their names.
        workers: Vec<(WorkerId, String)>,
    },
    /// A shard has missed so many updates that the next round waits for it.
    ShardAwaited {
        /// Which.
        shard: ShardId,
        /// That many.
        rounds: u64,
    },
    /// The update is applied, on every shard that is not left behind, and the new version published.
    Updated {
        /// The round whose update it is.
        round: Round,
        /// The version it made.
        version: Version,
        /// The learning rate used.
        learning_rate: f32,
        /// Norm of the mean gradient before clipping.
        gradient_norm: f64,
        /// The gradient noise scale as estimated by now, in samples.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        noise_scale: Option<f64>,
        /// Mean loss of the samples used.
        loss: f64,
        /// Samples used.
        weight: f64,
        /// Hash of all parameters of the new version, where the run asks for it.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        param_hash: Option<String>,
        /// What each shard did for it, by its number.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        shards: Vec<ShardWork>,
    },
    /// The parameters were measured on the test set.
    Evaluated {
        /// The version that was measured.
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
        /// Where.
        path: PathBuf,
    },
    /// A checkpoint could not be written. The run goes on and tries again later.
    CheckpointFailed {
        /// The version it would have held.
        version: Version,
        /// What was wrong.
        error: String,
    },
    /// A connection was closed for what came over it; the run goes on.
    ConnectionClosed {
        /// The peer, or the worker it spoke for.
        peer: String,
        /// What was wrong.
        error: String,
    },
    /// The run is over.
    Stopped {
        /// Why.
        reason: StopReason,
        /// What became of the samples.
        samples: SampleCounts,
        /// What the ledger says.
        ledger: LedgerReport,
    },
}

/// What most shares are.
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
    /// Nothing was heard of it for this long.
    Silent(Duration),
    /// It broke the protocol or sent what cannot be used.
    Misbehaved(String),
    /// Its gradient or loss is not finite: it is at fault, or the training diverges.
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
    /// Nobody is left to wait for.
    AllArrived,
    /// As many came as the policy waits for.
    Count {
        /// That many.
        wanted: u32,
    },
    /// The moment that the policy keeps.
    Deadline,
    /// No further wait for those still out was worth its time.
    NotWorthWaiting {
        /// How many were still out.
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
    /// The asked number of rounds is done.
    Rounds,
    /// The asked number of epochs is done.
    Epochs,
    /// The asked accuracy is reached.
    TargetAccuracy,
    /// The asked loss is reached.
    TargetLoss,
    /// The time is up.
    TimeLimit,
    /// Somebody asked it to stop.
    Interrupted,
    /// Too few live workers for too long.
    QuorumLost {
        /// Live workers.
        live: u32,
        /// Needed.
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
    /// Whether the run did what it was asked to (or was asked to stop).
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
