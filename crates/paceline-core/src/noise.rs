//! The gradient noise scale, from the norms that a round computes anyway (McCandlish et al. 2018; AdaScale).
//!
//! With contributions of bᵢ samples and gradient sums sᵢ that count wᵢ, B = Σ wᵢbᵢ and S = Σ wᵢsᵢ, the
//! expectation of Σ wᵢ|sᵢ|²/bᵢ is B·|G|² + Σ wᵢ·tr Σ, and that of |S|² is B²·|G|² + V·tr Σ with V = Σ wᵢ²bᵢ.
//! So tr Σ̂ = (Σ wᵢ|sᵢ|²/bᵢ − |S|²/B) / (Σ wᵢ − V/B), and |G|²^ = (|S|² − V·tr Σ̂)/B². Where all count 1 the
//! first divisor is one less than the number of contributions.
//!
//! The scale 𝓑 = tr Σ / |G|², in samples, is the ratio of the means of both over the last [`WINDOW`]
//! rounds, weighted by age. A Hampel filter leaves out outliers: rounds more than [`DEVIATIONS`] robust
//! standard deviations from the median of their [`NEIGHBOURS`]. One worker with a norm 100 times as large
//! would otherwise set the learning rate and the cutoff for hundreds of rounds. Neighbours and not the
//! whole window, since gradients shrink as training goes on: an early round is no outlier.

use std::{collections::VecDeque, ops::RangeInclusive};

use serde::{Deserialize, Serialize};

/// Rounds in the means. The oldest weighs a twentieth of the newest.
const WINDOW: usize = 150;
/// Rounds after which a round weighs 1/e. Gradients shrink as training goes on, and old ones must not rule.
const MEMORY: f64 = 50.0;
/// Rounds that a round is compared with.
const NEIGHBOURS: usize = 21;
/// Rounds from which on the median says what is usual.
const ENOUGH: usize = 5;
/// Robust standard deviations from the median beyond which a round is an outlier. Rounds of few
/// contributions scatter widely, and to leave those out would bias the means (at 8 deviations, training to a
/// loss took 3.6 % longer than with the best fixed count, at 15 less than 3 %). A gradient with a norm 10
/// times as large is hundreds of deviations away.
const DEVIATIONS: f64 = 20.0;
/// The standard deviation of a normal distribution, in median absolute deviations.
const PER_MAD: f64 = 1.4826;

/// The norm of one contribution's gradient sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GradientNorm {
    /// Samples behind the sum.
    pub samples: f64,
    /// The weight of its samples in the update: less than 1 for a late contribution.
    pub worth: f64,
    /// The squared norm of the sum.
    pub square: f64,
}

/// The estimates of one round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Estimate {
    /// tr Σ̂.
    trace: f64,
    /// |G|²^: may be negative where noise exceeds the signal.
    square: f64,
    /// Whether either is far from those of its neighbours.
    #[serde(default)]
    is_outlier: bool,
}

impl Estimate {
    /// From a round's contributions and the squared norm of their sum; `None` if they determine no estimate.
    fn from_norms(norms: &[GradientNorm], sum: f64) -> Option<Estimate> {
        let possible = |norm: &GradientNorm| norm.samples > 0.0 && norm.square >= 0.0;
        if norms.len() < 2 || !norms.iter().all(possible) {
            return None;
        }
        let sum_of = |figure: fn(&GradientNorm) -> f64| norms.iter().map(figure).sum::<f64>();
        let total = sum_of(|norm| norm.worth * norm.samples);
        let each = sum_of(|norm| norm.worth * norm.square / norm.samples);
        let varies = sum_of(|norm| norm.worth * norm.worth * norm.samples);
        let trace = (each - sum / total) / (sum_of(|norm| norm.worth) - varies / total);
        let square = sum / (total * total) - varies / total * trace / total;
        let estimate = Estimate { trace, square, is_outlier: false };
        (trace.is_finite() && square.is_finite()).then_some(estimate)
    }
}

