//! Traces in Parquet: one row per cell, as in the long form of CSV.

use std::{
    fs::File,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use super::{
    ReadOptions,
    columns::{Columns, Value},
    error::{Position, Problem, TraceError, shown},
    field, operations,
    table::CellTable,
};
use crate::{Cell, Trace};

/// Reads a Parquet file of run-times or of operations, depending on its columns.
///
/// The `parquet` crate panics on some damaged files (for example, with a missing dictionary). No state
/// outlives the attempt, so a panic is reported as an unreadable file.
pub(super) fn read(
    path: &Path,
    name: &str,
    file: File,
    options: &ReadOptions,
) -> Result<Trace, TraceError> {
    catch_unwind(AssertUnwindSafe(|| read_sound(path, name, file, options))).unwrap_or_else(|_| {
        Err(TraceError::file(path, Problem::Parquet("the file is damaged".to_owned())))
    })
}

fn read_sound(
    path: &Path,
    name: &str,
    file: File,
    options: &ReadOptions,
) -> Result<Trace, TraceError> {
    let columns = Columns::open(path, file)?;
    let names = columns.names();
    if let Some(wanted) = operations::columns(&names).filter(|_| options.columns.is_none()) {
        return operations::read(path, name, &columns, wanted);
    }
    let wanted = choose(&names, options).map_err(|problem| TraceError::file(path, problem))?;
    let mut table = CellTable::default();
    columns.scan(wanted, |row, [iteration, worker, seconds]| {
        let iteration = self::iteration(&iteration)?;
        let worker = table.worker(&self::worker(&worker)?)?;
        table.put(row, iteration, worker, cell(&seconds)?)
    })?;
    if table.is_empty() {
        return Err(TraceError::file(path, Problem::NoRows));
    }
    table
        .into_trace(name, Position::Row)
        .map_err(|(place, problem)| TraceError::at(path, place, problem))
}

fn choose(names: &[String], options: &ReadOptions) -> Result<[usize; 3], Problem> {
    let position = |name: &str| names.iter().position(|column| column == name);
    let (columns, wanted) = match &options.columns {
        Some(columns) => (columns.each_ref().map(|name| position(name)), columns.join(", ")),
        None => {
            let iteration = position("iteration").or_else(|| position("round"));
            let columns = [iteration, position("worker"), position("seconds")];
            let known = if names.len() == 3 { columns } else { [None; 3] };
            (known, "iteration, worker, seconds".to_owned())
        }
    };
    match columns {
        [Some(iteration), Some(worker), Some(seconds)] => Ok([iteration, worker, seconds]),
        _ => Err(Problem::Columns { found: shown(&names.join(", ")), wanted }),
    }
}

pub(super) fn iteration(value: &Value) -> Result<i64, Problem> {
    match value {
        Value::Int(x) => Ok(*x),
        Value::Float(x) => field::whole(*x).ok_or_else(|| Problem::Iteration(x.to_string())),
        Value::Text(text) => field::iteration(utf8(text)?),
        Value::Null => Err(Problem::Iteration(String::new())),
    }
}

fn worker(value: &Value) -> Result<String, Problem> {
    match value {
        Value::Int(x) => Ok(x.to_string()),
        Value::Float(x) => {
            let number = field::whole(*x).ok_or_else(|| Problem::Worker(x.to_string()))?;
            Ok(number.to_string())
        }
        Value::Text(text) => field::worker(utf8(text)?).map(str::to_owned),
        Value::Null => Err(Problem::Worker(String::new())),
    }
}

fn cell(value: &Value) -> Result<Cell, Problem> {
    let number = |x: f64| {
        let x = field::run_time(x).ok_or_else(|| Problem::RunTime(x.to_string()))?;
        Ok(Cell::Observed(x))
    };
    match value {
        Value::Int(x) => number(*x as f64),
        Value::Float(x) => number(*x),
        Value::Text(text) => field::cell(utf8(text)?.trim()),
        Value::Null => Ok(Cell::Absent),
    }
}

pub(super) fn utf8(text: &parquet::data_type::ByteArray) -> Result<&str, Problem> {
    text.as_utf8().map_err(|_| Problem::NotText)
}
