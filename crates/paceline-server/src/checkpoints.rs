//! Checkpoints, written beside the run without blocking it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use paceline_core::Version;
use paceline_params::{
    Block, Checkpoint, FlatVec, all_finite,
    checkpoint::{self, Damaged},
};

use crate::{
    config::{CheckpointConfig, SavedState, ServerConfig},
    placement::flat,
    state::StateBlob,
};

/// The checkpoint of `blocks` at `version`. It contains `version` rounds, and a resumed run starts with the
/// round of that number.
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
        optimizer: config.update.optimizer.clone(),
        tensors: tensors.to_vec(),
        params: flat(blocks, None),
        slots: (0..slots).map(|slot| flat(blocks, Some(slot))).collect(),
        worker_state: None,
        state: serde_json::to_value(state).expect("the state is plain data"),
    }
}

/// The checkpoint of a worker's state, for runs whose workers keep the parameters.
pub(crate) fn of_worker(
    config: &ServerConfig,
    tensors: &[paceline_params::TensorSpec],
    state: &StateBlob,
    step: u64,
    saved: &SavedState,
) -> Checkpoint {
    Checkpoint {
        worker_state: Some(Arc::clone(&state.bytes)),
        slots: Vec::new(),
        ..describe(config, tensors, &[], state.version, step, saved)
    }
}

/// Writes a checkpoint and prunes old ones. It blocks, so it runs on a thread of its own.
///
/// Parameters that are not finite are not written (`None`): they would replace good ones. Only a worker that
/// computes from a version shows whether the version is good, so one checkpoint more than configured is kept
/// until then.
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

/// Removes all but the newest `keep` whole checkpoints, and reports damaged ones.
pub(crate) fn prune(config: &CheckpointConfig, keep: usize) {
    match checkpoint::prune(&config.dir, keep) {
        Ok(pruned) => {
            for Damaged { path, error } in pruned.set_aside {
                tracing::warn!("set a damaged checkpoint aside as {}: {error}", path.display());
            }
        }
        // The new checkpoint is safe; old ones only take up space.
        Err(error) => tracing::warn!("failed to remove old checkpoints: {error}"),
    }
}

/// Removes a checkpoint whose parameters turned out to diverge, unless it is the only whole one.
pub(crate) fn withdraw(config: &CheckpointConfig, path: &Path) {
    let another = |all: Vec<PathBuf>| {
        all.iter().any(|other| other != path && checkpoint::verify(other).is_ok())
    };
    if checkpoint::list(&config.dir).is_ok_and(another)
        && let Err(error) = checkpoint::remove(path)
    {
        tracing::warn!("failed to remove the checkpoint {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use paceline_params::{OptimizerSpec, TensorSpec};

    use super::*;

    fn save(config: &CheckpointConfig, round: u64) -> PathBuf {
        let saved = Checkpoint {
            round,
            version: round,
            step: round,
            model: "m".to_owned(),
            optimizer: OptimizerSpec::SGD.into(),
            tensors: vec![TensorSpec::new("w", [3])],
            params: vec![round as f32; 3].into(),
            slots: Vec::new(),
            worker_state: None,
            state: serde_json::Value::Null,
        };
        write(config, &saved).unwrap().unwrap()
    }

    #[test]
    fn a_diverged_checkpoint_is_removed_only_if_another_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let config = CheckpointConfig { dir: dir.path().to_owned(), every: 1, keep: 5 };
        let (first, second) = (save(&config, 1), save(&config, 2));
        let params = first.join("params.safetensors");
        let whole = fs::read(&params).unwrap();
        fs::write(&params, [&whole[..whole.len() - 1], &[!whole[whole.len() - 1]]].concat())
            .unwrap();
        withdraw(&config, &second);
        assert!(second.exists(), "the other checkpoint is damaged");
        fs::write(&params, whole).unwrap();
        withdraw(&config, &second);
        assert!(!second.exists() && first.exists());
    }
}
