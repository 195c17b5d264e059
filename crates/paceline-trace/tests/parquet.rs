//! Reading Parquet files of run-times.

use std::{fs::File, path::PathBuf, sync::Arc};

use paceline_trace::{Cell, ReadOptions, Trace, read};
use parquet::{
    basic::{Compression, ZstdLevel},
    data_type::{ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type},
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    schema::parser::parse_message_type,
};
use tempfile::TempDir;

/// A column's values; an optional one may lack some.
enum Column {
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Double(Vec<Option<f64>>),
    Text(Vec<&'static str>),
}

/// Writes one row group with these columns.
fn write(folder: &TempDir, schema: &str, compression: Compression, columns: &[Column]) -> PathBuf {
    let path = folder.path().join("it.parquet");
    let schema = Arc::new(parse_message_type(schema).expect("a schema"));
    let properties = WriterProperties::builder().set_compression(compression).build();
    let file = File::create(&path).expect("a file");
    let mut writer = SerializedFileWriter::new(file, schema, properties.into()).expect("a writer");
    let mut group = writer.next_row_group().expect("a group");
    for column in columns {
        let mut to = group.next_column().expect("a column").expect("one more");
        match column {
            Column::Int32(values) => to.typed::<Int32Type>().write_batch(values, None, None),
            Column::Int64(values) => to.typed::<Int64Type>().write_batch(values, None, None),
            Column::Double(values) => {
                let levels: Vec<i16> = values.iter().map(|x| i16::from(x.is_some())).collect();
                let values: Vec<f64> = values.iter().copied().flatten().collect();
                to.typed::<DoubleType>().write_batch(&values, Some(&levels), None)
            }
            Column::Text(values) => {
                let values: Vec<ByteArray> = values.iter().map(|text| (*text).into()).collect();
                to.typed::<ByteArrayType>().write_batch(&values, None, None)
            }
        }
        .expect("written");
        to.close().expect("closed");
    }
    group.close().expect("closed");
    writer.close().expect("closed");
    path
}

fn read_back(schema: &str, columns: &[Column], options: &ReadOptions) -> Result<Trace, String> {
    let folder = TempDir::new().expect("a folder");
    let path = write(&folder, schema, Compression::SNAPPY, columns);
    let folder = format!("{}/", folder.path().display());
    read(&path, options).map_err(|error| error.to_string().replace(&folder, ""))
}

fn rows(trace: &Trace) -> Vec<Vec<Cell>> {
    (0..trace.rounds()).map(|round| trace.row(round).collect()).collect()
}

const NUMBERS: &str = "message m { required int64 iteration; required int32 worker; \
                       optional double seconds; }";

fn numbers(seconds: [Option<f64>; 4]) -> [Column; 3] {
    [
        Column::Int64(vec![7, 7, 3, 3]),
        Column::Int32(vec![10, 9, 9, 10]),
        Column::Double(seconds.to_vec()),
    ]
}

#[test]
fn numbers_for_all_three_in_any_compression() {
    use Cell::{Absent, Observed};
    let zstd = Compression::ZSTD(ZstdLevel::default());
    let gzip = Compression::GZIP(Default::default());
    for compression in
        [Compression::UNCOMPRESSED, Compression::SNAPPY, zstd, gzip, Compression::LZ4_RAW]
    {
        let folder = TempDir::new().expect("a folder");
        let columns = numbers([Some(1.0), Some(2.0), None, Some(4.0)]);
        let path = write(&folder, NUMBERS, compression, &columns);
        let trace = read(&path, &ReadOptions::default()).expect("a trace");
        assert_eq!((trace.name(), trace.workers()), ("it", &["9".to_owned(), "10".to_owned()][..]));
        assert_eq!(rows(&trace), [[Absent, Observed(4.0)], [Observed(2.0), Observed(1.0)]]);
    }
}

#[test]
fn names_and_lower_bounds_as_text_under_other_names() {
    let schema = "message m { required binary host (UTF8); required int32 gpu; \
                  required int32 step; required binary t (UTF8); }";
    let columns = [
        Column::Text(vec!["b", "a"]),
        Column::Int32(vec![0, 0]),
        Column::Int32(vec![1, 1]),
        Column::Text(vec!["1.5", ">=2"]),
    ];
    let options = ReadOptions { columns: Some(["step", "host", "t"].map(str::to_owned)) };
    let trace = read_back(schema, &columns, &options).expect("a trace");
    assert_eq!(trace.workers(), ["b", "a"]);
    assert_eq!(rows(&trace), [[Cell::Observed(1.5), Cell::Censored(2.0)]]);
    let error = read_back(schema, &columns, &ReadOptions::default()).expect_err("other names");
    let expected = "it.parquet: unknown columns (host, gpu, step, t): iteration, worker, seconds";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn errors_name_the_row() {
    let refused = |seconds, expected: &str| {
        let error = read_back(NUMBERS, &numbers(seconds), &ReadOptions::default());
        let error = error.expect_err(expected);
        assert!(error.starts_with(expected), "{error}");
    };
    let one = Some(1.0);
    refused([one, one, Some(0.0), one], "it.parquet, row 3: `0` is not a run-time");
    refused([one, one, one, Some(f64::NAN)], "it.parquet, row 4: `NaN` is not a run-time");

    let mut columns = numbers([one; 4]);
    columns[1] = Column::Int32(vec![9, 9, 9, 10]);
    let error = read_back(NUMBERS, &columns, &ReadOptions::default()).expect_err("twice");
    let expected = "it.parquet, row 2: iteration 7 already has a run-time of worker `9` (row 1)";
    assert!(error.starts_with(expected), "{error}");

    let date = NUMBERS.replace("int32 worker", "int32 worker (DATE)");
    let error = read_back(&date, &numbers([one; 4]), &ReadOptions::default()).expect_err("dates");
    assert!(error.contains("the column `worker` holds DATE: integers, floats or text"), "{error}");
}

#[test]
fn a_damaged_file_is_an_error() {
    let folder = TempDir::new().expect("a folder");
    let columns = numbers([Some(1.0), Some(2.0), None, Some(4.0)]);
    let path = write(&folder, NUMBERS, Compression::SNAPPY, &columns);
    let whole = std::fs::read(&path).expect("there");
    for end in 4..whole.len() {
        std::fs::write(&path, &whole[..end]).expect("written");
        let error = read(&path, &ReadOptions::default()).expect_err("cut short").to_string();
        assert!(error.contains("cannot be read as Parquet"), "{error}");
    }
    for at in 4..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x80;
        std::fs::write(&path, &damaged).expect("written");
        let _ = read(&path, &ReadOptions::default());
    }
}
