//! Run-time traces: per round and worker a run-time, a lower bound of one, or nothing.
//!
//! The currency between recording, analysis, simulation and models. `docs/traces.md` has the file
//! formats.

mod hindsight;
mod trace;

pub use hindsight::{Hindsight, hindsight};
pub use trace::{Cell, MicroBatches, Trace, Unit};
