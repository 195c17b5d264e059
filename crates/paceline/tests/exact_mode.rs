//! Exact mode against a single process that sums the same micro-batches in the same order.

mod common;

use common::Place;
use paceline_core::{EventKind, OrderSpec};
use paceline_nn::{DataSource, ModelSpec, Split, build};
use paceline_params::{OptimizerSpec, ParamHash, Update, WireType, fold, narrow, widen};
use paceline_worker::micro_batch;

const SEED: u64 = 3;
const WORKERS: u32 = 3;
const BATCH: u32 = 16;
const MICRO_BATCHES: u32 = 2;
const ROUNDS: u32 = 8;
const LR: f32 = 0.05;

/// What comes of values that travel so.
fn travelled(wire: WireType, mut values: Vec<f32>) -> Vec<f32> {
    if let WireType::Half(half) = wire {
        let mut bits = vec![0; values.len()];
        narrow(half, &values, &mut bits);
        widen(half, &bits, &mut values);
    }
    values
}

/// The hash of the parameters after every round, trained in this process alone.
fn reference(spec: ModelSpec, wire: WireType) -> Vec<String> {
    paceline_nn::single_threaded();
    let data = DataSource::Embedded.load(Split::Train, SEED).unwrap();
    let mut model = build(spec, data.shape()).unwrap();
    let mut params = model.init(SEED);
    let optimizer = OptimizerSpec::MOMENTUM;
    let mut momentum = vec![0.0; params.len()];
    let order = OrderSpec::new(SEED, data.len() as u32).epoch(0);
    let mut hashes = Vec::new();
    for round in 0..ROUNDS {
        model.load(0, &travelled(wire, params.clone()));
        let contributions: Vec<Vec<f32>> = (0..WORKERS)
            .map(|worker| {
                let start = (round * WORKERS + worker) * BATCH;
                let samples = order.samples(start, start + BATCH).unwrap();
                let mut gradient = vec![0.0; params.len()];
                for part in 0..MICRO_BATCHES {
                    let micro = micro_batch(samples, part, MICRO_BATCHES);
                    model.gradient(&data, micro, &mut gradient);
                }
                travelled(wire, gradient)
            })
            .collect();
        let mut sum = vec![0.0; params.len()];
        let sources: Vec<&[f32]> = contributions.iter().map(Vec::as_slice).collect();
        fold(&mut sum, true, &sources);
        let scale = (1.0 / f64::from(WORKERS * BATCH)) as f32;
        let update = Update { step: u64::from(round) + 1, lr: LR, scale };
        optimizer.apply(update, &sum, &mut params, &mut [&mut momentum]);
        hashes.push(ParamHash::from_values(0, &params).to_string());
    }
    hashes
}

#[test]
fn exact_mode_is_bit_identical_from_run_to_run_and_to_a_single_process() {
    let place = Place::new();
    let models = ["softmax", "cnn", "resnet"].map(|model| (model, "f32"));
    for (model, wire) in models.into_iter().chain([("cnn", "bf16"), ("mlp", "f16")]) {
        let run = |name: &str, placed: &str| -> Vec<String> {
            let name = format!("{model}-{wire}-{name}");
            place
                .run(&format!(
                    "train --name {name} --model {model} --policy full --deterministic --seed \
                     {SEED} --workers {WORKERS} --batch {BATCH} --micro-batches {MICRO_BATCHES} \
                     --rounds {ROUNDS} --lr {LR} --wire {wire} {placed}"
                ))
                .ok();
            let hash = |kind| match kind {
                EventKind::Updated { param_hash, .. } => param_hash,
                _ => None,
            };
            place.events(&name).into_iter().filter_map(|event| hash(event.kind)).collect()
        };
        let expected = reference(model.parse().unwrap(), wire.parse().unwrap());
        assert_eq!(expected.len(), ROUNDS as usize);
        assert_eq!(run("tcp", "--shards 2 --transport tcp"), expected);
        if wire == "f32" {
            assert_eq!(run("one", "--shards 1"), expected);
            assert_eq!(run("two", "--shards 2"), expected);
            assert_eq!(run("again", "--shards 2"), expected);
        } else {
            assert_eq!(run("three", "--shards 3 --transport tcp"), expected);
        }
    }
}
