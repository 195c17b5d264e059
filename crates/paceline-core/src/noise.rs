//! The gradient noise scale, from norms that a round has anyway (McCandlish et al. 2018; AdaScale).
//!
//! With k contributions of bᵢ samples and gradient sums sᵢ, B = Σ bᵢ and S = Σ sᵢ:
//! tr Σ̂ = (Σ |sᵢ|²/bᵢ − |S|²/B) / (k − 1), and |G|²^ = |S|²/B² − tr Σ̂/B. Both are smoothed, then divided:
//! 𝓑 = tr Σ / |G|², in samples.

use serde::{Deserialize, Serialize};

/// Rounds that the estimate remembers.
const MEMORY: f64 = 50.0;

/// A running estimate, to be kept with a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NoiseScale {
    trace: f64,
    square: f64,
    scale: Option<f64>,
}

impl NoiseScale {
    /// A round's contributions, each with its samples and the squared norm of its sum, and the
    /// squared norm of their sum. One contribution alone tells nothing.
    pub fn observe(&mut self, parts: &[(f64, f64)], sum: f64) {
        let total: f64 = parts.iter().map(|(weight, _)| weight).sum();
        if parts.len() < 2 || !sum.is_finite() {
            return;
        }
        let each: f64 = parts.iter().map(|(weight, square)| square / weight).sum();
        let trace = (each - sum / total) / (parts.len() - 1) as f64;
        let square = sum / (total * total) - trace / total;
        if !trace.is_finite() || !square.is_finite() {
            return;
        }
        let keep = 1.0 - 1.0 / MEMORY;
        self.trace = keep * self.trace + trace;
        self.square = keep * self.square + square;
        // Where noise drowns the signal the estimate of it can be negative: the last one stays.
        if self.trace > 0.0 && self.square > 0.0 {
            self.scale = Some(self.trace / self.square);
        }
    }

    /// 𝓑 in samples, once something is known of it.
    pub fn scale(&self) -> Option<f64> {
        self.scale
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};
    use rand_distr::{Distribution, StandardNormal};

    use super::*;

    #[test]
    fn the_estimate_finds_a_known_noise_scale_whatever_the_batches() {
        // 50 dimensions, gradient of norm 2, noise of variance 4 in each: 𝓑 = 200 / 4.
        let mut rng = StdRng::seed_from_u64(1);
        let mut noise = NoiseScale::default();
        for round in 0..400 {
            let batches: Vec<f64> = (0..6).map(|i| 4.0 + f64::from((i + round) % 5)).collect();
            let mut sum = vec![0.0; 50];
            let parts: Vec<(f64, f64)> = batches
                .iter()
                .map(|&b| {
                    let part: Vec<f64> = (0..50)
                        .map(|_| {
                            let draw: f64 = StandardNormal.sample(&mut rng);
                            b * 4.0f64.sqrt() / 50.0f64.sqrt() + b.sqrt() * 2.0 * draw
                        })
                        .collect();
                    sum.iter_mut().zip(&part).for_each(|(s, p)| *s += p);
                    (b, part.iter().map(|p| p * p).sum())
                })
                .collect();
            noise.observe(&parts, sum.iter().map(|s| s * s).sum());
        }
        let found = noise.scale().unwrap();
        assert!((found - 50.0).abs() < 10.0, "{found}");
    }

    #[test]
    fn one_contribution_or_nonsense_leaves_the_estimate_as_it_is() {
        let mut noise = NoiseScale::default();
        noise.observe(&[(4.0, 9.0)], 9.0);
        noise.observe(&[(4.0, f64::NAN), (4.0, 1.0)], 9.0);
        assert_eq!(noise.scale(), None);
        noise.observe(&[(4.0, 20.0), (4.0, 20.0)], 60.0);
        let known = noise.scale();
        assert!(known.is_some());
        noise.observe(&[(4.0, 9.0)], f64::INFINITY);
        assert_eq!(noise.scale(), known);
    }
}
