//! The coordinator under random event orders. The checkers stand outside: they see only what goes
//! in and the events that come out.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use paceline_core::{
    BlockClose, Blocks, Contribution, Coordinator, CutReason, Decision, Event, EventKind, Late,
    LeaveReason, Ledger, Phase, Policy, Portion, Round, RoundConfig, RoundView, SampleRange,
    ShardId, Shards, Straggler, Time, Version, WorkerId,
};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};

const SHARDS: u32 = 3;
const WORKERS: u32 = 5;
const SAMPLES: u32 = 97;

/// Each shard's blocks.
const SIZES: [u32; SHARDS as usize] = [2, 1, 1];
const BLOCKS: u32 = 4;
const MICRO_BATCHES: u32 = 4;
const EPOCHS: u32 = 4;

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
    /// The driver is busy: time passes, and nobody is asked.
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let worker = 0..WORKERS;
    prop_oneof![
        4 => worker.clone().prop_map(Step::Join),
        1 => worker.clone().prop_map(Step::Leave),
        16 => (worker.clone(), 1..=MICRO_BATCHES)
            .prop_map(|(worker, micro_batches)| Step::Finish { worker, micro_batches }),
        6 => (worker.clone(), 0..SHARDS, prop::bool::weighted(0.1))
            .prop_map(|(worker, shard, before)| Step::Stage { worker, shard, before }),
        3 => (worker.clone(), prop::bool::weighted(0.1))
            .prop_map(|(worker, before)| Step::Done { worker, before }),
        1 => (worker, any::<bool>()).prop_map(|(worker, before)| Step::Abort { worker, before }),
        8 => Just(Step::Publish),
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

/// What an onlooker knows: who was given which samples, what each shard holds, who has arrived.
#[derive(Default)]
struct Onlooker {
    given: BTreeMap<(WorkerId, Version), Portion>,
    /// What each shard holds staged.
    staged: Vec<BTreeSet<(WorkerId, Version)>>,
    /// The open round's arrivals, in order.
    arrived: Vec<Arrived>,
    counted: BTreeSet<(WorkerId, Version)>,
    reported: BTreeSet<(u32, Version, u32)>,
    cut: BTreeSet<Round>,
    closed: BTreeSet<Round>,
    used: BTreeMap<u32, Vec<bool>>,
    used_weight: f64,
}

/// Who arrived, with what weight, of which samples, and on which shards.
struct Arrived {
    worker: WorkerId,
    weight: f64,
    ranges: Vec<SampleRange>,
    shards: BTreeSet<u32>,
}

impl Onlooker {
    fn new() -> Self {
        Onlooker { staged: vec![BTreeSet::new(); SHARDS as usize], ..Onlooker::default() }
    }

    fn see(&mut self, event: &Event) {
        match &event.kind {
            EventKind::RoundStarted { round, work } => {
                assert!(self.arrived.is_empty(), "a round begins with nobody in it");
                for work in work {
                    self.given.insert((work.worker, round.base()), work.portion.clone());
                }
            }
            EventKind::Enlisted { round, work } => {
                self.given.insert((work.worker, round.base()), work.portion.clone());
            }
            EventKind::Arrived { round, base, worker, weight, share, blocks, .. } => {
                assert!(!self.closed.contains(round), "closed accepts nothing");
                assert!(*share == 1.0 || *base < round.base(), "what is in time counts whole");
                self.arrived(*base, *worker, *weight, *share, blocks);
            }
            EventKind::Landed { base, worker, shard, .. } => {
                let staged = &mut self.staged[shard.0 as usize];
                assert!(staged.remove(&(*worker, *base)), "what landed has come");
                let arrived = self.arrived.iter_mut().find(|arrived| arrived.worker == *worker);
                let shards = &mut arrived.expect("it has arrived before").shards;
                assert!(shards.insert(shard.0), "it landed once");
            }
            EventKind::Cut { round, .. } => assert!(self.cut.insert(*round), "{round} cut twice"),
            EventKind::Closed { round, closes, .. } => {
                assert!(self.cut.contains(round) && self.closed.insert(*round), "{round}");
                self.closed(closes);
            }
            _ => {}
        }
    }

    fn arrived(
        &mut self,
        base: Version,
        worker: WorkerId,
        weight: f64,
        share: f64,
        blocks: &Blocks,
    ) {
        assert!(self.counted.insert((worker, base)), "{worker} {base} counted twice");
        let mut shards = BTreeSet::new();
        let mut first = 0;
        for (shard, size) in (0..).zip(SIZES) {
            let here = blocks.contains(first);
            assert!((first..first + size).all(|block| blocks.contains(block) == here));
            first += size;
            if here {
                let staged = &mut self.staged[shard as usize];
                assert!(staged.remove(&(worker, base)), "half a contribution was counted");
                shards.insert(shard);
            }
        }
        assert!(!shards.is_empty(), "something of it has come");
        let given = &self.given[&(worker, base)];
        assert!(weight as u32 <= given.len(), "more than was given");
        let mut left = weight as u32;
        let mut ranges = given.ranges().to_vec();
        for range in &mut ranges {
            range.end = range.end.min(range.start + left);
            left -= range.end - range.start;
        }
        self.arrived.push(Arrived { worker, weight: share * weight, ranges, shards });
    }

    /// Every block closes once, with all who have arrived there.
    fn closed(&mut self, closes: &[BlockClose]) {
        let mut arrived = std::mem::take(&mut self.arrived);
        arrived.sort_by_key(|arrived| arrived.worker);
        let shards = (0..).zip(SIZES).flat_map(|(shard, size)| vec![shard; size as usize]);
        for (block, shard) in (0..).zip(shards) {
            let of = |close: &&BlockClose| close.blocks.contains(block);
            let mine: Vec<&BlockClose> = closes.iter().filter(of).collect();
            assert_eq!(mine.len(), 1, "block {block} closes once");
            let there = arrived.iter().filter(|arrived| arrived.shards.contains(&shard));
            let members: Vec<_> = there.map(|arrived| (arrived.worker, arrived.weight)).collect();
            assert_eq!(mine[0].members, members, "block {block} of {closes:?}");
        }
        for range in arrived.into_iter().flat_map(|arrived| arrived.ranges) {
            self.used_weight += f64::from(range.len());
            let fresh = || vec![false; SAMPLES as usize];
            let epoch = self.used.entry(range.epoch).or_insert_with(fresh);
            for sample in &mut epoch[range.start as usize..range.end as usize] {
                assert!(!std::mem::replace(sample, true), "a sample of {range} was used twice");
            }
        }
    }
}

struct World {
    coordinator: Coordinator,
    onlooker: Onlooker,
    now: Time,
    live: BTreeSet<u32>,
    salvage: bool,
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
                    self.done(worker, base, samples);
                }
            }
            Step::Finish { worker, micro_batches } => self.finish(worker, micro_batches),
            Step::Abort { worker, before } => {
                let Some((base, _)) = self.hand(worker, before) else { return };
                let worker = WorkerId(worker);
                if self.coordinator.handle_aborted(worker, base, 1, self.now).is_ok() {
                    for staged in &mut self.onlooker.staged {
                        staged.remove(&(worker, base));
                    }
                }
            }
            // A word of a shard that owes nothing is refused, and costs nothing.
            Step::Publish => (0..SHARDS).map(ShardId).for_each(|shard| {
                let _ = self.coordinator.handle_applied(shard, self.now);
            }),
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
        while let Some(event) = self.coordinator.poll_event() {
            self.note_work(&event.kind);
            self.onlooker.see(&event);
        }
        assert!(self.coordinator.ledger().report().balanced, "after {step:?}");
    }

    fn done(&mut self, worker: u32, base: Version, samples: u32) {
        let (worker, weight) = (WorkerId(worker), f64::from(samples));
        let contribution =
            Contribution { worker, base, weight, loss: 0.5, square: None, blocks: Blocks::All };
        // A report of work it no longer has is refused, and costs nothing.
        let _ = self.coordinator.handle_done(contribution, self.now);
    }

    fn finish(&mut self, worker: u32, micro_batches: u32) {
        let Some((base, samples)) = self.hand(worker, false) else { return };
        let cut = matches!(self.coordinator.machine().phase(), Phase::Cut { .. });
        let done = match self.salvage && cut {
            true => (samples * micro_batches / MICRO_BATCHES).max(1),
            false => samples,
        };
        self.done(worker, base, done);
        for shard in 0..SHARDS {
            self.stage(worker, shard, false);
        }
    }

    fn hand(&self, worker: u32, before: bool) -> Option<(Version, u32)> {
        self.hands.get(&worker)?[usize::from(before)]
    }

    fn stage(&mut self, worker: u32, shard: u32, before: bool) {
        let Some((base, _)) = self.hand(worker, before) else { return };
        // A shard reports a part once.
        if !self.onlooker.reported.insert((worker, base, shard)) {
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
            hands[1] = hands[0].replace((base, work.portion.len()));
        }
    }
}

