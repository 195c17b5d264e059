//! Mixtures of three logistic distributions of a log time: log-logistic in time, so positive, with
//! tails like a power. Density, survival and their gradients are a handful of exponentials.

use crate::math::{exp, ln, sigmoid};

/// Components.
pub(crate) const PARTS: usize = 3;
/// Numbers per mixture: logits, locations, log scales.
pub(crate) const WIDTH: usize = 3 * PARTS;

/// The shares of the components.
pub(crate) fn shares(logits: &[f32]) -> [f32; PARTS] {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut shares = [0.0; PARTS];
    shares.iter_mut().zip(logits).for_each(|(share, &logit)| *share = exp(logit - most));
    let sum: f32 = shares.iter().sum();
    shares.map(|share| share / sum)
}

/// The quantile of a logistic.
pub(crate) fn quantile(at: f32, scale: f32, level: f32) -> f32 {
    let level = level.clamp(1e-6, 1.0 - 1e-6);
    at + scale * ln(level / (1.0 - level))
}

/// Each component's share times its density, or its survival, at `target`; all divided by the
/// largest, whose logarithm is returned too.
fn terms(params: &[f32], target: f32, observed: bool) -> ([f32; PARTS], f32) {
    let mut logs = [0.0; PARTS];
    for (k, log) in logs.iter_mut().enumerate() {
        let v = (target - params[PARTS + k]) * exp(-params[2 * PARTS + k]);
        // ln(1 + e^v), without overflow for either sign of v.
        let softplus = v.max(0.0) + ln(1.0 + exp(-v.abs()));
        *log = params[k] - softplus;
        if observed {
            *log += v - softplus - params[2 * PARTS + k];
        }
    }
    let most = logs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    (logs.map(|log| exp(log - most)), most)
}

fn log_total(params: &[f32]) -> f32 {
    let most = params[..PARTS].iter().copied().fold(f32::NEG_INFINITY, f32::max);
    most + ln(params[..PARTS].iter().map(|&logit| exp(logit - most)).sum())
}

/// The log density at `target`, or the log survival.
pub(crate) fn log_likelihood(params: &[f32], target: f32, observed: bool) -> f32 {
    let (terms, most) = terms(params, target, observed);
    most + ln(terms.iter().sum()) - log_total(params)
}

/// Its gradient by the parameters and by the target.
pub(crate) fn gradient(params: &[f32], target: f32, observed: bool) -> ([f32; WIDTH], f32) {
    let (terms, _) = terms(params, target, observed);
    let sum: f32 = terms.iter().sum();
    let shares = shares(&params[..PARTS]);
    let mut grad = [0.0; WIDTH];
    let mut by_target = 0.0;
    for k in 0..PARTS {
        let belongs = terms[k] / sum;
        let per_scale = exp(-params[2 * PARTS + k]);
        let v = (target - params[PARTS + k]) * per_scale;
        let slope = match observed {
            true => 1.0 - 2.0 * sigmoid(v),
            false => -sigmoid(v),
        };
        grad[k] = belongs - shares[k];
        grad[PARTS + k] = -belongs * slope * per_scale;
        grad[2 * PARTS + k] = -belongs * (slope * v + f32::from(u8::from(observed)));
        by_target += belongs * slope * per_scale;
    }
    (grad, by_target)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: [f32; WIDTH] = [0.2, -1.0, -2.0, 0.1, 0.6, 1.5, -2.0, -1.0, 0.3];

    /// The density is minus the slope of the survival, and it adds up to one.
    #[test]
    fn density_and_survival_belong_together() {
        let mut total = 0.0;
        for k in -4000..8000 {
            let y = k as f32 * 0.002;
            let density = log_likelihood(&PARAMS, y, true).exp();
            total += density * 0.002;
            let [before, after] =
                [-0.01, 0.01].map(|step| log_likelihood(&PARAMS, y + step, false).exp());
            assert!(((before - after) / 0.02 - density).abs() < 0.02, "{y}");
        }
        assert!((total - 1.0).abs() < 1e-2, "{total}");
    }

    #[test]
    fn gradients_are_the_slopes() {
        for observed in [true, false] {
            for target in [-1.0, 0.0, 0.4, 3.0] {
                let (grad, by_target) = gradient(&PARAMS, target, observed);
                let slope = |f: &dyn Fn(f32) -> f32| (f(1e-2) - f(-1e-2)) / 2e-2;
                for (i, found) in grad.into_iter().enumerate() {
                    let expected = slope(&|step| {
                        let mut params = PARAMS;
                        params[i] += step;
                        log_likelihood(&params, target, observed)
                    });
                    assert!((found - expected).abs() < 3e-3, "{i}: {found} {expected}");
                }
                let expected = slope(&|step| log_likelihood(&PARAMS, target + step, observed));
                assert!((by_target - expected).abs() < 2e-2, "{by_target} {expected}");
            }
        }
    }
}
