//! The interface for faults that are injected into a worker.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use paceline_core::Version;
use paceline_wire::message::Job;

/// Faults injected into a worker, in demonstrations and tests. `paceline-faults` implements them; a worker
/// without an implementation has none.
pub trait WorkerFaults {
    /// The worker has computed a micro-batch on `base`, a `share` of a round's work, since `began`, or has
    /// given it up. Returns whether the result may still be used.
    ///
    /// `rest` lets time pass until the round is cut, and returns whether all of the time passed.
    fn after_micro_batch(
        &mut self,
        base: Version,
        share: f64,
        began: Instant,
        rest: &dyn Fn(Duration) -> bool,
    ) -> bool;
}

/// Creates the faults of the worker that has this job.
pub type MakeFaults = Arc<dyn Fn(&Job) -> Box<dyn WorkerFaults> + Send + Sync>;
