//! The coordinator, the network and the workers, moment by moment.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
    ops::Range,
    time::Duration,
};

use paceline_core::{
    Accepted, AcceptedPart, Announcement, BlockClose, ContributionId, Coordinator, CutReason,
    Driver, Event, EventKind, LeaveReason, Ledger, Phase, Policy, Round, RoundConfig, RunTime,
    ShardId, Straggler, Time, Version, Work, WorkerId, act,
};

use super::{
    System, SystemOutcome, SystemRound, Weak,
    intakes::Intakes,
    network::{Network, Way},
    post::{Message, Post},
    servers::{Present, Servers},
    task::Task,
};
use crate::{
    timed::Cost,
    turns::Turns,
    world::{World, comings_and_goings},
};

/// Everything there is, at one moment.
pub(super) struct SystemDriver<'a> {
    system: System,
    world: Turns<'a>,
    coordinator: Coordinator,
    network: Network,
    servers: Servers,
    tasks: Vec<Task>,
    /// The contribution that each worker was given last, whether or not it has heard of it.
    given: Vec<ContributionId>,
    /// Where workers do not wait for all shards' values.
    intakes: Option<Intakes>,
    /// Workers do not say what becomes of what they push, shard by shard.
    apart: bool,
    /// When each gradient in the making begins to reach the shards: moment, worker, version.
    computing: BinaryHeap<Reverse<(Time, WorkerId, Version)>>,
    /// What is under way otherwise.
    post: Post,
    now: Time,
    /// When the present round's time began: at the last publication.
    began: Time,
    /// The busiest shard's load, times seconds.
    busy: f64,
    late: u64,
    awaited: u64,
    open: Observed,
}

/// What was seen of the present round.
#[derive(Default)]
struct Observed {
    accepted: f64,
    given: usize,
    /// The share of the shards that it does not have.
    left_out: f64,
    /// Of how many shards workers have old values, in sum, and how many workers have begun.
    old: usize,
    begun: usize,
    missed: f64,
    /// The last arrival's pull, compute and push.
    last: [Duration; 3],
    reason: Option<CutReason>,
    closed: Time,
    /// It has closed, and shards are making its update.
    updating: bool,
}

