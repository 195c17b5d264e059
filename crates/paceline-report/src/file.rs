//! Files that are whole or not there.

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

/// Writes a file aside and renames it, so that whoever looks sees the old one or the new one, and an
/// interrupted program leaves no half. What is no regular file (a pipe, a terminal) is written to.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    let failed = |source| WriteError { path: path.to_owned(), source };
    if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return fs::write(path, bytes).map_err(failed);
    }
    let target = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let name = target.file_name().ok_or_else(|| failed(io::ErrorKind::IsADirectory.into()))?;
    let name = name.to_string_lossy();
    let draft = target.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    write_aside(&draft, target, bytes).map_err(failed).inspect_err(|_| {
        let _ = fs::remove_file(&draft);
    })
}

fn write_aside(draft: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(draft, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
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
