//! Files that are replaced as a whole.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// A file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("failed to write {}", path.display())]
pub struct WriteError {
    path: PathBuf,
    source: io::Error,
}

/// Replaces a file: writes a temporary file beside it, then renames it. A reader sees the old content
/// or the new one, and an interrupted program leaves no partial file. A pipe or a terminal is written
/// to directly.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    let failed = |source| WriteError { path: path.to_owned(), source };
    if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return fs::write(path, bytes).map_err(failed);
    }
    let target = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let name = target.file_name().ok_or_else(|| failed(io::ErrorKind::IsADirectory.into()))?;
    let name = name.to_string_lossy();
    let temporary = target.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    replace(&temporary, target, bytes).map_err(failed).inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

fn replace(temporary: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_no_other_file_remains() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.html");
        write_whole(&path, b"old").unwrap();
        write_whole(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
        let nowhere = dir.path().join("nowhere/a.html");
        let error = write_whole(&nowhere, b"x").unwrap_err().to_string();
        assert!(error.contains("failed to write") && error.contains("nowhere/a.html"), "{error}");
        assert!(write_whole(dir.path(), b"x").is_err(), "a folder");
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
    }
}
