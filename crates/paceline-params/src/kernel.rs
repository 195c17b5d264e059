//! The loops that apply an update, one pass each, written so that they vectorise.

use crate::Update;

pub(crate) fn mean(update: Update, grad_sum: &[f32], values: &mut [f32]) {
    for (x, sum) in values.iter_mut().zip(grad_sum) {
        *x = sum * update.scale;
    }
}

pub(crate) fn sgd(update: Update, weight_decay: f32, grad_sum: &[f32], values: &mut [f32]) {
    let Update { lr, scale, .. } = update;
    for (x, sum) in values.iter_mut().zip(grad_sum) {
        *x -= lr * (sum * scale + weight_decay * *x);
    }
}

/// The coefficients of momentum.
pub(crate) struct Momentum {
    pub(crate) momentum: f32,
    pub(crate) weight_decay: f32,
}

impl Momentum {
    pub(crate) fn apply<const NESTEROV: bool>(
        &self,
        update: Update,
        grad_sum: &[f32],
        values: &mut [f32],
        velocity: &mut [f32],
    ) {
        let Update { lr, scale, .. } = update;
        let &Momentum { momentum, weight_decay } = self;
        for ((x, u), sum) in values.iter_mut().zip(velocity).zip(grad_sum) {
            let grad = sum * scale + weight_decay * *x;
            *u = momentum * *u + grad;
            *x -= lr * if NESTEROV { grad + momentum * *u } else { *u };
        }
    }
}

/// The coefficients of one update of Adam or AdamW, worked out in double precision once per call.
pub(crate) struct Adam {
    scale: f32,
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    eps: f32,
    weight_decay: f32,
    /// The share of each value that decoupled decay keeps.
    keep: f32,
    step_size: f32,
    root_correction: f32,
}

impl Adam {
    pub(crate) fn new(update: Update, beta1: f32, beta2: f32, eps: f32, weight_decay: f32) -> Self {
        let lr = f64::from(update.lr);
        let step = update.step.max(1);
        let correction1 = 1.0 - power(f64::from(beta1), step);
        let correction2 = 1.0 - power(f64::from(beta2), step);
        Adam {
            scale: update.scale,
            beta1,
            one_minus_beta1: (1.0 - f64::from(beta1)) as f32,
            beta2,
            one_minus_beta2: (1.0 - f64::from(beta2)) as f32,
            eps,
            weight_decay,
            keep: (1.0 - lr * f64::from(weight_decay)) as f32,
            step_size: (lr / correction1) as f32,
            root_correction: (1.0 / correction2.sqrt()) as f32,
        }
    }

    /// Decay is decoupled from the gradient, or added to it.
    pub(crate) fn apply<const DECOUPLED: bool>(
        &self,
        grad_sum: &[f32],
        values: &mut [f32],
        mean: &mut [f32],
        square: &mut [f32],
    ) {
        for (((x, m), v), sum) in values.iter_mut().zip(mean).zip(square).zip(grad_sum) {
            let (grad, kept) = match DECOUPLED {
                true => (sum * self.scale, *x * self.keep),
                false => (sum * self.scale + self.weight_decay * *x, *x),
            };
            *m = self.beta1 * *m + self.one_minus_beta1 * grad;
            *v = self.beta2 * *v + self.one_minus_beta2 * grad * grad;
            let denominator = v.sqrt() * self.root_correction + self.eps;
            *x = kept - self.step_size * *m / denominator;
        }
    }
}

