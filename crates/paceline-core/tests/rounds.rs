//! The life of a round, told as short scripts on simulated time.

mod script;

use std::time::Duration;

use paceline_core::{
    Announcement, Coordinator, Ledger, MachineError, Phase, Round, RoundConfig, RunTime, Shards,
    StopReason, Straggler, WorkerId,
};
use script::{First, Script, dropped_too_often, hand};

#[test]
fn a_count_cuts_and_stragglers_run_times_are_censored() {
    let mut s = Script::new(3, First(2), RoundConfig::default());
    s.wait(10).arrive(2, 0).wait(5).arrive(0, 0).check(&[
        "round 0: w0 w1 w2",
        "arrived w2",
        "arrived w0",
        "cut, 2 arrived: w1",
        "closed w0 w2 (w0=0.015000 w1=>=0.015000 w2=0.010000)",
    ]);
    s.publish().check(&["round 1: w0 w1 w2"]);
}

#[test]
fn late_gradient_never_reaches_the_sum_and_its_run_time_is_still_learned() {
    let mut s = Script::new(2, First(1), RoundConfig::default());
    s.arrive(0, 0).publish().wait(7).put(1, 0, 10.0).advance().check(&[
        "round 0: w0 w1",
        "arrived w0",
        "cut, 1 arrived: w1",
        "closed w0 (w0=0.000000 w1=>=0.000000)",
        "round 1: w0 w1",
        "late w1 v0 0.007000",
    ]);
    assert_eq!(s.coordinator.ledger().counts().dropped, 10);
    // The work it has in hand by then is still its own.
    s.arrive(1, 1);
    assert_eq!(s.log[0], "arrived w1");
}

#[test]
fn a_finishing_straggler_misses_the_rounds_meanwhile() {
    let config = RoundConfig { straggler: Straggler::Finish, ..RoundConfig::default() };
    let mut s = Script::new(2, First(1), config);
    s.arrive(0, 0).publish().wait(3).arrive(0, 1).publish().arrive(1, 0).check(&[
        "round 0: w0 w1",
        "arrived w0",
        "cut, 1 arrived: w1",
        "closed w0 (w0=0.000000 w1=>=0.000000)",
        "round 1: w0",
        "arrived w0",
        "cut, all arrived:",
        "closed w0 (w0=0.003000)",
        "round 2: w0",
        "late w1 v0 0.003000",
    ]);
    s.arrive(0, 2).publish().check(&[
        "arrived w0",
        "cut, all arrived:",
        "closed w0 (w0=0.000000)",
        "round 3: w0 w1",
    ]);
}

#[test]
fn a_finishing_straggler_that_cannot_finish_is_given_work_again() {
    // Its version was gone before it could pull it.
    let config = RoundConfig { straggler: Straggler::Finish, ..RoundConfig::default() };
    let mut s = Script::new(2, First(1), config);
    s.arrive(0, 0).publish().log.clear();
    s.abort(1, 0).unwrap();
    s.advance().check(&["aborted w1 at 1"]);
    s.arrive(0, 1).publish();
    assert_eq!(s.log.last().unwrap(), "round 2: w0 w1");
    assert_eq!(s.coordinator.ledger().counts().requeued, 10);
}

#[test]
fn only_who_was_cut_may_give_up() {
    let mut s = Script::new(2, First(1), RoundConfig::default());
    let (worker, id) = (WorkerId(1), s.id(1, 0));
    assert_eq!(s.abort(1, 0), Err(MachineError::NotCut { worker, id }));
    s.arrive(0, 0).log.clear();
    s.abort(1, 0).unwrap();
    s.advance().check(&["aborted w1 at 1"]);
    assert_eq!(s.abort(1, 0), Err(MachineError::NotGiven { worker, id }));
}

#[test]
fn work_that_a_straggler_never_looked_at_is_forgotten_once_it_speaks_of_newer() {
    let mut s = Script::new(2, First(1), RoundConfig::default());
    for version in 0..3 {
        s.arrive(0, version).publish();
    }
    s.abort(1, 1).unwrap();
    let (worker, id) = (WorkerId(1), s.id(1, 0));
    assert_eq!(s.abort(1, 0), Err(MachineError::NotGiven { worker, id }));
    s.abort(1, 2).unwrap();
}

