//! Real training on a virtual clock.
//!
//! Gradients, updates, the coordinator and its policies are the real ones; only time is not: how long
//! each worker takes comes from a [`paceline_sim::World`] (a scenario or a trace), and a gradient is
//! computed at the moment it would arrive. So time to accuracy can be studied for 8 or 200 workers on
//! one core, without their setting each other's pace, as fast as the gradients compute. What nobody
//! would use is not computed.
//!
//! A worker's round is pull, compute and push in one: its run-time. Between a close and the next
//! opening passes a stated overhead. A worker that is cut pushes what it has finished at once, and
//! completes the layer it is at before it begins with the next round, as a real one does.

mod scenario;
mod training;
mod worker;

pub use scenario::{Paced, bounds};
pub use training::{Point, Training, TrainingConfig, TrainingRecord, VirtualRound};
