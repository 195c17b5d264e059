//! Simultaneous changes of several workers, which have one cause.

use paceline_trace::Trace;
use serde::Serialize;

use crate::{
    change::{Change, changes},
    residual::Residuals,
};

/// The probability of a false alarm, for all workers together, and for the cluster.
const FALSE_ALARM: f64 = 0.01;

/// Lasting changes of a trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Changes {
    /// The typical run-time of the cluster: the median of a round.
    pub typical: Vec<Change>,
    /// The slowest worker of a round, which is the pace of full sync.
    pub slowest: Vec<Change>,
    /// Workers that changed relative to the others; simultaneous changes are one shift.
    pub workers: Vec<Shift>,
}

/// Workers whose level changed at one time, in one direction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shift {
    /// The round of most of them.
    pub round: usize,
    /// The new level over the old one, on (geometric) average.
    pub factor: f64,
    /// The workers.
    pub workers: Vec<String>,
}

impl Changes {
    /// Finds changes, and removes them from the residuals, which then vary about the levels. Calls
    /// `progress` with the share done.
    ///
    /// Workers are compared with the round's median, which moves when many of them change: so after
    /// changes are found, the reference is taken from workers that did not change, and the search is
    /// repeated.
    pub(crate) fn find(
        trace: &Trace,
        residuals: &mut Residuals,
        progress: &mut dyn FnMut(f64),
    ) -> Changes {
        let n = trace.workers().len();
        let mut of_workers = search(residuals, n, &mut |done| progress(done / 2.0));
        if of_workers.iter().any(|changes| !changes.is_empty()) {
            let offsets = residuals.offsets(&main_rounds(trace, &shifts(trace, &of_workers)));
            residuals.shift(&offsets);
            of_workers = search(residuals, n, &mut |done| progress(0.5 + done / 2.0));
        }
        let workers = shifts(trace, &of_workers);
        residuals.level(&main_rounds(trace, &workers));
        Changes {
            typical: changes(&residuals.medians, FALSE_ALARM),
            slowest: changes(&residuals.slowest, FALSE_ALARM),
            workers,
        }
    }
}

/// Rounds of the largest shifts, in order, none close to another or to an end.
fn main_rounds(trace: &Trace, shifts: &[Shift]) -> Vec<usize> {
    const MOST: usize = 8;
    let (near, all) = (2 * near(trace), trace.rounds());
    let mut rounds: Vec<usize> = vec![0, all];
    for shift in shifts {
        if rounds.len() < MOST + 2 && rounds.iter().all(|r| r.abs_diff(shift.round) >= near) {
            rounds.push(shift.round);
        }
    }
    rounds.sort_unstable();
    rounds[1..rounds.len() - 1].to_vec()
}

/// Changes within this many rounds are one.
fn near(trace: &Trace) -> usize {
    (trace.rounds().isqrt() / 2).max(3)
}

/// Every worker's changes.
fn search(residuals: &Residuals, n: usize, progress: &mut dyn FnMut(f64)) -> Vec<Vec<Change>> {
    (0..n)
        .map(|worker| {
            if worker % 256 == 0 {
                progress(worker as f64 / n as f64);
            }
            let series: Vec<f64> =
                residuals.of_worker(worker).iter().map(|&x| f64::from(x)).collect();
            changes(&series, FALSE_ALARM / n as f64)
        })
        .collect()
}

/// Merges changes within a few rounds; the largest first.
fn shifts(trace: &Trace, of_workers: &[Vec<Change>]) -> Vec<Shift> {
    let near = near(trace);
    let of_worker = |(worker, changes): (usize, &Vec<Change>)| {
        changes.iter().map(move |&change| (worker, change)).collect::<Vec<_>>()
    };
    let mut found: Vec<(usize, Change)> =
        of_workers.iter().enumerate().flat_map(of_worker).collect();
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
                factor: (logs / workers.len() as f64).exp(),
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

    fn changes_in(spec: &str, seed: u64) -> Changes {
        let trace = generate(&spec.parse().expect(spec), seed);
        Changes::find(&trace, &mut Residuals::from_trace(&trace), &mut |_| {})
    }

    fn first(n: usize) -> Vec<String> {
        (0..n).map(|i| i.to_string()).collect()
    }

    #[test]
    fn the_shift_of_the_first_third_is_one_event_in_its_round() {
        for seed in 1..6 {
            let changes = changes_in("shift48", seed);
            let shift = &changes.workers[0];
            assert_eq!(shift.workers, first(16), "{seed}");
            assert!(shift.round.abs_diff(300) <= 1, "{seed}: {shift:?}");
            assert!((shift.factor / 3.0).ln().abs() < 0.25, "{seed}: {shift:?}");
            assert!(changes.slowest.iter().any(|c| c.round.abs_diff(300) <= 10), "{seed}");
            let others: usize = changes.workers[1..].iter().map(|s| s.workers.len()).sum();
            assert!(others <= 4, "{seed}: {:?}", changes.workers);
        }
    }

    #[test]
    fn others_do_not_seem_faster_when_a_third_becomes_slow() {
        for sigma in [0.02, 0.05, 0.2, 0.5] {
            let changes = changes_in(&format!("phase:n=48,sigma={sigma}"), 2);
            let [shift] = &changes.workers[..] else { panic!("{sigma}: {:?}", changes.workers) };
            assert_eq!(shift.workers, first(16), "{sigma}");
        }
    }

    #[test]
    fn false_alarms_are_few_also_where_noise_is_heavy_or_persistent() {
        for (spec, most) in [
            ("iid-lognormal", 0),
            ("iid-exp", 0),
            ("iid-pareto", 0),
            ("stalls:n=158,rounds=600", 0),
            ("iid-lognormal:n=20,rounds=40", 0),
            ("ar:n=158,rounds=600", 4),
            ("nodes158", 4),
        ] {
            let alarms = |changes: Changes| {
                changes.workers.len() + changes.typical.len() + changes.slowest.len()
            };
            let alarms: usize = (1..5).map(|seed| alarms(changes_in(spec, seed))).sum();
            assert!(alarms <= most, "{spec}: {alarms}");
        }
    }

    #[test]
    fn changes_are_taken_out_of_the_residuals() {
        let trace = generate(&"phase:n=48".parse().expect("a preset"), 1);
        let mut residuals = Residuals::from_trace(&trace);
        Changes::find(&trace, &mut residuals, &mut |_| {});
        let farthest = residuals.present(3).iter().fold(0.0, |far: f64, x| far.max(x.abs()));
        assert!(farthest < 0.3, "{farthest}");
    }
}
