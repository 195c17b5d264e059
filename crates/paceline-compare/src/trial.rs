//! One training run of a comparison.

use std::sync::Arc;

use anyhow::Result;
use paceline_core::{Costs, Ledger, OrderSpec, SampleCounts};
use paceline_model::Model;
use paceline_nn::Workload;
use paceline_params::{Clip, LrScaling, OptimizerSpec, Schedule, UpdateConfig};
use paceline_policy::Objective;
use serde::{Deserialize, Serialize};

use crate::{
    args::CompareArgs,
    contender::Contender,
    scenario::Conditions,
    target::Target,
    virtual_clock::{Training, TrainingConfig, TrainingRecord},
};

/// Most points kept per curve.
const POINTS: usize = 200;

/// Everything that a run's outcome depends on: the key of its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Trial {
    pub(crate) scenario: String,
    pub(crate) policy: String,
    pub(crate) seed: u64,
    pub(crate) lr: f32,
    /// Objective and scaling in force: the defaults behind a policy's name may change.
    #[serde(default)]
    objective: Option<Objective>,
    #[serde(default)]
    scaling: Option<LrScaling>,
    pub(crate) workers: u32,
    batch: u32,
    micro_batches: u32,
    model: String,
    data: String,
    #[serde(default)]
    costs: Option<String>,
    #[serde(default)]
    homes: bool,
    target_accuracy: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_loss: Option<f64>,
    epochs: u32,
    to_the_end: bool,
    evaluations: u32,
    overhead: f64,
    /// The nominal time per round of a live run.
    live: Option<String>,
}

impl Trial {
    pub(crate) fn new(
        args: &CompareArgs,
        scenario: &str,
        contender: &Contender,
        seed: u64,
        lr: f32,
    ) -> Trial {
        Trial {
            scenario: scenario.to_owned(),
            policy: contender.to_string(),
            seed,
            lr,
            objective: Some(contender.objective),
            scaling: Some(contender.scaling),
            workers: args.workers,
            batch: args.batch,
            micro_batches: args.micro_batches,
            model: args.model.to_string(),
            data: args.data.to_string(),
            costs: args.costs.as_ref().map(ToString::to_string),
            homes: args.homes,
            target_accuracy: args.target_accuracy,
            target_loss: args.target_loss,
            epochs: args.epochs,
            to_the_end: args.to_the_end,
            evaluations: args.evaluations,
            overhead: args.overhead,
            live: args.live.map(|span| span.to_string()),
        }
    }
}

/// The result of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TrialOutcome {
    /// Seconds to the target, if it was reached.
    pub(crate) reached: Option<f64>,
    pub(crate) seconds: f64,
    /// Test accuracy at the end.
    pub(crate) accuracy: f64,
    /// Parameters or gradients did not stay finite.
    #[serde(default)]
    pub(crate) diverged: bool,
    pub(crate) rounds: usize,
    /// Mean contributions per round, in units of a full contribution.
    pub(crate) accepted: f64,
    pub(crate) samples: SampleCounts,
    pub(crate) balanced: bool,
    /// Share of worker time spent idle.
    pub(crate) idle: Option<f64>,
    /// Relative excess of the cost of samples in updates over that of samples handed out.
    #[serde(default)]
    pub(crate) cost_bias: Option<f64>,
    /// Test accuracy by seconds.
    pub(crate) accuracies: Vec<(f64, f64)>,
    /// Contributions of each round, by seconds.
    pub(crate) cutoffs: Vec<(f64, f64)>,
    /// Noise scale in samples, by seconds.
    pub(crate) noise: Vec<(f64, f64)>,
}

/// How well a candidate did over its tuning seeds; greater is better.
#[derive(Debug, PartialEq, PartialOrd)]
pub(crate) struct TuningScore {
    finite: usize,
    reached: usize,
    /// Negated seconds to the target; final accuracy if no seed reached it.
    merit: f64,
}

impl TuningScore {
    pub(crate) fn from_outcomes(outcomes: &[TrialOutcome]) -> TuningScore {
        let reached = outcomes.iter().filter(|outcome| outcome.reached.is_some()).count();
        let merit = |outcome: &TrialOutcome| match reached {
            0 => outcome.accuracy,
            // A run that missed the target would have needed at least its own length.
            _ => -outcome.reached.unwrap_or(outcome.seconds),
        };
        let finite = outcomes.iter().filter(|outcome| !outcome.diverged).count();
        TuningScore { finite, reached, merit: outcomes.iter().map(merit).sum() }
    }
}

impl TrialOutcome {
    fn from_record(record: &TrainingRecord, target: Target) -> TrialOutcome {
        let rounds = &record.rounds;
        let accepted: f64 = rounds.iter().map(|round| round.accepted).sum();
        let curve: Vec<(f64, f64)> =
            record.points.iter().map(|p| (p.seconds, p.accuracy)).collect();
        let losses: Vec<(f64, f64)> = record.points.iter().map(|p| (p.seconds, p.loss)).collect();
        TrialOutcome {
            reached: target.reached(&curve, &losses),
            diverged: !record.finite,
            seconds: record.seconds,
            accuracy: curve.last().map_or(0.0, |&(_, accuracy)| accuracy),
            rounds: rounds.len(),
            accepted: accepted / rounds.len().max(1) as f64,
            samples: record.samples,
            balanced: record.balanced,
            idle: Some(record.idle),
            cost_bias: record.cost_bias,
            accuracies: thinned(curve),
            cutoffs: thinned(rounds.iter().map(|round| (round.at, round.accepted)).collect()),
            noise: thinned(rounds.iter().filter_map(|r| Some((r.at, r.noise?))).collect()),
        }
    }
}

