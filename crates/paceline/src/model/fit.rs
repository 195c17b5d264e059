//! `paceline model fit`.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::{Result, ensure};
use clap::Args;
use paceline_model::{Fit, FitOptions, FitPass, FittedTrace, Model, ModelManifest, hash};
use paceline_report::write_whole;
use paceline_trace::{Trace, Unit};

use super::sequence;
use crate::{
    progress::Progress,
    traces::{self, TraceArgs},
};

/// Shown by `--help`.
pub(super) const EXAMPLES: &str = "\
Examples:
  paceline model fit times.csv.gz -o cluster.model
  paceline model fit *.csv.gz --rounds ..50% -o m --epochs 60
  paceline model fit --synthetic nodes158-stalls:rounds=2000 -o m --json

Every pass prints the evidence lower bound in nats a run-time, on what was fitted and on what was
held out; the weights of the best held-out pass are written.";

/// Least rounds of a trace.
const LEAST: usize = 10;

#[derive(Debug, Args)]
pub(super) struct FitArgs {
    #[command(flatten)]
    traces: TraceArgs,
    /// File to write the model to
    #[arg(short, long, value_name = "MODEL")]
    output: PathBuf,
    /// Most passes over the traces
    #[arg(long, value_name = "N", default_value_t = FitOptions::default().epochs, value_parser = at_least_one)]
    epochs: usize,
    /// Passes without a better held-out bound before the fit stops
    #[arg(long, value_name = "N", default_value_t = FitOptions::default().patience, value_parser = at_least_one)]
    patience: usize,
    /// Share of each trace, at its end, that is held out for evaluation
    #[arg(long, value_name = "SHARE", default_value_t = FitOptions::default().held_out, value_parser = share)]
    held_out: f64,
    /// Seed of the initial weights and of all draws
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    fit_seed: u64,
    /// Begin with initial weights instead of the generic prior
    #[arg(long)]
    fresh: bool,
    /// Print one JSON object per pass
    #[arg(long)]
    json: bool,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err("expected a number from 1".to_owned()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if (0.01..=0.9).contains(&x) => Ok(x),
        _ => Err("expected a share from 0.01 to 0.9".to_owned()),
    }
}

pub(super) fn run(args: &FitArgs) -> Result<ExitCode> {
    check_output(&args.output)?;
    let sources = args.traces.sources();
    ensure!(
        !matches!(sources[..], [traces::TraceSource::Sample]),
        "give a trace to fit on, or draw one with --synthetic"
    );
    let progress = Progress::new();
    let mut traces = Vec::new();
    for source in sources {
        progress.say(format!("reading {source}"));
        let trace = args.traces.load(&source)?;
        ensure!(
            trace.rounds() >= LEAST,
            "{source}: {} rounds are too few to fit on; {LEAST} are needed",
            trace.rounds()
        );
        ensure!(trace.median() > 0.0, "{source}: half of the run-times are zero");
        traces.push(trace);
    }
    let sequences: Vec<_> = traces.iter().map(sequence).collect();
    let sources = traces.iter().zip(&sequences).map(|(trace, rounds)| source(trace, hash(rounds)));
    let sources = sources.collect();
    let options = FitOptions {
        seed: args.fit_seed,
        epochs: args.epochs,
        patience: args.patience,
        held_out: args.held_out,
        ..FitOptions::default()
    };
    let start = (!args.fresh).then(|| Model::prior().weights.clone());
    let mut fit = Fit::new(sequences, options, start);
    let began = Instant::now();
    if !args.json && !args.fresh {
        println!("the prior          held out {:8.4}", fit.held_out_by_best());
    }
    let mut pass = 0;
    loop {
        pass += 1;
        let watch = |share: f64| {
            progress.say(format!("pass {pass} of at most {}: {:.0} %", args.epochs, 100.0 * share));
        };
        let Some(done) = fit.pass(watch) else { break };
        print(&done, began.elapsed().as_secs_f64(), args.json);
    }
    drop(progress);
    let best = fit.held_out_by_best();
    ensure!(best.is_finite(), "the fit failed: no pass gave a finite bound");
    let manifest = ModelManifest::new(sources, args.fit_seed, best);
    let model = Model { weights: fit.best().clone(), manifest };
    write_whole(&args.output, &model.to_bytes()?)?;
    eprintln!("wrote {}", args.output.display());
    Ok(ExitCode::SUCCESS)
}

/// Checks the output file before a fit, which takes minutes. A file that is no model is never
/// overwritten.
fn check_output(path: &Path) -> Result<()> {
    let shown = path.display();
    ensure!(!path.is_dir(), "{shown} is a folder: name a file for the model");
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    ensure!(parent.is_none_or(Path::is_dir), "the folder of {shown} does not exist");
    ensure!(
        !path.is_file() || super::load(Some(path)).is_ok(),
        "{shown} exists and is not a model: name another file"
    );
    Ok(())
}

fn source(trace: &Trace, hash: String) -> FittedTrace {
    FittedTrace {
        name: trace.name().to_owned(),
        workers: trace.workers().len(),
        rounds: trace.rounds(),
        unit: match trace.unit() {
            Unit::Seconds => "seconds".to_owned(),
            Unit::Relative => "relative".to_owned(),
        },
        hash,
    }
}

fn print(pass: &FitPass, seconds: f64, json: bool) {
    let FitPass { epoch, fitted, held_out, best } = *pass;
    if json {
        let line = serde_json::json!({
            "pass": epoch, "fitted": fitted, "held_out": held_out, "best": best, "seconds": seconds,
        });
        println!("{line}");
    } else {
        let mark = if best { "  best" } else { "" };
        println!(
            "pass {epoch:3}  fitted {fitted:8.4}  held out {held_out:8.4}  {seconds:6.1} s{mark}"
        );
    }
}
