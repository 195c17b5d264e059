//! Columns of a Parquet file, read together.

use std::{fs::File, path::Path};

use parquet::{
    basic::ConvertedType,
    column::reader::{ColumnReader, ColumnReaderImpl},
    data_type::{ByteArray, DataType},
    errors::ParquetError,
    file::reader::{FileReader, SerializedFileReader},
};

use super::error::{Position, Problem, TraceError};

/// The value of one row in one column.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Null,
    Int(i64),
    Float(f64),
    Text(ByteArray),
}

/// An open Parquet file.
pub(super) struct Columns<'a> {
    path: &'a Path,
    reader: SerializedFileReader<File>,
}

impl<'a> Columns<'a> {
    pub(super) fn open(path: &'a Path, file: File) -> Result<Columns<'a>, TraceError> {
        let reader = SerializedFileReader::new(file).map_err(|e| failed(path, &e))?;
        Ok(Columns { path, reader })
    }

    /// The names of the columns, nested ones as `a.b`.
    pub(super) fn names(&self) -> Vec<String> {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        schema.columns().iter().map(|column| column.path().string()).collect()
    }

    /// Hands every row's values in the columns `wanted` (numbered as in [`names`](Self::names)) to
    /// `row`, with the row's number from 1.
    pub(super) fn scan<const N: usize>(
        &self,
        wanted: [usize; N],
        mut row: impl FnMut(u64, [Value; N]) -> Result<(), Problem>,
    ) -> Result<(), TraceError> {
        let failed = |error: ParquetError| failed(self.path, &error);
        let mut number = 0;
        for group in 0..self.reader.num_row_groups() {
            let group = self.reader.get_row_group(group).map_err(failed)?;
            let mut cursors = Vec::with_capacity(N);
            for column in wanted {
                self.check(column)?;
                let chunk = group.metadata().column(column);
                let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
                if start < 0 || chunk.compressed_size() < 0 {
                    return Err(failed(ParquetError::General("a negative size".to_owned())));
                }
                let reader = group.get_column_reader(column).map_err(failed)?;
                let most = chunk.column_descr().max_def_level();
                cursors.push(Cursor { reader, most, batch: Vec::new() });
            }
            loop {
                for cursor in &mut cursors {
                    cursor.fill().map_err(failed)?;
                }
                let rows = cursors[0].batch.len();
                if cursors.iter().any(|cursor| cursor.batch.len() != rows) {
                    let problem = Problem::Parquet("columns of different lengths".to_owned());
                    return Err(TraceError::file(self.path, problem));
                }
                if rows == 0 {
                    break;
                }
                for at in 0..rows {
                    number += 1;
                    let values = std::array::from_fn(|column| cursors[column].take(at));
                    row(number, values).map_err(|problem| {
                        TraceError::at(self.path, Position::Row(number), problem)
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Whether a column holds numbers or text.
    fn check(&self, column: usize) -> Result<(), TraceError> {
        use parquet::basic::Type;
        let column = self.reader.metadata().file_metadata().schema_descr().column(column);
        let plain = match column.physical_type() {
            Type::INT32 | Type::INT64 => !matches!(
                column.converted_type(),
                ConvertedType::DECIMAL
                    | ConvertedType::DATE
                    | ConvertedType::TIME_MILLIS
                    | ConvertedType::TIME_MICROS
                    | ConvertedType::TIMESTAMP_MILLIS
                    | ConvertedType::TIMESTAMP_MICROS
            ),
            Type::FLOAT | Type::DOUBLE => true,
            Type::BYTE_ARRAY => column.converted_type() != ConvertedType::DECIMAL,
            Type::BOOLEAN | Type::INT96 | Type::FIXED_LEN_BYTE_ARRAY => false,
        };
        if plain && column.max_rep_level() == 0 {
            return Ok(());
        }
        let found = match column.converted_type() {
            _ if column.max_rep_level() > 0 => "lists".to_owned(),
            ConvertedType::NONE => column.physical_type().to_string(),
            other => other.to_string(),
        };
        let wanted = "integers, floats or text";
        let problem = Problem::ColumnType { column: column.path().string(), found, wanted };
        Err(TraceError::file(self.path, problem))
    }
}

fn failed(path: &Path, error: &ParquetError) -> TraceError {
    TraceError::file(path, Problem::Parquet(error.to_string()))
}

/// One column of one row group, a batch at a time.
struct Cursor {
    reader: ColumnReader,
    /// The definition level of a value that is there.
    most: i16,
    batch: Vec<Value>,
}

impl Cursor {
    fn fill(&mut self) -> Result<(), ParquetError> {
        let Cursor { reader, most, batch } = self;
        batch.clear();
        match reader {
            ColumnReader::Int32ColumnReader(r) => fill(r, *most, batch, |x| Value::Int(x.into())),
            ColumnReader::Int64ColumnReader(r) => fill(r, *most, batch, Value::Int),
            ColumnReader::FloatColumnReader(r) => fill(r, *most, batch, |x| Value::Float(x.into())),
            ColumnReader::DoubleColumnReader(r) => fill(r, *most, batch, Value::Float),
            ColumnReader::ByteArrayColumnReader(r) => fill(r, *most, batch, Value::Text),
            _ => unreachable!("the types were checked"),
        }
    }

    fn take(&mut self, at: usize) -> Value {
        std::mem::replace(&mut self.batch[at], Value::Null)
    }
}

fn fill<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    most: i16,
    batch: &mut Vec<Value>,
    value: fn(T::T) -> Value,
) -> Result<(), ParquetError> {
    const ROWS: usize = 4096;
    let (mut values, mut levels) = (Vec::with_capacity(ROWS), Vec::new());
    if most == 0 {
        reader.read_records(ROWS, None, None, &mut values)?;
        batch.extend(values.into_iter().map(value));
        return Ok(());
    }
    reader.read_records(ROWS, Some(&mut levels), None, &mut values)?;
    let mut values = values.into_iter();
    batch.extend(levels.into_iter().map(|level| match level == most {
        true => values.next().map_or(Value::Null, value),
        false => Value::Null,
    }));
    Ok(())
}
