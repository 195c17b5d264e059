//! Traces into files.

use std::io::{self, Write};

use crate::{Cell, Trace, read::quoted};

/// Writes a trace as CSV in the long form, which [`read`](crate::read()) gives back: a lower bound
/// has `>=` before it, an absent worker has nothing. Moments of micro-batches are not written.
///
/// # Errors
/// Those of the writer, and a worker whose name is empty or has a line break.
pub fn write_csv(trace: &Trace, to: impl Write) -> io::Result<()> {
    let mut to = io::BufWriter::new(to);
    let names: Vec<_> = trace.workers().iter().map(|name| quoted(name)).collect();
    if let Some(name) = names.iter().find(|name| name.is_empty() || name.contains(['\n', '\r'])) {
        let problem = format!("a worker's name cannot be written in CSV: {name:?}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    if trace.waits_included() {
        writeln!(to, "# waits: included")?;
    }
    writeln!(to, "iteration,worker,seconds")?;
    for round in 0..trace.rounds() {
        for (name, cell) in names.iter().zip(trace.row(round)) {
            match cell {
                Cell::Absent => writeln!(to, "{round},{name},")?,
                Cell::Observed(x) => writeln!(to, "{round},{name},{x}")?,
                Cell::Censored(x) => writeln!(to, "{round},{name},>={x}")?,
            }
        }
    }
    to.flush()
}
