//! A tracker on clusters whose truth is known.

mod common;

use common::{seen, trace, whole};
use paceline_model::{Model, Seen, Tracker, TrackerOptions};

fn tracker(options: TrackerOptions) -> Tracker {
    Tracker::new(&Model::prior(), options)
}

fn survival(tracker: &Tracker, worker: u32, seconds: f64) -> f64 {
    let mut found = [0.0];
    tracker.outlook().survival(worker, &[seconds.ln()], &mut found);
    found[0]
}

/// The run-time that a worker exceeds with this probability.
fn quantile(tracker: &Tracker, worker: u32, above: f64) -> f64 {
    let (mut from, mut to) = (1e-4f64, 1e4f64);
    for _ in 0..60 {
        let middle = (from * to).sqrt();
        match survival(tracker, worker, middle) > above {
            true => from = middle,
            false => to = middle,
        }
    }
    to
}

#[test]
fn survival_falls_from_one_towards_zero() {
    let mut tracker = tracker(TrackerOptions::default());
    whole("nodes16-stalls:rounds=60", 1).iter().for_each(|round| tracker.learn(0, round));
    for worker in [0, 7, 15, 99] {
        let mut last = 1.0;
        for k in -60..80 {
            let now = survival(&tracker, worker, (f64::from(k) * 0.1).exp());
            assert!(now <= last + 1e-6 && now >= 0.0, "worker {worker}: {now} after {last}");
            last = now;
        }
        assert!(survival(&tracker, worker, 1e-3) > 0.999 && last < 0.02, "worker {worker}: {last}");
    }
}

/// Adaptation included: predictions depend on the rounds alone.
#[test]
fn the_same_rounds_give_the_same_prediction_bit_for_bit() {
    let rounds = whole("nodes16-stalls:rounds=80", 2);
    let run = || {
        let mut tracker = tracker(TrackerOptions::default());
        rounds.iter().for_each(|round| tracker.learn(0, round));
        (0..16).map(|worker| survival(&tracker, worker, 1.2).to_bits()).collect::<Vec<u64>>()
    };
    assert_eq!(run(), run());
}

#[test]
fn joint_draws_have_the_distribution_that_survival_says() {
    let mut tracker = tracker(TrackerOptions::default());
    whole("nodes16-stalls:rounds=150", 3).iter().for_each(|round| tracker.learn(0, round));
    let workers: Vec<u32> = (0..16).collect();
    let draws = tracker.outlook().draw(&workers, 4000, 5);
    for worker in [0usize, 9] {
        for above in [0.9, 0.5, 0.1] {
            let at = quantile(&tracker, worker as u32, above).ln() as f32;
            let found = draws.iter().filter(|draw| draw[worker] > at).count() as f64 / 4000.0;
            // Survival is computed from a few cases, which blurs it a little.
            assert!((found - above).abs() < 0.07, "worker {worker}: {found} above, not {above}");
        }
    }
}

/// Workers that were never seen, and workers that stay away, cost nothing.
#[test]
fn workers_come_and_go() {
    let rounds = whole("lognormal:n=12,sigma=0.05,rounds=90", 4);
    let mut tracker = tracker(TrackerOptions::default());
    for (t, round) in rounds.iter().enumerate() {
        let there = |worker: u32| match t {
            0..30 => worker < 6,
            30..60 => worker < 12 && worker != 2,
            _ => worker.is_multiple_of(2),
        };
        let mut part = Seen::default();
        for i in (0..12).filter(|&i| there(i as u32)) {
            part.workers.push(round.workers[i]);
            part.log_times.push(round.log_times[i]);
            part.observed.push(true);
        }
        tracker.learn(0, &part);
        let known = quantile(&tracker, 0, 0.5);
        assert!((known - 1.0).abs() < 0.2, "round {t}: {known}");
        if t == 29 {
            assert!(tracker.outlook().draw(&[0, 11], 10, 1).iter().all(|draw| draw.len() == 2));
            let newcomer = quantile(&tracker, 11, 0.5);
            assert!((newcomer - 1.0).abs() < 0.3, "{newcomer}");
        }
    }
}

