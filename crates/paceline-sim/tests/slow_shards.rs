//! Slow and stopped shards in the simulated system: rounds that go on without them, within a bound.

use paceline_core::{Enough, Straggler};
use paceline_policy::{PolicySpec, wait_for_updates, wait_rule};
use paceline_sim::{Recorded, System, SystemOutcome, SystemSpec, Weak};
use paceline_trace::{Cell, Trace, Unit, generate};

/// Four workers that compute for 70 ms; shards fold their four gradients and update in five passes
/// of 6 ms: 30 % of a round.
const PACED: &str = "lan:shards=4,model=4MB,fold=166666667B,delay=0,server-bandwidth=1000000GB,\
                     worker-bandwidth=1000000GB";

fn system(changes: &str) -> System {
    let spec = format!("{PACED}{changes}");
    System::new(spec.parse::<SystemSpec>().expect("a system"))
}

fn run(system: System, pull: &str, max_stale: u64, trace: &Trace, policy: &str) -> SystemOutcome {
    run_both(system, (pull, "all"), max_stale, trace, policy)
}

fn run_both(
    system: System,
    (pull, push): (&str, &str),
    max_stale: u64,
    trace: &Trace,
    policy: &str,
) -> SystemOutcome {
    let blocks = vec![1; system.spec.shards as usize];
    let rule = |text: &str| text.parse::<Enough>().expect("a rule");
    let (pull, push) = (rule(pull), rule(push));
    let shards = Weak {
        shards: wait_for_updates(pull, &blocks, max_stale),
        pull: wait_rule(pull, &blocks, max_stale),
        push: wait_rule(push, &blocks, max_stale),
        max_stale,
    };
    let policy = policy.parse::<PolicySpec>().expect("a policy").build();
    system.run_over(shards, &mut Recorded::new(trace, 0), trace.rounds(), policy)
}

fn even(rounds: usize) -> Trace {
    let mut trace = Trace::of_size("even", Unit::Seconds, 4);
    for _ in 0..rounds {
        trace.push_round([Cell::Observed(0.07); 4]);
    }
    trace
}

/// Rounds per second with these changes, and the share of stale blocks.
fn rate(changes: &str, pull: &str) -> (f64, f64) {
    let outcome = run(system(changes), pull, 8, &even(200), "full");
    assert!(outcome.ledger_balanced);
    assert_eq!(outcome.samples.used, 800, "nobody's work is lost");
    (outcome.round_rate(), outcome.mean(|round| round.stale))
}

#[test]
fn a_slow_shard_costs_little_where_it_is_not_waited_for() {
    let (undisturbed, none) = rate("", "all");
    assert!((undisturbed - 10.0).abs() < 0.01, "{undisturbed} rounds a second");
    let (all, as_none) = rate(",slow-fold=5", "all");
    assert!((all / undisturbed - 100.0 / 220.0).abs() < 0.01, "{all} rounds a second");
    assert_eq!((none, as_none), (0.0, 0.0));
    for pull in ["0.75", "auto"] {
        let (rate, stale) = rate(",slow-fold=5", pull);
        assert!(rate > 0.95 * undisturbed, "{pull}: {rate} rounds a second");
        // It answers in 150 ms, so that of three rounds it misses two.
        assert!((stale - 2.0 / 3.0 / 4.0).abs() < 0.02, "{pull}: {stale}");
    }
}

/// Shards with links on which a push and a pull of four workers take 10 ms each; shard 0's is fifty
/// times slower.
const SLOW_LINK: &str = "lan:shards=4,model=4MB,fold=1000GB,delay=0,server-bandwidth=400MB,\
                         worker-bandwidth=1000000GB,slow-shard=0.02";

#[test]
fn a_slow_link_costs_little_where_neither_values_nor_parts_are_waited_for() {
    let trace = even(200);
    let run = |rules| {
        let system = System::new(SLOW_LINK.parse::<SystemSpec>().expect("a system"));
        let outcome = run_both(system, rules, 8, &trace, "full");
        assert!(outcome.ledger_balanced, "{rules:?}");
        assert_eq!(outcome.samples.used, 800, "{rules:?}: nobody's work is lost");
        let stale = outcome.mean(|round| round.stale);
        (outcome.round_rate(), stale, outcome.mean(|round| round.missed))
    };
    let (all, stale, missed) = run(("all", "all"));
    // 500 ms for the values, 70 to compute, 500 for the gradients.
    assert!((all - 1.0 / 1.07).abs() < 0.01, "{all} rounds a second");
    assert_eq!((stale, missed), (0.0, 0.0));
    let (pull, stale, missed) = run(("0.75", "all"));
    assert!(pull > 1.7 * all && stale > 0.1 && missed == 0.0, "{pull} {stale} {missed}");
    let (push, stale, missed) = run(("all", "0.75"));
    // 500 ms for the values, 70 to compute, 10 for most of the gradients; but in every ninth round 500.
    assert!((push - 9.0 / (8.0 * 0.58 + 1.07)).abs() < 0.01, "{push} rounds a second");
    assert!(stale == 0.0 && missed > 0.2, "{stale} {missed}");
    // At the bound both are waited for, with every ninth round.
    for both in ["0.75", "auto"] {
        let (rate, stale, missed) = run((both, both));
        assert!(rate > 4.5 * all, "{both}: {rate} rounds a second");
        assert!(stale > 0.2 && missed > 0.2, "{both}: {stale} {missed}");
    }
}