#[derive(Debug, Clone)]
struct Case {
    steps: Vec<Step>,
    quorum: usize,
    count: usize,
    lag: u64,
    grace: u64,
    partial: bool,
    straggler: Straggler,
    fold: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let straggler =
        prop::sample::select(vec![Straggler::Abort, Straggler::Finish, Straggler::Salvage]);
    (
        prop::collection::vec(step(), 0..400),
        1..3usize,
        1..5usize,
        prop_oneof![3 => Just(0u64), 1 => 1..3u64],
        prop_oneof![1 => Just(0u64), 1 => 1..300u64],
        prop::bool::weighted(0.3),
        straggler,
        any::<bool>(),
    )
        .prop_map(|(steps, quorum, count, lag, grace, partial, straggler, fold)| Case {
            steps,
            quorum,
            count,
            lag,
            grace,
            partial,
            straggler,
            fold: fold && !partial && straggler == Straggler::Finish,
        })
}

/// Plays a case out, with everything checked on the way.
fn play(case: &Case) -> World {
    let config = RoundConfig {
        quorum: case.quorum,
        expected: 2,
        straggler: case.straggler,
        late: if case.fold { Late::Fold } else { Late::Drop },
        micro_batches: MICRO_BATCHES,
        blocks: BLOCKS,
        ..RoundConfig::default()
    };
    let Case { count, lag, .. } = *case;
    let grace = Duration::from_millis(case.grace);
    let policy = Box::new(Impatient { count, lag, grace });
    let ledger = Ledger::new(SAMPLES, Some(EPOCHS));
    let mut coordinator =
        Coordinator::new(config, policy, ledger, 8, Shards::all(SHARDS), Round(0));
    if case.partial {
        let first = || Impatient { count: 1, lag: 0, grace: Duration::ZERO };
        let rule = move || Shards::asked_anew(&SIZES, Box::new(first()), 2, 3);
        coordinator = coordinator.with_partial_pushes(&SIZES, Box::new(rule));
    }
    let mut world = World {
        coordinator,
        onlooker: Onlooker::new(),
        now: Time::ZERO,
        live: BTreeSet::new(),
        salvage: case.straggler == Straggler::Salvage,
        hands: BTreeMap::new(),
    };
    for worker in 0..2 {
        world.apply(&Step::Join(worker));
    }
    for step in &case.steps {
        world.apply(step);
    }
    world
}

