//! Comparison studies: time to accuracy, policy by policy, on real training.
//!
//! [`compare`] trains every policy under every scenario, on a virtual clock ([`Training`]) or as real
//! processes, and keeps the results in a folder, from which an interrupted comparison resumes.

mod args;
mod contender;
mod live;
mod report;
mod results;
mod scenario;
mod store;
mod study;
mod summary;
mod target;
mod trial;
mod virtual_clock;

pub use args::CompareArgs;
pub use results::{ComparisonResults, compare};
pub use study::OnStage;
pub use virtual_clock::{
    Paced, Point, Training, TrainingConfig, TrainingRecord, VirtualRound, bounds,
};
