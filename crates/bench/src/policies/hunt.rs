//! The worst clusters that a search finds.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::{paceline::Paceline, report::Report, study::words};

/// The seed of the search that is reported.
const SEED: u64 = 20_262;
const EVALUATIONS: usize = 2000;
const QUICK: usize = 60;

/// A find of `simulate --hunt --json`.
#[derive(Debug, Deserialize)]
struct Find {
    share: f64,
    command: String,
}

pub(crate) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let count = if report.quick() { QUICK } else { EVALUATIONS };
    let args = format!("simulate --hunt {count} --seed {SEED} --policy auto --against full --json");
    let args = words(&args);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = paceline.command(&args).output().context("failed to start paceline")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`simulate --hunt` failed: {said}");
    let text = String::from_utf8(output.stdout)?;
    let finds: Vec<Find> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let worst = finds.first().context("the hunt found nothing")?;
    let note =
        format!("auto's share of full sync, worst of {count} evaluations: `{}`", worst.command);
    report.at_least("hunt_worst_of_full", worst.share, 0.9, note);
    Ok(())
}
