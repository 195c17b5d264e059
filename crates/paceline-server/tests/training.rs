//! Runs over loopback, from the first round to the last.

mod common;

use common::{PARAMS, Server, check_descent, config, start};
use paceline_core::{EventKind, LeaveReason, StopReason, Straggler, WorkerId};
use paceline_policy::wait_for_answers;
use paceline_server::ServerConfig;
use paceline_wire::Tcp;
use paceline_worker::WorkerConfig;

#[test]
fn workers_train_through_the_shards_and_the_books_balance() {
    let server = Server::start(config(3), start());
    let workers: Vec<_> = (0..3).map(|wish| server.worker(wish)).collect();
    for worker in workers {
        let tally = worker.join().unwrap().unwrap();
        assert_eq!((tally.finished, tally.used), (40, 40));
    }
    let (outcome, events) = server.join();
    let outcome = outcome.unwrap();
    assert_eq!(outcome.reason, StopReason::Rounds);
    assert_eq!(outcome.rounds, 40);
    assert!(outcome.ledger.balanced);
    assert_eq!(outcome.samples.used, 40 * 3 * 8);
    check_descent(&events, 0.1);
}

/// Learning rate and gradient norm of every update.
fn updates(config: ServerConfig) -> Vec<(f32, f64)> {
    let workers = config.round.expected as u32;
    let server = Server::start(config, start());
    let workers: Vec<_> = (0..workers).map(|wish| server.worker(wish)).collect();
    let (outcome, events) = server.join();
    outcome.unwrap();
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
    let update = |event: &paceline_core::Event| match event.kind {
        EventKind::Updated { learning_rate, gradient_norm, .. } => {
            Some((learning_rate, gradient_norm))
        }
        _ => None,
    };
    events.iter().filter_map(update).collect()
}

#[test]
fn the_rate_follows_the_schedule_and_the_weight_and_so_do_the_parameters() {
    let mut config = config(2);
    config.update.schedule = "warmup:2+step:10:0.5".parse().unwrap();
    config.update.scaling = paceline_params::LrScaling::Sqrt;
    config.update.reference_weight = 4.0;
    let (schedule, norm) = (config.update.schedule, (PARAMS as f64).sqrt());
    // 16 samples a round where 4 are the reference: twice the rate.
    let rates: Vec<f32> = (0..40).map(|round| 0.1 * schedule.at(round) * 2.0).collect();
    assert!(rates[0] < rates[1] && rates[30] < rates[10], "{rates:?}");
    let updates = updates(config);
    assert_eq!(updates.len(), rates.len());
    let mut expected = norm;
    for (round, ((rate, norm), due)) in updates.iter().zip(&rates).enumerate() {
        assert!((rate - due).abs() < 1e-6, "round {round}: {rate} where {due} was due");
        let error = (norm - expected).abs() / expected.max(0.01);
        assert!(error < 0.01, "round {round}: {norm} where {expected} was due");
        expected *= 1.0 - f64::from(*due);
    }
    assert_eq!(updates.len(), 40);
}

#[test]
fn a_clipped_gradient_moves_the_parameters_no_further_than_its_bound() {
    let mut config = config(2);
    config.update.clip = "norm:2".parse().unwrap();
    let start = (PARAMS as f64).sqrt();
    // Each round takes rate × bound off the distance, whatever the shards.
    for (round, (_, norm)) in updates(config).into_iter().enumerate() {
        let expected = start - 0.1 * 2.0 * round as f64;
        assert!((norm - expected).abs() < 0.01, "round {round}: {norm} where {expected} was due");
    }
}

fn run(config: ServerConfig, slowness: &'static str, workers: u32) -> paceline_server::Outcome {
    let server = Server::start(config, start());
    let workers: Vec<_> = (0..workers)
        .map(|wish| server.worker_with(wish, slowness, || Box::new(common::Quadratic::new())))
        .collect();
    let outcome = server.join().0.unwrap();
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
    assert!(outcome.ledger.balanced);
    outcome
}

#[test]
fn full_and_deterministic_gives_the_same_bits_on_any_number_of_shards() {
    let hash = |shards| {
        let mut config = config(3);
        config.deterministic = true;
        config.placement.shards = shards;
        run(config, "", 3).param_hash.unwrap()
    };
    let first = hash(1);
    assert_eq!(first, hash(1));
    assert_eq!(first, hash(3));
}

#[test]
fn stragglers_abort_or_finish_and_every_sample_has_one_owner() {
    for straggler in [Straggler::Abort, Straggler::Finish] {
        let mut config = config(3);
        config.policy = "static:2".parse().unwrap();
        config.round.straggler = straggler;
        let outcome = run(config, "slow:1:30,stalls:3", 3);
        assert_eq!(outcome.rounds, 40);
    }
}

#[test]
fn with_room_for_one_contribution_workers_push_in_turn() {
    let mut config = config(4);
    config.placement.staging_bytes = 1;
    assert_eq!(run(config, "", 4).rounds, 40);
}

#[test]
fn with_room_for_some_and_rounds_that_are_cut_no_place_is_ever_lost() {
    for room in [1, 2, 3] {
        for straggler in [Straggler::Abort, Straggler::Finish] {
            let mut config = config(5);
            config.policy = "static:3".parse().unwrap();
            config.round.straggler = straggler;
            config.placement.staging_bytes = room * 4 * PARAMS as u64;
            config.limits.rounds = Some(100);
            assert_eq!(run(config, "stalls:3", 5).rounds, 100);
        }
    }
}

