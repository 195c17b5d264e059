//! Every shared trace under strict censoring.

use std::{fmt::Write as _, fs, path::PathBuf};

use anyhow::Result;

use crate::{
    paceline::{Paceline, workspace},
    report::Report,
    study::{ReplayRange, SimulateLine, simulate, words},
};

const SEATTLE: &str = "seattle_rtt_server38";
const OPERATIONS: &str = "bytedance_se_ops.parquet";
/// Policies of the table, `auto` first.
const POLICIES: &str =
    "auto,full,static:0.9,elfving,empirical,bandit,filter,filter:commit,dropcompute";

pub(crate) fn folder() -> PathBuf {
    workspace().join("../shared/traces")
}

pub(crate) fn files() -> Vec<String> {
    let entries = fs::read_dir(folder()).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.path().display().to_string());
    let mut csv: Vec<String> = names.filter(|name| name.ends_with(".csv.gz")).collect();
    csv.sort();
    csv
}

pub(crate) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let files = files();
    if files.is_empty() {
        let why = "the traces are not in ../shared/traces";
        for name in ["auto_over_full", "auto_of_oracle", "auto_of_oracle_worst_trace"] {
            report.skip(name, ">= 0.96", why);
        }
        report.skip("auto_of_oracle_seattle", ">= 0.9", why);
        report.skip("auto_of_oracle_seattle_overhead", ">= 0.85", why);
        return Ok(());
    }
    let policies = if report.quick() { "auto" } else { POLICIES };
    let mut args = words(&format!("--seeds 5 --policy {policies}"));
    args.extend(files.iter().cloned());
    let rows = simulate(paceline, &args)?;
    let auto: Vec<&SimulateLine> = rows.iter().filter(|row| row.policy == "auto").collect();

    let full = ReplayRange::from_rows(auto.iter().copied(), |row| row.of_full);
    report.at_least("auto_over_full", full.worst, 0.985, "the worst of all traces and seeds");
    let mut names: Vec<&str> = auto.iter().map(|row| row.trace.as_str()).collect();
    names.dedup();
    let others: Vec<(&str, ReplayRange)> = names
        .iter()
        .filter(|&&name| name != SEATTLE)
        .map(|&name| {
            let rows = auto.iter().copied().filter(|row| row.trace == name);
            (name, ReplayRange::from_rows(rows, |row| row.of_oracle))
        })
        .collect();
    let log: f64 = others.iter().map(|(_, share)| share.mean.ln()).sum();
    let mean = (log / others.len() as f64).exp();
    let note = format!("geometric mean over {} traces, mean over 5 seeds", others.len());
    report.at_least("auto_of_oracle", mean, 0.985, note);
    let (name, least) = others
        .iter()
        .min_by(|a, b| a.1.worst.total_cmp(&b.1.worst))
        .expect("there are traces besides Seattle");
    let note = format!("{name}, its worst seed; {:.4} in the mean", least.mean);
    report.at_least("auto_of_oracle_worst_trace", least.worst, 0.96, note);
    seattle(paceline, report, &auto)?;
    if !report.quick() {
        report.section(table(&rows, &names, policies));
    }
    Ok(())
}

fn seattle(paceline: &Paceline, report: &mut Report, auto: &[&SimulateLine]) -> Result<()> {
    let rows = auto.iter().copied().filter(|row| row.trace == SEATTLE);
    let share = ReplayRange::from_rows(rows, |row| row.of_oracle);
    let note = format!("mean of 5 seeds; worst {:.3}, best {:.3}", share.worst, share.best);
    report.at_least("auto_of_oracle_seattle", share.mean, 0.90, note);
    let mut args = words("--seeds 5 --policy auto --overhead 0.1x");
    args.push(folder().join(format!("{SEATTLE}.csv.gz")).display().to_string());
    let share = ReplayRange::from_rows(&simulate(paceline, &args)?, |row| row.of_oracle);
    let note = format!("overhead 0.1x, worst of 5 seeds; mean {:.3}", share.mean);
    report.at_least("auto_of_oracle_seattle_overhead", share.worst, 0.85, note);
    Ok(())
}

/// Salvage on the operation-level trace.
pub(crate) fn salvage(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let file = folder().join(OPERATIONS);
    if !file.is_file() {
        report.skip("auto_salvage_over_full", ">= 1.17", "the trace is not in ../shared/traces");
        return Ok(());
    }
    let mut args = words("--straggler salvage --seeds 5 --policy auto,dropcompute,full");
    args.push(file.display().to_string());
    let rows = simulate(paceline, &args)?;
    let by_policy = |policy: &str| {
        ReplayRange::from_rows(rows.iter().filter(|row| row.policy == policy), |row| row.of_full)
    };
    let (auto, peer) = (by_policy("auto"), by_policy("dropcompute"));
    let note = format!("worst of 5 seeds; mean {:.3}; dropcompute {:.3}", auto.mean, peer.mean);
    report.at_least("auto_salvage_over_full", auto.worst, 1.17, note);
    Ok(())
}

/// Share of the oracle, mean (worst) over seeds, traces down and policies across.
fn table(rows: &[SimulateLine], names: &[&str], policies: &str) -> String {
    let policies: Vec<&str> = policies.split(',').collect();
    let mut text = format!(
        "## Share of the oracle's rate, mean (worst) over 5 seeds, strict censoring\n\n\
         | trace | {} | best static in hindsight |\n|---|{}\n",
        policies.join(" | "),
        "---|".repeat(policies.len() + 1)
    );
    for name in names {
        let _ = write!(text, "| {name} |");
        let of_trace = || rows.iter().filter(|row| row.trace == *name);
        for policy in &policies {
            let share =
                ReplayRange::from_rows(of_trace().filter(|row| row.policy == *policy), |r| {
                    r.of_oracle
                });
            let _ = write!(text, " {:.3} ({:.3}) |", share.mean, share.worst);
        }
        let best = ReplayRange::from_rows(of_trace(), |row| row.of_oracle / row.of_best_static);
        let _ = writeln!(text, " {:.3} |", best.mean);
    }
    text
}