/// `base` to the `exponent` by squaring: the same bits everywhere, which `powi` does not promise.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut product = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::OptimizerSpec;

    /// Values and slots of one element, updated in double precision by the textbook formula.
    #[derive(Clone, Copy)]
    struct Reference {
        x: f64,
        slots: [f64; 2],
    }

    impl Reference {
        fn step(&mut self, spec: &OptimizerSpec, update: Update, sum: f32) {
            let (lr, grad) = (f64::from(update.lr), f64::from(sum) * f64::from(update.scale));
            let [u, v] = &mut self.slots;
            match *spec {
                OptimizerSpec::Sgd { weight_decay } => {
                    self.x -= lr * (grad + f64::from(weight_decay) * self.x);
                }
                OptimizerSpec::Momentum { momentum, nesterov, weight_decay } => {
                    let momentum = f64::from(momentum);
                    let grad = grad + f64::from(weight_decay) * self.x;
                    *u = momentum * *u + grad;
                    self.x -= lr * if nesterov { grad + momentum * *u } else { *u };
                }
                OptimizerSpec::Adam { beta1, beta2, eps, weight_decay }
                | OptimizerSpec::AdamW { beta1, beta2, eps, weight_decay } => {
                    let decay = f64::from(weight_decay) * self.x;
                    let decoupled = matches!(spec, OptimizerSpec::AdamW { .. });
                    let grad = if decoupled { grad } else { grad + decay };
                    let (beta1, beta2) = (f64::from(beta1), f64::from(beta2));
                    let steps = update.step as i32;
                    *u = beta1 * *u + (1.0 - beta1) * grad;
                    *v = beta2 * *v + (1.0 - beta2) * grad * grad;
                    let mean = *u / (1.0 - beta1.powi(steps));
                    let square = *v / (1.0 - beta2.powi(steps));
                    self.x -= if decoupled { lr * decay } else { 0.0 };
                    self.x -= lr * mean / (square.sqrt() + f64::from(eps));
                }
                OptimizerSpec::Mean => self.x = grad,
            }
        }
    }

    fn specs() -> Vec<OptimizerSpec> {
        let texts = [
            "sgd",
            "sgd:weight_decay=0.1",
            "momentum",
            "momentum:0.5,weight_decay=0.1",
            "momentum:0.8,nesterov,weight_decay=0.01",
            "adam",
            "adam:beta1=0.5,beta2=0.9,eps=1e-3,weight_decay=0.5",
            "adamw",
            "adamw:beta1=0.5,beta2=0.9,eps=1e-3,weight_decay=0.5",
            "mean",
        ];
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// Steps `values` by `sums` with the kernel and the reference, and compares.
    fn check(spec: &OptimizerSpec, values: &[f32], sums: &[Vec<f32>]) -> Result<(), TestCaseError> {
        let mut slots = [vec![0.0; values.len()], vec![0.0; values.len()]];
        let mut fast = values.to_vec();
        let mut exact: Vec<_> =
            values.iter().map(|&x| Reference { x: f64::from(x), slots: [0.0; 2] }).collect();
        for (step, sums) in (1..).zip(sums) {
            let update = Update { step, lr: 0.05, scale: 0.25 };
            let mut slots: Vec<&mut [f32]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
            let count = spec.slot_names().len();
            spec.apply(update, sums, &mut fast, &mut slots[..count]);
            for (exact, &sum) in exact.iter_mut().zip(sums) {
                exact.step(spec, update, sum);
            }
        }
        for (&fast, exact) in fast.iter().zip(exact) {
            let error = (f64::from(fast) - exact.x).abs();
            prop_assert!(error <= 2e-5 * (1.0 + exact.x.abs()), "{}: {} {}", spec, fast, exact.x);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn every_kernel_follows_the_textbook(
            start in prop::collection::vec(-2f32..2.0, 37),
            sums in prop::collection::vec(prop::collection::vec(-4f32..4.0, 37), 1..8),
        ) {
            for spec in specs() {
                check(&spec, &start, &sums)?;
            }
        }
    }

    /// Algorithm 2 of Loshchilov and Hutter from x = 1 with gradients 0.5, -0.25 and 1, computed
    /// independently of this code.
    #[test]
    fn adamw_gives_known_values() {
        let expected = [0.899, 0.871_467_3, 0.804_784_7];
        let (mut x, mut m, mut v) = ([1.0], [0.0], [0.0]);
        for ((step, sum), expected) in (1..).zip([0.5, -0.25, 1.0]).zip(expected) {
            let update = Update { step, lr: 0.1, scale: 1.0 };
            OptimizerSpec::ADAMW.apply(update, &[sum], &mut x, &mut [&mut m, &mut v]);
            assert!((x[0] - expected).abs() < 1e-6, "step {step}: {}", x[0]);
        }
    }

    #[test]
    fn a_mean_is_the_scaled_sum_whatever_was_there() {
        let mut values = [f32::NAN, 7.0];
        mean(Update { step: 1, lr: 0.0, scale: 0.5 }, &[3.0, -1.0], &mut values);
        assert_eq!(values, [1.5, -0.5]);
    }

    #[test]
    fn powers_match_the_library() {
        for exponent in [0, 1, 2, 3, 10, 1000, 123_456] {
            let expected = 0.999f64.powi(exponent as i32);
            // Errors of squaring grow with the exponent.
            assert!((power(0.999, exponent) - expected).abs() <= 1e-9 * expected);
        }
        assert_eq!(power(0.9, u64::MAX), 0.0);
    }
}
