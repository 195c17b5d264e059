//! The simulated system against the plain replay, against arithmetic, and against itself.

use paceline_core::Straggler;
use paceline_policy::PolicySpec;
use paceline_sim::{Recorded, Replay, System, SystemOutcome, SystemRound, SystemSpec};
use paceline_trace::{Cell, Trace, Unit, generate};

fn system(spec: &str) -> System {
    System::new(spec.parse::<SystemSpec>().expect("a system"))
}

fn trace(spec: &str) -> Trace {
    generate(&spec.parse().expect("a trace"), 7)
}

fn policy(name: &str) -> Box<dyn paceline_core::Policy> {
    name.parse::<PolicySpec>().expect("a policy").build()
}

fn run(system: System, trace: &Trace, name: &str) -> SystemOutcome {
    system.run(&mut Recorded::new(trace, 0), trace.rounds(), policy(name))
}

/// A trace in which every worker takes `seconds` in every round.
fn even(workers: usize, rounds: usize, seconds: f64) -> Trace {
    let mut trace = Trace::of_size("even", Unit::Seconds, workers);
    for _ in 0..rounds {
        trace.push_round((0..workers).map(|_| Cell::Observed(seconds)));
    }
    trace
}

#[track_caller]
fn near(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-6 * b.abs().max(1e-3), "{a} is not {b}");
}

#[test]
fn without_communication_it_is_the_plain_replay() {
    for spec in ["nodes158-stalls:rounds=60", "lognormal:n=40,sigma=0.4,rounds=120"] {
        let trace = trace(spec);
        for name in
            ["full", "static:0.8", "auto", "filter", "bandit", "deadline:1.1", "dropcompute:10"]
        {
            for straggler in [Straggler::Abort, Straggler::Finish] {
                let replay = Replay { straggler, ..Replay::default() };
                let plain = replay.run(&mut Recorded::new(&trace, 0), trace.rounds(), policy(name));
                // The replay has no ledger, so it never waits for returned samples.
                let whole = System { straggler, patience: u32::MAX, ..system("tiny") };
                let whole = run(whole, &trace, name);
                let accepted = |r: &SystemRound| r.accepted;
                let ours: Vec<f64> = whole.rounds.iter().map(accepted).collect();
                let theirs: Vec<f64> = plain.rounds.iter().map(|r| r.accepted).collect();
                assert_eq!(ours, theirs, "{spec} {name} {straggler}");
                if straggler == Straggler::Abort {
                    near(whole.rate(), plain.rate(0.0));
                }
                assert!(whole.ledger_balanced);
            }
        }
    }
}

#[test]
fn absent_workers_leave_and_come_back_as_in_the_replay() {
    let mut trace = Trace::of_size("gaps", Unit::Seconds, 4);
    for round in 0..30_usize {
        let there = |worker: usize| round % 7 != 3 && !(round + worker).is_multiple_of(3);
        trace.push_round((0..4).map(|worker| match there(worker) {
            true => Cell::Observed(1.0 + 0.1 * worker as f64),
            false => Cell::Absent,
        }));
    }
    for straggler in [Straggler::Abort, Straggler::Finish] {
        let replay = Replay { straggler, ..Replay::default() };
        let plain = replay.run(&mut Recorded::new(&trace, 0), 30, policy("static:2"));
        let whole =
            run(System { straggler, patience: u32::MAX, ..system("tiny") }, &trace, "static:2");
        let ours: Vec<f64> = whole.rounds.iter().map(|r| r.accepted).collect();
        let theirs: Vec<f64> = plain.rounds.iter().map(|r| r.accepted).collect();
        assert_eq!(ours, theirs, "{straggler}");
        let delayed = run(System { straggler, ..system("lan") }, &trace, "static:2");
        assert!(delayed.ledger_balanced && delayed.rounds.len() == whole.rounds.len());
    }
}

#[test]
fn a_round_of_equals_takes_what_arithmetic_says() {
    // 8 workers, 2 shards with 50 MB each at 100 MB/s: 4 s each way; four delays; folding hides
    // behind the incast but for the eight that end together, and the update is one pass more.
    let spec = "lan:model=100MB,shards=2,server-bandwidth=100MB,delay=10ms,fold=1GB";
    let outcome = run(system(spec), &even(8, 5, 2.0), "full");
    near(outcome.mean(|r| r.pull), 4.0 + 0.03);
    near(outcome.mean(|r| r.compute), 2.0);
    near(outcome.mean(|r| r.push), 4.0 + 0.01);
    near(outcome.mean(|r| r.overhead), 9.0 * 0.05);
    near(outcome.mean(|r| r.seconds), 10.04 + 0.45);
    near(outcome.server_utilisation, 8.0 / 10.49);
    near(outcome.rate(), 8.0 / 10.49);
    assert_eq!((outcome.samples.used, outcome.samples.requeued), (40, 0));
}