#[test]
fn with_nobody_slow_rules_for_pushes_lose_nothing() {
    for rule in ["0.25", "0.75", "auto"] {
        let outcome = |rules| run_both(system(""), rules, 8, &even(50), "full");
        let (all, weak) = (outcome(("all", "all")), outcome((rule, rule)));
        assert_eq!((weak.seconds, weak.samples), (all.seconds, all.samples), "{rule}");
        assert!(weak.rounds.iter().all(|round| round.missed == 0.0 && round.stale == 0.0));
    }
}

#[test]
fn nobody_is_left_behind_where_nobody_is_slow() {
    for pull in ["0.25", "0.75", "auto"] {
        assert_eq!(rate("", pull), rate("", "all"), "{pull}");
    }
}

#[test]
fn a_stopped_shard_is_waited_for_at_the_bound_and_not_before() {
    let (trace, system) = (even(100), system(",stop-every=40,stop-for=2s"));
    let longest = |outcome: &SystemOutcome| {
        outcome.rounds.iter().map(|round| round.seconds).fold(0.0, f64::max)
    };
    let all = run(system, "all", 8, &trace, "full");
    assert_eq!(all.awaited, 0, "there is no bound to come to");
    assert!((longest(&all) - 2.1).abs() < 0.001, "{}", longest(&all));
    // In rounds 40 and 80 it stops for as long as twenty rounds take.
    let bounded = run(system, "0.75", 8, &trace, "full");
    assert_eq!(bounded.awaited, 2);
    let stale = bounded.rounds.iter().filter(|round| round.stale > 0.0).count();
    assert_eq!(stale, 2 * 8);
    // It has missed eight updates, 0.8 s, and the ninth waits. An audit in between may take 30 ms of it.
    assert!((longest(&bounded) - 1.3).abs() < 0.03, "{}", longest(&bounded));
    let unbounded = run(system, "0.75", 1000, &trace, "full");
    assert_eq!(unbounded.awaited, 0);
    assert!((longest(&unbounded) - 0.1).abs() < 0.03, "{}", longest(&unbounded));
    assert!(all.seconds > bounded.seconds && bounded.seconds > unbounded.seconds);
}

#[test]
fn slow_workers_and_slow_shards_are_handled_together() {
    let trace = generate(&"nodes158-stalls:rounds=30".parse().expect("a trace"), 7);
    for spec in
        ["lan:slow-fold=5", "wan:slow-fold=20,slow-shard=0.5", "lan:stop-every=9,stop-for=20s"]
    {
        for pull in [("0.75", "all"), ("auto", "auto")] {
            let system = System::new(spec.parse::<SystemSpec>().expect("a system"));
            let weak = || run_both(system, pull, 8, &trace, "auto");
            let (outcome, again) = (weak(), weak());
            assert_eq!(outcome.rounds, again.rounds, "{spec} {pull:?}");
            assert!(outcome.ledger_balanced && outcome.rounds.len() == 30, "{spec} {pull:?}");
            let used: f64 = outcome.rounds.iter().map(|round| round.accepted).sum();
            assert_eq!(outcome.samples.used, used as u64, "{spec} {pull:?}");
            let all = run(system, "all", 8, &trace, "full");
            assert!(outcome.rate() > all.rate(), "{spec} {pull:?}");
        }
    }
}

#[test]
fn workers_that_finish_late_come_back_whatever_shards_their_round_had() {
    let mut trace = Trace::of_size("late", Unit::Seconds, 4);
    for round in 0..200_u32 {
        let late = 0.13 + 0.01 * f64::from(37 * round % 41);
        trace.push_round([0.07, 0.07, 0.07, late].map(Cell::Observed));
    }
    let system = System { straggler: Straggler::Finish, ..system(",slow-fold=5") };
    let all = run(system, "all", 8, &trace, "static:3");
    let weak = run(system, "0.75", 8, &trace, "static:3");
    // Given work, it is late with it, and is given work again.
    for (pull, outcome) in [("all", all), ("0.75", weak)] {
        let later = outcome.rounds.iter().skip(100).filter(|round| round.given == 4).count();
        assert!(outcome.ledger_balanced && later > 20, "{pull}: {later} times of 100");
    }
}
