//! Workers inside training loops of the user's own, where the shards average gradients.

mod common;

use std::{sync::mpsc, thread, time::Duration};

use common::{LIMIT, PARAMS, SAMPLES, Server, config, start};
use paceline_core::{EventKind, Straggler, Version};
use paceline_params::OptimizerSpec;
use paceline_policy::wait_for_answers;
use paceline_server::ServerConfig;
use paceline_wire::{Tcp, Transport, message::FromWorker, message::ToWorker};
use paceline_worker::{Embedded, Joining, Turn, WorkerConfig};

fn averaging(workers: usize, policy: &str) -> ServerConfig {
    let mut config = config(workers);
    config.update.optimizer = OptimizerSpec::Mean.into();
    config.policy = policy.parse().unwrap();
    config.limits.rounds = Some(12);
    config
}

fn join(server: &Server, wish: u32, transport: Transport) -> Embedded {
    let config = WorkerConfig {
        address: server.address.to_string(),
        wish: Some(wish),
        name: format!("loop {wish}"),
        transport,
        ..WorkerConfig::default()
    };
    let worker = Embedded::join(config, Box::new(Tcp), wait_for_answers).unwrap();
    worker.ready(Joining { version: Version(0), samples: Some(SAMPLES), ahead: 0, clears: false });
    worker
}

/// Pushes `value` for every parameter, in two micro-batches. Returns whether it was in time.
fn contribute(worker: &Embedded, samples: usize, value: f32) -> bool {
    if !worker.begin(2) {
        return false;
    }
    for _ in 0..2 {
        let weight = samples as f32 / 2.0;
        if worker.write(0, &[value; PARAMS / 2], weight).is_none()
            || worker.write(PARAMS / 2, &[-value; PARAMS / 2], weight).is_none()
            || !worker.finish(f64::from(weight), Some(f64::from(value)), Vec::new())
        {
            return false;
        }
    }
    true
}

/// Means by version: the first value and the last.
type Means = Vec<(u64, f32, f32)>;

fn take(worker: &Embedded, means: &mut Means) {
    let read = |version: Version, values: &[f32]| {
        assert_eq!(values.len(), PARAMS);
        (version.0, values[0], values[PARAMS - 1])
    };
    means.extend(worker.take(read));
}

/// Trains until the run is over: contributes its number, plus the round's.
fn train(worker: &Embedded, number: u32) -> Means {
    let mut means = Vec::new();
    loop {
        match worker.next(LIMIT) {
            Turn::Work(work) => {
                let value = number as f32 + work.base.0 as f32;
                contribute(worker, work.samples.len(), value);
                worker.forget();
            }
            Turn::Loaded(_) => take(worker, &mut means),
            Turn::Ended(ended) => {
                ended.unwrap();
                return means;
            }
            Turn::Nothing => panic!("the run hangs"),
        }
    }
}

#[test]
fn every_loop_gets_every_mean_by_memory_and_by_tcp() {
    for transport in [Transport::Auto, Transport::Tcp] {
        let server = Server::start(averaging(3, "full"), start());
        let workers: Vec<Embedded> =
            (0..3).map(|number| join(&server, number, transport)).collect();
        let means: Vec<Means> = thread::scope(|scope| {
            let loops: Vec<_> = (0..)
                .zip(&workers)
                .map(|(number, worker)| scope.spawn(move || train(worker, number)))
                .collect();
            loops.into_iter().map(|each| each.join().unwrap()).collect()
        });
        // The mean of 0, 1 and 2, plus the round.
        let expected: Means =
            (0..12).map(|round| (round + 1, 1.0 + round as f32, -1.0 - round as f32)).collect();
        for means in means {
            assert_eq!(means, expected, "{transport:?}");
        }
        server.join().0.unwrap();
    }
}

#[test]
fn all_loops_get_the_same_mean_where_some_are_sent_halves() {
    let config = ServerConfig { wire: "bf16".parse().unwrap(), ..averaging(3, "full") };
    let server = Server::start(config, start());
    let transports = [Transport::Tcp, Transport::Auto, Transport::Auto];
    let workers: Vec<Embedded> =
        (0..).zip(transports).map(|(number, by)| join(&server, number, by)).collect();
    let means: Vec<Means> = thread::scope(|scope| {
        // A third has no short binary fraction.
        let loops: Vec<_> = [0, 0, 1]
            .into_iter()
            .zip(&workers)
            .map(|(number, worker)| scope.spawn(move || train(worker, number)))
            .collect();
        loops.into_iter().map(|each| each.join().unwrap()).collect()
    });
    assert_eq!(means[0].len(), 12);
    assert_eq!(means[1], means[0]);
    assert_eq!(means[2], means[0]);
    server.join().0.unwrap();
}

#[test]
fn a_loop_that_was_away_gets_every_version_that_it_missed() {
    let mut config = averaging(3, "static:2");
    config.round.straggler = Straggler::Salvage;
    let server = Server::start(config, start());
    let workers: Vec<Embedded> =
        (0..3).map(|number| join(&server, number, Transport::Auto)).collect();
    thread::scope(|scope| {
        let fast: Vec<_> = workers[..2].iter().map(|w| scope.spawn(move || train(w, 1))).collect();
        // The third begins a micro-batch and is away until the others are done.
        let away = &workers[2];
        let Turn::Work(work) = away.next(LIMIT) else { panic!("it gets work") };
        assert!(away.begin(2) && away.write(0, &[9.0; PARAMS], 1.0) == Some(true));
        let means: Vec<Means> = fast.into_iter().map(|each| each.join().unwrap()).collect();
        assert!(away.is_cut(), "round {} went on without it", work.base);
        assert_eq!(away.write(0, &[9.0; 1], 1.0), None, "nothing reaches a sum any more");
        away.forget();
        assert_eq!(train(away, 0), means[0]);
        assert_eq!(means[0].len(), 12);
        assert!(means[0].iter().all(|mean| mean.1 < 13.0), "{means:?}");
    });
    server.join().0.unwrap();
}

