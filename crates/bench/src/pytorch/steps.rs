//! Nothing slow: the time of a step, beside DDP and beside the computation alone.

use anyhow::Result;

use crate::{
    contest::{Contest, Contestant},
    report::Report,
    stats::ratio,
};

use super::{
    python::{Python, WORKERS, step_seconds},
    system::{System, Workload},
};

/// Workload, steps per run, and the goal for the time of a step over DDP's.
const WORKLOADS: [(Workload, usize, f64); 3] =
    [(Workload::CNN, 200, 1.0), (Workload::GPT_SMALL, 80, 1.0), (Workload::GPT_LARGE, 25, 0.95)];

const OURS: [(System, &str); 2] = [(System::MEAN, "mean"), (System::SERVER, "server")];

pub(super) fn run(python: &Python, report: &mut Report) -> Result<()> {
    let pairs = if report.quick() { 1 } else { 4 };
    let systems = python.available(&[System::ALONE, System::DDP, System::MEAN, System::SERVER]);
    for (workload, steps, goal) in WORKLOADS {
        if report.quick() && workload.name != "cnn" {
            for (_, mode) in OURS {
                report.skip(&name(&workload, mode), &format!("<= {goal}"), "takes minutes");
            }
            continue;
        }
        let steps = if report.quick() { 20 } else { steps };
        let args = format!("--samples {}", steps * workload.batch * WORKERS);
        let measure = |system: System| {
            let args = &args;
            Contestant::new(system.name, move || {
                step_seconds(&python.train(&system, &workload, args)?, &workload)
            })
        };
        let contestants: Vec<Contestant<'_>> = systems.iter().map(|s| measure(*s)).collect();
        let contest = Contest::hold(pairs, &contestants)?;
        let title = format!("Time of a step, nothing slow: {}", workload.name);
        report.section(contest.table(&title, System::DDP.name));
        figures(report, &contest, &workload, goal);
    }
    Ok(())
}

fn name(workload: &Workload, mode: &str) -> String {
    format!("{}_step_{mode}_over_ddp", workload.name)
}

fn figures(report: &mut Report, contest: &Contest, workload: &Workload, goal: f64) {
    let ddp = contest.turns(System::DDP.name).unwrap_or_default();
    let alone = contest.turns(System::ALONE.name).unwrap_or_default();
    let found = ratio(alone, ddp);
    let note = format!("time of a step of DDP over the computation alone: {found}");
    report.tell(&format!("{}_step_ddp_over_alone", workload.name), found.mean, note);
    for (system, mode) in OURS {
        let Some(ours) = contest.turns(system.name) else {
            let why = "paceline is not installed for the interpreter";
            report.skip(&name(workload, mode), &format!("<= {goal}"), why);
            continue;
        };
        let found = ratio(ddp, ours);
        let note = format!("time of a step of mode {mode} with policy full over DDP's: {found}");
        report.at_most(&name(workload, mode), found.mean, goal, note);
    }
}
