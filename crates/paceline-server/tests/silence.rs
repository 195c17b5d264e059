//! Workers that stop talking and keep their connections open. Slow is not dead; silent is.

mod common;

use std::time::Duration;

use common::{
    Server, attacked, endless, names,
    rogue::{Line, ROGUE, Rogue},
    start, wait_for_rounds,
};
use paceline_core::{Event, EventKind, LeaveReason, Version, WorkerId};
use paceline_server::ServerConfig;
use paceline_wire::{
    frame::preamble,
    message::{FromWorker, Reply, Role, ToWorker},
};

const LIVENESS: Duration = Duration::from_secs(2);

fn impatient() -> ServerConfig {
    let mut config = endless();
    config.heartbeat = Duration::from_millis(50);
    config.liveness = LIVENESS;
    config
}

/// Waits until the rogue is declared dead, sees it shut out, and the run go on.
#[track_caller]
fn dies(server: &Server, mut rogue: Rogue) {
    let seen = server.wait_for(
        |event| matches!(event, EventKind::WorkerLeft { worker, .. } if worker.0 == ROGUE),
    );
    let left = &seen.last().unwrap().kind;
    let EventKind::WorkerLeft { why: LeaveReason::Silent(silence), .. } = left else {
        panic!("{left:?}");
    };
    assert!(*silence > LIVENESS, "{silence:?}");
    rogue.ends();
    wait_for_rounds(server, 5);
}

#[test]
fn a_worker_that_falls_silent_in_its_work_holds_the_round_no_longer_than_liveness() {
    attacked(impatient(), |server| {
        let mut rogue = Rogue::join(server.address);
        rogue.ready();
        dies(server, rogue);
    });
}

#[test]
fn a_worker_that_never_gets_ready_is_shut_out_too() {
    attacked(impatient(), |server| {
        let mut rogue = Rogue::join(server.address);
        server.wait_for(|event| names(event, "left before it was ready: silent for"));
        rogue.ends();
    });
}

#[test]
fn who_is_not_known_in_time_is_shown_out() {
    let mut config = endless();
    config.liveness = Duration::from_millis(200);
    let mut server = Server::start(config, start());
    let nobody = |shard| Role::Data { worker: WorkerId(7), session: 1, shard };
    let mut silent = Line::open(server.address);
    server.wait_for(|event| names(event, "did not say who it is"));
    silent.ends();
    let mut slow = Line::open(server.address);
    slow.send(&preamble());
    server.wait_for(|event| names(event, "did not say who it is"));
    slow.ends();
    for shard in 0..2 {
        let mut unknown = Line::hello(server.address, "", nobody(shard));
        let refused = Reply::Refused("w7 is not let in".to_owned());
        assert_eq!(unknown.hear::<Reply<()>>(), refused);
        server.wait_for(|event| names(event, "w7 is not let in"));
        unknown.ends();
    }
    server.interrupt();
    server.join().0.unwrap();
}

/// A worker that computes for ever, while its heartbeats go on.
#[test]
fn a_round_that_waits_long_names_the_worker_that_it_waits_for() {
    attacked(endless(), |server| {
        let mut rogue = Rogue::join(server.address);
        rogue.ready();
        let mut last = Duration::ZERO;
        for _ in 0..2 {
            // Signs of life for longer than it takes until the next notice is due.
            let notice = loop {
                rogue.control.say(&FromWorker::Heartbeat { sent: Duration::ZERO });
                let seen = server.poll(Duration::from_millis(100), |event| {
                    matches!(event, EventKind::Waiting { .. })
                });
                if let Some(event) = seen {
                    break event.kind;
                }
            };
            let EventKind::Waiting { workers, waited, .. } = notice else { unreachable!() };
            assert_eq!(workers, [(WorkerId(ROGUE), "rogue".to_owned())]);
            assert!(waited >= 2 * last && waited >= Duration::from_secs(2), "{waited:?}");
            last = waited;
        }
        rogue.control.say(&FromWorker::Bye);
        rogue.ends();
    });
}

/// Waits for its turn to push, as a worker does where there is not room for all.
fn granted(rogue: &mut Rogue) -> Version {
    let (base, samples) = rogue.ready();
    rogue.done(base, f64::from(samples), 1.0);
    let id = rogue.id(base);
    loop {
        if rogue.control.hear::<ToWorker>() == (ToWorker::Push { id }) {
            return base;
        }
    }
}

#[track_caller]
fn stalls_in_its_push(push: impl FnOnce(&mut Rogue, Version, &[f32])) {
    let mut config = impatient();
    config.placement.staging_bytes = 1;
    attacked(config, |server| {
        let mut rogue = Rogue::join(server.address);
        let base = granted(&mut rogue);
        push(&mut rogue, base, &[1e30; common::PARAMS]);
        dies(server, rogue);
    });
}

#[test]
fn a_push_that_ends_inside_a_block_gives_its_room_back() {
    stalls_in_its_push(|rogue, base, gradient| {
        rogue.push_block(base, gradient, 0);
        rogue.data[0].send(&[2, 0, 0]);
    });
}

#[test]
fn a_push_that_reaches_one_shard_only_gives_its_room_back() {
    stalls_in_its_push(|rogue, base, gradient| {
        (0..4).for_each(|block| rogue.push_block(base, gradient, block));
    });
}

#[test]
fn a_worker_that_never_finishes_what_it_begins_takes_no_more_than_one_place() {
    let gradient = [1e30; common::PARAMS];
    let mut config = endless();
    // Room for two: one is the rogue's, the honest ones take turns with the other.
    config.placement.staging_bytes = 2 * 4 * common::PARAMS as u64;
    config.policy = "static:2".parse().unwrap();
    attacked(config, |server| {
        let mut rogue = Rogue::join(server.address);
        let (mut base, _) = rogue.ready();
        for _ in 0..4 {
            (0..4).for_each(|block| rogue.push_block(base, &gradient, block));
            (base, _) = rogue.work();
        }
        for _ in 0..20 {
            let seen = server.wait_for(|event| matches!(event, EventKind::Updated { .. }));
            let left = |event: &Event| matches!(event.kind, EventKind::WorkerLeft { .. });
            assert!(!seen.iter().any(left), "the run waited until the rogue was dead");
        }
        rogue.control.say(&FromWorker::Bye);
        rogue.ends();
    });
}
