//! Peers that break the rules while honest workers train. Each is named and shown out; nobody else
//! notices.

mod common;

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use common::{
    PARAMS, RATE, Server, attacked, check_descent, endless, names,
    rogue::{Line, ROGUE, Rogue},
    start, wait_for_rounds,
};
use paceline_core::{ContributionId, EventKind, LeaveReason, StopReason, Version, WorkerId};
use paceline_params::WireType;
use paceline_server::{Outcome, ServerConfig};
use paceline_wire::frame::{
    HEADER_LEN, Header, MAX_BLOCK, MAX_HELLO, PREAMBLE_LEN, PROTOCOL, encode_control, preamble,
    preamble_of,
};
use paceline_wire::message::{FromWorker, Hello, Reply, Role, ToData};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

const TOKEN: &str = "open sesame";

/// What the parameters are after so many rounds that nobody disturbed.
fn undisturbed(mut config: ServerConfig, rounds: u64) -> Outcome {
    config.limits.rounds = Some(rounds);
    let server = Server::start(config, start());
    let honest = [server.worker(0), server.worker(1)];
    let outcome = server.join().0.unwrap();
    for worker in honest {
        worker.join().unwrap().unwrap();
    }
    outcome
}

fn hello(token: &str, role: Role) -> Vec<u8> {
    let hello = Hello { token: token.to_owned(), role };
    [preamble().to_vec(), encode_control(&hello).unwrap()].concat()
}

fn frame(header: Header, payload: &[u8]) -> Vec<u8> {
    [&header.encode(), payload].concat()
}

#[test]
fn strangers_are_named_and_shown_out_and_the_parameters_are_the_same_to_the_bit() {
    let data = |shard| Role::Data { worker: WorkerId(0), session: 1, shard };
    let worker = || Role::Worker { wish: None, name: "stranger".to_owned() };
    let shard = Role::Shard { index: 0, of: 2, address: ":0".to_owned() };
    let before_hello = |frame: Vec<u8>| [preamble().to_vec(), frame].concat();
    let too_long = before_hello(Header::Control(MAX_HELLO + 1).encode().to_vec());
    let too_much = [hello(TOKEN, worker()), vec![7; 3]].concat();
    let trailing = {
        let mut frame = hello(TOKEN, worker());
        frame[PREAMBLE_LEN + 4] += 3;
        [frame, vec![7; 3]].concat()
    };
    let mut half = hello(TOKEN, worker());
    half.truncate(half.len() - 3);
    let next = PROTOCOL + 1;
    let other_version =
        format!("protocol version {next} is not spoken here (this is version {PROTOCOL})");

    let cases: Vec<(Vec<u8>, &str)> = vec![
        ((1..200).collect(), "not a paceline peer: it began with [01, 02, 03, 04]"),
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".to_vec(), "not a paceline peer"),
        (b"PCL".to_vec(), "connection closed inside a frame"),
        (preamble_of(next).to_vec(), &other_version),
        (too_long, "frame of 4097 bytes passes the bound of 4096"),
        (half, "connection closed inside a frame"),
        (before_hello(vec![9; HEADER_LEN]), "reserved bytes of a frame header are not zero"),
        (before_hello(vec![9, 0, 0, 0, 1, 0, 0, 0]), "unknown frame kind 9"),
        (before_hello(frame(Header::Control(20), &[0xff; 20])), "malformed message"),
        (
            before_hello(frame(Header::Block(WireType::F32, 1), &[0; 20])),
            "expected a control frame",
        ),
        (trailing, "3 bytes after the end of a message"),
        (hello("", worker()), "wrong token"),
        (hello("open sesamf", worker()), "wrong token"),
        (hello(&TOKEN[..4], worker()), "wrong token"),
        (hello(TOKEN, data(7)), "shard 7 is not here"),
        (hello(TOKEN, shard), "all shards are there already"),
        // Let in, and only then a stranger.
        (too_much, "its connection ended"),
    ];
    let mut config = endless();
    config.deterministic = true;
    config.token = Some(TOKEN.to_owned());
    let outcome = attacked(config.clone(), |server| {
        for (bytes, error) in &cases {
            let mut stranger = Line::open(server.address);
            stranger.send(bytes);
            stranger.close();
            let mut first = [0; PREAMBLE_LEN];
            stranger.read(&mut first);
            assert_eq!(first, preamble(), "whoever calls learns what is spoken here");
            server.wait_for(|event| names(event, error));
            stranger.ends();
        }
    });
    assert_eq!(outcome.param_hash, undisturbed(config, outcome.rounds).param_hash);
}

