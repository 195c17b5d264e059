//! 256 workers at once.

use std::{process::Stdio, time::Instant};

use anyhow::{Context, Result};
use paceline_core::EventKind;

use crate::{
    machine::resident,
    paceline::Paceline,
    processes::{Processes, address, wait},
    report::Report,
};

const WORKERS: usize = 256;
const ROUNDS: u64 = 30;

pub(crate) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    // One more is expected than is started at first, so that all are connected and idle.
    let expected = (WORKERS + 1).to_string();
    let rounds = ROUNDS.to_string();
    let args = [
        "server",
        "--name",
        "crowd",
        "--bind",
        "127.0.0.1:0",
        "--workers",
        &expected,
        "--model",
        "synthetic:1000",
        "--policy",
        "full",
        "--rounds",
        &rounds,
        "--join-grace",
        "10m",
        "--liveness",
        "60s",
    ];
    let server = paceline.command(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let pid = server.id();
    let mut all = Processes(vec![server]);
    let address = address(&mut all.0[0])?;
    let before = resident(pid).context("the server has gone")?;
    let worker = || {
        let mut command = paceline.command(&["worker", "--connect", &address]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    };
    for _ in 0..WORKERS {
        all.0.push(worker()?);
    }
    let joined = || -> Result<usize> {
        let events = paceline.events("crowd")?;
        Ok(events.iter().filter(|e| matches!(e.kind, EventKind::WorkerJoined { .. })).count())
    };
    wait("256 workers", || Ok(joined()? == WORKERS))?;
    let after = resident(pid).context("the server has gone")?;
    let each = after.saturating_sub(before) as f64 / WORKERS as f64 / 1024.0;
    let note = "KiB of server memory per idle worker, its control and 2 data connections together";
    report.at_most("idle_worker_kib", each, 200.0, note);

    all.0.push(worker()?);
    let closed = || -> Result<u64> {
        let events = paceline.events("crowd")?;
        Ok(events.iter().filter(|e| matches!(e.kind, EventKind::Updated { .. })).count() as u64)
    };
    let began = Instant::now();
    wait("rounds of 257 workers", || Ok(closed()? == ROUNDS))?;
    let rate = ROUNDS as f64 / began.elapsed().as_secs_f64();
    let note = format!("all of 257 worker processes in every round, about {rate:.0} rounds/s");
    report.at_least("crowd_rounds_closed", closed()? as f64, ROUNDS as f64, note);
    Ok(())
}
