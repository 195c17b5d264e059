//! Checkpoints written beside the run, never in its way.

use std::{
    fs,
    path::{Path, PathBuf},
};

use paceline_core::Version;
use paceline_params::{Block, Checkpoint, FlatVec, all_finite, checkpoint};

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

/// Writes and prunes; blocks, so it runs on a thread of its own. What is not finite is not
/// written: it would take the place of something good. Whether a version is good is known when
/// somebody has computed from it; until then one more is kept.
pub(crate) fn write(
    config: &CheckpointConfig,
    described: &Checkpoint,
) -> Result<Option<PathBuf>, String> {
    let vectors = std::iter::once(&described.params).chain(&described.slots);
    if !vectors.flat_map(FlatVec::pieces).all(|piece| all_finite(piece).is_ok()) {
        return Ok(None);
    }
    let path = checkpoint::write(&config.dir, described).map_err(|error| error.to_string())?;
    prune(config, config.keep + 1);
    Ok(Some(path))
}

/// Removes all but the newest.
pub(crate) fn prune(config: &CheckpointConfig, keep: usize) {
    if let Err(error) = checkpoint::prune(&config.dir, keep) {
        // The new one is safe; old ones are only in the way.
        tracing::warn!("failed to remove old checkpoints: {error}");
    }
}

/// Takes back a checkpoint that turned out to be of no use, if there is another.
pub(crate) fn withdraw(config: &CheckpointConfig, path: &Path) {
    let others = checkpoint::list(&config.dir).is_ok_and(|all| all.len() > 1);
    if others && let Err(error) = fs::remove_dir_all(path) {
        tracing::warn!("failed to remove the checkpoint {}: {error}", path.display());
    }
}
