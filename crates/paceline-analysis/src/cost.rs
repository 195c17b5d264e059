//! The cost of waiting for the slowest, and the most that a cutoff could save.

use paceline_trace::{Hindsight, Trace};
use serde::Serialize;

use crate::residual::bounds;

/// Full sync against the best rates in hindsight. Rates are contributions per unit of time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SyncCost {
    /// The share of their time that workers idle under full sync: 1 − mean(x) / mean(max).
    pub idle: f64,
    /// Rate of waiting for all.
    pub full_rate: f64,
    /// The best fixed cutoff.
    pub fixed: Fixed,
    /// The best cutoff of every round.
    pub oracle: Oracle,
}

/// The best fixed cutoff, in hindsight.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fixed {
    /// The count to wait for.
    pub count: usize,
    /// Its rate.
    pub rate: f64,
    /// Its rate over that of full sync.
    pub gain: f64,
}

/// The best cutoff of every round, in hindsight: no cutoff of whole workers can do better.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Oracle {
    /// Mean count that it waits for.
    pub mean_count: f64,
    /// Its rate.
    pub rate: f64,
    /// Its rate over that of full sync.
    pub gain: f64,
    /// Its rate over that of the best fixed cutoff.
    pub gain_over_fixed: f64,
}

impl SyncCost {
    pub(crate) fn from_hindsight(trace: &Trace, seen: &Hindsight) -> SyncCost {
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 1.0 };
        let counts = seen.oracle_counts.iter().map(|&count| count as f64);
        SyncCost {
            idle: idle(trace),
            full_rate: seen.full_rate,
            fixed: Fixed {
                count: seen.best_static_count,
                rate: seen.best_static_rate,
                gain: ratio(seen.best_static_rate, seen.full_rate),
            },
            oracle: Oracle {
                mean_count: counts.sum::<f64>() / seen.oracle_counts.len().max(1) as f64,
                rate: seen.oracle_rate,
                gain: ratio(seen.oracle_rate, seen.full_rate),
                gain_over_fixed: ratio(seen.oracle_rate, seen.best_static_rate),
            },
        }
    }
}

/// The share of time that workers idle when all wait for the slowest; absent workers do not wait.
fn idle(trace: &Trace) -> f64 {
    let (mut working, mut waiting) = (0.0, 0.0);
    for round in 0..trace.rounds() {
        let (mut count, mut slowest) = (0.0, 0.0f64);
        for x in bounds(trace, round).filter(|x| !x.is_nan()) {
            working += x;
            slowest = slowest.max(x);
            count += 1.0;
        }
        waiting += count * slowest;
    }
    if waiting > 0.0 { 1.0 - working / waiting } else { 0.0 }
}
