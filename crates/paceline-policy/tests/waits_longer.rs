//! The case that one-sided feedback loses: the best expert always waits longer than the leader.

use paceline_policy::PolicySpec;
use paceline_sim::{Recorded, Replay};
use paceline_trace::{Cell, Trace, Unit, hindsight};

/// Run-times come in two lumps, at 1 and at 1.5, and each worker's lump is drawn anew each round, so
/// workers are indistinguishable. Waiting for all gains n/1.5, for the first lump n/2. After the first
/// lump nothing arrives for a long while, so a policy that stops there never sees what it misses.
#[test]
fn the_second_lump_is_found_and_kept() {
    let n = 12;
    let mut trace = Trace::of_size("lumps", Unit::Relative, n);
    let mut state = 1u64;
    for _ in 0..600 {
        let row: Vec<Cell> = (0..n)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let late = (state >> 33).is_multiple_of(2);
                let jitter = ((state >> 40) % 1000) as f64 / 1000.0 * 0.02;
                Cell::Observed(if late { 1.5 } else { 1.0 } + jitter)
            })
            .collect();
        trace.push_round(row);
    }
    let full = hindsight(&trace, 0.0, 1).full_rate;
    let spec: PolicySpec = "auto".parse().expect("a policy");
    let outcome = Replay::default().run(&mut Recorded::new(&trace, 0), 600, spec.build());
    let share = outcome.rate(0.0) / full;
    assert!(share > 0.97, "auto reaches {share:.3} of full sync");
}
