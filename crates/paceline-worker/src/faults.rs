//! Where faults are injected into a worker.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use paceline_core::Version;
use paceline_wire::message::Job;

/// Faults that a worker bears on purpose, in demonstrations and tests. `paceline-faults` implements them;
/// a worker without an implementation bears none.
pub trait WorkerFaults {
    /// The worker has computed a micro-batch of its work on `base`, a `share` of a round's, from `began`
    /// on, or has given it up. Returns whether the result may still be used.
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

/// Makes the faults of the worker that has this job.
pub type MakeFaults = Arc<dyn Fn(&Job) -> Box<dyn WorkerFaults> + Send + Sync>;
