//! `paceline simulate --system`: communication and aggregation inside the simulated time.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use anyhow::Result;
use paceline_core::{Enough, Straggler};
use paceline_model::Model;
use paceline_policy::{PolicySpec, wait_for_updates, wait_rule};
use paceline_report::{Usage, short};
use paceline_sim::{Drawn, Recorded, System, SystemOutcome, SystemSpec, Weak};
use paceline_trace::Trace;
use rayon::prelude::*;
use serde::Serialize;

use super::args::{Overhead, ReplayedPolicy, SimulateArgs};
use crate::traces::TraceSource;

/// One run: a line of `--json`.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SystemRow {
    trace: String,
    policy: String,
    seed: u64,
    system: String,
    workers: usize,
    shards: u32,
    rounds: usize,
    straggler: Straggler,
    /// Contributions per second.
    rate: f64,
    #[serde(flatten)]
    times: MeanTimes,
    /// Share of its bandwidth that the busiest shard used, in its busier direction.
    server_utilisation: f64,
    accepted_mean: f64,
    accepted_least: f64,
    accepted_most: f64,
    /// Share of the work handed out that was accepted.
    accepted_share: f64,
    /// Share of the rounds that did not wait for all.
    cut_share: f64,
    late: u64,
    #[serde(flatten)]
    ledger: LedgerCounts,
    /// Figures of weak synchronisation, if shards may be left behind.
    #[serde(flatten)]
    weak: Option<Absences>,
    /// Wall-clock time of the simulation.
    wall_s: f64,
    decide_us_p99: f64,
    decide_cpu_us_per_round: f64,
}

/// Mean times of a round along its critical path, in seconds.
#[derive(Debug, Clone, Serialize)]
struct MeanTimes {
    mean_round_s: f64,
    pull_s: f64,
    compute_s: f64,
    push_s: f64,
    wait_s: f64,
    overhead_s: f64,
}

/// Samples by what became of them.
#[derive(Debug, Clone, Serialize)]
struct LedgerCounts {
    samples_used: u64,
    samples_requeued: u64,
    samples_dropped: u64,
    ledger_balanced: bool,
}

/// Figures of rounds that do not wait for all shards.
#[derive(Debug, Clone, Serialize)]
struct Absences {
    pull: Enough,
    push: Enough,
    max_stale: u64,
    rounds_per_s: f64,
    /// Share of blocks that rounds left out, or whose values were old.
    stale_share: f64,
    /// Share of the other blocks that accepted contributions did not reach.
    missed_share: f64,
    /// How often a round waited for a shard that had missed the most updates allowed.
    awaited: u64,
}

/// Runs a trace under all policies and seeds; calls `tell` with the number done.
pub(super) fn study(
    spec: SystemSpec,
    source: &TraceSource,
    trace: &Trace,
    args: &SimulateArgs,
    model: &Arc<Model>,
    tell: impl Fn(usize, usize) + Sync,
) -> Result<Vec<SystemRow>> {
    let policies = policies(args, spec.shards)?;
    let system =
        System { straggler: args.straggler, quorum: args.quorum as usize, ..System::new(spec) };
    let jobs: Vec<(PolicySpec, u64)> = policies
        .into_iter()
        .flat_map(|policy| (0..args.seeds).map(move |seed| (policy, seed)))
        .collect();
    let done = AtomicUsize::new(0);
    let rows = jobs.par_iter().map(|&(policy, seed)| {
        let began = Instant::now();
        // Shards hold equal parts, so their number of blocks does not matter.
        let (blocks, max_stale) = (vec![1; spec.shards as usize], args.max_stale);
        let shards = Weak {
            shards: wait_for_updates(args.pull, &blocks, max_stale),
            pull: wait_rule(args.pull, &blocks, max_stale),
            push: wait_rule(args.push, &blocks, max_stale),
            max_stale,
        };
        let decides = policy.build_with(model, paceline_policy::Objective::Samples);
        let outcome = match source.by_the_clock() {
            Some((spec, drawn)) => {
                let mut world = Drawn::new(trace.name(), spec.source(drawn.wrapping_add(seed)));
                system.run_over(shards, &mut world, spec.rounds(), decides)
            }
            None => {
                let mut world = Recorded::new(trace, seed);
                system.run_over(shards, &mut world, trace.rounds(), decides)
            }
        };
        let wall_s = began.elapsed().as_secs_f64();
        tell(done.fetch_add(1, Ordering::Relaxed) + 1, jobs.len());
        SystemRow {
            trace: trace.name().to_owned(),
            policy: policy.to_string(),
            seed,
            workers: trace.workers().len(),
            wall_s,
            weak: weak(args, &spec, &outcome),
            ..SystemRow::from_outcome(&system, &outcome)
        }
    });
    Ok(rows.collect())
}

