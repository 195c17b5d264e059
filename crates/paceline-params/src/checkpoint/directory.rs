//! The directory that holds a run's checkpoints.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::{CheckpointError, verify};

/// Prefix of checkpoints that are being written or removed.
const HIDDEN: &str = ".tmp-";

/// Suffix of a checkpoint while another takes its place.
const REPLACED: &str = ".replaced";

/// Suffix of a damaged checkpoint that was set aside. Nothing in this crate reads or removes it.
const DAMAGED: &str = ".damaged";

/// The newest whole checkpoint of a run.
#[derive(Debug)]
pub struct Latest {
    /// Its path. Every byte of it has been checked.
    pub path: PathBuf,
    /// Newer checkpoints that are damaged, newest first.
    pub damaged: Vec<Damaged>,
}

/// A damaged checkpoint.
#[derive(Debug)]
pub struct Damaged {
    /// The path that it has now.
    pub path: PathBuf,
    /// The damage, with the name of the file.
    pub error: CheckpointError,
}

/// The changes that [`prune`] made.
#[derive(Debug, Default)]
pub struct Pruned {
    /// Checkpoints that were removed.
    pub removed: Vec<PathBuf>,
    /// Damaged checkpoints that were renamed out of the way.
    pub set_aside: Vec<Damaged>,
}

/// The checkpoints under `parent`, newest first, whether or not they are whole. A directory that
/// does not exist has none. Damaged checkpoints that were set aside are not listed.
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
/// A damaged checkpoint is passed over for an older one and named in [`Latest::damaged`]: tell the
/// user. If all are damaged, the newest one's error is returned. An error that says nothing about
/// the checkpoint (no permission, a format from a later version) is returned, too, so that a run
/// never starts afresh by mistake.
pub fn latest(parent: &Path) -> Result<Option<Latest>, CheckpointError> {
    let mut damaged = Vec::new();
    for path in list(parent)? {
        match verify(&path) {
            Ok(_) => return Ok(Some(Latest { path, damaged })),
            Err(error) if error.is_damage() => damaged.push(Damaged { path, error }),
            Err(error) => return Err(error),
        }
    }
    damaged.into_iter().next().map_or(Ok(None), |newest| Err(newest.error))
}

/// Removes all but the newest `keep` whole checkpoints under `parent` (at least one stays), and
/// drafts that a crash left behind.
///
/// A checkpoint counts towards `keep` only if every byte is correct. A damaged one that is newer
/// than the kept ones is set aside: renamed to `round-N.damaged`, never removed. One that cannot be
/// checked (no permission, a later format) is left alone. Without a whole checkpoint nothing
/// changes. Not to be called while a checkpoint is being written.
pub fn prune(parent: &Path, keep: usize) -> Result<Pruned, CheckpointError> {
    for name in names(parent)?.iter().filter(|name| name.starts_with(HIDDEN)) {
        delete(&parent.join(name))?;
    }
    let (keep, all) = (keep.max(1), list(parent)?);
    let mut pruned = Pruned::default();
    if all.len() <= keep {
        return Ok(pruned);
    }
    let (mut whole, mut damaged, mut old) = (0, Vec::new(), Vec::new());
    for path in all {
        if whole == keep {
            old.push(path);
            continue;
        }
        match verify(&path) {
            Ok(_) => whole += 1,
            Err(error) if error.is_damage() => damaged.push(Damaged { path, error }),
            Err(_) => {}
        }
    }
    if whole == 0 {
        return Ok(pruned);
    }
    for Damaged { path, error } in damaged {
        pruned.set_aside.push(Damaged { path: set_aside(&path)?, error });
    }
    for path in old {
        remove(&path)?;
        pruned.removed.push(path);
    }
    Ok(pruned)
}

/// Removes the checkpoint at `path`, if there is one. Its name goes first, so that a removal cut
/// short leaves no damaged checkpoint.
pub fn remove(path: &Path) -> Result<(), CheckpointError> {
    let Some(name) = path.file_name().filter(|_| path.exists()) else { return Ok(()) };
    let doomed = path.with_file_name(format!("{HIDDEN}doomed-{}", name.to_string_lossy()));
    delete(&doomed)?;
    rename(path, &doomed)?;
    delete(&doomed)
}

/// Creates `path` and its parents, and syncs them to disk.
pub(super) fn create(path: &Path) -> Result<(), CheckpointError> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    let above = path.parent().unwrap_or(Path::new(""));
    create(above)?;
    fs::create_dir(path).map_err(CheckpointError::io("make", path))?;
    sync(above)
}

/// An empty hidden directory in which to write the checkpoint with this `round`.
pub(super) fn start_draft(parent: &Path, round: u64) -> Result<PathBuf, CheckpointError> {
    let draft = parent.join(format!("{HIDDEN}{}", name_of(round)));
    delete(&draft)?;
    fs::create_dir(&draft).map_err(CheckpointError::io("make", &draft))?;
    Ok(draft)
}

/// Renames the finished `draft` to its final name. If the round had a whole checkpoint before, a
/// reader finds a whole one at every moment. A damaged one is set aside.
pub(super) fn publish(parent: &Path, draft: &Path, round: u64) -> Result<PathBuf, CheckpointError> {
    let path = parent.join(name_of(round));
    let replaced = parent.join(format!("{}{REPLACED}", name_of(round)));
    if path.exists() {
        if verify(&path).is_ok() {
            remove(&replaced)?;
            rename(&path, &replaced)?;
        } else {
            set_aside(&path)?;
        }
    }
    rename(draft, &path)?;
    sync(parent)?;
    remove(&replaced)?;
    Ok(path)
}

/// Syncs the entries of a directory to disk.
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

/// Renames a damaged checkpoint so that it is not listed again; returns its new path.
fn set_aside(path: &Path) -> Result<PathBuf, CheckpointError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let candidates = (1u32..).map(|number| match number {
        1 => path.with_file_name(format!("{name}{DAMAGED}")),
        _ => path.with_file_name(format!("{name}{DAMAGED}-{number}")),
    });
    let free = candidates.into_iter().find(|candidate| !candidate.exists());
    let free = free.expect("a directory holds fewer entries than there are numbers");
    rename(path, &free)?;
    Ok(free)
}

fn rename(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    fs::rename(from, to).map_err(CheckpointError::io("rename", from))
}

fn delete(path: &Path) -> Result<(), CheckpointError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(CheckpointError::io("remove", path)),
    }
}
