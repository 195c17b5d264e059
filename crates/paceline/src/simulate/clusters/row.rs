//! One cluster under every policy.

use std::sync::Arc;

use anyhow::{Result, ensure};
use paceline_core::Straggler;
use paceline_model::Model;
use paceline_policy::{Objective, PolicySpec};
use paceline_sim::{Recorded, Replay};
use paceline_trace::{Hindsight, SyntheticSpec, Trace, generate, hindsight};
use serde::Serialize;

use super::{args::Against, parts::parts};
use crate::simulate::{SimulateArgs, args::Overhead, args::ReplayedPolicy};

/// How clusters are replayed, and under which policies.
pub(super) struct ClusterStudy {
    policies: Vec<ReplayedPolicy>,
    with_parts: bool,
    straggler: Straggler,
    overhead: Overhead,
    model: Arc<Model>,
}

/// One cluster: a line of `--json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ClusterRow {
    pub(super) cluster: u64,
    pub(super) spec: String,
    pub(super) seed: u64,
    pub(super) workers: usize,
    pub(super) rounds: usize,
    pub(super) straggler: Straggler,
    /// Seconds between rounds.
    pub(super) overhead: f64,
    /// Contributions per second.
    pub(super) full_rate: f64,
    pub(super) best_static_count: usize,
    pub(super) best_static_rate: f64,
    pub(super) oracle_rate: f64,
    /// The best part and its rate, if parts were replayed.
    pub(super) best_part: Option<String>,
    pub(super) best_part_rate: Option<f64>,
    /// The policies in the order given, then the parts that are not among them.
    pub(super) policies: Vec<PolicyRate>,
}

/// What a policy made of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct PolicyRate {
    pub(super) policy: String,
    pub(super) rate: f64,
    pub(super) of_oracle: f64,
    pub(super) of_best_static: f64,
    pub(super) of_full: f64,
    pub(super) of_best_part: Option<f64>,
}

impl PolicyRate {
    /// The share of a reference's rate.
    pub(super) fn of(&self, reference: Against) -> f64 {
        match reference {
            Against::Full => self.of_full,
            Against::BestStatic => self.of_best_static,
            Against::Parts => self.of_best_part.expect("a comparison with parts replays them"),
        }
    }
}

impl ClusterStudy {
    pub(super) fn new(args: &SimulateArgs, model: Arc<Model>) -> Result<ClusterStudy> {
        ensure!(
            !args.straggler.counts_parts(),
            "salvage needs a trace with micro-batches (docs/traces.md), clusters have whole run-times"
        );
        Ok(ClusterStudy {
            policies: args.policy.clone(),
            with_parts: args.clusters.parts || args.clusters.against == Against::Parts,
            straggler: args.straggler,
            overhead: args.overhead,
            model,
        })
    }

    /// Draws a cluster's run-times and replays them.
    pub(super) fn row(&self, cluster: u64, spec: &SyntheticSpec, seed: u64) -> ClusterRow {
        let trace = generate(spec, seed);
        let n = spec.workers();
        let overhead = self.overhead.seconds(trace.median());
        let replay = Replay { straggler: self.straggler, overhead, quorum: 1 };
        let bounds = hindsight(&trace, overhead, 1);
        let mut rates: Vec<(String, f64)> = self
            .policies
            .iter()
            .map(|&policy| (policy.to_string(), self.rate(policy, &trace, &bounds, &replay)))
            .collect();
        let mut best_part: Option<(String, f64)> = None;
        for (name, policy) in parts(n).into_iter().filter(|_| self.with_parts) {
            let known = rates.iter().find(|(replayed, _)| *replayed == name).map(|(_, rate)| *rate);
            let rate = known.unwrap_or_else(|| {
                let rate = self.rate(ReplayedPolicy::Policy(policy), &trace, &bounds, &replay);
                rates.push((name.clone(), rate));
                rate
            });
            if best_part.as_ref().is_none_or(|(_, best)| rate > *best) {
                best_part = Some((name, rate));
            }
        }
        let (best_part, best_part_rate) = best_part.unzip();
        let policies = rates.into_iter().map(|(policy, rate)| PolicyRate {
            policy,
            rate,
            of_oracle: rate / bounds.oracle_rate,
            of_best_static: rate / bounds.best_static_rate,
            of_full: rate / bounds.full_rate,
            of_best_part: best_part_rate.map(|best| rate / best),
        });
        ClusterRow {
            cluster,
            spec: spec.to_string(),
            seed,
            workers: n,
            rounds: spec.rounds(),
            straggler: self.straggler,
            overhead,
            full_rate: bounds.full_rate,
            best_static_count: bounds.best_static_count,
            best_static_rate: bounds.best_static_rate,
            oracle_rate: bounds.oracle_rate,
            policies: policies.collect(),
            best_part,
            best_part_rate,
        }
    }

    /// A policy's rate. Fixed counts are known in hindsight where every worker is idle at an opening.
    fn rate(
        &self,
        policy: ReplayedPolicy,
        trace: &Trace,
        bounds: &Hindsight,
        replay: &Replay,
    ) -> f64 {
        let n = trace.workers().len();
        let spec = match policy {
            ReplayedPolicy::BestStatic => return bounds.best_static_rate,
            ReplayedPolicy::Oracle => return bounds.oracle_rate,
            ReplayedPolicy::Policy(spec) => spec,
        };
        match (spec, self.straggler) {
            (PolicySpec::Full, _) => bounds.full_rate,
            (PolicySpec::Static(cutoff), Straggler::Abort) => bounds.rates[cutoff.count(n) - 1],
            _ => {
                let policy = spec.build_with(&self.model, Objective::Samples);
                let mut world = Recorded::new(trace, 0);
                replay.run(&mut world, trace.rounds(), policy).rate(replay.overhead)
            }
        }
    }
}
