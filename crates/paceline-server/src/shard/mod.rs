//! A shard: one slice of the parameters, its optimiser state, and the sums that update it.
//!
//! [`ShardState`] is the arithmetic, driven by a thread of its own so that folding never blocks a socket.
//! Data connections ([`data`]) pass it whole, checked contributions and read the versions that it publishes.

pub(crate) mod data;
pub(crate) mod link;
pub(crate) mod sharing;
mod state;
mod store;
mod sums;
mod thread;
mod tiles;
mod traffic;

pub(crate) use state::{ShardState, unfolded};
pub(crate) use store::{Outgoing, Parts, Place, Staged, Store};
pub(crate) use thread::{LocalShard, ShardInbox, spawn};

use paceline_params::Block;
use paceline_wire::message::{FromShard, ToShard};

/// A message to a shard, with the blocks that follow it.
#[derive(Debug)]
pub(crate) struct ShardCommand {
    pub(crate) message: ToShard,
    pub(crate) blocks: Vec<Block>,
}

/// A message from a shard, with the blocks that follow it.
#[derive(Debug)]
pub(crate) struct ShardReport {
    pub(crate) message: FromShard,
    pub(crate) blocks: Vec<Block>,
}

impl From<ToShard> for ShardCommand {
    fn from(message: ToShard) -> Self {
        ShardCommand { message, blocks: Vec::new() }
    }
}

impl From<FromShard> for ShardReport {
    fn from(message: FromShard) -> Self {
        ShardReport { message, blocks: Vec::new() }
    }
}
