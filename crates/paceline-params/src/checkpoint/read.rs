//! Reading a checkpoint.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::{Checkpoint, CheckpointError, FileEntry, Manifest, WORKER_STATE, tensors};
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
    let (params, slots, worker_state) = match &manifest.files[..] {
        [entry] if entry.name == WORKER_STATE => {
            let state = read_worker_state(path, entry)?;
            (FlatVec::from(Vec::new()), Vec::new(), Some(Arc::new(state)))
        }
        _ => {
            let (params, slots) = read_parameters(path, &manifest)?;
            (params, slots, None)
        }
    };
    Ok(Checkpoint {
        round: manifest.round,
        version: manifest.version,
        step: manifest.step,
        model: manifest.model,
        optimizer: manifest.optimizer,
        tensors: manifest.tensors,
        params,
        slots,
        worker_state,
        state: manifest.state,
    })
}

fn read_worker_state(dir: &Path, entry: &FileEntry) -> Result<Vec<u8>, CheckpointError> {
    tensors::verify(dir, entry)?;
    let path = dir.join(&entry.name);
    fs::read(&path).map_err(CheckpointError::io("read", &path))
}

/// The parameters, and the optimizer's state.
fn read_parameters(
    path: &Path,
    manifest: &Manifest,
) -> Result<(FlatVec, Vec<FlatVec>), CheckpointError> {
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
    Ok((params, slots))
}
