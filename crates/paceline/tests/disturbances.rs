//! What `--stragglers` does to worker processes from outside: the run bears it, and it is felt.
//!
//! One run at a time: they measure how slow a worker is.

mod common;

use std::{
    collections::BTreeMap,
    fs,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use common::{Place, children, wait_until};
use paceline_core::{Event, EventKind, LeaveReason, RunTime};
use rustix::process::Signal;
use serde_json::Value;

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Every worker's run-times in all rounds that it was waited for, shortest first.
fn run_times(events: &[Event]) -> BTreeMap<u32, Vec<Duration>> {
    let mut times: BTreeMap<u32, Vec<Duration>> = BTreeMap::new();
    for event in events {
        let EventKind::Closed { run_times, .. } = &event.kind else { continue };
        for (worker, time) in run_times {
            if let RunTime::Observed(time) = time {
                times.entry(worker.0).or_default().push(*time);
            }
        }
    }
    times.values_mut().for_each(|times| times.sort());
    times
}

fn median(times: &[Duration]) -> Duration {
    times[times.len() / 2]
}

/// Why workers left before the run was over, with who.
fn losses(events: &[Event]) -> Vec<(u32, LeaveReason)> {
    let left = events.iter().filter_map(|event| match &event.kind {
        EventKind::WorkerLeft { worker, why } => Some((worker.0, why.clone())),
        _ => None,
    });
    left.collect()
}

#[track_caller]
fn check_balance(summary: &Value) {
    assert_eq!(summary["ledger"]["balanced"], true, "{summary}");
    assert_eq!(summary["success"], true, "{summary}");
}

/// The process of worker `index` of the run whose process is `parent`, when it is there.
#[track_caller]
fn process(parent: u32, index: u32) -> u32 {
    let wanted = format!("--index {index} ");
    let find = || children(parent).into_iter().find(|(_, line)| line.contains(&wanted));
    wait_until("the worker is there", || find().is_some());
    find().map_or(0, |(pid, _)| pid)
}

/// A field of `/proc/PID/stat`, counted as in its manual, from 3 on.
fn stat(pid: u32, field: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(field - 3).map(str::to_owned)
}

#[test]
fn a_worker_that_is_stopped_for_less_than_liveness_is_slow_and_not_lost() {
    let _alone = alone();
    let place = Place::new();
    let args = "train --model softmax --workers 3 --policy full --nominal 50ms --rounds 25 \
                --liveness 2s --stragglers stop:1:1600ms:1s --name stopped --json";
    check_balance(&place.run(args).ok().json());
    let events = place.events("stopped");
    assert_eq!(losses(&events), []);
    let times = run_times(&events);
    let longest = |worker| times[&worker][times[&worker].len() - 1];
    assert!(longest(1) > ms(500), "{times:?}");
    assert!(longest(0) < longest(1) && longest(2) < longest(1), "{times:?}");
    assert!(median(&times[&1]) < longest(1) / 2, "most rounds are without a stop: {times:?}");
}

#[test]
fn a_stopped_worker_does_not_outlive_its_run() {
    let _alone = alone();
    let place = Place::new();
    for (name, signal) in [("interrupted", Signal::INT), ("killed", Signal::KILL)] {
        let run = place.start(&format!(
            "train --model softmax --workers 2 --policy static:1 --epochs 100 --nominal 20ms \
             --liveness 60s --stragglers stop:1:30s:29s --name {name}"
        ));
        let worker = process(run.0.id(), 1);
        place.wait_for(name, |e| matches!(e, EventKind::Updated { .. }));
        wait_until("it is stopped", || stat(worker, 3).as_deref() == Some("T"));
        run.signal(signal);
        drop(run.wait());
        wait_until("it is gone", || stat(worker, 3).is_none_or(|state| state == "Z"));
    }
}

#[test]
fn a_preempted_worker_comes_back_each_time_and_no_sample_is_lost() {
    let _alone = alone();
    let place = Place::new();
    let args = "train --model mlp --policy full --epochs 1 --nominal 40ms --name preempted --json \
                --stragglers preempt:2@5:400ms,preempt:2@20:200ms";
    let summary = place.run(args).ok().json();
    check_balance(&summary);
    assert_eq!(summary["ledger"]["epochs"], 1);
    assert_eq!(summary["ledger"]["unused"].as_array().unwrap().len(), 0);
    assert_eq!(summary["samples"]["requeued"], 64);
    let events = place.events("preempted");
    let gone = (2, LeaveReason::Disconnected);
    assert_eq!(losses(&events), [gone.clone(), gone]);
    let lives: Vec<&str> = events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::WorkerJoined { worker, .. } if worker.0 == 2 => Some("joined"),
            EventKind::WorkerLeft { worker, .. } if worker.0 == 2 => Some("left"),
            _ => None,
        })
        .collect();
    assert_eq!(lives, ["joined", "left", "joined", "left", "joined"]);
    let back = events.iter().rposition(
        |event| matches!(&event.kind, EventKind::WorkerJoined { worker, .. } if worker.0 == 2),
    );
    let after = run_times(&events[back.unwrap()..]);
    assert!(!after[&2].is_empty(), "it works again");
    assert!(run_times(&events)[&2].len() < run_times(&events)[&1].len(), "and was away");
}

