//! Fixed costs: the start of a run, the overhead of a step, memory.

use std::fmt::Write as _;

use anyhow::Result;

use crate::{
    report::Report,
    stats::{interleaved, median},
};

use super::{
    python::{Python, WORKERS, WorkerResult, step_seconds},
    system::{System, Workload},
};

const MIB: f64 = (1 << 20) as f64;

/// Measurements of the recorder, each in a process of its own.
const RECORDER_REPEATS: usize = 5;

/// The most samples of an epoch: all workloads have more.
const SAMPLES: usize = 2560;

/// A system and all its measurements.
struct Costs {
    system: System,
    step_us: f64,
    first_step: f64,
    worker_mib: f64,
    server_mib: f64,
}

pub(super) fn run(python: &Python, report: &mut Report) -> Result<()> {
    let systems = python.available(&[System::ALONE, System::DDP, System::MEAN, System::SERVER]);
    let (pairs, steps) = if report.quick() { (1, 50) } else { (4, 500) };
    let title = "Start, and overhead of a step: 1,000 parameters";
    let all = measure(python, &systems, Workload::LINEAR, pairs, steps)?;
    report.section(table(title, &all));
    let find = |all: &[Costs], name: &str| all.iter().position(|costs| costs.system.name == name);
    let alone = find(&all, System::ALONE.name).map_or(f64::NAN, |at| all[at].step_us);
    for costs in &all {
        let note = format!(
            "µs that a step takes longer with {} than without communication",
            costs.system.name
        );
        if costs.system.name != System::ALONE.name {
            report.tell(&figure("overhead_us", &costs.system), costs.step_us - alone, note);
        }
    }
    for costs in &all {
        let note = format!(
            "seconds from the import of torch to the end of the first step, {}",
            costs.system.name
        );
        report.tell(&figure("first_step_s", &costs.system), costs.first_step, note);
    }
    let repeats = if report.quick() { 1 } else { RECORDER_REPEATS };
    let costs: Result<Vec<f64>> = (0..repeats).map(|_| python.recorder_us()).collect();
    let note = "µs per step of paceline.record around a loop that does nothing else";
    report.tell("recorder_us", median(&costs?), note);
    if report.quick() {
        report.skip("gpt-10m_memory", "stated", "takes minutes");
        return Ok(());
    }
    let all = measure(python, &systems, Workload::GPT_LARGE, 1, 12)?;
    report.section(table("Memory: GPT of 10 M parameters", &all));
    for costs in &all {
        let note = format!("MiB of a worker (PSS) with {}", costs.system.name);
        report.tell(&figure("gpt-10m_worker_mib", &costs.system), costs.worker_mib, note);
    }
    Ok(())
}

fn figure(what: &str, system: &System) -> String {
    let words: Vec<&str> = system.name.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    format!("{what}_{}", words.join("-").to_lowercase())
}

fn measure(
    python: &Python,
    systems: &[System],
    workload: Workload,
    pairs: usize,
    steps: usize,
) -> Result<Vec<Costs>> {
    let needed = steps * workload.batch * WORKERS;
    let samples = needed.min(SAMPLES);
    let args = format!("--samples {samples} --epochs {}", needed.div_ceil(samples));
    let mut runs: Vec<Vec<Vec<WorkerResult>>> = systems.iter().map(|_| Vec::new()).collect();
    let seconds = interleaved(pairs, systems.len(), |who| {
        let workers = python.train(&systems[who], &workload, &args)?;
        let seconds = step_seconds(&workers, &workload)?;
        eprintln!("   {}: {:.2} ms per step", systems[who].name, seconds * 1e3);
        runs[who].push(workers);
        Ok(seconds)
    })?;
    let costs = systems.iter().zip(seconds).zip(runs).map(|((system, seconds), runs)| {
        let workers: Vec<&WorkerResult> = runs.iter().flatten().collect();
        let of = |value: &dyn Fn(&WorkerResult) -> Option<f64>| {
            median(&workers.iter().filter_map(|worker| value(worker)).collect::<Vec<_>>())
        };
        Costs {
            system: *system,
            step_us: median(&seconds) * 1e6,
            first_step: of(&|worker| Some(worker.import_to_first_step)),
            worker_mib: of(&|worker| Some(worker.memory.pss as f64 / MIB)),
            server_mib: of(&|worker| Some(worker.server_memory?.pss as f64 / MIB)),
        }
    });
    Ok(costs.collect())
}

fn table(title: &str, all: &[Costs]) -> String {
    let mut text = format!(
        "## {title}\n\n| | µs per step | import to first step, s | MiB per worker (PSS) | MiB of the server \
         |\n|---|---|---|---|---|\n"
    );
    for Costs { system, step_us, first_step, worker_mib, server_mib } in all {
        let server =
            if server_mib.is_nan() { "–".to_owned() } else { format!("{server_mib:.0}") };
        let _ = writeln!(
            text,
            "| {} | {step_us:.0} | {first_step:.2} | {worker_mib:.0} | {server} |",
            system.name
        );
    }
    text
}
