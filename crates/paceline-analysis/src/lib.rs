//! What a trace of run-times says: what stragglers cost, what a cutoff would save, who is slow, who
//! is slow together, and since when.
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

pub use analysis::{Analysis, Options, Saving, Stage, analyze};
pub use censoring::{Bound, Censoring};
pub use change::Change;
pub use cost::{Cost, Fixed, Oracle};
pub use cutoff::Cutoff;
pub use event::{Changes, Shift};
pub use groups::{Group, Groups};
pub use partial::PartialWork;
pub use ranking::{Ranking, Slowness, Worst};
pub use spread::{Spread, Tail};
pub use survival::{Survival, Survivals};
