//! Leases ahead over loopback, byte by byte.

mod common;

use common::{SAMPLES, Server, config, rogue::Rogue, start};
use paceline_core::{Portion, SampleRange};
use paceline_wire::message::{FromWorker, ToWorker};

fn portion(start: u32) -> Portion {
    Portion::new(SampleRange { epoch: 0, start, end: start + 8 })
}

#[test]
fn a_worker_is_told_of_its_leases_and_its_work_follows_their_order() {
    let mut config = config(1);
    config.epoch_barrier = true;
    config.limits.rounds = Some(3);
    let server = Server::start(config, start());
    let mut worker = Rogue::join(server.address);
    assert_eq!((worker.job.samples, worker.job.epochs), (Some(SAMPLES), 0));
    worker.control.say(&FromWorker::Ready { samples: Some(SAMPLES), ahead: 3 });
    let hear = |worker: &mut Rogue| loop {
        match worker.control.hear() {
            ToWorker::Heard { .. } | ToWorker::Push { .. } => {}
            message => return message,
        }
    };
    let list = |first: u32| (first..first + 3).map(|k| portion(8 * k)).collect();
    assert_eq!(hear(&mut worker), ToWorker::Leases(list(0)));
    for round in 0..3 {
        let ToWorker::Work { id, base, portion: work, .. } = hear(&mut worker) else {
            panic!("work comes first, then the rest of the leases")
        };
        assert_eq!(work, portion(8 * round));
        assert_eq!(hear(&mut worker), ToWorker::Leases(list(round + 1)));
        worker.ids.insert(base, id);
        worker.pull(base);
        worker.done(base, 8.0, 1.0);
        worker.push(base, &vec![0.5; common::PARAMS]);
        let ToWorker::Closed { base: closed, epochs, .. } = hear(&mut worker) else {
            panic!("its round closes")
        };
        assert_eq!((closed, epochs), (base, 0));
    }
    assert!(matches!(hear(&mut worker), ToWorker::Stop(_)));
    drop(worker);
    let outcome = server.join().0.unwrap();
    assert_eq!(outcome.samples.used, 24);
    assert!(outcome.ledger.balanced);
}

#[test]
fn workers_that_bring_streams_are_counted_by_weight() {
    let mut config = config(1);
    config.samples = None;
    config.limits.rounds = Some(2);
    let server = Server::start(config, start());
    let mut worker = Rogue::join(server.address);
    let (mut base, _) = worker.ready();
    for weight in [0.5, 70.0] {
        worker.pull(base);
        worker.done(base, weight, 1.0);
        worker.push(base, &vec![0.5; common::PARAMS]);
        if weight < 1.0 {
            (base, _) = worker.work();
        }
    }
    while !matches!(worker.control.hear(), ToWorker::Stop(_)) {}
    drop(worker);
    let outcome = server.join().0.unwrap();
    assert_eq!((outcome.samples.used, outcome.ledger.epochs), (71, 0));
    assert!(outcome.ledger.balanced);
}
