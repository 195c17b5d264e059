//! A worker: a process that computes gradients on the samples it is given.
//!
//! [`run`] is the whole life of one. What it computes is behind [`Compute`], so native models,
//! PyTorch and measurements use the same loop. It works with plain threads: one computes, one
//! listens to the coordinator, one keeps giving signs of life, and one answers cuts with what is
//! finished, while a micro-batch is under way.

mod buffer;
mod client;
mod couriers;
mod data;
mod faults;
mod link;
mod mailbox;
mod memory;
mod outbox;
mod work;

pub use paceline_shm::Kept;

pub use client::{PullWait, WorkerConfig, WorkerError, run};
pub use faults::{MakeFaults, WorkerFaults};
pub use work::{Compute, Tally, micro_batch, part_of};
