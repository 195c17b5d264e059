//! Strict censoring must not feed on itself: workers that were cut for long are found again.

use paceline_policy::PolicySpec;
use paceline_sim::{Recorded, Replay, ReplayOutcome};
use paceline_trace::{Cell, Trace, Unit, hindsight};

/// The share of full sync's rate over the last third; the first rounds do not matter here.
fn late_share(trace: &Trace, policy: &str) -> f64 {
    let outcome = replayed(trace, policy);
    let from = outcome.rounds.len() * 2 / 3;
    let late = ReplayOutcome { rounds: outcome.rounds[from..].to_vec(), cost: outcome.cost };
    let mut tail = Trace::of_size("tail", Unit::Relative, trace.workers().len());
    for round in from..trace.rounds() {
        tail.push_round(trace.row(round).collect::<Vec<_>>());
    }
    late.rate(0.0) / hindsight(&tail, 0.0, 1).full_rate
}

fn replayed(trace: &Trace, policy: &str) -> ReplayOutcome {
    let spec: PolicySpec = policy.parse().expect("a policy");
    Replay::default().run(&mut Recorded::new(trace, 0), trace.rounds(), spec.build())
}

/// Small differences between workers and rounds, so that no two times are equal.
fn jitter(round: usize, worker: usize) -> f64 {
    let x = (round * 7919 + worker * 104_729) % 1000;
    1.0 + 0.02 * (x as f64 / 1000.0 - 0.5)
}

fn cluster(n: usize, rounds: usize, time: impl Fn(usize, usize) -> f64) -> Trace {
    let mut trace = Trace::of_size("cluster", Unit::Relative, n);
    for round in 0..rounds {
        let row = (0..n).map(|worker| Cell::Observed(time(round, worker) * jitter(round, worker)));
        trace.push_round(row.collect::<Vec<_>>());
    }
    trace
}

/// Half of the cluster is so slow for a while that it is rightly cut; then it is only a little
/// slower, and waiting for it pays (n/1.4 against n/2), but nobody has seen it since.
#[test]
fn a_slow_half_that_became_worth_waiting_for_is_found_again() {
    let trace = cluster(16, 600, |round, worker| match (worker < 8, round) {
        (true, _) => 1.0,
        (false, 50..150) => 4.0,
        (false, _) => 1.4,
    });
    for (policy, least) in [("filter", 0.95), ("auto", 0.95), ("bdsgd", 0.9)] {
        let share = late_share(&trace, policy);
        assert!(share > least, "{policy}: {share:.3} of full sync");
    }
}

/// A fast and a slow half from the first round on.
#[test]
fn a_slow_half_is_not_forgotten() {
    let trace = cluster(20, 300, |_, worker| if worker % 2 == 0 { 1.0 } else { 1.5 });
    for policy in ["filter", "auto", "bdsgd", "empirical"] {
        let share = late_share(&trace, policy);
        assert!(share > 0.95, "{policy}: {share:.3} of full sync");
    }
}

/// The spiral itself: everybody takes twice as long for a while. A rule that cuts early sees only
/// the fast, believes all are fast, and cuts earlier.
#[test]
fn a_phase_in_which_all_are_slow_does_not_teach_to_cut_early() {
    let trace = cluster(12, 400, |round, worker| {
        let phase = if (100..160).contains(&round) { 2.0 } else { 1.0 };
        phase * (1.0 + 0.3 * (((round * 31 + worker * 17) % 12) as f64) / 12.0)
    });
    for policy in ["filter", "auto", "bdsgd", "empirical"] {
        let share = late_share(&trace, policy);
        assert!(share > 0.97, "{policy}: {share:.3} of full sync");
    }
}