#[test]
fn a_run_that_keeps_all_contributions_to_the_close_takes_no_more_workers_than_it_has_room_for() {
    let mut config = config(2);
    config.deterministic = true;
    config.limits.rounds = None;
    config.placement.staging_bytes = 2 * 4 * PARAMS as u64;
    let mut server = Server::start(config, start());
    let workers = [server.worker(0), server.worker(1)];
    common::wait_for_rounds(&server, 5);
    let refused = server.worker(2).join().unwrap().unwrap_err().to_string();
    assert!(refused.contains("the run is full: it has room for 2 workers"), "{refused}");
    common::wait_for_rounds(&server, 5);
    server.interrupt();
    server.join().0.unwrap();
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
}

#[test]
fn epochs_end_when_every_sample_was_used_once() {
    let mut config = config(3);
    config.limits.rounds = None;
    config.limits.epochs = Some(2);
    config.round.batch = 64;
    let outcome = run(config, "", 3);
    assert_eq!(outcome.reason, StopReason::Epochs);
    assert_eq!(outcome.samples.used, 2 * u64::from(common::SAMPLES));
    assert_eq!((outcome.ledger.epochs, outcome.ledger.unused.len()), (2, 0));
}

#[test]
fn a_worker_may_join_and_leave_in_mid_run() {
    let mut config = config(1);
    config.limits.rounds = None;
    let mut server = Server::start(config, start());
    let first = server.worker(0);
    server.wait_for(|event| matches!(event, EventKind::Closed { round, .. } if round.0 == 5));
    let second = server.worker(1);
    server.wait_for(
        |event| matches!(event, EventKind::Arrived { worker, .. } if *worker == WorkerId(1)),
    );
    server.interrupt();
    first.join().unwrap().unwrap();
    second.join().unwrap().unwrap();
    let (outcome, _) = server.join();
    assert_eq!(outcome.unwrap().reason, StopReason::Interrupted);
}

#[test]
fn a_worker_with_other_data_is_shown_out_and_knows_why() {
    let mut config = config(1);
    config.limits.rounds = None;
    let mut server = Server::start(config, start());
    let mistaken = WorkerConfig { address: server.address.to_string(), ..WorkerConfig::default() };
    let error = paceline_worker::run(&mistaken, &Tcp, wait_for_answers, |_| {
        Ok((Box::new(common::Quadratic::new()), common::SAMPLES - 1))
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("its training set has 999 samples, this run's has 1000"), "{error}");
    server.interrupt();
    assert_eq!(server.join().0.unwrap().reason, StopReason::Interrupted);
}

#[test]
fn losing_the_quorum_stops_the_run_with_a_clear_reason() {
    let mut config = config(2);
    config.round.quorum = 2;
    config.limits.rounds = None;
    let server = Server::start(config, start());
    let stays = server.worker(0);
    // Leaves in mid-round: its compute panics.
    let dies = server.worker_with(1, "", || Box::new(Dies(0)));
    let seen = server.wait_for(|event| matches!(event, EventKind::WorkerLeft { .. }));
    assert!(dies.join().is_err());
    let left = &seen.last().unwrap().kind;
    assert!(matches!(left, EventKind::WorkerLeft { why: LeaveReason::Finished, .. }), "{left:?}");
    stays.join().unwrap().unwrap();
    let outcome = server.join().0.unwrap();
    assert!(matches!(outcome.reason, StopReason::QuorumLost { live: 1, quorum: 2, .. }));
    assert!(outcome.ledger.balanced);
}

struct Dies(u32);

impl paceline_worker::Compute for Dies {
    fn load(&mut self, _: usize, _: &[f32]) {}

    fn gradient(&mut self, samples: &[u32], _: &mut [f32]) -> f64 {
        self.0 += 1;
        assert!(self.0 < 7, "killed on purpose");
        samples.len() as f64
    }
}

#[test]
fn a_panic_in_evaluation_ends_the_run_with_its_message() {
    let mut config = config(1);
    config.limits.rounds = None;
    let evaluator = Box::new(|_: &[f32]| panic!("the judge is out"));
    let server = Server::start_with(config, start(), Some(evaluator));
    let worker = server.worker(0);
    let outcome = server.join().0.unwrap();
    let StopReason::Failed(why) = outcome.reason else { panic!("{:?}", outcome.reason) };
    assert!(why.contains("failed to measure v10: it panicked: the judge is out"), "{why}");
    worker.join().unwrap().unwrap();
}

/// Computes for as long as it is wanted.
struct Endless;

impl paceline_worker::Compute for Endless {
    fn load(&mut self, _: usize, _: &[f32]) {}

    fn gradient(&mut self, _: &[u32], _: &mut [f32]) -> f64 {
        unreachable!("it asks whether it is wanted")
    }

    fn gradient_while(
        &mut self,
        _: &[u32],
        _: &mut [f32],
        wanted: &dyn Fn() -> bool,
    ) -> Option<f64> {
        while wanted() {
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        None
    }
}

#[test]
fn a_straggler_stops_in_the_middle_of_a_micro_batch() {
    let mut config = config(2);
    config.policy = "static:1".parse().unwrap();
    config.round.micro_batches = 1;
    config.limits.rounds = Some(20);
    let server = Server::start(config, start());
    let (works, never_done) = (server.worker(0), server.worker_with(1, "", || Box::new(Endless)));
    assert!(server.join().0.unwrap().ledger.balanced);
    works.join().unwrap().unwrap();
    let tally = never_done.join().unwrap().unwrap();
    assert!(tally.aborted > 1 && tally.finished == 0, "{tally:?}");
}
