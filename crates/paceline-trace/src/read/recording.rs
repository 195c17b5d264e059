//! Reading of recordings: a folder with a CSV file per rank, which may still be written.

use std::{
    fs::{self, File},
    io::BufReader,
    path::{Path, PathBuf},
};

use super::{
    ReadOptions,
    csv::{self, LastLine},
    error::TraceError,
    table::CellTable,
};
use crate::Trace;

/// The files `rank-*.csv` of a folder, in order of their names.
pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>, TraceError> {
    let io = |source| TraceError::io(folder, source);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("rank-") && name.ends_with(".csv") {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// Reads the files of a recording as one trace. Its run-times include waits if those of one rank do.
pub(super) fn read(
    folder: &Path,
    name: &str,
    files: &[PathBuf],
    options: &ReadOptions,
) -> Result<Trace, TraceError> {
    let mut table = CellTable::default();
    let mut waits_included = false;
    for path in files {
        let file = File::open(path).map_err(|source| TraceError::io(path, source))?;
        let text = BufReader::new(file);
        waits_included |= csv::read_into(&mut table, path, text, options, LastLine::MayBeCut)?;
    }
    csv::finish(table, folder, name, waits_included)
}
