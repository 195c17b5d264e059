//! What may be said, by whom to whom. Bulk data goes in block frames, everything else in these.

use std::time::Duration;

use paceline_core::{
    BlockClose, ContributionId, LeaveReason, Portion, ShardCounts, Straggler, Version, WorkerId,
};
use paceline_params::{Layout, OptimizerSpec, ParamHash, WireType};
use serde::{Deserialize, Serialize};

/// The first frame on every connection: who this is and what the connection is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// What lets a peer in where a token is asked for; else empty.
    pub token: String,
    /// What the connection is for.
    pub role: Role,
}

/// What a connection is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Role {
    /// A worker's control connection, to the coordinator.
    Worker {
        /// The number it would like; the coordinator may give another.
        wish: Option<u32>,
        /// Host and process, for people.
        name: String,
    },
    /// A worker's data connection, to a shard.
    Data {
        /// The number it was given.
        worker: WorkerId,
        /// What it was told in [`Job::session`].
        session: u64,
        /// The shard it means; one address may serve several.
        shard: u32,
    },
    /// A shard process's connection to the coordinator.
    Shard {
        /// Which shard.
        index: u32,
        /// Of how many.
        of: u32,
        /// Where its workers reach it; a bare port or `0.0.0.0` means the host it calls from.
        address: String,
    },
}

/// The answer to a [`Hello`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply<T> {
    /// Let in.
    Welcome(T),
    /// Not let in, and why. The connection closes.
    Refused(String),
}

/// Segments in which a worker that shares memory computes: one gradient in the making, one that is
/// finished, and one that was pushed and that shards may still read.
pub const SEGMENTS: u32 = 3;

/// Where a worker that is let in on a data connection may share memory with the shard, if it finds
/// the way: it does on the same host alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Invitation {
    /// The name of the Unix socket to which it sends its session and its gradient's segments.
    pub listener: String,
}

/// All that a worker must know to take part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The worker's number.
    pub worker: WorkerId,
    /// Proves to shards that a data connection is this worker's.
    pub session: u64,
    /// How often to give a sign of life.
    pub heartbeat: Duration,
    /// Seed of the run: sample order, model and data generation.
    pub seed: u64,
    /// The model, as the user wrote it.
    pub model: String,
    /// The data, as the user wrote it; a worker on another host may have it elsewhere.
    pub data: String,
    /// What its samples cost, as the user wrote it; empty if they are all alike.
    pub costs: String,
    /// By what exactly batches are balanced, if they are (`Costs::fingerprint`): workers that know other
    /// costs would have another sample order.
    pub balance: Option<u64>,
    /// Samples in an epoch.
    pub samples: u32,
    /// Samples of a round's work, usually.
    pub batch: u32,
    /// Parts in which a round's work is done.
    pub micro_batches: u32,
    /// What to do at a cut.
    pub straggler: Straggler,
    /// Whether to say the norm of each gradient sum.
    pub norms: bool,
    /// Whether work may be done from a newer version than it was given on: rounds do not wait.
    pub any_newer: bool,
    /// How gradients and parameters travel.
    pub wire: WireType,
    /// How many fresh blocks are enough to compute with: all, a share, or auto.
    pub pull: String,
    /// Whether the parts of a contribution count one by one, so that none waits for another.
    pub partial_push: bool,
    /// How many updates a shard may miss: of one that is behind, values as old do.
    pub max_stale: u64,
    /// How the parameters are cut into blocks and spread over shards.
    pub layout: Layout,
    /// Where each shard is; empty means the address the coordinator was reached at.
    pub shards: Vec<String>,
}

/// From the coordinator to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    /// Pull this version, compute these samples.
    Work {
        /// The contribution that is to come of it.
        id: ContributionId,
        /// The version to compute from.
        base: Version,
        /// The samples, as positions in the epoch's order.
        portion: Portion,
        /// Whether it may push as soon as it is done, or must wait for [`ToWorker::Push`].
        push_at_once: bool,
        /// Shards that are behind: of their blocks the last values do, and they get no gradients.
        behind: Vec<u32>,
    },
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
        /// How many contributed.
        accepted: u32,
        /// Total weight of the update.
        weight: f64,
        /// Who contributed: bit w of byte w/8 is worker w.
        members: Vec<u8>,
    },
    /// The run is over; why, for people.
    Stop(String),
    /// It is shown out for what it did; why, for people. The connection closes.
    Expelled(String),
    /// A sign of life was heard: how long a word takes there and back.
    Heard {
        /// When that was sent, as the worker said.
        sent: Duration,
    },
}

/// From a worker to the coordinator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromWorker {
    /// Everything is loaded and connected: it may be given work.
    Ready {
        /// Samples it has; all must agree.
        samples: u32,
    },
    /// Still here.
    Heartbeat {
        /// When, on the worker's own clock.
        sent: Duration,
    },
    /// So many micro-batches are done.
    Progress {
        /// The contribution it works on.
        id: ContributionId,
        /// Micro-batches done.
        done: u32,
    },
    /// The gradient is computed; it is being pushed, or will be when there is room.
    Done {
        /// The contribution.
        id: ContributionId,
        /// Samples behind it.
        weight: f64,
        /// Sum of the loss over them.
        loss: f64,
        /// Squared norm of the gradient sum, if the job asks for it.
        square: Option<f64>,
        /// Shards of which older values were used than those of the version.
        stale: Vec<u32>,
    },
    /// Stopped because of a cut.
    Aborted {
        /// The contribution it worked on.
        id: ContributionId,
        /// Micro-batches done.
        done: u32,
    },
    /// Leaving in order.
    Bye,
}

