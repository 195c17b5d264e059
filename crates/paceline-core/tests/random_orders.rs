//! The coordinator under random event orders. The checkers stand outside: they see only what goes
//! in and the events that come out.

mod onlooker;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use onlooker::Onlooker;
use paceline_core::{
    Announcement, ContributionId, Coordinator, CutReason, Decision, EventKind, Late, LeaveReason,
    Ledger, Phase, Policy, Round, RoundConfig, RoundView, ShardId, Shards, StopReason, Straggler,
    Time, WorkerId,
};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};

const SHARDS: u32 = 3;
const WORKERS: u32 = 5;
const SAMPLES: u32 = 97;

/// Each shard's blocks.
const SIZES: [u32; SHARDS as usize] = [2, 1, 1];
const MICRO_BATCHES: u32 = 4;

#[derive(Debug, Clone)]
enum Step {
    Join(u32),
    Leave(u32),
    /// All that is missing of what the worker has in hand; past a cut, with salvage, so many of its
    /// micro-batches.
    Finish {
        worker: u32,
        micro_batches: u32,
    },
    /// A shard has received its part of what the worker has in hand, or had before that, and reports it
    /// at once, or later, so that other messages cross the report.
    Stage {
        worker: u32,
        shard: u32,
        before: bool,
        crosses: bool,
    },
    /// A report that was under way comes.
    Report,
    /// The worker says what it put there.
    Done {
        worker: u32,
        before: bool,
    },
    Abort {
        worker: u32,
        before: bool,
    },
    /// These shards have applied the last update; others may be left behind.
    Publish(u32),
    Wait(u64),
    /// The driver is busy: time passes, and nobody is asked.
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let worker = 0..WORKERS;
    prop_oneof![
        4 => worker.clone().prop_map(Step::Join),
        1 => worker.clone().prop_map(Step::Leave),
        20 => (worker.clone(), 1..=MICRO_BATCHES)
            .prop_map(|(worker, micro_batches)| Step::Finish { worker, micro_batches }),
        6 => (worker.clone(), 0..SHARDS, prop::bool::weighted(0.1), prop::bool::weighted(0.5))
            .prop_map(|(worker, shard, before, crosses)| {
                Step::Stage { worker, shard, before, crosses }
            }),
        3 => Just(Step::Report),
        3 => (worker.clone(), prop::bool::weighted(0.1))
            .prop_map(|(worker, before)| Step::Done { worker, before }),
        2 => (worker, any::<bool>()).prop_map(|(worker, before)| Step::Abort { worker, before }),
        8 => Just(Step::Publish((1 << SHARDS) - 1)),
        3 => (1..1u32 << SHARDS).prop_map(Step::Publish),
        2 => (1..200u64).prop_map(Step::Wait),
        1 => (1..200u64).prop_map(Step::Pass),
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

    fn grace(&mut self, _: &RoundView<'_>, _: Duration) -> Duration {
        self.grace
    }
}

struct World {
    coordinator: Coordinator,
    onlooker: Onlooker,
    now: Time,
    live: BTreeSet<u32>,
    salvage: bool,
    /// Leases that each worker but the last asks for.
    ahead: u32,
    /// Nothing more counts of a round that is closed.
    gives_up: bool,
    /// The last two pieces of work each worker was given.
    hands: BTreeMap<u32, [Option<(ContributionId, u32)>; 2]>,
    /// Reports of shards that are under way.
    under_way: Vec<(WorkerId, ContributionId, ShardId)>,
}

impl World {
    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Join(w) if self.live.insert(w) => {
                self.coordinator.handle_join(WorkerId(w), "test", self.now).unwrap();
                if self.ahead > 0 && w + 1 < WORKERS {
                    self.coordinator.lease_ahead(WorkerId(w), self.ahead);
                    self.note_leases();
                }
            }
            Step::Leave(w) if self.live.remove(&w) => {
                let why = LeaveReason::Disconnected;
                self.coordinator.handle_leave(WorkerId(w), why, self.now).unwrap();
                let hands = self.hands.remove(&w).into_iter().flatten().flatten();
                self.onlooker.leave(WorkerId(w), hands.map(|(id, _)| id));
                // Reports of its session are not heard.
                self.under_way.retain(|&(worker, ..)| worker != WorkerId(w));
            }
            Step::Stage { worker, shard, before, crosses } => {
                self.stage(worker, shard, before, crosses);
            }
            Step::Report => self.report(),
            Step::Done { worker, before } => {
                if let Some((id, samples)) = self.hand(worker, before) {
                    self.done(worker, id, samples);
                }
            }
            Step::Finish { worker, micro_batches } => self.finish(worker, micro_batches),
            Step::Abort { worker, before } => {
                let Some((id, _)) = self.hand(worker, before) else { return };
                // A worker that nobody has cut is refused, and costs nothing.
                let _ = self.coordinator.handle_aborted(WorkerId(worker), id, 1, self.now);
            }
            // A word of a shard that owes nothing is refused, and costs nothing.
            Step::Publish(shards) => {
                for shard in (0..SHARDS).filter(|shard| shards & (1 << shard) != 0) {
                    let _ = self.coordinator.handle_applied(ShardId(shard), self.now);
                }
            }
            Step::Wait(ms) => self.now += Duration::from_millis(ms),
            Step::Pass(ms) => {
                self.now += Duration::from_millis(ms);
                return;
            }
            Step::Join(_) | Step::Leave(_) => {}
        }
        self.coordinator.advance(self.now);
        if self.coordinator.stop_reason(self.now).is_none() {
            let wake = self.coordinator.next_wake();
            assert!(wake.is_none_or(|at| at > self.now), "asked for ever after {step:?}");
        }
        let fresh = self.coordinator.shards().fresh().clone();
        while let Some(event) = self.coordinator.poll_event() {
            self.note_work(&event.kind);
            self.onlooker.see(&event, &fresh);
            if let EventKind::Closed { round, .. } = event.kind
                && self.gives_up
            {
                self.coordinator.give_up_parts(round.base());
            }
        }
        for (_, id) in self.coordinator.take_discards() {
            self.onlooker.discard(id);
        }
        self.note_leases();
        assert!(self.coordinator.report().balanced, "after {step:?}");
    }

    fn done(&mut self, worker: u32, id: ContributionId, samples: u32) {
        let announcement =
            Announcement { id, weight: f64::from(samples), loss: Some(0.5), square: None };
        // A report of work that it does not have any more is refused, and costs nothing.
        let _ = self.coordinator.handle_done(WorkerId(worker), announcement, self.now);
    }

    fn finish(&mut self, worker: u32, micro_batches: u32) {
        let Some((id, samples)) = self.hand(worker, false) else { return };
        let cut = matches!(self.coordinator.machine().phase(), Phase::Cut { .. });
        let done = match self.salvage && cut {
            true => (samples * micro_batches / MICRO_BATCHES).max(1),
            false => samples,
        };
        self.done(worker, id, done);
        for shard in 0..SHARDS {
            self.stage(worker, shard, false, false);
        }
    }

    fn hand(&self, worker: u32, before: bool) -> Option<(ContributionId, u32)> {
        self.hands.get(&worker)?[usize::from(before)]
    }

    fn stage(&mut self, worker: u32, shard: u32, before: bool, crosses: bool) {
        let Some((id, _)) = self.hand(worker, before) else { return };
        if !self.onlooker.receive(id, shard) {
            return;
        }
        self.under_way.push((WorkerId(worker), id, ShardId(shard)));
        if !crosses {
            self.report();
        }
    }

    /// The last report that is under way comes; older ones are overtaken.
    fn report(&mut self) {
        let Some((worker, id, shard)) = self.under_way.pop() else { return };
        self.onlooker.hear(id);
        self.coordinator.handle_staged(worker, id, shard, self.now);
    }

    fn note_leases(&mut self) {
        for (worker, leases) in self.coordinator.take_leases() {
            assert!(leases.len() <= self.ahead as usize, "{worker} holds more than it asked for");
            self.onlooker.lease(worker, leases);
        }
    }

    fn note_work(&mut self, event: &EventKind) {
        let all = match event {
            EventKind::RoundStarted { work, .. } => work.as_slice(),
            EventKind::Enlisted { work, .. } => std::slice::from_ref(work),
            _ => return,
        };
        for work in all {
            let hands = self.hands.entry(work.worker.0).or_default();
            hands[1] = hands[0].replace((work.id, work.portion.len()));
        }
    }
}

