//! Replays of one trace under every policy and seed.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use anyhow::{Result, ensure};
use paceline_core::{Policy, Straggler};
use paceline_model::Model;
use paceline_policy::{Cutoff, Static};
use paceline_sim::{Drawn, Recorded, Replay, ReplayOutcome, Scripted};
use paceline_trace::{Hindsight, SyntheticSpec, Trace, deadlines, hindsight};
use rayon::prelude::*;
use serde::Serialize;

use super::args::{Overhead, ReplayedPolicy};

/// Which policies to replay a trace under, and how.
#[derive(Debug, Clone)]
pub struct Study {
    /// The policies.
    pub policies: Vec<ReplayedPolicy>,
    /// Replays per policy: seed 0 is the trace unchanged, others begin at another round and number the
    /// workers in another order.
    pub seeds: u64,
    /// What a worker past the cut does.
    pub straggler: Straggler,
    /// Time between a close and the next round.
    pub overhead: Overhead,
    /// Least contributions of a round.
    pub quorum: u32,
}

/// One replay: a line of `--json`.
#[derive(Debug, Clone, Serialize)]
pub struct ReplayRow {
    pub(super) trace: String,
    pub(super) policy: String,
    pub(super) seed: u64,
    pub(super) workers: usize,
    pub(super) rounds: usize,
    /// Contributions per second (or per the trace's unit).
    pub(super) rate: f64,
    pub(super) of_oracle: f64,
    pub(super) of_best_static: f64,
    pub(super) of_full: f64,
    /// Standard deviation over mean of the rounds' own rates.
    pub(super) variation: f64,
    /// Share of the work handed out that was used.
    pub(super) accepted_share: f64,
    pub(super) full_rate: f64,
    pub(super) best_static_count: usize,
    pub(super) best_static_rate: f64,
    pub(super) oracle_rate: f64,
    pub(super) overhead: f64,
    pub(super) straggler: Straggler,
    pub(super) decide_us_p99: f64,
    pub(super) decide_cpu_us_per_round: f64,
    #[serde(skip)]
    pub(super) outcome: ReplayOutcome,
}

/// The best rates of a trace in hindsight.
pub(super) struct Bounds {
    hindsight: Hindsight,
    /// With salvage, the best moment of every round instead of the best count.
    pub(super) oracle_rate: f64,
}

impl Bounds {
    pub(super) fn from_trace(trace: &Trace, replay: &Replay) -> Bounds {
        let hindsight = hindsight(trace, replay.overhead, replay.quorum);
        let oracle_rate = match replay.straggler {
            Straggler::Salvage => deadlines(trace, replay.overhead).clairvoyant_rate,
            Straggler::Abort | Straggler::Finish => hindsight.oracle_rate,
        };
        Bounds { hindsight, oracle_rate }
    }
}

impl Study {
    /// How to replay a trace.
    pub(super) fn replay(&self, trace: &Trace) -> Result<Replay> {
        ensure!(
            !self.straggler.counts_parts() || trace.micro_batches() > 1,
            "{}: salvage needs a trace with micro-batches (docs/traces.md), this one has whole run-times",
            trace.name()
        );
        let n = trace.workers().len();
        ensure!(
            self.quorum as usize <= n,
            "{}: --quorum {} is more than its {n} workers",
            trace.name(),
            self.quorum
        );
        Ok(Replay {
            straggler: self.straggler,
            overhead: self.overhead.seconds(trace.median()),
            quorum: self.quorum as usize,
        })
    }

