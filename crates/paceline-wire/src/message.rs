//! The messages of the protocol, by sender and receiver. Bulk data goes in block frames, everything else in
//! these.

use std::time::Duration;

use paceline_core::{
    BlockClose, ContributionId, LeaveReason, Portion, ShardCounts, Straggler, Version, WorkerId,
};
use paceline_params::{Layout, OptimizerGroups, ParamHash, WireType};
use serde::{Deserialize, Serialize};

/// The first frame on every connection: the peer's token and role.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// The run's token; empty if the run has none.
    pub token: String,
    /// The purpose of the connection.
    pub role: Role,
}

/// The purpose of a connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Role {
    /// A worker's control connection, to the coordinator.
    Worker {
        /// The number it asks for; the coordinator may assign another.
        wish: Option<u32>,
        /// Host and process, for display.
        name: String,
    },
    /// A worker's data connection, to a shard.
    Data {
        /// The number it was given.
        worker: WorkerId,
        /// The session number from [`Job::session`].
        session: u64,
        /// The shard; one address may serve several.
        shard: u32,
    },
    /// A shard process's connection to the coordinator.
    Shard {
        /// The shard's number.
        index: u32,
        /// The number of shards.
        of: u32,
        /// Its address for workers; a bare port or `0.0.0.0` stands for the host it connects from.
        address: String,
    },
    /// A worker's connection to the coordinator on which it sends an [`Offer`](crate::offer::Offer).
    Offer,
    /// A worker's connection to the coordinator that carries a state
    /// ([`StateHead`](crate::offer::StateHead)).
    State {
        /// The number it was given.
        worker: WorkerId,
        /// The session number from [`Job::session`].
        session: u64,
        /// The version of the state that it sends; `None` to fetch the newest state.
        upload: Option<Version>,
    },
}

/// The answer to a [`Hello`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply<T> {
    /// Admitted.
    Welcome(T),
    /// Refused, with the reason. The connection closes.
    Refused(String),
}

/// Segments of a worker that shares memory: one for the gradient being computed, one for a finished gradient,
/// and one for a pushed gradient that shards may still read.
pub const SEGMENTS: u32 = 3;

/// Invites a worker on a data connection to share memory with the shard. It can accept only on the same host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Invitation {
    /// The name of the Unix socket to which it sends its session and its gradient segments.
    pub listener: String,
}

/// The settings that a worker needs to take part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The worker's number.
    pub worker: WorkerId,
    /// Proves to shards that a data connection belongs to this worker.
    pub session: u64,
    /// The number of workers that the run was started for.
    pub workers: u32,
    /// Time between heartbeats.
    pub heartbeat: Duration,
    /// Seed of the run: sample order, model and data generation.
    pub seed: u64,
    /// The model, as the user wrote it.
    pub model: String,
    /// The data, as the user wrote it. A worker on another host may have it elsewhere.
    pub data: String,
    /// The costs of its samples, as the user wrote them; empty if all cost the same.
    pub costs: String,
    /// Fingerprint of the costs by which batches are balanced, if they are (`Costs::fingerprint`). Workers
    /// with other costs would have another sample order.
    pub balance: Option<u64>,
    /// Samples in an epoch; `None` where workers bring streams of data, of which only weights count.
    pub samples: Option<u32>,
    /// Epochs that were complete when the worker joined.
    pub epochs: u32,
    /// Usual number of samples per worker and round.
    pub batch: u32,
    /// Micro-batches per worker and round.
    pub micro_batches: u32,
    /// What to do at a cut.
    pub straggler: Straggler,
    /// Whether to report the norm of each gradient sum.
    pub norms: bool,
    /// The version of the parameters when the worker joined.
    pub version: Version,
    /// Whether workers load every version in order: a version is a mean gradient, and workers keep the
    /// parameters themselves.
    pub follow: bool,
    /// Whether a worker may compute from a newer version than its task's: rounds do not wait for each other.
    pub any_newer: bool,
    /// The encoding of gradients and parameters on the wire.
    pub wire: WireType,
    /// The number of fresh blocks to compute with: all, a share, or auto.
    pub pull: String,
    /// Whether the parts of a contribution count one by one, so that none waits for another.
    pub partial_push: bool,
    /// How many updates a shard may miss. Values of a shard that is behind may be that old.
    pub max_stale: u64,
    /// The split of the parameters into blocks and shards.
    pub layout: Layout,
    /// The address of each shard; empty for the coordinator's own address.
    pub shards: Vec<String>,
}

