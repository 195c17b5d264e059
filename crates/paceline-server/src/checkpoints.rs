//! Checkpoints written beside the run, never in its way.

use std::path::PathBuf;

use paceline_core::Version;
use paceline_params::{Block, Checkpoint, checkpoint};

use crate::{
    config::{CheckpointConfig, SavedState, ServerConfig},
    placement::flat,
};

/// What a checkpoint of `blocks` at `version` says.
pub(crate) fn describe(
    config: &ServerConfig,
    tensors: &[paceline_params::TensorSpec],
    blocks: &[Block],
    version: Version,
    step: u64,
    state: &SavedState,
) -> Checkpoint {
    let slots = config.update.optimizer.slot_names().len();
    Checkpoint {
        round: version.0,
        version: version.0,
        step,
        model: config.model.clone(),
        optimizer: config.update.optimizer,
        tensors: tensors.to_vec(),
        params: flat(blocks, None),
        slots: (0..slots).map(|slot| flat(blocks, Some(slot))).collect(),
        state: serde_json::to_value(state).expect("the state is plain data"),
    }
}

/// Writes and prunes; blocks, so it runs on a thread of its own.
pub(crate) fn write(config: &CheckpointConfig, described: &Checkpoint) -> Result<PathBuf, String> {
    let path = checkpoint::write(&config.dir, described).map_err(|error| error.to_string())?;
    if let Err(error) = checkpoint::prune(&config.dir, config.keep) {
        // The new one is safe; old ones are only in the way.
        tracing::warn!("failed to remove old checkpoints: {error}");
    }
    Ok(path)
}
