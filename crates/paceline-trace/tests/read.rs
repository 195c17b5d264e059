//! Reading files, whole: formats, compression, and what is wrong where.

use std::{fs, io::Write, path::PathBuf};

use flate2::{Compression, write::GzEncoder};
use paceline_trace::{Cell, ReadOptions, Trace, Unit, read, write_csv};
use proptest::prelude::*;
use tempfile::TempDir;

const LONG: &str = "iteration,worker,seconds\n4,b,1.5\n4,a,>=2\n-1,b,3\n10,a,\n";

struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(TempDir::new().expect("a folder"))
    }

    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, content).expect("written");
        path
    }

    fn read(&self, content: impl AsRef<[u8]>) -> Result<Trace, String> {
        self.read_with(content, &ReadOptions::default())
    }

    /// Reads it as a file; an error comes without the folder.
    fn read_with(&self, content: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Trace, String> {
        let path = self.file("it.csv", content.as_ref());
        let folder = format!("{}/", self.0.path().display());
        read(&path, options).map_err(|error| error.to_string().replace(&folder, ""))
    }
}

fn rows(trace: &Trace) -> Vec<Vec<Cell>> {
    (0..trace.rounds()).map(|round| trace.row(round).collect()).collect()
}

fn columns(names: [&str; 3]) -> ReadOptions {
    ReadOptions { columns: Some(names.map(str::to_owned)) }
}

#[test]
fn the_long_form_in_any_order() {
    use Cell::{Absent, Censored, Observed};
    let folder = Folder::new();
    let trace = folder.read(LONG).expect("a trace");
    assert_eq!((trace.name(), trace.unit()), ("it", Unit::Seconds));
    assert_eq!(trace.workers(), ["b", "a"]);
    let expected = [[Observed(3.0), Absent], [Observed(1.5), Censored(2.0)], [Absent, Absent]];
    assert_eq!(rows(&trace), expected);

    let other = "\u{feff}seconds , worker, iteration\r\n\r\n1.5, 10 ,4\r\n2,9,4.0";
    let trace = folder.read(other).expect("a trace");
    assert_eq!(trace.workers(), ["9", "10"]);
    assert_eq!(rows(&trace), [[Observed(2.0), Observed(1.5)]]);
}

#[test]
fn the_wide_form() {
    use Cell::{Absent, Censored, Observed};
    let wide = "iteration,host b,\"host, a\"\n2,1,>=2.5\n1,,3\n";
    let trace = Folder::new().read(wide).expect("a trace");
    assert_eq!(trace.workers(), ["host b", "host, a"]);
    assert_eq!(rows(&trace), [[Absent, Observed(3.0)], [Observed(1.0), Censored(2.5)]]);
}

#[test]
fn columns_by_other_names_among_others() {
    let text = "job,step,host,gpu,t\nx,0,a,3,1.5\n";
    let folder = Folder::new();
    let trace = folder.read_with(text, &columns(["step", "host", "t"])).expect("a trace");
    assert_eq!(rows(&trace), [[Cell::Observed(1.5)]]);
    let error = folder.read_with(text, &columns(["step", "host", "time"])).expect_err("no time");
    assert!(error.contains("(job, step, host, gpu, t): step, host, time are needed"), "{error}");
}

#[test]
fn compression_is_told_by_content() {
    let folder = Folder::new();
    let plain = folder.read(LONG).expect("plain");
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(LONG.as_bytes()).expect("packed");
    let gzip = gzip.finish().expect("packed");
    assert_eq!(folder.read(&gzip).expect("gzip"), plain);
    let zstd = zstd::encode_all(LONG.as_bytes(), 3).expect("packed");
    assert_eq!(folder.read(&zstd).expect("zstd"), plain);
    for cut in [&gzip[..gzip.len() / 2], &zstd[..zstd.len() / 2]] {
        let error = folder.read(cut).expect_err("cut short");
        assert!(error.starts_with("it.csv: "), "{error}");
    }
}

