//! The common factor of a round, which speeds up or slows down all workers at once.
//!
//! The cut depends on it (a slow round is cut with fewer arrivals), so censoring is independent of the
//! residuals only once it is removed. It maximises the censored likelihood: arrivals count by their
//! density, silent workers by their survival.

use std::sync::LazyLock;

use crate::predict::residuals::ResidualDistribution;

/// One worker in one round: arrived, or silent so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sight {
    /// Log run-time (or log of the silence so far) less the worker's level.
    pub(super) residual: f64,
    /// One over the worker's spread.
    pub(super) per_spread: f64,
    pub(super) observed: bool,
    /// Probability that the worker is at its level.
    pub(super) trust: f64,
}

/// The common factor's evolution from round to round.
#[derive(Debug, Clone)]
pub(super) struct CommonFactor {
    last: f64,
    /// Typical step about the prediction.
    step: f64,
    /// Persistence in use, and how well each candidate has done.
    persistence: usize,
    errors: [f64; PERSISTENCE.len()],
}

const PERSISTENCE: [f64; 4] = [0.0, 0.5, 0.9, 1.0];

impl Default for CommonFactor {
    fn default() -> Self {
        CommonFactor { last: 0.0, step: 0.2, persistence: 2, errors: [0.0; PERSISTENCE.len()] }
    }
}

impl CommonFactor {
    /// The expected factor of the next round.
    pub(super) fn expected(&self) -> f64 {
        PERSISTENCE[self.persistence] * self.last
    }

    /// The most likely factor, given the round so far.
    pub(super) fn fit(&self, sights: &[Sight], residuals: &ResidualDistribution) -> f64 {
        let expected = self.expected();
        let value = |factor: f64| {
            let step = (factor - expected) / self.step;
            let prior = -1.5 * (1.0 + step * step).ln();
            let seen: f64 = sights
                .iter()
                .map(|s| {
                    let u = (s.residual - factor) * s.per_spread;
                    let log = match s.observed {
                        true => residuals.log_density(u),
                        false => residuals.log_survival(u),
                    };
                    s.trust * log.max(-12.0)
                })
                .sum();
            prior + seen
        };
        let mut candidates = vec![expected];
        for step in [1.0, 3.0] {
            candidates.extend([expected - step * self.step, expected + step * self.step]);
        }
        candidates.extend(median(sights));
        let (best, best_value) = candidates
            .into_iter()
            .map(|factor| (factor, value(factor)))
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .expect("there is at least the expected");
        climb(best, best_value, 0.5 * self.step, value)
    }

    pub(super) fn learn(&mut self, factor: f64) {
        for (error, persistence) in self.errors.iter_mut().zip(PERSISTENCE) {
            *error = 0.98 * *error + (factor - persistence * self.last).abs().min(3.0 * self.step);
        }
        let expected = PERSISTENCE[self.persistence] * self.last;
        let step = 1.25 * (factor - expected).abs().min(4.0 * self.step);
        self.step = (self.step + 0.05 * (step - self.step)).max(1e-3);
        self.last = factor;
        self.persistence = (0..PERSISTENCE.len())
            .min_by(|&a, &b| self.errors[a].total_cmp(&self.errors[b]))
            .expect("there are candidates");
    }
}

/// The first round's factor and spread, when no worker has a level: a search over both.
pub(super) fn fit_first(sights: &[Sight]) -> (f64, f64) {
    const SPREADS: [f64; 8] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];
    static SHAPES: LazyLock<Vec<ResidualDistribution>> =
        LazyLock::new(|| SPREADS.map(ResidualDistribution::new).to_vec());
    let Some(center) = median(sights) else { return (0.0, 0.3) };
    let mut best = (f64::NEG_INFINITY, center, 0.1);
    for (spread, residuals) in SPREADS.into_iter().zip(&*SHAPES) {
        let value = |factor: f64| -> f64 {
            let seen = sights.iter().map(|s| {
                let u = (s.residual - factor) / spread;
                match s.observed {
                    true => residuals.log_density(u) - spread.ln(),
                    false => residuals.log_survival(u),
                }
            });
            seen.sum()
        };
        let start = value(center);
        let factor = climb(center, start, spread, value);
        let reached = value(factor);
        if reached > best.0 {
            best = (reached, factor, spread);
        }
    }
    (best.1, best.2)
}

/// Hill-climbing with halving steps: the likelihood is nearly concave about its best candidate.
fn climb(from: f64, value_there: f64, step: f64, value: impl Fn(f64) -> f64) -> f64 {
    let (mut at, mut best, mut step) = (from, value_there, step);
    for _ in 0..6 {
        let (up, down) = (value(at + step), value(at - step));
        if up > best && up >= down {
            (at, best) = (at + step, up);
        } else if down > best {
            (at, best) = (at - step, down);
        } else {
            step *= 0.4;
        }
    }
    at
}

/// The median residual of workers that have arrived.
fn median(sights: &[Sight]) -> Option<f64> {
    let mut seen: Vec<f64> = sights.iter().filter(|s| s.observed).map(|s| s.residual).collect();
    if seen.is_empty() {
        return None;
    }
    let middle = seen.len() / 2;
    Some(*seen.select_nth_unstable_by(middle, f64::total_cmp).1)
}
