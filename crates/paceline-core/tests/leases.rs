//! Leases ahead, the epoch barrier and streams, told as short scripts on simulated time.

mod script;

use paceline_core::{
    Coordinator, LeaveReason, Ledger, MachineError, Portion, Round, RoundConfig, SampleRange,
    Shards, Straggler, WorkerId,
};
use script::{First, Script, hand};

/// Two workers in a run over `ledger`, in portions of 10 samples. Those in `ahead` hold leases.
fn run(ledger: Ledger, config: RoundConfig, ahead: [u32; 2]) -> Script {
    let config = RoundConfig { expected: 2, batch: 10, ..config };
    let mut s = Script::new(0, First(1), config.clone());
    let policy = Box::new(First(2));
    s.coordinator = Coordinator::new(config, policy, ledger, Shards::all(1), Round(0));
    for (worker, ahead) in (0..).zip(ahead) {
        s.join(worker);
        s.coordinator.lease_ahead(WorkerId(worker), ahead);
    }
    s
}

fn portion(epoch: u32, start: u32) -> Portion {
    Portion::new(SampleRange { epoch, start, end: start + 10 })
}

/// The leases that have changed: worker, and the epoch and first position of each.
fn changes(s: &mut Script) -> Vec<(u32, Vec<(u32, u32)>)> {
    let first = |lease: &Portion| (lease.ranges()[0].epoch, lease.ranges()[0].start);
    let changes = s.coordinator.take_leases().into_iter();
    changes.map(|(worker, leases)| (worker.0, leases.iter().map(first).collect())).collect()
}

/// Both workers have arrived on `base`, and the update is published.
fn round(s: &mut Script, base: u64) {
    s.wait(10).arrive(0, base).arrive(1, base).publish();
}

#[test]
fn work_follows_the_order_of_the_leases_and_every_change_is_told() {
    let mut s = run(Ledger::new(1000, None), RoundConfig::default(), [2, 1]);
    assert_eq!(changes(&mut s), [(0, vec![(0, 0), (0, 10)]), (1, vec![(0, 20)])]);
    s.advance();
    assert_eq!((hand(&s, 0), hand(&s, 1)), ((0, 10), (20, 30)));
    assert_eq!(changes(&mut s), [(0, vec![(0, 10), (0, 40)]), (1, vec![(0, 30)])]);
    s.wait(10).arrive(0, 0);
    assert_eq!(changes(&mut s), [], "nothing changes inside a round");
    s.arrive(1, 0).publish();
    assert_eq!((hand(&s, 0), hand(&s, 1)), ((10, 20), (30, 40)));
    assert!(s.coordinator.report().balanced);
}

#[test]
fn the_leases_of_a_dead_worker_go_back_and_are_not_counted_as_requeued() {
    let mut s = run(Ledger::new(100, Some(1)), RoundConfig::default(), [3, 0]);
    s.advance();
    assert_eq!((hand(&s, 0), hand(&s, 1)), ((0, 10), (30, 40)));
    s.leave(0).arrive(1, 0).publish();
    assert_eq!(hand(&s, 1), (0, 10), "the work of the dead worker goes first");
    for (base, next) in [(1, (10, 20)), (2, (20, 30)), (3, (40, 50))] {
        s.arrive(1, base).publish();
        assert_eq!(hand(&s, 1), next);
    }
    assert_eq!(s.coordinator.ledger().counts().requeued, 10, "only the work had begun");
    assert!(s.coordinator.report().balanced);
}

#[test]
fn an_idle_worker_takes_over_leases_so_that_the_epoch_ends_sooner() {
    let mut s = run(Ledger::new(60, Some(1)), RoundConfig::default(), [9, 0]);
    s.advance();
    // The first worker holds all samples: one portion as work, four as leases, and lost the last one.
    assert_eq!((hand(&s, 0), hand(&s, 1)), ((0, 10), (50, 60)));
    assert_eq!(changes(&mut s), [(0, vec![(0, 10), (0, 20), (0, 30), (0, 40)])]);
    round(&mut s, 0);
    assert_eq!((hand(&s, 0), hand(&s, 1)), ((10, 20), (40, 50)));
    assert_eq!(changes(&mut s), [(0, vec![(0, 20), (0, 30)])]);
    round(&mut s, 1);
    assert_eq!((hand(&s, 0), hand(&s, 1)), ((20, 30), (30, 40)));
    round(&mut s, 2);
    assert_eq!(s.coordinator.ledger().epochs(), 1, "six portions in three rounds");
    assert_eq!(s.coordinator.ledger().counts().requeued, 0);
}