impl<'a> SystemDriver<'a> {
    pub(super) fn new(
        system: &System,
        weak: Weak,
        world: &'a mut dyn World,
        policy: Box<dyn Policy>,
    ) -> SystemDriver<'a> {
        let world = Turns::new(world, policy.as_ref());
        let straggler = match system.straggler {
            Straggler::Salvage => Straggler::Abort,
            other => other,
        };
        let config = RoundConfig {
            quorum: system.quorum,
            // Who is absent from a trace comes back in a later round of it.
            quorum_grace: Duration::MAX,
            straggler,
            batch: world.micro_batches() as u32,
            ..RoundConfig::default()
        };
        let ledger = Ledger::new(u32::MAX, None).with_patience(system.patience);
        let Weak { shards, pull, push, max_stale } = weak;
        let apart = pull.is_some() || push.is_some();
        let mut coordinator = Coordinator::new(config, policy, ledger, shards, Round(0));
        if let Some(rule) = push {
            coordinator =
                coordinator.with_partial_pushes(&vec![1; system.spec.shards as usize], rule);
        }
        let intakes = pull.map(|rule| Intakes::new(rule, max_stale, world.workers()));
        SystemDriver {
            system: System { straggler, ..*system },
            coordinator,
            network: Network::new(&system.spec, world.workers()),
            servers: Servers::new(&system.spec),
            tasks: vec![Task::default(); world.workers()],
            given: vec![ContributionId::default(); world.workers()],
            intakes,
            apart,
            world,
            computing: BinaryHeap::new(),
            post: Post::default(),
            now: Time::ZERO,
            began: Time::ZERO,
            busy: 0.0,
            late: 0,
            awaited: 0,
            open: Observed::default(),
        }
    }

    /// One round, from the last publication to its own; `None` if nobody is there for it.
    pub(super) fn round(&mut self) -> Option<SystemRound> {
        self.world.next_round(self.now.since(self.began).as_secs_f64());
        self.attend();
        self.began = self.now;
        self.open = Observed::default();
        loop {
            self.settle();
            let due = self.intakes.as_ref().map(|intakes| intakes.due(self.now));
            due.into_iter().flatten().for_each(|worker| self.begin(worker));
            if self.open.updating && self.coordinator.settle(self.now) {
                return Some(self.seen());
            }
            self.coordinator.advance(self.now);
            act(self);
            self.coordinator.study();
            let next = self.next()?.max(self.now);
            self.busy += self.network.load() * next.since(self.now).as_secs_f64();
            self.now = next;
        }
    }

    pub(super) fn outcome(&self, rounds: Vec<SystemRound>, cost: Cost) -> SystemOutcome {
        let seconds = self.now.as_secs_f64();
        SystemOutcome {
            rounds,
            seconds,
            server_utilisation: if seconds > 0.0 { self.busy / seconds } else { 0.0 },
            samples: self.coordinator.ledger().counts(),
            ledger_balanced: self.coordinator.report().balanced,
            late: self.late,
            awaited: self.awaited,
            cost,
        }
    }

    fn seen(&self) -> SystemRound {
        let [pull, compute, push] = self.open.last;
        let whole = self.now.since(self.began);
        let overhead = self.now.since(self.open.closed);
        let wait = whole.saturating_sub(pull + compute + push + overhead);
        let of = (self.open.begun * self.coordinator.shards().count()).max(1) as f64;
        SystemRound {
            accepted: self.open.accepted / self.world.micro_batches() as f64,
            given: self.open.given,
            seconds: whole.as_secs_f64(),
            pull: pull.as_secs_f64(),
            compute: compute.as_secs_f64(),
            push: push.as_secs_f64(),
            wait: wait.as_secs_f64(),
            overhead: overhead.as_secs_f64(),
            stale: self.open.left_out + self.open.old as f64 / of,
            missed: self.open.missed,
            reason: self.open.reason.unwrap_or(CutReason::AllArrived),
        }
    }

    /// Those the world has in this round are live, the others are not.
    fn attend(&mut self) {
        let base = self.coordinator.machine().round().base();
        let changes = comings_and_goings(&self.world, self.coordinator.machine().live());
        for (worker, comes) in changes {
            if comes {
                self.coordinator.handle_join(worker, "", self.now).expect("it was not live");
                continue;
            }
            let index = worker.0 as usize;
            self.network.leave(Way::Pull, index, self.now);
            self.network.leave(Way::Push, index, self.now);
            if let Some(intakes) = &mut self.intakes {
                intakes.leave(worker);
            }
            // What is under way to it is of older versions.
            self.tasks[index] = Task::given_up(Version(base.0.saturating_sub(1)));
            let why = LeaveReason::Disconnected;
            self.coordinator.handle_leave(worker, why, self.now).expect("it was live");
        }
    }

    /// The next moment at which something happens.
    fn next(&mut self) -> Option<Time> {
        // What was given up would move the clock for nothing.
        while let Some(&Reverse((_, worker, base))) = self.computing.peek()
            && !self.tasks[worker.0 as usize].is_at(base)
        {
            self.computing.pop();
        }
        let computed = self.computing.peek().map(|Reverse((at, ..))| *at);
        // Between rounds only the shards are waited for.
        let closed = self.coordinator.machine().phase() == Phase::Closed;
        let wake = self.coordinator.next_wake().filter(|_| !closed || self.open.updating);
        let looks = self.intakes.as_ref().and_then(Intakes::next);
        [computed, self.post.next(), self.network.next(), wake, looks].into_iter().flatten().min()
    }

    /// All that happens by now.
    fn settle(&mut self) {
        loop {
            if let Some(message) = self.post.arrived(self.now) {
                self.deliver(message);
            } else if let Some((worker, way, shards)) = self.network.ended(self.now) {
                self.transferred(worker, way, shards);
            } else if let Some(&Reverse((at, worker, base))) = self.computing.peek()
                && at <= self.now
            {
                self.computing.pop();
                if self.tasks[worker.0 as usize].is_at(base) {
                    self.push(worker);
                }
            } else {
                return;
            }
        }
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Pull(work) => {
                work.into_iter().for_each(|(worker, task)| self.pull(worker, task))
            }
            Message::Cut(base, workers) => self.hear_cut(base, workers),
            Message::Aborted(stopped) => {
                for (worker, id) in stopped {
                    // A worker that left meanwhile has nothing to give up.
                    let _ = self.coordinator.handle_aborted(worker, id, 0, self.now);
                }
            }
            Message::Applied(shards) => {
                for shard in shards.map(ShardId) {
                    let applied = self.coordinator.handle_applied(shard, self.now);
                    applied.expect("it was told to update");
                }
            }
        }
    }

    /// A worker asks for its parameters, unless it has heard of the cut before they were sent.
    fn pull(&mut self, worker: WorkerId, task: Task) {
        let index = worker.0 as usize;
        if self.tasks[index].base >= task.base {
            return;
        }
        self.tasks[index] = Task { left: self.servers.count(task.shards), ..task };
        if let Some(intakes) = &mut self.intakes {
            let base = task.base.expect("it has work");
            let asked = intakes.want(worker, base, &self.servers.absent(task.shards), self.now);
            return self.fetch(worker, &asked);
        }
        if !self.network.enter(Way::Pull, index, task.shards, self.now) {
            self.compute(worker);
        }
    }

    /// A worker asks these shards, and looks whether it needs them.
    fn fetch(&mut self, worker: WorkerId, shards: &BTreeSet<ShardId>) {
        let kinds = self.servers.present(shards);
        if !self.network.enter(Way::Pull, worker.0 as usize, kinds, self.now) {
            let shards: Vec<Range<u32>> = self.servers.among(kinds).collect();
            shards.into_iter().for_each(|shards| self.landed(worker, shards));
        }
        self.begin(worker);
    }

    /// Values have come that a worker did or did not wait for.
    fn landed(&mut self, worker: WorkerId, shards: Range<u32>) {
        let intakes = self.intakes.as_mut().expect("not all are waited for");
        let asked = intakes.landed(worker, shards, self.now);
        self.fetch(worker, &asked);
    }

    /// A worker that waits for values computes if it has enough.
    fn begin(&mut self, worker: WorkerId) {
        let old = self.intakes.as_mut().and_then(|intakes| intakes.begin(worker, self.now));
        if let Some(old) = old {
            self.open.old += old;
            self.open.begun += 1;
            self.compute(worker);
        }
    }

    /// The last byte of the parameters leaves the shards.
    fn compute(&mut self, worker: WorkerId) {
        let delay = self.system.spec.delay;
        let task = &mut self.tasks[worker.0 as usize];
        task.pulled = self.now + delay;
        let base = task.base.expect("it has work");
        self.computing.push(Reverse((task.pulled + task.compute + delay, worker, base)));
    }

    /// The first byte of a gradient reaches the shards, and word of it the coordinator.
    fn push(&mut self, worker: WorkerId) {
        let task = &mut self.tasks[worker.0 as usize];
        let shards = task.shards;
        task.left = self.servers.count(shards);
        let (id, weight) = (task.id, f64::from(task.samples));
        let announcement = Announcement { id, weight, loss: None, square: None };
        let announced = self.coordinator.handle_done(worker, announcement, self.now);
        announced.expect("it was given that work");
        if !self.network.enter(Way::Push, worker.0 as usize, shards, self.now) {
            let shards: Vec<Range<u32>> = self.servers.among(shards).collect();
            shards.into_iter().for_each(|shards| self.staged(worker, shards));
        }
    }

    fn transferred(&mut self, worker: usize, way: Way, shards: Range<u32>) {
        let id = WorkerId(worker as u32);
        match way {
            Way::Push => self.staged(id, shards),
            Way::Pull if self.intakes.is_some() => self.landed(id, shards),
            Way::Pull => {
                self.tasks[worker].left -= shards.len() as u32;
                if self.tasks[worker].left == 0 {
                    self.compute(id);
                }
            }
        }
    }

    fn staged(&mut self, worker: WorkerId, shards: Range<u32>) {
        let task = &mut self.tasks[worker.0 as usize];
        task.left -= shards.len() as u32;
        task.alive = task.left > 0;
        let id = task.id;
        for shard in shards {
            self.coordinator.handle_staged(worker, id, ShardId(shard), self.now);
        }
    }

    /// Stragglers stop where they are and say so.
    fn hear_cut(&mut self, base: Version, workers: Vec<(WorkerId, ContributionId)>) {
        let mut stopped = Vec::with_capacity(workers.len());
        for (worker, id) in workers {
            let index = worker.0 as usize;
            let task = &mut self.tasks[index];
            // It may have delivered meanwhile, or not have heard of the round yet.
            if task.is_at(base) || task.base < Some(base) {
                *task = Task::given_up(base);
                self.network.leave(Way::Push, index, self.now);
                match &mut self.intakes {
                    Some(intakes) => intakes.stop(worker),
                    None => self.network.leave(Way::Pull, index, self.now),
                }
                stopped.push((worker, id));
            }
        }
        self.post.send(Message::Aborted(stopped), self.now + self.system.spec.delay);
    }

    /// Shards that have a part of what was accepted fold it.
    fn fold(&mut self, at: Time, among: impl Fn(ShardId) -> bool) {
        let fresh = self.coordinator.shards().fresh();
        let have = fresh.iter().copied().filter(|&shard| among(shard)).collect();
        self.servers.fold(self.servers.present(&have), at);
    }

    /// The shards that the open round has, or the one that has closed.
    fn present(&self) -> Present {
        self.servers.present(self.coordinator.shards().fresh())
    }
}