/// A running estimate, which a checkpoint keeps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NoiseScale {
    /// The last rounds, oldest first.
    rounds: VecDeque<Estimate>,
    scale: Option<f64>,
}

impl NoiseScale {
    /// Takes in a round's contributions and the squared norm of their sum. A single contribution determines
    /// no estimate, and a round with an impossible norm is skipped.
    pub fn observe(&mut self, norms: &[GradientNorm], sum: f64) {
        let Some(estimate) = Estimate::from_norms(norms, sum) else { return };
        self.rounds.push_back(estimate);
        if self.rounds.len() > WINDOW {
            self.rounds.pop_front();
        }
        self.judge_newest();
        let (trace, square) = self.means();
        // Where noise exceeds the signal, the mean of |G|² can be negative: the last scale stays.
        if trace > 0.0 && square > 0.0 {
            self.scale = Some(trace / square);
        }
    }

    /// Compares the newest rounds with each other. Older rounds keep their last verdict: the next round waits
    /// for this, so it must not look at the whole window.
    fn judge_newest(&mut self) {
        let first = self.rounds.len().saturating_sub(NEIGHBOURS);
        if self.rounds.len() < ENOUGH {
            return;
        }
        let traces = usual_range(self.rounds.range(first..).map(|round| round.trace).collect());
        let squares = usual_range(self.rounds.range(first..).map(|round| round.square).collect());
        for round in self.rounds.range_mut(first..) {
            round.is_outlier = !(traces.contains(&round.trace) && squares.contains(&round.square));
        }
    }

    /// The means of both estimates, without outliers and weighted by age.
    fn means(&self) -> (f64, f64) {
        let (mut trace, mut square, mut weights, mut weight) = (0.0, 0.0, 0.0, 1.0);
        for round in self.rounds.iter().rev() {
            if !round.is_outlier {
                trace += weight * round.trace;
                square += weight * round.square;
                weights += weight;
            }
            weight *= 1.0 - 1.0 / MEMORY;
        }
        (trace / weights, square / weights)
    }

    /// 𝓑 in samples, once there is an estimate.
    pub fn scale(&self) -> Option<f64> {
        self.scale
    }
}

/// The range of these values outside which one is an outlier.
fn usual_range(mut values: Vec<f64>) -> RangeInclusive<f64> {
    let middle = median(&mut values);
    values.iter_mut().for_each(|value| *value = (*value - middle).abs());
    let most = DEVIATIONS * PER_MAD * median(&mut values);
    middle - most..=middle + most
}

