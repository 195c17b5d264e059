//! The same on real processes: the order of policies, and what leaving it on costs.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    paceline::{Paceline, workspace},
    report::Report,
    stats::abba_ratio,
};

/// Workers padded to 100 ms: eight of them take less than half of two cores.
const LIVE: &str = "compare --json --live 100ms --workers 8 --batch 32 --lr 0.03 --tune 1 --seeds 2 \
                    --evaluations 4 --epochs 6 --target-accuracy 0.75 --policies full,static:0.9,auto \
                    --scenario stalls:3";

pub(super) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    nothing_slow(paceline, report)?;
    if report.quick() {
        report.skip("live_auto_over_full", ">= 1", "takes minutes");
        return Ok(());
    }
    let out = workspace().join("target/time-to-accuracy/live").display().to_string();
    let mut args: Vec<&str> = LIVE.split_whitespace().collect();
    args.extend(["--out", &out]);
    let output = paceline.command(&args).current_dir(workspace()).output()?;
    ensure!(output.status.success(), "live runs failed");
    let rows: Result<Vec<Value>, _> =
        String::from_utf8(output.stdout)?.lines().map(serde_json::from_str).collect();
    let rows = rows.context("failed to read what compare printed")?;
    let seconds = |policy: &str| {
        let row = rows.iter().find(|row| row["policy"] == policy);
        row.and_then(|row| row["seconds_to_target"]["mean"].as_f64()).unwrap_or(f64::NAN)
    };
    let note = "times sooner at the target than full sync, live, 8 workers, p99/p50 = 3, 2 seeds";
    report.at_least("live_auto_over_full", seconds("full") / seconds("auto"), 1.0, note);
    let note = "the same for static:0.9, which is all of 8";
    report.tell("live_static_over_full", seconds("full") / seconds("static:0.9"), note);
    let balanced = rows.iter().all(|row| row["ledger_balanced"] == true);
    report.must("live_balanced", balanced, "the ledger of every run");
    Ok(())
}

/// With no straggler: rounds a second of auto, salvage on, over full.
fn nothing_slow(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let (pairs, rounds) = if report.quick() { (1, 20) } else { (6, 200) };
    let mut number = 0;
    let mut rate = |policy: &str| {
        number += 1;
        let args = format!(
            "--model cnn --workers 4 --batch 32 --policy {policy} --nominal 60ms --rounds {rounds} \
             --eval-every 1000000"
        );
        let run = paceline.train(&format!("quiet-{number}"), &args)?;
        Ok(run.number("/samples_per_s"))
    };
    let rate = std::cell::RefCell::new(&mut rate);
    let ratio = abba_ratio(pairs, || rate.borrow_mut()("auto"), || rate.borrow_mut()("full"))?;
    let note = format!("samples a second of full over auto, nothing slow, live: {ratio}");
    report.at_most("live_cost_of_auto", ratio.high, 1.02, note);
    Ok(())
}
