//! Rates in hindsight: full sync, every fixed count, the best count of each round.

use crate::Trace;

/// Rates in hindsight, in contributions per second over the whole trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Hindsight {
    /// Rate of waiting for all.
    pub full_rate: f64,
    /// `rates[c - 1]`: rate of c contributions per round, or of all that were present. Where the clock is
    /// coarse, several workers arrive at the same moment, and a round that waits for c gets more than c.
    pub rates: Vec<f64>,
    /// The fixed count with the best rate.
    pub best_static_count: usize,
    /// Its rate.
    pub best_static_rate: f64,
    /// The best rate of any choice of counts, one per round.
    pub oracle_rate: f64,
    /// The counts that give it.
    pub oracle_counts: Vec<usize>,
}

/// Computes rates in hindsight, with `overhead` seconds between a close and the next round and at least
/// `quorum` contributions per round. A lower bound counts as the run-time. Rounds with fewer workers
/// than the quorum are left out.
///
/// The oracle maximises Σc / Σ(x_(c) + overhead) over one count per round. That is a ratio of sums, so
/// the best counts maximise c − λ·x_(c) at the λ that is the best rate itself; Dinkelbach's
/// iteration (counts from λ, λ from counts) rises to it and stops when it no longer does.
pub fn hindsight(trace: &Trace, overhead: f64, quorum: usize) -> Hindsight {
    let n = trace.workers().len();
    let rows: Vec<Vec<f64>> = (0..trace.rounds())
        .map(|round| {
            let mut sorted = Vec::with_capacity(n);
            trace.sorted_row(round, &mut sorted);
            sorted
        })
        .filter(|row| row.len() >= quorum.max(1))
        .collect();
    let rate_of = |count: &dyn Fn(&[f64]) -> usize| {
        let (mut gain, mut time) = (0.0, 0.0);
        for row in &rows {
            let c = count(row);
            gain += c as f64;
            time += row[c - 1] + overhead;
        }
        if time > 0.0 { gain / time } else { 0.0 }
    };
    let least = |row: &[f64]| quorum.clamp(1, row.len());
    let rates: Vec<f64> =
        (1..=n).map(|c| rate_of(&|row: &[f64]| c.clamp(least(row), row.len()))).collect();
    let best = (0..n).max_by(|&a, &b| rates[a].total_cmp(&rates[b])).expect("a trace has workers");

    let best_of = |row: &[f64], lambda: f64| {
        let value = |c: usize| c as f64 - lambda * row[c - 1];
        (least(row)..=row.len())
            .max_by(|&a, &b| value(a).total_cmp(&value(b)))
            .expect("somebody is there")
    };
    let mut oracle_rate = rates[best];
    loop {
        let next = rate_of(&|row: &[f64]| best_of(row, oracle_rate));
        if next <= oracle_rate * (1.0 + 1e-12) {
            break;
        }
        oracle_rate = next;
    }
    Hindsight {
        full_rate: rates[n - 1],
        best_static_count: best + 1,
        best_static_rate: rates[best],
        oracle_rate,
        oracle_counts: rows.iter().map(|row| best_of(row, oracle_rate)).collect(),
        rates,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cell, Unit};

    #[test]
    fn a_small_trace_has_the_rates_computed_by_hand() {
        let mut trace = Trace::of_size("hand", Unit::Seconds, 3);
        trace.push_round([1.0, 2.0, 10.0].map(Cell::Observed));
        trace.push_round([2.0, 1.0, 2.0].map(Cell::Observed));
        let seen = hindsight(&trace, 0.0, 1);
        assert_eq!(seen.full_rate, 6.0 / 12.0);
        assert_eq!(seen.rates, [2.0 / 2.0, 4.0 / 4.0, 0.5]);
        // One of the first round (1 s), three of the second (2 s).
        assert_eq!(seen.oracle_rate, 4.0 / 3.0);
        assert_eq!(seen.oracle_counts, [1, 3]);
        assert_eq!(hindsight(&trace, 0.0, 3).oracle_rate, 0.5);
        assert_eq!(hindsight(&trace, 1.0, 1).rates[1], 4.0 / 6.0);
    }

    #[test]
    fn an_absent_worker_is_not_waited_for() {
        let mut trace = Trace::of_size("absent", Unit::Seconds, 2);
        trace.push_round([Cell::Observed(1.0), Cell::Absent]);
        trace.push_round([Cell::Absent, Cell::Absent]);
        trace.push_round([Cell::Observed(1.0), Cell::Observed(3.0)]);
        let seen = hindsight(&trace, 0.0, 1);
        assert_eq!(seen.full_rate, 3.0 / 4.0);
        assert_eq!(seen.oracle_counts.len(), 2);
    }
}
