//! Runs of a comparison as real processes.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};
use paceline_core::{Event, EventKind, SampleCounts};

use super::{
    args::CompareArgs,
    contender::Contender,
    trial::{Outcome, Trial, crossing, thinned},
};
use crate::span::Span;

/// Trains with `paceline train` and reads its log.
pub(super) fn run(
    args: &CompareArgs,
    trial: &Trial,
    contender: &Contender,
    nominal: Span,
) -> Result<Outcome> {
    let exe = std::env::current_exe().context("failed to find this program")?;
    let runs = args.out.join("live");
    let name = format!("run-{:016x}", fingerprint(trial)?);
    // What an interrupted run left behind.
    let _ = fs::remove_dir_all(runs.join(&name));
    let rounds = trial.workers * args.batch * args.evaluations;
    let mut command = Command::new(exe);
    command.arg("train").arg("--json").arg("--run-dir").arg(&runs);
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
    let samples = paceline_nn::embedded::TRAIN_SAMPLES as u32;
    set("eval-every", (samples / rounds.max(1)).max(1).to_string());
    if trial.scenario != "none" {
        set("stragglers", trial.scenario.clone());
    }
    if !args.to_the_end {
        set("target-accuracy", args.target_accuracy.to_string());
    }
    let output = command.output().context("failed to start a live run")?;
    ensure!(
        output.status.success(),
        "the live run {name} failed: {}",
        String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default()
    );
    let log = runs.join(&name).join("events.jsonl");
    let text = fs::read_to_string(&log).context("failed to read a live run's log")?;
    let events: Result<Vec<Event>, _> = text.lines().map(serde_json::from_str).collect();
    Ok(outcome(&events.context("failed to read a live run's log")?, args))
}

fn fingerprint(trial: &Trial) -> Result<u64> {
    let text = serde_json::to_string(trial)?;
    // FNV-1a: names of folders, nothing more.
    Ok(text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    }))
}

/// What the log of a run says of it; time counts from the first round on.
fn outcome(events: &[Event], args: &CompareArgs) -> Outcome {
    let began = events
        .iter()
        .find(|event| matches!(event.kind, EventKind::RoundStarted { .. }))
        .map_or(0.0, |event| event.at.as_secs_f64());
    let (mut accuracies, mut cutoffs, mut noise) = (Vec::new(), Vec::new(), Vec::new());
    let (mut samples, mut balanced, mut seconds) = (SampleCounts::default(), false, 0.0);
    let mut updated = std::collections::BTreeMap::new();
    for event in events {
        let at = event.at.as_secs_f64() - began;
        match &event.kind {
            EventKind::Updated { version, weight, noise_scale, .. } => {
                cutoffs.push((at, weight / f64::from(args.batch)));
                noise.extend(noise_scale.map(|scale| (at, scale)));
                updated.insert(*version, at);
                seconds = at;
            }
            // Parameters were as good when they were made as when they had been measured.
            EventKind::Evaluated { version, accuracy, .. } => {
                accuracies.push((updated.get(version).copied().unwrap_or(at), *accuracy));
            }
            EventKind::Stopped { samples: counts, ledger, .. } => {
                (samples, balanced) = (*counts, ledger.balanced);
            }
            _ => {}
        }
    }
    let accepted: f64 = cutoffs.iter().map(|(_, accepted)| accepted).sum();
    Outcome {
        reached: crossing(&accuracies, args.target_accuracy),
        seconds,
        accuracy: accuracies.last().map_or(0.0, |&(_, accuracy)| accuracy),
        rounds: cutoffs.len(),
        accepted: accepted / cutoffs.len().max(1) as f64,
        samples,
        balanced,
        idle: None,
        cost_bias: None,
        accuracies: thinned(accuracies),
        cutoffs: thinned(cutoffs),
        noise: thinned(noise),
    }
}
