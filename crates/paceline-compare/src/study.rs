//! Runs a comparison: first chooses learning rates, then runs every seed.

use std::{
    ffi::OsString,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::Result;
use paceline_model::Model;
use paceline_nn::Workload;
use rayon::prelude::*;
use serde::Serialize;

use crate::{
    args::CompareArgs,
    contender::Contender,
    live,
    scenario::{Conditions, ScenarioSpec},
    store::ResultStore,
    trial::{Trial, TrialOutcome, TuningScore, run_virtually},
    virtual_clock::bounds,
};

/// Called with each stage that a comparison reaches, from several threads.
pub type OnStage<'a> = dyn Fn(String) + Sync + 'a;

/// First seed of tuning runs; no other run uses these seeds.
const TUNING: u64 = 1_000_003;
/// Rounds over which the clairvoyant bound is computed.
const BOUND_ROUNDS: usize = 400;

/// A fixed count tried by a sweep.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SweptCount {
    pub(crate) policy: String,
    /// Mean contributions per round.
    pub(crate) accepted: f64,
    /// Mean seconds to the target, if every run reached it.
    pub(crate) seconds_to_target: Option<f64>,
}

impl SweptCount {
    fn new(contender: &Contender, outcomes: &[TrialOutcome]) -> SweptCount {
        let n = outcomes.len().max(1) as f64;
        let seconds: Option<f64> = outcomes.iter().map(|outcome| outcome.reached).sum();
        SweptCount {
            policy: contender.to_string(),
            accepted: outcomes.iter().map(|outcome| outcome.accepted).sum::<f64>() / n,
            seconds_to_target: seconds.map(|seconds| seconds / n),
        }
    }
}

/// The results of one policy under one scenario.
#[derive(Debug, Clone)]
pub(crate) struct ComparisonCase {
    pub(crate) scenario: String,
    pub(crate) contender: Contender,
    /// The sweep's choice; the contender itself if it is no sweep.
    pub(crate) chosen: Contender,
    /// The counts that a sweep tried, all with the first learning rate.
    pub(crate) tried: Vec<SweptCount>,
    pub(crate) lr: f32,
    /// By seed, from 1.
    pub(crate) outcomes: Vec<TrialOutcome>,
    /// A clairvoyant's samples per second over those of full sync; `None` if run-times are not known
    /// in advance or depend on the samples.
    pub(crate) bound: Option<f64>,
}

/// A comparison with everything that its runs share.
pub(crate) struct Comparison<'a> {
    pub(crate) args: &'a CompareArgs,
    /// The command that starts `paceline`.
    program: &'a [OsString],
    pub(crate) workload: &'a Workload,
    pub(crate) model: &'a Arc<Model>,
    pub(crate) store: &'a ResultStore,
    stage: &'a OnStage<'a>,
    begun: AtomicUsize,
    all: usize,
}

