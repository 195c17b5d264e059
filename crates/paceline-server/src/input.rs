//! Everything that can happen to a coordinator, in one queue.

use std::path::PathBuf;

use paceline_core::{LeaveReason, Version, WorkerId};
use paceline_wire::message::{FromWorker, Job};
use tokio::sync::{mpsc::UnboundedSender, oneshot};

use crate::{
    run::Evaluation,
    shard::{ShardCommand, ShardReport, link::BlockShape},
    workers::Outbox,
};

/// One thing that happened.
pub(crate) enum Input {
    /// A worker is at the door.
    Call(Call),
    /// A worker says something.
    Worker { worker: WorkerId, session: u64, message: FromWorker },
    /// A worker's connection ended.
    Gone { worker: WorkerId, session: u64, why: LeaveReason },
    /// A shard of another process is at the door.
    ShardCall(ShardCall),
    /// A shard says something, or has failed.
    Shard { index: u32, report: Result<ShardReport, String> },
    /// A connection ended badly.
    Rejected { worker: Option<WorkerId>, peer: String, error: String },
    /// A version was measured.
    Evaluated { version: Version, evaluation: Evaluation },
    /// A checkpoint is on disk, or is not.
    Checkpointed { version: Version, result: Result<PathBuf, String> },
}

/// A worker that wants in.
pub(crate) struct Call {
    pub(crate) wish: Option<u32>,
    pub(crate) name: String,
    pub(crate) outbox: Outbox,
    pub(crate) reply: oneshot::Sender<Result<Job, String>>,
}

/// A shard process that wants in.
pub(crate) struct ShardCall {
    pub(crate) index: u32,
    pub(crate) of: u32,
    pub(crate) address: String,
    pub(crate) commands: UnboundedSender<ShardCommand>,
    pub(crate) reply: oneshot::Sender<Result<BlockShape, String>>,
}
