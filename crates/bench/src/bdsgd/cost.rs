//! The CPU time of a decision, also as a share of a gradient's (Q13).

use anyhow::Result;

use super::BdsgdBench;
use crate::{
    policies::BUDGETS,
    report::Report,
    study::{measured, words},
};

pub(super) fn run(bench: &BdsgdBench, report: &mut Report) -> Result<()> {
    // A CNN's gradient on a batch of 32, by one worker on one core, from start to arrival.
    let args = "--workers 1 --shards 1 --policy full --rounds 60 --seed 3";
    let mut times = bench.paceline.train("gradient", args)?.round_times(10);
    times.sort_unstable();
    let gradient = times[times.len() / 2].as_secs_f64() * 1e6;
    let note = "µs: median round of the built-in CNN, batch 32, one worker on one core";
    report.tell("gradient_us", gradient, note);
    for (workers, cluster, budget) in BUDGETS {
        for policy in ["bdsgd", "auto"] {
            let args = format!("--synthetic {cluster} --seeds 1 --policy {policy}");
            let found = measured(&bench.paceline, &words(&args))?;
            let row = &found.rows[0];
            let note = format!("µs on the critical path, p99, {cluster}");
            let name = format!("{policy}_p99_{workers}");
            report.at_most(&name, row.decide_us_p99, budget, note);
            let cpu = row.decide_cpu_us_per_round;
            let note = format!(
                "µs of CPU a round, learning and adaptation included; {:.2} gradients; peak memory \
                 of the simulation {:.0} MiB",
                cpu / gradient,
                found.memory as f64 / f64::from(1 << 20)
            );
            report.tell(&format!("{policy}_cpu_{workers}"), cpu, note);
        }
    }
    Ok(())
}
