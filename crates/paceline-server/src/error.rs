//! The errors that prevent or end a run.

use std::time::Duration;

use paceline_core::{LedgerError, StopReason};
use paceline_params::LayoutError;
use paceline_wire::FrameError;
use thiserror::Error;

use crate::{config::MissingToken, rules::ConfigError};

/// Errors that prevent or end a run.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The model cannot be laid out.
    #[error("failed to lay out the model: {0}")]
    Layout(#[from] LayoutError),
    /// The initial state does not fit the run.
    #[error("failed to begin: {0}")]
    Start(String),
    /// The checkpoint's ledger does not fit the data.
    #[error("failed to resume: {0}")]
    Ledger(#[from] LedgerError),
    /// Deterministic sums need all contributions at once.
    #[error(
        "deterministic runs stage the contributions of all {workers} workers: {needed} bytes, but \
         staging is bounded to {bound}; raise --staging-mb"
    )]
    Staging {
        /// Workers.
        workers: u32,
        /// Bytes needed.
        needed: u64,
        /// Bytes allowed.
        bound: u64,
    },
    /// Other machines could join without a token.
    #[error(transparent)]
    MissingToken(#[from] MissingToken),
    /// The listener's address is unknown.
    #[error("failed to tell where the server listens: {0}")]
    Listener(#[source] std::io::Error),
    /// Settings are out of range or do not go together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A shard failed.
    #[error("{0}")]
    Shard(String),
    /// A connection that the run depends on failed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// No worker brought a model.
    #[error("no worker offered a model within {:.0} s", .0.as_secs_f64())]
    NoOffer(Duration),
    /// The caller ended it before it was ready.
    #[error("the server was stopped before it was ready: {0}")]
    Stopped(StopReason),
    /// All inputs are gone.
    #[error("the server's inputs ended before it was ready")]
    NoInputs,
}
