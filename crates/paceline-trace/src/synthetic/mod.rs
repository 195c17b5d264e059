//! Synthetic clusters: run-times drawn from a seed.
//!
//! Each component of a cluster draws from a stream of its own, so a preset with and without stalls is
//! otherwise the same cluster.

mod catalogue;
mod cluster;
mod drift;
mod features;
mod incident;
mod minority;
mod mixed;
mod noise;
mod random;
mod regimes;
mod shifts;
mod spec;
mod stalls;
#[cfg(test)]
mod statistics;
mod stream;

pub use catalogue::{GENERATORS, Generator, Key};
pub use cluster::Cluster;
pub use random::{RandomCluster, RandomClusters};
pub use spec::{Phases, SyntheticSpec, SyntheticSpecError};

use crate::{Cell, Trace, Unit};

/// A source of run-times, round by round, because they may depend on how long the last round took.
pub trait RoundSource {
    /// The number of workers: the length of every row.
    fn workers(&self) -> usize;

    /// The unit of `elapsed`: the mean run-time without slow nodes, minorities, stalls, shifts and other
    /// incidents.
    fn undisturbed_mean(&self) -> f64;

    /// Writes the run-times of the next round into `row`; NaN is absent. `elapsed` is how long the
    /// last round took, in units of [`undisturbed_mean`](RoundSource::undisturbed_mean); it counts
    /// with [`Phases::WallClock`] only, and not for the first round.
    fn next_round(&mut self, elapsed: f64, row: &mut [f64]);
}

/// Draws a whole trace. Phases advance by rounds, since no policy cuts them.
pub fn generate(spec: &SyntheticSpec, seed: u64) -> Trace {
    let mut source = spec.source(seed);
    let mut trace = Trace::of_size(spec.to_string(), Unit::Relative, source.workers());
    let mut row = vec![0.0; source.workers()];
    for _ in 0..spec.rounds() {
        source.next_round(1.0, &mut row);
        trace.push_round(
            row.iter().map(|&x| if x.is_nan() { Cell::Absent } else { Cell::Observed(x) }),
        );
    }
    trace
}

