//! Salvage: the finished micro-batches of a straggler count, and its run-time stays unknown.

use paceline_core::Straggler;
use paceline_policy::PolicySpec;
use paceline_sim::{Recorded, Replay, ReplayOutcome};
use paceline_trace::{Cell, Trace, Unit, deadlines, generate};

const MICRO_BATCHES: usize = 4;

fn replayed(trace: &Trace, policy: &str) -> ReplayOutcome {
    let spec: PolicySpec = policy.parse().expect("a policy");
    let replay = Replay { straggler: Straggler::Salvage, ..Replay::default() };
    replay.run(&mut Recorded::new(trace, 0), trace.rounds(), spec.build())
}

/// Micro-batches of equal length, except that `stall` seconds pass inside the micro-batch `within`.
fn ends(run_time: f64, stall: f64, within: usize) -> impl Iterator<Item = f64> {
    let each = run_time / MICRO_BATCHES as f64;
    (0..MICRO_BATCHES).map(move |j| each * (j + 1) as f64 + if j >= within { stall } else { 0.0 })
}

/// A preset's run-times, in equal micro-batches; what exceeds three times the round's median is a stall
/// inside one of them.
fn with_micro_batches(preset: &str, seed: u64) -> Trace {
    let whole = generate(&preset.parse().expect("a preset"), seed);
    let mut trace = Trace::of_size(preset, Unit::Relative, whole.workers().len());
    for round in 0..whole.rounds() {
        let times: Vec<f64> = whole.row(round).filter_map(Cell::bound).collect();
        let mut sorted = times.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let middle = sorted[sorted.len() / 2];
        let row: Vec<f64> = times
            .iter()
            .enumerate()
            .flat_map(|(worker, &time)| {
                let usual = if time > 3.0 * middle { middle } else { time };
                ends(usual, time - usual, (round + worker) % MICRO_BATCHES)
            })
            .collect();
        trace.push_micro_round(MICRO_BATCHES, &row);
    }
    trace
}

/// The pace of a straggler's finished micro-batches foretells its arrival inside the round; that its
/// run-time is learnt as a lower bound costs next to nothing.
#[test]
fn with_lower_bounds_alone_the_renewal_rule_stays_near_the_best_deadlines() {
    for preset in ["nodes16-stalls:rounds=300", "nodes158:n=48,nodes=4,rounds=300"] {
        let trace = with_micro_batches(preset, 3);
        let best = deadlines(&trace, 0.0).clairvoyant_rate;
        for policy in ["filter", "auto", "bdsgd", "empirical"] {
            let share = replayed(&trace, policy).rate(0.0) / best;
            assert!(share > 0.96, "{preset} {policy}: {share:.3} of the best");
        }
    }
}
