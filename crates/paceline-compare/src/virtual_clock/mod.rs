//! Real training on a virtual clock.
//!
//! Gradients, updates, the coordinator and its policies are the real ones; only time is virtual. The run-time
//! of each worker comes from a [`paceline_sim::World`] (a scenario or a trace), and a gradient is computed
//! when it would arrive. Time to accuracy can thus be studied for 8 or 200 workers on one core, without one
//! slowing another, as fast as the gradients compute. A gradient that would not be used is not computed.
//!
//! A worker's run-time covers pull, compute and push. A configured overhead passes between a close and the
//! next opening. A worker that is cut pushes its finished work at once, and completes its current layer
//! before it begins the next round, as a real one does.

mod paced;
mod training;
mod worker;

pub use paced::{Paced, bounds};
pub use training::{Point, Training, TrainingConfig, TrainingRecord, VirtualRound};
