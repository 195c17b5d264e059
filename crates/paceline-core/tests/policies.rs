//! The view of a policy, told as short scripts on simulated time: how far workers are, the grace after a cut,
//! and what it learns from a round.

mod script;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use paceline_core::{
    CutReason, Decision, MachineError, Phase, Policy, RoundConfig, RoundRecord, RoundView, RunTime,
    State, Straggler, Time, Version, WorkerId,
};
use script::{First, Script};

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
