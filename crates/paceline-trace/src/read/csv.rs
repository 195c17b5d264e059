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
    let mut lines = Lines::new(path, text);
    let mut table = CellTable::default();
    let header = lines.next()?.ok_or_else(|| TraceError::file(path, Problem::Empty))?;
    let at = |number, problem| TraceError::at(path, Position::Line(number), problem);
    let number = header.number;
    let form = fields(&header)
        .and_then(|header| Form::from_header(&header, options, &mut table))
        .map_err(|problem| at(number, problem))?;
    while let Some(line) = lines.next()? {
        form.row(&line, &mut table).map_err(|problem| at(line.number, problem))?;
    }
    if table.is_empty() {
        return Err(TraceError::file(path, Problem::NoRows));
    }
    table
        .into_trace(name, Position::Line)
        .map_err(|(place, problem)| TraceError::at(path, place, problem))
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