/// Averages neighbouring points down to at most `POINTS`.
pub(crate) fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let stride = points.len().div_ceil(POINTS).max(1);
    let mean = |chunk: &[(f64, f64)]| {
        let n = chunk.len() as f64;
        (chunk.iter().map(|p| p.0).sum::<f64>() / n, chunk.iter().map(|p| p.1).sum::<f64>() / n)
    };
    points.chunks(stride).map(mean).collect()
}

/// Runs a trial on the virtual clock.
pub(crate) fn run_virtually(
    args: &CompareArgs,
    trial: &Trial,
    contender: &Contender,
    conditions: &Conditions,
    workload: &Workload,
    model: &Arc<Model>,
) -> Result<TrialOutcome> {
    let costs = workload.costs.clone().map(|costs| Costs::new(costs, args.batch));
    let config = TrainingConfig {
        orders: OrderSpec {
            seed: trial.seed,
            samples: workload.samples,
            homes: if args.homes { args.workers } else { 1 },
            balance: costs.clone().filter(|_| !contender.unbalanced),
        },
        costs,
        batch: args.batch,
        micro_batches: args.micro_batches,
        straggler: contender.straggler(args.micro_batches),
        late: contender.late,
        rebalance: contender.rebalance,
        patience: if contender.impatient { u32::MAX } else { Ledger::PATIENCE },
        reweigh: contender.reweigh,
        quorum: 1,
        update: UpdateConfig {
            optimizer: OptimizerSpec::MOMENTUM.into(),
            learning_rate: trial.lr,
            schedule: Schedule::CONSTANT,
            scaling: contender.scaling,
            reference_weight: f64::from(args.workers) * f64::from(args.batch),
            clip: Clip::None,
        },
        overhead: args.overhead,
        evaluate_every: (u64::from(workload.samples) / u64::from(args.evaluations)).max(1),
        target_accuracy: match args.target() {
            Target::Accuracy(accuracy) if !args.to_the_end => Some(accuracy),
            _ => None,
        },
        target_loss: args.target_loss.filter(|_| !args.to_the_end),
        // Where data lives on workers, an epoch ends when the slowest has finished its part.
        epochs: if args.homes { u32::MAX } else { args.epochs },
        most_samples: u64::from(args.epochs) * u64::from(workload.samples),
        seconds: f64::INFINITY,
    };
    let policy = contender.policy.build_with(model, contender.objective);
    let mut world = conditions.world(trial.seed);
    let mut compute = workload.worker()?;
    let mut judge = workload.evaluator()?;
    let mut evaluate = |params: &[f32]| match &mut judge {
        Some(judge) => {
            let found = judge(params);
            (found.loss, found.accuracy)
        }
        None => (0.0, 0.0),
    };
    let (_, params) = workload.begin(trial.seed)?;
    let training = Training::new(config, policy, &mut *world, &mut compute, &mut evaluate, params);
    Ok(TrialOutcome::from_record(&training.run(|| false), args.target()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(reached: Option<f64>, accuracy: f64, diverged: bool) -> TrialOutcome {
        TrialOutcome {
            reached,
            seconds: 9.0,
            accuracy,
            diverged,
            rounds: 1,
            accepted: 1.0,
            samples: SampleCounts::default(),
            balanced: true,
            idle: None,
            cost_bias: None,
            accuracies: Vec::new(),
            cutoffs: Vec::new(),
            noise: Vec::new(),
        }
    }

    #[test]
    fn a_candidate_is_scored_over_all_tuning_seeds() {
        let score = |tried: &[(Option<f64>, f64)]| {
            let tried = tried.iter().map(|&(reached, accuracy)| outcome(reached, accuracy, false));
            TuningScore::from_outcomes(&tried.collect::<Vec<_>>())
        };
        // The smaller total beats the best single seed; always reaching the target beats sometimes.
        assert!(
            score(&[(Some(5.0), 0.9), (Some(5.0), 0.9)])
                > score(&[(Some(3.0), 0.9), (Some(8.0), 0.9)])
        );
        assert!(
            score(&[(Some(8.0), 0.9), (Some(8.0), 0.9)]) > score(&[(Some(1.0), 0.9), (None, 0.8)])
        );
        assert!(score(&[(None, 0.7)]) > score(&[(None, 0.6)]));
        assert!(
            TuningScore::from_outcomes(&[outcome(None, 0.1, false)])
                > TuningScore::from_outcomes(&[outcome(Some(1.0), 0.9, true)])
        );
    }

    #[test]
    fn many_points_become_few_and_few_stay() {
        let few: Vec<(f64, f64)> = (0..5).map(|i| (f64::from(i), 1.0)).collect();
        assert_eq!(thinned(few.clone()), few);
        let many: Vec<(f64, f64)> = (0..1000).map(|i| (f64::from(i), 2.0)).collect();
        assert_eq!(thinned(many).len(), 200);
    }
}
