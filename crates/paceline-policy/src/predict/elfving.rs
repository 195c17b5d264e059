//! `elfving`: iid normal run-times, the baseline of BDSGD. Mean and spread by censored-normal
//! maximum likelihood over a window; nothing is predicted below the smallest time seen.

use std::collections::VecDeque;

use paceline_core::{Round, RunTime, WorkerId};

use super::{
    Predictor,
    normal::{cdf, hazard},
};
use crate::scene::Scene;

/// Rounds in the window.
const WINDOW: usize = 20;
/// Steps of expectation-maximisation; each round starts from the last result.
const STEPS: usize = 20;

/// Sufficient statistics of one round for a normal likelihood.
#[derive(Debug, Clone, Default)]
struct RoundSums {
    observed: f64,
    sum: f64,
    square: f64,
    /// Lower bounds, each with its number of workers.
    censored: Vec<(f64, f64)>,
}

/// The normal fit.
#[derive(Default)]
pub struct Elfving {
    window: VecDeque<RoundSums>,
    mean: f64,
    deviation: f64,
    smallest: f64,
}

impl Elfving {
    /// EM for a normal with right-censored draws, which count by their conditional moments.
    fn fit(&mut self) {
        let total: f64 = self
            .window
            .iter()
            .map(|s| s.observed + s.censored.iter().map(|c| c.1).sum::<f64>())
            .sum();
        for _ in 0..STEPS {
            let (mut sum, mut square) = (0.0, 0.0);
            for round in &self.window {
                sum += round.sum;
                square += round.square;
                for &(bound, count) in &round.censored {
                    let z = (bound - self.mean) / self.deviation;
                    let h = hazard(z);
                    let mean = self.mean + self.deviation * h;
                    let variance = self.deviation.powi(2) * (1.0 + z * h - h * h).max(1e-9);
                    sum += count * mean;
                    square += count * (variance + mean * mean);
                }
            }
            self.mean = sum / total;
            let variance = square / total - self.mean * self.mean;
            self.deviation = variance.max((1e-6 * self.mean).powi(2)).sqrt();
        }
    }
}

impl Predictor for Elfving {
    fn name(&self) -> &'static str {
        "elfving"
    }

    fn look(&mut self, _scene: &Scene) {}

    fn survival(&self, _worker: WorkerId, log_elapsed: f64) -> f64 {
        let elapsed = log_elapsed.exp();
        match self.window.is_empty() || elapsed < self.smallest {
            true => 1.0,
            false => 1.0 - cdf((elapsed - self.mean) / self.deviation),
        }
    }

    fn learn(&mut self, _round: Round, run_times: &[(WorkerId, RunTime)]) {
        let mut sums = RoundSums::default();
        for &(_, time) in run_times {
            let x = time.bound().as_secs_f64();
            if time.is_censored() {
                match sums.censored.last_mut() {
                    Some((bound, count)) if *bound == x => *count += 1.0,
                    _ => sums.censored.push((x, 1.0)),
                }
                continue;
            }
            sums.observed += 1.0;
            sums.sum += x;
            sums.square += x * x;
            let first = self.window.is_empty() && sums.observed == 1.0;
            self.smallest = if first { x } else { self.smallest.min(x) };
        }
        if sums.observed == 0.0 {
            return;
        }
        if self.window.is_empty() {
            self.mean = sums.sum / sums.observed;
            self.deviation = 0.1 * self.mean;
        }
        self.window.push_back(sums);
        if self.window.len() > WINDOW {
            self.window.pop_front();
        }
        self.fit();
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::ChaCha8Rng};
    use rand_distr::{Distribution, Normal};

    use super::*;
    use crate::predict::show;

    /// Mean and deviation come back although the upper 40 % are never seen.
    #[test]
    fn a_censored_normal_is_recovered() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let normal = Normal::new(2.0, 0.3).expect("a normal");
        let mut elfving = Elfving::default();
        for round in 0..WINDOW as u64 {
            let times: Vec<f64> = (0..200).map(|_| normal.sample(&mut rng)).collect();
            show(&mut elfving, round, &times, 2.076);
        }
        assert!((elfving.mean - 2.0).abs() < 0.02, "mean {}", elfving.mean);
        assert!((elfving.deviation - 0.3).abs() < 0.02, "deviation {}", elfving.deviation);
    }
}
