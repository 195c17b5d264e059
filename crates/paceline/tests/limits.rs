//! Runs at the limit of file descriptors, and rounds that wait for a worker.

mod common;

use std::{
    io::Read,
    net::TcpStream,
    process::{Command, Stdio},
    time::Duration,
};

use common::{Ended, Place, Running};
use paceline_core::EventKind;
use rustix::process::{Resource, Signal, getrlimit, setrlimit};

/// The program with `limits`, as `ulimit` takes them.
fn limited(place: &Place, limits: &str, args: &str) -> Command {
    let program = place.command(args);
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("ulimit {limits} && exec \"$0\" \"$@\""))
        .arg(program.get_program())
        .args(program.get_args())
        .current_dir(place.path(""))
        .stdin(Stdio::null());
    command
}

fn run(place: &Place, limits: &str, args: &str) -> Ended {
    let mut command = limited(place, limits, args);
    Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()).wait()
}

#[test]
fn more_workers_than_a_soft_limit_of_descriptors_allows_do_train() {
    let place = Place::new();
    // 20 workers need at least 80 descriptors, and up to 264 while they join.
    let args = "train --model softmax --workers 20 --batch 8 --policy full --rounds 3 --name many \
                --json";
    let summary = run(&place, "-Sn 64", args).ok().json();
    assert_eq!(summary["rounds"], 3);
    assert_eq!(summary["samples"]["used"], 3 * 20 * 8);
}

#[test]
fn a_run_beyond_the_hard_limit_of_descriptors_says_what_it_needs_and_begins_nothing() {
    let place = Place::new();
    let ended = run(&place, "-n 200", "train --model softmax --workers 20 --rounds 3");
    ended.failed(1, &["20 workers and 2 shards", "264 file descriptors", "ulimit -n 264"]);
    let server = "server --bind 127.0.0.1:0 --model softmax --workers 40 --rounds 3";
    run(&place, "-n 200", server)
        .failed(1, &["40 workers and 2 shards", "344 file descriptors", "ulimit -n 344"]);
    assert!(!place.path("runs").exists());
}

/// 1,050 connections of strangers, at a limit of 1,024 descriptors.
#[test]
fn a_thousand_strangers_do_not_keep_a_run_from_its_checkpoints() {
    const STRANGERS: usize = 1050;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();

    let place = Place::new();
    let args = "server --bind 127.0.0.1:0 --model softmax --workers 1 --epochs 100000 --batch 8 \
                --policy full --checkpoint-every 20 --name besieged";
    let mut command = limited(&place, "-n 1024", args);
    command.env("PACELINE_TOKEN", "secret").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = Running(command.spawn().unwrap());
    let at = server.listening();
    // What it says from here on is not needed, and must not fill the pipe.
    let mut stderr = server.0.stderr.take().unwrap();
    let said = std::thread::spawn(move || {
        let mut said = String::new();
        stderr.read_to_string(&mut said).unwrap();
        said
    });
    let worker = |index: u32| {
        let mut command =
            place.command(&format!("worker --connect {at} --index {index} --nominal 5ms"));
        command.env("PACELINE_TOKEN", "secret").stdout(Stdio::null()).stderr(Stdio::null());
        Running(command.spawn().unwrap())
    };
    let checkpoints = || {
        let events = place.events("besieged");
        events.iter().filter(|e| matches!(e.kind, EventKind::Checkpointed { .. })).count()
    };
    let first = worker(0);
    place.wait_for("besieged", |kind| matches!(kind, EventKind::Updated { .. }));

    let strangers: Vec<TcpStream> =
        (0..STRANGERS).map(|_| TcpStream::connect(&at).unwrap()).collect();
    let before = checkpoints();
    let second = worker(1);
    place.wait_for(
        "besieged",
        |kind| matches!(kind, EventKind::WorkerJoined { worker, .. } if worker.0 == 1),
    );
    common::wait_until("two more checkpoints", || checkpoints() >= before + 2);
    let failed = |e: &paceline_core::Event| matches!(e.kind, EventKind::CheckpointFailed { .. });
    assert!(!place.events("besieged").iter().any(failed));
    drop(strangers);

    server.signal(Signal::INT);
    let ended = server.wait();
    assert_eq!(ended.code, Some(130), "{}", said.join().unwrap());
    for worker in [first, second] {
        worker.wait();
    }
}

#[test]
fn full_names_the_worker_that_it_waits_for_in_the_log_and_in_the_terminal() {
    let place = Place::new();
    let args = "train --model softmax --workers 2 --policy full --nominal 10ms --epochs 100000 \
                --stragglers slow:1:1000000 --name waits";
    let run = place.start(args);
    // On a busy machine the first notice may name both workers; a later one names the slow one alone.
    place.wait_for("waits", |kind| match kind {
        EventKind::Waiting { round, waited, workers } => {
            assert!(round.0 == 0 && *waited >= Duration::from_secs(2), "{kind:?}");
            workers.len() == 1 && workers[0].0.0 == 1
        }
        _ => false,
    });
    run.signal(Signal::INT);
    let ended = run.wait();
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    assert!(ended.stderr.contains("s for w1 ("), "{}", ended.stderr);
}