/// When the first workers of a node that has been slow before arrive late, the node's others are
/// expected late as well, those of other nodes are not: the joint structure.
#[test]
fn members_of_a_slow_node_are_expected_late_together() {
    let trace = trace("nodes158:n=40,nodes=4,rounds=600", 5);
    let mut tracker = tracker(TrackerOptions::default());
    (0..600).for_each(|round| tracker.learn(0, &seen(&trace, round, 1.0)));
    tracker.outlook_mut().expect();
    let times: Vec<f64> = (0..40).map(|worker| quantile(&tracker, worker, 0.5)).collect();
    let before = |worker: u32| survival(&tracker, worker, 1.35 * times[worker as usize]);
    let (mine, other) = (before(9), before(39));
    // Seven of the first node take 1.8 times as long; of the others most come as usual.
    let arrived = (0..40u32).filter(|w| *w < 7 || (10..36).contains(w)).map(|worker| {
        let slow = if worker < 7 { 1.8 } else { 1.0 };
        (worker, (slow * times[worker as usize]).ln() as f32)
    });
    tracker.outlook_mut().look(arrived, std::iter::empty());
    let after = |worker: u32| survival(&tracker, worker, 1.35 * times[worker as usize]);
    assert!(after(9) > 0.8 && after(9) > mine + 0.5, "{mine} to {}", after(9));
    assert!(after(39) < other + 0.1, "{other} to {}", after(39));
}

/// Q1: half of every round is cut. Predicted times of workers against the truth, with the survival
/// likelihood and with the paper's draws.
#[test]
fn the_bias_of_cutting_half_of_every_round_is_small() {
    let trace = trace("lognormal:n=60,sigma=0.2,rounds=400", 6);
    // How far the predicted 50 % and 80 % points are from the true ones, in log time.
    let bias = |impute: bool| -> [f64; 2] {
        let mut tracker = tracker(TrackerOptions { impute, ..TrackerOptions::default() });
        let mut sums = [0.0; 2];
        for round in 0..400 {
            if round >= 200 && round % 10 == 0 {
                tracker.outlook_mut().expect();
                for worker in 0..60 {
                    sums[0] += quantile(&tracker, worker, 0.5).ln();
                    sums[1] += quantile(&tracker, worker, 0.2).ln() - 0.2 * 0.8416;
                }
            }
            tracker.learn(0, &seen(&trace, round, 0.5));
        }
        sums.map(|sum| sum / (20.0 * 60.0))
    };
    let (survival, imputed) = (bias(false), bias(true));
    println!("bias in log time at 50 % and 80 %: survival {survival:.3?}, imputed {imputed:.3?}");
    let worst = |bias: [f64; 2]| bias.iter().fold(0.0f64, |worst, x| worst.max(x.abs()));
    assert!(worst(survival) < 0.05, "{survival:?}");
    assert!(worst(imputed) < 0.05, "{imputed:?}");
}

/// A late report replaces a lower bound.
#[test]
fn a_late_report_is_learned_from() {
    let rounds = whole("lognormal:n=8,sigma=0.03,rounds=60", 7);
    let run = |late: bool| {
        let mut tracker = tracker(TrackerOptions::default());
        for (t, round) in rounds.iter().enumerate() {
            let mut round = round.clone();
            if t >= 40 {
                // Worker 3 became slow, and is cut each time.
                (round.log_times[3], round.observed[3]) = (0.1, false);
            }
            tracker.learn(t as u64, &round);
            if late && t >= 40 {
                tracker.late(t as u64, 3, 1.0);
            }
        }
        quantile(&tracker, 3, 0.5).ln()
    };
    let (without, with) = (run(false), run(true));
    assert!(with > without && (with - 1.0).abs() < 0.3, "{without} without, {with} with");
}
