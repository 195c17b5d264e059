//! The command line.

use std::{ffi::OsString, process::ExitCode};

use pyo3::{Python, pyfunction};

/// Runs the command line with these arguments and returns its exit code. `program` is the command that
/// starts it again, for the processes of a run.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, arguments: Vec<OsString>, program: Vec<OsString>) -> u8 {
    let code = py.detach(|| paceline::run(arguments, &program));
    // An `ExitCode` can be compared, but not read.
    (0..=u8::MAX).find(|&number| ExitCode::from(number) == code).unwrap_or(u8::MAX)
}