/// The figures if shards may be left behind, or if one is slow.
fn weak(args: &SimulateArgs, spec: &SystemSpec, outcome: &SystemOutcome) -> Option<Absences> {
    let rules = args.pull != Enough::All || args.push != Enough::All;
    let slow = spec.slow_fold > 1.0 || spec.slow_shard < 1.0 || spec.stop_every > 0;
    (rules || slow).then(|| Absences {
        pull: args.pull,
        push: args.push,
        max_stale: args.max_stale,
        rounds_per_s: outcome.round_rate(),
        stale_share: outcome.mean(|round| round.stale),
        missed_share: outcome.mean(|round| round.missed),
        awaited: outcome.awaited,
    })
}

/// The policies to run; refuses flags and references of plain replays.
fn policies(args: &SimulateArgs, shards: u32) -> Result<Vec<PolicySpec>> {
    let weak = args.pull != Enough::All || args.push != Enough::All;
    let lags = |contender: &ReplayedPolicy| match contender {
        ReplayedPolicy::Policy(spec) => spec.build().admissible_lag() > 0,
        _ => false,
    };
    let refused = [
        (
            weak && args.policy.iter().any(lags),
            "async and stale need --pull all and --push all: their gradients are of many versions",
        ),
        (
            args.push != Enough::All && args.straggler.keeps_work(),
            "--straggler finish needs --push all: late contributions are dropped as a whole",
        ),
        (
            args.straggler.counts_parts(),
            "--system supports --straggler abort and finish, not salvage",
        ),
        (
            args.overhead != Overhead::Seconds(0.0),
            "--system has its own overhead (fold): leave out --overhead",
        ),
        (
            args.html.is_some() || args.decisions.is_some(),
            "--html and --decisions are for replays without --system",
        ),
    ];
    if let Some((_, why)) = refused.into_iter().find(|(given, _)| *given) {
        return Err(Usage(why.to_owned()).into());
    }
    let blocks = vec![1; shards as usize];
    for (flag, enough) in [("pull", args.pull), ("push", args.push)] {
        if enough.needs_all(&blocks) {
            tracing::warn!("--{flag} {enough}: of {shards} shards that is all of them");
        }
    }
    let policy = |contender: &ReplayedPolicy| match contender {
        ReplayedPolicy::Policy(spec) => Ok(*spec),
        other => Err(Usage(format!(
            "{other} needs run-times in advance, and with --system they depend on the run"
        ))
        .into()),
    };
    args.policy.iter().map(policy).collect()
}

