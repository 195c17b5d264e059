//! The directory that holds a run's checkpoints.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::{CheckpointError, Manifest, tensors, verify};

/// What the names of unfinished and of doomed checkpoints begin with.
const HIDDEN: &str = ".tmp-";

/// What is added to the name of a checkpoint while another takes its place.
const REPLACED: &str = ".replaced";

/// The checkpoints under `parent`, newest first, whether or not they are whole. A directory that
/// does not exist has none.
pub fn list(parent: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let mut found: Vec<_> = names(parent)?
        .into_iter()
        .filter_map(|name| parse_name(&name).map(|(round, replaced)| (round, !replaced, name)))
        .collect();
    found.sort();
    let paths = found.into_iter().rev().map(|(_, _, name)| parent.join(name));
    Ok(paths.filter(|path| path.is_dir()).collect())
}

/// The newest whole checkpoint under `parent`, every byte checked; `None` where there never was
/// one.
///
/// Damaged ones are passed over for an older one. If all are damaged the newest one's error is
/// returned, and so is any error that says nothing about the checkpoint (no permission, a format
/// from a later version): starting afresh is not a thing to do by mistake.
pub fn latest(parent: &Path) -> Result<Option<PathBuf>, CheckpointError> {
    let mut newest_error = None;
    for path in list(parent)? {
        match verify(&path) {
            Ok(_) => return Ok(Some(path)),
            Err(error) if error.is_damage() => newest_error = newest_error.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    newest_error.map_or(Ok(None), Err)
}

/// Removes all but the newest `keep` checkpoints under `parent`, and whatever unfinished writing
/// left behind; returns the paths of the removed checkpoints.
///
/// Only checkpoints whose files are all there in full count as kept, and one always stays. Not to
/// be called while a checkpoint is being written.
pub fn prune(parent: &Path, keep: usize) -> Result<Vec<PathBuf>, CheckpointError> {
    for name in names(parent)?.iter().filter(|name| name.starts_with(HIDDEN)) {
        remove(&parent.join(name))?;
    }
    let mut kept = 0;
    let mut removed = Vec::new();
    for path in list(parent)? {
        if kept < keep.max(1) {
            kept += usize::from(is_sound(&path));
        } else {
            discard(parent, &path)?;
            removed.push(path);
        }
    }
    Ok(removed)
}

/// Makes `path` and what leads to it, for good.
pub(super) fn create(path: &Path) -> Result<(), CheckpointError> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    let above = path.parent().unwrap_or(Path::new(""));
    create(above)?;
    fs::create_dir(path).map_err(CheckpointError::io("make", path))?;
    sync(above)
}

/// An empty hidden directory in which to write the checkpoint of `round`.
pub(super) fn start_draft(parent: &Path, round: u64) -> Result<PathBuf, CheckpointError> {
    let draft = parent.join(format!("{HIDDEN}{}", name_of(round)));
    remove(&draft)?;
    fs::create_dir(&draft).map_err(CheckpointError::io("make", &draft))?;
    Ok(draft)
}

/// Gives the finished `draft` its name. At every moment there is a whole checkpoint of the round
/// to be found, if there was one before.
pub(super) fn publish(parent: &Path, draft: &Path, round: u64) -> Result<PathBuf, CheckpointError> {
    let path = parent.join(name_of(round));
    let replaced = parent.join(format!("{}{REPLACED}", name_of(round)));
    if path.exists() {
        if verify(&path).is_ok() {
            discard(parent, &replaced)?;
            rename(&path, &replaced)?;
        } else {
            discard(parent, &path)?;
        }
    }
    rename(draft, &path)?;
    sync(parent)?;
    discard(parent, &replaced)?;
    Ok(path)
}

/// Makes the entries of a directory last.
pub(super) fn sync(dir: &Path) -> Result<(), CheckpointError> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(CheckpointError::io("sync", dir))
}

fn name_of(round: u64) -> String {
    format!("round-{round:08}")
}

/// The round in a checkpoint's name, and whether it was being replaced.
fn parse_name(name: &str) -> Option<(u64, bool)> {
    let stem = name.strip_suffix(REPLACED);
    let round = stem.unwrap_or(name).strip_prefix("round-")?.parse().ok()?;
    (name_of(round) == stem.unwrap_or(name)).then_some((round, stem.is_some()))
}

fn names(parent: &Path) -> Result<Vec<String>, CheckpointError> {
    let entries = match fs::read_dir(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.map_err(CheckpointError::io("list", parent))?,
    };
    let names: io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.file_name())).collect();
    let names = names.map_err(CheckpointError::io("list", parent))?;
    Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
}

fn is_sound(path: &Path) -> bool {
    let whole = |manifest: Manifest| {
        manifest.files.iter().all(|entry| tensors::verify_size(path, entry).is_ok())
    };
    Manifest::load(path).is_ok_and(whole)
}

/// Takes a checkpoint's name away first, so that a removal cut short leaves no damaged one.
fn discard(parent: &Path, path: &Path) -> Result<(), CheckpointError> {
    let Some(name) = path.file_name().filter(|_| path.exists()) else { return Ok(()) };
    let doomed = parent.join(format!("{HIDDEN}doomed-{}", name.to_string_lossy()));
    remove(&doomed)?;
    rename(path, &doomed)?;
    remove(&doomed)
}

fn rename(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    fs::rename(from, to).map_err(CheckpointError::io("rename", from))
}

fn remove(path: &Path) -> Result<(), CheckpointError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(CheckpointError::io("remove", path)),
    }
}
