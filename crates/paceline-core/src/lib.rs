//! The sans-IO core of Paceline: rounds, the rules that end them, and the ledger of samples.
//!
//! Nothing here reads a clock, a socket, a file or an environment variable (`clippy.toml` denies it). Drivers
//! report events with their times through `handle_*(…, now)` and read decisions through
//! [`Coordinator::poll_event`]. The network server, the simulator and the tests drive the same code.

mod act;
mod bias;
mod blocks;
mod contribution;
mod contributions;
mod coordinator;
mod counts;
mod enough;
mod error;
mod event;
mod grace;
mod homes;
mod ids;
mod intake;
mod leases;
mod ledger;
mod liveness;
mod noise;
mod order;
mod patience;
mod policy;
mod portion;
mod pushes;
mod quorum;
mod roster;
mod round;
mod runtime;
mod shards;
mod span;
mod straggler;
mod time;
mod useless;
mod wait;

pub use act::{Accepted, AcceptedPart, Driver, act};
pub use bias::CostBias;
pub use blocks::{BlockClose, Blocks};
pub use contribution::{Announcement, Arrival, Contribution, Handout, HeldRange, State, Work};
pub use coordinator::Coordinator;
pub use counts::{ShardCounts, ShardWork};
pub use enough::Enough;
pub use error::MachineError;
pub use event::{CutReason, Event, EventKind, LeaveReason, StopReason};
pub use ids::{ContributionId, MAX_WORKERS, Round, ShardId, Version, WorkerId};
pub use intake::Intake;
pub use ledger::{Ledger, LedgerError, LedgerReport, LedgerState, SampleCounts, SampleRange};
pub use liveness::Liveness;
pub use noise::{GradientNorm, NoiseScale};
pub use order::{Costs, EpochOrder, OrderSpec, home};
pub use policy::{Decision, KeptRecord, Policy, RoundRecord, RoundView};
pub use portion::Portion;
pub use pushes::WaitRule;
pub use round::{Phase, RoundConfig, RoundMachine};
pub use runtime::RunTime;
pub use shards::Shards;
pub use span::{Span, parse_duration};
pub use straggler::{Late, Straggler};
pub use time::Time;
