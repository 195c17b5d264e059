//! A worker: a process that computes gradients on the samples it is given.
//!
//! [`run`] is a worker's whole session. [`Compute`] hides the model. [`Embedded`] runs the same loop beside
//! a training loop of the user's own, such as one in PyTorch, which then computes. A worker has plain threads: one computes, one reads the control
//! connection, one sends heartbeats, and one answers cuts while a pull or a micro-batch is under way.

mod buffer;
mod client;
mod connection;
mod data;
mod early;
mod embedded;
mod faults;
mod independent;
mod mailbox;
mod memory;
mod outbox;
mod requests;
pub mod state;
mod work;

pub use paceline_shm::Kept;

pub use client::{PullWait, WorkerConfig, WorkerError, run};
pub use embedded::{Assignment, Embedded, Joining, Turn};
pub use faults::{MakeFaults, WorkerFaults};
pub use mailbox::Closed;
pub use work::{Compute, Tally, micro_batch, part_of};
