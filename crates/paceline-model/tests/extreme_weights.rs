//! Weights as large as a model file may have them: predictions may be useless, but nothing panics.

mod common;

use std::sync::Arc;

use common::{seen, trace};
use paceline_model::{Model, ModelError, Tracker, TrackerOptions};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};

/// The largest weight that a model file may have.
const LARGEST: f32 = 1e3;

/// A model with weights from `weight`, as it comes back from a file.
fn model(mut weight: impl FnMut() -> f32) -> Result<Arc<Model>, ModelError> {
    let mut model = Model::clone(&Model::prior());
    let values = model.weights.tensors.iter_mut().flat_map(|tensor| &mut tensor.values);
    values.for_each(|value| *value = weight());
    Model::from_bytes(&model.to_bytes()?).map(Arc::new)
}

fn follow(model: &Arc<Model>, options: TrackerOptions, seed: u64) {
    let trace = trace("nodes16-stalls:n=12,nodes=3,p=0.05,rounds=40", seed);
    let mut tracker = Tracker::new(model, options);
    let mut chances = [0.0; 5];
    for round in 0..trace.rounds() {
        let seen = seen(&trace, round, if round % 3 == 0 { 1.0 } else { 0.7 });
        let all = seen.workers.iter().copied().zip(seen.log_times.iter().copied());
        let outlook = tracker.outlook_mut();
        outlook.look(all.clone().take(4), all.skip(4));
        outlook.doubt();
        outlook.expect();
        tracker.learn(round as u64, &seen);
        for worker in [0, 5, 11, 40] {
            tracker.outlook().survival(worker, &[-30.0, -1.0, 0.0, 1.0, 30.0], &mut chances);
            assert!(chances.iter().all(|p| (-1e-3..=1.001).contains(p)), "{round}: {chances:?}");
        }
        tracker.late(round as u64, 3, 0.5);
        assert!(
            tracker.outlook().draw(&[0, 11, 40], 4, seed).iter().flatten().all(|y| !y.is_nan())
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every weight has either sign, and a size that is uniform over six powers of ten.
    #[test]
    fn no_weights_that_a_file_may_have_make_a_model_panic(
        seed: u64,
        frozen: bool,
        impute: bool,
    ) {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let weight = || {
            let size = LARGEST * 10f32.powf(-rng.random_range(0.0..6.0f32));
            if rng.random() { size } else { -size }
        };
        follow(&model(weight).expect("a model"), TrackerOptions { frozen, impute }, seed);
    }
}

#[test]
fn the_largest_weights_make_no_model_panic() {
    for signs in [[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]] {
        let mut signs = signs.into_iter().cycle();
        let weight = || LARGEST * signs.next().expect("a cycle");
        follow(&model(weight).expect("a model"), TrackerOptions::default(), 1);
    }
}

#[test]
fn larger_weights_are_refused() {
    let error = model(|| 1.01 * LARGEST).expect_err("weights beyond the bound").to_string();
    assert!(error.contains("tensor worker.gates.weight has 1010.0, beyond ±1000"), "{error}");
}
