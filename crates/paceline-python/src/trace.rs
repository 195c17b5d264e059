//! Traces of run-times.

use std::{path::PathBuf, sync::Arc};

use paceline_trace::{Cell, ReadOptions, Unit};
use pyo3::{
    PyErr, PyResult, Python,
    exceptions::{PyOSError, PyValueError},
    pyclass, pymethods,
};

use crate::interrupt::interruptible;

/// A trace of run-times.
#[pyclass(frozen, module = "paceline._native")]
pub(crate) struct Trace(pub(crate) Arc<paceline_trace::Trace>);

#[pymethods]
impl Trace {
    /// Reads a file or a folder.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<Trace> {
        let trace = interruptible(py, move || {
            paceline_trace::read(&path, &ReadOptions::default()).map_err(|error| match error {
                error @ paceline_trace::TraceError::Io { .. } => {
                    PyErr::new::<PyOSError, _>(error.to_string())
                }
                error => PyValueError::new_err(error.to_string()),
            })
        })??;
        Ok(Trace(Arc::new(trace)))
    }

    /// Makes a trace of 64-bit floats in native byte order, round by round; NaN is an absent worker.
    #[staticmethod]
    fn from_cells(name: String, workers: usize, cells: &[u8]) -> PyResult<Trace> {
        let (cells, rest) = cells.as_chunks::<8>();
        if workers == 0
            || cells.is_empty()
            || !rest.is_empty()
            || !cells.len().is_multiple_of(workers)
        {
            return Err(PyValueError::new_err(
                "a trace has rounds × workers run-times, and at least one",
            ));
        }
        let mut trace = paceline_trace::Trace::of_size(name, Unit::Seconds, workers);
        for (round, row) in cells.chunks_exact(workers).enumerate() {
            let mut checked = Vec::with_capacity(workers);
            for (worker, bytes) in row.iter().enumerate() {
                checked.push(match f64::from_ne_bytes(*bytes) {
                    x if x.is_nan() => Cell::Absent,
                    x if x > 0.0 && x.is_finite() => Cell::Observed(x),
                    x => {
                        return Err(PyValueError::new_err(format!(
                            "round {round}, worker {worker}: {x} is not a run-time: expected a \
                             positive number, or NaN for a worker that was absent"
                        )));
                    }
                });
            }
            trace.push_round(checked);
        }
        Ok(Trace(Arc::new(trace)))
    }

    /// Whether run-times include waits for other workers.
    #[getter]
    fn waits_included(&self) -> bool {
        self.0.waits_included()
    }
}