#[test]
fn a_workers_own_link_bounds_it() {
    // 100 MB at 50 MB/s, whatever the shards could do.
    let spec = "lan:worker-bandwidth=50MB,delay=0,shards=4";
    let outcome = run(system(spec), &even(3, 2, 1.0), "full");
    near(outcome.mean(|r| r.pull), 2.0);
    near(outcome.mean(|r| r.push), 2.0);
}

#[test]
fn a_slow_shard_holds_up_everybody() {
    let even = even(8, 3, 1.0);
    let plain = run(system("lan:server-bandwidth=100MB,delay=0"), &even, "full");
    let slow = run(system("lan:server-bandwidth=100MB,delay=0,slow-shard=0.25"), &even, "full");
    near(slow.mean(|r| r.pull), 4.0 * plain.mean(|r| r.pull));
    assert!(slow.ledger_balanced);
}

#[test]
fn the_parts_of_a_round_add_up_and_no_sample_is_lost() {
    let trace = trace("nodes158-stalls:rounds=40");
    for spec in ["lan", "wan", "high-communication", "lan:slow-shard=0.5,delay=200ms", "tiny"] {
        for name in ["full", "static:0.7", "auto", "deadline:0.1"] {
            for straggler in [Straggler::Abort, Straggler::Finish] {
                let outcome = run(System { straggler, ..system(spec) }, &trace, name);
                assert_eq!(outcome.rounds.len(), 40, "{spec} {name} {straggler}");
                for r in &outcome.rounds {
                    let parts = r.pull + r.compute + r.push + r.wait + r.overhead;
                    let late = straggler == Straggler::Finish;
                    assert!(late || (parts - r.seconds).abs() < 1e-6, "{spec} {name} {r:?}");
                }
                let used: f64 = outcome.rounds.iter().map(|r| r.accepted).sum();
                assert_eq!(outcome.samples.used, used as u64, "{spec} {name}");
                assert!(outcome.ledger_balanced, "{spec} {name}");
                assert!((0.0..=1.0).contains(&outcome.server_utilisation));
            }
        }
    }
}

#[test]
fn one_seed_gives_one_outcome_bit_for_bit() {
    let trace = trace("nodes158-stalls:rounds=50");
    for spec in ["wan:slow-shard=0.3", "high-communication"] {
        let [a, b] = [0, 1].map(|_| run(system(spec), &trace, "auto"));
        assert_eq!(a.rounds, b.rounds);
        assert_eq!(a.seconds.to_bits(), b.seconds.to_bits());
        assert_eq!(a.server_utilisation.to_bits(), b.server_utilisation.to_bits());
        assert_eq!(a.samples, b.samples);
    }
}

#[test]
fn communication_dominates_where_it_is_said_to() {
    let outcome = run(system("high-communication"), &trace("nodes158:rounds=20"), "full");
    let (talk, compute) = (outcome.mean(|r| r.pull + r.push), outcome.mean(|r| r.compute));
    assert!(talk > 3.0 * compute, "{talk} s of communication, {compute} s of computing");
    assert!(outcome.server_utilisation > 0.75, "{}", outcome.server_utilisation);
}

#[test]
#[ignore = "takes minutes: run with --release --ignored --nocapture"]
fn ten_thousand_workers_do_a_thousand_rounds_in_a_minute_beside_what_deciding_takes() {
    let trace = trace("nodes158-stalls:n=10000,rounds=1000");
    let began = std::time::Instant::now();
    let outcome = run(system("tiny"), &trace, "auto");
    let took = began.elapsed();
    println!("{took:.1?}, deciding {:.1?}, p99 {:?}", outcome.cost.total, outcome.cost.p99());
    println!("accepted {:.4}, {:?}", outcome.accepted_share(), outcome.samples);
    assert_eq!(outcome.rounds.len(), 1000);
    assert!(outcome.ledger_balanced);
    let beside = took.saturating_sub(outcome.cost.total);
    assert!(beside.as_secs() < 60, "{beside:.1?}");
}
