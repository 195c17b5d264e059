//! Bench `time-to-accuracy`: time to an accuracy by policy, with real training on a virtual clock and
//! live.

mod data;
mod live;
mod study;

use anyhow::Result;

use crate::{
    paceline::{Paceline, workspace},
    report::Report,
    stats::{paired_difference, paired_ratio},
};
use study::{CompareLine, compare, table};

/// A study by `paceline compare`: its name, and its flags.
struct CompareStudy {
    name: &'static str,
    flags: &'static str,
    policies: &'static str,
    scenarios: &'static [&'static str],
    seeds: u32,
    /// Seeds per learning rate tried.
    tune_seeds: u32,
}

impl CompareStudy {
    const fn new(
        name: &'static str,
        flags: &'static str,
        policies: &'static str,
        scenarios: &'static [&'static str],
        seeds: u32,
    ) -> CompareStudy {
        CompareStudy { name, flags, policies, scenarios, seeds, tune_seeds: 2 }
    }

    const fn tuned_by(self, tune_seeds: u32) -> CompareStudy {
        CompareStudy { tune_seeds, ..self }
    }
}

/// Flags of all studies.
const COMMON: &str = "--micro-batches 8";
/// Seeds of studies with goals: time to accuracy is noisy.
const SEEDS: u32 = 20;
const FEWER: u32 = 10;
const OTHERS_SEEDS: u32 = 5;
/// The folder of MNIST, as in the flags below.
const MNIST: &str = "../shared/datasets/mnist";
/// All policies of a study choose among the same three or four learning rates, each tried under every
/// scenario in several runs. At the highest rate nearly every seed still learns. At twice that rate many
/// do not, which a few runs may not show, and luck would decide the comparison. The lowest rate is below
/// the choice of any policy except `async`.
const EMBEDDED_64: &str = "--workers 64 --batch 8 --lr 0.02,0.04,0.03,0.015 --evaluations 4 --epochs 10 \
                           --target-accuracy 0.8";
const EMBEDDED_64_OTHERS: &str = "--workers 64 --batch 8 --lr 0.015 --evaluations 4 --epochs 10 \
                                  --target-accuracy 0.8";
const MNIST_64: &str = "--data ../shared/datasets/mnist --workers 64 --batch 8 --lr 0.06 --tune 4 \
                        --evaluations 20 --epochs 2 --target-accuracy 0.93";
const EMBEDDED_8: &str = "--workers 8 --batch 16 --lr 0.02 --evaluations 4 --epochs 10 \
                          --target-accuracy 0.8";
const MNIST_8: &str = "--data ../shared/datasets/mnist --workers 8 --batch 16 --lr 0.02 \
                       --evaluations 20 --epochs 2 --target-accuracy 0.93";
const MAIN: &str = "full,best-static,auto,auto/samples";
const OTHERS_64: &str = "full,static:0.9,bdsgd,async,stale:64";
const OTHERS_8: &str = "full,static:0.9,bdsgd,async,stale:8";
const AZURE: &str = "trace:../shared/traces/azure_short_B8ms_eastus_cpu_cache.csv.gz";
const OF_64: [&str; 6] = ["none", "slow:0:3", "stalls:1.5", "stalls:3", "node:0-15:2.5", AZURE];
const OF_8: [&str; 6] = ["none", "slow:0:3", "stalls:1.5", "stalls:3", "node:0-1:2.5", AZURE];

const STUDIES: [CompareStudy; 8] = [
    CompareStudy::new("embedded-64", EMBEDDED_64, MAIN, &OF_64, SEEDS).tuned_by(4),
    CompareStudy::new("embedded-64-others", EMBEDDED_64_OTHERS, OTHERS_64, &OF_64, OTHERS_SEEDS),
    CompareStudy::new("mnist-64", MNIST_64, MAIN, &OF_64, FEWER),
    CompareStudy::new("mnist-64-others", MNIST_64, OTHERS_64, &OF_64, OTHERS_SEEDS),
    CompareStudy::new("embedded-8", EMBEDDED_8, MAIN, &OF_8, SEEDS).tuned_by(4),
    CompareStudy::new("embedded-8-others", EMBEDDED_8, OTHERS_8, &OF_8, OTHERS_SEEDS),
    CompareStudy::new("mnist-8", MNIST_8, MAIN, &OF_8, SEEDS).tuned_by(4),
    CompareStudy::new("mnist-8-others", MNIST_8, OTHERS_8, &OF_8, OTHERS_SEEDS),
];

