//! Writing a checkpoint.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::tensors::{self, PrefixedVector};
use super::{
    Checkpoint, CheckpointError, FileEntry, MANIFEST, Manifest, OPTIMIZER, PARAMS, WORKER_STATE,
    directory,
};
use crate::{DEFAULT_BLOCK_ELEMS, Layout};

/// Writes `checkpoint` under `parent`, which is made where it is missing, and returns its path.
///
/// When this returns, the checkpoint is synced to disk. Until then `parent` holds the same
/// checkpoints as before. A checkpoint of the same round is replaced; if the replacement is
/// interrupted, the old one is still found.
pub fn write(parent: &Path, checkpoint: &Checkpoint) -> Result<PathBuf, CheckpointError> {
    let layout = checkpoint.layout(DEFAULT_BLOCK_ELEMS, 1).map_err(CheckpointError::Layout)?;
    check_lengths(checkpoint, layout.total())?;
    directory::create(parent)?;
    let draft = directory::start_draft(parent, checkpoint.round)?;
    let written = write_files(&draft, checkpoint, &layout)
        .and_then(|()| directory::publish(parent, &draft, checkpoint.round));
    if written.is_err() {
        // The disk may be full: free the space. The first error is the one to report.
        let _ = fs::remove_dir_all(&draft);
    }
    written
}

fn check_lengths(checkpoint: &Checkpoint, expected: usize) -> Result<(), CheckpointError> {
    let without = checkpoint.worker_state.is_some();
    let expected = if without { 0 } else { expected };
    let names = if without { &[] } else { checkpoint.optimizer.slot_names() };
    let found = checkpoint.slots.len();
    if found != names.len() {
        return Err(CheckpointError::Slots { expected: names, found });
    }
    let slots = names.iter().copied().zip(&checkpoint.slots);
    for (what, values) in std::iter::once(("parameters", &checkpoint.params)).chain(slots) {
        let found = values.len();
        if found != expected {
            return Err(CheckpointError::Length { what: what.to_owned(), expected, found });
        }
    }
    Ok(())
}

fn write_files(
    dir: &Path,
    checkpoint: &Checkpoint,
    layout: &Layout,
) -> Result<(), CheckpointError> {
    let files = match &checkpoint.worker_state {
        Some(state) => vec![tensors::write_bytes(dir, WORKER_STATE, state)?],
        None => write_parameters(dir, checkpoint, layout)?,
    };
    write_manifest(dir, &Manifest::new(checkpoint, files))?;
    directory::sync(dir)
}

fn write_parameters(
    dir: &Path,
    checkpoint: &Checkpoint,
    layout: &Layout,
) -> Result<Vec<FileEntry>, CheckpointError> {
    let params = PrefixedVector { prefix: String::new(), values: &checkpoint.params };
    let mut files = vec![tensors::write(dir, PARAMS, layout, &[params])?];
    let names = checkpoint.optimizer.slot_names().iter();
    let slots: Vec<_> = names
        .zip(&checkpoint.slots)
        .map(|(name, values)| PrefixedVector { prefix: format!("{name}/"), values })
        .collect();
    if !slots.is_empty() {
        files.push(tensors::write(dir, OPTIMIZER, layout, &slots)?);
    }
    Ok(files)
}

fn write_manifest(dir: &Path, manifest: &Manifest) -> Result<(), CheckpointError> {
    let path = dir.join(MANIFEST);
    let text = manifest
        .encode()
        .map_err(|cause| CheckpointError::Manifest { path: path.clone(), cause })?;
    let write = || {
        let mut file = File::create_new(&path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(CheckpointError::io("write", &path))
}