#[track_caller]
fn refused(content: impl AsRef<[u8]>, expected: &str) {
    let error = Folder::new().read(content).expect_err(expected);
    assert!(error.contains(expected), "{error}\nexpected: {expected}");
}

#[test]
fn errors_say_where_what_and_what_would_be_right() {
    let row = |row: &str| format!("{LONG}\n{row}\n");
    refused("", "it.csv: the file is empty: a header and at least one row are needed");
    refused("\n \n", "it.csv: the file is empty");
    refused("iteration,worker,seconds\n", "it.csv: nothing follows the header");
    refused("0,0,1.5\n0,1,2\n", "it.csv, line 1: the first line must name the columns");
    refused("step,rank,time\n0,0,1\n", "line 1: unknown columns (step, rank, time)");
    refused(
        "iteration,worker,seconds,host\n",
        "unknown columns (iteration, worker, seconds, host)",
    );
    refused("iteration,worker,time\n", "unknown columns");
    refused("iteration,a,a\n0,1,2\n", "line 1: two columns are named `a`");
    refused("iteration,,a\n0,1,2\n", "line 1: `` is not a worker");
    refused(row("5,a"), "it.csv, line 7: 2 fields: the header has 3");
    refused(row("5,a,1,2"), "line 7: 4 fields");
    refused("iteration,a,b\n0,1\n", "line 2: 2 fields: the header has 3");
    refused(row("5,a,fast"), "line 7: `fast` is not a run-time: write a positive number, >=");
    refused(row("5,a,0"), "`0` is not a run-time");
    refused(row("5,a,-1"), "`-1` is not a run-time");
    refused(row("5,a,NaN"), "`NaN` is not a run-time");
    refused(row("5,a,inf"), "`inf` is not a run-time");
    refused(row("x,a,1"), "line 7: `x` is not an iteration: write a whole number");
    refused(row("5,,1"), "line 7: `` is not a worker");
    refused(row("4,a,1"), "line 7: iteration 4 already has a run-time of worker `a` (line 3)");
    refused(row("10,a,1"), "iteration 10 already has a run-time of worker `a` (line 5)");
    refused(row("5,\"a,1"), "line 7: a quote is not closed");
    refused([LONG.as_bytes(), b"5,\xff,1\n"].concat(), "line 6: the line is not text");
    refused(row(&format!("5,{},1", "x".repeat(300))), "line 7: `xxxxxxxx");
    let diagonal: String = (0..9000).map(|i| format!("{i},w{i},1\n")).collect();
    refused(
        format!("iteration,worker,seconds\n{diagonal}"),
        "line 8194: too large: 8193 workers × 8192 rounds",
    );
}

#[test]
fn what_is_not_there_is_named() {
    let folder = Folder::new();
    let error = read(&folder.0.path().join("none.csv"), &ReadOptions::default());
    assert!(error.expect_err("not there").to_string().contains("none.csv: "));
    let error = read(folder.0.path(), &ReadOptions::default()).expect_err("not a run").to_string();
    assert!(error.contains("a folder without events.jsonl or rank-*.csv"), "{error}");
}

#[test]
fn a_run_is_read_by_its_folder_or_its_log() {
    let closed = r#"{"at":2,"event":"closed","round":0,"closes":[],"run_times":[[0,{"observed":{"secs":2,"nanos":500000000}}]]}"#;
    let folder = Folder::new();
    let run = folder.0.path().join("first.run");
    fs::create_dir(&run).expect("a folder");
    fs::write(run.join("events.jsonl"), closed).expect("written");
    let by_folder = read(&run, &ReadOptions::default()).expect("a run");
    assert_eq!(by_folder.name(), "first.run");
    assert_eq!(rows(&by_folder), [[Cell::Observed(2.5)]]);
    let by_log = read(&run.join("events.jsonl"), &ReadOptions::default()).expect("a log");
    assert_eq!(by_log.named("first.run"), by_folder);
}

