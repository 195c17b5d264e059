//! Analysis of run-time traces: the cost of stragglers, the savings of a cutoff, slow workers, workers
//! that are slow together, and lasting changes.
//!
//! Nothing here reads a file or prints: a [`Trace`](paceline_trace::Trace) goes in, an [`Analysis`]
//! comes out, the same for the same trace.

mod analysis;
mod batch_means;
mod censoring;
mod change;
mod correlation;
mod cost;
mod cutoff;
mod event;
mod groups;
mod partial;
mod quantile;
mod ranking;
mod residual;
mod spread;
mod student;
mod survival;
mod what_if;

pub use analysis::{Analysis, AnalysisStage, Options, Saving, analyze};
pub use censoring::{Censoring, CensoringBound};
pub use change::Change;
pub use cost::{Fixed, Oracle, SyncCost};
pub use cutoff::CutoffPoint;
pub use event::{Changes, Shift};
pub use groups::{WorkerGroup, WorkerGroups};
pub use partial::PartialWork;
pub use ranking::{Ranking, WorkerSlowness, Worst};
pub use spread::{RunTimeSpread, TailQuantiles};
pub use survival::{Survival, Survivals};
