//! Trains a model on one thread by SGD with momentum and prints accuracy and speed per epoch.
//!
//! `cargo run --release -p paceline-nn --example train -- cnn embedded 5 128 0.02`

use std::env;
use std::error::Error;
use std::time::Instant;

use paceline_nn::{Data, DataSource, LossSum, ModelSpec, build};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

const MOMENTUM: f32 = 0.9;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [model, source, epochs, batch, rate] = &args[..] else {
        return Err("usage: train MODEL SOURCE EPOCHS BATCH LEARNING-RATE".into());
    };
    let (spec, source): (ModelSpec, DataSource) = (model.parse()?, source.parse()?);
    let (epochs, batch): (u32, usize) = (epochs.parse()?, batch.parse()?);
    let rate: f32 = rate.parse()?;

    let start = Instant::now();
    let data = Data::load(&source, 1)?;
    println!("{:?} and {:?} in {:.0?}", data.train, data.test, start.elapsed());
    let mut model = build(spec, data.train.shape())?;
    let mut params = model.init(1);
    let mut velocity = vec![0.0; params.len()];
    let mut order: Vec<u32> = (0..data.train.len() as u32).collect();
    let mut rng = StdRng::seed_from_u64(1);
    println!("{spec}: {} parameters", params.len());

    for epoch in 1..=epochs {
        order.shuffle(&mut rng);
        let (start, mut sum, mut best) = (Instant::now(), LossSum::default(), 0.0);
        for samples in order.chunks(batch) {
            let start = Instant::now();
            let mut grad = vec![0.0; params.len()];
            model.load(0, &params);
            sum += model.gradient(&data.train, samples, &mut grad);
            best = f64::max(best, samples.len() as f64 / start.elapsed().as_secs_f64());
            let scale = rate / samples.len() as f32;
            for ((param, velocity), grad) in params.iter_mut().zip(&mut velocity).zip(grad) {
                *velocity = MOMENTUM * *velocity + scale * grad;
                *param -= *velocity;
            }
        }
        let speed = f64::from(sum.samples) / start.elapsed().as_secs_f64();
        model.load(0, &params);
        let (train, test) = (sum.mean(), model.evaluate(&data.test));
        println!(
            "epoch {epoch}: train {:.3} {:.2} %, test {:.3} {:.2} %, {speed:.0} samples/s (best batch {best:.0})",
            train.loss,
            100.0 * train.accuracy,
            test.loss,
            100.0 * test.accuracy,
        );
    }
    Ok(())
}
