//! Everything that can happen to a coordinator, in one queue.

use std::path::PathBuf;

use paceline_core::{LeaveReason, Version, WorkerId};
use paceline_wire::{
    FrameError,
    message::{FromWorker, Job},
};
use tokio::sync::{OwnedSemaphorePermit, mpsc::UnboundedSender, oneshot};

use crate::{
    run::Evaluation,
    shard::{ShardCommand, ShardReport, link::BlockShape},
    workers::Outbox,
};

/// One thing that happened.
pub(crate) enum Input {
    /// A worker is at the door.
    Call(Call),
    /// A worker says something; its place in the queue is free again once that is heard.
    Worker { worker: WorkerId, session: u64, message: FromWorker, _place: OwnedSemaphorePermit },
    /// A connection ended.
    Ended(Ended),
    /// A shard of another process is at the door.
    ShardCall(ShardCall),
    /// A shard says something, or has failed.
    Shard { index: u32, report: Result<ShardReport, String> },
    /// A version was measured, or could not be.
    Evaluated { version: Version, result: Result<Evaluation, String> },
    /// A checkpoint is on disk, or is not; `None` where it is not finite.
    Checkpointed { version: Version, result: Result<Option<PathBuf>, String> },
}

/// A connection that is no more.
pub(crate) enum Ended {
    /// Of a peer that was not let in.
    Stranger { peer: String, error: String },
    /// Of a worker: its control connection, or a data connection that it cannot go on without.
    Worker { worker: WorkerId, session: u64, why: LeaveReason },
}

/// Why a worker is gone whose connection ended with `error`: it hung up, or was hung up on.
pub(crate) fn leave_reason(error: &FrameError) -> LeaveReason {
    match error {
        FrameError::Closed | FrameError::Truncated | FrameError::Io(_) => LeaveReason::Disconnected,
        error => LeaveReason::Misbehaved(error.to_string()),
    }
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
