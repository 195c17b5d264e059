//! Slowness that the data causes, and data that slowness hides: samples that differ in cost, and
//! classes that live on slow workers.

use std::sync::Arc;

use paceline_compare::{Paced, Training, TrainingConfig, TrainingRecord};
use paceline_core::{Costs, Late, Ledger, OrderSpec, Straggler};
use paceline_model::Model;
use paceline_params::{Clip, LrScaling, OptimizerSpec, Schedule, UpdateConfig};
use paceline_policy::{Objective, PolicySpec};
use paceline_worker::Compute;
use rand::{SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, LogNormal, StandardNormal};

const CLASSES: usize = 8;
const FEATURES: usize = 12;
const SAMPLES: u32 = 4_000;
const BATCH: u32 = 20;

/// Softmax regression on classes that overlap; sample by sample, class after class.
struct Classes {
    weights: Vec<f32>,
    samples: u32,
    salt: u64,
}

impl Classes {
    fn new(samples: u32, salt: u64) -> Classes {
        Classes { weights: vec![0.0; CLASSES * FEATURES], samples, salt }
    }

    /// A class, and a point near its centre.
    fn sample(&self, sample: u32) -> (usize, Vec<f32>) {
        let class = sample as usize * CLASSES / self.samples as usize;
        let normal = |seed: u64| {
            let mut rng = StdRng::seed_from_u64(seed);
            (0..FEATURES).map(move |_| -> f32 { StandardNormal.sample(&mut rng) })
        };
        let noise = normal(1_000 + self.salt + u64::from(sample));
        (
            class,
            normal(class as u64).zip(noise).map(|(centre, noise)| centre + 1.5 * noise).collect(),
        )
    }

    fn probabilities(&self, point: &[f32]) -> Vec<f32> {
        let score = |row: &[f32]| row.iter().zip(point).map(|(w, x)| w * x).sum::<f32>().exp();
        let scores: Vec<f32> = self.weights.chunks(FEATURES).map(score).collect();
        let sum: f32 = scores.iter().sum();
        scores.iter().map(|score| score / sum).collect()
    }

    /// Share of right answers, over all.
    fn accuracy(&self) -> f64 {
        let right = |&sample: &u32| {
            let (class, point) = self.sample(sample);
            let p = self.probabilities(&point);
            p.iter().all(|&other| other <= p[class])
        };
        (0..self.samples).filter(right).count() as f64 / f64::from(self.samples)
    }
}

impl Compute for Classes {
    fn load(&mut self, at: usize, params: &[f32]) {
        self.weights[at..at + params.len()].copy_from_slice(params);
    }

    fn gradient(&mut self, samples: &[u32], gradient: &mut [f32]) -> f64 {
        let mut loss = 0.0;
        for &sample in samples {
            let (class, point) = self.sample(sample);
            let p = self.probabilities(&point);
            loss -= f64::from(p[class].ln());
            for (k, row) in gradient.chunks_mut(FEATURES).enumerate() {
                let off = p[k] - if k == class { 1.0 } else { 0.0 };
                row.iter_mut().zip(&point).for_each(|(g, x)| *g += off * x);
            }
        }
        loss
    }
}

fn config() -> TrainingConfig {
    TrainingConfig {
        orders: OrderSpec::new(1, SAMPLES),
        costs: None,
        batch: BATCH,
        micro_batches: 4,
        straggler: Straggler::Salvage,
        late: Late::Drop,
        rebalance: false,
        patience: Ledger::PATIENCE,
        reweigh: false,
        quorum: 1,
        update: UpdateConfig {
            optimizer: OptimizerSpec::SGD.into(),
            learning_rate: 0.2,
            schedule: Schedule::CONSTANT,
            scaling: LrScaling::Linear,
            reference_weight: 160.0,
            clip: Clip::None,
        },
        overhead: 0.0,
        evaluate_every: u64::MAX,
        target_accuracy: None,
        target_loss: None,
        epochs: 1_000,
        most_samples: u64::MAX,
        seconds: 300.0,
    }
}

