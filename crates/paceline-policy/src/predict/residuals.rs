//! The pooled distribution of standardised residuals: a decayed product-limit estimate over bins.
//!
//! A censored residual stays at risk up to its bound and then leaves: it never counts as an event there
//! (which would bias the estimate low) nor as a draw (which would drift upward by feedback). Where
//! nothing was ever at risk, the prior's hazard applies.
//!
//! A bin forgets in proportion to the share of residuals that were at risk in it. Beyond the usual cut, where
//! hardly any are, it keeps what an earlier round or an audit showed. If it forgot, the prior's hazard, which
//! is high, would return there and make rounds wait.

use std::sync::LazyLock;

use super::scale::{BINS, position, residual};

/// Bin edges, from the lower edge of the first bin, and the prior's core at each; precomputed because
/// every contribution needs them.
static EDGES: LazyLock<Vec<f64>> =
    LazyLock::new(|| (0..=BINS).map(|b| residual(b as f64)).collect());
static CORES: LazyLock<Vec<f64>> =
    LazyLock::new(|| EDGES.iter().map(|u| 1.0 / (1.0 + (1.7 * u).exp())).collect());
static MIDDLES: LazyLock<Vec<f64>> =
    LazyLock::new(|| EDGES.windows(2).map(|edges| clip(0.5 * (edges[0] + edges[1]))).collect());

/// Pseudo-observations behind the prior's hazard in every bin.
const PRIOR_WEIGHT: f64 = 2.0;
/// The prior's share of residuals that are stalls, of Pareto-like length.
const PRIOR_STALLS: f64 = 0.02;
/// ResidualDistribution are clipped to this size for levels and spreads.
const CLIP: f64 = 3.0;
/// A share of residuals that is none, but for rounding.
const NOBODY: f64 = 1e-9;
/// Least survival probability.
const FLOOR: f64 = 1e-12;

/// Decayed counts of residuals, and the survival function that follows from them.
#[derive(Debug, Clone)]
pub(crate) struct ResidualDistribution {
    /// Residuals since the last [`rebuild`](Self::rebuild): observed, and censored.
    observed: Vec<f64>,
    censored: Vec<f64>,
    /// Decayed events, and residuals at risk, in each bin.
    events: Vec<f64>,
    at_risk: Vec<f64>,
    /// `survival[b]`: probability of a residual beyond the lower edge of bin b.
    survival: Vec<f64>,
    log_survival: Vec<f64>,
    /// Log density in bin b, per unit of the residual.
    log_density: Vec<f64>,
    /// Clipped mean, and clipped mean size, of residuals beyond the lower edge of bin b.
    mean_beyond: Vec<f64>,
    size_beyond: Vec<f64>,
}

impl ResidualDistribution {
    /// The prior, for residuals standardised by `scale` (of log run-times).
    pub(crate) fn new(scale: f64) -> ResidualDistribution {
        let mut new = ResidualDistribution {
            observed: vec![0.0; BINS],
            censored: vec![0.0; BINS],
            events: vec![0.0; BINS],
            at_risk: vec![0.0; BINS],
            survival: vec![1.0; BINS + 1],
            log_survival: vec![0.0; BINS + 1],
            log_density: vec![0.0; BINS],
            mean_beyond: vec![0.0; BINS + 1],
            size_beyond: vec![0.0; BINS + 1],
        };
        new.rebuild(1.0, scale);
        new
    }

    /// Adds an observed residual.
    pub(crate) fn observe(&mut self, u: f64, weight: f64) {
        self.observed[bin(u)] += weight;
    }

    /// Adds a residual known only to be greater than `u`.
    pub(crate) fn censor(&mut self, u: f64, weight: f64) {
        self.censored[bin(u)] += weight;
    }

