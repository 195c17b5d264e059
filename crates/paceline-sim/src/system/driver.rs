//! The coordinator, the network and the workers, moment by moment.

use std::{cmp::Reverse, collections::BinaryHeap, ops::Range, time::Duration};

use paceline_core::{
    Blocks, Contribution, Coordinator, CutReason, EventKind, LeaveReason, Ledger, Phase, Policy,
    Round, RoundConfig, ShardId, Shards, Straggler, Time, Version, Work, WorkerId,
};

use super::{
    System, SystemOutcome, SystemRound,
    network::{Network, Way},
    post::{Message, Post},
    servers::{Present, Servers},
    task::Task,
};
use crate::{
    timed::Cost,
    world::{World, comings_and_goings},
};

/// Everything there is, at one moment.
pub(super) struct Driver<'a> {
    system: System,
    world: &'a mut dyn World,
    coordinator: Coordinator,
    network: Network,
    servers: Servers,
    tasks: Vec<Task>,
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
    stale: f64,
    /// The last arrival's pull, compute and push.
    last: [Duration; 3],
    reason: Option<CutReason>,
    closed: Time,
    /// It has closed, and shards are making its update.
    updating: bool,
}

impl<'a> Driver<'a> {
    pub(super) fn new(
        system: &System,
        shards: Shards,
        world: &'a mut dyn World,
        policy: Box<dyn Policy>,
    ) -> Driver<'a> {
        let straggler = match system.straggler {
            Straggler::Salvage => Straggler::Abort,
            other => other,
        };
        let config = RoundConfig {
            quorum: system.quorum,
            // Who is absent from a trace comes back in a later round of it.
            quorum_grace: Duration::MAX,
            straggler,
            ..RoundConfig::default()
        };
        let ledger = Ledger::new(u32::MAX, None).with_patience(system.patience);
        let batch = world.micro_batches() as u32;
        Driver {
            system: System { straggler, ..*system },
            coordinator: Coordinator::new(config, policy, ledger, batch, shards, Round(0)),
            network: Network::new(&system.spec, world.workers()),
            servers: Servers::new(&system.spec),
            tasks: vec![Task::default(); world.workers()],
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
            if self.open.updating && self.coordinator.settle(self.now) {
                return Some(self.seen());
            }
            self.coordinator.advance(self.now);
            self.act();
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
            ledger_balanced: self.coordinator.ledger().report().balanced,
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
        SystemRound {
            accepted: self.open.accepted / self.world.micro_batches() as f64,
            given: self.open.given,
            seconds: whole.as_secs_f64(),
            pull: pull.as_secs_f64(),
            compute: compute.as_secs_f64(),
            push: push.as_secs_f64(),
            wait: wait.as_secs_f64(),
            overhead: overhead.as_secs_f64(),
            stale: self.open.stale,
            reason: self.open.reason.unwrap_or(CutReason::AllArrived),
        }
    }