fn train(config: TrainingConfig, policy: &str, slowness: &str) -> TrainingRecord {
    let policy: PolicySpec = policy.parse().unwrap();
    let policy = policy.build_with(&Model::prior(), Objective::Samples);
    let mut world = Paced::new(&slowness.parse().unwrap(), 8, 1.0, 5);
    let mut compute = Classes::new(SAMPLES, 0);
    let mut evaluate = |params: &[f32]| {
        let mut judge = Classes::new(2_000, 1_000_000);
        judge.load(0, params);
        (0.0, judge.accuracy())
    };
    let params = vec![0.0; CLASSES * FEATURES];
    Training::new(config, policy, &mut world, &mut compute, &mut evaluate, params).run(|| false)
}

fn accuracy(record: &TrainingRecord) -> f64 {
    assert!(record.balanced && record.finite);
    100.0 * record.points.last().expect("it is measured at the end").accuracy
}

/// Two of eight workers take three times as long, and are the only ones with their classes.
#[test]
fn dropping_who_alone_has_a_class_loses_it_and_patience_and_reweighing_bring_it_back() {
    let at_home = || TrainingConfig {
        orders: OrderSpec { homes: 8, ..OrderSpec::new(1, SAMPLES) },
        straggler: Straggler::Abort,
        ..config()
    };
    let slow = "slow:0:3,slow:1:3";
    let full = accuracy(&train(at_home(), "full", slow));
    let never = TrainingConfig { patience: u32::MAX, ..at_home() };
    let dropped = accuracy(&train(never, "static:6", slow));
    let patient = accuracy(&train(at_home(), "static:6", slow));
    let reweighed =
        accuracy(&train(TrainingConfig { reweigh: true, ..at_home() }, "static:6", slow));
    let salvaged = TrainingConfig { straggler: Straggler::Salvage, ..at_home() };
    let salvaged = accuracy(&train(salvaged, "static:6", slow));
    println!(
        "accuracy with two classes on slow workers: all waited for {full:.1} %, dropped \
         {dropped:.1} %, given back thrice and then waited for {patient:.1} %, and reweighed \
         {reweighed:.1} %; salvaged {salvaged:.1} %"
    );
    assert!(dropped < full - 15.0, "{dropped} of {full}");
    assert!(patient > full - 5.0, "{patient} of {full}");
    assert!(reweighed > full - 1.0, "{reweighed} of {full}");
    assert!(salvaged > full - 5.0, "{salvaged} of {full}");
}

fn costly(balanced: bool) -> TrainingConfig {
    let draws = LogNormal::new(0.0, 0.6).unwrap();
    let mut rng = StdRng::seed_from_u64(3);
    let costs: Arc<[f32]> = (0..SAMPLES).map(|_| draws.sample(&mut rng)).collect();
    let costs = Costs::new(costs, BATCH);
    let orders = OrderSpec::new(1, SAMPLES);
    let orders = OrderSpec { balance: balanced.then(|| costs.clone()), ..orders };
    TrainingConfig { orders, costs: Some(costs), epochs: 5, seconds: f64::INFINITY, ..config() }
}

#[test]
fn batches_balanced_by_cost_take_as_long_as_each_other() {
    let took = |balanced| train(costly(balanced), "full", "").seconds;
    let (shuffled, balanced) = (took(false), took(true));
    println!("full sync, costs lognormal: {shuffled:.0} s shuffled, {balanced:.0} s balanced");
    // 25 rounds an epoch, of a second each if all batches were alike.
    assert!(shuffled > 1.2 * 125.0, "{shuffled}");
    assert!(balanced < 1.07 * 125.0, "{balanced}");
}

#[test]
fn salvage_hears_cheap_samples_first_and_says_by_how_much() {
    let bias = |balanced, policy, straggler| {
        let config = TrainingConfig { straggler, ..costly(balanced) };
        train(config, policy, "").cost_bias.expect("costs are known")
    };
    let all = bias(false, "full", Straggler::Salvage);
    let cut = bias(false, "static:4", Straggler::Abort);
    let salvaged = bias(false, "static:4", Straggler::Salvage);
    let balanced = bias(true, "static:4", Straggler::Salvage);
    println!(
        "cost of what is in an update over what was handed out: full {all:+.3}, cut {cut:+.3}, \
         salvaged {salvaged:+.3}, salvaged and balanced {balanced:+.3}"
    );
    assert!(all.abs() < 1e-9);
    assert!(cut < -0.05, "whole workers are cut for what they hold: {cut}");
    assert!(cut < salvaged && salvaged < -0.01, "{salvaged}");
    assert!(balanced.abs() < 0.7 * salvaged.abs(), "{balanced} of {salvaged}");
}
