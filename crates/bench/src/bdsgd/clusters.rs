//! The paper's two clusters as presets, and one with stalls: every policy on the same rounds.

use std::fmt::Write as _;

use anyhow::Result;

use super::BdsgdBench;
use crate::{
    paceline::workspace,
    report::Report,
    study::{ReplayRange, SimulateLine, fit, simulate, words},
};

/// A cluster, and the trace that its model is fitted on: the same preset with another seed.
const CLUSTERS: [(&str, &str); 3] = [
    ("nodes158", "nodes158:rounds=2000"),
    ("nodes158-stalls", "nodes158-stalls:rounds=2000"),
    ("xc40", "xc40:rounds=600"),
];
const POLICIES: &str = "full,static:0.9,best-static,elfving,empirical,bandit,filter,\
                        bdsgd:paper,bdsgd:paper+impute,bdsgd,auto,oracle";

pub(super) fn run(bench: &BdsgdBench, report: &mut Report) -> Result<()> {
    let seeds = if report.quick() { 2 } else { 5 };
    let mut text = format!(
        "## Rates over full sync, mean (worst, best) of {seeds} draws, and their variation\n\n\
         Variation: standard deviation over mean of the rounds' own rates. `bdsgd` begins with a \
         model fitted on another draw of the same preset; in brackets, with the generic prior, \
         which was fitted on clusters of these kinds at other sizes, tempers and seeds \
         (`crates/paceline-model/prior.sh`): it is general, not ignorant of them.\n"
    );
    for (cluster, fitted_on) in CLUSTERS {
        if report.quick() && cluster == "xc40" {
            report.skip("xc40_bdsgd_over_paper", ">= 1", "takes longer than a quick run");
            continue;
        }
        let model = bench.model(cluster);
        let took = fit(&bench.paceline, &format!("--synthetic {fitted_on} --seed 7"), &model)?;
        report.tell(
            &format!("{cluster}_fit_seconds"),
            took.as_secs_f64(),
            format!("`paceline model fit --synthetic {fitted_on} --seed 7`"),
        );
        let (mut rows, mut prior) = (Vec::new(), Vec::new());
        for seed in 1..=seeds {
            let draw = format!("--synthetic {cluster} --seed {seed} --seeds 1");
            let mut fitted = words(&format!("{draw} --policy {POLICIES}"));
            fitted.extend(["--run-time-model".to_owned(), model.display().to_string()]);
            if seed == 1 && !report.quick() {
                let page = workspace().join(format!("docs/bench/bdsgd-cutoff-{cluster}.html"));
                fitted.extend(["--html".to_owned(), page.display().to_string()]);
            }
            rows.extend(simulate(&bench.paceline, &fitted)?);
            let args = words(&format!("{draw} --policy bdsgd:paper,bdsgd"));
            prior.extend(simulate(&bench.paceline, &args)?);
        }
        goals(report, cluster, &rows);
        text += &table(cluster, &rows, &prior);
    }
    if !report.quick() {
        text += "\nThe cutoff over time, policy by policy, as pages for a browser: \
                 [nodes158](bdsgd-cutoff-nodes158.html), \
                 [nodes158-stalls](bdsgd-cutoff-nodes158-stalls.html), \
                 [xc40](bdsgd-cutoff-xc40.html).\n";
    }
    report.section(text);
    Ok(())
}

fn by_policy<'a>(rows: &'a [SimulateLine], policy: &str) -> Vec<&'a SimulateLine> {
    rows.iter().filter(|row| row.policy == policy).collect()
}

fn goals(report: &mut Report, cluster: &str, rows: &[SimulateLine]) {
    let mean =
        |policy: &str| ReplayRange::from_rows(by_policy(rows, policy), |row| row.of_full).mean;
    let (paper, own) = (mean("bdsgd:paper"), mean("bdsgd"));
    let note = "bdsgd:paper over 0.9·n, means over seeds";
    report.at_least(&format!("{cluster}_paper_over_0.9n"), paper / mean("static:0.9"), 1.0, note);
    let note = "bdsgd:paper over Elfving's formula";
    report.at_least(&format!("{cluster}_paper_over_elfving"), paper / mean("elfving"), 1.0, note);
    let note = "stopping inside the round over committing before it";
    report.at_least(&format!("{cluster}_bdsgd_over_paper"), own / paper, 1.0, note);
    let note = "the joint model over the filter, both stopping inside the round";
    report.at_least(&format!("{cluster}_bdsgd_over_filter"), own / mean("filter"), 1.0, note);
    let share = ReplayRange::from_rows(by_policy(rows, "bdsgd"), |row| row.of_oracle);
    let note = format!("of the oracle: mean; worst {:.4}, best {:.4}", share.worst, share.best);
    report.tell(&format!("{cluster}_bdsgd_of_oracle"), share.mean, note);
}

fn table(cluster: &str, rows: &[SimulateLine], prior: &[SimulateLine]) -> String {
    let mut text =
        format!("\n| {cluster} | rate over full | of oracle | variation |\n|---|---|---|---|\n");
    let mut seen: Vec<&str> = Vec::new();
    for row in rows {
        if seen.contains(&row.policy.as_str()) {
            continue;
        }
        seen.push(&row.policy);
        let rate = ReplayRange::from_rows(by_policy(rows, &row.policy), |row| row.of_full);
        let share = ReplayRange::from_rows(by_policy(rows, &row.policy), |row| row.of_oracle);
        let variation = ReplayRange::from_rows(by_policy(rows, &row.policy), |row| row.variation);
        let generic = by_policy(prior, &row.policy);
        let generic = match generic.is_empty() {
            true => String::new(),
            false => format!(" [{:.3}]", ReplayRange::from_rows(generic, |row| row.of_full).mean),
        };
        let _ = writeln!(
            text,
            "| {} | {:.3} ({:.3}, {:.3}){generic} | {:.3} | {:.3} |",
            row.policy, rate.mean, rate.worst, rate.best, share.mean, variation.mean
        );
    }
    text
}
