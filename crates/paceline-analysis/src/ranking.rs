//! Ranking of workers by slowness, with confidence.

use paceline_trace::{Cell, Trace};
use serde::Serialize;

use crate::{
    batch_means::BatchMeans,
    quantile::median,
    residual::Residuals,
    student::{below, exceeded_with},
    what_if::WhatIf,
};

/// Probability that any flag of a trace is wrong.
const FALSE_FLAGS: f64 = 0.01;

/// Least slowness for a flag: 2 %.
const WORTH_A_FLAG: f64 = 0.02;

/// The workers, the slowest first, and the joint cost of the most costly few.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ranking {
    /// All workers, the slowest first.
    pub workers: Vec<WorkerSlowness>,
    /// The few that cost most.
    pub worst: Worst,
}

/// The slowness of a worker relative to the typical one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkerSlowness {
    /// Its name.
    pub worker: String,
    /// Geometric mean of its run-time over the typical worker's.
    pub factor: f64,
    /// Its 95 % confidence interval, corrected for autocorrelation; `None` for too few rounds.
    pub interval: Option<(f64, f64)>,
    /// The probability that it is slower than the typical worker.
    pub probability: Option<f64>,
    /// Slower by more than 2 %, at a family-wise error of one in a hundred.
    pub slow: bool,
    /// The share of its run-times that are lower bounds; if above 0, it may be slower than stated.
    pub censored: f64,
    /// The share of rounds in which it alone was last.
    pub last: f64,
    /// S_w: full sync's time over its time if this worker had been as fast as the others.
    pub slowdown: f64,
}

/// The few workers that cost full sync the most: at most 3 % of all, at least one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Worst {
    /// Their names, the most costly first.
    pub workers: Vec<String>,
    /// Full sync's time over its time if they had been as fast as the others.
    pub slowdown: f64,
}

impl Ranking {
    pub(crate) fn from_trace(trace: &Trace, residuals: &Residuals) -> Ranking {
        let n = trace.workers().len();
        let series: Vec<Vec<f64>> = (0..n).map(|worker| residuals.present(worker)).collect();
        let means = series.iter().map(|series| series.iter().sum::<f64>() / series.len() as f64);
        let typical = median(&mut means.filter(|mean| !mean.is_nan()).collect::<Vec<_>>());
        let what_if = WhatIf::of_workers(trace);
        let censored = censored(trace);
        let mut quantiles = Quantiles::new(n);
        let mut workers: Vec<WorkerSlowness> = (0..n)
            .filter(|&worker| !series[worker].is_empty())
            .map(|worker| {
                let level = Level::from_series(&series[worker], typical, &mut quantiles);
                WorkerSlowness {
                    worker: trace.workers()[worker].clone(),
                    factor: level.mean.exp(),
                    interval: level.interval.map(|(low, high)| (low.exp(), high.exp())),
                    probability: level.probability,
                    slow: level.slow,
                    censored: censored[worker] / series[worker].len() as f64,
                    last: what_if.last[worker],
                    slowdown: what_if.slowdowns[worker],
                }
            })
            .collect();
        workers.sort_by(|a, b| b.factor.total_cmp(&a.factor));
        Ranking { workers, worst: Worst::from_trace(trace, &what_if) }
    }
}

impl Worst {
    fn from_trace(trace: &Trace, what_if: &WhatIf) -> Worst {
        let n = trace.workers().len();
        let mut by_cost: Vec<usize> = (0..n).collect();
        by_cost.sort_by(|&a, &b| what_if.slowdowns[b].total_cmp(&what_if.slowdowns[a]));
        by_cost.truncate((n * 3).div_ceil(100));
        let costly = by_cost.iter().filter(|&&worker| what_if.slowdowns[worker] > 1.0).count();
        by_cost.truncate(costly.max(1));
        let mut sets = vec![1; n];
        by_cost.iter().for_each(|&worker| sets[worker] = 0);
        Worst {
            workers: by_cost.iter().map(|&worker| trace.workers()[worker].clone()).collect(),
            slowdown: WhatIf::for_sets(trace, &sets, 2).slowdowns[0],
        }
    }
}

/// The number of rounds in which each worker's run-time is a lower bound.
fn censored(trace: &Trace) -> Vec<f64> {
    let mut counts = vec![0.0; trace.workers().len()];
    for round in 0..trace.rounds() {
        for (count, cell) in counts.iter_mut().zip(trace.row(round)) {
            *count += f64::from(u8::from(matches!(cell, Cell::Censored(_))));
        }
    }
    counts
}

/// A worker's level in the logarithm.
struct Level {
    mean: f64,
    interval: Option<(f64, f64)>,
    probability: Option<f64>,
    slow: bool,
}

