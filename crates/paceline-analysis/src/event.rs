//! Changes of many workers at one time, which have one cause.

use paceline_trace::Trace;
use serde::Serialize;

use crate::{
    change::{Change, changes},
    residual::Residuals,
};

/// The probability of a false alarm, for all workers together, and for the cluster.
const FALSE_ALARM: f64 = 0.01;

/// What changed for good, and when.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Changes {
    /// The typical run-time of the cluster: the median of a round.
    pub typical: Vec<Change>,
    /// The slowest worker of a round, which is the pace of full sync.
    pub slowest: Vec<Change>,
    /// Workers that changed against the others, those that did so together in one.
    pub workers: Vec<Shift>,
}

/// Workers whose level changed at one time, in one direction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shift {
    /// The round of most of them.
    pub round: usize,
    /// The new level over the old one, on (geometric) average.
    pub factor: f64,
    /// Who.
    pub workers: Vec<String>,
}

impl Changes {
    /// `progress` is told the share that is done.
    pub(crate) fn of(
        trace: &Trace,
        residuals: &Residuals,
        progress: &mut dyn FnMut(f64),
    ) -> Changes {
        let n = trace.workers().len();
        let mut found = Vec::new();
        for worker in 0..n {
            let series: Vec<f64> =
                residuals.of_worker(worker).iter().map(|&x| f64::from(x)).collect();
            let of_worker = changes(&series, FALSE_ALARM / n as f64);
            found.extend(of_worker.into_iter().map(|change| (worker, change)));
            if worker % 256 == 0 {
                progress(worker as f64 / n as f64);
            }
        }
        Changes {
            typical: changes(&residuals.medians, FALSE_ALARM),
            slowest: changes(&residuals.slowest, FALSE_ALARM),
            workers: shifts(trace, found),
        }
    }
}

/// Puts together what happened within a few rounds; the largest first.
fn shifts(trace: &Trace, mut found: Vec<(usize, Change)>) -> Vec<Shift> {
    let near = (trace.rounds().isqrt() / 2).max(3);
    found.sort_by_key(|(worker, change)| (change.factor < 1.0, change.round, *worker));
    let together = found.chunk_by(|(_, a), (_, b)| {
        (a.factor < 1.0) == (b.factor < 1.0) && b.round - a.round <= near
    });
    let mut shifts: Vec<Shift> = together
        .map(|chunk| {
            let logs = chunk.iter().map(|(_, change)| change.factor.ln()).sum::<f64>();
            let mut workers: Vec<usize> = chunk.iter().map(|(worker, _)| *worker).collect();
            workers.sort_unstable();
            workers.dedup();
            Shift {
                round: chunk[chunk.len() / 2].1.round,
                factor: (logs / chunk.len() as f64).exp(),
                workers: workers.iter().map(|&w| trace.workers()[w].clone()).collect(),
            }
        })
        .collect();
    let weight = |shift: &Shift| shift.factor.ln().abs() * shift.workers.len() as f64;
    shifts.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    shifts
}

#[cfg(test)]
mod tests {
    use paceline_trace::generate;

    use super::*;

    fn of(spec: &str) -> Changes {
        let trace = generate(&spec.parse().expect(spec), 1);
        Changes::of(&trace, &Residuals::of(&trace), &mut |_| {})
    }

    #[test]
    fn a_shift_is_one_event_of_those_it_hit() {
        let changes = of("shift48");
        let [shift] = &changes.workers[..] else { panic!("{:?}", changes.workers) };
        assert_eq!(shift.round, 300);
        assert_eq!(shift.workers, (0..16).map(|i| i.to_string()).collect::<Vec<_>>());
        assert!(changes.slowest.iter().any(|change| change.round.abs_diff(300) <= 10));
    }

    #[test]
    fn where_nothing_happens_nothing_is_reported() {
        for spec in ["iid-lognormal", "iid-exp", "iid-pareto"] {
            let changes = of(spec);
            assert!(changes.workers.is_empty(), "{spec}");
            assert!(changes.typical.is_empty() && changes.slowest.is_empty(), "{spec}");
        }
    }
}