impl SystemRow {
    fn from_outcome(system: &System, outcome: &SystemOutcome) -> SystemRow {
        let accepted = || outcome.rounds.iter().map(|round| round.accepted);
        let rounds = outcome.rounds.len();
        let cost = &outcome.cost;
        SystemRow {
            trace: String::new(),
            policy: String::new(),
            seed: 0,
            system: system.spec.to_string(),
            workers: 0,
            shards: system.spec.shards,
            rounds,
            straggler: system.straggler,
            rate: outcome.rate(),
            times: MeanTimes {
                mean_round_s: outcome.mean(|round| round.seconds),
                pull_s: outcome.mean(|round| round.pull),
                compute_s: outcome.mean(|round| round.compute),
                push_s: outcome.mean(|round| round.push),
                wait_s: outcome.mean(|round| round.wait),
                overhead_s: outcome.mean(|round| round.overhead),
            },
            server_utilisation: outcome.server_utilisation,
            accepted_mean: outcome.mean(|round| round.accepted),
            accepted_least: accepted().reduce(f64::min).unwrap_or(0.0),
            accepted_most: accepted().reduce(f64::max).unwrap_or(0.0),
            accepted_share: outcome.accepted_share(),
            cut_share: outcome.cut_share(),
            late: outcome.late,
            ledger: LedgerCounts {
                samples_used: outcome.samples.used,
                samples_requeued: outcome.samples.requeued,
                samples_dropped: outcome.samples.dropped,
                ledger_balanced: outcome.ledger_balanced,
            },
            weak: None,
            wall_s: 0.0,
            decide_us_p99: cost.p99().as_secs_f64() * 1e6,
            decide_cpu_us_per_round: cost.total.as_secs_f64() * 1e6 / rounds.max(1) as f64,
        }
    }
}

/// The results as text: one line per run.
pub(super) fn text(rows: &[SystemRow]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let mut text = format!(
        "{}: {} workers, {} rounds, stragglers {}; system {}, {} shard{}\n\n",
        first.trace,
        first.workers,
        first.rounds,
        first.straggler,
        first.system,
        first.shards,
        if first.shards == 1 { "" } else { "s" },
    );
    let width = rows.iter().map(|row| row.policy.len()).max().unwrap_or(0).max(6);
    let _ = writeln!(
        text,
        "{:width$} {:>4} {:>9} {:>9} = {:>7} + {:>7} + {:>7} + {:>7} + {:>8} {:>8} {:>15} {:>6} {:>8} {:>6}",
        "policy",
        "seed",
        "rate /s",
        "round s",
        "pull",
        "compute",
        "push",
        "wait",
        "overhead",
        "accepted",
        "(least, most)",
        "server",
        "requeued",
        "ledger",
    );
    for row in rows {
        let _ = writeln!(
            text,
            "{:width$} {:>4} {:>9} {:>9} = {:>7} + {:>7} + {:>7} + {:>7} + {:>8} {:>6.1} % {:>15} {:>4.0} % {:>8} {:>6}",
            row.policy,
            row.seed,
            short(row.rate),
            short(row.times.mean_round_s),
            short(row.times.pull_s),
            short(row.times.compute_s),
            short(row.times.push_s),
            short(row.times.wait_s),
            short(row.times.overhead_s),
            100.0 * row.accepted_share,
            format!("({}, {})", row.accepted_least, row.accepted_most),
            100.0 * row.server_utilisation,
            row.ledger.samples_requeued,
            if row.ledger.ledger_balanced { "ok" } else { "WRONG" },
        );
    }
    text + &weak_text(rows, width)
}

/// The figures of weak synchronisation as text; empty without them.
fn weak_text(rows: &[SystemRow], width: usize) -> String {
    let first = rows.first().and_then(|row| row.weak.as_ref());
    let Some(Absences { pull, push, max_stale, .. }) = first else {
        return String::new();
    };
    let bound = match (pull, push) {
        (Enough::All, Enough::All) => String::new(),
        _ => format!("; in any case those that have missed {max_stale} updates"),
    };
    let mut text = format!(
        "\nshards waited for: {pull} with values, {push} with gradients{bound}\n\n\
         {:width$} {:>4} {:>9} {:>12} {:>14} {:>19}\n",
        "policy", "seed", "rounds /s", "blocks stale", "not reached", "waited at the bound"
    );
    for row in rows {
        let Some(weak) = &row.weak else { continue };
        let _ = writeln!(
            text,
            "{:width$} {:>4} {:>9} {:>10.1} % {:>12.1} % {:>18}×",
            row.policy,
            row.seed,
            short(weak.rounds_per_s),
            100.0 * weak.stale_share,
            100.0 * weak.missed_share,
            weak.awaited,
        );
    }
    text
}
