//! `paceline model`: fits and evaluates models of a cluster's run-times.

mod eval;
mod fit;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use paceline_model::{Model, Seen};
use paceline_trace::{Cell, Trace};

use eval::EvalArgs;
use fit::FitArgs;

/// Shown by `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  paceline model fit times.csv.gz -o cluster.model       fit a model to a cluster
  paceline model fit runs/cnn-001 runs/cnn-002 -o m      from runs of paceline
  paceline model fit times.csv --rounds ..50% -o m       from the first half alone
  paceline model eval m times.csv --rounds 50%..         likelihood, CRPS, calibration on the rest
  paceline model show m                                  what it was fitted on
  paceline simulate times.csv --policy bdsgd,auto --run-time-model m
  paceline train --policy bdsgd --run-time-model m

Without a model, bdsgd and auto begin with a generic prior and adapt as they run.
Exit codes: 0 done, 1 a file cannot be read or written, 2 wrong usage.";

#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    #[command(subcommand)]
    command: ModelCommand,
}

#[derive(Debug, Subcommand)]
enum ModelCommand {
    /// Fit a model to traces of run-times
    #[command(after_help = fit::EXAMPLES)]
    Fit(FitArgs),
    /// Score a model's predictions of traces, one round ahead, beside filter and empirical
    #[command(after_help = eval::EXAMPLES)]
    Eval(EvalArgs),
    /// Print a model's architecture and the data of its fit
    Show(ShowArgs),
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Model file [default: the generic prior]
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
}

pub(crate) fn run(args: &ModelArgs) -> Result<ExitCode> {
    match &args.command {
        ModelCommand::Fit(args) => fit::run(args),
        ModelCommand::Eval(args) => eval::run(args),
        ModelCommand::Show(args) => show(args),
    }
}

fn show(args: &ShowArgs) -> Result<ExitCode> {
    let model = load(args.model.as_deref())?;
    println!("{}", serde_json::to_string_pretty(&model.manifest)?);
    Ok(ExitCode::SUCCESS)
}

/// Largest model file, in bytes; models have some kilobytes.
const LARGEST: u64 = 1 << 26;

/// Reads a model; the generic prior without a path.
pub(crate) fn load(path: Option<&Path>) -> Result<Arc<Model>> {
    let Some(path) = path else { return Ok(Model::prior()) };
    let failed = || format!("failed to read the run-time model {}", path.display());
    let size = fs::metadata(path).with_context(failed)?.len();
    anyhow::ensure!(size <= LARGEST, "{}: {size} bytes are too many for a model", failed());
    let bytes = fs::read(path).with_context(failed)?;
    Ok(Arc::new(Model::from_bytes(&bytes).with_context(failed)?))
}

/// The rounds of a trace as a model sees them.
fn sequence(trace: &Trace) -> Vec<Seen> {
    let seen = |round: usize| {
        let mut seen = Seen::default();
        for (worker, cell) in trace.row(round).enumerate() {
            if let Some(bound) = cell.bound() {
                seen.workers.push(worker as u32);
                seen.log_times.push(bound.ln() as f32);
                seen.observed.push(matches!(cell, Cell::Observed(_)));
            }
        }
        seen
    };
    (0..trace.rounds()).map(seen).collect()
}
