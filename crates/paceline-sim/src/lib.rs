//! Rounds in simulated time: the production round machine and policies, driven by traces and
//! generated clusters.

mod replay;
mod scripted;
mod system;
mod timed;
mod turns;
mod world;

pub use replay::{Replay, ReplayOutcome, RoundOutcome};
pub use scripted::Scripted;
pub use system::{PRESETS, System, SystemOutcome, SystemRound, SystemSpec, Weak};
pub use timed::Cost;
pub use turns::Turns;
pub use world::{Drawn, Recorded, World, comings_and_goings};
