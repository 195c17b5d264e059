//! The coordinator under random event orders. The checkers stand outside: they see only what goes
//! in and the events that come out.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use paceline_core::{
    Blocks, Contribution, Coordinator, CutReason, Decision, Event, EventKind, LeaveReason, Ledger,
    Policy, Round, RoundConfig, RoundView, ShardId, Straggler, Time, Version, WorkerId,
};
use proptest::prelude::*;

const SHARDS: u32 = 3;
const WORKERS: u32 = 5;
const SAMPLES: u32 = 97;

#[derive(Debug, Clone)]
enum Step {
    Join(u32),
    Leave(u32),
    /// A shard reports its part of what the worker has in hand, or had before that.
    Stage {
        worker: u32,
        shard: u32,
        before: bool,
    },
    /// The worker says what it put there.
    Done {
        worker: u32,
        before: bool,
    },
    Abort {
        worker: u32,
        before: bool,
    },
    Publish,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let worker = 0..WORKERS;
    prop_oneof![
        2 => worker.clone().prop_map(Step::Join),
        1 => worker.clone().prop_map(Step::Leave),
        12 => (worker.clone(), 0..SHARDS, prop::bool::weighted(0.1))
            .prop_map(|(worker, shard, before)| Step::Stage { worker, shard, before }),
        6 => (worker.clone(), prop::bool::weighted(0.1))
            .prop_map(|(worker, before)| Step::Done { worker, before }),
        1 => (worker, any::<bool>()).prop_map(|(worker, before)| Step::Abort { worker, before }),
        4 => Just(Step::Publish),
        2 => (1..200u64).prop_map(Step::Wait),
    ]
}

/// Cuts at a count or after a time, whichever comes first, with a grace.
struct Impatient {
    count: usize,
    lag: u64,
    grace: Duration,
}

impl Policy for Impatient {
    fn name(&self) -> String {
        "impatient".to_owned()
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        let deadline = view.opened + Duration::from_millis(500);
        if view.arrivals.len() >= self.count || view.now >= deadline {
            return Decision::cut(CutReason::Count { wanted: self.count as u32 });
        }
        Decision::Wait { until: Some(deadline), arrivals: 1 }
    }

    fn admissible_lag(&self) -> u64 {
        self.lag
    }

    fn grace(&mut self, _: &RoundView<'_>) -> Duration {
        self.grace
    }
}

/// What an onlooker knows: who was given which samples, what each shard was told to fold.
#[derive(Default)]
struct Onlooker {
    given: BTreeMap<(WorkerId, Version), paceline_core::SampleRange>,
    /// Per shard: what it holds staged, and what it was told to fold, by round.
    staged: Vec<BTreeSet<(WorkerId, Version)>>,
    folded: Vec<BTreeMap<Round, BTreeSet<(WorkerId, Version)>>>,
    counted: BTreeSet<(WorkerId, Version)>,
    closed: BTreeSet<Round>,
    used: BTreeMap<u32, Vec<bool>>,
    used_weight: f64,
}

impl Onlooker {
    fn new() -> Self {
        Onlooker {
            staged: vec![BTreeSet::new(); SHARDS as usize],
            folded: vec![BTreeMap::new(); SHARDS as usize],
            ..Onlooker::default()
        }
    }

    fn see(&mut self, event: &Event) {
        match &event.kind {
            EventKind::RoundStarted { round, work } => {
                for work in work {
                    self.given.insert((work.worker, round.base()), work.range);
                }
            }
            EventKind::Enlisted { round, work } => {
                self.given.insert((work.worker, round.base()), work.range);
            }
            EventKind::Arrived { round, base, worker, .. } => self.arrived(*round, *base, *worker),
            EventKind::Closed { round, closes, .. } => {
                assert!(self.closed.insert(*round), "{round} closed twice");
                for folded in &self.folded {
                    let folded: Vec<WorkerId> =
                        folded.get(round).into_iter().flatten().map(|&(w, _)| w).collect();
                    let members: Vec<WorkerId> = closes[0].members.iter().map(|m| m.0).collect();
                    assert_eq!(folded, members, "membership is equal on every shard");
                }
                self.used_weight += closes[0].weight();
            }
            _ => {}
        }
    }

    fn arrived(&mut self, round: Round, base: Version, worker: WorkerId) {
        assert!(!self.closed.contains(&round), "closed accepts nothing");
        assert!(self.counted.insert((worker, base)), "{worker} {base} counted twice");
        for shard in 0..SHARDS as usize {
            assert!(self.staged[shard].remove(&(worker, base)), "half a contribution was counted");
            self.folded[shard].entry(round).or_default().insert((worker, base));
        }
        let range = self.given[&(worker, base)];
        let epoch = self.used.entry(range.epoch).or_insert_with(|| vec![false; SAMPLES as usize]);
        for sample in &mut epoch[range.start as usize..range.end as usize] {
            assert!(!std::mem::replace(sample, true), "a sample of {range} was used twice");
        }
    }
}

