//! The gradient noise scale, from norms that a round has anyway (McCandlish et al. 2018; AdaScale).
//!
//! With contributions of bᵢ samples and gradient sums sᵢ that count wᵢ, B = Σ wᵢbᵢ and S = Σ wᵢsᵢ, the
//! expectation of Σ wᵢ|sᵢ|²/bᵢ is B·|G|² + Σ wᵢ·tr Σ, and that of |S|² is B²·|G|² + V·tr Σ with V = Σ wᵢ²bᵢ.
//! So tr Σ̂ = (Σ wᵢ|sᵢ|²/bᵢ − |S|²/B) / (Σ wᵢ − V/B), and |G|²^ = (|S|² − V·tr Σ̂)/B². Both are smoothed, then
//! divided: 𝓑 = tr Σ / |G|², in samples. Where all count 1 the first divisor is one less than there are.

use serde::{Deserialize, Serialize};

/// Rounds that the estimate remembers.
const MEMORY: f64 = 50.0;

/// One contribution of a round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// Samples behind its sum.
    pub samples: f64,
    /// What of it counts: less than 1 for one that came late.
    pub worth: f64,
    /// The squared norm of its sum.
    pub square: f64,
}

/// A running estimate, to be kept with a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NoiseScale {
    trace: f64,
    square: f64,
    scale: Option<f64>,
}

impl NoiseScale {
    /// A round's contributions, and the squared norm of their sum. One contribution alone tells nothing.
    pub fn observe(&mut self, parts: &[Part], sum: f64) {
        if parts.len() < 2 || !sum.is_finite() {
            return;
        }
        let sum_of = |figure: fn(&Part) -> f64| parts.iter().map(figure).sum::<f64>();
        let total = sum_of(|part| part.worth * part.samples);
        let each = sum_of(|part| part.worth * part.square / part.samples);
        let varies = sum_of(|part| part.worth * part.worth * part.samples);
        let trace = (each - sum / total) / (sum_of(|part| part.worth) - varies / total);
        let square = sum / (total * total) - varies / total * trace / total;
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
        check(0);
    }

    #[test]
    fn and_where_some_come_late_and_count_half() {
        check(2);
    }

    /// Of six contributions so many are late.
    fn check(late: usize) {
        // 50 dimensions, gradient of norm 2, noise of variance 4 in each: 𝓑 = 200 / 4.
        let mut rng = StdRng::seed_from_u64(1);
        let mut noise = NoiseScale::default();
        for round in 0..400 {
            let batches: Vec<f64> = (0..6).map(|i| 4.0 + f64::from((i + round) % 5)).collect();
            let mut sum = vec![0.0; 50];
            let parts: Vec<Part> = batches
                .iter()
                .enumerate()
                .map(|(i, &b)| {
                    let worth = if i < late { 0.5 } else { 1.0 };
                    let part: Vec<f64> = (0..50)
                        .map(|_| {
                            let draw: f64 = StandardNormal.sample(&mut rng);
                            b * 4.0f64.sqrt() / 50.0f64.sqrt() + b.sqrt() * 2.0 * draw
                        })
                        .collect();
                    sum.iter_mut().zip(&part).for_each(|(s, p)| *s += worth * p);
                    Part { samples: b, worth, square: part.iter().map(|p| p * p).sum() }
                })
                .collect();
            noise.observe(&parts, sum.iter().map(|s| s * s).sum());
        }
        let found = noise.scale().unwrap();
        assert!((found - 50.0).abs() < 10.0, "{found}");
    }

    #[test]
    fn one_contribution_or_nonsense_leaves_the_estimate_as_it_is() {
        let part = |square| Part { samples: 4.0, worth: 1.0, square };
        let mut noise = NoiseScale::default();
        noise.observe(&[part(9.0)], 9.0);
        noise.observe(&[part(f64::NAN), part(1.0)], 9.0);
        assert_eq!(noise.scale(), None);
        noise.observe(&[part(20.0), part(20.0)], 60.0);
        let known = noise.scale();
        assert!(known.is_some());
        noise.observe(&[part(9.0)], f64::INFINITY);
        assert_eq!(noise.scale(), known);
    }
}