    /// Those the world has in this round are live, the others are not.
    fn attend(&mut self) {
        let base = self.coordinator.machine().round().base();
        let changes = comings_and_goings(self.world, self.coordinator.machine().live());
        for (worker, comes) in changes {
            if comes {
                self.coordinator.handle_join(worker, "", self.now).expect("it was not live");
                continue;
            }
            let index = worker.0 as usize;
            self.network.leave(index, self.now);
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
        [computed, self.post.next(), self.network.next(), wake].into_iter().flatten().min()
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
                    self.push(worker, base);
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
            Message::Aborted(base, workers) => {
                for worker in workers {
                    // Who left meanwhile has nothing to give up.
                    let _ = self.coordinator.handle_aborted(worker, base, 0, self.now);
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
        if !self.network.enter(Way::Pull, index, task.shards, self.now) {
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
    fn push(&mut self, worker: WorkerId, base: Version) {
        let task = &mut self.tasks[worker.0 as usize];
        let shards = task.shards;
        task.left = self.servers.count(shards);
        let weight = f64::from(task.samples);
        let contribution =
            Contribution { worker, base, weight, loss: 0.0, square: None, blocks: Blocks::All };
        self.coordinator.handle_done(contribution, self.now).expect("it was given that work");
        if !self.network.enter(Way::Push, worker.0 as usize, shards, self.now) {
            let shards: Vec<Range<u32>> = self.servers.among(shards).collect();
            shards.into_iter().for_each(|shards| self.staged(worker, shards));
        }
    }

    fn transferred(&mut self, worker: usize, way: Way, shards: Range<u32>) {
        let id = WorkerId(worker as u32);
        match way {
            Way::Push => self.staged(id, shards),
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
        let base = task.base.expect("it has work");
        for shard in shards {
            let staged = self.coordinator.handle_staged(worker, base, ShardId(shard), self.now);
            staged.expect("what is whole was given and said");
        }
    }

    /// Stragglers stop where they are and say so.
    fn hear_cut(&mut self, base: Version, workers: Vec<WorkerId>) {
        let mut stopped = Vec::with_capacity(workers.len());
        for worker in workers {
            let index = worker.0 as usize;
            let task = &mut self.tasks[index];
            // It may have delivered meanwhile, or not have heard of the round yet.
            if task.is_at(base) || task.base < Some(base) {
                *task = Task::given_up(base);
                self.network.leave(index, self.now);
                stopped.push(worker);
            }
        }
        self.post.send(Message::Aborted(base, stopped), self.now + self.system.spec.delay);
    }

    /// Does what the coordinator decided.
    fn act(&mut self) {
        let spec = self.system.spec;
        while let Some(event) = self.coordinator.poll_event() {
            match event.kind {
                EventKind::RoundStarted { round, work } => self.hand_out(round.base(), &work),
                EventKind::Enlisted { round, work } => self.hand_out(round.base(), &[work]),
                EventKind::Arrived { worker, weight, .. } => {
                    self.open.accepted += weight;
                    self.open.last = self.tasks[worker.0 as usize].split(event.at);
                    self.servers.fold(self.present(), event.at);
                }
                EventKind::Late { .. } => self.late += 1,
                EventKind::Cut { round, reason, stragglers, .. } => {
                    self.open.reason = Some(reason);
                    if self.coordinator.machine().stops_stragglers() && !stragglers.is_empty() {
                        self.post
                            .send(Message::Cut(round.base(), stragglers), self.now + spec.delay);
                    }
                }
                EventKind::ShardAwaited { .. } => self.awaited += 1,
                EventKind::Closed { round, .. } => self.close(round, event.at),
                _ => {}
            }
        }
    }

    /// The shards that the round has make its update.
    fn close(&mut self, round: Round, at: Time) {
        self.open.closed = at;
        self.open.updating = true;
        let shards = self.coordinator.shards();
        self.open.stale = shards.left_out().count() as f64 / shards.count() as f64;
        for (shards, applied) in self.servers.update(self.present(), round, at) {
            self.post.send(Message::Applied(shards), applied);
        }
    }

    /// The shards that the open round has, or the one that has closed.
    fn present(&self) -> Present {
        self.servers.present(self.coordinator.shards().fresh())
    }

    /// Work goes to the workers and their requests to the shards: two ways.
    fn hand_out(&mut self, base: Version, work: &[Work]) {
        let shards = self.present();
        let requests = work.iter().map(|work| {
            let seconds = self.world.run_time(work.worker.0 as usize);
            let compute = Time::span(seconds.expect("who is absent is not live"));
            (work.worker, Task::new(work, base, shards, compute, self.now))
        });
        let requests: Vec<(WorkerId, Task)> = requests.collect();
        self.open.given += requests.len();
        self.post.send(Message::Pull(requests), self.now + 2 * self.system.spec.delay);
    }
}
