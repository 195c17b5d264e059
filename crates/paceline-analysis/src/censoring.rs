//! What a trace with lower bounds can and cannot tell.

use paceline_trace::{Cell, Trace, hindsight};
use serde::Serialize;

use crate::cost::Cost;

/// How much of a trace is censored, and between which figures the truth lies for that.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Censoring {
    /// The share of run-times known only as lower bounds.
    pub share: f64,
    /// As if every censored run-time had ended at its bound.
    pub optimistic: Bound,
    /// As if every censored run-time had taken as long as the longest seen in the trace.
    pub pessimistic: Bound,
}

/// What the trace costs under one reading of its lower bounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bound {
    /// The share of time that full sync idles.
    pub idle: f64,
    /// The best fixed count.
    pub fixed_count: usize,
    /// Its rate over that of full sync.
    pub fixed_gain: f64,
    /// The oracle's rate over that of full sync.
    pub oracle_gain: f64,
}

impl Bound {
    fn from_cost(cost: &Cost) -> Bound {
        Bound {
            idle: cost.idle,
            fixed_count: cost.fixed.count,
            fixed_gain: cost.fixed.gain,
            oracle_gain: cost.oracle.gain,
        }
    }
}

impl Censoring {
    /// `optimistic` is the cost with lower bounds taken for run-times. `None` where all is known.
    pub(crate) fn from_trace(trace: &Trace, optimistic: &Cost, overhead: f64) -> Option<Censoring> {
        let share = trace.censored_share();
        if share == 0.0 {
            return None;
        }
        let worst = pessimistic(trace);
        let pessimistic = Cost::from_hindsight(&worst, &hindsight(&worst, overhead, 1));
        Some(Censoring {
            share,
            optimistic: Bound::from_cost(optimistic),
            pessimistic: Bound::from_cost(&pessimistic),
        })
    }
}

/// The trace in which who did not come took as long as anything ever did.
fn pessimistic(trace: &Trace) -> Trace {
    let cells = (0..trace.rounds()).flat_map(|round| trace.row(round));
    let longest = cells.filter_map(Cell::bound).fold(0.0, f64::max);
    let mut worst = Trace::new(trace.name(), trace.unit(), trace.workers().to_vec());
    for round in 0..trace.rounds() {
        worst.push_round(trace.row(round).map(|cell| match cell {
            Cell::Censored(_) => Cell::Observed(longest),
            known => known,
        }));
    }
    worst
}

#[cfg(test)]
mod tests {
    use paceline_trace::Unit;

    use super::*;

    #[test]
    fn the_truth_lies_between_the_bounds() {
        let (mut truth, mut seen) =
            (Trace::of_size("truth", Unit::Seconds, 3), Trace::of_size("seen", Unit::Seconds, 3));
        for round in 0..10 {
            let slow = if round == 0 { 9.0 } else { 4.0 };
            truth.push_round([1.0, 1.1, slow].map(Cell::Observed));
            let last = if round == 0 { Cell::Observed(slow) } else { Cell::Censored(1.2) };
            seen.push_round([Cell::Observed(1.0), Cell::Observed(1.1), last]);
        }
        let cost = |trace: &Trace| Cost::from_hindsight(trace, &hindsight(trace, 0.0, 1));
        let (truth, optimistic) = (cost(&truth), cost(&seen));
        let bounds = Censoring::from_trace(&seen, &optimistic, 0.0).expect("censored cells");
        assert_eq!(bounds.share, 0.3);
        assert!(bounds.optimistic.idle < truth.idle && truth.idle < bounds.pessimistic.idle);
        let gains = [bounds.optimistic.fixed_gain, truth.fixed.gain, bounds.pessimistic.fixed_gain];
        assert!(gains.is_sorted(), "{gains:?}");
        assert_eq!(bounds.pessimistic.fixed_count, 2);
    }
}
