//! `paceline simulate`: the rate of each policy on recorded or synthetic run-times.

mod args;
mod clusters;
mod explain;
mod report;
mod study;
mod system;
mod text;

use std::{
    fmt::Write as _,
    io::{self, Write},
    process::ExitCode,
};

use anyhow::{Context, Result};
use paceline_report::write_whole;
use serde::Serialize;

pub(crate) use args::SimulateArgs;
pub use args::{Overhead, ReplayedPolicy};
pub use report::SimulationReport;
pub use study::{ReplayRow, Study};
pub use text::text as simulation_text;

use crate::{model, progress::Progress, traces::TraceSource};

/// Shown by `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  paceline simulate                                        an embedded sample under three policies
  paceline simulate times.csv.gz --policy full,auto        your own run-times
  paceline simulate runs/cnn-001 --policy auto,static:0.75 another policy on the run-times of a run
  paceline simulate ops.parquet --straggler salvage        finished micro-batches count
  paceline simulate --synthetic nodes158-stalls --policy auto,filter:commit,oracle --seeds 5
  paceline simulate times.csv --overhead 0.1x --json       one JSON object per line
  paceline simulate times.csv --system lan:model=1GB --policy full,auto
                                                           with network and shards
  paceline simulate times.csv --system lan:stop-every=20,stop-for=5s --pull auto --max-stale 8
                                                           a slow shard that is not waited for
  paceline simulate times.csv --html page.html             charts of the cutoff over time
  paceline simulate --random 300 --seed 1 --policy full,auto,filter --parts
                                                           300 random clusters, the parts of auto too
  paceline simulate times.csv.gz --explain                 round by round: what auto lost, and why
  paceline simulate --hunt 2000 --policy auto --against full
                                                           clusters on which auto loses most to full

A policy never sees a run-time past the cut, only that it is longer (--straggler abort).
Exit codes: 0 done, 1 a trace cannot be read or a file cannot be written, 2 wrong usage,
130 a hunt was interrupted and printed its finds so far.";

pub(crate) fn run(args: &SimulateArgs) -> Result<ExitCode> {
    if let Some(count) = args.clusters.random() {
        return clusters::random(args, count);
    }
    if let Some(evaluations) = args.clusters.hunt() {
        return clusters::hunt(args, evaluations);
    }
    let sources = args.traces.sources();
    let model = model::load(args.run_time_model.as_deref())?;
    let mut report = args.html.as_ref().map(|_| SimulationReport::new());
    let mut decisions = String::from("trace,policy,seed,round,accepted,seconds\n");
    for (i, source) in sources.iter().enumerate() {
        let progress = Progress::new();
        progress.say(format!("reading {source}"));
        let trace = args.traces.load(source)?;
        let tell = |done: usize, all: usize| {
            progress.say(format!("{}: replay {done} of {all}", trace.name()));
        };
        if let Some(spec) = args.system {
            let rows = system::study(spec, source, &trace, args, &model, tell)?;
            drop(progress);
            say_if_sample(source);
            if !print(&rows, system::text, args.json, i > 0)? {
                break;
            }
            continue;
        }
        if args.explain {
            progress.say(format!("{}: replaying auto and its parts", trace.name()));
            let explained = [explain::explain(source, &trace, &args.study(), &model)?];
            drop(progress);
            say_if_sample(source);
            if !print(&explained, |rows| explain::text(&rows[0]), args.json, i > 0)? {
                break;
            }
            continue;
        }
        let rows = args.study().run(&trace, source.by_the_clock(), &model, |done, all| {
            tell(done, all);
            Ok(())
        })?;
        if args.decisions.is_some() {
            rows.iter().for_each(|row| write_decisions(row, &mut decisions));
        }
        if let Some(report) = &mut report {
            report.add(&rows);
        }
        drop(progress);
        say_if_sample(source);
        if !print(&rows, |rows| text::text(rows, trace.censored_share()), args.json, i > 0)? {
            break;
        }
    }
    if let Some(path) = &args.decisions {
        write_whole(path, decisions.as_bytes())?;
        eprintln!("wrote {}", path.display());
    }
    if let (Some(report), Some(path)) = (report, &args.html) {
        report.page().write(path)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn say_if_sample(source: &TraceSource) {
    if matches!(source, TraceSource::Sample) {
        eprintln!("no trace given: this is the embedded sample (--help has examples)");
    }
}

/// Prints one trace's study; false if standard output is closed.
fn print<R: Serialize>(
    rows: &[R],
    for_people: impl Fn(&[R]) -> String,
    json: bool,
    apart: bool,
) -> Result<bool> {
    let mut text = if apart && !json { "\n".to_owned() } else { String::new() };
    if json {
        for row in rows {
            text += &serde_json::to_string(row).context("failed to write a result as JSON")?;
            text.push('\n');
        }
    } else {
        text += &for_people(rows);
    }
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("failed to print the results"),
    }
}

fn write_decisions(row: &ReplayRow, csv: &mut String) {
    let trace = match row.trace.contains([',', '"']) {
        true => format!("\"{}\"", row.trace.replace('"', "\"\"")),
        false => row.trace.clone(),
    };
    for (round, outcome) in row.outcome.rounds.iter().enumerate() {
        let _ = writeln!(
            csv,
            "{trace},{},{},{round},{},{}",
            row.policy, row.seed, outcome.accepted, outcome.seconds
        );
    }
}
