//! The CPU time of decisions and of simulations.

use std::fs;

use anyhow::Result;

use crate::{
    paceline::{Paceline, workspace},
    report::Report,
    study::{measured, simulate, words},
};

/// Workers, a cluster of that size, and the budget of a decision in microseconds.
pub(crate) const BUDGETS: [(u32, &str, f64); 3] = [
    (158, "nodes158-stalls", 200.0),
    (2175, "xc40:rounds=150", 2_000.0),
    (10_000, "nodes158-stalls:n=10000,nodes=64,rounds=60", 10_000.0),
];

pub(crate) fn decisions(paceline: &Paceline, report: &mut Report) -> Result<()> {
    for (workers, cluster, budget) in BUDGETS {
        let args = format!("--synthetic {cluster} --seeds 1 --policy auto");
        let rows = simulate(paceline, &words(&args))?;
        let row = &rows[0];
        let note = format!("µs on the critical path, p99, {cluster}");
        report.at_most(&format!("decide_p99_{workers}"), row.decide_us_p99, budget, note);
        let note = "µs of CPU a round, learning included";
        report.tell(&format!("decide_cpu_{workers}"), row.decide_cpu_us_per_round, note);
    }
    Ok(())
}

pub(crate) fn simulator(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let run = |name: &str| -> Result<Vec<u8>> {
        let file = folder.path().join(name);
        let mut args = words("--synthetic nodes16-stalls --seeds 2 --policy auto,filter,bandit");
        args.extend(["--decisions".to_owned(), file.display().to_string()]);
        simulate(paceline, &args)?;
        Ok(fs::read(file)?)
    };
    report.must("same_seed_same_result", run("a")? == run("b")?, "every decision, bit for bit");
    if report.quick() {
        report.skip("simulate_10000x1000_seconds", "<= 20", "takes longer than a quick run");
        report.skip("simulate_10000x1000_gib", "<= 1", "takes longer than a quick run");
        return Ok(());
    }
    let args = "--synthetic nodes158-stalls:n=10000,nodes=64,rounds=1000 --seeds 1 --policy auto";
    let found = measured(paceline, &words(args))?;
    let note = "10,000 workers × 1,000 rounds with auto, drawing and hindsight included, one core";
    report.at_most("simulate_10000x1000_seconds", found.seconds, 20.0, note);
    let gib = found.memory as f64 / f64::from(1 << 30);
    report.at_most("simulate_10000x1000_gib", gib, 1.0, "peak memory");
    Ok(())
}

/// Runs the tests that replay live runs from their logs, and scripted ones against the simulator.
pub(crate) fn agreement(_paceline: &Paceline, report: &mut Report) -> Result<()> {
    if report.quick() {
        report.skip("live_and_simulated_agree", "yes", "builds the tests first");
        return Ok(());
    }
    let status = std::process::Command::new(env!("CARGO"))
        .args(["test", "--quiet", "-p", "paceline", "--test", "agreement"])
        .current_dir(workspace())
        .status()?;
    let note = "cargo test -p paceline --test agreement";
    report.must("live_and_simulated_agree", status.success(), note);
    Ok(())
}
