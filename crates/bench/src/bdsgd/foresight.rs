//! Quality of predictions: likelihood, CRPS, calibration, and the bias of censoring (Q1).

use std::{fmt::Write as _, process::Command};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::BdsgdBench;
use crate::{
    paceline::workspace,
    report::Report,
    study::{fit, words},
};

/// Clusters that are fitted with one seed and predicted with another.
const CLUSTERS: [&str; 3] = ["nodes158:rounds=1500", "nodes158-stalls:rounds=1500", "xc40"];

/// One line of `model eval --json`.
#[derive(Debug, Deserialize)]
struct EvalLine {
    predictor: String,
    log_likelihood: f64,
    crps: f64,
    levels: Vec<f64>,
    coverage: Vec<f64>,
    places: Vec<f64>,
    order_coverage: Option<Vec<Vec<f64>>>,
    order_coverage_followed: Option<Vec<Vec<f64>>>,
}

pub(super) fn run(bench: &BdsgdBench, report: &mut Report) -> Result<()> {
    let mut text = "## Foresight, one round ahead, on rounds that nothing was fitted on\n\n\
                    | cluster | predictor | log likelihood | CRPS | inside 50 / 90 / 99 % |\n\
                    |---|---|---|---|---|\n"
        .to_owned();
    let mut places = "\nShare of rounds whose order statistic lay inside the predicted central \
                      intervals of 50 / 90 / 99 %, by its place among the workers; *followed*: each \
                      interval is widened or narrowed by what happened so far (adaptive conformal \
                      inference). The model alone is not within 3 points: beginnings and ends of \
                      slow phases are foreseen too rarely. What it decides by is the model alone.\n"
        .to_owned();
    let clusters = if report.quick() { &CLUSTERS[..1] } else { &CLUSTERS };
    for cluster in clusters {
        let model = bench.model("foresight");
        fit(&bench.paceline, &format!("--synthetic {cluster} --seed 7"), &model)?;
        let mut all = words("model eval --json");
        all.push(model.display().to_string());
        all.extend(words(&format!("--synthetic {cluster} --seed 1")));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let output = bench.paceline.command(&all).output()?;
        ensure!(output.status.success(), "`model eval` failed");
        let lines = String::from_utf8(output.stdout)?;
        let rows: Vec<EvalLine> =
            lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        let name = cluster.split(':').next().unwrap_or(cluster);
        for row in &rows {
            let _ = writeln!(
                text,
                "| {name} | {} | {:.4} | {:.5} | {} |",
                row.predictor,
                row.log_likelihood,
                row.crps,
                percent(&row.coverage)
            );
        }
        let by_name = |predictor: &str| rows.iter().find(|row| row.predictor == predictor);
        let (own, filter) =
            (by_name("bdsgd").context("no bdsgd")?, by_name("filter").context("no filter")?);
        let note = format!("nats a run-time; filter {:.4}", filter.log_likelihood);
        report.tell(&format!("{name}_log_likelihood"), own.log_likelihood, note);
        let note = "bdsgd over filter, smaller is better";
        report.at_most(&format!("{name}_crps_over_filter"), own.crps / filter.crps, 1.0, note);
        calibration(report, name, own);
        let kinds =
            [("model alone", &own.order_coverage), ("followed", &own.order_coverage_followed)];
        for (kind, covered) in kinds {
            let _ = write!(places, "\n{name}, {kind}:");
            for (place, found) in own.places.iter().zip(covered.iter().flatten()) {
                let _ = write!(places, " {place}: {};", percent(found));
            }
            places.push('\n');
        }
    }
    report.section(text + &places);
    Ok(())
}

fn calibration(report: &mut Report, name: &str, row: &EvalLine) {
    let (off, note) = farthest(row, &row.order_coverage_followed);
    let note = format!("points off at most, intervals that follow what happens; {note}");
    report.at_most(&format!("{name}_calibration"), off, 3.0, note);
    let (off, note) = farthest(row, &row.order_coverage);
    let note = format!("points off at most, intervals of the model alone; {note}");
    report.tell(&format!("{name}_calibration_raw"), off, note);
}

fn farthest(row: &EvalLine, covered: &Option<Vec<Vec<f64>>>) -> (f64, String) {
    let mut farthest = (0.0, String::new());
    for (place, found) in row.places.iter().zip(covered.iter().flatten()) {
        for (level, found) in row.levels.iter().zip(found) {
            let off = 100.0 * (found - level).abs();
            if off > farthest.0 {
                let what = format!("{:.0} % at place {place}", 100.0 * level);
                farthest = (off, format!("{what}: {:.1} %", 100.0 * found));
            }
        }
    }
    farthest
}

fn percent(shares: &[f64]) -> String {
    let shares: Vec<String> = shares.iter().map(|share| format!("{:.1}", 100.0 * share)).collect();
    shares.join(" / ")
}

/// Runs the test that measures the bias, and reads its output.
pub(super) fn bias(_bench: &BdsgdBench, report: &mut Report) -> Result<()> {
    if report.quick() {
        report.skip("censoring_bias_survival", "<= 0.05", "builds the tests first");
        return Ok(());
    }
    let test = "the_bias_of_cutting_half_of_every_round_is_small";
    let output = Command::new(env!("CARGO"))
        .args(["test", "--quiet", "-p", "paceline-model", "--test", "following", test])
        .args(["--", "--nocapture"])
        .current_dir(workspace())
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let line = said.lines().find(|line| line.contains("bias in log time"));
    let line = line.context("the test did not say what it found")?;
    let numbers: Vec<f64> = line
        .split([' ', ',', '[', ']'])
        .filter(|word| word.contains('.'))
        .filter_map(|word| word.parse().ok())
        .collect();
    ensure!(numbers.len() == 4, "four numbers in `{line}`");
    let worst = |pair: &[f64]| pair[0].abs().max(pair[1].abs());
    let note =
        format!("log time, worse of the 50 % and 80 % points, half of each round cut; {line}");
    report.at_most("censoring_bias_survival", worst(&numbers[..2]), 0.05, note);
    let note = "the same with the paper's imputation by draws";
    report.tell("censoring_bias_imputed", worst(&numbers[2..]), note);
    ensure!(output.status.success(), "`{test}` failed");
    Ok(())
}
