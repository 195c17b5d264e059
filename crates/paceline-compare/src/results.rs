//! A comparison from its flags to its results.

use std::{ffi::OsString, path::PathBuf};

use anyhow::Result;
use paceline_core::Straggler;
use paceline_model::Model;
use paceline_nn::{CostSpec, DataSource, Workload};
use paceline_policy::{Cutoff, PolicySpec};
use paceline_report::{Page, Usage};

use crate::{
    args::CompareArgs,
    contender::Contender,
    report,
    scenario::ScenarioSpec,
    store::ResultStore,
    study::{Comparison, ComparisonCase, OnStage},
    summary::{self, ComparisonRow},
    target::Target,
};

/// Scenarios compared by default.
const SCENARIOS: [&str; 2] = ["none", "stalls:3"];

/// Compares policies as the flags say. `program` is the command that starts `paceline`, for live runs.
/// Flags that cannot be used are a [`Usage`] error.
pub fn compare(
    mut args: CompareArgs,
    program: &[OsString],
    stage: &OnStage,
) -> Result<ComparisonResults> {
    args.check().map_err(Usage)?;
    if args.scenario.is_empty() {
        args.scenario = SCENARIOS.map(|text| text.parse().expect("a scenario")).to_vec();
    }
    if let Some((workers, backups)) = args.sweep {
        args.workers = workers + backups;
        args.policies = backup_policies(workers, backups);
    }
    let (scenarios, policies) = (args.scenario.clone(), args.policies.clone());
    stage("loading the data".to_owned());
    let workload = Workload::load(args.model, &args.data, 1)?.costing(args.costs.as_ref(), 1)?;
    let workload = if args.homes { workload.by_label() } else { workload };
    let store = ResultStore::open(&args.out, &inputs(&args))?;
    let cases = Comparison::new(&args, program, &workload, &Model::prior(), &store, stage)
        .run(&scenarios, &policies)?;
    let rows = summary::rows(&cases);
    let notes = notes(&args, &scenarios, &rows);
    Ok(ComparisonResults { target: args.target(), cases, rows, notes })
}

/// The results of a comparison.
#[derive(Debug)]
pub struct ComparisonResults {
    target: Target,
    cases: Vec<ComparisonCase>,
    rows: Vec<ComparisonRow>,
    /// The recommendations of a sweep.
    notes: Vec<String>,
}

impl ComparisonResults {
    /// A table per scenario, then the recommendations of a sweep.
    pub fn text(&self) -> String {
        let notes = self.notes.iter().map(|note| format!("\n{note}\n"));
        std::iter::once(summary::text(&self.rows, self.target)).chain(notes).collect()
    }

    /// One JSON object per policy and scenario, and one per recommendation of a sweep.
    pub fn json(&self) -> Result<Vec<String>, serde_json::Error> {
        let rows = self.rows.iter().map(serde_json::to_string);
        let notes = self.notes.iter().map(|note| serde_json::json!({ "choice": note }));
        rows.chain(notes.map(|note| Ok(note.to_string()))).collect()
    }

    /// The page with tables and charts.
    pub fn page(&self) -> Page {
        report::page(&self.cases, &self.rows, self.target, &self.notes)
    }
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

fn notes(args: &CompareArgs, scenarios: &[ScenarioSpec], rows: &[ComparisonRow]) -> Vec<String> {
    if args.sweep.is_none() {
        return Vec::new();
    }
    let choice = |scenario: &ScenarioSpec| {
        let name = scenario.to_string();
        let rows: Vec<ComparisonRow> =
            rows.iter().filter(|row| row.scenario == name).cloned().collect();
        summary::choice(&rows, args.workers)
    };
    scenarios.iter().filter_map(choice).collect()
}
