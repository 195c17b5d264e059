//! What the models reach on which data. The slow ones are ignored by default:
//! `cargo test --release -p paceline-nn --test learning -- --ignored --nocapture`.

use std::path::Path;

use paceline_nn::{Data, DataShape, DataSource, Dataset, Model, ModelSpec, build};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

const BATCH: usize = 128;
const MOMENTUM: f32 = 0.9;

/// SGD with momentum; test accuracy after each epoch.
fn train(spec: ModelSpec, data: &Data, epochs: usize, rate: f32) -> Vec<f64> {
    let mut model = build(spec, data.train.shape()).unwrap();
    let mut params = model.init(1);
    let mut velocity = vec![0.0; params.len()];
    let mut order: Vec<u32> = (0..data.train.len() as u32).collect();
    let mut rng = StdRng::seed_from_u64(1);
    let mut accuracies = Vec::new();
    for _ in 0..epochs {
        order.shuffle(&mut rng);
        for samples in order.chunks(BATCH) {
            step(&mut *model, data, samples, rate, &mut params, &mut velocity);
        }
        model.load(0, &params);
        accuracies.push(model.evaluate(&data.test).accuracy);
    }
    eprintln!("{spec} on {:?}: {accuracies:.4?}", data.train);
    accuracies
}

fn step(
    model: &mut dyn Model,
    data: &Data,
    samples: &[u32],
    rate: f32,
    params: &mut [f32],
    velocity: &mut [f32],
) {
    let mut grad = vec![0.0; params.len()];
    model.load(0, params);
    model.gradient(&data.train, samples, &mut grad);
    let scale = rate / samples.len() as f32;
    for ((param, velocity), grad) in params.iter_mut().zip(velocity).zip(grad) {
        *velocity = MOMENTUM * *velocity + scale * grad;
        *param -= *velocity;
    }
}

fn embedded() -> Data {
    Data::load(&DataSource::Embedded, 1).unwrap()
}

/// Stripes across or down, anywhere, in the red or in the blue of noisy images of 12×12: a class
/// for each of the four.
fn stripes(len: usize, seed: u64) -> Dataset {
    const SIDE: usize = 12;
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut images, mut labels) = (Vec::new(), Vec::new());
    for _ in 0..len {
        let label = rng.random_range(0..4);
        let phase = rng.random_range(0..4);
        for i in 0..3 * SIDE * SIDE {
            let (colour, x, y) = (i % 3, i / 3 % SIDE, i / 3 / SIDE);
            let place = if label % 2 == 0 { x } else { y };
            let lit = colour == label / 2 * 2 && (place + phase) % 4 < 2;
            images.push(rng.random_range(40..120) + if lit { 60 } else { 0 });
        }
        labels.push(label as u8);
    }
    let shape = DataShape { channels: 3, height: SIDE, width: SIDE, classes: 4 };
    Dataset::new("stripes", shape, images, labels).unwrap()
}

#[test]
fn the_residual_network_learns_stripes_and_colours_that_softmax_regression_does_not() {
    let data = Data { train: stripes(1024, 1), test: stripes(256, 2) };
    let resnet = train(ModelSpec::Resnet, &data, 8, 0.05);
    assert!(resnet.last() > Some(&0.9), "{resnet:?}");
    let softmax = train(ModelSpec::Softmax, &data, 8, 0.003);
    assert!(softmax.last() < Some(&0.75), "{softmax:?}");
}

#[test]
fn softmax_regression_stays_far_below_the_cnn_on_the_embedded_set() {
    let accuracies = train(ModelSpec::Softmax, &embedded(), 4, 0.003);
    assert!(accuracies.iter().all(|&accuracy| accuracy < 0.6), "{accuracies:?}");
    // It does learn: guessing gives 0.1.
    assert!(accuracies.last() > Some(&0.25), "{accuracies:?}");
}

#[test]
#[ignore = "about half a minute in release mode"]
fn softmax_regression_stays_below_60_percent_however_long_it_trains() {
    for rate in [0.0003, 0.003, 0.02] {
        let accuracies = train(ModelSpec::Softmax, &embedded(), 60, rate);
        assert!(accuracies.iter().all(|&accuracy| accuracy <= 0.6), "{accuracies:?}");
    }
}

#[test]
#[ignore = "about half a minute in release mode"]
fn the_cnn_passes_90_percent_on_the_embedded_set_and_the_mlp_does_not() {
    let cnn = train(ModelSpec::Cnn, &embedded(), 6, 0.02);
    assert!(cnn.last() > Some(&0.9), "{cnn:?}");
    let mlp = train(ModelSpec::Mlp, &embedded(), 6, 0.02);
    assert!(mlp.last() > Some(&0.6) && mlp.last() < cnn.last(), "{mlp:?}");
}

#[test]
#[ignore = "about two minutes in release mode"]
fn the_residual_network_passes_90_percent_on_the_embedded_set() {
    let resnet = train(ModelSpec::Resnet, &embedded(), 6, 0.05);
    assert!(resnet.last() > Some(&0.9), "{resnet:?}");
}

#[test]
#[ignore = "needs MNIST; about half a minute in release mode"]
fn the_cnn_passes_98_and_a_half_percent_on_mnist() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/datasets/mnist");
    if !dir.is_dir() {
        eprintln!("SKIPPED: no MNIST at {}", dir.display());
        return;
    }
    let data = Data::load(&DataSource::Dir(dir), 1).unwrap();
    let cnn = train(ModelSpec::Cnn, &data, 3, 0.02);
    assert!(cnn.last() > Some(&0.985), "{cnn:?}");
}
