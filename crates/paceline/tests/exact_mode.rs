//! Exact mode against a single process that sums the same micro-batches in the same order.

mod common;

use common::Place;
use paceline_core::{EpochOrder, EventKind};
use paceline_nn::{DataSource, Half, ModelSpec, build};
use paceline_params::{OptimizerSpec, ParamHash, Update, fold};
use paceline_worker::micro_batch;

const SEED: u64 = 3;
const WORKERS: u32 = 3;
const BATCH: u32 = 16;
const MICRO_BATCHES: u32 = 2;
const ROUNDS: u32 = 8;
const LR: f32 = 0.05;

/// The hash of the parameters after every round, trained in this process alone.
fn reference(spec: ModelSpec) -> Vec<String> {
    paceline_nn::single_threaded();
    let data = DataSource::Embedded.load(Half::Train, SEED).unwrap();
    let mut model = build(spec, data.shape()).unwrap();
    let mut params = model.init(SEED);
    let optimizer = OptimizerSpec::MOMENTUM;
    let mut momentum = vec![0.0; params.len()];
    let order = EpochOrder::new(SEED, 0, data.len() as u32);
    let mut hashes = Vec::new();
    for round in 0..ROUNDS {
        model.load(&params);
        let contributions: Vec<Vec<f32>> = (0..WORKERS)
            .map(|worker| {
                let start = (round * WORKERS + worker) * BATCH;
                let samples = order.samples(start, start + BATCH).unwrap();
                let mut gradient = vec![0.0; params.len()];
                for part in 0..MICRO_BATCHES {
                    let micro = micro_batch(samples, part, MICRO_BATCHES);
                    model.gradient(&data, micro, &mut gradient);
                }
                gradient
            })
            .collect();
        let mut sum = vec![0.0; params.len()];
        let sources: Vec<&[f32]> = contributions.iter().map(Vec::as_slice).collect();
        fold(&mut sum, true, &sources);
        let scale = (1.0 / f64::from(WORKERS * BATCH)) as f32;
        let update = Update { step: u64::from(round) + 1, lr: LR, scale };
        optimizer.apply(update, &sum, &mut params, &mut [&mut momentum]);
        hashes.push(ParamHash::of(0, &params).to_string());
    }
    hashes
}

#[test]
fn exact_mode_is_bit_identical_from_run_to_run_and_to_a_single_process() {
    let place = Place::new();
    for model in ["softmax", "cnn", "resnet"] {
        let run = |name: &str, placed: &str| -> Vec<String> {
            let name = format!("{model}-{name}");
            place
                .run(&format!(
                    "train --name {name} --model {model} --policy full --deterministic --seed \
                     {SEED} --workers {WORKERS} --batch {BATCH} --micro-batches {MICRO_BATCHES} \
                     --rounds {ROUNDS} --lr {LR} {placed}"
                ))
                .ok();
            let hash = |kind| match kind {
                EventKind::Updated { param_hash, .. } => param_hash,
                _ => None,
            };
            place.events(&name).into_iter().filter_map(|event| hash(event.kind)).collect()
        };
        let expected = reference(model.parse().unwrap());
        assert_eq!(expected.len(), ROUNDS as usize);
        assert_eq!(run("one", "--shards 1"), expected);
        assert_eq!(run("two", "--shards 2"), expected);
        assert_eq!(run("again", "--shards 2"), expected);
        assert_eq!(run("tcp", "--shards 2 --transport tcp"), expected);
    }
}
