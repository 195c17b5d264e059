//! Reports that the round machine refuses.

use thiserror::Error;

use crate::{Version, WorkerId};

/// A report that cannot be true. Costs the connection it came over, nothing else.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum MachineError {
    /// Nobody by that number is live.
    #[error("{0} is not a live worker")]
    Unknown(WorkerId),
    /// A live worker has that number.
    #[error("{0} is already live")]
    AlreadyLive(WorkerId),
    /// It was not given that work, or has delivered it already.
    #[error("{worker} was not given work on {base}")]
    NotWorking {
        /// Who.
        worker: WorkerId,
        /// On which version.
        base: Version,
    },
    /// It has said so already.
    #[error("{worker} said twice that its work on {base} is done")]
    SaidTwice {
        /// Who.
        worker: WorkerId,
        /// On which version.
        base: Version,
    },
    /// Nobody told it to stop.
    #[error("{worker} gave up work on {base} that its round waits for")]
    NotCut {
        /// Who.
        worker: WorkerId,
        /// On which version.
        base: Version,
    },
    /// The weight is not a number of the samples it was given.
    #[error("{worker} claims weight {weight} for {samples} samples")]
    BadWeight {
        /// Who.
        worker: WorkerId,
        /// What it claims.
        weight: f64,
        /// What it was given.
        samples: u32,
    },
    /// The loss is not a finite number.
    #[error("{worker} reports a loss of {loss}")]
    BadLoss {
        /// Who.
        worker: WorkerId,
        /// What it reports.
        loss: f64,
    },
    /// The squared norm of the gradient is negative or not a finite number.
    #[error("{worker} reports {square} as the squared norm of its gradient")]
    BadSquare {
        /// Who.
        worker: WorkerId,
        /// What it reports.
        square: f64,
    },
}
