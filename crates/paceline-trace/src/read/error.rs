//! Errors of reading traces, with their positions.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use thiserror::Error;

use crate::MAX_CELLS;

/// Why a trace could not be read.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file cannot be opened, read or decompressed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file as a whole is not a trace.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: Problem,
    },
    /// A line or row of the file is invalid.
    #[error("{}, {position}: {problem}", path.display())]
    At {
        /// The file.
        path: PathBuf,
        /// The line or row.
        position: Position,
        /// What is wrong.
        problem: Problem,
    },
}

/// A position in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// A line of text, counted from 1.
    Line(u64),
    /// A row of a Parquet file, counted from 1.
    Row(u64),
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Position::Line(line) => write!(f, "line {line}"),
            Position::Row(row) => write!(f, "row {row}"),
        }
    }
}

/// A problem of a trace file; its message says what is expected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Problem {
    /// The file is empty.
    #[error("the file is empty: a header and at least one row are needed")]
    Empty,
    /// The file has a header only.
    #[error("nothing follows the header: at least one row is needed")]
    NoRows,
    /// The first line holds data.
    #[error(
        "the first line must name the columns (iteration,worker,seconds or iteration,NAME,NAME,…), \
         but starts with `{0}`"
    )]
    NoHeader(String),
    /// Unknown columns.
    #[error("unknown columns ({found}): {wanted} are needed; others can be named as the columns")]
    Columns {
        /// The columns found.
        found: String,
        /// The columns expected.
        wanted: String,
    },
    /// Two columns of one name.
    #[error("two columns are named `{0}`: each needs its own name")]
    DuplicateColumn(String),
    /// A column has the wrong type.
    #[error("the column `{column}` holds {found}: {wanted} are needed")]
    ColumnType {
        /// The column.
        column: String,
        /// The type found.
        found: String,
        /// The type expected.
        wanted: &'static str,
    },
    /// A row is too short or too long.
    #[error("{found} fields: the header has {wanted}")]
    FieldCount {
        /// Fields in the row.
        found: usize,
        /// Fields in the header.
        wanted: usize,
    },
    /// Not the number of an iteration.
    #[error("`{0}` is not an iteration: write a whole number")]
    Iteration(String),
    /// Not a run-time.
    #[error(
        "`{0}` is not a run-time: write a positive number, >= and a positive number for a lower \
         bound, or nothing for a worker that was not there"
    )]
    RunTime(String),
    /// Not a worker's name.
    #[error("`{0}` is not a worker: write a name or a number of up to {MAX_NAME} bytes")]
    Worker(String),
    /// Two run-times for one worker in one iteration.
    #[error(
        "iteration {iteration} already has a run-time of worker `{worker}` ({first}): write one"
    )]
    Duplicate {
        /// The iteration.
        iteration: i64,
        /// The worker.
        worker: String,
        /// The position of the first.
        first: Position,
    },
    /// A line is too long.
    #[error("the line is longer than {} MiB", MAX_LINE >> 20)]
    LineTooLong,
    /// A line is not UTF-8.
    #[error("the line is not text in UTF-8")]
    NotText,
    /// A quoted field without its end, or with text after its end.
    #[error("a quote is not closed: quotes surround a whole field, on one line")]
    Quote,
    /// More cells than the limit.
    #[error(
        "too large: {workers} workers × {rounds} rounds, of at most {MAX_TRACE_WORKERS} workers, \
         {MAX_ROUNDS} rounds and {MAX_CELLS} cells"
    )]
    TooLarge {
        /// Workers so far.
        workers: usize,
        /// Rounds so far.
        rounds: usize,
    },
    /// An error of the Parquet reader.
    #[error("cannot be read as Parquet: {0}")]
    Parquet(String),
    /// An operation is missing, duplicate, or not numbered.
    #[error("{0}")]
    Operations(String),
    /// The line is no event.
    #[error("not an event of a run: {0}")]
    Event(String),
    /// A log in which no round was closed.
    #[error("no round was closed in this run")]
    NoRound,
    /// A folder that no run wrote.
    #[error(
        "a folder without events.jsonl or rank-*.csv: name a file, or the folder of a run or recording"
    )]
    NoEventLog,
    /// The remark on waits has an unknown value.
    #[error("`{0}` says nothing about waits: write `# waits: included` or `# waits: excluded`")]
    Waits(String),
}

/// The longest line that is read.
pub(super) const MAX_LINE: usize = 64 << 20;
/// The longest name of a worker, in bytes.
pub(super) const MAX_NAME: usize = 256;
/// Most workers in one trace. It bounds memory; a trace may have more workers than a run allows.
pub(super) const MAX_TRACE_WORKERS: usize = 1 << 20;
/// The most rounds.
pub(super) const MAX_ROUNDS: usize = 1 << 24;

impl TraceError {
    pub(super) fn io(path: &Path, source: io::Error) -> TraceError {
        TraceError::Io { path: path.to_owned(), source }
    }

    pub(super) fn file(path: &Path, problem: Problem) -> TraceError {
        TraceError::File { path: path.to_owned(), problem }
    }

    pub(super) fn at(path: &Path, position: Position, problem: Problem) -> TraceError {
        TraceError::At { path: path.to_owned(), position, problem }
    }
}

/// The beginning of a field, as errors show it.
pub(super) fn shown(text: &str) -> String {
    const MOST: usize = 40;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
