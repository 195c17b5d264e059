//! Stragglers caused by the data, and data lost to stragglers.

use anyhow::Result;

use super::{
    CompareStudy, FEWER,
    study::{CompareLine, compare, table},
};
use crate::{paceline::Paceline, report::Report};

/// Two of eight workers take three times as long and have classes that no other worker has.
const HOMES: CompareStudy = CompareStudy {
    name: "homes",
    flags: "--workers 8 --batch 16 --lr 0.01 --evaluations 1 --epochs 5 --to-the-end \
            --target-accuracy 0.8 --homes",
    policies: "full,static:6/impatient/abort,static:6/abort,static:6/reweigh/abort,auto,auto/reweigh",
    scenarios: &["slow:0:3,slow:1:3"],
    seeds: FEWER,
    tune_seeds: 2,
};

/// Samples of which one in twenty costs 2.7 times as much as most.
const COSTS: CompareStudy = CompareStudy {
    name: "costs",
    flags: "--workers 8 --batch 16 --lr 0.01 --evaluations 4 --epochs 10 --target-accuracy 0.8 \
            --costs lognormal:0.6",
    policies: "full/unbalanced,full,auto/unbalanced,auto",
    scenarios: &["none"],
    seeds: FEWER,
    tune_seeds: 2,
};

pub(super) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let homes = compare(paceline, &HOMES)?;
    let accuracy = |policy: &str| by_policy(&homes, policy).map_or(f64::NAN, |row| row.points());
    let full = accuracy("full");
    let dropped = full - accuracy("static:6/impatient/abort");
    let note = "points of accuracy that dropping two slow workers with classes of their own loses";
    report.tell("homes_lost_by_dropping", dropped, note);
    let restored = |policy: &str| (dropped - (full - accuracy(policy))) / dropped;
    let note = "share of it that waiting for what was given back three times restores";
    report.tell("homes_restored_by_patience", restored("static:6/abort"), note);
    let note = "share of it that patience restores with weights by how much less a worker is heard";
    report.at_least("homes_restored_by_reweighing", restored("static:6/reweigh/abort"), 0.5, note);
    let note = "share of it that salvage restores, under auto with patience";
    report.tell("homes_restored_by_salvage", restored("auto"), note);
    report.section(table(HOMES.name, &homes));

    let costs = compare(paceline, &COSTS)?;
    let seconds =
        |policy: &str| by_policy(&costs, policy).and_then(CompareLine::seconds).unwrap_or(f64::NAN);
    let note = "time to target of full sync with shuffled batches over balanced ones";
    let balanced = seconds("full/unbalanced") / seconds("full");
    report.at_least("costs_balanced_over_shuffled", balanced, 1.0, note);
    for policy in ["auto/unbalanced", "auto"] {
        let bias = by_policy(&costs, policy).and_then(|row| row.cost_bias).unwrap_or(f64::NAN);
        let note = "cost of what is in an update over what was handed out for it, less 1; salvage";
        report.tell(&format!("costs_bias_{}", policy.replace('/', "_")), bias, note);
    }
    let balanced = homes.iter().chain(&costs).all(|row| row.ledger_balanced);
    report.must("data_balanced", balanced, "the ledger of every run");
    report.section(table(COSTS.name, &costs));
    Ok(())
}

fn by_policy<'a>(rows: &'a [CompareLine], policy: &str) -> Option<&'a CompareLine> {
    rows.iter().find(|row| row.policy == policy)
}