    /// Replays a trace under all policies and seeds. `drawn` is the generator and the seed of a trace
    /// whose phases advance by the clock. `tell` is called with the number of replays done, and with
    /// that of all; its error ends the study.
    pub fn run(
        &self,
        trace: &Trace,
        drawn: Option<(&SyntheticSpec, u64)>,
        model: &Arc<Model>,
        tell: impl Fn(usize, usize) -> Result<()> + Sync,
    ) -> Result<Vec<ReplayRow>> {
        let replay = self.replay(trace)?;
        let bounds = drawn.is_none().then(|| Bounds::from_trace(trace, &replay));
        let jobs: Vec<(ReplayedPolicy, u64)> = self
            .policies
            .iter()
            .flat_map(|&contender| (0..self.seeds).map(move |seed| (contender, seed)))
            .collect();
        let done = AtomicUsize::new(0);
        let rows = jobs.par_iter().map(|&(contender, seed)| {
            let row = match (drawn, &bounds) {
                (Some((spec, first)), _) => {
                    let mut world = Drawn::new(trace.name(), spec.source(first.wrapping_add(seed)));
                    let policy = policy_of(contender, model, None, 0, trace)?;
                    let outcome = replay.run(&mut world, spec.rounds(), policy);
                    let drawn = world.into_trace();
                    row(
                        contender,
                        seed,
                        &drawn,
                        &replay,
                        &Bounds::from_trace(&drawn, &replay),
                        outcome,
                    )
                }
                (None, Some(bounds)) => {
                    let mut world = Recorded::new(trace, seed);
                    let policy = policy_of(contender, model, Some(bounds), world.start(), trace)?;
                    let outcome = replay.run(&mut world, trace.rounds(), policy);
                    row(contender, seed, trace, &replay, bounds, outcome)
                }
                (None, None) => unreachable!("a trace without phases by the clock has bounds"),
            };
            tell(done.fetch_add(1, Ordering::Relaxed) + 1, jobs.len())?;
            Ok(row)
        });
        rows.collect()
    }
}

fn policy_of(
    contender: ReplayedPolicy,
    model: &Arc<Model>,
    bounds: Option<&Bounds>,
    start: usize,
    trace: &Trace,
) -> Result<Box<dyn Policy>> {
    let known = |contender: &str| {
        anyhow::anyhow!(
            "{contender} needs a trace that does not depend on the run: not phases=wall-clock"
        )
    };
    Ok(match contender {
        ReplayedPolicy::Policy(spec) => spec.build_with(model, paceline_policy::Objective::Samples),
        ReplayedPolicy::BestStatic => {
            let bounds = bounds.ok_or_else(|| known("best-static"))?;
            Box::new(Static(Cutoff::Count(bounds.hindsight.best_static_count as u32)))
        }
        ReplayedPolicy::Oracle => {
            let bounds = bounds.ok_or_else(|| known("oracle"))?;
            let mut counts = bounds.hindsight.oracle_counts.clone();
            // Rounds without workers have no count; replays leave them out as well.
            let there = |round: usize| trace.row(round).any(|cell| cell.bound().is_some());
            counts.rotate_left((0..start).filter(|&round| there(round)).count());
            Box::new(Scripted::new("oracle", counts))
        }
    })
}

fn row(
    contender: ReplayedPolicy,
    seed: u64,
    trace: &Trace,
    replay: &Replay,
    bounds: &Bounds,
    outcome: ReplayOutcome,
) -> ReplayRow {
    let rate = outcome.rate(replay.overhead);
    let rounds = outcome.rounds.len();
    let Hindsight { full_rate, best_static_count, best_static_rate, .. } = bounds.hindsight;
    let accepted: f64 = outcome.rounds.iter().map(|round| round.accepted).sum();
    let there: usize = (0..trace.rounds())
        .map(|round| trace.row(round).filter(|cell| cell.bound().is_some()).count())
        .sum();
    ReplayRow {
        trace: trace.name().to_owned(),
        policy: contender.to_string(),
        seed,
        workers: trace.workers().len(),
        rounds,
        rate,
        of_oracle: rate / bounds.oracle_rate,
        of_best_static: rate / best_static_rate,
        of_full: rate / full_rate,
        variation: variation(&outcome, replay.overhead),
        accepted_share: accepted / there.max(1) as f64,
        full_rate,
        best_static_count,
        best_static_rate,
        oracle_rate: bounds.oracle_rate,
        overhead: replay.overhead,
        straggler: replay.straggler,
        decide_us_p99: outcome.cost.p99().as_secs_f64() * 1e6,
        decide_cpu_us_per_round: outcome.cost.total.as_secs_f64() * 1e6 / rounds.max(1) as f64,
        outcome,
    }
}

/// The variation of the rounds' own rates: standard deviation over mean.
fn variation(outcome: &ReplayOutcome, overhead: f64) -> f64 {
    let rates: Vec<f64> =
        outcome.rounds.iter().map(|r| r.accepted / (r.seconds + overhead).max(1e-12)).collect();
    let n = rates.len().max(1) as f64;
    let mean = rates.iter().sum::<f64>() / n;
    let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / n;
    if mean > 0.0 { variance.sqrt() / mean } else { 0.0 }
}
