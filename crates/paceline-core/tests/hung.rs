//! Workers that hang, told as short scripts on simulated time: no round and no run waits for them for ever.

mod script;

use std::time::Duration;

use paceline_core::{
    Coordinator, Ledger, MachineError, Policy, Round, RoundConfig, Shards, StopReason, Straggler,
    WorkerId,
};
use script::{First, Script, dropped_too_often, hand};

#[test]
fn of_a_hung_worker_the_core_remembers_two_contributions_however_many_rounds_pass() {
    let mut s = Script::new(2, First(1), RoundConfig::default());
    for round in 0..500 {
        s.wait(10).arrive(0, round).publish();
    }
    let known = |s: &Script| {
        let ids = (0..=500).map(|base| s.id(1, base));
        ids.filter(|&id| s.coordinator.contribution(WorkerId(1), id).is_some()).count()
    };
    assert_eq!(known(&s), 2, "the one it has, and the last that a close took");
    // It wakes up and answers for everything, in order.
    for round in 0..500 {
        s.abort(1, round).unwrap();
    }
    assert_eq!(known(&s), 1);
    let (worker, id) = (WorkerId(1), s.id(1, 7));
    assert_eq!(s.abort(1, 7), Err(MachineError::NotGiven { worker, id }), "it has said so before");
}

#[test]
fn patience_with_samples_that_came_back_too_often_has_an_end() {
    let mut s = dropped_too_often();
    s.wait(20).arrive(0, 3).arrive(2, 3).check(&["arrived w0", "arrived w2"]);
    // Worker 1 hangs. The usual run-time is below the least patience.
    s.wait(79).check(&[]);
    let end = s.coordinator.next_wake().expect("its patience has an end");
    assert_eq!(end.since(s.now), Duration::from_millis(1));
    s.wait(1);
    assert_eq!(s.log[0], "cut, 1 arrived: w1");
    s.publish();
    assert_eq!(hand(&s, 0), (10, 20), "its samples go to a worker that delivers");
}

/// Two workers, one of which hangs with the last samples of the run.
fn hung_with_the_last_samples(policy: impl Policy + 'static) -> Script {
    let config = RoundConfig {
        straggler: Straggler::Finish,
        expected: 2,
        batch: 10,
        ..RoundConfig::default()
    };
    let mut s = Script::new(0, First(1), config.clone());
    let ledger = Ledger::new(30, Some(1));
    s.coordinator = Coordinator::new(config, Box::new(policy), ledger, Shards::all(1), Round(0));
    s.join(0).join(1).advance();
    s.wait(20).arrive(0, 0).publish().wait(20).arrive(0, 1).publish();
    assert_eq!((hand(&s, 0), hand(&s, 1)), ((20, 30), (10, 20)));
    s.log.clear();
    s
}

#[test]
fn the_last_samples_of_a_hung_worker_get_a_second_holder_and_one_of_the_two_counts() {
    let mut s = hung_with_the_last_samples(First(1));
    assert_eq!(s.coordinator.stop_reason(s.now), None);
    s.wait(119).check(&[]);
    let overdue = s.coordinator.next_wake().expect("the last samples are overdue");
    assert_eq!(overdue.since(s.now), Duration::from_millis(1));
    s.wait(1).check(&["round 2: w0"]);
    assert_eq!(hand(&s, 0), (10, 20));
    s.wait(20).arrive(0, 2).check(&[
        "superseded w1 by w0",
        "arrived w0",
        "cut, all arrived:",
        "closed w0 (w0=0.020000)",
    ]);
    s.publish();
    assert_eq!(s.coordinator.stop_reason(s.now), Some(StopReason::Epochs));
    assert_eq!(s.coordinator.ledger().counts().used, 30);
    // The other comes to an end after all: nothing of it counts.
    s.arrive(1, 0);
    assert_eq!(s.log[0], "late w1 v0 0.180000");
    assert_eq!(s.coordinator.ledger().counts().used, 30);
    assert!(s.coordinator.report().balanced);
}

#[test]
fn a_second_holder_that_dies_leaves_the_first_in_possession() {
    let mut s = hung_with_the_last_samples(First(1));
    s.wait(120).leave(0).check(&["round 2: w0", "left w0"]);
    assert!(s.coordinator.report().balanced);
    // And a third gets them, while the first still computes.
    s.join(2).advance().check(&["enlisted w2"]);
    s.wait(5).arrive(2, 2);
    assert_eq!(s.log[..2], ["superseded w1 by w2", "arrived w2"]);
    assert_eq!(s.coordinator.ledger().counts().used, 30);
}

#[test]
fn a_worker_that_comes_back_is_given_work_though_a_hung_one_is_in_the_round() {
    let mut s = Script::new(2, First(1), RoundConfig::default());
    for round in 0..3 {
        s.wait(20).arrive(0, round).publish();
    }
    s.leave(0).join(0).advance();
    s.log.clear();
    s.wait(99).check(&[]);
    assert!(s.coordinator.next_wake().is_some_and(|at| at > s.now));
    s.wait(100);
    assert_eq!(s.log, ["enlisted w0"]);
    s.arrive(0, 3);
    assert!(s.log.contains(&"cut, 1 arrived: w1".to_owned()), "{:?}", s.log);
}

#[test]
fn of_two_holders_that_hang_the_first_gives_way_to_a_third() {
    let mut s = hung_with_the_last_samples(First(1));
    s.join(2).wait(120);
    let second = [0, 2].into_iter().find(|&worker| hand(&s, worker) == (10, 20));
    let second = second.expect("the samples have a second holder");
    s.log.clear();
    // It hangs as well.
    s.wait(500);
    let third = 2 - second;
    assert_eq!(s.log[..1], [format!("superseded w1 by w{second}")], "{:?}", s.log);
    assert_eq!(hand(&s, third), (10, 20));
    assert!(s.coordinator.report().balanced);
}
