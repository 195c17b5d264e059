//! Run-time traces: per round and worker a run-time, a lower bound of one, or nothing.
//!
//! Recording, analysis, simulation and models exchange them. `docs/traces.md` has the file formats.

mod deadlines;
mod hindsight;
mod read;
mod synthetic;
mod trace;
mod write;

pub use deadlines::{Deadlines, deadlines};
pub use hindsight::{Hindsight, hindsight};
pub use read::{Position, Problem, ReadOptions, TraceError, read};
pub use synthetic::{
    Cluster, GENERATORS, Generator, Key, Phases, RandomCluster, RandomClusters, RoundSource,
    SyntheticSpec, SyntheticSpecError, generate, sample,
};
pub use trace::{Cell, MicroBatches, Trace, Unit};
pub use write::write_csv;

/// The most cells (workers × rounds) that a trace is read or drawn with: 2²⁶, which is half a GiB.
pub const MAX_CELLS: usize = 1 << 26;