#[test]
fn whoever_is_refused_is_told_why() {
    let mut config = endless();
    config.token = Some(TOKEN.to_owned());
    attacked(config, |server| {
        let role = Role::Worker { wish: None, name: "stranger".to_owned() };
        let mut stranger = Line::hello(server.address, "guess", role);
        assert_eq!(stranger.hear::<Reply<()>>(), Reply::Refused("wrong token".to_owned()));
        stranger.ends();
    });
}

/// What a rogue does once it is let in, and what is said of it. `{id}` stands for the
/// contribution that it was given on the version it returns.
type Misdeed = (&'static str, fn(&mut Rogue) -> Version);

/// A gradient that would be seen in the parameters if a single value of it got there.
const POISON: [f32; PARAMS] = [1e30; PARAMS];

fn spoilt(element: usize, value: f32) -> Vec<f32> {
    let mut gradient = POISON.to_vec();
    gradient[element] = value;
    gradient
}

fn claims(rogue: &mut Rogue, weight: f64, loss: f64) -> Version {
    let (base, _) = rogue.ready();
    rogue.push(base, &POISON);
    rogue.done(base, weight, loss);
    base
}

fn pushes(rogue: &mut Rogue, gradient: &[f32]) -> Version {
    let (base, samples) = rogue.ready();
    rogue.done(base, f64::from(samples), 1.0);
    rogue.push(base, gradient);
    base
}

fn sends(rogue: &mut Rogue, shard: usize, bytes: &[u8]) -> Version {
    let (base, _) = rogue.ready();
    rogue.data[shard].send(bytes);
    base
}

/// Contributes by the rules, and waits until it is told that it counted.
fn contributes(rogue: &mut Rogue) -> (Version, Vec<f32>) {
    let (base, samples) = rogue.ready();
    let slope = |value: f32| samples as f32 * (value - 1.0);
    let gradient: Vec<f32> = rogue.pull(base).into_iter().map(slope).collect();
    rogue.push(base, &gradient);
    rogue.done(base, f64::from(samples), f64::from(samples));
    rogue.work();
    (base, gradient)
}

const MISDEEDS: &[Misdeed] = &[
    ("w9 is not a live worker", |rogue| {
        rogue.done(Version(0), 8.0, 1.0);
        Version(0)
    }),
    ("w9 is not a live worker", |rogue| {
        rogue.control.say(&FromWorker::Aborted { id: ContributionId(0), done: 0 });
        Version(0)
    }),
    ("its training set has 999 samples, this run's has 1000", |rogue| {
        rogue.control.say(&FromWorker::Ready { samples: Some(999), ahead: 0 });
        Version(0)
    }),
    ("malformed message", |rogue| {
        rogue.control.send(&frame(Header::Control(4), &[0xff; 4]));
        Version(0)
    }),
    ("w9 is already live", |rogue| {
        rogue.ready();
        rogue.control.say(&FromWorker::Ready { samples: rogue.job.samples, ahead: 0 });
        Version(0)
    }),
    ("expected a control frame", |rogue| {
        let (base, _) = rogue.ready();
        let id = rogue.id(base);
        rogue.control.block(id, 0, &POISON[..128]);
        base
    }),
    ("bytes after the end of a message", |rogue| {
        let (base, _) = rogue.ready();
        rogue.control.say(&Hello {
            token: String::new(),
            role: Role::Worker { wish: None, name: "again".to_owned() },
        });
        base
    }),
    ("frame of 4194305 bytes passes the bound", |rogue| {
        rogue.control.send(&Header::Control((4 << 20) + 1).encode());
        Version(0)
    }),
    ("block 4 is none of shard 0, which has blocks 0 to 3", |rogue| {
        let (base, _) = rogue.ready();
        let id = rogue.id(base);
        rogue.data[0].block(id, 4, &POISON[..128]);
        base
    }),
    ("block 4294967295 is none of shard 1, which has blocks 4 to 7", |rogue| {
        let (base, _) = rogue.ready();
        let id = rogue.id(base);
        rogue.data[1].block(id, u32::MAX, &POISON[..128]);
        base
    }),
    ("block 0 of {id} came twice", |rogue| {
        let (base, _) = rogue.ready();
        rogue.push_block(base, &POISON, 0);
        rogue.push_block(base, &POISON, 0);
        base
    }),
    ("block 3 of {id} came twice", |rogue| {
        let (base, _) = rogue.ready();
        for block in [3, 1, 3] {
            rogue.push_block(base, &POISON, block);
        }
        base
    }),
    ("block 0 has 127 values, expected 125", |rogue| {
        let (base, _) = rogue.ready();
        let id = rogue.id(base);
        rogue.data[0].block(id, 0, &POISON[..127]);
        base
    }),
    ("block 7 has 128 values, expected 125", |rogue| {
        let (base, _) = rogue.ready();
        for block in 4..7 {
            rogue.push_block(base, &POISON, block);
        }
        let id = rogue.id(base);
        rogue.data[1].block(id, 7, &POISON[..128]);
        base
    }),
    ("block 0 has 0 values, expected 125", |rogue| {
        let (base, _) = rogue.ready();
        let id = rogue.id(base);
        rogue.data[0].block(id, 0, &[]);
        base
    }),
    ("passes the bound of 67108880", |rogue| {
        sends(rogue, 0, &Header::Block(WireType::F32, MAX_BLOCK / 4 + 1).encode())
    }),
    ("block 0 has 16777216 values, expected 125", |rogue| {
        let head = paceline_wire::frame::BlockHead { key: 0, block: 0 };
        sends(rogue, 0, &head.encode(WireType::F32, MAX_BLOCK / 4))
    }),
    ("not a head and whole f32 values", |rogue| sends(rogue, 1, &[2, 0, 0, 0, 19, 0, 0, 0])),
    ("unknown frame kind 200", |rogue| sends(rogue, 1, &[200, 0, 0, 0, 0, 0, 0, 0])),
    ("malformed message", |rogue| sends(rogue, 0, &frame(Header::Control(2), &[0xff; 2]))),
    ("bytes after the end of a message", |rogue| {
        sends(
            rogue,
            0,
            &encode_control(&(ToData::Pull { version: Version(0), shared: false }, 1u8)).unwrap(),
        )
    }),
    ("the contribution began as {id}", |rogue| {
        let (base, _) = rogue.ready();
        rogue.push_block(base, &POISON, 0);
        rogue.push_block(base.next(), &POISON, 1);
        base
    }),
    ("gradient of b in {id} is not finite at element 7", |rogue| {
        pushes(rogue, &spoilt(507, f32::NAN))
    }),
    ("gradient of a in {id} is not finite at element 0", |rogue| {
        pushes(rogue, &spoilt(0, f32::INFINITY))
    }),
    ("gradient of b in {id} is not finite at element 499", |rogue| {
        pushes(rogue, &spoilt(999, f32::NEG_INFINITY))
    }),
    ("w9 claims weight NaN for 8 samples", |rogue| claims(rogue, f64::NAN, 1.0)),
    ("w9 claims weight 9 for 8 samples", |rogue| claims(rogue, 9.0, 1.0)),
    ("w9 claims weight 0 for 8 samples", |rogue| claims(rogue, 0.0, 1.0)),
    ("w9 claims weight -8 for 8 samples", |rogue| claims(rogue, -8.0, 1.0)),
    ("w9 claims weight inf for 8 samples", |rogue| claims(rogue, f64::INFINITY, 1.0)),
    ("w9 reports a loss of NaN", |rogue| claims(rogue, 8.0, f64::NAN)),
    ("w9 reports a loss of inf", |rogue| claims(rogue, 8.0, f64::INFINITY)),
    ("w9 has no contribution c18446744073709551615", |rogue| {
        rogue.ready();
        rogue.done(Version(1_000_000), 8.0, 1.0);
        Version(0)
    }),
    ("w9 has no contribution c18446744073709551615", |rogue| {
        rogue.ready();
        rogue.done(Version(u64::MAX), 8.0, 1.0);
        Version(0)
    }),
    ("it gave 2 learning rates for 1 parameter groups", |rogue| {
        let (base, samples) = rogue.ready();
        rogue.done_with(base, f64::from(samples), 1.0, &[0.1, 0.1]);
        base
    }),
    ("its learning rate NaN for parameter group 0 is not a rate", |rogue| {
        let (base, samples) = rogue.ready();
        rogue.done_with(base, f64::from(samples), 1.0, &[f32::NAN]);
        base
    }),
    ("w9 announced {id} twice", |rogue| {
        let (base, samples) = rogue.ready();
        rogue.done(base, f64::from(samples), 1.0);
        rogue.done(base, f64::from(samples), 1.0);
        base
    }),
    ("w9 has no contribution {id}", |rogue| {
        let (base, _) = contributes(rogue);
        rogue.done(base, 8.0, 1.0);
        base
    }),
    ("contribution {id} came after {id}", |rogue| {
        let (base, gradient) = contributes(rogue);
        rogue.push(base, &gradient);
        base
    }),
    ("contribution {id} came after {id}", |rogue| {
        let (base, _) = rogue.ready();
        rogue.push(base, &POISON);
        rogue.push(base, &POISON);
        base
    }),
    ("w9 has no contribution c1000000", |rogue| {
        rogue.ready();
        rogue.control.say(&FromWorker::Aborted { id: ContributionId(1_000_000), done: 1 });
        Version(0)
    }),
    ("w9 gave up {id}, which its round waits for", |rogue| {
        let (base, _) = rogue.ready();
        let id = rogue.id(base);
        rogue.control.say(&FromWorker::Aborted { id, done: 1 });
        base
    }),
];

#[test]
fn a_worker_that_breaks_the_rules_is_named_and_shown_out_of_every_shard() {
    attacked(endless(), |server| {
        for (said, misdeed) in MISDEEDS {
            let mut rogue = Rogue::join(server.address);
            assert_eq!(rogue.job.worker, WorkerId(ROGUE), "the one before is gone: {said}");
            let base = misdeed(&mut rogue);
            let error = said.replace("{id}", &rogue.id(base).to_string());
            server.wait_for(|event| names(event, &error));
            rogue.ends();
        }
    });
}

#[test]
fn a_worker_that_hangs_up_in_mid_push_leaves_as_any_other_does() {
    let hang_ups: [fn(&mut Rogue); 3] = [
        |rogue| rogue.data[0].close(),
        |rogue| rogue.control.close(),
        |rogue| rogue.control.say(&FromWorker::Bye),
    ];
    attacked(endless(), |server| {
        for hang_up in hang_ups {
            let mut rogue = Rogue::join(server.address);
            let (base, _) = rogue.ready();
            rogue.push_block(base, &POISON, 0);
            rogue.data[0].send(&[2, 0, 0]);
            hang_up(&mut rogue);
            server.wait_for(|event| {
                matches!(event, EventKind::WorkerLeft { worker, why }
                    if worker.0 == ROGUE && !matches!(why, LeaveReason::Misbehaved(_)))
            });
            rogue.ends();
        }
    });
}

#[test]
fn half_a_contribution_of_one_and_half_of_another_under_its_number_are_none() {
    let mut config = endless();
    config.round.quorum = 3;
    config.round.expected = 3;
    config.round.quorum_grace = common::LIMIT;
    config.round.join_grace = common::LIMIT;
    let mut server = Server::start(config, start());
    let honest = [server.worker(0), server.worker(1)];
    let mut first = Rogue::join(server.address);
    let (base, _) = first.ready();
    (0..4).for_each(|block| first.push_block(base, &POISON, block));
    first.control.say(&FromWorker::Bye);
    first.ends();

    let mut second = Rogue::join(server.address);
    assert_eq!(second.job.worker, first.job.worker);
    let (again, samples) = second.ready();
    assert_eq!(again, base, "the round cannot close without it");
    let slope = |value: f32| samples as f32 * (value - 1.0);
    let gradient: Vec<f32> = second.pull(base).into_iter().map(slope).collect();
    (4..8).for_each(|block| second.push_block(base, &gradient, block));
    second.done(base, f64::from(samples), 1.0);
    (0..4).for_each(|block| second.push_block(base, &gradient, block));
    second.work();
    server.interrupt();
    server.wait_for(|event| matches!(event, EventKind::Stopped { .. }));
    second.control.say(&FromWorker::Bye);
    let (outcome, events) = server.join();
    for worker in honest {
        worker.join().unwrap().unwrap();
    }
    assert_eq!(outcome.unwrap().reason, StopReason::Interrupted);
    check_descent(&events, f64::from(RATE));
}

#[test]
fn blocks_come_in_any_order_and_an_abandoned_contribution_may_begin_again() {
    attacked(endless(), |server| {
        let mut worker = Rogue::join(server.address);
        let (base, samples) = worker.ready();
        let id = worker.id(base);
        let slope = |value: f32| samples as f32 * (value - 1.0);
        let gradient: Vec<f32> = worker.pull(base).into_iter().map(slope).collect();
        for block in [2, 0, 3] {
            worker.push_block(base, &POISON, block);
        }
        worker.data[0].say(&ToData::Abandon { id });
        for block in [6, 3, 0, 7, 1, 5, 4, 2] {
            worker.push_block(base, &gradient, block);
        }
        worker.done(base, f64::from(samples), f64::from(samples));
        let counted =
            |event: &EventKind| matches!(event, EventKind::Arrived { id: of, .. } if *of == id);
        server.wait_for(counted);
        worker.control.say(&FromWorker::Bye);
        worker.ends();
    });
}

#[test]
fn a_worker_has_one_data_connection_to_a_shard() {
    attacked(endless(), |server| {
        let rogue = Rogue::join(server.address);
        let (worker, session) = (rogue.job.worker, rogue.job.session);
        let mut second = Line::hello(server.address, "", Role::Data { worker, session, shard: 0 });
        let why = "w9 is connected already".to_owned();
        assert_eq!(second.hear::<Reply<()>>(), Reply::Refused(why));
        second.ends();
    });
}

#[test]
fn a_flood_of_messages_does_not_stop_the_run() {
    attacked(endless(), |server| {
        let mut rogue = Rogue::join(server.address);
        let beat = encode_control(&FromWorker::Heartbeat { sent: Duration::ZERO }).unwrap();
        let flood = beat.repeat(5000);
        let enough = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&enough);
        let flooding = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                rogue.control.send(&flood);
            }
            rogue
        });
        wait_for_rounds(server, 100);
        enough.store(true, Ordering::Relaxed);
        let mut rogue = flooding.join().unwrap();
        rogue.control.say(&FromWorker::Bye);
        rogue.ends();
    });
}