impl Driver for SystemDriver<'_> {
    fn coordinator(&mut self) -> &mut Coordinator {
        &mut self.coordinator
    }

    /// Work goes to the workers and their requests to the shards: two ways.
    fn give(&mut self, base: Version, work: &[Work]) {
        let shards = self.present();
        if let Some(intakes) = &mut self.intakes {
            intakes.open(base, self.coordinator.shards().fresh());
        }
        let requests = work.iter().map(|work| {
            let seconds = self.world.take(work.worker.0 as usize);
            let compute = Time::span(seconds.expect("who is absent is not live"));
            (work.worker, Task::new(work, base, shards, compute, self.now))
        });
        let requests: Vec<(WorkerId, Task)> = requests.collect();
        for (worker, task) in &requests {
            self.given[worker.0 as usize] = task.id;
        }
        self.open.given += requests.len();
        self.post.send(Message::Pull(requests), self.now + 2 * self.system.spec.delay);
    }

    fn accept(&mut self, accepted: &Accepted<'_>) {
        self.open.accepted += accepted.weight;
        self.open.last = self.tasks[accepted.worker.0 as usize].split(accepted.at);
        self.fold(accepted.at, |shard| accepted.blocks.contains(shard.0));
    }

    fn accept_part(&mut self, part: &AcceptedPart) {
        self.fold(part.at, |other| other == part.shard);
    }

    fn discard(&mut self, _worker: WorkerId, _id: ContributionId) {}

    fn stop(&mut self, base: Version, stragglers: &[WorkerId]) {
        let id = |&worker: &WorkerId| (worker, self.given[worker.0 as usize]);
        let cut = Message::Cut(base, stragglers.iter().map(id).collect());
        self.post.send(cut, self.now + self.system.spec.delay);
    }

    /// The shards that the round has make its update.
    fn close(
        &mut self,
        round: Round,
        closes: &[BlockClose],
        _run_times: &[(WorkerId, RunTime)],
        at: Time,
    ) {
        self.open.closed = at;
        self.open.updating = true;
        let shards = self.coordinator.shards();
        self.open.left_out = shards.left_out().count() as f64 / shards.count() as f64;
        let members: BTreeSet<WorkerId> =
            closes.iter().flat_map(|close| &close.members).map(|&(worker, _)| worker).collect();
        let reached = |shard: &ShardId| {
            let close = closes.iter().find(|close| close.blocks.contains(shard.0));
            close.map_or(0, |close| close.members.len())
        };
        let (all, reached) = (
            shards.fresh().len() * members.len(),
            shards.fresh().iter().map(reached).sum::<usize>(),
        );
        self.open.missed = 1.0 - reached as f64 / all.max(1) as f64;
        for (shards, applied) in self.servers.update(self.present(), round, at) {
            self.post.send(Message::Applied(shards), applied);
        }
        if self.apart && self.coordinator.machine().stops_stragglers() {
            // Parts that are still under way are of no use, and their workers do not say so.
            self.coordinator.give_up_parts(round.base());
            for WorkerId(worker) in members {
                self.network.leave(Way::Push, worker as usize, self.now);
            }
        }
    }

    fn see(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Late { .. } => self.late += 1,
            EventKind::Cut { reason, .. } => self.open.reason = Some(*reason),
            EventKind::ShardAwaited { .. } => self.awaited += 1,
            _ => {}
        }
    }
}