/// From the coordinator to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    /// Pull this version and compute these samples.
    Work {
        /// The contribution that it is for.
        id: ContributionId,
        /// The version to compute from.
        base: Version,
        /// The samples, as positions in the epoch's order.
        portion: Portion,
        /// Whether to push as soon as it is done, instead of waiting for [`ToWorker::Push`].
        push_at_once: bool,
        /// Shards that are behind: the worker uses their last values and sends them no gradients.
        behind: Vec<u32>,
    },
    /// The portions that the worker holds for its next rounds, in order: the complete list after a change. A
    /// portion leaves the list when it becomes work ([`ToWorker::Work`] is sent first) or when another worker
    /// gets it.
    Leases(Vec<Portion>),
    /// There is room for its contribution: push it.
    Push {
        /// The contribution.
        id: ContributionId,
    },
    /// The round on this version has stopped waiting.
    Cut {
        /// The version.
        base: Version,
    },
    /// The round on this version is closed.
    Closed {
        /// The version.
        base: Version,
        /// The number of contributions.
        accepted: u32,
        /// Total weight of the update.
        weight: f64,
        /// The workers that contributed: bit w of byte w/8 is worker w.
        members: Vec<u8>,
        /// From the round's opening to its cut.
        cut_after: Duration,
        /// Why it was cut. For display.
        reason: String,
        /// Epochs of which every sample was used.
        epochs: u32,
    },
    /// Answers [`FromWorker::WantRecords`]: how these versions were stepped, in order. Empty if some are no
    /// longer kept.
    Records {
        /// The first of the versions.
        first: Version,
        /// One record for each version.
        records: Vec<Vec<u8>>,
    },
    /// The worker's state of a version differs from that of most others: it must take the run's state.
    Mismatch {
        /// The version.
        version: Version,
        /// The places in its [`FromWorker::Hashes`] that differ.
        places: Vec<u32>,
    },
    /// The run has reached its end, for this reason. For display.
    Stop(String),
    /// The run has failed, for this reason. For display.
    Failed(String),
    /// The worker is expelled, for this reason. For display. The connection closes.
    Expelled(String),
    /// Answers a heartbeat, so that the worker can measure the round trip.
    Heard {
        /// The heartbeat's time, from the worker.
        sent: Duration,
    },
    /// Send the state of this version or a newer one, on a connection of its own ([`Role::State`]).
    SendState {
        /// The version.
        at_least: Version,
    },
    /// Answers [`FromWorker::WantState`]: the server has a state that is new enough.
    StateReady {
        /// The version of the state.
        version: Version,
    },
}

/// From a worker to the coordinator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromWorker {
    /// The worker has loaded its data and is connected: it may be given work.
    Ready {
        /// Samples in its data; all workers must agree. `None` for a stream.
        samples: Option<u32>,
        /// Portions that it wants to hold for later rounds, so that it can load their samples early; 256 at
        /// most.
        ahead: u32,
    },
    /// Sent once per heartbeat interval.
    Heartbeat {
        /// The time, on the worker's own clock.
        sent: Duration,
    },
    /// Some micro-batches are done.
    Progress {
        /// The contribution it works on.
        id: ContributionId,
        /// Micro-batches done.
        done: u32,
    },
    /// From now on the worker splits its batches into another number of micro-batches than the job says.
    Split {
        /// Micro-batches of a batch.
        parts: u32,
    },
    /// The gradient is computed. It is being pushed, or will be when there is room.
    Done {
        /// The contribution.
        id: ContributionId,
        /// Samples behind it.
        weight: f64,
        /// Sum of the loss over its samples, if it is known.
        loss: Option<f64>,
        /// Squared norm of the gradient sum, if the job asks for it.
        square: Option<f64>,
        /// Shards whose values were older than the version.
        stale: Vec<u32>,
        /// The learning rate of each parameter group for this round's update, before scaling by the
        /// contributed weight. Empty to use the run's own rate and schedule.
        learning_rates: Vec<f32>,
    },
    /// Stopped because of a cut.
    Aborted {
        /// The contribution it worked on.
        id: ContributionId,
        /// Micro-batches done.
        done: u32,
    },
    /// The worker has stepped a version, where workers keep the parameters themselves.
    Stepped {
        /// The version.
        version: Version,
        /// How it was stepped, for workers that missed it. The coordinator does not read it.
        record: Vec<u8>,
    },
    /// The worker missed these versions and asks for their records.
    WantRecords {
        /// The first version.
        first: Version,
        /// The last version.
        last: Version,
    },
    /// Hashes of the worker's state after it stepped a version.
    Hashes {
        /// The version.
        version: Version,
        /// The hash of each tensor of the layout, then of the optimizer state of each.
        hashes: Vec<u64>,
    },
    /// The worker needs the state of this version or a newer one.
    WantState {
        /// The version.
        at_least: Version,
    },
    /// The worker leaves in an orderly way.
    Bye,
}

