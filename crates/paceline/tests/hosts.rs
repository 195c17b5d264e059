//! `paceline server` and `paceline worker`, as they run on several hosts.

mod common;

use std::time::Duration;

use common::{Place, Running, wait_until};
use paceline_core::{Event, EventKind};
use rustix::process::Signal;

/// Starts a server on a port that the kernel chooses; returns where it listens.
fn serve(place: &Place, args: &str, token: Option<&str>) -> (Running, String) {
    let mut server = start(place, &format!("server --bind 127.0.0.1:0 {args}"), token);
    let at = server.listening();
    (server, at)
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

    let server = format!("--name many --remote-shards --shards 2 {settings}");
    let (server, at) = serve(&place, &server, None);
    let shards =
        [0, 1].map(|index| serve(&place, &format!("--shard {index}/2 --coordinator {at}"), None).0);
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
    let settings = "--model softmax --policy full --workers 2 --shards 3 --rounds 400 --batch 8 \
                    --block-kib 1 --pull auto --push auto --max-stale 1000 --json";
    let (server, at) = serve(&place, &format!("--name held --remote-shards {settings}"), None);
    let shards = [0, 1, 2]
        .map(|index| serve(&place, &format!("--shard {index}/3 --coordinator {at}"), None).0);
    let worker = |index| format!("worker --connect {at} --index {index} --nominal 10ms");
    let workers = [0, 1].map(|index| start(&place, &worker(index), None));
    let updates = || {
        let part = |event: Event| match event.kind {
            EventKind::Updated { shards, .. } => Some(shards[1].wait > Duration::ZERO),
            _ => None,
        };
        place.events("held").into_iter().filter_map(part).collect::<Vec<bool>>()
    };
    wait_until("40 rounds", || updates().len() > 40);
    shards[1].signal(Signal::STOP);
    let before = updates().len();
    // Before it has been silent for --liveness, which would end the run.
    wait_until("30 rounds without the shard", || updates().len() > before + 30);
    let during = updates().len();
    shards[1].signal(Signal::CONT);
    let ended = server.wait().ok().json();
    assert_eq!(ended["ledger"]["balanced"], true, "{ended}");
    for process in workers.into_iter().chain(shards) {
        process.wait().ok();
    }
    // It has come back: rounds have a part of it.
    let parts = updates()[during..].iter().filter(|part| **part).count();
    assert!(parts > 10, "{parts} rounds");
}

#[test]
fn a_shard_in_a_process_of_its_own_bears_the_faults_that_it_is_given_there() {
    let place = Place::new();
    let settings = "--name apart --remote-shards --shards 3 --model softmax --block-kib 1 --policy full \
                    --workers 1 --rounds 5 --json";
    let (server, at) = serve(&place, settings, None);
    let faults =
        ["", "--stragglers shard:1:3 --shard-nominal 50ms", "--stragglers shard-link:2:10mbit"];
    let shard = |(index, faults)| format!("--shard {index}/3 --coordinator {at} {faults}");
    let shards: Vec<Running> =
        (0..).zip(faults).map(|numbered| serve(&place, &shard(numbered), None).0).collect();
    let worker = start(&place, &format!("worker --connect {at}"), None);
    server.wait().ok();
    for process in shards.into_iter().chain([worker]) {
        process.wait().ok();
    }
    let shares = place.events("apart").into_iter().filter_map(|event| match event.kind {
        EventKind::Updated { shards, .. } => Some(shards),
        _ => None,
    });
    let (mut updates, mut shared) = (0, [0; 3]);
    for shards in shares {
        updates += 1;
        assert!(shards[1].wait >= Duration::from_millis(150), "{shards:?}");
        for (shared, shard) in shared.iter_mut().zip(&shards) {
            *shared += shard.counts.bytes_shared;
        }
    }
    assert_eq!(updates, 5);
    // Shared memory would bypass the slow link.
    assert!(shared[0] > 0 && shared[1] > 0 && shared[2] == 0, "{shared:?}");
}

#[test]
fn nobody_gets_in_without_the_token() {
    let place = Place::new();
    let server = "--name shut --model softmax --workers 1 --rounds 3";
    let (server, at) = serve(&place, server, Some("secret"));
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
    let other =
        "server --bind 127.0.0.1:0 --shard 0/2 --coordinator 127.0.0.1:1 --stragglers shard:1:2";
    place.run(other).failed(2, &["shard 0 bears its own faults only"]);
    let padded = "server --bind 127.0.0.1:0 --remote-shards --shard-nominal 5ms";
    place.run(padded).failed(2, &["--shard-nominal", "paceline server --shard"]);
    assert!(!place.path("runs").exists());
}

#[test]
fn a_worker_with_other_data_is_told_so() {
    let place = Place::new();
    place.write_images("other", 28, 28);
    let server = "--name mixed --model softmax --workers 1 --rounds 3";
    let (server, at) = serve(&place, server, None);
    let other = format!("worker --connect {at} --data other");
    start(&place, &other, None).wait().failed(1, &["2 samples", "12000"]);
    start(&place, &format!("worker --connect {at}"), None).wait().ok();
    server.wait().ok();
}

#[test]
fn a_worker_that_finds_no_server_says_where_it_looked() {
    let place = Place::new();
    // A port of the system's, on which no program of a user can listen.
    let at = "127.0.0.1:1";
    place
        .run(&format!("worker --connect {at} --patience 300ms"))
        .failed(1, &["failed to join", at]);
}
