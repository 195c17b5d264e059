//! Tail curves: the share of run-times beyond multiples of the typical one.

use paceline_trace::Trace;
use serde::Serialize;

use crate::residual::{Residuals, bounds};

/// Points of a curve.
const POINTS: usize = 80;

/// Tail curves of a trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Survivals {
    /// Run-times over the median of their round.
    pub run_times: Survival,
    /// The slowest of a round over its median.
    pub slowest: Survival,
}

/// P(ratio > x) at chosen x, ascending; the last x is the largest ratio seen.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Survival {
    /// (x, the share that is longer).
    pub points: Vec<(f64, f64)>,
}

impl Survival {
    /// Shares fall by equal factors from 1 to one in all.
    pub(crate) fn from_sorted(sorted: &[f64]) -> Survival {
        let n = sorted.len();
        let mut points: Vec<(f64, f64)> = Vec::new();
        for i in 0..POINTS {
            let share = (n as f64).powf(-(i as f64) / (POINTS - 1) as f64);
            let longer = ((n as f64 * share).round() as usize).clamp(1, n.max(1));
            let Some(&x) = sorted.get(n.wrapping_sub(longer)) else { break };
            if points.last().is_none_or(|last| last.0 < x) {
                points.push((x, longer as f64 / n as f64));
            }
        }
        Survival { points }
    }
}

/// Run-times over the median of their round, and each round's slowest over it, sorted.
pub(crate) struct Ratios {
    pub(crate) run_times: Vec<f64>,
    pub(crate) slowest: Vec<f64>,
}

impl Ratios {
    pub(crate) fn from_trace(trace: &Trace, residuals: &Residuals) -> Ratios {
        let mut run_times = Vec::with_capacity(trace.workers().len() * trace.rounds());
        for (round, log) in residuals.medians.iter().enumerate() {
            let scale = (-log).exp();
            run_times.extend(bounds(trace, round).filter(|x| !x.is_nan()).map(|x| x * scale));
        }
        let both = residuals.slowest.iter().zip(&residuals.medians);
        let mut slowest: Vec<f64> =
            both.map(|(s, m)| (s - m).exp()).filter(|ratio| !ratio.is_nan()).collect();
        run_times.sort_unstable_by(f64::total_cmp);
        slowest.sort_unstable_by(f64::total_cmp);
        Ratios { run_times, slowest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pareto_tail_is_a_straight_line_in_logarithms() {
        let n = 100_000;
        let ratios: Vec<f64> =
            (0..n).rev().map(|i| ((f64::from(i) + 0.5) / f64::from(n)).powf(-0.5)).collect();
        let curve = Survival::from_sorted(&ratios);
        assert!(curve.points.len() > 40);
        for (x, share) in &curve.points[..curve.points.len() - 8] {
            assert!((share.ln() / x.ln().max(1e-9) + 2.0).abs() < 0.1 || *x < 1.05, "{x} {share}");
        }
        assert_eq!(curve.points.last().expect("points").1, 1.0 / f64::from(n));
    }

    #[test]
    fn one_value_or_none_gives_a_curve() {
        assert_eq!(Survival::from_sorted(&[2.0]).points, [(2.0, 1.0)]);
        assert_eq!(Survival::from_sorted(&[]).points, []);
    }
}
