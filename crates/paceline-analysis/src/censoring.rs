//! Bounds on the figures of a trace with censored run-times.

use paceline_trace::{Cell, Trace, hindsight};
use serde::Serialize;

use crate::cost::SyncCost;

/// The censored share of a trace, and the bounds on its figures that follow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Censoring {
    /// The share of run-times known only as lower bounds.
    pub share: f64,
    /// As if every censored run-time had ended at its bound.
    pub optimistic: CensoringBound,
    /// As if every censored run-time had taken as long as the longest seen in the trace.
    pub pessimistic: CensoringBound,
}

/// The figures of a trace under one assumption about its lower bounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CensoringBound {
    /// The share of time that full sync idles.
    pub idle: f64,
    /// The best fixed count.
    pub fixed_count: usize,
    /// Its rate over that of full sync.
    pub fixed_gain: f64,
    /// The oracle's rate over that of full sync.
    pub oracle_gain: f64,
}

impl CensoringBound {
    fn from_cost(cost: &SyncCost) -> CensoringBound {
        CensoringBound {
            idle: cost.idle,
            fixed_count: cost.fixed.count,
            fixed_gain: cost.fixed.gain,
            oracle_gain: cost.oracle.gain,
        }
    }
}

impl Censoring {
    /// `optimistic` is the cost with lower bounds taken as run-times. `None` without lower bounds.
    pub(crate) fn from_trace(
        trace: &Trace,
        optimistic: &SyncCost,
        overhead: f64,
    ) -> Option<Censoring> {
        let share = trace.censored_share();
        if share == 0.0 {
            return None;
        }
        let worst = pessimistic(trace);
        let pessimistic = SyncCost::from_hindsight(&worst, &hindsight(&worst, overhead, 1));
        Some(Censoring {
            share,
            optimistic: CensoringBound::from_cost(optimistic),
            pessimistic: CensoringBound::from_cost(&pessimistic),
        })
    }
}

/// The trace in which every censored run-time is the longest seen.
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
        let cost = |trace: &Trace| SyncCost::from_hindsight(trace, &hindsight(trace, 0.0, 1));
        let (truth, optimistic) = (cost(&truth), cost(&seen));
        let bounds = Censoring::from_trace(&seen, &optimistic, 0.0).expect("censored cells");
        assert_eq!(bounds.share, 0.3);
        assert!(bounds.optimistic.idle < truth.idle && truth.idle < bounds.pessimistic.idle);
        let gains = [bounds.optimistic.fixed_gain, truth.fixed.gain, bounds.pessimistic.fixed_gain];
        assert!(gains.is_sorted(), "{gains:?}");
        assert_eq!(bounds.pessimistic.fixed_count, 2);
    }
}
