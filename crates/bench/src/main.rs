//! Every figure in the docs, measured by one command: `cargo run --release -p bench -- NAME`.

mod bdsgd;
mod contest;
mod dataplane;
mod exchange;
mod limits;
mod machine;
mod paceline;
mod policies;
mod processes;
mod pytorch;
mod report;
mod rounds;
mod stats;
mod study;
mod time_to_accuracy;

use anyhow::{Result, bail};
use clap::Parser;

use crate::report::Report;

/// Measures, prints, and writes `docs/bench/NAME.md`.
#[derive(Debug, Parser)]
#[command(after_help = "Benches:\n  rounds    one round from end to end: training, stragglers, \
                        deaths, the data plane, many workers\n  policies  when to cut: every \
                        trace and preset, salvage, the cost of deciding\n  bdsgd     the deep generative \
                        model: clusters, calibration, shift, cost, live, real traces\n  \
                        dataplane  what moves the bytes: exchange against peers, folding, block \
                        sizes, slow shards, incast, scaling\n  \
                        time-to-accuracy  who reaches an accuracy first: scenarios, policies, \
                        live\n  \
                        pytorch   the Python package beside DDP, torchft and hivemind: time of a \
                        step, fixed costs, equality, time to a loss with something slow")]
struct Args {
    /// Bench to run
    name: String,
    /// Run for under a minute; figures that need longer are skipped and reported as such
    #[arg(long)]
    quick: bool,
    /// End with one line of JSON
    #[arg(long)]
    json: bool,
    /// Run only the part of this name; the docs keep the figures of the others
    #[arg(long)]
    only: Option<String>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let mut report = Report::new(&args.name, args.quick, args.only.clone());
    match args.name.as_str() {
        "rounds" => rounds::run(&mut report)?,
        "policies" => policies::run(&mut report)?,
        "bdsgd" => bdsgd::run(&mut report)?,
        "time-to-accuracy" => time_to_accuracy::run(&mut report)?,
        "dataplane" => dataplane::run(&mut report)?,
        "pytorch" => pytorch::run(&mut report)?,
        other => bail!(
            "there is no bench `{other}`; there are: rounds, policies, bdsgd, time-to-accuracy, \
             dataplane, pytorch"
        ),
    }
    report.finish(args.json)
}
