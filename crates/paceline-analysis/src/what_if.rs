//! Counterfactuals: full sync if some workers had been as fast as the others.

use paceline_trace::Trace;

use crate::residual::bounds;

/// The slowdown of full sync due to each set of workers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WhatIf {
    /// `slowdowns[k]` = T_full / T_full with the run-times of set k replaced by those of typical
    /// others: 1 if the set never mattered.
    pub(crate) slowdowns: Vec<f64>,
    /// The share of rounds whose slowest was of set k and of no other.
    pub(crate) last: Vec<f64>,
}

impl WhatIf {
    /// `sets[i]` is the set that worker i belongs to, of `count` sets.
    ///
    /// Members whose run-times are replaced by the median of the others cannot be last unless no other
    /// worker is present, so the round ends with the slowest of the other sets: one pass over the trace
    /// suffices for all sets.
    pub(crate) fn for_sets(trace: &Trace, sets: &[usize], count: usize) -> WhatIf {
        let (mut saved, mut times_last) = (vec![0.0; count], vec![0.0; count]);
        let (mut full, mut rounds) = (0.0, 0.0);
        for round in 0..trace.rounds() {
            let Some(ends) = Ends::from_row(bounds(trace, round).zip(sets.iter().copied())) else {
                continue;
            };
            rounds += 1.0;
            full += ends.slowest;
            let others = ends.of_others.unwrap_or(0.0);
            times_last[ends.set] += f64::from(u8::from(others < ends.slowest));
            saved[ends.set] += ends.slowest - ends.of_others.unwrap_or(ends.slowest);
        }
        WhatIf {
            slowdowns: saved
                .iter()
                .map(|s| if *s > 0.0 { full / (full - s) } else { 1.0 })
                .collect(),
            last: times_last.iter().map(|k| k / f64::max(rounds, 1.0)).collect(),
        }
    }

    /// One set per worker.
    pub(crate) fn of_workers(trace: &Trace) -> WhatIf {
        let n = trace.workers().len();
        WhatIf::for_sets(trace, &Vec::from_iter(0..n), n)
    }
}

/// The end of a round.
struct Ends {
    /// The slowest run-time, and its set.
    slowest: f64,
    set: usize,
    /// The slowest run-time of another set.
    of_others: Option<f64>,
}

impl Ends {
    fn from_row(row: impl Iterator<Item = (f64, usize)>) -> Option<Ends> {
        let mut ends: Option<Ends> = None;
        for (x, set) in row.filter(|(x, _)| !x.is_nan()) {
            ends = Some(match ends {
                None => Ends { slowest: x, set, of_others: None },
                Some(old) if set == old.set => Ends { slowest: old.slowest.max(x), ..old },
                Some(old) if x > old.slowest => {
                    Ends { slowest: x, set, of_others: Some(old.slowest) }
                }
                Some(old) => {
                    Ends { of_others: Some(old.of_others.map_or(x, |other| other.max(x))), ..old }
                }
            });
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use paceline_trace::{Cell, Unit};

    use super::*;

    fn trace() -> Trace {
        let mut trace = Trace::of_size("hand", Unit::Seconds, 3);
        trace.push_round([1.0, 2.0, 10.0].map(Cell::Observed));
        trace.push_round([4.0, 6.0, 5.0].map(Cell::Observed));
        trace.push_round([Cell::Absent, Cell::Absent, Cell::Observed(4.0)]);
        trace
    }

    #[test]
    fn a_worker_counts_for_the_delay_that_it_alone_caused() {
        let what_if = WhatIf::of_workers(&trace());
        // 20 s in all; without worker 2's excess 12 s, without worker 1's 19 s.
        assert_eq!(what_if.slowdowns, [1.0, 20.0 / 19.0, 20.0 / 12.0]);
        assert_eq!(what_if.last, [0.0, 1.0 / 3.0, 2.0 / 3.0]);
    }

    #[test]
    fn a_set_counts_for_the_delay_that_its_members_caused_together() {
        let what_if = WhatIf::for_sets(&trace(), &[0, 1, 1], 2);
        assert_eq!(what_if.slowdowns, [1.0, 20.0 / (1.0 + 4.0 + 4.0)]);
        // A member that is not the slowest must not stand for the others.
        let what_if = WhatIf::for_sets(&trace(), &[1, 0, 1], 2);
        assert_eq!(what_if.slowdowns, [20.0 / 19.0, 20.0 / 12.0]);
    }
}
