//! Fitting, from fresh weights and from the prior.

mod common;

use std::sync::Arc;

use common::whole;
use paceline_model::{Fit, FitOptions, Model, ModelManifest};

fn options(epochs: usize) -> FitOptions {
    FitOptions { epochs, batch: 1, ..FitOptions::default() }
}

#[test]
fn passes_raise_the_held_out_bound_and_a_seed_fixes_them() {
    let rounds = whole("nodes158-stalls:n=24,nodes=2,rounds=320", 1);
    let run = || {
        let mut fit = Fit::new(vec![rounds.clone()], options(6), None);
        let passes: Vec<f64> =
            std::iter::from_fn(|| fit.pass(|_| ())).map(|pass| pass.held_out).collect();
        (passes, fit.best().clone())
    };
    let (passes, weights) = run();
    assert_eq!(passes.len(), 6);
    let best = passes.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    assert!(best > passes[0] + 0.01, "{passes:?}");
    assert_eq!((passes, weights), run());
}

#[test]
fn fitting_stops_when_nothing_gets_better() {
    let rounds = whole("lognormal:n=6,rounds=60", 2);
    let options = FitOptions { epochs: 500, patience: 2, ..FitOptions::default() };
    let mut fit = Fit::new(vec![rounds], options, Some(Model::prior().weights.clone()));
    let passes = std::iter::from_fn(|| fit.pass(|_| ())).count();
    assert!(passes < 400, "{passes}");
}

#[test]
fn several_traces_of_different_size_make_one_model() {
    let sequences = vec![
        whole("nodes16-stalls:n=9,rounds=80", 3),
        whole("lognormal:n=200,rounds=40", 4),
        whole("failure:n=8,rounds=60", 5),
    ];
    let mut fit = Fit::new(sequences, options(2), None);
    let mut done = 0.0;
    assert!(fit.pass(|share| done = share).is_some_and(|pass| pass.held_out.is_finite()));
    assert!((done - 1.0).abs() < 1e-9);
    let manifest = ModelManifest::new(Vec::new(), 0, 0.0);
    let model = Arc::new(Model { weights: fit.best().clone(), manifest });
    assert!(Model::from_bytes(&model.to_bytes().expect("bytes")).is_ok());
}
