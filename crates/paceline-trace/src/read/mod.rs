//! Reading of traces from files: CSV, Parquet, and the event logs of runs.

mod columns;
mod csv;
mod error;
mod event_log;
mod field;
mod lines;
mod operations;
mod parquet;
mod recording;
mod table;

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::Path,
};

use flate2::read::MultiGzDecoder;

pub use error::{Position, Problem, TraceError};
pub(crate) use field::quoted;

use crate::Trace;

/// Options of reading a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Names of the columns for iteration, worker and seconds, if not the usual ones. Other columns are
    /// then ignored.
    pub columns: Option<[String; 3]>,
}

/// Reads a trace in any format: CSV (long or wide), Parquet (run-times or operations), an event log, or
/// the
/// folder of a run or of a recording. CSV and logs may be compressed with gzip or zstd. The format is detected from
/// the file's content, never from its name.
pub fn read(path: &Path, options: &ReadOptions) -> Result<Trace, TraceError> {
    let io = |source| TraceError::io(path, source);
    if path.is_dir() {
        return folder(path, options);
    }
    let mut file = BufReader::new(File::open(path).map_err(io)?);
    let name = name_of(path);
    match peek(&mut file).map_err(io)? {
        Content::Gzip => text(path, &name, BufReader::new(MultiGzDecoder::new(file)), options),
        Content::Zstd => {
            let plain = zstd::Decoder::with_buffer(file).map_err(io)?;
            text(path, &name, BufReader::new(plain), options)
        }
        Content::Parquet => parquet::read(path, &name, file.into_inner(), options),
        Content::Text => text(path, &name, file, options),
    }
}

/// Reads a text format, after decompression.
fn text(
    path: &Path,
    name: &str,
    mut text: impl BufRead,
    options: &ReadOptions,
) -> Result<Trace, TraceError> {
    let first = text.fill_buf().map_err(|source| TraceError::io(path, source))?;
    match first.trim_ascii_start().first() {
        Some(b'{') => event_log::read(path, name, text),
        _ => csv::read(path, name, text, options),
    }
}

/// Reads the folder of a run, with its event log, or of a recording, with a file per rank. The folder
/// names the trace.
fn folder(folder: &Path, options: &ReadOptions) -> Result<Trace, TraceError> {
    let absolute = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let name = absolute.file_name().map_or("run".into(), |name| name.to_string_lossy());
    let path = folder.join("events.jsonl");
    if path.is_file() {
        let file = File::open(&path).map_err(|source| TraceError::io(&path, source))?;
        return event_log::read(&path, &name, BufReader::new(file));
    }
    match recording::files(folder)? {
        files if files.is_empty() => Err(TraceError::file(folder, Problem::NoEventLog)),
        files => recording::read(folder, &name, &files, options),
    }
}

/// The content of a file by its first bytes.
enum Content {
    Gzip,
    Zstd,
    Parquet,
    Text,
}

fn peek(file: &mut BufReader<File>) -> io::Result<Content> {
    let first = file.fill_buf()?;
    Ok(match first {
        [0x1f, 0x8b, ..] => Content::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Content::Zstd,
        [b'P', b'A', b'R', b'1', ..] => Content::Parquet,
        _ => Content::Text,
    })
}

/// The trace's name: the file's name without the endings of its format.
fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let mut stem: &str = &name;
    for format in [".gz", ".zst", ".csv", ".parquet", ".jsonl"] {
        stem = stem.strip_suffix(format).filter(|rest| !rest.is_empty()).unwrap_or(stem);
    }
    stem.to_owned()
}
