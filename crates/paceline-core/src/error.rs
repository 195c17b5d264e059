//! Reports that the round machine refuses.

use thiserror::Error;

use crate::{ContributionId, State, WorkerId};

/// A report that cannot be true. Costs the connection it came over, nothing else.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum MachineError {
    /// Nobody by that number is live.
    #[error("{0} is not a live worker")]
    Unknown(WorkerId),
    /// A live worker has that number.
    #[error("{0} is already live")]
    AlreadyLive(WorkerId),
    /// It was not given that contribution, or has said what became of it already.
    #[error("{worker} has no contribution {id}")]
    NotGiven {
        /// The worker.
        worker: WorkerId,
        /// The contribution it spoke of.
        id: ContributionId,
    },
    /// It has announced the contribution already.
    #[error("{worker} announced {id} twice")]
    AnnouncedTwice {
        /// The worker.
        worker: WorkerId,
        /// The contribution.
        id: ContributionId,
    },
    /// Nobody told it to stop.
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
