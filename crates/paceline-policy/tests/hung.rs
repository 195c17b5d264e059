//! Workers that hang: they are live, compute for ever, and never arrive. No learned policy waits for
//! ever for them, from the first round on or later.

use paceline_policy::PolicySpec;
use paceline_sim::{Replay, World};

/// Every policy that learns when to stop waiting.
const LEARNED: [&str; 12] = [
    "auto",
    "filter",
    "filter:commit",
    "empirical",
    "empirical:commit",
    "elfving",
    "elfving:renewal",
    "bdsgd",
    "bdsgd:paper",
    "bandit",
    "dropcompute",
    "dropcompute:3",
];

/// A run-time that no round should wait for, in seconds.
const NEVER: f64 = 1e9;

/// Workers that take about a second; from round `from` on only the first `sound` of them arrive.
struct Hanging {
    workers: usize,
    sound: usize,
    from: usize,
    passed: usize,
}

impl World for Hanging {
    fn workers(&self) -> usize {
        self.workers
    }

    fn next_round(&mut self, _seconds: f64) {
        self.passed += 1;
    }

    fn run_time(&self, worker: usize) -> Option<f64> {
        let jitter = ((self.passed * 7919 + worker * 104_729) % 1000) as f64 / 1000.0;
        let hangs = worker >= self.sound && self.passed > self.from;
        Some(if hangs { NEVER } else { 1.0 + 0.1 * jitter })
    }

    fn micro_ends(&self, _worker: usize) -> Option<&[f64]> {
        None
    }

    fn micro_batches(&self) -> usize {
        1
    }
}

/// How long each of 60 rounds takes, in seconds.
fn rounds(policy: &str, sound: usize, workers: usize, from: usize) -> Vec<f64> {
    let spec: PolicySpec = policy.parse().expect("a policy");
    let mut world = Hanging { workers, sound, from, passed: 0 };
    let outcome = Replay::default().run(&mut world, 60, spec.build());
    outcome.rounds.iter().map(|round| round.seconds).collect()
}

const SIZES: [(usize, usize); 6] = [(1, 2), (1, 5), (2, 10), (5, 10), (9, 10), (1, 64)];

#[test]
fn the_first_round_ends_though_most_workers_hang_from_the_start() {
    let mut slow = Vec::new();
    for policy in LEARNED {
        for (sound, workers) in SIZES {
            let first = rounds(policy, sound, workers, 0)[0];
            // Run-times of about a second have been seen, so a bounded multiple of that.
            if first > 36.0 {
                slow.push(format!("{policy}, {sound} of {workers}: {first:.1} s"));
            }
        }
    }
    assert!(slow.is_empty(), "{slow:#?}");
}

#[test]
fn later_rounds_end_too_whenever_workers_begin_to_hang() {
    let mut slow = Vec::new();
    for policy in LEARNED {
        for (sound, workers) in SIZES {
            for from in [0, 1, 12, 40] {
                let rounds = rounds(policy, sound, workers, from);
                let (at, longest) = rounds
                    .iter()
                    .copied()
                    .enumerate()
                    .max_by(|a, b| a.1.total_cmp(&b.1))
                    .expect("there are rounds");
                if longest > 45.0 {
                    let case = format!("{policy}, {sound} of {workers} from round {from} on");
                    slow.push(format!("{case}: round {at} takes {longest:.1} s"));
                }
            }
        }
    }
    assert!(slow.is_empty(), "{slow:#?}");
}

/// A policy that predicts each worker learns that the others do not come.
#[test]
fn workers_that_hang_cost_a_policy_that_predicts_next_to_nothing_in_the_end() {
    let mut slow = Vec::new();
    for policy in ["auto", "filter", "bdsgd"] {
        for (sound, workers) in SIZES {
            for from in [0, 12] {
                let rounds = rounds(policy, sound, workers, from);
                let mean = rounds[40..].iter().sum::<f64>() / 20.0;
                if mean > 2.0 {
                    slow.push(format!(
                        "{policy}, {sound} of {workers} from {from} on: {mean:.2} s"
                    ));
                }
            }
        }
    }
    assert!(slow.is_empty(), "{slow:#?}");
}
