//! Live runs: the order of policies, and the cost of `auto` without stragglers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    machine::busy_seconds,
    paceline::{Paceline, workspace},
    report::Report,
    stats::{interleaved, median, ratio},
};

/// Workers padded to 100 ms: eight of them take less than half of two cores.
const LIVE: &str = "--live 100ms";
/// The same on the virtual clock, where a worker takes a second.
const BOTH: &str = "compare --json --workers 8 --batch 32 --lr 0.03 --tune 1 --seeds 2 --evaluations 4 \
                    --epochs 6 --target-accuracy 0.75 --scenario stalls:3 --policies";
const POLICIES: [&str; 3] = ["full", "static:0.75", "auto"];

pub(super) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    nothing_slow(paceline, report)?;
    if report.quick() {
        report.skip("live_auto_over_full", ">= 1", "takes minutes");
        report.skip("live_order_as_virtual", "yes", "takes minutes");
        return Ok(());
    }
    let (began, before) = (Instant::now(), busy_seconds()?);
    let live = seconds(paceline, "live", LIVE)?;
    let cores = std::thread::available_parallelism()?.get() as f64;
    let took = began.elapsed();
    let busy = (busy_seconds()? - before) / took.as_secs_f64() / cores;
    // Stored runs take no time.
    if took > Duration::from_secs(10) {
        let note = "share of all cores that was busy during those runs, by whomever";
        report.at_most("live_cpu", busy, 0.6, note);
    }
    let clock = seconds(paceline, "live-virtual", "")?;
    let [full, fixed, auto] = live;
    let note = "times sooner at the target than full sync, live, 8 workers, p99/p50 = 3, 2 seeds";
    report.at_least("live_auto_over_full", full / auto, 1.0, note);
    report.tell("live_static_over_full", full / fixed, "the same for static:0.75");
    let note = format!(
        "full, static:0.75 and auto come in the same order, live ({full:.1}, {fixed:.1}, {auto:.1} s) \
         and on the virtual clock ({:.1}, {:.1}, {:.1})",
        clock[0], clock[1], clock[2]
    );
    report.must("live_order_as_virtual", order(live) == order(clock), &note);
    Ok(())
}

/// Mean time to the target of each policy; the ledger of every run must balance.
fn seconds(paceline: &Paceline, folder: &str, how: &str) -> Result<[f64; 3]> {
    let out = workspace().join("target/time-to-accuracy").join(folder).display().to_string();
    let policies = POLICIES.join(",");
    let mut args: Vec<&str> = BOTH.split_whitespace().collect();
    args.push(&policies);
    args.extend(how.split_whitespace());
    args.extend(["--out", &out]);
    let output = paceline.command(&args).current_dir(workspace()).output()?;
    ensure!(output.status.success(), "runs to compare failed");
    let rows: Result<Vec<Value>, _> =
        String::from_utf8(output.stdout)?.lines().map(serde_json::from_str).collect();
    let rows = rows.context("failed to read what compare printed")?;
    ensure!(rows.iter().all(|row| row["ledger_balanced"] == true), "a ledger does not balance");
    Ok(POLICIES.map(|policy| {
        let row = rows.iter().find(|row| row["policy"] == policy);
        row.and_then(|row| row["seconds_to_target"]["mean"].as_f64()).unwrap_or(f64::NAN)
    }))
}

/// The policies' indices by time.
fn order(seconds: [f64; 3]) -> [usize; 3] {
    let mut order = [0, 1, 2];
    order.sort_by(|&a, &b| seconds[a].total_cmp(&seconds[b]));
    order
}

/// Without stragglers: samples per second of full over auto with salvage, over whole runs, since the
/// cost may be in a few rounds; and by the median round.
fn nothing_slow(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let (pairs, rounds) = if report.quick() { (1, 20) } else { (16, 40) };
    let mut whole = [Vec::new(), Vec::new()];
    let mut balanced = true;
    let by_round = interleaved(pairs, 2, |who| {
        let (policy, name) = (["auto", "full"][who], format!("quiet-{}", whole[who].len()));
        let args = format!(
            "--model cnn --workers 4 --batch 32 --policy {policy} --nominal 100ms --rounds {rounds} \
             --eval-every 1000000"
        );
        let run = paceline.train(&format!("{name}-{policy}"), &args)?;
        whole[who].push(run.number("/samples_per_s"));
        balanced &= run.is("/ledger/balanced");
        let times: Vec<f64> = run.round_times(0).iter().map(Duration::as_secs_f64).collect();
        Ok(run.number("/samples/used") / times.len() as f64 / median(&times))
    })?;
    let [auto, full] = whole;
    let found = ratio(&auto, &full);
    let note = format!("samples a second of full over auto, nothing slow, live: {found}");
    report.at_most("live_cost_of_auto", found.high, 1.02, note);
    let found = ratio(&by_round[0], &by_round[1]);
    let note = format!("the same by the median round: {found}");
    report.tell("live_cost_of_auto_by_round", found.mean, note);
    report.must("live_balanced", balanced, "the ledger of every run with nothing slow");
    Ok(())
}
