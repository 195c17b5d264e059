//! The coordinator's inputs, in one queue.

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

/// One input.
pub(crate) enum Input {
    /// A worker asks to join.
    Call(Call),
    /// A message from a worker. Its place in the backlog is free again once the message is handled.
    Worker { worker: WorkerId, session: u64, message: FromWorker, _place: OwnedSemaphorePermit },
    /// A connection ended.
    Ended(Ended),
    /// A shard of another process asks to join.
    ShardCall(ShardCall),
    /// A report from a shard, or its failure.
    Shard { index: u32, report: Result<ShardReport, String> },
    /// An evaluation has ended.
    Evaluated { version: Version, result: Result<Evaluation, String> },
    /// A checkpoint has ended; `None` if the parameters are not finite.
    Checkpointed { version: Version, result: Result<Option<PathBuf>, String> },
}

/// A connection that has ended.
pub(crate) enum Ended {
    /// The connection of a peer that was not admitted.
    Stranger { peer: String, error: String },
    /// A worker's control connection, or a data connection that it cannot go on without.
    Worker { worker: WorkerId, session: u64, why: LeaveReason },
}

/// The reason for a worker's leaving, from the `error` that ended its connection: it hung up, or was
/// disconnected.
pub(crate) fn leave_reason(error: &FrameError) -> LeaveReason {
    match error {
        FrameError::Closed | FrameError::Truncated | FrameError::Io(_) => LeaveReason::Disconnected,
        error => LeaveReason::Misbehaved(error.to_string()),
    }
}

/// A worker that asks to join.
pub(crate) struct Call {
    pub(crate) wish: Option<u32>,
    pub(crate) name: String,
    pub(crate) outbox: Outbox,
    pub(crate) reply: oneshot::Sender<Result<Job, String>>,
}

/// A shard process that asks to join.
pub(crate) struct ShardCall {
    pub(crate) index: u32,
    pub(crate) of: u32,
    pub(crate) address: String,
    pub(crate) commands: UnboundedSender<ShardCommand>,
    pub(crate) reply: oneshot::Sender<Result<BlockShape, String>>,
}