/// Contributes a quarter of its batch in every round, and tells so before it is cut.
fn straggle(worker: &Embedded, told: &mpsc::Sender<()>) -> Vec<(f64, (u64, f32, f32))> {
    let (mut rounds, mut means) = (Vec::new(), Vec::new());
    loop {
        match worker.next(LIMIT) {
            Turn::Work(work) => {
                if !worker.begin(4) {
                    continue;
                }
                worker.write(0, &[8.0; PARAMS], 2.0);
                // Progress is reported at most every 2 ms.
                thread::sleep(Duration::from_millis(3));
                if worker.finish(2.0, None, Vec::new()) {
                    worker.write(0, &[1e9; PARAMS], 2.0);
                }
                let _ = told.send(());
                assert_eq!(worker.next_version(LIMIT), Turn::Loaded(work.base.next()));
                assert!(worker.is_cut());
                worker.forget();
                take(worker, &mut means);
                rounds.push((worker.closed(work.base).unwrap().used, means[means.len() - 1]));
            }
            Turn::Ended(ended) => {
                ended.unwrap();
                return rounds;
            }
            Turn::Loaded(_) => take(worker, &mut means),
            Turn::Nothing => panic!("the run hangs"),
        }
    }
}

#[test]
fn finished_micro_batches_count_at_a_cut_with_their_weight() {
    let mut config = averaging(3, "static:2");
    config.round.straggler = Straggler::Salvage;
    config.round.micro_batches = 8;
    config.limits.rounds = Some(30);
    let server = Server::start(config, start());
    let workers: Vec<Embedded> =
        (0..3).map(|number| join(&server, number, Transport::Auto)).collect();
    let (told, slow_is_part_way) = mpsc::channel();
    let rounds = thread::scope(|scope| {
        let slow = scope.spawn(|| straggle(&workers[2], &told));
        let fast = scope.spawn(|| train(&workers[1], 1));
        let mut ignored = Vec::new();
        loop {
            match workers[0].next(LIMIT) {
                Turn::Work(work) => {
                    // The slow worker may miss a round: it is told of the cut after the next opens.
                    let _ = slow_is_part_way.recv_timeout(Duration::from_millis(50));
                    contribute(&workers[0], 8, 1.0 + work.base.0 as f32);
                }
                Turn::Loaded(_) => take(&workers[0], &mut ignored),
                _ => break,
            }
        }
        fast.join().unwrap();
        slow.join().unwrap()
    });
    assert!(rounds.iter().any(|(used, _)| *used == 2.0), "{rounds:?}");
    for (used, (version, first, last)) in rounds {
        let fast = version as f32;
        let expected = match used {
            0.0 => (fast, -fast),
            _ => ((16.0 * fast + 16.0) / 18.0, (16.0 - 16.0 * fast) / 18.0),
        };
        assert!((first - expected.0).abs() < 1e-4 && (last - expected.1).abs() < 1e-4, "{used}");
    }
    server.join().0.unwrap();
}

#[test]
fn records_of_missed_versions_are_told_and_other_states_are_named() {
    let mut config = averaging(2, "full");
    config.limits.rounds = Some(3);
    let server = Server::start(config, start());
    let workers: Vec<Embedded> =
        (0..2).map(|number| join(&server, number, Transport::Auto)).collect();
    let mut ignored = Vec::new();
    for worker in &workers {
        assert!(matches!(worker.next(LIMIT), Turn::Work(_)));
        assert!(contribute(worker, 8, 1.0));
    }
    for (worker, hashes) in workers.iter().zip([[1, 2, 3, 4], [1, 2, 3, 5]]) {
        assert!(matches!(worker.next_version(LIMIT), Turn::Loaded(_)));
        take(worker, &mut ignored);
        let version = Version(1);
        worker.send(FromWorker::Stepped { version, record: b"lr".to_vec() }).unwrap();
        worker.send(FromWorker::Hashes { version, hashes: hashes.to_vec() }).unwrap();
    }
    workers[0].send(FromWorker::WantRecords { first: Version(1), last: Version(1) }).unwrap();
    let told = |worker: &Embedded| loop {
        worker.wait_for_message(LIMIT);
        if let Some(message) = worker.messages().pop() {
            return message;
        }
    };
    let records = ToWorker::Records { first: Version(1), records: vec![b"lr".to_vec()] };
    assert_eq!(told(&workers[0]), records);
    assert_eq!(told(&workers[1]), ToWorker::Mismatch { version: Version(1), places: vec![3] });
    let named = |kind: &EventKind| matches!(kind, EventKind::Mismatch { tensor, .. } if tensor == "optimizer state of b");
    server.wait_for(named);
    drop(workers);
    server.join().0.unwrap();
}

#[test]
fn a_loop_that_leaves_waits_for_nothing() {
    let server = Server::start(averaging(1, "full"), start());
    let worker = join(&server, 0, Transport::Auto);
    assert!(matches!(worker.next(LIMIT), Turn::Work(_)));
    assert!(worker.begin(1));
    worker.leave().unwrap();
    assert_eq!(worker.next(Duration::ZERO), Turn::Ended(Ok("the run is over".to_owned())));
    server.join().0.unwrap();
}
