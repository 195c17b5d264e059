//! `paceline compare`: time to accuracy, policy by policy, on real training.

mod args;
mod contender;
mod live;
mod report;
mod scenario;
mod store;
mod study;
mod summary;
mod target;
mod trial;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use paceline_core::Straggler;
use paceline_nn::{CostSpec, DataSource};
use paceline_policy::{Cutoff, PolicySpec};

pub(crate) use args::CompareArgs;
use contender::Contender;
use scenario::ScenarioSpec;
use store::ResultStore;
use study::Comparison;

use crate::{config::Usage, model, progress::Progress, workload::Workload};

/// Shown by `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  paceline compare                                    three policies, with and without stalls
  paceline compare --policies full,auto,auto/samples --scenario slow:0:3 --seeds 5
  paceline compare --policies full,best-static,auto,async,stale:8 --scenario stalls:3 --workers 64 --batch 8
  paceline compare --scenario trace:times.csv.gz --data mnist --target-accuracy 0.98
  paceline compare --sweep 8,4 --scenario stalls:3    how many backup workers
  paceline compare --live 100ms --scenario slow:1:3   real processes, workers padded to 100 ms per round

Training is real; time is virtual unless --live is given: an undisturbed worker takes one second per
round. Every policy chooses among the same number of learning rates. Results are kept in the --out
folder (results.jsonl, page.html); an interrupted comparison resumes from them.
Exit codes: 0 done, 1 a file cannot be read or written, 2 wrong usage.";

/// Scenarios compared by default.
const SCENARIOS: [&str; 2] = ["none", "stalls:3"];

pub(crate) fn run(mut args: CompareArgs) -> Result<ExitCode> {
    args.check().map_err(Usage)?;
    if args.scenario.is_empty() {
        args.scenario = SCENARIOS.map(|text| text.parse().expect("a scenario")).to_vec();
    }
    if let Some((workers, backups)) = args.sweep {
        args.workers = workers + backups;
        args.policies = backup_policies(workers, backups);
    }
    let (scenarios, policies) = (args.scenario.clone(), args.policies.clone());
    let progress = Progress::new();
    progress.say("loading the data".to_owned());
    let workload = Workload::load(args.model, &args.data, 1)?.costing(args.costs.as_ref(), 1)?;
    let workload = if args.homes { workload.by_label() } else { workload };
    let model = model::load(None)?;
    let store = ResultStore::open(&args.out, &inputs(&args))?;
    let cases =
        Comparison::new(&args, &workload, &model, &store, &progress).run(&scenarios, &policies)?;
    drop(progress);
    let rows = summary::rows(&cases);
    let notes = notes(&args, &scenarios, &rows);
    if args.json {
        for row in &rows {
            println!("{}", serde_json::to_string(row)?);
        }
        notes.iter().for_each(|note| println!("{}", serde_json::json!({ "choice": note })));
    } else {
        print!("{}", summary::text(&rows, args.target()));
        notes.iter().for_each(|note| println!("\n{note}"));
    }
    let path = args.out.join("page.html");
    report::page(&cases, &rows, args.target(), &notes).write(&path)?;
    eprintln!("wrote {}", path.display());
    Ok(ExitCode::SUCCESS)
}

/// Policies that wait for the first N of N + b machines, with 0 to b backups.
fn backup_policies(workers: u32, backups: u32) -> Vec<Contender> {
    let contender = |count: u32| {
        let policy = PolicySpec::Static(Cutoff::Count(count));
        let plain: Contender = "full".parse().expect("a policy");
        Contender { policy, straggler: Some(Straggler::Abort), ..plain }
    };
    (workers..=workers + backups).rev().map(contender).collect()
}

/// Input files that results depend on.
fn inputs(args: &CompareArgs) -> Vec<PathBuf> {
    let traces = args.scenario.iter().filter_map(|scenario| match scenario {
        ScenarioSpec::Trace(path) => Some(path.clone()),
        _ => None,
    });
    let costs = args.costs.iter().filter_map(|costs| match costs {
        CostSpec::File(path) => Some(path.clone()),
        CostSpec::Lognormal(_) => None,
    });
    let data = match &args.data {
        DataSource::Dir(dir) => Some(dir.clone()),
        DataSource::Embedded => None,
    };
    traces.chain(costs).chain(data).collect()
}

fn notes(
    args: &CompareArgs,
    scenarios: &[ScenarioSpec],
    rows: &[summary::ComparisonRow],
) -> Vec<String> {
    if args.sweep.is_none() {
        return Vec::new();
    }
    let choice = |scenario: &ScenarioSpec| {
        let name = scenario.to_string();
        let rows: Vec<summary::ComparisonRow> =
            rows.iter().filter(|row| row.scenario == name).cloned().collect();
        summary::choice(&rows, args.workers)
    };
    scenarios.iter().filter_map(choice).collect()
}