impl<'a> Comparison<'a> {
    pub(crate) fn new(
        args: &'a CompareArgs,
        program: &'a [OsString],
        workload: &'a Workload,
        model: &'a Arc<Model>,
        store: &'a ResultStore,
        stage: &'a OnStage<'a>,
    ) -> Comparison<'a> {
        Comparison {
            args,
            program,
            workload,
            model,
            store,
            stage,
            begun: AtomicUsize::new(0),
            all: 0,
        }
    }

    /// Runs every contender under every scenario.
    pub(crate) fn run(
        &mut self,
        scenarios: &[ScenarioSpec],
        contenders: &[Contender],
    ) -> Result<Vec<ComparisonCase>> {
        let (args, rates) = (self.args, self.args.rates().len());
        let runs = |contender: &Contender| {
            let tried = contender.candidates(args.workers).len() + rates - 1;
            let tuning = if tried > 1 { tried * args.tune_seeds as usize } else { 0 };
            tuning + args.seeds as usize
        };
        self.all = scenarios.len() * contenders.iter().map(runs).sum::<usize>();
        let mut cases = Vec::new();
        for scenario in scenarios {
            cases.push((scenario, Conditions::new(scenario, args.workers, args.live.is_some())?));
        }
        let jobs: Vec<(&ScenarioSpec, &Conditions, &Contender)> = cases
            .iter()
            .flat_map(|(scenario, conditions)| {
                contenders.iter().map(move |contender| (*scenario, conditions, contender))
            })
            .collect();
        let case =
            |&(scenario, conditions, contender): &(&ScenarioSpec, &Conditions, &Contender)| {
                self.case(scenario, conditions, contender)
            };
        match args.live.is_some() {
            // Live runs at the same time would slow each other down.
            true => jobs.iter().map(case).collect(),
            false => jobs.par_iter().with_max_len(1).map(case).collect(),
        }
    }

    fn case(
        &self,
        scenario: &ScenarioSpec,
        conditions: &Conditions,
        contender: &Contender,
    ) -> Result<ComparisonCase> {
        let args = self.args;
        let name = scenario.to_string();
        let run = |contender: &Contender, seed: u64, lr: f32| {
            self.trial(&name, conditions, contender, seed, lr)
        };
        let candidates = contender.candidates(args.workers);
        let rates = args.rates();
        let mut chosen = (candidates[0], rates[0]);
        let mut best: Option<TuningScore> = None;
        let mut swept = Vec::new();
        let mut consider = |contender: Contender, lr: f32| -> Result<Contender> {
            let seeds = TUNING..TUNING + u64::from(args.tune_seeds);
            let tried: Result<Vec<TrialOutcome>> =
                seeds.map(|seed| run(&contender, seed, lr)).collect();
            let tried = tried?;
            let score = TuningScore::from_outcomes(&tried);
            swept.push(SweptCount::new(&contender, &tried));
            if best.as_ref().is_none_or(|best| score > *best) {
                (chosen, best) = ((contender, lr), Some(score));
            }
            Ok(chosen.0)
        };
        // A single candidate needs no tuning runs.
        if candidates.len() + rates.len() > 2 {
            let mut fixed = *contender;
            for candidate in candidates {
                fixed = consider(candidate, rates[0])?;
            }
            for &rate in &rates[1..] {
                consider(fixed, rate)?;
            }
        }
        let (chosen, lr) = chosen;
        swept.truncate(if contender.sweep { contender.candidates(args.workers).len() } else { 0 });
        let outcomes: Result<Vec<TrialOutcome>> =
            (1..=args.seeds).map(|seed| run(&chosen, seed, lr)).collect();
        let bound = |seed: u64| {
            let mut world = conditions.world(seed);
            let found = bounds(&mut *world, BOUND_ROUNDS, args.micro_batches, args.overhead);
            found.clairvoyant_rate / found.full_rate
        };
        let known = !matches!(conditions, Conditions::Live(_)) && args.costs.is_none();
        let bound = known.then(|| (1..=args.seeds).map(bound).sum::<f64>() / args.seeds as f64);
        let contender = *contender;
        Ok(ComparisonCase {
            scenario: name,
            contender,
            chosen,
            tried: swept,
            lr,
            outcomes: outcomes?,
            bound,
        })
    }

    fn trial(
        &self,
        scenario: &str,
        conditions: &Conditions,
        contender: &Contender,
        seed: u64,
        lr: f32,
    ) -> Result<TrialOutcome> {
        let trial = Trial::new(self.args, scenario, contender, seed, lr);
        let begun = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        (self.stage)(format!("run {begun} of {}: {contender} under {scenario}", self.all));
        let outcome = match self.store.find(&trial)? {
            Some(known) => known,
            None => {
                let (args, program, workload) = (self.args, self.program, self.workload);
                let outcome = match args.live {
                    Some(nominal) => {
                        live::run(program, args, &trial, contender, nominal, workload.samples)?
                    }
                    None => {
                        run_virtually(args, &trial, contender, conditions, workload, self.model)?
                    }
                };
                self.store.add(trial, outcome.clone())?;
                outcome
            }
        };
        Ok(outcome)
    }
}
