//! Rounds per second by workers and shards, and the threads that are busy.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use paceline_core::{EventKind, Time};

use super::threads::Accounts;
use crate::{
    paceline::Paceline,
    processes::{Processes, wait},
    report::Report,
};

const WORKERS: [usize; 5] = [4, 16, 64, 256, 512];
const SHARDS: [usize; 3] = [1, 2, 4];

/// A name, and parameters.
const MODELS: [(&str, usize); 2] = [("tiny", 1_000), ("10 MB", 2_500_000)];

/// Most bytes for the buffers of all workers: each holds parameters and two gradients.
const MEMORY: usize = 10 << 30;

/// Share of a core above which a thread is the bottleneck.
const BUSY: f64 = 0.85;

/// Longest measurement of one row.
const PATIENCE: Duration = Duration::from_secs(40);

pub(super) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let cores = thread::available_parallelism()?.get() as f64;
    let mut table =
        "## Scaling\n\nCores kept busy: by threads of the server, by all worker processes, \
                     and by whatever else runs here.\n\n| workers | model | shards | rounds/s | \
                     coordinator | connections | shards' threads | recorder | workers' | others' | \
                     bottleneck |\n|---|---|---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for (model, params) in MODELS {
        for workers in WORKERS {
            let name = format!("rounds_per_s_{}_{workers}", model.replace(' ', "_"));
            let why = match () {
                () if 3 * workers * params * size_of::<f32>() > MEMORY => {
                    Some("the workers' buffers are more than this bench may take")
                }
                () if report.quick() && workers > 16 => Some("takes longer than a quick run"),
                () => None,
            };
            if let Some(why) = why {
                report.skip(&name, "stated", why);
                continue;
            }
            for shards in if report.quick() { &[2][..] } else { &SHARDS } {
                let row = ScalingRow::measure(paceline, workers, params, *shards, report.quick())?;
                let bottleneck = row.bottleneck(cores);
                let of = |who: &str| row.used(|name| name.starts_with(who));
                let _ = writeln!(
                    table,
                    "| {workers} | {model} | {shards} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | \
                     {:.2} | {:.2} | {bottleneck} |",
                    row.rate,
                    of("coordinator"),
                    of("connections"),
                    of("shard"),
                    of("recorder"),
                    of("workers"),
                    of("others")
                );
                if *shards == 2 {
                    report.tell(&name, row.rate, format!("2 shards; bottleneck: {bottleneck}"));
                }
            }
        }
    }
    report.section(table);
    Ok(())
}

struct ScalingRow {
    rate: f64,
    /// Cores kept busy, by thread.
    cores: BTreeMap<String, f64>,
}

impl ScalingRow {
    /// Starts a run, lets it warm up, measures it, and ends it.
    fn measure(
        paceline: &Paceline,
        workers: usize,
        params: usize,
        shards: usize,
        quick: bool,
    ) -> Result<Self> {
        let args = format!(
            "train --name scaling --model synthetic:{params} --workers {workers} --shards {shards} \
             --policy full --batch 1 --micro-batches 1 --optimizer sgd --time-limit 10m \
             --checkpoint-every 1000000000 --join-grace 10m --liveness 60s \
             --transport tcp"
        );
        let args: Vec<&str> = args.split_whitespace().collect();
        let mut command = paceline.command(&args);
        let server = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let pid = server.id();
        let running = Processes(vec![server]);
        // The log may not exist yet.
        let updates = || updates(paceline).unwrap_or_default();
        wait("the second round", || Ok(updates().len() > 1))?;
        let (began, window) = (Instant::now(), Duration::from_secs(if quick { 1 } else { 3 }));
        let (before, first) = (Accounts::read(pid)?, updates().len());
        let (after, rounds) = loop {
            thread::sleep(window);
            let (after, rounds) = (Accounts::read(pid)?, updates());
            if rounds.len() >= first + 3 || began.elapsed() > PATIENCE {
                break (after, rounds);
            }
        };
        drop(running);
        paceline.discard("scaling")?;
        let last = rounds.last().context("no round was closed")?;
        let count = rounds.len() - first;
        let rate = count as f64 / last.since(rounds[first - 1]).as_secs_f64();
        Ok(ScalingRow { rate, cores: after.since(&before) })
    }

    fn used(&self, of: impl Fn(&str) -> bool) -> f64 {
        self.cores.iter().filter(|(name, _)| of(name)).map(|(_, cores)| cores).sum()
    }

    /// The bottleneck: a single busy thread, or all cores together with their largest user.
    fn bottleneck(&self, cores: f64) -> String {
        let several = ["connections", "workers", "others"];
        let single = self.cores.iter().filter(|(name, _)| !several.contains(&name.as_str()));
        let busiest = |(_, a): &(&String, &f64), (_, b): &(&String, &f64)| a.total_cmp(b);
        if let Some((name, _)) = single.max_by(busiest).filter(|(_, cores)| **cores > BUSY) {
            return format!("the thread of {name}");
        }
        let all = self.used(|_| true);
        match self.cores.iter().max_by(busiest) {
            Some((name, most)) if all > BUSY * cores => {
                format!("all cores; {name} have {:.0} %", 100.0 * most / all)
            }
            _ => format!("none: {all:.1} of {cores} cores are busy"),
        }
    }
}

/// When each round's update was made.
fn updates(paceline: &Paceline) -> Result<Vec<Time>> {
    let events = paceline.events("scaling")?;
    let updated = events.iter().filter(|e| matches!(e.kind, EventKind::Updated { .. }));
    Ok(updated.map(|event| event.at).collect())
}
