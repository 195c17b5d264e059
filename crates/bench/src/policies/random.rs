//! Clusters drawn at random, of seeds that nothing was tuned on.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::{paceline::Paceline, report::Report, study::words};

/// The seed of the clusters that are reported. Policies are tuned on other seeds.
const SEED: u64 = 20_261;
const CLUSTERS: usize = 1000;
const QUICK: usize = 20;
/// Clusters with stragglers that finish.
const FINISHING: usize = 300;

/// One cluster of `simulate --random --parts --json`.
#[derive(Debug, Deserialize)]
struct Cluster {
    rounds: usize,
    full_rate: f64,
    best_static_rate: f64,
    oracle_rate: f64,
    best_part_rate: Option<f64>,
    policies: Vec<Share>,
}

#[derive(Debug, Deserialize)]
struct Share {
    policy: String,
    rate: f64,
}

impl Cluster {
    fn rate(&self, policy: &str) -> f64 {
        let found = self.policies.iter().find(|share| share.policy == policy);
        found.map_or(f64::NAN, |share| share.rate)
    }
}

pub(crate) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let count = if report.quick() { QUICK } else { CLUSTERS };
    let clusters = draw(paceline, &format!("--random {count} --seed {SEED} --parts"))?;
    let of_oracle = |rate: &dyn Fn(&Cluster) -> f64| {
        geometric_mean(clusters.iter().map(|c| rate(c) / c.oracle_rate))
    };
    let auto = |c: &Cluster| c.rate("auto");
    let title = format!("{count} clusters of seed {SEED}");
    let note = format!("{title}: geometric mean of auto's share of the oracle");
    report.at_least("random_auto_of_oracle", of_oracle(&auto), 0.945, note);
    let of_full: Vec<f64> = clusters.iter().map(|c| auto(c) / c.full_rate).collect();
    let below = of_full.iter().filter(|share| **share < 0.97).count() as f64 / count as f64;
    report.at_most("random_below_full", below, 0.01, "share of clusters below 0.97 of full sync");
    let least = of_full.iter().copied().fold(f64::INFINITY, f64::min);
    report.at_least("random_worst_of_full", least, 0.93, "the worst cluster's share of full sync");
    let long = clusters.iter().filter(|c| c.rounds >= 200);
    let least = long.map(|c| auto(c) / c.best_static_rate).fold(f64::INFINITY, f64::min);
    let note = "the worst share of the best fixed count in hindsight, with 200 rounds or more";
    report.at_least("random_worst_of_static", least, 0.9, note);
    let of_part = |c: &Cluster| c.best_part_rate.map_or(f64::NAN, |best| auto(c) / best);
    let mean = geometric_mean(clusters.iter().map(of_part));
    let note = "geometric mean of auto's share of its best part in hindsight";
    report.at_least("random_of_best_part", mean, 0.99, note);
    let long = clusters.iter().filter(|c| c.rounds >= 100);
    let least = long.map(of_part).fold(f64::INFINITY, f64::min);
    let note = "the worst share of the best part, with 100 rounds or more";
    report.at_least("random_worst_of_part", least, 0.93, note);
    let best_part = |c: &Cluster| c.best_part_rate.unwrap_or(f64::NAN);
    let mut table = format!(
        "## Random clusters: {title}\n\n| share of the oracle's rate, geometric mean | |\n|---|---|\n\
         | full | {:.3} |\n| best fixed count in hindsight | {:.3} |\n",
        of_oracle(&|c| c.full_rate),
        of_oracle(&|c| c.best_static_rate),
    );
    for policy in ["empirical", "bdsgd", "filter", "auto"] {
        let _ = writeln!(table, "| {policy} | {:.3} |", of_oracle(&|c| c.rate(policy)));
    }
    let _ = writeln!(table, "| best part in hindsight | {:.3} |", of_oracle(&best_part));
    report.section(table);
    finishing(paceline, report)
}

/// The gain over strict censoring where stragglers finish and report their run-times late.
fn finishing(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let count = if report.quick() { QUICK } else { FINISHING };
    let args = format!("--random {count} --seed {SEED} --policy auto");
    let strict = draw(paceline, &args)?;
    let finishing = draw(paceline, &format!("{args} --straggler finish"))?;
    let pairs = finishing.iter().zip(&strict);
    let gain = geometric_mean(pairs.map(|(f, s)| f.rate("auto") / s.rate("auto")));
    let note = format!("auto with stragglers that finish over auto that aborts, {count} clusters");
    report.tell("random_finish_over_abort", gain, note);
    let least =
        finishing.iter().map(|c| c.rate("auto") / c.full_rate).fold(f64::INFINITY, f64::min);
    let note = "the worst cluster's share of full sync where stragglers finish";
    report.at_least("random_finish_worst_of_full", least, 0.93, note);
    Ok(())
}

fn draw(paceline: &Paceline, args: &str) -> Result<Vec<Cluster>> {
    let mut all = words("simulate --json");
    all.extend(words(args));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let output = paceline.command(&all).output().context("failed to start paceline")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`simulate {args}` failed: {said}");
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

fn geometric_mean(shares: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = shares.fold((0.0, 0.0), |(sum, count), x| (sum + x.ln(), count + 1.0));
    (sum / count).exp()
}
