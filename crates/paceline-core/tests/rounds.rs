//! The life of a round, told as short scripts on simulated time.

mod script;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use paceline_core::{
    Announcement, Coordinator, CutReason, Decision, Ledger, MachineError, Phase, Policy, Round,
    RoundConfig, RoundRecord, RoundView, RunTime, ShardId, Shards, State, StopReason, Straggler,
    Time, Version, WorkerId,
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

/// A later policy's whole vocabulary: wakes by time, a grace after the cut, contributions from older
/// versions.
struct Everything;

impl Policy for Everything {
    fn name(&self) -> String {
        "everything".to_owned()
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        let deadline = view.opened + Duration::from_millis(100);
        let reason = CutReason::Count { wanted: view.arrivals.len() as u32 };
        match view.arrivals.len() {
            0 | 1 => Decision::Wait { until: Some(deadline), arrivals: 1 },
            _ => Decision::cut(reason),
        }
    }

    fn admissible_lag(&self) -> u64 {
        1
    }

    fn grace(&mut self, _view: &RoundView<'_>, _pays: Duration) -> Duration {
        Duration::from_millis(30)
    }
}

#[test]
fn a_grace_admits_what_comes_inside_it() {
    let config = RoundConfig { straggler: Straggler::Finish, ..RoundConfig::default() };
    let mut s = Script::new(4, Everything, config);
    s.wait(10).arrive(3, 0).wait(10).arrive(1, 0).wait(10).arrive(0, 0).wait(19).check(&[
        "round 0: w0 w1 w2 w3",
        "arrived w3",
        "arrived w1",
        "cut, 2 arrived: w0 w2",
        "arrived w0",
    ]);
    assert_eq!(
        s.coordinator.next_wake(),
        Some(Time::ZERO + Duration::from_millis(50)),
        "woken at the end of the grace"
    );
    s.wait(1).check(&["closed w0 w1 w3 (w0=0.030000 w1=0.020000 w2=>=0.050000 w3=0.010000)"]);
    // One version behind is admissible here, whether it comes between rounds or inside the next.
    s.arrive(2, 0).check(&[]);
    s.publish();
    assert!(s.log.contains(&"arrived w2".to_owned()), "{:?}", s.log);
}

/// Two workers and two shards, of one block and of two; either will do for a contribution, but not for
/// more than two rounds. A round is cut after so many arrivals.
fn partial_pushes(arrivals: usize) -> Script {
    let sizes = [1, 2];
    let mut s = Script::new(0, First(arrivals), RoundConfig::default());
    let config = RoundConfig { batch: 10, expected: 2, ..RoundConfig::default() };
    let (policy, ledger) = (Box::new(First(arrivals)), Ledger::new(1000, None));
    let core = Coordinator::new(config, policy, ledger, Shards::all(2), Round(0));
    let rule = move || Shards::asked_anew(&sizes, Box::new(First(1)), 1, 2);
    s.coordinator = core.with_partial_pushes(&sizes, Box::new(rule));
    s.join(0).join(1).advance();
    s
}

fn done(s: &mut Script, worker: u32, base: u64) {
    s.done(worker, base, 10.0).unwrap();
}

/// A shard reports its part; returns whether that is of use.
fn stage(s: &mut Script, worker: u32, base: u64, shard: u32) -> bool {
    s.stage(worker, base, shard);
    s.advance();
    !s.coordinator.take_discards().contains(&(WorkerId(worker), s.id(worker, base)))
}

fn apply(s: &mut Script) {
    for shard in 0..2 {
        s.coordinator.handle_applied(ShardId(shard), s.now).unwrap();
    }
    s.advance();
}

#[test]
fn a_part_that_always_comes_too_late_is_waited_for_at_the_bound_and_holds_its_round() {
    let mut s = partial_pushes(1);
    for base in 0..2 {
        // Worker 0 is first, the round is over, and shard 1 has its part after that.
        done(&mut s, 0, base);
        stage(&mut s, 0, base, 0);
        assert!(!stage(&mut s, 0, base, 1), "of no use any more");
        s.abort(1, base).unwrap();
        apply(&mut s);
    }
    s.log.clear();
    done(&mut s, 0, 2);
    stage(&mut s, 0, 2, 0);
    s.check(&["shard 1 is awaited after 2"]);
    // One arrival would do for the policy, but then worker 0's part would be late for ever.
    done(&mut s, 1, 2);
    stage(&mut s, 1, 2, 0);
    stage(&mut s, 1, 2, 1);
    s.check(&["arrived w1", "landed w1 on shard 1"]);
    assert!(stage(&mut s, 0, 2, 1));
    assert_eq!(s.log[..2], ["arrived w0", "cut, all arrived:"], "{:?}", s.log);
}

#[test]
fn with_partial_pushes_blocks_close_on_their_own_members() {
    let mut s = partial_pushes(2);
    done(&mut s, 0, 0);
    assert!(stage(&mut s, 0, 0, 1));
    s.check(&["round 0: w0 w1", "arrived w0"]);
    // It may be said after it has come; and what comes in time to the other shard counts there.
    assert!(stage(&mut s, 1, 0, 0));
    s.check(&[]);
    assert!(stage(&mut s, 0, 0, 0));
    done(&mut s, 1, 0);
    s.advance();
    s.check(&[
        "landed w0 on shard 0",
        "arrived w1",
        "cut, all arrived:",
        "closed w0 w1 | w0 (w0=0.000000 w1=0.000000)",
    ]);
    assert!(!stage(&mut s, 1, 0, 1), "its round is closed");
    apply(&mut s);
    // Shard 1 of worker 0 misses two rounds, and is waited for in the third.
    for base in 1..3 {
        done(&mut s, 0, base);
        stage(&mut s, 0, base, 0);
        done(&mut s, 1, base);
        stage(&mut s, 1, base, 0);
        stage(&mut s, 1, base, 1);
        apply(&mut s);
    }
    s.log.clear();
    done(&mut s, 0, 3);
    stage(&mut s, 0, 3, 0);
    s.check(&["shard 1 is awaited after 2"]);
    stage(&mut s, 0, 3, 1);
    s.check(&["arrived w0"]);
    assert!(s.coordinator.report().balanced);
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

/// Waits for a count and writes down what it is told; a grace where there is something to salvage.
struct Notes(usize, Arc<Mutex<Vec<String>>>);

impl Notes {
    fn write(&self, note: String) {
        self.1.lock().unwrap().push(note);
    }
}

impl Policy for Notes {
    fn name(&self) -> String {
        "notes".to_owned()
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        let done = view
            .outstanding()
            .map(|(worker, work)| format!("{worker}:{}/{}", view.done(work.done), view.partial));
        let done: Vec<String> = done.collect();
        self.write(format!("{} in, {}", view.arrivals.len(), done.join(" ")));
        First(self.0).decide(view)
    }

    fn closed(&mut self, record: &RoundRecord<'_>) {
        let after = |at: Time| at.since(record.opened).as_millis();
        let RoundRecord { round, cut, closed, weight, .. } = *record;
        self.write(format!("{round} cut {} closed {} with {weight}", after(cut), after(closed)));
    }

    fn late(&mut self, worker: WorkerId, base: Version, run_time: RunTime, load: f64) {
        self.write(format!("late {worker} {base} {run_time} load {load}"));
    }
}

/// A script whose policy takes notes, and the notes.
fn noted(
    workers: u32,
    count: usize,
    straggler: Straggler,
) -> (Script, impl FnMut() -> Vec<String>) {
    let notes = Arc::new(Mutex::new(Vec::new()));
    let config = RoundConfig { straggler, micro_batches: 4, ..RoundConfig::default() };
    let script = Script::new(workers, Notes(count, Arc::clone(&notes)), config);
    (script, move || std::mem::take(&mut *notes.lock().unwrap()))
}

#[test]
fn a_policy_sees_how_far_workers_are_and_learns_when_a_round_was_cut() {
    let (mut s, mut notes) = noted(2, 1, Straggler::Salvage);
    s.wait(90);
    s.progress(1, 0, 3);
    s.progress(1, 0, 2);
    s.progress(1, 7, 4);
    s.wait(10).arrive(0, 0);
    assert_eq!(notes(), ["0 in, w0:0/4 w1:0/4", "1 in, w1:3/4"]);
    // Nobody knows yet how long answers take: a tenth of the round, at most.
    let until = s.now + Duration::from_millis(10);
    assert_eq!(s.coordinator.machine().phase(), Phase::Cut { until });
    s.wait(10);
    assert_eq!(notes(), ["round 0 cut 100 closed 110 with 10"]);
}

#[test]
fn a_policy_counts_in_the_micro_batches_that_workers_compute() {
    let (mut s, mut notes) = noted(2, 2, Straggler::Salvage);
    let mut round = |s: &mut Script, number: u64| {
        s.wait(1).progress(1, number, 2);
        s.wait(1).arrive(0, number).arrive(1, number).publish();
        notes().into_iter().find(|note| note.starts_with("1 in")).unwrap()
    };
    assert_eq!(round(&mut s, 0), "1 in, w1:2/4");
    // From the next round on: the other worker splits as the configuration says, and its parts are finer.
    s.split(1, 2);
    assert_eq!(round(&mut s, 1), "1 in, w1:2/4");
    s.split(0, 2);
    assert_eq!(round(&mut s, 2), "1 in, w1:2/4");
    assert_eq!(round(&mut s, 3), "1 in, w1:1/2");
    // Finer than progress is reported in does not exist.
    s.split(0, 100);
    round(&mut s, 4);
    assert_eq!(round(&mut s, 5), "1 in, w1:2/4");
}

#[test]
fn a_grace_is_as_long_as_answers_take_and_nobody_waits_for_nothing() {
    let (mut s, mut notes) = noted(2, 1, Straggler::Salvage);
    for round in 0..40 {
        s.wait(80);
        s.progress(1, round, 2);
        s.wait(20).arrive(0, round).wait(2).put(1, round, 5.0).advance().publish();
    }
    // Answers came after 2 ms every time: there is no need to wait much longer for this one.
    s.wait(80);
    s.progress(1, 40, 2);
    s.wait(20).arrive(0, 40);
    let Phase::Cut { until } = s.coordinator.machine().phase() else { panic!("no grace") };
    let grace = until.since(s.now);
    assert!(grace > Duration::from_millis(2) && grace < Duration::from_millis(6), "{grace:?}");
    s.wait(10).publish();
    notes();
    s.wait(100).arrive(0, 41);
    assert_eq!(notes().last().unwrap(), "round 41 cut 100 closed 100 with 10", "a stall");
}

#[test]
fn a_policy_learns_the_run_time_of_who_came_late() {
    let (mut s, mut notes) = noted(2, 1, Straggler::Finish);
    s.arrive(0, 0).publish();
    notes();
    s.wait(7).put(1, 0, 10.0);
    assert_eq!(notes(), ["late w1 v0 0.007000 load 1"]);
}

#[test]
fn a_grace_ends_when_all_have_answered_and_giving_up_is_an_answer() {
    let (mut s, mut notes) = noted(3, 1, Straggler::Salvage);
    s.wait(90);
    for straggler in [1, 2] {
        s.progress(straggler, 0, 2);
    }
    s.wait(10).arrive(0, 0);
    s.abort(1, 0).unwrap();
    s.wait(2);
    assert!(matches!(s.coordinator.machine().phase(), Phase::Cut { .. }), "one is still out");
    s.wait(3).put(2, 0, 5.0).advance();
    assert_eq!(s.coordinator.machine().phase(), Phase::Closed, "nobody is waited for in vain");
    assert_eq!(notes().last().unwrap(), "round 0 cut 100 closed 105 with 15");
    s.publish();
    assert_eq!(s.log.last().unwrap(), "round 1: w0 w1 w2");
    assert!(s.coordinator.report().balanced);
}

#[test]
fn a_worker_that_gave_up_cannot_announce_and_what_crosses_its_abort_is_dropped() {
    let (mut s, _) = noted(2, 1, Straggler::Salvage);
    s.wait(90).progress(1, 0, 2);
    s.wait(10).arrive(0, 0);
    assert!(matches!(s.coordinator.machine().phase(), Phase::Cut { .. }));
    s.abort(1, 0).unwrap();
    let (worker, id) = (WorkerId(1), s.id(1, 0));
    let (from, to) = (State::Abandoned, State::Announced);
    assert_eq!(s.done(1, 0, 5.0), Err(MachineError::Transition { worker, id, from, to }));
    s.coordinator.take_discards();
    // Its push had gone through meanwhile.
    s.stage(1, 0, 0);
    assert_eq!(s.coordinator.take_discards(), [(worker, id)]);
    s.log.clear();
    s.advance().check(&["aborted w1 at 1", "closed w0 (w0=0.100000 w1=>=0.100000)"]);
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

#[test]
fn with_partial_pushes_a_worker_may_give_up_what_a_close_has_given_up() {
    let mut s = partial_pushes(1);
    // Announced before the close, or crossing it: either way it waits for permission to push.
    for (base, before) in [(0, true), (1, false)] {
        if before {
            done(&mut s, 1, base);
        }
        done(&mut s, 0, base);
        stage(&mut s, 0, base, 0);
        s.coordinator.give_up_parts(Version(base));
        if !before {
            done(&mut s, 1, base);
        }
        assert!(s.coordinator.take_discards().contains(&(WorkerId(1), s.id(1, base))));
        s.abort(1, base).unwrap();
        apply(&mut s);
    }
}
