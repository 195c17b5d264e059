//! Reading a checkpoint.

use std::path::Path;

use super::{Checkpoint, CheckpointError, Manifest, tensors};
use crate::{DEFAULT_BLOCK_ELEMS, FlatVec, Layout};

/// Checks the checkpoint at `path` down to the last byte, without holding it in memory.
pub fn verify(path: &Path) -> Result<Manifest, CheckpointError> {
    let manifest = Manifest::load(path)?;
    for entry in &manifest.files {
        tensors::verify(path, entry)?;
    }
    Ok(manifest)
}

/// Reads the checkpoint at `path`, or says which file is wrong and how.
pub fn read(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let manifest = Manifest::load(path)?;
    let layout = Layout::new(manifest.tensors.clone(), DEFAULT_BLOCK_ELEMS, 1)
        .map_err(CheckpointError::Layout)?;
    let slot_names = manifest.optimizer.slot_names().iter();
    let slot_prefixes: Vec<_> = slot_names.map(|name| format!("{name}/")).collect();
    let mut vectors: Vec<FlatVec> = Vec::new();
    // The manifest lists the parameters first and then, where there is one, the optimizer's file.
    for (entry, prefixes) in manifest.files.iter().zip([vec![String::new()], slot_prefixes]) {
        vectors.extend(tensors::read(path, entry, &layout, &prefixes)?);
    }
    let slots = vectors.split_off(1);
    let params = vectors.pop().expect("one vector for the parameters");
    Ok(Checkpoint {
        round: manifest.round,
        version: manifest.version,
        step: manifest.step,
        model: manifest.model,
        optimizer: manifest.optimizer,
        tensors: manifest.tensors,
        params,
        slots,
        state: manifest.state,
    })
}
