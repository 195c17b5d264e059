//! The optimizers against `torch.optim` 2.x: values that PyTorch computed on a CPU.

use paceline_params::{OptimizerSpec, Update};

const STEPS: u64 = 20;

/// Gradients that are exact in both languages.
fn gradient(step: u64, element: u64) -> f32 {
    ((37 * element + 23 * step) % 64) as f32 / 32.0 - 31.0 / 32.0
}

/// Steps four values with the rate 0.1 and compares them with those of PyTorch.
#[track_caller]
fn check(optimizer: &str, expected: [f32; 4]) {
    let spec: OptimizerSpec = optimizer.parse().unwrap();
    let mut values = [1.0, -0.5, 0.25, 2.0];
    let mut slots = vec![[0.0; 4]; spec.slot_names().len()];
    for step in 1..=STEPS {
        let sums: Vec<f32> = (0..4).map(|element| gradient(step, element)).collect();
        let mut slots: Vec<&mut [f32]> = slots.iter_mut().map(|slot| &mut slot[..]).collect();
        spec.apply(Update { step, lr: 0.1, scale: 1.0 }, &sums, &mut values, &mut slots);
    }
    for (value, expected) in values.iter().zip(expected) {
        let error = (value - expected).abs();
        assert!(error <= 1e-6 * (0.5 + expected.abs()), "{optimizer}: {value} {expected}");
    }
}

#[test]
fn sgd_is_that_of_torch() {
    check("sgd", [1.043_749_7, -0.568_749_9, 0.068_750_02, 1.906_249_9]);
    check("sgd:weight_decay=0.1", [0.859_816_3, -0.474_375_8, 0.037_325_74, 1.541_331_3]);
}

#[test]
fn momentum_is_that_of_torch_from_the_first_step_on() {
    check("momentum:0.9", [1.097_226, -0.771_800_7, -0.637_938_5, 1.867_888_6]);
    check(
        "momentum:0.8,weight_decay=0.1",
        [0.425_569_6, -0.379_354_36, -0.332_645_86, 0.620_285_4],
    );
    check("momentum:0.9,nesterov", [1.131_253_2, -0.813_370_7, -0.730_394_6, 1.787_349_8]);
    check(
        "momentum:0.8,nesterov,weight_decay=0.1",
        [0.451_026_74, -0.396_180_45, -0.379_208_86, 0.546_190_2],
    );
}

#[test]
fn adam_and_adamw_are_those_of_torch() {
    let options = "beta1=0.8,beta2=0.95,eps=1e-3,weight_decay=0.1";
    check("adam", [1.142_252_9, -0.662_374_7, -0.182_988_39, 2.125_771_5]);
    check(&format!("adam:{options}"), [0.795_639_46, -0.494_177_64, -0.154_543_82, 1.500_744_1]);
    check("adamw", [1.119_887_8, -0.650_070_1, -0.181_955_16, 2.082_992_3]);
    check(&format!("adamw:{options}"), [0.924_071_6, -0.547_9, -0.152_363_61, 1.688_444_6]);
}