#[test]
fn a_crowd_that_says_nothing_does_not_stop_the_run() {
    attacked(endless(), |server| {
        let crowd: Vec<Line> = (0..200).map(|_| Line::open(server.address)).collect();
        wait_for_rounds(server, 20);
        drop(crowd);
    });
}

#[test]
fn a_crowd_of_strangers_holds_few_connections_and_workers_get_in_meanwhile() {
    let mut config = endless();
    config.token = Some(TOKEN.to_owned());
    config.liveness = common::LIMIT;
    let mut server = Server::start(config, start());
    let honest = [server.worker(0), server.worker(1)];
    wait_for_rounds(&server, 1);
    let mut crowd: Vec<Line> = (0..400).map(|_| Line::open(server.address)).collect();
    let third = server.worker(2);
    // Though each of them may be silent for a minute, the oldest make room, and the worker gets in.
    let (displaced, joined) = (Cell::new(0), Cell::new(false));
    server.wait_for(|event| {
        displaced.set(displaced.get() + u32::from(names(event, "other connections were waiting")));
        let third = matches!(event, EventKind::WorkerJoined { worker, .. } if worker.0 == 2);
        joined.set(joined.get() || third);
        displaced.get() >= 100 && joined.get()
    });
    crowd[..100].iter_mut().for_each(Line::ends);
    server.interrupt();
    assert_eq!(server.join().0.unwrap().reason, StopReason::Interrupted);
    for worker in honest.into_iter().chain([third]) {
        worker.join().unwrap().unwrap();
    }
}