#[derive(Debug, Clone)]
struct Case {
    steps: Vec<Step>,
    epochs: u32,
    quorum: usize,
    count: usize,
    lag: u64,
    grace: u64,
    partial: bool,
    /// Rounds do not wait for all shards.
    behind: bool,
    straggler: Straggler,
    fold: bool,
    ahead: u32,
    barrier: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let straggler =
        prop::sample::select(vec![Straggler::Abort, Straggler::Finish, Straggler::Salvage]);
    (
        prop::collection::vec(step(), 0..600),
        1..5u32,
        1..3usize,
        1..5usize,
        prop_oneof![3 => Just(0u64), 1 => 1..3u64],
        prop_oneof![1 => Just(0u64), 1 => 1..300u64],
        prop::bool::weighted(0.3),
        prop::bool::weighted(0.3),
        (straggler, any::<bool>()),
        (prop_oneof![1 => Just(0u32), 1 => 1..5u32], any::<bool>()),
    )
        .prop_map(
            |(steps, epochs, quorum, count, lag, grace, partial, behind, late, leases)| {
                let ((straggler, fold), (ahead, barrier)) = (late, leases);
                Case {
                    steps,
                    epochs,
                    quorum,
                    count,
                    // Rounds that admit older versions have all shards.
                    lag: if partial || behind { 0 } else { lag },
                    grace,
                    partial,
                    behind,
                    straggler,
                    fold: fold && !partial && !behind && straggler == Straggler::Finish,
                    ahead,
                    barrier,
                }
            },
        )
}