/// Epochs of which an onlooker saw every sample used.
fn complete(world: &World) -> u32 {
    world.onlooker.used.values().take_while(|epoch| epoch.iter().all(|&used| used)).count() as u32
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_in_whatever_order_the_books_and_the_sums_are_right(case in case()) {
        let world = play(&case);
        let ledger = world.coordinator.ledger();
        prop_assert_eq!(ledger.counts().used as f64, world.onlooker.used_weight);
        prop_assert_eq!(ledger.epochs(), complete(&world));

        // What a checkpoint keeps, a resume can go on from, with nothing lost or used twice.
        let resumed = Ledger::resume(&ledger.state(), SAMPLES, Some(EPOCHS));
        prop_assert!(resumed.unwrap().report().balanced);
    }
}

#[test]
fn the_cases_reach_what_they_are_about() {
    let mut runner = TestRunner::deterministic();
    let (mut rounds, mut some, mut epochs, mut early, mut parts) = (0, 0, 0, 0, 0);
    for _ in 0..200 {
        let case = case().new_tree(&mut runner).unwrap().current();
        let world = play(&case);
        let closed = world.onlooker.closed.len();
        rounds += closed;
        some += u32::from(closed >= 3);
        epochs += u32::from(complete(&world) > 0);
        early += u32::from(case.partial && closed > 0);
        let used = world.onlooker.used_weight;
        parts += u32::from(case.straggler == Straggler::Salvage && used % 8.0 != 0.0);
    }
    assert!(rounds >= 200 * 8, "{rounds} rounds in 200 cases");
    assert!(some >= 150, "several rounds in {some} of 200 cases");
    assert!(epochs >= 80, "an epoch in {epochs} of 200 cases");
    assert!(early >= 30 && parts >= 20, "blocks in {early} cases, parts in {parts}");
}
