//! `paceline analyze`: the cost of stragglers, and the most that could be saved.

mod args;
mod report;
mod text;
mod words;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::{Context, Result, ensure};
use paceline_analysis::{Analysis, analyze};

use crate::progress::Progress;
pub(crate) use args::AnalyzeArgs;
pub use report::AnalysisReport;
pub use text::text as analysis_text;

use crate::traces::TraceSource;

/// Shown by `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  paceline analyze                                   an embedded sample
  paceline analyze times.csv.gz                      rows iteration,worker,seconds
  paceline analyze ops.parquet --html page.html      with charts, as one page
  paceline analyze runs/cnn-001 --run-length 720h    a run of paceline; hours saved of a month
  paceline analyze log.csv --columns step,rank,took  columns with other names
  paceline analyze *.csv --json                      one JSON object per line
  paceline analyze --synthetic nodes158-stalls       a synthetic cluster

Lower bounds (>=SECONDS) count as censored run-times: figures are then given as ranges.
Exit codes: 0 done, 1 a trace cannot be read or a page cannot be written, 2 wrong usage.";

pub(crate) fn run(args: &AnalyzeArgs) -> Result<ExitCode> {
    let options = args.options();
    let sources = args.traces.sources();
    let mut report = args.html.as_ref().map(|_| AnalysisReport::new());
    for (i, source) in sources.iter().enumerate() {
        let progress = Progress::new();
        progress.say(format!("reading {source}"));
        let trace = args.traces.load(source)?;
        ensure!(
            trace.median() > 0.0,
            "{source}: no worker is present in any round; at least one run-time is needed"
        );
        let analysis = analyze(&trace, &options, &mut |stage| {
            progress.say(format!("{}: {stage}", trace.name()));
        });
        if let Some(report) = &mut report {
            progress.say(format!("{}: drawing", trace.name()));
            report.add(&trace, &analysis);
        }
        drop(progress);
        if matches!(source, TraceSource::Sample) {
            eprintln!("no trace given: this is the embedded sample (--help has examples)");
        }
        if !print(&analysis, args.json, i > 0)? {
            break;
        }
    }
    if let (Some(report), Some(path)) = (report, &args.html) {
        report.page().write(path)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints one analysis; false if standard output is closed.
fn print(analysis: &Analysis, json: bool, apart: bool) -> Result<bool> {
    let text = match json {
        true => serde_json::to_string(analysis).context("failed to write the analysis as JSON")?,
        false => text::text(analysis),
    };
    let gap = if apart && !json { "\n" } else { "" };
    let mut out = io::stdout().lock();
    match writeln!(out, "{gap}{}", text.trim_end()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("failed to print the analysis"),
    }
}
