//! Reports that the round machine refuses.

use thiserror::Error;

use crate::{ContributionId, State, WorkerId};

/// A report that cannot be true. It costs its connection and nothing else.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum MachineError {
    /// No live worker has this number.
    #[error("{0} is not a live worker")]
    Unknown(WorkerId),
    /// A live worker already has this number.
    #[error("{0} is already live")]
    AlreadyLive(WorkerId),
    /// The worker was not given this contribution, or has already reported its end.
    #[error("{worker} has no contribution {id}")]
    NotGiven {
        /// The worker.
        worker: WorkerId,
        /// The contribution that it reported on.
        id: ContributionId,
    },
    /// The worker has already announced the contribution.
    #[error("{worker} announced {id} twice")]
    AnnouncedTwice {
        /// The worker.
        worker: WorkerId,
        /// The contribution.
        id: ContributionId,
    },
    /// The worker was not told to stop.
    #[error("{worker} gave up {id}, which its round waits for")]
    NotCut {
        /// The worker.
        worker: WorkerId,
        /// The contribution.
        id: ContributionId,
    },
    /// The contribution is in a state that the report cannot follow.
    #[error("{worker}'s contribution {id} is {from} and cannot become {to}")]
    Transition {
        /// The worker.
        worker: WorkerId,
        /// The contribution.
        id: ContributionId,
        /// Its state.
        from: State,
        /// The state that the report asks for.
        to: State,
    },
    /// The weight is not between 0 and the number of samples that the worker was given.
    #[error("{worker} claims weight {weight} for {samples} samples")]
    BadWeight {
        /// The worker.
        worker: WorkerId,
        /// The weight that it claims.
        weight: f64,
        /// The number of samples that it was given.
        samples: u32,
    },
    /// The loss is not a finite number.
    #[error("{worker} reports a loss of {loss}")]
    BadLoss {
        /// The worker.
        worker: WorkerId,
        /// The loss that it reports.
        loss: f64,
    },
    /// The squared norm of the gradient is negative or not a finite number.
    #[error("{worker} reports {square} as the squared norm of its gradient")]
    BadSquare {
        /// The worker.
        worker: WorkerId,
        /// The squared norm that it reports.
        square: f64,
    },
}
