//! The text of a study over clusters: a table of policies, and the worst clusters of each.

use std::fmt::Write;

use super::{
    args::Against,
    row::{ClusterRow, PolicyRate},
};
use crate::simulate::SimulateArgs;

/// Worst clusters shown for each policy.
const WORST: usize = 5;

/// The clusters as text.
pub(super) fn text(rows: &[ClusterRow], args: &SimulateArgs) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let range = |figure: fn(&ClusterRow) -> usize| {
        let least = rows.iter().map(figure).min().unwrap_or(0);
        format!("{least} to {}", rows.iter().map(figure).max().unwrap_or(0))
    };
    let mut text = format!(
        "{} random clusters of seed {}: {} workers, {} rounds, stragglers {}\n\n",
        rows.len(),
        args.traces.seed,
        range(|row| row.workers),
        range(|row| row.rounds),
        first.straggler,
    );
    table(&mut text, rows);
    text.push_str("\nMeans are geometric.\n");
    for (at, policy) in args.policy.iter().enumerate() {
        worst(&mut text, rows, at, &policy.to_string(), args);
    }
    text
}

/// Shares of the references, policies down.
fn table(text: &mut String, rows: &[ClusterRow]) {
    let first = &rows[0];
    let mut references = vec!["of oracle", "of best static", "of full sync"];
    references.extend(first.best_part.as_ref().map(|_| "of best part"));
    let _ = write!(text, "{:14}", "");
    references.iter().for_each(|name| write!(text, "  {name:>14}").expect("text grows"));
    let _ = writeln!(text, "   clusters below full");
    let _ = write!(text, "{:14}", "policy");
    references.iter().for_each(|_| text.push_str("     mean  worst"));
    let _ = writeln!(text, "   by 3 %  by 10 %");
    for at in 0..first.policies.len() {
        let rates: Vec<&PolicyRate> = rows.iter().map(|row| &row.policies[at]).collect();
        let _ = write!(text, "{:14}", first.policies[at].policy);
        let figures: [fn(&PolicyRate) -> f64; 4] = [
            |rate| rate.of_oracle,
            |rate| rate.of_best_static,
            |rate| rate.of_full,
            |rate| rate.of_best_part.unwrap_or(f64::NAN),
        ];
        for figure in &figures[..references.len()] {
            let shares: Vec<f64> = rates.iter().map(|rate| figure(rate)).collect();
            let worst = shares.iter().copied().fold(f64::INFINITY, f64::min);
            let _ = write!(text, "    {:5.3}  {worst:5.3}", geometric_mean(&shares));
        }
        let below = |share: f64| {
            let count = rates.iter().filter(|rate| rate.of_full < share).count();
            100.0 * count as f64 / rates.len() as f64
        };
        let _ = writeln!(text, "   {:4.1} %   {:4.1} %", below(0.97), below(0.9));
    }
    if first.best_part.is_some() {
        let share = |row: &ClusterRow| row.best_part_rate.unwrap_or(f64::NAN) / row.oracle_rate;
        let shares: Vec<f64> = rows.iter().map(share).collect();
        let worst = shares.iter().copied().fold(f64::INFINITY, f64::min);
        let mean = geometric_mean(&shares);
        let _ = writeln!(text, "{:14}    {mean:5.3}  {worst:5.3}", "best part");
    }
}

/// The clusters on which a policy is furthest behind the reference, with commands that replay them.
fn worst(text: &mut String, rows: &[ClusterRow], at: usize, policy: &str, args: &SimulateArgs) {
    let reference = args.clusters.against;
    let mut behind: Vec<(f64, &ClusterRow)> =
        rows.iter().map(|row| (row.policies[at].of(reference), row)).collect();
    behind.sort_by(|a, b| a.0.total_cmp(&b.0));
    if behind.first().is_none_or(|(share, _)| *share >= 1.0 - 1e-6) {
        return;
    }
    let _ = writeln!(text, "\nWhere {policy} gets the least of {reference}:");
    for (share, row) in behind.into_iter().take(WORST) {
        let _ = writeln!(text, "{share:5.3}  {}", replay_command(row, policy, args));
    }
}

/// The command that replays a cluster under a policy.
pub(super) fn replay_command(row: &ClusterRow, policy: &str, args: &SimulateArgs) -> String {
    let mut command = format!(
        "paceline simulate --synthetic {} --seed {} --seeds 1 --policy {policy},best-static,oracle",
        row.spec, row.seed
    );
    if !matches!(row.straggler, paceline_core::Straggler::Abort) {
        let _ = write!(command, " --straggler {}", row.straggler);
    }
    if row.overhead > 0.0 {
        let _ = write!(command, " --overhead {}", row.overhead);
    }
    if let Some(model) = &args.run_time_model {
        let _ = write!(command, " --run-time-model {}", model.display());
    }
    command
}

fn geometric_mean(shares: &[f64]) -> f64 {
    (shares.iter().map(|share| share.ln()).sum::<f64>() / shares.len() as f64).exp()
}

impl std::fmt::Display for Against {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Against::Full => "full sync",
            Against::BestStatic => "the best fixed count",
            Against::Parts => "the best part",
        })
    }
}
