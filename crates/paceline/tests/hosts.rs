//! `paceline server` and `paceline worker`, as they run on several hosts.

mod common;

use std::{net::TcpListener, time::Duration};

use common::{Place, Running};
use paceline_core::EventKind;
use rustix::process::Signal;

/// An address that was free a moment ago.
fn address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn start(place: &Place, args: &str, token: Option<&str>) -> Running {
    let mut command = place.command(args);
    if let Some(token) = token {
        command.env("PACELINE_TOKEN", token);
    }
    use std::process::Stdio;
    Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

#[test]
fn shards_in_processes_of_their_own_give_the_same_bits_as_shards_in_one() {
    let place = Place::new();
    let settings = "--model mlp --policy full --deterministic --workers 2 --rounds 12 --json";
    let one = place.run(&format!("train --name one {settings}")).ok().json();

    let (at, first, second) = (address(), address(), address());
    let server = format!("server --name many --bind {at} --remote-shards --shards 2 {settings}");
    let server = start(&place, &server, None);
    place.wait_for_port(&at);
    let shard = |index, bind: &str| {
        start(&place, &format!("server --shard {index}/2 --coordinator {at} --bind {bind}"), None)
    };
    let shards = [shard(0, &first), shard(1, &second)];
    let workers =
        [0, 1].map(|index| start(&place, &format!("worker --connect {at} --index {index}"), None));
    let many = server.wait().ok().json();
    assert_eq!(many["param_hash"], one["param_hash"]);
    for process in workers.into_iter().chain(shards) {
        process.wait().ok();
    }
}

#[test]
fn a_shard_that_is_stopped_for_a_while_holds_nobody_up() {
    let place = Place::new();
    let at = address();
    let settings = "--model softmax --policy full --workers 2 --shards 3 --rounds 400 --batch 8 \
                    --block-kib 1 --pull auto --push auto --max-stale 1000 --json";
    let server = format!("server --name held --bind {at} --remote-shards {settings}");
    let server = start(&place, &server, None);
    place.wait_for_port(&at);
    let shards = [0, 1, 2].map(|index| {
        let bind = address();
        start(&place, &format!("server --shard {index}/3 --coordinator {at} --bind {bind}"), None)
    });
    let worker = |index| format!("worker --connect {at} --index {index} --nominal 10ms");
    let workers = [0, 1].map(|index| start(&place, &worker(index), None));
    let updates = |place: &Place| {
        let events = place.events("held");
        events.iter().filter(|event| matches!(event.kind, EventKind::Updated { .. })).count()
    };
    place.wait_for("held", |kind| matches!(kind, EventKind::Updated { round, .. } if round.0 > 40));
    shards[1].signal(Signal::STOP);
    let before = updates(&place);
    std::thread::sleep(Duration::from_secs(2));
    let during = updates(&place) - before;
    shards[1].signal(Signal::CONT);
    let ended = server.wait().ok().json();
    // Undisturbed there would be some 150.
    assert!(during > 30, "{during} rounds in two seconds");
    assert_eq!(ended["ledger"]["balanced"], true, "{ended}");
    for process in workers.into_iter().chain(shards) {
        process.wait().ok();
    }
    // It has come back: the last rounds have a part of it.
    let last = place.events("held").into_iter().rev().find_map(|event| match event.kind {
        EventKind::Updated { shards, .. } => Some(shards[1].wait),
        _ => None,
    });
    assert!(last.unwrap() > Duration::ZERO);
}

#[test]
fn nobody_gets_in_without_the_token() {
    let place = Place::new();
    let at = address();
    let server = format!("server --name shut --bind {at} --model softmax --workers 1 --rounds 3");
    let server = start(&place, &server, Some("secret"));
    place.wait_for_port(&at);
    let worker = format!("worker --connect {at}");
    start(&place, &worker, Some("guess")).wait().failed(1, &["wrong token"]);
    start(&place, &worker, None).wait().failed(1, &["wrong token"]);
    start(&place, &worker, Some("secret")).wait().ok();
    server.wait().ok();
    let refused = place.events("shut").into_iter().filter(|event| {
        matches!(&event.kind, EventKind::ConnectionClosed { error, .. } if error == "wrong token")
    });
    assert_eq!(refused.count(), 2);
}

#[test]
fn an_address_that_others_reach_needs_a_token() {
    let place = Place::new();
    place.run("server --bind 0.0.0.0:0").failed(1, &["without a token", "--token-file"]);
}

#[test]
fn settings_that_are_for_others_are_refused_and_not_ignored() {
    let place = Place::new();
    let slow = "server --bind 127.0.0.1:0 --stragglers slow:0:2";
    place.run(slow).failed(2, &["--stragglers", "paceline worker"]);
    place.run("server --bind 127.0.0.1:0 --nominal 20ms").failed(2, &["paceline worker"]);
    let shard =
        "server --bind 127.0.0.1:0 --shard 0/2 --coordinator 127.0.0.1:1 --workers 3 --json";
    place.run(shard).failed(2, &["from its coordinator", "workers, json"]);
    assert!(!place.path("runs").exists());
}

#[test]
fn a_worker_with_other_data_is_told_so() {
    let place = Place::new();
    place.write_images("other", 28, 28);
    let at = address();
    let server = format!("server --name mixed --bind {at} --model softmax --workers 1 --rounds 3");
    let server = start(&place, &server, None);
    place.wait_for_port(&at);
    let other = format!("worker --connect {at} --data other");
    start(&place, &other, None).wait().failed(1, &["2 samples", "12000"]);
    start(&place, &format!("worker --connect {at}"), None).wait().ok();
    server.wait().ok();
}

#[test]
fn a_worker_that_finds_no_server_says_where_it_looked() {
    let place = Place::new();
    let at = address();
    place
        .run(&format!("worker --connect {at} --patience 300ms"))
        .failed(1, &["failed to join", &at]);
}