/// Plays a case out, with everything checked on the way.
fn play(case: &Case) -> World {
    let config = RoundConfig {
        quorum: case.quorum,
        expected: 2,
        straggler: case.straggler,
        late: if case.fold { Late::Fold } else { Late::Drop },
        micro_batches: MICRO_BATCHES,
        batch: 8,
        ..RoundConfig::default()
    };
    let Case { count, lag, .. } = *case;
    let grace = Duration::from_millis(case.grace);
    let policy = Box::new(Impatient { count, lag, grace });
    let ledger = Ledger::new(SAMPLES, Some(case.epochs));
    let ledger = if case.barrier { ledger.with_epoch_barrier() } else { ledger };
    let first = || Impatient { count: 1, lag: 0, grace: Duration::ZERO };
    let shards = match case.behind {
        true => Shards::new(&SIZES, Box::new(first()), 2, 3),
        false => Shards::all(SHARDS),
    };
    let mut coordinator = Coordinator::new(config, policy, ledger, shards, Round(0));
    if case.partial {
        let rule = move || Shards::asked_anew(&SIZES, Box::new(first()), 2, 3);
        coordinator = coordinator.with_partial_pushes(&SIZES, Box::new(rule));
    }
    let mut world = World {
        coordinator,
        onlooker: Onlooker::new(case.barrier),
        ahead: case.ahead,
        now: Time::ZERO,
        live: BTreeSet::new(),
        salvage: case.straggler == Straggler::Salvage,
        gives_up: (case.partial || case.behind) && case.straggler != Straggler::Finish,
        hands: BTreeMap::new(),
        under_way: Vec::new(),
    };
    for worker in 0..2 {
        world.apply(&Step::Join(worker));
    }
    for step in &case.steps {
        world.apply(step);
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn once_workers_finish_what_they_are_given_every_epoch_comes_to_its_end(mut case in case()) {
        // Workers that keep their work past a cut do not give it up.
        let keeps = case.straggler == Straggler::Finish || case.lag > 0;
        case.steps.retain(|step| !(keeps && matches!(step, Step::Abort { .. })));
        let mut world = play(&case);
        let last = [Step::Report, Step::Publish((1 << SHARDS) - 1), Step::Wait(50)];
        let finish = |worker| Step::Finish { worker, micro_batches: MICRO_BATCHES };
        let all: Vec<Step> = (0..WORKERS).map(finish).chain(last).collect();
        let steps = (0..2).map(Step::Join).chain(std::iter::repeat_n(all, 1000).flatten());
        for step in steps {
            if world.coordinator.stop_reason(world.now) == Some(StopReason::Epochs) {
                break;
            }
            world.apply(&step);
        }
        prop_assert_eq!(world.onlooker.complete_epochs(), case.epochs);
    }

    #[test]
    fn whatever_happens_in_whatever_order_the_books_and_the_sums_are_right(case in case()) {
        let world = play(&case);
        let ledger = world.coordinator.ledger();
        prop_assert_eq!(ledger.counts().used as f64, world.onlooker.used_weight);
        prop_assert_eq!(ledger.epochs(), world.onlooker.complete_epochs());

        // What a checkpoint keeps, a resume can go on from, with nothing lost or used twice.
        let resumed = Ledger::resume(&ledger.state(), SAMPLES, Some(case.epochs));
        prop_assert!(resumed.unwrap().report(std::iter::empty()).balanced);
    }
}

#[test]
fn the_cases_reach_what_they_are_about() {
    let mut runner = TestRunner::deterministic();
    let (mut rounds, mut some, mut epochs, mut early, mut parts) = (0, 0, 0, 0, 0);
    let (mut left_out, mut crossed, mut superseded, mut revoked) = (0, 0, 0, 0);
    for _ in 0..200 {
        let case = case().new_tree(&mut runner).unwrap().current();
        let world = play(&case);
        let closed = world.onlooker.closed.len();
        rounds += closed;
        some += u32::from(closed >= 3);
        epochs += u32::from(world.onlooker.complete_epochs() > 0);
        early += u32::from(case.partial && closed > 0);
        left_out += world.onlooker.left_out;
        crossed += world.onlooker.crossed;
        superseded += world.onlooker.superseded;
        revoked += world.onlooker.revoked;
        let used = world.onlooker.used_weight;
        parts += u32::from(case.straggler == Straggler::Salvage && used % 8.0 != 0.0);
    }
    assert!(rounds >= 200 * 8, "{rounds} rounds in 200 cases");
    assert!(some >= 150, "several rounds in {some} of 200 cases");
    assert!(epochs >= 80, "an epoch in {epochs} of 200 cases");
    assert!(left_out >= 60 && crossed >= 60, "left out {left_out}, crossed {crossed}");
    assert!(superseded >= 5, "{superseded} second holders were sooner");
    assert!(revoked >= 20, "{revoked} leases were revoked");
    assert!(early >= 30 && parts >= 20, "blocks in {early} cases, parts in {parts}");
}
