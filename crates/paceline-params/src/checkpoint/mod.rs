//! Checkpoints: the whole model on disk, in an open format, never torn.
//!
//! A checkpoint that a run wrote after 123 rounds is a directory `round-00000123` with
//!
//! - `params.safetensors`: every tensor under its name, in its shape, as `F32`;
//! - `optimizer.safetensors`: the optimizer's state as `SLOT/TENSOR`; absent where it has none;
//! - `manifest.json`: the state of the run, and the size and CRC-32 of the other files.
//!
//! Tensors are whole, so a run may resume on any number of shards.
//!
//! Where workers keep the parameters themselves, `state.safetensors` stands for the first two: the whole
//! state of a worker, which this crate does not look into.
//!
//! A checkpoint appears under its name all at once: files are written and synced in a hidden
//! directory beside it, the manifest last, and the directory is renamed. Once [`write()`] has
//! returned, the checkpoint survives a crash. One process at a time writes to a directory of
//! checkpoints; any number may read.
//!
//! A checkpoint that a disk or a user damaged is never removed. [`latest`] passes it over and names
//! it; [`prune`] and [`write()`] rename it to `round-00000123.damaged` when it is in the way.

mod directory;
mod error;
mod manifest;
mod read;
mod tensors;
mod write;

use std::sync::Arc;

use serde_json::Value;

use crate::{FlatVec, Layout, LayoutError, OptimizerGroups, TensorSpec};

pub use directory::{Damaged, Latest, Pruned, latest, list, prune, remove};
pub use error::CheckpointError;
pub use manifest::{Crc32, Crc32Error, FileEntry, Manifest};
pub use read::{read, verify};
pub use write::write;

const MANIFEST: &str = "manifest.json";
const PARAMS: &str = "params.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const WORKER_STATE: &str = "state.safetensors";

/// Everything that a run needs to resume after a round.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// The round that a resumed run starts with, which is the number of rounds in the parameters.
    /// Round r computes from version r, so a run writes the same number here and in `version`.
    pub round: u64,
    /// The version of the parameters.
    pub version: u64,
    /// How many updates the parameters have seen; see [`Update::step`](crate::Update::step).
    pub step: u64,
    /// The name of the model.
    pub model: String,
    /// The optimizers that the state belongs to.
    pub optimizer: OptimizerGroups,
    /// The tensors, in the order of the flat vector.
    pub tensors: Vec<TensorSpec>,
    /// The parameters, as one flat vector.
    pub params: FlatVec,
    /// The optimizer's state: one flat vector for each of [`OptimizerGroups::slot_names`].
    pub slots: Vec<FlatVec>,
    /// The state of a worker, as a safetensors file, where workers keep the parameters themselves. There are
    /// no parameters and no slots then.
    pub worker_state: Option<Arc<Vec<u8>>>,
    /// Other state of the run, for instance the data ledger.
    pub state: Value,
}

impl Checkpoint {
    /// The tensors laid out in blocks over shards, however many there were before.
    pub fn layout(&self, block_elems: usize, shards: u32) -> Result<Layout, LayoutError> {
        Layout::new(self.tensors.clone(), block_elems, shards)
    }
}