struct World {
    coordinator: Coordinator,
    onlooker: Onlooker,
    now: Time,
    live: BTreeSet<u32>,
    /// The last two pieces of work each worker was given.
    hands: BTreeMap<u32, [Option<(Version, u32)>; 2]>,
}

impl World {
    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Join(w) if self.live.insert(w) => {
                self.coordinator.handle_join(WorkerId(w), "test", self.now).unwrap();
            }
            Step::Leave(w) if self.live.remove(&w) => {
                let why = LeaveReason::Disconnected;
                self.coordinator.handle_leave(WorkerId(w), why, self.now).unwrap();
                self.hands.remove(&w);
                for staged in &mut self.onlooker.staged {
                    staged.retain(|&(worker, _)| worker != WorkerId(w));
                }
            }
            Step::Stage { worker, shard, before } => self.stage(worker, shard, before),
            Step::Done { worker, before } => {
                if let Some((base, samples)) = self.hand(worker, before) {
                    let contribution = Contribution {
                        worker: WorkerId(worker),
                        base,
                        weight: f64::from(samples),
                        loss: 0.5,
                        blocks: Blocks::All,
                    };
                    // A report of work it no longer has is refused, and costs nothing.
                    let _ = self.coordinator.handle_done(contribution, self.now);
                }
            }
            Step::Abort { worker, before } => {
                let Some((base, _)) = self.hand(worker, before) else { return };
                let worker = WorkerId(worker);
                if self.coordinator.handle_aborted(worker, base, 1, self.now).is_ok() {
                    for staged in &mut self.onlooker.staged {
                        staged.remove(&(worker, base));
                    }
                }
            }
            Step::Publish => self.coordinator.handle_published(),
            Step::Wait(ms) => self.now += Duration::from_millis(ms),
            Step::Join(_) | Step::Leave(_) => {}
        }
        self.coordinator.advance(self.now);
        while let Some(event) = self.coordinator.poll_event() {
            self.note_work(&event.kind);
            self.onlooker.see(&event);
        }
        assert!(self.coordinator.ledger().report().balanced, "after {step:?}");
    }

    fn hand(&self, worker: u32, before: bool) -> Option<(Version, u32)> {
        self.hands.get(&worker)?[usize::from(before)]
    }

    fn stage(&mut self, worker: u32, shard: u32, before: bool) {
        let Some((base, _)) = self.hand(worker, before) else { return };
        if self.onlooker.counted.contains(&(WorkerId(worker), base)) {
            return;
        }
        self.onlooker.staged[shard as usize].insert((WorkerId(worker), base));
        let _ = self.coordinator.handle_staged(WorkerId(worker), base, ShardId(shard), self.now);
    }

    fn note_work(&mut self, event: &EventKind) {
        let (base, all) = match event {
            EventKind::RoundStarted { round, work } => (round.base(), work.as_slice()),
            EventKind::Enlisted { round, work } => (round.base(), std::slice::from_ref(work)),
            _ => return,
        };
        for work in all {
            let hands = self.hands.entry(work.worker.0).or_default();
            hands[1] = hands[0].replace((base, work.range.len()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_in_whatever_order_the_books_and_the_sums_are_right(
        steps in prop::collection::vec(step(), 0..300),
        quorum in 1..3usize,
        count in 1..5usize,
        lag in prop_oneof![3 => Just(0u64), 1 => 1..3u64],
        grace in prop_oneof![3 => Just(0u64), 1 => 1..300u64],
        finish in any::<bool>(),
    ) {
        let config = RoundConfig {
            quorum,
            expected: 2,
            straggler: if finish { Straggler::Finish } else { Straggler::Abort },
            ..RoundConfig::default()
        };
        let policy = Impatient { count, lag, grace: Duration::from_millis(grace) };
        let ledger = Ledger::new(SAMPLES, Some(4));
        let mut world = World {
            coordinator: Coordinator::new(config, Box::new(policy), ledger, 8, SHARDS, Round(0)),
            onlooker: Onlooker::new(),
            now: Time::ZERO,
            live: BTreeSet::new(),
            hands: BTreeMap::new(),
        };
        for step in &steps {
            world.apply(step);
        }
        let counts = world.coordinator.ledger().counts();
        prop_assert_eq!(counts.used as f64, world.onlooker.used_weight);
        let complete = world.onlooker.used.values().take_while(|e| e.iter().all(|&u| u)).count();
        prop_assert!(world.coordinator.ledger().epochs() as usize <= complete);

        // What a checkpoint keeps, a resume can go on from, with nothing lost or used twice.
        let resumed = Ledger::resume(&world.coordinator.ledger().state(), SAMPLES, Some(4));
        prop_assert!(resumed.unwrap().report().balanced);
    }
}