impl Level {
    fn from_series(series: &[f64], typical: f64, quantiles: &mut Quantiles) -> Level {
        let Some(BatchMeans { mean, error, degrees }) = BatchMeans::from_series(series) else {
            let mean = series.iter().sum::<f64>() / series.len() as f64 - typical;
            return Level { mean, interval: None, probability: None, slow: false };
        };
        let mean = mean - typical;
        let (usual, strict) = quantiles.for_degrees(degrees);
        let probability = match error > 0.0 {
            true => below(mean / error, degrees),
            false => 0.5 + 0.5 * mean.partial_cmp(&0.0).map_or(0.0, |order| f64::from(order as i8)),
        };
        Level {
            mean,
            interval: Some((mean - usual * error, mean + usual * error)),
            probability: Some(probability),
            slow: mean - strict * error > WORTH_A_FLAG.ln_1p(),
        }
    }
}

/// Quantiles for 95 % of one worker, and for no false flag among all; cached, since most workers were
/// present equally often.
struct Quantiles {
    strict_tail: f64,
    known: Option<(usize, (f64, f64))>,
}

impl Quantiles {
    fn new(workers: usize) -> Quantiles {
        Quantiles { strict_tail: FALSE_FLAGS / workers as f64, known: None }
    }

    fn for_degrees(&mut self, degrees: usize) -> (f64, f64) {
        match self.known {
            Some((known, both)) if known == degrees => both,
            _ => {
                let strict = exceeded_with(self.strict_tail, degrees);
                let both = (exceeded_with(0.025, degrees), strict);
                self.known = Some((degrees, both));
                both
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_trace::{Unit, generate};

    use super::*;

    fn ranking(spec: &str, seed: u64, slow: &[(usize, f64)]) -> Ranking {
        let drawn = generate(&spec.parse().expect(spec), seed);
        let mut trace = Trace::of_size("ranked", Unit::Relative, drawn.workers().len());
        for round in 0..drawn.rounds() {
            let factor = |worker| slow.iter().find(|s| s.0 == worker).map_or(1.0, |s| s.1);
            trace.push_round(drawn.row(round).enumerate().map(|(worker, cell)| {
                cell.bound().map_or(Cell::Absent, |x| Cell::Observed(x * factor(worker)))
            }));
        }
        Ranking::from_trace(&trace, &Residuals::from_trace(&trace))
    }

    #[test]
    fn slow_workers_come_first_with_intervals_that_hold_the_truth() {
        for spec in ["iid-lognormal:n=40", "ar:n=40"] {
            let ranking = ranking(spec, 3, &[(7, 1.5), (20, 2.0)]);
            let [first, second, ..] = &ranking.workers[..] else { panic!("two workers") };
            assert_eq!([&first.worker, &second.worker], ["20", "7"], "{spec}");
            for (slowness, truth) in [(first, 2.0), (second, 1.5)] {
                let (low, high) = slowness.interval.expect("many rounds");
                assert!(low < truth && truth < high, "{spec}: {low} {high} {truth}");
                assert!(slowness.slow && slowness.probability > Some(0.999), "{slowness:?}");
            }
            assert_eq!(ranking.workers.iter().filter(|worker| worker.slow).count(), 2, "{spec}");
            assert!(first.slowdown > second.slowdown);
            assert_eq!(ranking.worst.workers, ["20", "7"]);
            assert!(ranking.worst.slowdown > first.slowdown);
        }
    }

    #[test]
    fn no_worker_is_flagged_where_all_are_alike() {
        for spec in ["iid-lognormal", "iid-exp", "iid-pareto", "ar:n=64"] {
            for seed in 1..4 {
                let flagged = ranking(spec, seed, &[]).workers.iter().filter(|w| w.slow).count();
                assert_eq!(flagged, 0, "{spec} {seed}");
            }
        }
    }

    #[test]
    fn half_of_alike_workers_seem_slower_and_one_in_twenty_intervals_misses() {
        let workers = ranking("iid-pareto:n=400,rounds=400", 1, &[]).workers;
        let slower = workers.iter().filter(|w| w.probability > Some(0.5)).count();
        assert!((150..250).contains(&slower), "{slower}");
        let holds =
            |w: &&WorkerSlowness| w.interval.is_some_and(|(low, high)| low < 1.0 && high > 1.0);
        let held = workers.iter().filter(holds).count();
        assert!((364..=396).contains(&held), "{held} of 400");
    }

    #[test]
    fn one_round_gives_no_confidence_interval() {
        let ranking = ranking("iid-lognormal:n=3,rounds=1", 1, &[]);
        assert!(ranking.workers.iter().all(|worker| worker.interval.is_none() && !worker.slow));
    }
}