/// From a worker to a shard. Gradients follow as block frames, headed by the id of their contribution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToData {
    /// Send all blocks of this version or a newer one, as soon as it is published.
    Pull {
        /// The version.
        version: Version,
        /// Whether [`FromData::Published`] does instead, from shared memory.
        shared: bool,
    },
    /// The contribution begun will not be completed.
    Abandon {
        /// The contribution.
        id: ContributionId,
    },
    /// It has connected to the socket of its [`Invitation`] and sent its segments.
    Memory,
    /// A whole gradient is in one of its segments, and stays there until it is folded or dropped.
    Push {
        /// The contribution.
        id: ContributionId,
        /// Which of the segments.
        segment: u32,
    },
    /// The worker no longer needs the answer to its last [`ToData::Pull`]. The shard stops after the
    /// block that it is sending and answers with [`FromData::Cancelled`].
    Cancel,
}

/// From a shard to a worker on a data connection. Parameters go as block frames, or through shared
/// memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromData {
    /// What was wrong with what came; the connection closes.
    Error(String),
    /// A version is in one of the shard's segments, for as long as the segment's head says so.
    Published {
        /// The version.
        version: Version,
        /// Which of the segments.
        segment: u32,
    },
    /// The answer to a [`ToData::Cancel`], one for each: nothing more of earlier answers follows.
    Cancelled,
}

/// From the coordinator to a shard. Block frames follow an [`ToShard::Init`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToShard {
    /// What the shard is to hold.
    Init(ShardSpec),
    /// A worker's data connections may come.
    Admit {
        /// Which worker.
        worker: WorkerId,
        /// What they must show.
        session: u64,
    },
    /// A worker is gone; what is staged of it and not accepted is dropped.
    Forget {
        /// Which worker.
        worker: WorkerId,
    },
    /// A contribution counts; it may be folded.
    Accept {
        /// Whose.
        worker: WorkerId,
        /// The contribution.
        id: ContributionId,
        /// What of it counts: 1, or less for a late one.
        share: f32,
    },
    /// A contribution does not count.
    Discard {
        /// Whose.
        worker: WorkerId,
        /// The contribution.
        id: ContributionId,
    },
    /// Membership is fixed: complete the sums and report their norms.
    Close {
        /// Members by block set.
        closes: Vec<BlockClose>,
        /// The update, where it does not depend on the sums: each block is then summed, measured
        /// and updated in one pass.
        apply: Option<Apply>,
    },
    /// Update and publish.
    Apply(Apply),
    /// The run has gone on without this shard: what it holds goes for this version, too.
    Skip {
        /// That version.
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
    /// The version this makes.
    pub version: Version,
    /// Updates that the parameters will have seen.
    pub step: u64,
    /// The learning rate.
    pub learning_rate: f32,
    /// What turns a sum into the clipped mean, one for each of the closes.
    pub scales: Vec<f32>,
    /// Whether to report the hash of the parameters.
    pub hash: bool,
}

/// What a shard is to hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardSpec {
    /// Which shard.
    pub index: u32,
    /// The whole layout.
    pub layout: Layout,
    /// How updates are made.
    pub optimizer: OptimizerSpec,
    /// How gradients come in and parameters go out.
    pub wire: WireType,
    /// The version of the parameters that follow.
    pub version: Version,
    /// Contributions that may be staged at once.
    pub staging: u32,
    /// Whether sums are made in worker order at the close, or as contributions are accepted.
    pub fold_at_close: bool,
    /// How long a peer may be silent where it must speak.
    pub patience: Duration,
    /// Workers expected to share memory with it if they are on its host; none may without.
    pub sharers: Option<u32>,
}

/// From a shard to the coordinator. Block frames follow a [`FromShard::Snapshot`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromShard {
    /// Still here; said when there was nothing else to say for a while.
    Alive,
    /// The parameters are in place.
    Ready,
    /// A contribution is whole here, and finite, if it came in blocks.
    Staged {
        /// Whose.
        worker: WorkerId,
        /// Which incarnation of it.
        session: u64,
        /// The contribution.
        id: ContributionId,
    },
    /// A worker's data connection ended otherwise than in order.
    Gone {
        /// Which worker.
        worker: WorkerId,
        /// Which incarnation of it.
        session: u64,
        /// What ended it.
        why: LeaveReason,
    },
    /// A peer was not let in.
    Rejected {
        /// Where it called from.
        peer: String,
        /// What was wrong.
        error: String,
    },
    /// The sums are complete.
    Summed {
        /// Squared norms of this shard's part of the sums, one for each of the closes.
        norms: Vec<f64>,
    },
    /// The update is applied and published.
    Applied {
        /// The version it made.
        version: Version,
        /// Hash of this shard's parameters, where asked for.
        hash: Option<ParamHash>,
        /// What went through it since the version before.
        counts: ShardCounts,
    },
    /// The whole state of this version follows.
    Snapshot {
        /// The version.
        version: Version,
    },
}
