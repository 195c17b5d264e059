//! Rounds as short scripts on simulated time: what is done, and what the machine says to it.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::{collections::BTreeMap, time::Duration};

use paceline_core::{
    Announcement, ContributionId, Coordinator, CutReason, Decision, EventKind, LeaveReason, Ledger,
    MachineError, Policy, Portion, Round, RoundConfig, RoundView, ShardId, Shards, Time, Version,
    Work, WorkerId,
};

/// Waits for a count; the least policy that can cut.
pub struct First(pub usize);

impl Policy for First {
    fn name(&self) -> String {
        format!("first:{}", self.0)
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        let wanted = self.0.min(view.participants());
        match view.arrivals.len() >= wanted {
            true => Decision::cut(CutReason::Count { wanted: wanted as u32 }),
            false => Decision::WAIT,
        }
    }
}

pub struct Script {
    pub coordinator: Coordinator,
    pub now: Time,
    pub log: Vec<String>,
    /// What each worker was given last.
    pub work: BTreeMap<u32, Portion>,
    /// Every contribution, by worker and version.
    pub ids: BTreeMap<(u32, u64), ContributionId>,
}

impl Script {
    pub fn new(workers: u32, policy: impl Policy + 'static, config: RoundConfig) -> Self {
        let config = RoundConfig { expected: workers as usize, batch: 10, ..config };
        let ledger = Ledger::new(1000, None);
        let policy = Box::new(policy);
        let mut script = Script {
            coordinator: Coordinator::new(config, policy, ledger, Shards::all(1), Round(0)),
            now: Time::ZERO,
            log: Vec::new(),
            work: BTreeMap::new(),
            ids: BTreeMap::new(),
        };
        for worker in 0..workers {
            script.join(worker);
        }
        script.advance();
        script
    }

    pub fn join(&mut self, worker: u32) -> &mut Self {
        self.coordinator.handle_join(WorkerId(worker), "test", self.now).unwrap();
        self
    }

    pub fn leave(&mut self, worker: u32) -> &mut Self {
        let why = LeaveReason::Disconnected;
        self.coordinator.handle_leave(WorkerId(worker), why, self.now).unwrap();
        self.advance()
    }

    pub fn arrive(&mut self, worker: u32, base: u64) -> &mut Self {
        self.put(worker, base, 10.0);
        self.advance()
    }

    pub fn put(&mut self, worker: u32, base: u64, weight: f64) -> &mut Self {
        self.done(worker, base, weight).unwrap();
        self.stage(worker, base, 0);
        self
    }

    /// What the worker was given on `base`, or an id that nobody has.
    pub fn id(&self, worker: u32, base: u64) -> ContributionId {
        self.ids.get(&(worker, base)).copied().unwrap_or(ContributionId(u64::MAX))
    }

    pub fn done(&mut self, worker: u32, base: u64, weight: f64) -> Result<(), MachineError> {
        let id = self.id(worker, base);
        let announcement = Announcement { id, weight, loss: Some(1.0), square: None };
        self.coordinator.handle_done(WorkerId(worker), announcement, self.now)
    }

    pub fn stage(&mut self, worker: u32, base: u64, shard: u32) {
        let id = self.id(worker, base);
        self.coordinator.handle_staged(WorkerId(worker), id, ShardId(shard), self.now);
    }

    pub fn progress(&mut self, worker: u32, base: u64, done: u32) {
        let id = self.id(worker, base);
        self.coordinator.handle_progress(WorkerId(worker), id, done, self.now);
    }

    pub fn split(&mut self, worker: u32, parts: u32) {
        self.coordinator.handle_split(WorkerId(worker), parts, self.now);
    }

    pub fn abort(&mut self, worker: u32, base: u64) -> Result<(), MachineError> {
        self.coordinator.handle_aborted(WorkerId(worker), self.id(worker, base), 1, self.now)
    }

    fn note(&mut self, base: Version, work: &[Work]) {
        self.work.extend(work.iter().map(|work| (work.worker.0, work.portion.clone())));
        self.ids.extend(work.iter().map(|work| ((work.worker.0, base.0), work.id)));
    }

    pub fn publish(&mut self) -> &mut Self {
        self.coordinator.handle_applied(ShardId(0), self.now).unwrap();
        self.advance()
    }

    pub fn wait(&mut self, ms: u64) -> &mut Self {
        self.now += Duration::from_millis(ms);
        self.advance()
    }

    pub fn advance(&mut self) -> &mut Self {
        self.coordinator.advance(self.now);
        while let Some(event) = self.coordinator.poll_event() {
            let ids = |ids: &[WorkerId]| {
                ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
            };
            match &event.kind {
                EventKind::RoundStarted { round, work } => self.note(round.base(), work),
                EventKind::Enlisted { round, work } => {
                    self.note(round.base(), std::slice::from_ref(work));
                }
                _ => {}
            }
            let line = match event.kind {
                EventKind::RoundStarted { round, work } => {
                    format!("{round}: {}", ids(&work.iter().map(|w| w.worker).collect::<Vec<_>>()))
                }
                EventKind::Enlisted { work, .. } => format!("enlisted {}", work.worker),
                EventKind::Arrived { worker, .. } => format!("arrived {worker}"),
                EventKind::Landed { worker, shard, .. } => format!("landed {worker} on {shard}"),
                EventKind::ShardAwaited { shard, rounds } => {
                    format!("{shard} is awaited after {rounds}")
                }
                EventKind::Late { worker, base, run_time, .. } => {
                    format!("late {worker} {base} {run_time}")
                }
                EventKind::Cut { reason, stragglers, .. } => {
                    format!("cut, {reason}: {}", ids(&stragglers)).trim_end().to_owned()
                }
                EventKind::Closed { closes, run_times, .. } => {
                    let members = |c: &paceline_core::BlockClose| {
                        ids(&c.members.iter().map(|m| m.0).collect::<Vec<_>>())
                    };
                    let sets: Vec<String> = closes.iter().map(members).collect();
                    let times: Vec<String> =
                        run_times.iter().map(|(w, t)| format!("{w}={t}")).collect();
                    format!("closed {} ({})", sets.join(" | "), times.join(" "))
                }
                EventKind::WorkerLeft { worker, .. } => format!("left {worker}"),
                EventKind::Aborted { worker, done, .. } => format!("aborted {worker} at {done}"),
                EventKind::Superseded { worker, by, .. } => format!("superseded {worker} by {by}"),
                _ => continue,
            };
            self.log.push(line);
        }
        self
    }

    #[track_caller]
    pub fn check(&mut self, expected: &[&str]) -> &mut Self {
        assert_eq!(std::mem::take(&mut self.log), expected);
        assert!(self.coordinator.report().balanced);
        self
    }
}

/// The samples that a worker has in hand.
pub fn hand(s: &Script, worker: u32) -> (u32, u32) {
    let [range] = s.work[&worker].ranges() else { panic!("it has one range") };
    (range.start, range.end)
}

/// Two ranges have been lost three times; one is with a worker that came in the last round, one with a
/// worker that did not.
pub fn dropped_too_often() -> Script {
    let mut s = Script::new(3, First(1), RoundConfig::default());
    for (winner, base) in [(0, 0), (2, 1), (1, 2)] {
        s.arrive(winner, base).publish();
    }
    assert_eq!((hand(&s, 1), hand(&s, 2)), ((10, 20), (20, 30)));
    s.log.clear();
    s
}