/// Bytes as they may follow a hello: noise, and frames whose header is right and whose payload is
/// noise.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let payload = || prop::collection::vec(any::<u8>(), 0..80);
    let control = payload().prop_map(|payload| frame(Header::Control(payload.len()), &payload));
    let block = (any::<u64>(), 0..9u32, 0..130usize).prop_map(|(version, block, values)| {
        let head = paceline_wire::frame::BlockHead { key: version % 4, block };
        [head.encode(WireType::F32, values).to_vec(), vec![0; values * 4]].concat()
    });
    let frames = prop::collection::vec(prop_oneof![payload(), control, block], 0..6);
    frames.prop_map(|frames| frames.concat())
}

#[derive(Debug, Clone, Copy)]
enum Door {
    Preamble,
    Control,
    Data,
}

#[test]
fn no_bytes_take_the_server_down() {
    attacked(endless(), |server| {
        let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
        let doors = prop_oneof![Just(Door::Preamble), Just(Door::Control), Just(Door::Data)];
        let attack = |(door, bytes): (Door, Vec<u8>)| {
            match door {
                Door::Preamble => {
                    let mut line = Line::open(server.address);
                    line.send(&preamble());
                    line.send(&bytes);
                    line.close();
                    line.ends();
                }
                Door::Control => {
                    let mut rogue = Rogue::join(server.address);
                    rogue.control.send(&bytes);
                    rogue.control.close();
                    rogue.ends();
                }
                Door::Data => {
                    let mut rogue = Rogue::join(server.address);
                    rogue.data[0].send(&bytes);
                    rogue.data[0].close();
                    rogue.control.close();
                    rogue.ends();
                }
            }
            Ok(())
        };
        TestRunner::new(config).run(&(doors, noise()), attack).unwrap();
    });
}
