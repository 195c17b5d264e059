//! The filter against clusters whose truth is known.

use paceline_trace::{Cell, generate};
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};
use rand_distr::{Distribution, Normal};

use super::*;
use crate::{
    predict::show,
    scene::{Arrived, Silent},
};

/// A cluster with known levels, a common factor that drifts, and noise.
struct KnownCluster {
    levels: Vec<f64>,
    common: f64,
    rng: ChaCha8Rng,
}

impl KnownCluster {
    fn new(n: usize) -> KnownCluster {
        let mut rng = ChaCha8Rng::seed_from_u64(11);
        let level = Normal::new(0.0, 0.1).expect("a normal");
        let levels = (0..n).map(|_| level.sample(&mut rng)).collect();
        KnownCluster { levels, common: 0.0, rng }
    }

    fn draw(&mut self) -> Vec<f64> {
        let noise = Normal::new(0.0, 0.05).expect("a normal");
        let step = Normal::new(0.0, 0.05).expect("a normal");
        self.common = 0.9 * self.common + step.sample(&mut self.rng);
        let rng = &mut self.rng;
        self.levels.iter().map(|level| (level + self.common + noise.sample(rng)).exp()).collect()
    }
}

/// Error of estimates up to a common constant.
fn error(found: &[f64], truth: &[f64]) -> f64 {
    let n = found.len() as f64;
    let off: Vec<f64> = found.iter().zip(truth).map(|(f, t)| f - t).collect();
    let mean = off.iter().sum::<f64>() / n;
    (off.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt()
}

/// The cut comes when half have arrived, and is capped by a clock, so the amount of censoring depends
/// on the common factor of the round. Levels are recovered all the same (Q1).
#[test]
fn levels_are_recovered_though_the_cut_depends_on_the_common_factor() {
    let mut known = KnownCluster::new(60);
    let mut filter = Filter::default();
    let (mut censored, mut seen) = (0, vec![(0.0, 0.0); 60]);
    for round in 0..400 {
        let times = known.draw();
        let mut sorted = times.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let cut = sorted[35].min(1.05).max(sorted[8]);
        for (x, seen) in times.iter().zip(&mut seen) {
            if *x <= cut {
                *seen = (seen.0 + x.ln() - known.common, seen.1 + 1.0);
            } else {
                censored += 1;
            }
        }
        show(&mut filter, round, &times, cut);
    }
    assert!(censored > 400 * 60 * 2 / 5, "{censored} censored");
    // For a worker that is hardly ever in time only a bound can be known.
    let known_of: Vec<usize> = (0..60).filter(|&i| seen[i].1 > 40.0).collect();
    assert!(known_of.len() > 40, "{}", known_of.len());
    let truth: Vec<f64> = known_of.iter().map(|&i| known.levels[i]).collect();
    let found: Vec<f64> =
        known_of.iter().map(|&i| filter.outlook(WorkerId(i as u32)).level).collect();
    let naive: Vec<f64> = known_of.iter().map(|&i| seen[i].0 / seen[i].1).collect();
    let (found, naive) = (error(&found, &truth), error(&naive, &truth));
    assert!(found < 0.025, "levels are off by {found:.3}; they spread by 0.1");
    assert!(found < 0.8 * naive, "{found:.3}; the mean of what was seen is off by {naive:.3}");
}

/// Half of a round has arrived: the probability that each of the others, silent so far, would
/// take longer than it then does.
fn ranks_of_the_silent(filter: &mut Filter, times: &[f64]) -> Vec<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let now = sorted[times.len() / 2];
    let mut scene = Scene { elapsed: now, partial: 1, ..Scene::default() };
    for (worker, &run_time) in times.iter().enumerate() {
        let worker = WorkerId(worker as u32);
        match run_time <= now {
            true => scene.arrived.push(Arrived { worker, run_time, weight: 1.0 }),
            false => scene.silent.push(Silent {
                worker,
                elapsed: now,
                load: 1.0,
                weight: 1.0,
                done: 0,
                pace: None,
            }),
        }
    }
    filter.look(&scene);
    let rank = |s: &Silent| {
        let taken = times[s.worker.0 as usize].ln();
        filter.survival(s.worker, taken) / filter.survival(s.worker, now.ln())
    };
    scene.silent.iter().map(rank).collect()
}

/// Events that the filter predicts with probability p happen with frequency p.
#[test]
fn predictive_intervals_have_their_nominal_coverage() {
    let mut known = KnownCluster::new(40);
    let mut filter = Filter::default();
    let mut ranks: Vec<f64> = Vec::new();
    for round in 0..300 {
        let times = known.draw();
        if round >= 50 {
            ranks.extend(ranks_of_the_silent(&mut filter, &times));
        }
        show(&mut filter, round, &times, f64::INFINITY);
    }
    ranks.sort_unstable_by(f64::total_cmp);
    let n = ranks.len() as f64;
    let distance = ranks
        .iter()
        .enumerate()
        .map(|(i, rank)| (rank - (i as f64 + 0.5) / n).abs())
        .fold(0.0, f64::max);
    assert!(distance < 0.08, "ranks are {distance:.3} from uniform");
    let within = |share: f64| {
        let (low, high) = (0.5 - share / 2.0, 0.5 + share / 2.0);
        ranks.iter().filter(|&&rank| rank > low && rank < high).count() as f64 / n
    };
    for share in [0.5, 0.8, 0.9] {
        let covered = within(share);
        assert!((covered - share).abs() < 0.07, "{share}: {covered:.3}");
    }
}

#[test]
fn nodes_are_found_from_the_data() {
    let spec = "nodes158:n=48,nodes=4,rounds=400".parse().expect("a preset");
    let trace = generate(&spec, 5);
    let mut filter = Filter::default();
    for round in 0..trace.rounds() {
        let times: Vec<f64> = trace.row(round).filter_map(Cell::bound).collect();
        show(&mut filter, round as u64, &times, f64::INFINITY);
    }
    let groups = filter.groups.members();
    let node = |worker: usize| worker * 4 / 48;
    let pure = groups.iter().filter(|group| {
        let mates = group.iter().filter(|&&worker| node(worker) == node(group[0])).count();
        mates >= 6 && 10 * mates >= 9 * group.len()
    });
    assert!(pure.count() >= 3, "{groups:?}");
}

#[test]
fn independent_workers_make_no_groups() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut filter = Filter::default();
    for round in 0..200 {
        let times: Vec<f64> = (0..40).map(|_| 1.0 + 0.2 * rng.random::<f64>()).collect();
        show(&mut filter, round, &times, f64::INFINITY);
    }
    assert!(filter.groups.is_empty(), "{:?}", filter.groups.members());
}

/// A worker that slows down for good is followed within a few rounds, and a stall is not.
#[test]
fn a_change_is_followed_and_a_stall_is_not() {
    let mut known = KnownCluster::new(20);
    let mut filter = Filter::default();
    for round in 0..200 {
        let mut times = known.draw();
        if round >= 100 {
            times[3] *= 3.0;
        }
        if round == 190 {
            times[5] *= 3.0;
        }
        show(&mut filter, round, &times, f64::INFINITY);
        let moved = filter.outlook(WorkerId(3)).level - known.levels[3];
        if round == 105 {
            assert!((moved - 3f64.ln()).abs() < 0.3, "followed to {moved:.2}");
        }
    }
    let stalled = filter.outlook(WorkerId(5)).level - known.levels[5];
    assert!(stalled.abs() < 0.3, "{stalled:.2}");
}