#[test]
fn a_recording_is_read_by_its_folder_while_it_is_written() {
    let folder = Folder::new();
    folder
        .file("rank-0.csv", b"# waits: excluded\niteration,worker,seconds\n0,0,1.5\n1,0,2\n2,0,2.");
    folder.file("rank-10.csv", b"# waits: excluded\niteration,worker,seconds\n1,10,4\n");
    folder.file("rank-2.csv", b"# waits: excluded\niteration,worker,seconds\n0,2,3\n1,2,3\n");
    folder.file("notes.csv", b"not a recording");
    let trace = read(folder.0.path(), &ReadOptions::default()).expect("a recording");
    assert_eq!(
        (trace.workers(), trace.waits_included()),
        (["0", "2", "10"].map(String::from).as_slice(), false)
    );
    let expected = [
        [Cell::Observed(1.5), Cell::Observed(3.0), Cell::Absent],
        [Cell::Observed(2.0), Cell::Observed(3.0), Cell::Observed(4.0)],
    ];
    assert_eq!(rows(&trace), expected);
    folder.file("rank-3.csv", b"# waits: included\niteration,worker,seconds\n0,3,3\n");
    assert!(read(folder.0.path(), &ReadOptions::default()).expect("a recording").waits_included());
}

#[test]
fn remarks_before_the_header_may_tell_of_waits() {
    let folder = Folder::new();
    let remarks = |text: &str| folder.read(format!("{text}\n{LONG}"));
    assert!(!remarks("# by hand, in May").expect("a trace").waits_included());
    let with_waits = remarks("# waits: included").expect("a trace");
    assert!(with_waits.waits_included());
    assert!(with_waits.slice(0..1).waits_included());
    assert_ne!(with_waits, folder.read(LONG).expect("a trace"));
    let error = remarks("# waits: some").expect_err("an unknown value");
    assert!(error.starts_with("it.csv, line 1: `some` says nothing about waits"), "{error}");
}

#[test]
fn a_name_that_csv_cannot_hold_is_refused() {
    for name in ["", "two\nlines"] {
        let trace = Trace::new("it", Unit::Seconds, vec![name.to_owned()]);
        assert!(write_csv(&trace, Vec::new()).is_err());
    }
}

fn cells() -> impl Strategy<Value = Cell> {
    prop_oneof![
        3 => (1e-9..1e9f64).prop_map(Cell::Observed),
        1 => (1e-300..1e300f64).prop_map(Cell::Censored),
        1 => Just(Cell::Absent),
    ]
}

/// Some workers, named by numbers in order or by anything that fits on a line, and their rounds.
fn traces() -> impl Strategy<Value = Trace> {
    let names = prop_oneof![
        (1..6u32).prop_map(|n| (0..n).map(|i| i.to_string()).collect::<Vec<_>>()),
        prop::collection::btree_set("[a-z ,\"ü>=.]{0,8}[a-z\"]", 1..6)
            .prop_map(|names| names.into_iter().rev().collect()),
    ];
    names.prop_flat_map(|names| {
        let rows = prop::collection::vec(prop::collection::vec(cells(), names.len()), 1..8);
        rows.prop_map(move |rows| {
            let mut trace = Trace::new("it", Unit::Seconds, names.clone());
            rows.into_iter().for_each(|row| trace.push_round(row));
            trace
        })
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(trace in traces()) {
        let mut text = Vec::new();
        write_csv(&trace, &mut text).expect("written");
        let back = Folder::new().read(&text).expect("a trace");
        prop_assert_eq!(back.workers(), trace.workers());
        prop_assert_eq!(rows(&back), rows(&trace));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let folder = Folder::new();
        let _ = folder.read(&bytes);
        let _ = folder.read([b"iteration,worker,seconds\n", bytes.as_slice()].concat());
        let _ = folder.read([b"{", bytes.as_slice()].concat());
    }

    #[test]
    fn no_rows_make_it_panic(rows in "((iteration|worker|seconds|[0-9]{1,3}|>=[0-9]|\"|-|\\.|e)?[,\n]){0,60}") {
        let folder = Folder::new();
        let _ = folder.read(&rows);
        let _ = folder.read(format!("iteration,worker,seconds\n{rows}"));
        let _ = folder.read(format!("iteration,0,1\n{rows}"));
    }
}