/// Notes on how to read figures and tables.
const READING: &str = "\
## How to read this

- Training is real, time is virtual: a worker that nothing disturbs takes a second for its round, an update a
  hundredth. The live figures are of real processes.
- *Of bound* sets a policy's speed-up in time to the target beside a clairvoyant's in samples a second (who
  knows all run-times beforehand and cuts each round where that brings the most). It is no limit of the
  time: rounds with fewer samples can learn more from each, so it is exceeded where cuts are deep. *Samples/s,
  of bound* has samples on both sides; the clairvoyant's are over 400 rounds of the world, a run has fewer.
- `best-static` is the best of fixed shares from 0.02 to all, by a sweep in the same scenario, with the same
  salvage as `auto`. Times to a target differ by a tenth and more from seed to seed for reasons of training
  (which samples a round had), so a single scenario is judged by whether its seeds show `auto` to be slower,
  and all scenarios of a study together by their mean. Samples a second, which do not depend on luck, are
  stated beside. Where the sweep finds a very low share, it has found that small rounds learn more from each
  sample. `auto` values this (its objective is progress, by the gradient noise scale); `auto/samples` values
  samples a second alone, and is what the clairvoyant's samples a second are to be held against.
- Learning rates are chosen with the same budget for all policies of a table: by four runs each with seeds of
  their own, or by two (`mnist-64`, `-others`, and what is below). Pushes, and with them salvage, take no time
  on the virtual clock; live they do.
- In `none`, and nearly so in `slow` and `node`, undisturbed workers are done at the same instant, and all who
  are in time count: fixed shares hardly differ there.
- `async` and `stale` make an update of every arrival, and of all that come while one is being made: of 64
  workers in step these are many. Their work has the run-times of their own rounds.
";

pub(crate) fn run(report: &mut Report) -> Result<()> {
    let paceline = Paceline::build()?;
    report.section(READING.to_owned());
    for study in &STUDIES {
        if !report.wants(study.name) {
            continue;
        }
        if report.quick() {
            report.skip(&format!("{}_auto_of_bound", study.name), ">= 0.9", "takes many minutes");
            continue;
        }
        if study.flags.contains(MNIST) && !workspace().join(MNIST).is_dir() {
            let why = format!("{MNIST} is not there");
            report.skip(&format!("{}_auto_of_bound", study.name), ">= 0.9", &why);
            continue;
        }
        let rows = compare(&paceline, study)?;
        report.section(table(study.name, &rows));
        goals(report, study.name, &rows);
    }
    for study in &TO_THE_END {
        if report.wants(study.name) && !report.quick() && workspace().join(MNIST).is_dir() {
            final_accuracy(&paceline, report, study)?;
        }
    }
    if report.wants("data") && !report.quick() {
        data::run(&paceline, report)?;
    }
    if report.wants("live") {
        live::run(&paceline, report)?;
    }
    Ok(())
}

