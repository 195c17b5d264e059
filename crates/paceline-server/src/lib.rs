//! The server: one coordinator and its shards, in one process or in several.
//!
//! [`serve`] drives the sans-IO coordinator of `paceline-core` from sockets and a clock; [`serve_offered`] does
//! so for workers that bring their model; [`serve_shard`] runs one shard in a process of its own. The core decides, `shard` sums, and this crate moves messages between
//! them.

mod checkpoints;
mod config;
mod credits;
mod door;
mod entrance;
mod error;
mod faults;
mod handshakes;
mod input;
mod offered;
mod placement;
mod remote;
mod rules;
mod run;
mod shard;
mod state;
mod workers;

pub use config::{
    CheckpointConfig, Limits, MissingToken, Placement, ResumedOffer, SavedState, ServerConfig,
    Start, WeakSync, check_bind,
};
pub use entrance::{serve, serve_offered};
pub use error::ServerError;
pub use faults::ShardFaults;
pub use remote::{ShardConfig, serve_shard};
pub use rules::{ConfigError, MAX_SHARDS, Rules};
pub use run::{Evaluation, Evaluator, Outcome};
