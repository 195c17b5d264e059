//! Synthetic clusters with fixed parameters.

use anyhow::Result;

use crate::{
    paceline::Paceline,
    report::Report,
    study::{ReplayRange, SimulateLine, simulate, words},
};

/// Presets on which following phases and stalls beats any fixed count.
const MOVING: [&str; 3] = ["nodes158-stalls", "nodes16-stalls", "shift48"];
/// Presets on which no policy beats a fixed count.
const IID: [&str; 3] = ["iid-lognormal", "iid-exp", "iid-pareto"];

pub(crate) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let seeds = if report.quick() { 2 } else { 5 };
    for preset in MOVING {
        let policies = "auto,elfving,empirical:commit,filter:commit";
        let args = format!("--synthetic {preset} --seeds {seeds} --policy {policies}");
        let rows = simulate(paceline, &words(&args))?;
        let by_policy = |policy: &str| -> Vec<&SimulateLine> {
            rows.iter().filter(|row| row.policy == policy).collect()
        };
        let auto = ReplayRange::from_rows(by_policy("auto"), |row| row.of_best_static);
        let note = format!("worst of {seeds} seeds; mean {:.3}, best {:.3}", auto.mean, auto.best);
        report.at_least(&format!("{preset}_over_best_static"), auto.worst, 1.05, note);
        let mean =
            |policy: &str| ReplayRange::from_rows(by_policy(policy), |row| row.of_oracle).mean;
        let over = mean("auto") / mean("elfving");
        let note = "auto over elfving, which commits before the round";
        report.at_least(&format!("{preset}_over_elfving"), over, 1.05, note);
        for commit in ["empirical:commit", "filter:commit"] {
            let name = format!("{preset}_over_{}", commit.replace(':', "_"));
            report.tell(&name, mean("auto") / mean(commit), "the paper's rule on our predictors");
        }
    }
    for preset in IID {
        let args = format!("--synthetic {preset} --seeds {seeds} --policy auto");
        let share =
            ReplayRange::from_rows(&simulate(paceline, &words(&args))?, |row| row.of_best_static);
        let note = format!("worst of {seeds} seeds; mean {:.4}", share.mean);
        report.at_least(&format!("{preset}_of_best_static"), share.worst, 0.985, note);
    }
    Ok(())
}
