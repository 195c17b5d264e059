//! Parameters: their [layout](Layout) in blocks and shards, the kernels that [fold](fold())
//! contributions and [apply](OptimizerSpec::apply) the update, [matrix products](matmul), and
//! [checkpoints](checkpoint).
//!
//! A model is an ordered list of named tensors. Laid end to end they are one flat vector of `f32`,
//! and everything here works on ranges of that vector: a block is a range of elements, a shard is
//! a run of blocks, a checkpoint is the whole vector cut at the tensors' bounds again.
//!
//! This crate never opens a socket, never reads a clock, and never starts a thread.

pub mod checkpoint;
pub mod matmul;

mod block;
mod clip;
mod flat;
mod fold;
mod groups;
mod hash;
mod kernel;
mod layout;
mod narrow;
mod optimizer;
mod plan;
mod rule;
mod scaling;
mod scan;
mod schedule;
mod spares;
mod staging;
mod tensor;
mod text;
mod wire_type;

pub use block::Block;
pub use checkpoint::{Checkpoint, CheckpointError};
pub use clip::{Clip, ClipError};
pub use flat::FlatVec;
pub use fold::{add_scaled, copy_scaled, fold};
pub use groups::{OptimizerGroups, OptimizerGroupsError};
pub use hash::{ParamHash, ParamHashError};
pub use layout::{DEFAULT_BLOCK_ELEMS, Layout, LayoutError};
pub use narrow::{narrow, widen};
pub use optimizer::{OptimizerError, OptimizerSpec, Update};
pub use plan::{SumOfBlocks, UpdatePlan, gradient_norm, update_weight};
pub use rule::UpdateConfig;
pub use scaling::{LrScaling, LrScalingError};
pub use scan::{all_finite, norm_squared};
pub use schedule::{Schedule, ScheduleError};
pub use spares::Spares;
pub use staging::{BufferPool, Lease, PoolUse};
pub use tensor::TensorSpec;
pub use wire_type::{Half, WireType, WireTypeError};
