//! Runs whose standard error nobody reads: a pipe that is full and stays full.

mod common;

use std::{
    cell::RefCell,
    io::{PipeReader, Write, pipe},
    process::Stdio,
    thread,
};

use common::{Place, Running, wait_until};
use paceline_core::EventKind;
use rustix::process::Signal;

/// Starts the program with a standard error that is full from the start. It stays so while the reader
/// lives.
fn start(place: &Place, args: &str) -> (Running, PipeReader) {
    let (reader, mut writer) = pipe().unwrap();
    let mut command = place.command(args);
    command.stdout(Stdio::piped()).stderr(writer.try_clone().unwrap());
    // Blocks when the pipe is full, and ends when its reader is gone.
    thread::spawn(move || while writer.write_all(b"full").is_ok() {});
    (Running(command.spawn().unwrap()), reader)
}

/// The exit code, once the process has ended.
#[track_caller]
fn ends(run: &mut Running) -> Option<i32> {
    let run = RefCell::new(run);
    wait_until("the end", || run.borrow_mut().0.try_wait().unwrap().is_some());
    run.into_inner().0.wait().unwrap().code()
}

/// Many lines, more than wait in a queue: one per round.
const ARGS: &str = "train --model softmax --workers 2 --policy full --epochs 100000 --batch 8 \
                    --eval-every 1 --name unread";

/// The log is whole: it has the end of the run, and every round before it.
#[track_caller]
fn check_log(place: &Place) {
    let events = place.events("unread");
    assert!(matches!(events.last().unwrap().kind, EventKind::Stopped { .. }), "no end");
    let rounds: Vec<u64> = events
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::Updated { round, .. } => Some(round.0),
            _ => None,
        })
        .collect();
    assert!(!rounds.is_empty() && rounds.iter().copied().eq(0..rounds.len() as u64));
}

#[test]
fn a_run_that_nobody_reads_ends_at_its_time_limit_with_a_whole_log() {
    let place = Place::new();
    let (mut run, _reader) = start(&place, &format!("{ARGS} --time-limit 6s"));
    assert_eq!(ends(&mut run), Some(0));
    check_log(&place);
}

#[test]
fn ctrl_c_ends_a_run_that_nobody_reads() {
    let place = Place::new();
    let (mut run, _reader) = start(&place, ARGS);
    place.wait_for("unread", |e| matches!(e, EventKind::Updated { round, .. } if round.0 == 1500));
    run.signal(Signal::INT);
    assert_eq!(ends(&mut run), Some(130));
    check_log(&place);
}

#[test]
fn ctrl_c_ends_a_run_whose_summary_nobody_reads() {
    let place = Place::new();
    let (reader, mut writer) = pipe().unwrap();
    let mut command = place.command("train --model softmax --workers 1 --rounds 2 --name unread");
    command.stdout(writer.try_clone().unwrap()).stderr(Stdio::null());
    let filler = thread::spawn(move || while writer.write_all(b"full").is_ok() {});
    let mut run = Running(command.spawn().unwrap());
    // The summary is on disk before it is printed.
    let summary = place.path("runs/unread/summary.json");
    wait_until("the summary", || summary.exists());
    run.signal(Signal::INT);
    assert!(ends(&mut run).is_some());
    drop(reader);
    filler.join().unwrap();
}
