//! Time and rate as functions of the count waited for.

use paceline_trace::{Hindsight, Trace};
use serde::Serialize;

use crate::quantile::quantile;

/// Approximate limit on the counts of a curve.
const COUNTS: usize = 512;

/// Most rounds that the quantiles are taken over.
const ROUNDS: usize = 400;

/// Waiting for a fixed count of workers in every round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CutoffPoint {
    /// The count waited for.
    pub count: usize,
    /// Its mean time: the mean over rounds of the order statistic x_(count).
    pub wait: f64,
    /// One round in ten is faster than this.
    pub wait_p10: f64,
    /// One round in ten is slower than this.
    pub wait_p90: f64,
    /// Contributions per unit of time.
    pub rate: f64,
    /// That rate over the rate of full sync: relative samples per second, which is relative progress
    /// under a learning rate that grows with the batch.
    pub against_full: f64,
    /// Progress per second over that of full sync, discounted by gradient noise: c contributions are
    /// worth c / (c + noise), so the last ones add little if noise is small.
    pub progress_against_full: f64,
}

/// The curve, at every count of small clusters and at chosen ones of large clusters: `best` among
/// them. `noise` is the gradient noise scale in contributions.
pub(crate) fn cutoffs(
    trace: &Trace,
    seen: &Hindsight,
    overhead: f64,
    noise: f64,
) -> Vec<CutoffPoint> {
    let n = trace.workers().len();
    let present = Presence::from_trace(trace);
    let counts = chosen(n, seen.best_static_count);
    let quantiles = waits(trace, &counts);
    let progress = |count: usize| {
        let time = present.contributions(count) / seen.rates[count - 1];
        present.sum(count, |c| c / (c + noise)) / time
    };
    let full = progress(n);
    counts
        .iter()
        .zip(quantiles)
        .map(|(&count, (wait_p10, wait_p90))| {
            let rate = seen.rates[count - 1];
            let wait = present.contributions(count) / rate / present.rounds() - overhead;
            CutoffPoint {
                count,
                wait,
                wait_p10,
                wait_p90,
                rate,
                against_full: rate / seen.full_rate,
                progress_against_full: progress(count) / full,
            }
        })
        .collect()
}

/// Numbers of rounds by workers present.
struct Presence {
    rounds_with: Vec<f64>,
}

impl Presence {
    fn from_trace(trace: &Trace) -> Presence {
        let mut rounds_with = vec![0.0; trace.workers().len() + 1];
        for round in 0..trace.rounds() {
            rounds_with[trace.row(round).filter(|cell| cell.bound().is_some()).count()] += 1.0;
        }
        rounds_with[0] = 0.0;
        Presence { rounds_with }
    }

    fn rounds(&self) -> f64 {
        self.rounds_with.iter().sum()
    }

    /// The sum over rounds of a function of the contributions when waiting for `count`.
    fn sum(&self, count: usize, of: impl Fn(f64) -> f64) -> f64 {
        let terms = self.rounds_with.iter().enumerate().filter(|(_, rounds)| **rounds > 0.0);
        terms.map(|(there, rounds)| rounds * of(there.min(count) as f64)).sum()
    }

    fn contributions(&self, count: usize) -> f64 {
        self.sum(count, |c| c)
    }
}

/// All counts of a small cluster; of a large one, evenly spaced ones, the last few, and the best.
fn chosen(n: usize, best: usize) -> Vec<usize> {
    if n <= COUNTS {
        return (1..=n).collect();
    }
    let even = (0..COUNTS / 2).map(|i| 1 + i * (n - 1) / (COUNTS / 2 - 1));
    let last = (0..).map(|i| 1.15f64.powi(i)).take_while(|back| *back < n as f64);
    let mut counts: Vec<usize> =
        even.chain(last.map(|back| n - back as usize)).chain([n - 2, best]).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// The 10 % and 90 % quantiles over rounds of the order statistics `counts`.
fn waits(trace: &Trace, counts: &[usize]) -> Vec<(f64, f64)> {
    let step = trace.rounds().div_ceil(ROUNDS).max(1);
    let mut waits = vec![Vec::new(); counts.len()];
    let mut row = Vec::new();
    for round in (0..trace.rounds()).step_by(step) {
        trace.sorted_row(round, &mut row);
        if row.is_empty() {
            continue;
        }
        for (waits, &count) in waits.iter_mut().zip(counts) {
            waits.push(row[count.min(row.len()) - 1]);
        }
    }
    waits.iter_mut().map(|waits| (quantile(waits, 0.1), quantile(waits, 0.9))).collect()
}

#[cfg(test)]
mod tests {
    use paceline_trace::{Cell, Unit, hindsight};

    use super::*;

    #[test]
    fn waits_are_mean_order_statistics_and_noise_values_the_first_more() {
        let mut trace = Trace::of_size("hand", Unit::Seconds, 3);
        trace.push_round([1.0, 2.0, 10.0].map(Cell::Observed));
        trace.push_round([2.0, 1.0, 2.0].map(Cell::Observed));
        trace.push_round([Cell::Absent, Cell::Absent, Cell::Observed(3.0)]);
        let curve = |noise| cutoffs(&trace, &hindsight(&trace, 0.5, 1), 0.5, noise);
        let waits: Vec<f64> = curve(3.0).iter().map(|cutoff| cutoff.wait).collect();
        for (wait, expected) in waits.iter().zip([5.0 / 3.0, 7.0 / 3.0, 5.0]) {
            assert!((wait - expected).abs() < 1e-12, "{wait} {expected}");
        }
        let ratios =
            |noise| curve(noise).iter().map(|c| c.progress_against_full).collect::<Vec<_>>();
        assert_eq!(ratios(3.0)[2], 1.0);
        assert!(ratios(0.1)[0] > ratios(3.0)[0]);
        // Much noise: every contribution is worth the same, and progress is samples.
        assert!((ratios(1e9)[0] - curve(1e9)[0].against_full).abs() < 1e-6);
    }

    #[test]
    fn chosen_counts_hold_the_ends_and_the_best() {
        for n in [1, 2, 512, 513, 2175, 10_000] {
            let counts = chosen(n, n.div_ceil(3));
            assert!(counts.len() <= 600 && counts.is_sorted());
            for wanted in [1, n, n.div_ceil(3)] {
                assert!(counts.contains(&wanted), "{n}: {wanted}");
            }
        }
    }
}