/// The upper median. Reorders the values.
fn median(values: &mut [f64]) -> f64 {
    *values.select_nth_unstable_by(values.len() / 2, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};
    use rand_distr::{Distribution, StandardNormal};

    use super::*;

    /// Rounds of six contributions whose noise scale is known: 50 dimensions, a gradient of norm 2,
    /// noise of variance 4 in each dimension, so 𝓑 = 200 / 4.
    struct Known {
        rng: StdRng,
        round: u32,
        /// How many of the six are late and count half.
        late: usize,
        /// Factor on the gradient.
        signal: f64,
    }

    impl Known {
        fn new(late: usize) -> Known {
            Known { rng: StdRng::seed_from_u64(1), round: 0, late, signal: 1.0 }
        }

        /// The norms of a round and of its sum, the last contribution multiplied by `outlier`.
        fn draw(&mut self, outlier: f64) -> (Vec<GradientNorm>, f64) {
            let mut sum = vec![0.0; 50];
            let mut norms = Vec::new();
            for i in 0..6 {
                let samples = 4.0 + f64::from((i as u32 + self.round) % 5);
                let worth = if i < self.late { 0.5 } else { 1.0 };
                let times = if i == 5 { outlier } else { 1.0 };
                let mean = self.signal * (4.0f64 / 50.0).sqrt();
                let gradient = (0..50).map(|_| {
                    let draw: f64 = StandardNormal.sample(&mut self.rng);
                    times * (samples * mean + samples.sqrt() * 2.0 * draw)
                });
                let gradient: Vec<f64> = gradient.collect();
                sum.iter_mut().zip(&gradient).for_each(|(s, g)| *s += worth * g);
                let square = gradient.iter().map(|g| g * g).sum();
                norms.push(GradientNorm { samples, worth, square });
            }
            self.round += 1;
            (norms, sum.iter().map(|s| s * s).sum())
        }

        fn show(&mut self, noise: &mut NoiseScale, rounds: usize) {
            for _ in 0..rounds {
                let (norms, sum) = self.draw(1.0);
                noise.observe(&norms, sum);
            }
        }
    }

    #[track_caller]
    fn check(late: usize) {
        let (mut known, mut noise) = (Known::new(late), NoiseScale::default());
        known.show(&mut noise, 400);
        let found = noise.scale().unwrap();
        assert!((found - 50.0).abs() < 10.0, "{found}");
    }

    #[test]
    fn the_estimate_finds_a_known_noise_scale_whatever_the_batches() {
        check(0);
    }

    #[test]
    fn and_where_some_come_late_and_count_half() {
        check(2);
    }

    /// A gradient 100 times as long, whether it is in the sum or only claimed.
    #[test]
    fn one_outlier_changes_the_scale_by_less_than_a_fifth() {
        for before in [5, 20, 100, 300] {
            for claimed in [false, true] {
                let (mut known, mut noise) = (Known::new(0), NoiseScale::default());
                known.show(&mut noise, before);
                let mut untouched = noise.clone();
                let (norms, sum) = match claimed {
                    true => {
                        let (mut norms, sum) = known.draw(1.0);
                        norms[5].square *= 1e4;
                        (norms, sum)
                    }
                    false => known.draw(100.0),
                };
                noise.observe(&norms, sum);
                for after in 0..200 {
                    let (norms, sum) = known.draw(1.0);
                    noise.observe(&norms, sum);
                    untouched.observe(&norms, sum);
                    let change = noise.scale().unwrap() / untouched.scale().unwrap() - 1.0;
                    let case = format!("{before} rounds before, {after} after, claimed {claimed}");
                    assert!(change.abs() < 0.2, "{case}: {change:+.3}");
                }
            }
        }
    }

    #[test]
    fn an_outlier_in_the_first_rounds_is_forgotten_once_others_are_known() {
        let (mut known, mut noise) = (Known::new(0), NoiseScale::default());
        let (norms, sum) = known.draw(100.0);
        noise.observe(&norms, sum);
        known.show(&mut noise, 30);
        let found = noise.scale().unwrap();
        assert!((found - 50.0).abs() < 25.0, "{found}");
    }

    #[test]
    fn a_lasting_change_is_followed_within_the_window() {
        let (mut known, mut noise) = (Known::new(0), NoiseScale::default());
        known.show(&mut noise, 300);
        known.signal = 4.0;
        known.show(&mut noise, WINDOW);
        let found = noise.scale().unwrap();
        assert!((found - 50.0 / 16.0).abs() < 0.5, "{found}");
    }

    #[test]
    fn one_contribution_or_an_impossible_norm_leaves_the_estimate_as_it_is() {
        let norm = |square| GradientNorm { samples: 4.0, worth: 1.0, square };
        let mut noise = NoiseScale::default();
        noise.observe(&[norm(9.0)], 9.0);
        noise.observe(&[norm(f64::NAN), norm(1.0)], 9.0);
        noise.observe(&[norm(-20.0), norm(20.0)], 9.0);
        assert_eq!(noise.scale(), None);
        noise.observe(&[norm(20.0), norm(20.0)], 60.0);
        let known = noise.scale();
        assert!(known.is_some());
        noise.observe(&[norm(9.0)], f64::INFINITY);
        noise.observe(&[norm(9.0), norm(9.0)], f64::INFINITY);
        noise.observe(&[norm(-1e9), norm(9.0)], 60.0);
        assert_eq!(noise.scale(), known);
    }
}
