//! Decisions do not depend on the unit of time: a replay with all times × 0.001 or × 1,000 cuts at the same
//! arrivals.

use paceline_core::Straggler;
use paceline_policy::PolicySpec;
use paceline_sim::{Recorded, Replay, World};
use paceline_trace::{RandomClusters, Trace, generate};

const MICRO_BATCHES: usize = 4;

/// A trace with all times multiplied by a factor, and micro-batches that are not quite evenly spaced: an exact forecast would be
/// met or missed by rounding.
struct Scaled<'a> {
    trace: Recorded<'a>,
    by: f64,
    ends: Vec<Vec<f64>>,
}

impl World for Scaled<'_> {
    fn workers(&self) -> usize {
        self.trace.workers()
    }

    fn next_round(&mut self, seconds: f64) {
        self.trace.next_round(seconds / self.by);
        let ends = |run_time: f64| {
            let end = |j| run_time * (j as f64 / MICRO_BATCHES as f64).powf(1.1);
            (1..=MICRO_BATCHES).map(end).collect()
        };
        self.ends = (0..self.workers()).map(|w| self.run_time(w).map_or(vec![], ends)).collect();
    }

    fn run_time(&self, worker: usize) -> Option<f64> {
        Some(self.trace.run_time(worker)? * self.by)
    }

    fn micro_ends(&self, worker: usize) -> Option<&[f64]> {
        Some(&self.ends[worker])
    }

    fn micro_batches(&self) -> usize {
        MICRO_BATCHES
    }
}

/// The accepted work of every round.
fn accepted(trace: &Trace, by: f64, straggler: Straggler, policy: PolicySpec) -> Vec<f64> {
    let mut world = Scaled { trace: Recorded::new(trace, 0), by, ends: Vec::new() };
    let replay = Replay { straggler, ..Replay::default() };
    let outcome = replay.run(&mut world, trace.rounds().min(150), policy.build());
    outcome.rounds.iter().map(|round| round.accepted).collect()
}

fn assert_same_in_all_units(straggler: Straggler, policy: &str) {
    let policy: PolicySpec = policy.parse().expect("a policy");
    let (mut same, mut all) = (0, 0);
    for number in 0..10 {
        let cluster = RandomClusters::new(77).cluster(number);
        let trace = generate(&cluster.spec(), cluster.seed());
        let plain = accepted(&trace, 1.0, straggler, policy);
        for by in [1e-3, 1e3] {
            let scaled = accepted(&trace, by, straggler, policy);
            same += plain.iter().zip(&scaled).filter(|(a, b)| a == b).count();
            all += plain.len();
        }
    }
    // Clocks tick in nanoseconds whatever the unit, and in a dense cluster a difference of a tick grows from round to
    // round: a few clusters in a hundred cut an arrival earlier or later after some seventy rounds.
    assert!(same as f64 >= 0.995 * all as f64, "{policy}: the same in {same} of {all} rounds");
}

#[test]
fn auto_decides_the_same_in_every_unit_of_time() {
    assert_same_in_all_units(Straggler::Abort, "auto");
}

#[test]
fn auto_with_salvage_decides_the_same_in_every_unit_of_time() {
    assert_same_in_all_units(Straggler::Salvage, "auto");
}

#[test]
fn its_parts_decide_the_same_in_every_unit_of_time() {
    for policy in ["filter", "bdsgd", "empirical"] {
        assert_same_in_all_units(Straggler::Abort, policy);
    }
}