fn goals(report: &mut Report, study: &str, rows: &[CompareLine]) {
    let find = |scenario: &str, policy: &str| {
        rows.iter().find(|row| row.scenario == scenario && row.policy == policy)
    };
    let (mut autos, mut statics) = (Vec::new(), Vec::new());
    for row in rows.iter().filter(|row| row.policy == "auto") {
        let name = |what: &str| format!("{study}_{}_{what}", row.short());
        let of_bound = row.of_bound.unwrap_or(0.0);
        let note =
            "auto with salvage: its speed-up in time to target over a clairvoyant's in samples";
        report.at_least(&name("auto_of_bound"), of_bound, 0.9, note);
        let samples = find(&row.scenario, "auto/samples");
        let of_bound = samples.and_then(|row| row.samples_of_bound).unwrap_or(0.0);
        let note = "samples a second of auto/samples over a clairvoyant's";
        report.at_least(&name("samples_of_bound"), of_bound, 0.9, note);
        let over = |other: &str| {
            let other = find(&row.scenario, other).map(CompareLine::times).unwrap_or_default();
            paired_ratio(&row.times(), &other)
        };
        let best = over("best-static");
        let note = format!(
            "time to target of the best static, found by a sweep, over auto's, seed by seed, at the \
             upper end: below 0.995, these seeds show auto to be slower: {best}"
        );
        report.at_least(&name("best_static_over_auto"), best.high, 0.995, note);
        if let Some(best) = find(&row.scenario, "best-static") {
            let note = "auto's samples a second over the best static's";
            let over = row.samples_per_s / best.samples_per_s;
            report.tell(&name("samples_over_best_static"), over, note);
            if row.scenario != "none" {
                autos.extend(row.times());
                statics.extend(best.times());
            }
        }
        let by_samples = over("auto/samples");
        let note = format!("time to target of auto/samples over auto's: {by_samples}");
        report.tell(&name("auto_samples_over_auto"), by_samples.mean, note);
        if row.scenario == "stalls:3" && study.ends_with("-64") {
            let speed_up = row.speed_up.map_or(0.0, |speed_up| speed_up.mean);
            let note = "times sooner than full sync, 64 workers, p99/p50 = 3";
            report.at_least(&name("auto_over_full"), speed_up, 1.5, note);
        }
    }
    if !autos.is_empty() {
        let best = paired_ratio(&autos, &statics);
        let note = format!(
            "time to target of the best static over auto's, all scenarios with something slow and all \
             seeds together, to half a percent: {best}"
        );
        report.at_least(&format!("{study}_best_static_over_auto"), best.mean, 0.995, note);
    }
    let balanced = rows.iter().all(|row| row.ledger_balanced);
    report.must(&format!("{study}_balanced"), balanced, "the ledger of every run");
}

/// Studies over all epochs, for final accuracy.
const TO_THE_END: [CompareStudy; 2] = [
    CompareStudy::new(
        "final-accuracy-8",
        "--data ../shared/datasets/mnist --workers 8 --batch 16 --lr 0.02 --evaluations 1 --epochs 3 \
         --target-accuracy 0.98 --to-the-end",
        "full,auto,auto/samples",
        &["stalls:3"],
        10,
    ),
    CompareStudy::new(
        "final-accuracy-64",
        "--data ../shared/datasets/mnist --workers 64 --batch 8 --lr 0.06 --evaluations 1 --epochs 3 \
         --target-accuracy 0.96 --to-the-end",
        "full,auto,auto/samples",
        &["stalls:3"],
        10,
    ),
];

fn final_accuracy(paceline: &Paceline, report: &mut Report, study: &CompareStudy) -> Result<()> {
    let rows = compare(paceline, study)?;
    let accuracies = |policy: &str| {
        let row = rows.iter().find(|row| row.policy == policy);
        row.map(CompareLine::accuracies).unwrap_or_default()
    };
    let name = study.name.replace('-', "_");
    for policy in ["auto", "auto/samples"] {
        let (mean, low) = paired_difference(&accuracies("full"), &accuracies(policy));
        let note = format!(
            "points of final accuracy over full sync's, MNIST, 3 epochs, p99/p50 = 3, paired over {} \
             seeds: {mean:+.2}; the lower end of the 95 % interval",
            study.seeds
        );
        let policy = policy.replace('/', "_");
        report.at_least(&format!("{name}_{policy}_over_full"), low, -0.2, note);
    }
    let balanced = rows.iter().all(|row| row.ledger_balanced);
    report.must(&format!("{name}_balanced"), balanced, "the ledger of every run");
    report.section(table(study.name, &rows));
    Ok(())
}
