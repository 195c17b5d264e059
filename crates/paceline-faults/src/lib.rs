//! Faults and slowness on purpose, for demonstrations, measurements and tests.
//!
//! [`FaultPlan`] is the language of `--stragglers`: everything that a run inflicts on its workers and
//! shards. A worker slows itself down ([`SlowWorker`]) and so does a shard ([`SlowShard`]); their crates
//! know no more of it than a trait each. Everything else is done to the worker's process from outside:
//! signals ([`Stopper`]), a busy loop beside it ([`hog`]), a proxy that delays and loses bytes and a
//! rate-limited link ([`WorkerNetwork`]).

mod disturbance;
mod hog;
mod network;
mod plan;
mod proxy;
mod rate;
mod shaped_link;
mod slow_shard;
mod slow_worker;
mod stall;

pub use disturbance::Preemption;
pub use hog::hog;
pub use network::{NetworkError, WorkerNetwork};
pub use plan::{FaultPlan, FaultPlanError, ProcessFaults, TooFewCores};
pub use proxy::Path;
pub use rate::Rate;
pub use shaped_link::{LinkError, LinkSpec};
pub use slow_shard::{ShardSlowness, SlowShard};
pub use slow_worker::{SlowWorker, SlownessError, SlownessSpec};
pub use stall::{Stall, Stopper};