    /// Takes in what was added since the last call, keeps a share of the rest, and computes the survival
    /// function from the counts and the prior.
    pub(crate) fn rebuild(&mut self, keep: f64, scale: f64) {
        self.take_in(keep);
        let mut prior_before = 1.0;
        let mut survival: f64 = 1.0;
        for b in 0..BINS {
            let (from, to) = (EDGES[b], EDGES[b + 1]);
            let prior = prior_survival(b + 1, scale);
            let prior_hazard = 1.0 - prior / prior_before;
            prior_before = prior;
            let hazard =
                (self.events[b] + PRIOR_WEIGHT * prior_hazard) / (self.at_risk[b] + PRIOR_WEIGHT);
            let next = (survival * (1.0 - hazard.min(1.0))).max(FLOOR);
            self.log_density[b] = ((survival - next).max(FLOOR * 1e-3) / (to - from)).ln();
            survival = next;
            self.survival[b + 1] = survival;
            self.log_survival[b + 1] = survival.ln();
        }
        let (mut sum, mut size) = (0.0, 0.0);
        for b in (0..BINS).rev() {
            let mass = self.survival[b] - self.survival[b + 1];
            let middle = MIDDLES[b];
            sum += mass * middle;
            size += mass * middle.abs();
            let last = if b + 1 == BINS { self.survival[BINS] } else { 0.0 };
            sum += last * CLIP;
            size += last * CLIP;
            self.mean_beyond[b] = sum / self.survival[b];
            self.size_beyond[b] = size / self.survival[b];
        }
        (self.mean_beyond[BINS], self.size_beyond[BINS]) = (CLIP, CLIP);
    }

    fn take_in(&mut self, keep: f64) {
        let all = self.observed.iter().sum::<f64>() + self.censored.iter().sum::<f64>();
        let mut left = all;
        for b in 0..BINS {
            if left <= NOBODY * all {
                break;
            }
            let (observed, censored) = (self.observed[b], self.censored[b]);
            let keeps = keep.powf(left / all);
            // Residuals censored in a bin were at risk in half of it on average.
            let exposed = (left - 0.5 * censored).max(observed);
            self.events[b] = keeps * self.events[b] + observed;
            self.at_risk[b] = keeps * self.at_risk[b] + exposed;
            left -= observed + censored;
        }
        self.observed.fill(0.0);
        self.censored.fill(0.0);
    }

    /// Clipped mean of all, the reference for levels.
    pub(crate) fn mean(&self) -> f64 {
        self.mean_beyond[0]
    }

    /// Clipped mean size of all, the reference for spreads. An uninformative bound thus changes
    /// neither.
    pub(crate) fn size(&self) -> f64 {
        self.size_beyond[0]
    }

    /// Clipped mean and mean size of residuals beyond `u`: the expectation of a censored residual.
    pub(crate) fn beyond(&self, u: f64) -> (f64, f64) {
        let (b, part) = split(u);
        let between = |table: &[f64]| table[b] + part * (table[b + 1] - table[b]);
        (between(&self.mean_beyond), between(&self.size_beyond))
    }

    /// The probability of a residual beyond `u`.
    pub(crate) fn survival(&self, u: f64) -> f64 {
        let (b, part) = split(u);
        self.survival[b] + part * (self.survival[b + 1] - self.survival[b])
    }

    /// The logarithm of [`survival`](Self::survival).
    pub(crate) fn log_survival(&self, u: f64) -> f64 {
        let (b, part) = split(u);
        self.log_survival[b] + part * (self.log_survival[b + 1] - self.log_survival[b])
    }

    /// The logarithm of the density at `u`, smoothed between bins.
    pub(crate) fn log_density(&self, u: f64) -> f64 {
        let at = (position(u) - 0.5).clamp(0.0, (BINS - 1) as f64 - 1e-9);
        let b = at as usize;
        let part = at - b as f64;
        self.log_density[b] + part * (self.log_density[b + 1] - self.log_density[b])
    }
}

/// Limits the influence of a stall on a level or a spread to that of [`CLIP`].
pub(crate) fn clip(u: f64) -> f64 {
    u.clamp(-CLIP, CLIP)
}

fn split(u: f64) -> (usize, f64) {
    let at = position(u);
    let b = (at as usize).min(BINS - 1);
    (b, at - b as f64)
}

fn bin(u: f64) -> usize {
    (position(u) as usize).min(BINS - 1)
}