#[test]
fn with_a_barrier_leases_reach_into_the_next_epoch_and_work_does_not() {
    let barrier = || Ledger::new(30, None).with_epoch_barrier();
    let config = RoundConfig { straggler: Straggler::Finish, ..RoundConfig::default() };
    let mut s = run(barrier(), config.clone(), [1, 1]);
    s.advance();
    assert_eq!(changes(&mut s), [(0, vec![(0, 20)]), (1, vec![(1, 0)])]);
    s.arrive(0, 0).arrive(1, 0).publish();
    s.check(&[
        "round 0: w0 w1",
        "arrived w0",
        "arrived w1",
        "cut, all arrived:",
        "closed w0 w1 (w0=0.000000 w1=0.000000)",
        "round 1: w0",
    ]);
    assert_eq!(s.coordinator.ledger().epochs(), 0);
    // The last samples of the epoch are late, and come back: their worker gets them before its own leases.
    s.wait(10).leave(0).join(0).advance();
    assert_eq!((s.work[&1].clone(), s.coordinator.ledger().epochs()), (portion(0, 20), 0));
    s.arrive(1, 1).publish();
    assert_eq!(s.coordinator.ledger().epochs(), 1);
    assert_eq!(s.work[&1], portion(1, 0), "the next epoch begins");
    // Native workers, without leases, wait as well.
    let mut s = run(barrier(), config, [0, 0]);
    s.advance();
    s.arrive(0, 0).arrive(1, 0).publish();
    s.log.clear();
    s.wait(10).arrive(0, 1).publish();
    assert_eq!(s.log.last().unwrap(), "round 2: w0 w1");
    assert_eq!((s.work[&0].clone(), s.work[&1].clone()), (portion(1, 0), portion(1, 10)));
}

#[test]
fn a_checkpoint_counts_leases_as_unused() {
    let mut s = run(Ledger::new(40, Some(1)), RoundConfig::default(), [3, 0]);
    s.advance();
    round(&mut s, 0);
    let mut resumed = Ledger::resume(&s.coordinator.ledger().state(), 40, Some(1)).unwrap();
    assert!(resumed.report(std::iter::empty()).balanced);
    let left = std::iter::from_fn(|| resumed.take(WorkerId(0), 10));
    let left: Vec<u32> = left.map(|handout| handout.ranges[0].range.start).collect();
    assert_eq!(left, [10, 20]);
}

#[test]
fn a_stream_is_endless_and_counts_weights() {
    let mut s = run(Ledger::stream(10), RoundConfig::default(), [0, 0]);
    s.advance();
    for base in 0..300 {
        // Every third contribution of the second worker is given up with its worker.
        s.put(0, base, 0.25);
        if base % 3 == 0 {
            s.coordinator.handle_leave(WorkerId(1), LeaveReason::Disconnected, s.now).unwrap();
            s.join(1);
        } else {
            s.put(1, base, 1000.5);
        }
        s.advance().publish();
        assert_eq!(s.coordinator.machine().round(), Round(base + 1));
    }
    let report = s.coordinator.report();
    assert!(report.balanced && report.unused.is_empty() && report.epochs == 0);
    assert_eq!(s.coordinator.ledger().counts().used, 300 / 4 + 200 * 1000 + 100);
    let resumed = Ledger::resume_stream(&s.coordinator.ledger().state(), 10).unwrap();
    assert_eq!(resumed.counts(), s.coordinator.ledger().counts());
    assert!(Ledger::resume(&s.coordinator.ledger().state(), 100, None).is_err());
}

#[test]
fn a_weight_that_is_not_a_positive_number_is_refused_on_streams_as_well() {
    let mut s = run(Ledger::stream(10), RoundConfig::default(), [0, 0]);
    s.advance();
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let refused = s.done(0, 0, weight);
        assert!(matches!(refused, Err(MachineError::BadWeight { .. })), "{weight}");
    }
    s.done(0, 0, 1e9).unwrap();
}
