//! The coordinator's inputs, in one queue.

use std::path::PathBuf;

use paceline_core::{LeaveReason, Version, WorkerId};
use paceline_wire::{
    FrameError,
    message::{FromWorker, Job},
    offer::{Offer, OfferReply},
};
use tokio::sync::{OwnedSemaphorePermit, mpsc::UnboundedSender, oneshot};

use crate::{
    run::Evaluation,
    shard::{ShardCommand, ShardReport, link::BlockShape},
    state::StateBlob,
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
    /// A worker offers its model and data.
    Offer(OfferCall),
    /// A worker asks to send a state, or to fetch the newest one.
    State(StateCall),
    /// A worker's upload has ended: with a state, or `None` with an error.
    Uploaded { worker: WorkerId, session: u64, blob: Option<StateBlob> },
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

/// A worker that offers its model and data.
pub(crate) struct OfferCall {
    pub(crate) offer: Offer,
    pub(crate) reply: oneshot::Sender<Result<OfferAnswer, String>>,
}

/// The answer to an offer that is not refused.
pub(crate) enum OfferAnswer {
    /// The run has its model already.
    Run(OfferReply),
    /// The offer defines the run: its initial state, of at most `bound` bytes, goes to `states`.
    Define { bound: u64, states: oneshot::Sender<InitialState> },
}

/// The state that a run starts from.
pub(crate) struct InitialState {
    pub(crate) blob: StateBlob,
    /// Whether the run starts from it.
    pub(crate) reply: oneshot::Sender<Result<(), String>>,
}

/// A worker that asks to send a state or to fetch one.
pub(crate) struct StateCall {
    pub(crate) worker: WorkerId,
    pub(crate) session: u64,
    /// The version that it sends.
    pub(crate) upload: Option<Version>,
    pub(crate) reply: oneshot::Sender<Result<StateGrant, String>>,
}

/// The permission to send a state or to fetch one.
pub(crate) enum StateGrant {
    /// Send the state of `version`, of at most `bound` bytes.
    Upload { version: Version, bound: u64 },
    /// Fetch this one.
    Download(StateBlob),
}