/// A small trace to begin with: 16 workers, 300 rounds, slow nodes and stalls.
pub fn sample() -> Trace {
    let spec = "nodes16-stalls:rounds=300".parse().expect("a preset's name");
    generate(&spec, 1).named("sample")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(spec: &str) -> Trace {
        generate(&spec.parse().expect(spec), 1)
    }

    /// The first run-time, the last and the longest.
    fn marks(trace: &Trace) -> [f64; 3] {
        let all: Vec<f64> =
            (0..trace.rounds()).flat_map(|t| trace.row(t).filter_map(Cell::bound)).collect();
        [all[0], all[all.len() - 1], all.iter().copied().fold(0.0, f64::max)]
    }

    #[test]
    fn a_seed_keeps_its_values() {
        for (spec, expected) in [
            ("nodes158", [0.8175435556825476, 1.1124613181395775, 3.1572122109790586]),
            ("nodes158-stalls", [0.8175435556825476, 1.1124613181395775, 380.75280571963583]),
            ("nodes16-stalls", [0.8175435556825476, 1.2034432881117008, 272.2994511430374]),
            ("xc40", [0.8175435556825476, 0.9595438745978542, 6642.509421687728]),
            ("shift48", [0.8175435556825476, 0.7509824724188818, 8.23397067631293]),
            ("iid-lognormal", [0.911995850605339, 1.3701325691599489, 2.378356172805932]),
            ("iid-exp", [1.1854374591244958, 1.2398458340336012, 4.3412636857014615]),
            ("iid-pareto", [1.1361971627177825, 1.0151195713554757, 71.6910220112225]),
        ] {
            let got = marks(&trace(spec));
            for (got, expected) in got.iter().zip(expected) {
                // Logarithms and powers may differ in their last digit between platforms.
                assert!((got / expected - 1.0).abs() < 1e-12, "{spec}: {got} {expected}");
            }
        }
    }

    #[test]
    fn sizes_are_those_of_the_presets() {
        for (spec, n, rounds) in [
            ("nodes158", 158, 600),
            ("nodes158-stalls", 158, 600),
            ("nodes16-stalls", 16, 1000),
            ("xc40", 2175, 400),
            ("shift48", 48, 600),
            ("iid-lognormal", 158, 600),
            ("iid-exp", 158, 600),
            ("iid-pareto", 158, 600),
            ("ar:n=3,rounds=7", 3, 7),
        ] {
            let spec: SyntheticSpec = spec.parse().expect(spec);
            assert_eq!((spec.workers(), spec.rounds()), (n, rounds), "{spec}");
        }
        assert_eq!((sample().workers().len(), sample().rounds()), (16, 300));
    }

    #[test]
    fn stalls_change_only_the_workers_that_stall() {
        let (calm, stalls) = (trace("nodes158"), trace("nodes158-stalls"));
        let cells = (0..600).flat_map(|t| calm.row(t).zip(stalls.row(t)));
        let stalled =
            cells.filter(|(a, b)| a != b).inspect(|(a, b)| assert!(a.bound() < b.bound()));
        let share = stalled.count() as f64 / (158.0 * 600.0);
        assert!((share - 0.01).abs() < 0.001, "{share}");
    }

    #[test]
    fn a_shift_slows_the_first_third_from_its_round_on() {
        let (shifted, even) = (trace("shift48"), trace("shift48:factor=1"));
        for (t, worker) in (0..600).flat_map(|t| (0..48).map(move |worker| (t, worker))) {
            let factor = if t >= 300 && worker < 16 { 3.0 } else { 1.0 };
            let expected = even.cell(t, worker).bound().map(|x| x * factor);
            assert_eq!(shifted.cell(t, worker).bound(), expected);
        }
    }

    #[test]
    fn a_failed_node_is_absent_and_may_come_back() {
        let trace = trace("failure:node=1,at=5,for=3,rounds=20");
        for (t, worker) in (0..20).flat_map(|t| (0..16).map(move |worker| (t, worker))) {
            let absent = (5..8).contains(&t) && (4..8).contains(&worker);
            assert_eq!(trace.cell(t, worker) == Cell::Absent, absent);
        }
    }

    #[test]
    fn the_undisturbed_mean_is_the_mean_when_nothing_happens() {
        let source = |spec: &str| spec.parse::<SyntheticSpec>().expect(spec).source(1);
        for spec in ["ar:n=500,sd=0.3", "iid-exp", "lognormal:sigma=0.5,n=500", "normal:mean=7"] {
            let mut source = source(spec);
            let mut row = vec![0.0; source.workers()];
            let means = (0..400).map(|_| {
                source.next_round(1.0, &mut row);
                statistics::mean(&row)
            });
            let mean = statistics::mean(&means.collect::<Vec<_>>());
            assert!((mean / source.undisturbed_mean() - 1.0).abs() < 0.01, "{spec}: {mean}");
        }
        // b, a, e and g of the presets; slow nodes and stalls do not count.
        let variance = 0.05f64.powi(2) + 0.08f64.powi(2) + 0.03f64.powi(2) * (1.0 + 1.0 / 0.0975);
        let mean = source("xc40").undisturbed_mean();
        assert!((mean - (variance / 2.0).exp()).abs() < 1e-12);
    }

    /// How often a slow node is still slow in the next round, told by its median.
    fn lasting(spec: &str, elapsed: f64) -> f64 {
        let mut source = spec.parse::<SyntheticSpec>().expect(spec).source(4);
        let mut row = vec![0.0; source.workers()];
        let states: Vec<bool> = (0..4000)
            .map(|_| {
                source.next_round(elapsed, &mut row);
                row.sort_unstable_by(f64::total_cmp);
                row[row.len() / 2] > 1.35
            })
            .collect();
        let slow = states.windows(2).filter(|pair| pair[0]);
        let (stayed, all) = slow.fold((0, 0), |(s, a), pair| (s + usize::from(pair[1]), a + 1));
        stayed as f64 / f64::from(all)
    }

    #[test]
    fn by_the_clock_short_rounds_do_not_end_a_slow_phase() {
        assert!(lasting("nodes158:nodes=1", 0.1) < 0.95);
        assert!(lasting("nodes158:nodes=1,phases=wall-clock", 0.1) > 0.97);
        assert!(lasting("nodes158:nodes=1,phases=wall-clock", 10.0) < 0.7);
    }

    #[test]
    fn by_the_clock_at_an_even_pace_is_by_rounds() {
        let by_rounds = trace("nodes158:rounds=50");
        let by_clock = trace("nodes158:rounds=50,phases=wall-clock");
        assert!((0..50).all(|t| by_rounds.row(t).eq(by_clock.row(t))));
    }
}