#[test]
fn a_dead_worker_leaves_the_round_at_once_and_its_samples_go_to_others() {
    let mut s = Script::new(2, First(9), RoundConfig::default());
    s.arrive(0, 0).leave(1).check(&[
        "round 0: w0 w1",
        "arrived w0",
        "left w1",
        "cut, all arrived:",
        "closed w0 (w0=0.000000)",
    ]);
    s.publish();
    assert_eq!(s.coordinator.ledger().counts().requeued, 10);
}

#[test]
fn a_worker_that_died_after_it_arrived_stays_in_the_sum() {
    let mut s = Script::new(2, First(9), RoundConfig::default());
    s.arrive(0, 0).leave(0).arrive(1, 0).check(&[
        "round 0: w0 w1",
        "arrived w0",
        "left w0",
        "arrived w1",
        "cut, all arrived:",
        "closed w0 w1 (w0=0.000000 w1=0.000000)",
    ]);
    assert_eq!(s.coordinator.ledger().counts().used, 20);
}

#[test]
fn fewer_live_than_the_quorum_stops_the_run_only_after_the_grace() {
    let config = RoundConfig { quorum: 2, ..RoundConfig::default() };
    let mut s = Script::new(2, First(1), config);
    s.arrive(0, 0).leave(1).check(&["round 0: w0 w1", "arrived w0", "left w1"]);
    assert_eq!(s.coordinator.machine().phase(), Phase::Open, "one is not a quorum of two");
    s.wait(9_999);
    assert_eq!(s.coordinator.stop_reason(s.now), None);
    s.wait(1);
    let grace = Duration::from_secs(10);
    let lost = StopReason::QuorumLost { live: 1, quorum: 2, grace };
    assert_eq!(s.coordinator.stop_reason(s.now), Some(lost));
}

#[test]
fn a_worker_that_comes_within_the_grace_rescues_the_round() {
    let config = RoundConfig { quorum: 2, ..RoundConfig::default() };
    let mut s = Script::new(2, First(1), config);
    s.arrive(0, 0).leave(1).wait(5_000).join(7).advance().arrive(7, 0).check(&[
        "round 0: w0 w1",
        "arrived w0",
        "left w1",
        "enlisted w7",
        "arrived w7",
        "cut, all arrived:",
        "closed w0 w7 (w0=0.000000 w7=0.000000)",
    ]);
    s.wait(60_000);
    assert_eq!(s.coordinator.stop_reason(s.now), None);
}

#[test]
fn a_joiner_does_not_stall_the_open_round() {
    let mut s = Script::new(1, First(9), RoundConfig::default());
    s.join(1).advance().arrive(0, 0).publish().check(&[
        "round 0: w0",
        "arrived w0",
        "cut, all arrived:",
        "closed w0 (w0=0.000000)",
        "round 1: w0 w1",
    ]);
}

#[test]
fn the_first_round_waits_for_the_expected_workers_but_not_for_ever() {
    let mut s = Script::new(0, First(9), RoundConfig { expected: 3, ..RoundConfig::default() });
    s.coordinator = Coordinator::new(
        RoundConfig { expected: 3, batch: 10, ..RoundConfig::default() },
        Box::new(First(9)),
        Ledger::new(100, None),
        Shards::all(1),
        Round(0),
    );
    s.join(0).join(1).advance().wait(59_000).check(&[]);
    s.wait(1_000).check(&["round 0: w0 w1"]);
}

#[test]
fn what_a_straggler_gives_back_goes_to_another_worker_first() {
    // The straggler is asked before the other, and still gets fresh samples.
    let mut s = Script::new(2, First(1), RoundConfig::default());
    assert_eq!(hand(&s, 0), (0, 10));
    s.arrive(1, 0).publish();
    assert_eq!((hand(&s, 0), hand(&s, 1)), ((20, 30), (0, 10)));
    s.arrive(1, 1).publish();
    assert_eq!((hand(&s, 0), hand(&s, 1)), ((30, 40), (20, 30)));
}

#[test]
fn samples_dropped_too_often_are_waited_for() {
    let mut s = dropped_too_often();
    s.arrive(0, 3).check(&["arrived w0"]);
    s.arrive(2, 3).check(&["arrived w2"]);
    // Its death is the one thing that ends the wait.
    s.leave(1);
    assert_eq!(s.log[..2], ["left w1", "cut, all arrived:"]);
}