/// From a worker to a shard. Gradients follow as block frames, headed by the id of their contribution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToData {
    /// Send all blocks of this version, as soon as it is published, or of a newer one if it is gone.
    Pull {
        /// The version.
        version: Version,
        /// Whether [`FromData::Published`] may be the answer, through shared memory.
        shared: bool,
    },
    /// The contribution that was begun will not be completed.
    Abandon {
        /// The contribution.
        id: ContributionId,
    },
    /// The worker has connected to the socket of its [`Invitation`] and sent its segments.
    Memory,
    /// A whole gradient is in one of the worker's segments, and stays there until it is folded or dropped.
    Push {
        /// The contribution.
        id: ContributionId,
        /// The segment's number.
        segment: u32,
    },
    /// The worker no longer needs the answer to its last [`ToData::Pull`]. The shard stops after the
    /// block that it is sending and answers with [`FromData::Cancelled`].
    Cancel,
}

/// From a shard to a worker on a data connection. Parameters are sent as block frames, or through shared
/// memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromData {
    /// The worker's last message was in error; the connection closes.
    Error(String),
    /// A version is in one of the shard's segments, for as long as the segment's head names it.
    Published {
        /// The version.
        version: Version,
        /// The segment's number.
        segment: u32,
    },
    /// Answers each [`ToData::Cancel`]: no more frames of earlier answers follow.
    Cancelled,
}

/// From the coordinator to a shard. Block frames follow an [`ToShard::Init`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToShard {
    /// The shard's part of the parameters, and its settings.
    Init(ShardSpec),
    /// Admit a worker's data connection.
    Admit {
        /// The worker.
        worker: WorkerId,
        /// The session that it must present.
        session: u64,
    },
    /// A worker is gone. Its staged contributions that are not accepted are dropped.
    Forget {
        /// The worker.
        worker: WorkerId,
    },
    /// A contribution counts; it may be folded.
    Accept {
        /// The worker.
        worker: WorkerId,
        /// The contribution.
        id: ContributionId,
        /// The share of its weight that counts: 1, or less for a late contribution.
        share: f32,
    },
    /// A contribution does not count.
    Discard {
        /// The worker.
        worker: WorkerId,
        /// The contribution.
        id: ContributionId,
    },
    /// Membership is fixed: complete the sums and report their norms.
    Close {
        /// Members, by set of blocks.
        closes: Vec<BlockClose>,
        /// The update, if it does not depend on the sums: each block is then summed, measured and updated in
        /// one pass.
        apply: Option<Apply>,
    },
    /// Update and publish.
    Apply(Apply),
    /// The run went on without this shard: it publishes its present blocks as this version, too.
    Skip {
        /// The version.
        version: Version,
    },
    /// Report the whole state.
    Snapshot,
    /// The run is over.
    Stop,
}

/// An update, the same for all shards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Apply {
    /// The version that it makes.
    pub version: Version,
    /// Updates applied to the parameters, including this one.
    pub step: u64,
    /// The learning rate of each parameter group.
    pub learning_rates: Vec<f32>,
    /// The factor from each sum to its clipped mean, one for each close.
    pub scales: Vec<f32>,
    /// Whether to report the hash of the parameters.
    pub hash: bool,
}

/// A shard's part of the parameters, and its settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardSpec {
    /// The shard's number.
    pub index: u32,
    /// The whole layout.
    pub layout: Layout,
    /// How updates are made, for each parameter group.
    pub optimizer: OptimizerGroups,
    /// The encoding of gradients and parameters on the wire.
    pub wire: WireType,
    /// The version of the parameters that follow.
    pub version: Version,
    /// Contributions that may be staged at once.
    pub staging: u32,
    /// Whether sums are made in worker order at the close, or as contributions are accepted.
    pub fold_at_close: bool,
    /// How long a peer may delay a frame that it must send.
    pub patience: Duration,
    /// Workers expected to share memory with it if they are on its host; `None` to share no memory.
    pub sharers: Option<u32>,
    /// Earlier versions to keep, for workers that load every version in order.
    pub history: u32,
}

/// From a shard to the coordinator. Block frames follow a [`FromShard::Snapshot`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromShard {
    /// A heartbeat, sent after a while without other messages.
    Alive,
    /// The parameters are in place.
    Ready,
    /// A contribution is whole here and, if it came in blocks, finite.
    Staged {
        /// The worker.
        worker: WorkerId,
        /// The worker's session.
        session: u64,
        /// The contribution.
        id: ContributionId,
    },
    /// A worker's data connection ended with an error.
    Gone {
        /// The worker.
        worker: WorkerId,
        /// The worker's session.
        session: u64,
        /// The reason.
        why: LeaveReason,
    },
    /// A peer was refused.
    Rejected {
        /// The peer's address.
        peer: String,
        /// The error.
        error: String,
    },
    /// The sums are complete.
    Summed {
        /// Squared norms of this shard's part of the sums, one for each close.
        norms: Vec<f64>,
    },
    /// The update is applied and published.
    Applied {
        /// The version that it made.
        version: Version,
        /// Hash of this shard's parameters, if requested.
        hash: Option<ParamHash>,
        /// The shard's traffic since the previous version.
        counts: ShardCounts,
    },
    /// The whole state of this version follows.
    Snapshot {
        /// The version.
        version: Version,
    },
}