#[test]
fn a_delay_is_felt_on_every_way_of_a_round() {
    let _alone = alone();
    let place = Place::new();
    let args = "train --model softmax --workers 3 --policy full --nominal 10ms --rounds 12 \
                --stragglers delay:1:30ms --name delayed --json";
    check_balance(&place.run(args).ok().json());
    let events = place.events("delayed");
    assert_eq!(losses(&events), []);
    let times = run_times(&events);
    // Work, the wish for parameters, parameters, and the gradient: four ways at first. Later the wish goes
    // with the gradient before, and parameters come with the work.
    let delayed = &times[&1];
    assert!(delayed[delayed.len() - 1] >= ms(4 * 30 + 10), "{times:?}");
    assert!((ms(2 * 30 + 10)..ms(4 * 30)).contains(&delayed[0]), "{times:?}");
    let others = [0, 2].map(|worker| median(&times[&worker]));
    assert!(others.iter().all(|time| *time < median(delayed)), "{times:?}");
}

#[test]
fn loss_stalls_a_worker_by_time_outs() {
    let _alone = alone();
    let place = Place::new();
    let args = "train --model softmax --workers 2 --policy full --nominal 10ms --rounds 15 \
                --stragglers loss:1:3 --name lossy --json";
    check_balance(&place.run(args).ok().json());
    let times = run_times(&place.events("lossy"));
    assert!(times[&1].last() >= Some(&ms(200)), "{times:?}");
    assert!(times[&0].last() < times[&1].last(), "{times:?}");
}

#[test]
fn a_crowd_shares_a_core_and_is_slower_than_who_has_one() {
    let _alone = alone();
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        eprintln!("SKIPPED: a crowd needs two cores");
        return;
    }
    let place = Place::new();
    let run = place.start(
        "train --model mlp --policy full --batch 400 --rounds 25 --name crowded --json \
         --stragglers crowd:0-2,nice:1:5",
    );
    let parent = run.0.id();
    place.wait_for("crowded", |e| matches!(e, EventKind::RoundStarted { .. }));
    let core = |worker: u32| -> Option<String> {
        let status =
            fs::read_to_string(format!("/proc/{}/status", process(parent, worker))).ok()?;
        let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list:"))?;
        Some(line.split_whitespace().last()?.to_owned())
    };
    let cores = [0, 1, 2, 3].map(|worker| core(worker).unwrap());
    assert!(cores[0] == cores[1] && cores[1] == cores[2] && cores[3] != cores[0], "{cores:?}");
    let nice = |worker: u32| stat(process(parent, worker), 19).unwrap().parse::<i32>().unwrap();
    assert_eq!(nice(1), (nice(0) + 5).min(19));
    check_balance(&run.wait().ok().json());
    let times = run_times(&place.events("crowded"));
    // A member of the crowd may go first in a round and be as fast as one who has a core. The last of
    // the crowd waits for the others in most rounds.
    let medians = [0, 1, 2, 3].map(|worker| median(&times[&worker]));
    let (own, crowd) = (medians[3], &medians[..3]);
    assert!(crowd.iter().max() > Some(&own), "{crowd:?} where one alone takes {own:?}");
}

/// Whether this machine lets us make network namespaces.
fn namespaces() -> bool {
    let name = format!("paceline-test-{}", std::process::id());
    let ip = |verb| Command::new("ip").args(["netns", verb, &name]).output();
    ip("add").is_ok_and(|made| made.status.success()) && ip("del").is_ok()
}

/// Namespaces and devices that are there for the process `owner`.
fn leftovers(owner: u32) -> Vec<String> {
    let listed = |args: &[&str]| {
        let output = Command::new("ip").args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let all = listed(&["netns", "list"]) + &listed(&["-o", "link", "show"]);
    let ours = [format!("paceline-{owner}-"), format!("pl{owner}w")];
    let ours = |line: &&str| ours.iter().any(|name| line.contains(name));
    all.lines().filter(ours).map(str::to_owned).collect()
}

#[test]
fn a_slow_link_is_felt_and_is_gone_with_the_run() {
    let _alone = alone();
    if !namespaces() {
        eprintln!("SKIPPED: a link needs root and network namespaces");
        return;
    }
    let place = Place::new();
    let run = place.start(
        "train --model softmax --workers 2 --policy full --nominal 10ms --rounds 8 \
         --stragglers link:1:2mbit --name linked --json",
    );
    let owner = run.0.id();
    place.wait_for("linked", |e| matches!(e, EventKind::Updated { .. }));
    assert_eq!(leftovers(owner).len(), 2, "{:?}", leftovers(owner));
    check_balance(&run.wait().ok().json());
    assert_eq!(leftovers(owner), [""; 0]);
    let times = run_times(&place.events("linked"));
    // 31 kB down and up at 2 Mbit/s, less what passes at once.
    assert!(times[&1][0] > ms(180), "{times:?}");
    assert!(median(&times[&0]) < times[&1][0], "{times:?}");
}

#[test]
fn a_slow_link_is_gone_however_the_run_ends() {
    let _alone = alone();
    if !namespaces() {
        eprintln!("SKIPPED: a link needs root and network namespaces");
        return;
    }
    for signal in [Signal::INT, Signal::KILL] {
        let place = Place::new();
        let args = "train --model softmax --workers 2 --policy full --epochs 100 --nominal 10ms \
                    --stragglers link:1:4mbit,delay:1:5ms --name cut";
        let run = place.start(args);
        let owner = run.0.id();
        place.wait_for("cut", |e| matches!(e, EventKind::Updated { .. }));
        let worker = process(owner, 1);
        run.signal(signal);
        drop(run.wait());
        wait_until("the worker is gone", || stat(worker, 3).is_none_or(|state| state == "Z"));
        wait_until("the link is gone", || leftovers(owner).is_empty());
    }
}

#[test]
fn a_link_that_cannot_be_laid_says_what_it_needs() {
    let _alone = alone();
    let place = Place::new();
    let mut command = place.command("train --workers 2 --stragglers link:1:4mbit --name bare");
    let output = command.env("PATH", "/nonexistent").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("needs root, and ip and tc of iproute2"), "{said}");
}