#[test]
fn a_worker_of_whom_nothing_came_is_not_waited_for() {
    let mut s = dropped_too_often();
    s.arrive(1, 3);
    assert_eq!(s.log[..2], ["arrived w1", "cut, 1 arrived: w0 w2"]);
    s.log.clear();
    // What it had goes to whoever comes.
    s.publish();
    assert_eq!(hand(&s, 1), (20, 30));
}

#[test]
fn an_accepted_contribution_is_not_used_until_its_round_closes() {
    let mut s = Script::new(2, First(2), RoundConfig::default());
    s.arrive(0, 0);
    assert_eq!(s.coordinator.ledger().counts().used, 0);
    let resumed = Ledger::resume(&s.coordinator.ledger().state(), 1000, None).unwrap();
    assert!(resumed.report(std::iter::empty()).balanced);
    s.arrive(1, 0);
    assert_eq!(s.coordinator.ledger().counts().used, 20);
}

#[test]
fn impossible_reports_are_refused() {
    let mut s = Script::new(2, First(2), RoundConfig::default());
    let mut report_norm = |worker, base, weight, loss, square| {
        s.stage(worker, base, 0);
        let announcement =
            Announcement { id: s.id(worker, base), weight, loss: Some(loss), square };
        let refused = s.coordinator.handle_done(WorkerId(worker), announcement, s.now);
        refused.unwrap_err().to_string()
    };
    for square in [-1.0, f64::NAN, f64::INFINITY] {
        let refused = format!("w0 reports {square} as the squared norm of its gradient");
        assert_eq!(report_norm(0, 0, 10.0, 0.0, Some(square)), refused);
    }
    let mut report = |worker, base, weight, loss| report_norm(worker, base, weight, loss, None);
    assert_eq!(report(5, 0, 1.0, 0.0), "w5 is not a live worker");
    assert_eq!(report(0, 9, 1.0, 0.0), "w0 has no contribution c18446744073709551615");
    assert_eq!(report(0, 0, 11.0, 0.0), "w0 claims weight 11 for 10 samples");
    assert_eq!(report(0, 0, f64::NAN, 0.0), "w0 claims weight NaN for 10 samples");
    assert_eq!(report(0, 0, 0.0, 0.0), "w0 claims weight 0 for 10 samples");
    assert_eq!(report(0, 0, 10.0, f64::INFINITY), "w0 reports a loss of inf");
}

#[test]
fn run_times_print_as_traces_write_them() {
    assert_eq!(RunTime::Observed(Duration::from_millis(1500)).to_string(), "1.500000");
    let censored = RunTime::Censored { at_least: Duration::from_secs(2) };
    assert_eq!(censored.to_string(), ">=2.000000");
}

#[test]
fn the_last_samples_of_an_epoch_close_a_round_with_fewer_than_the_quorum() {
    let config = RoundConfig { quorum: 2, expected: 2, batch: 10, ..RoundConfig::default() };
    let mut s = Script::new(0, First(9), config.clone());
    let ledger = Ledger::new(10, Some(1));
    s.coordinator = Coordinator::new(config, Box::new(First(9)), ledger, Shards::all(1), Round(0));
    s.join(0).join(1).advance().arrive(0, 0).publish().check(&[
        "round 0: w0",
        "arrived w0",
        "cut, all arrived:",
        "closed w0 (w0=0.000000)",
    ]);
    assert_eq!(s.coordinator.stop_reason(s.now), Some(StopReason::Epochs));
}

#[test]
fn a_worker_may_give_up_what_it_announced_however_late_it_says_so() {
    // Its push is slow: two rounds close before it gives up between two blocks.
    let mut s = Script::new(2, First(1), RoundConfig::default());
    s.done(1, 0, 10.0).unwrap();
    for round in 0..3 {
        s.arrive(0, round).publish();
    }
    let forgotten = (WorkerId(1), s.id(1, 0));
    assert!(s.coordinator.take_discards().contains(&forgotten), "its permission to push is free");
    s.abort(1, 0).unwrap();
    // It announces work that is forgotten already, and gives that up, too.
    s.done(1, 1, 10.0).unwrap();
    s.abort(1, 1).unwrap();
    s.arrive(1, 3);
    assert!(s.log.contains(&"arrived w1".to_owned()), "{:?}", s.log);
}
