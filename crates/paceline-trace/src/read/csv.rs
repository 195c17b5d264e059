//! Traces in CSV: one row per cell, or one row per round.

use std::{borrow::Cow, io::BufRead, path::Path};

use super::{
    ReadOptions,
    error::{Position, Problem, TraceError, shown},
    field,
    lines::{Lines, NumberedLine},
    table::CellTable,
};
use crate::Trace;

/// Reads CSV text.
pub(super) fn read(
    path: &Path,
    name: &str,
    text: impl BufRead,
    options: &ReadOptions,
) -> Result<Trace, TraceError> {
    let mut table = CellTable::default();
    let waits_included = read_into(&mut table, path, text, options, LastLine::Complete)?;
    finish(table, path, name, waits_included)
}

/// Whether the last line counts if no line break follows it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum LastLine {
    /// It counts.
    Complete,
    /// The file may still be written: it does not count.
    MayBeCut,
}

/// Adds the cells of CSV text to a table. Tells whether run-times include waits for other workers.
pub(super) fn read_into(
    table: &mut CellTable,
    path: &Path,
    text: impl BufRead,
    options: &ReadOptions,
    last: LastLine,
) -> Result<bool, TraceError> {
    let mut lines = Lines::new(path, text);
    let at = |number, problem| TraceError::at(path, Position::Line(number), problem);
    let mut waits_included = false;
    let form = loop {
        let line = lines.next()?.ok_or_else(|| TraceError::file(path, Problem::Empty))?;
        let number = line.number;
        match line.text.strip_prefix(b"#") {
            Some(remark) => {
                let waits = waits(remark).map_err(|problem| at(number, problem))?;
                waits_included = waits.unwrap_or(waits_included);
            }
            None => {
                break fields(&line)
                    .and_then(|header| Form::from_header(&header, options, table))
                    .map_err(|problem| at(number, problem))?;
            }
        }
    };
    while let Some(line) = lines.next()? {
        if line.ended || last == LastLine::Complete {
            form.row(&line, table).map_err(|problem| at(line.number, problem))?;
        }
    }
    Ok(waits_included)
}

/// The trace of a table that was read from `path`.
pub(super) fn finish(
    table: CellTable,
    path: &Path,
    name: &str,
    waits_included: bool,
) -> Result<Trace, TraceError> {
    if table.is_empty() {
        return Err(TraceError::file(path, Problem::NoRows));
    }
    table
        .into_trace(name, Position::Line)
        .map(|trace| trace.with_waits(waits_included))
        .map_err(|(place, problem)| TraceError::at(path, place, problem))
}

/// The value of a remark `waits: included` or `waits: excluded`; `None` for any other remark.
fn waits(remark: &[u8]) -> Result<Option<bool>, Problem> {
    let remark = std::str::from_utf8(remark).map_err(|_| Problem::NotText)?;
    match remark.trim().strip_prefix("waits:").map(str::trim) {
        None => Ok(None),
        Some("included") => Ok(Some(true)),
        Some("excluded") => Ok(Some(false)),
        Some(other) => Err(Problem::Waits(shown(other))),
    }
}

/// The layout of the columns.
#[derive(Debug, PartialEq)]
enum Form {
    /// Indices of iteration, worker and seconds, and the number of fields per row.
    Long { columns: [usize; 3], fields: usize },
    /// An iteration, then one column for each of these workers.
    Wide(Vec<u32>),
}

impl Form {
    fn from_header(
        header: &[Cow<'_, str>],
        options: &ReadOptions,
        table: &mut CellTable,
    ) -> Result<Form, Problem> {
        if header[0].parse::<f64>().is_ok() {
            return Err(Problem::NoHeader(shown(&header[0])));
        }
        if let Some(twice) = duplicate(header) {
            return Err(Problem::DuplicateColumn(shown(twice)));
        }
        let position = |name: &str| header.iter().position(|column| column == name);
        let unknown = |wanted: &str| Problem::Columns {
            found: shown(&header.join(", ")),
            wanted: wanted.to_owned(),
        };
        if let Some(names) = &options.columns {
            let columns = names.each_ref().map(|name| position(name));
            let [Some(iteration), Some(worker), Some(seconds)] = columns else {
                return Err(unknown(&names.join(", ")));
            };
            return Ok(Form::Long { columns: [iteration, worker, seconds], fields: header.len() });
        }
        let iteration = position("iteration").or_else(|| position("round"));
        match (iteration, position("worker"), position("seconds")) {
            (Some(iteration), Some(worker), Some(seconds)) if header.len() == 3 => {
                Ok(Form::Long { columns: [iteration, worker, seconds], fields: 3 })
            }
            (Some(0), None, None) if header.len() > 1 => {
                let workers = header[1..].iter();
                let workers = workers.map(|name| table.worker(field::worker(name)?));
                Ok(Form::Wide(workers.collect::<Result<_, _>>()?))
            }
            _ => Err(unknown("iteration, worker, seconds (or iteration and one for each worker)")),
        }
    }

    fn row(&self, line: &NumberedLine<'_>, table: &mut CellTable) -> Result<(), Problem> {
        let fields = fields(line)?;
        let wanted = match self {
            Form::Long { fields, .. } => *fields,
            Form::Wide(workers) => workers.len() + 1,
        };
        if fields.len() != wanted {
            return Err(Problem::FieldCount { found: fields.len(), wanted });
        }
        match self {
            Form::Long { columns: [iteration, worker, seconds], .. } => {
                let iteration = field::iteration(&fields[*iteration])?;
                let worker = table.worker(field::worker(&fields[*worker])?)?;
                table.put(line.number, iteration, worker, field::cell(&fields[*seconds])?)
            }
            Form::Wide(workers) => {
                let iteration = field::iteration(&fields[0])?;
                workers.iter().zip(&fields[1..]).try_for_each(|(&worker, text)| {
                    table.put(line.number, iteration, worker, field::cell(text)?)
                })
            }
        }
    }
}

fn fields<'a>(line: &NumberedLine<'a>) -> Result<Vec<Cow<'a, str>>, Problem> {
    let text = std::str::from_utf8(line.text).map_err(|_| Problem::NotText)?;
    field::split(text).collect()
}

fn duplicate<'a>(header: &'a [Cow<'_, str>]) -> Option<&'a str> {
    let mut sorted: Vec<&str> = header.iter().map(AsRef::as_ref).collect();
    sorted.sort_unstable();
    sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}