/// The prior's survival at an edge: a logistic core and a tail that is exponential in log run-time, so
/// Pareto (shape 1) in run-time.
fn prior_survival(edge: usize, scale: f64) -> f64 {
    let u = EDGES[edge];
    let stalled = if u > 0.0 { (-u * scale).exp() } else { 1.0 };
    ((1.0 - PRIOR_STALLS) * CORES[edge] + PRIOR_STALLS * stalled).max(FLOOR)
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::ChaCha8Rng};
    use rand_distr::{Distribution, Exp, Normal};

    use super::*;

    /// The largest difference between two survival functions over the range.
    fn distance(residuals: &ResidualDistribution, truth: impl Fn(f64) -> f64) -> f64 {
        (-400..=400)
            .map(|k| f64::from(k) / 100.0)
            .map(|u| (residuals.survival(u) - truth(u)).abs())
            .fold(0.0, f64::max)
    }

    fn normal_survival(u: f64) -> f64 {
        1.0 - crate::predict::normal::cdf(u)
    }

    #[test]
    fn observed_draws_give_back_their_distribution() {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let normal = Normal::new(0.0, 1.0).expect("a normal");
        let mut residuals = ResidualDistribution::new(0.1);
        (0..20_000).for_each(|_| residuals.observe(normal.sample(&mut rng), 1.0));
        residuals.rebuild(1.0, 0.1);
        let found = distance(&residuals, normal_survival);
        // Kolmogorov's 1 % bound for this many draws is 0.0115; binning adds a little.
        assert!(found < 0.015, "{found}");
    }

    /// Each draw is censored at its own random moment.
    #[test]
    fn heavy_censoring_does_not_bias_what_was_at_risk() {
        let mut rng = ChaCha8Rng::seed_from_u64(8);
        let normal = Normal::new(0.0, 1.0).expect("a normal");
        let wait = Exp::new(0.8).expect("an exponential");
        let mut residuals = ResidualDistribution::new(0.1);
        let mut censored = 0;
        for _ in 0..40_000 {
            let x: f64 = normal.sample(&mut rng);
            let bound = wait.sample(&mut rng) - 1.0;
            if x <= bound {
                residuals.observe(x, 1.0);
            } else {
                residuals.censor(bound, 1.0);
                censored += 1;
            }
        }
        residuals.rebuild(1.0, 0.1);
        assert!(censored > 19_000, "{censored}");
        let found = distance(&residuals, normal_survival);
        assert!(found < 0.03, "{found}");
        // The naive estimate, the distribution of observed draws, is biased low.
        let naive = 1.0
            - residuals.events.iter().take(bin(0.0)).sum::<f64>()
                / residuals.events.iter().sum::<f64>();
        assert!(naive < 0.3, "those seen are short: {naive} of them beyond the median");
    }

    /// A hundred residuals of which one in ten falls into (0, 1] and the rest later; then only the first 10 %
    /// are ever seen again.
    #[test]
    fn what_nobody_reaches_any_more_is_not_forgotten() {
        let mut residuals = ResidualDistribution::new(0.1);
        let tail =
            |residuals: &ResidualDistribution| residuals.survival(20.0) / residuals.survival(2.0);
        (0..10).for_each(|_| residuals.observe(0.5, 1.0));
        (0..90).for_each(|_| residuals.censor(40.0, 1.0));
        residuals.rebuild(0.95, 0.1);
        let before = tail(&residuals);
        for _ in 0..200 {
            (0..10).for_each(|_| residuals.observe(0.5, 1.0));
            (0..90).for_each(|_| residuals.censor(1.0, 1.0));
            residuals.rebuild(0.95, 0.1);
        }
        assert!(before > 0.5 && (tail(&residuals) / before - 1.0).abs() < 1e-6, "{before}");
    }

    #[test]
    fn survival_falls_from_one_and_its_tail_goes_on() {
        let mut residuals = ResidualDistribution::new(0.1);
        residuals.observe(0.0, 100.0);
        residuals.rebuild(1.0, 0.1);
        let mut last = 1.0;
        for k in -200..2000 {
            let now = residuals.survival(f64::from(k) / 10.0);
            assert!(now <= last && now > 0.0);
            last = now;
        }
    }
}
