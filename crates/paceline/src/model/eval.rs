//! `paceline model eval`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Result, ensure};
use clap::Args;
use paceline_core::{RunTime, Time, WorkerId};
use paceline_model::{Model, TrackerOptions, hash};
use paceline_policy::{
    Bdsgd, Empirical, Filter, LEVELS, PLACES, PredictionScore, Predictor, score,
};
use paceline_trace::{Cell, Trace};
use serde::Serialize;

use super::{load, sequence};
use crate::{progress::Progress, traces::TraceArgs};

/// Shown by `--help`.
pub(super) const EXAMPLES: &str = "\
Examples:
  paceline model eval cluster.model times.csv.gz --rounds 50%..
  paceline model eval prior --synthetic nodes158 --json       the generic prior

log lik: log density of the log run-time, in nats; larger is better. CRPS: continuous ranked
probability score, over the round's median; smaller is better. inside 50/90/99: the share of
run-times in those central intervals; order: the same for order statistics, the farthest off;
followed: the same when each interval is widened or narrowed by what happened so far.";

#[derive(Debug, Args)]
pub(super) struct EvalArgs {
    /// Model file, or `prior` for the generic prior
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    #[command(flatten)]
    traces: TraceArgs,
    /// Rounds at the beginning of each trace that warm up the predictors and are not scored
    #[arg(long, value_name = "N", default_value_t = 20)]
    warm_up: usize,
    /// Print one JSON object per trace and predictor
    #[arg(long)]
    json: bool,
}

/// One line of `--json`.
#[derive(Debug, Serialize)]
struct PredictorRow<'a> {
    trace: &'a str,
    predictor: &'a str,
    run_times: usize,
    log_likelihood: f64,
    crps: f64,
    levels: [f64; LEVELS.len()],
    coverage: [f64; LEVELS.len()],
    places: [f64; PLACES.len()],
    order_coverage: Option<Vec<[f64; LEVELS.len()]>>,
    order_coverage_followed: Option<Vec<[f64; LEVELS.len()]>>,
}

pub(super) fn run(args: &EvalArgs) -> Result<ExitCode> {
    let named = (args.model.as_os_str() != "prior").then_some(args.model.as_path());
    let model = load(named)?;
    for source in args.traces.sources() {
        let progress = Progress::new();
        progress.say(format!("reading {source}"));
        let trace = args.traces.load(&source)?;
        warn_if_fitted(&model, &trace);
        let rounds = records(&trace);
        ensure!(
            rounds.len() > args.warm_up.max(1),
            "{source}: {} rounds, of which {} only warm up: no round is left to score; take more \
             rounds or a smaller --warm-up",
            rounds.len(),
            args.warm_up.max(1)
        );
        if !args.json {
            println!(
                "{}: {} workers, {} rounds, {} of them scored",
                trace.name(),
                trace.workers().len(),
                rounds.len(),
                rounds.len() - args.warm_up.max(1)
            );
            println!(
                "{:16} {:>9} {:>9}  inside 50/90/99      order statistics, worst place",
                "", "log lik", "CRPS"
            );
        }
        let options = TrackerOptions::default();
        let frozen = TrackerOptions { frozen: true, ..options };
        let predictors: [(&str, Box<dyn Predictor>); 4] = [
            ("bdsgd", Box::new(Bdsgd::new(&model, options))),
            ("bdsgd:frozen", Box::new(Bdsgd::new(&model, frozen))),
            ("filter", Box::new(Filter::default())),
            ("empirical", Box::new(Empirical::default())),
        ];
        for (name, mut predictor) in predictors {
            progress.say(format!("{}: {name}", trace.name()));
            print(&trace, name, score(&mut *predictor, &rounds, args.warm_up), args.json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Warns if the model was fitted on these rounds, where its scores are too good.
fn warn_if_fitted(model: &Model, trace: &Trace) {
    let hash = hash(&sequence(trace));
    if model.manifest.traces.iter().any(|source| source.hash == hash) {
        eprintln!("{}: the model was fitted on these very rounds", trace.name());
    }
}

fn records(trace: &Trace) -> Vec<Vec<(WorkerId, RunTime)>> {
    let of = |cell: Cell| match cell {
        Cell::Absent => None,
        Cell::Observed(x) => Some(RunTime::Observed(Time::span(x))),
        Cell::Censored(x) => Some(RunTime::Censored { at_least: Time::span(x) }),
    };
    let row = |round: usize| {
        let cells = trace.row(round).enumerate();
        cells.filter_map(|(worker, cell)| Some((WorkerId(worker as u32), of(cell)?))).collect()
    };
    (0..trace.rounds()).map(row).collect()
}

fn print(trace: &Trace, name: &str, score: PredictionScore, json: bool) -> Result<()> {
    if json {
        let row = PredictorRow {
            trace: trace.name(),
            predictor: name,
            run_times: score.run_times,
            log_likelihood: score.log_likelihood,
            crps: score.crps,
            levels: LEVELS,
            coverage: score.coverage,
            places: PLACES,
            order_coverage: score.order.as_ref().map(|order| order.raw.clone()),
            order_coverage_followed: score.order.map(|order| order.followed),
        };
        println!("{}", serde_json::to_string(&row)?);
        return Ok(());
    }
    let percent = |shares: [f64; LEVELS.len()]| {
        shares.map(|share| format!("{:.1}", 100.0 * share)).join(" / ")
    };
    print!(
        "{name:16} {:9.4} {:9.5}  {}",
        score.log_likelihood,
        score.crps,
        percent(score.coverage)
    );
    if let Some(order) = score.order {
        print!(
            "   order {}, followed {}",
            percent(farthest(&order.raw)),
            percent(farthest(&order.followed))
        );
    }
    println!();
    Ok(())
}

/// At each level, the coverage that is farthest from it.
fn farthest(rows: &[[f64; LEVELS.len()]]) -> [f64; LEVELS.len()] {
    let mut farthest = LEVELS;
    for row in rows {
        for ((farthest, found), level) in farthest.iter_mut().zip(row).zip(LEVELS) {
            if (found - level).abs() > (*farthest - level).abs() {
                *farthest = *found;
            }
        }
    }
    farthest
}