#[test]
fn a_stall_in_the_first_round_does_not_hold_it() {
    let trace = cluster(8, 40, |round, worker| if (round, worker) == (0, 3) { 1e4 } else { 1.0 });
    for policy in ["filter", "auto", "bdsgd"] {
        let outcome = replayed(&trace, policy);
        let first = &outcome.rounds[0];
        assert!(first.seconds < 5.0, "{policy}: the first round took {} s", first.seconds);
        assert_eq!(first.accepted, 7.0, "{policy}");
    }
}

/// One worker is so much faster than the others that the best cut is its arrival. An audit, which waits for
/// the others until they could not pay, lasts eight of these rounds.
#[test]
fn the_first_arrival_may_be_the_cut() {
    let trace = cluster(8, 400, |round, worker| match worker {
        0 => 1.0 + 0.01 * (round % 7) as f64,
        _ => 50.0 + ((round * 31 + worker * 17) % 20) as f64,
    });
    let oracle = hindsight(&trace, 0.0, 1).oracle_rate;
    for policy in ["filter", "auto"] {
        let share = replayed(&trace, policy).rate(0.0) / oracle;
        assert!(share > 0.83, "{policy}: {share:.3} of the oracle");
    }
}

/// A tenth of the workers is six times as fast as the others, in each round another tenth. Cuts after a
/// handful of arrivals hide how close together the others are.
#[test]
fn a_fast_minority_that_changes_does_not_make_rounds_short() {
    let trace = cluster(40, 300, |round, worker| {
        let fast = (worker * 7 + round * 13) % 10 == 0;
        let noise = 1.0 + 0.002 * ((round * 31 + worker * 17) % 19) as f64;
        if fast { 0.16 * noise } else { noise }
    });
    let full = hindsight(&trace, 0.0, 1).full_rate;
    for policy in ["auto", "filter", "empirical"] {
        let share = replayed(&trace, policy).rate(0.0) / full;
        assert!(share > 0.95, "{policy}: {share:.3} of full sync");
    }
}

/// Half of the workers are never worth waiting for: beliefs about them must not degrade, although they
/// only ever yield bounds.
#[test]
fn workers_that_are_always_cut_stay_believed_slow() {
    let trace = cluster(16, 900, |round, worker| {
        let noise = 1.0 + 0.02 * ((round * 31 + worker * 17) % 11) as f64;
        if worker < 8 { noise } else { 20.0 * noise }
    });
    let oracle = hindsight(&trace, 0.0, 1).oracle_rate;
    for policy in ["filter", "bdsgd", "auto"] {
        let share = replayed(&trace, policy).rate(0.0) / oracle;
        assert!(share > 0.85, "{policy}: {share:.3} of the oracle");
    }
}

#[test]
fn with_nothing_to_gain_auto_is_full_sync() {
    let trace = cluster(32, 200, |_, _| 1.0);
    let outcome = replayed(&trace, "auto");
    let share = outcome.rate(0.0) / hindsight(&trace, 0.0, 1).full_rate;
    assert!(share > 0.99, "{share:.4}");
}

#[test]
fn a_replay_is_the_same_bit_for_bit() {
    let spec = "nodes16-stalls:rounds=200".parse().expect("a preset");
    let trace = paceline_trace::generate(&spec, 3);
    for policy in ["auto", "filter", "bdsgd", "bandit", "elfving", "dropcompute"] {
        assert_eq!(replayed(&trace, policy).rounds, replayed(&trace, policy).rounds, "{policy}");
    }
}

/// One seed's figures, so that a change in them is a decision and not an accident.
#[test]
fn values_are_stable() {
    let spec = "nodes16-stalls:rounds=200".parse().expect("a preset");
    let trace = paceline_trace::generate(&spec, 3);
    let oracle = hindsight(&trace, 0.0, 1).oracle_rate;
    let share = |policy: &str| (replayed(&trace, policy).rate(0.0) / oracle * 1000.0).round();
    let policies = ["full", "static:0.75", "elfving", "empirical", "bandit", "filter", "auto"];
    assert_eq!(policies.map(share), [203.0, 875.0, 786.0, 908.0, 845.0, 961.0, 962.0]);
}
