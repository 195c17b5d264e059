//! Runs a trial as real processes.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use paceline_core::{Event, EventKind, SampleCounts, Span, StopReason, WorkerId};
use serde::Deserialize;

use crate::{
    args::CompareArgs,
    contender::Contender,
    store::fnv1a,
    target::Target,
    trial::{Trial, TrialOutcome, thinned},
};

/// The environment variable for log levels, which live runs inherit.
const LOG: &str = "PACELINE_LOG";

/// The part of a run's `--json` summary that its log does not have.
#[derive(Default, Deserialize)]
struct RunSummary {
    cost_bias: Option<f64>,
}

/// Trains with `program train` and reads the run's event log.
pub(crate) fn run(
    program: &[OsString],
    args: &CompareArgs,
    trial: &Trial,
    contender: &Contender,
    nominal: Span,
    samples: u32,
) -> Result<TrialOutcome> {
    let runs = args.out.join("live");
    let name = format!("run-{:016x}", fnv1a(serde_json::to_string(trial)?.as_bytes()));
    // An interrupted run may have left its folder.
    let _ = fs::remove_dir_all(runs.join(&name));
    let rounds = trial.workers * args.batch * args.evaluations;
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).args(["train", "--tied", "--json", "--run-dir"]).arg(&runs);
    // Settings from the environment are not part of the key under which the result is stored.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("PACELINE_") && name != LOG) {
            command.env_remove(name);
        }
    }
    let mut set = |flag: &str, value: String| {
        command.arg(format!("--{flag}")).arg(value);
    };
    set("name", name.clone());
    set("policy", contender.policy.to_string());
    set("objective", contender.objective.to_string());
    set("lr-scaling", contender.scaling.to_string());
    set("straggler", contender.straggler(args.micro_batches).to_string());
    set("late", contender.late.to_string());
    set("rebalance", contender.rebalance.to_string());
    set("model", args.model.to_string());
    set("data", args.data.to_string());
    if let Some(costs) = &args.costs {
        set("costs", costs.to_string());
        set("balance", (!contender.unbalanced).to_string());
    }
    set("workers", args.workers.to_string());
    set("batch", args.batch.to_string());
    set("micro-batches", args.micro_batches.to_string());
    set("lr", trial.lr.to_string());
    set("seed", trial.seed.to_string());
    set("epochs", args.epochs.to_string());
    set("nominal", nominal.to_string());
    set("eval-every", (samples / rounds.max(1)).max(1).to_string());
    if trial.scenario != "none" {
        set("stragglers", trial.scenario.clone());
    }
    match args.target() {
        _ if args.to_the_end => {}
        Target::Accuracy(accuracy) => set("target-accuracy", accuracy.to_string()),
        Target::Loss(loss) => set("target-loss", loss.to_string()),
    }
    let output = command.output().context("failed to start a live run")?;
    let log = runs.join(&name).join("events.jsonl");
    let said = String::from_utf8_lossy(&output.stderr);
    let failed =
        || format!("the live run {name} failed: {}", said.lines().last().unwrap_or_default());
    // A run that failed before its first event has no log.
    ensure!(output.status.success() || log.exists(), failed());
    let text = fs::read_to_string(&log).context("failed to read a live run's log")?;
    let events: Result<Vec<Event>, _> = text.lines().map(serde_json::from_str).collect();
    let outcome = outcome(&events.context("failed to read a live run's log")?, args);
    // A failed run prints no summary.
    let summary: RunSummary = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let outcome = TrialOutcome { cost_bias: summary.cost_bias, ..outcome };
    // Divergence is an outcome; any other failure is an error.
    ensure!(output.status.success() || outcome.diverged, failed());
    Ok(outcome)
}

/// The outcome of a run by its event log; time counts from the first round.
fn outcome(events: &[Event], args: &CompareArgs) -> TrialOutcome {
    let began = events
        .iter()
        .find(|event| matches!(event.kind, EventKind::RoundStarted { .. }))
        .map_or(0.0, |event| event.at.as_secs_f64());
    let (mut accuracies, mut cutoffs, mut noise) = (Vec::new(), Vec::new(), Vec::new());
    let (mut samples, mut balanced, mut seconds) = (SampleCounts::default(), false, 0.0);
    let (mut losses, mut diverged) = (Vec::new(), false);
    let mut updated = BTreeMap::new();
    let mut idle = Idle::default();
    for event in events {
        let at = event.at.as_secs_f64() - began;
        idle.heard(&event.kind, at);
        match &event.kind {
            EventKind::Updated { version, weight, noise_scale, .. } => {
                cutoffs.push((at, weight / f64::from(args.batch)));
                noise.extend(noise_scale.map(|scale| (at, scale)));
                updated.insert(*version, at);
                seconds = at;
            }
            // An accuracy counts from the update, not from the end of its evaluation.
            EventKind::Evaluated { version, accuracy, loss } => {
                let at = updated.get(version).copied().unwrap_or(at);
                accuracies.push((at, *accuracy));
                losses.push((at, *loss));
            }
            EventKind::Stopped { samples: counts, ledger, reason } => {
                (samples, balanced) = (*counts, ledger.balanced);
                diverged = matches!(reason, StopReason::Diverged(_));
            }
            _ => {}
        }
    }
    let accepted: f64 = cutoffs.iter().map(|(_, accepted)| accepted).sum();
    TrialOutcome {
        reached: args.target().reached(&accuracies, &losses),
        diverged,
        seconds,
        accuracy: accuracies.last().map_or(0.0, |&(_, accuracy)| accuracy),
        rounds: cutoffs.len(),
        accepted: accepted / cutoffs.len().max(1) as f64,
        samples,
        balanced,
        idle: Some(idle.share(seconds, args.workers)),
        cost_bias: None,
        accuracies: thinned(accuracies),
        cutoffs: thinned(cutoffs),
        noise: thinned(noise),
    }
}

/// Worker idle time: from a contribution, or from the cut that a worker missed, to its next work.
#[derive(Debug, Default)]
struct Idle {
    working: BTreeSet<WorkerId>,
    /// When each idle worker became idle.
    free: BTreeMap<WorkerId, f64>,
    seconds: f64,
}

impl Idle {
    fn heard(&mut self, event: &EventKind, at: f64) {
        match event {
            EventKind::RoundStarted { work, .. } => {
                work.iter().for_each(|work| self.begins(work.worker, at));
            }
            EventKind::Enlisted { work, .. } => self.begins(work.worker, at),
            EventKind::Arrived { worker, .. } | EventKind::Late { worker, .. } => {
                self.working.remove(worker);
                self.free.insert(*worker, at);
            }
            EventKind::Cut { stragglers, .. } => {
                for worker in stragglers.iter().filter(|worker| self.working.contains(worker)) {
                    self.free.insert(*worker, at);
                }
            }
            _ => {}
        }
    }

    fn begins(&mut self, worker: WorkerId, at: f64) {
        self.seconds += self.free.remove(&worker).map_or(0.0, |since| at - since);
        self.working.insert(worker);
    }

    fn share(&self, seconds: f64, workers: u32) -> f64 {
        (self.seconds / (seconds * f64::from(workers)).max(f64::MIN_POSITIVE)).min(1.0)
    }
}
