//! The CPU time that a policy's decisions take.
//!
//! A decision neither waits nor sleeps, so on an idle core its CPU time is also its latency.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use paceline_core::{Decision, Policy, RoundRecord, RoundView, RunTime, Version, WorkerId};
use rustix::time::{ClockId, clock_gettime};

/// The CPU time that a policy used.
#[derive(Debug, Clone, Default)]
pub struct Cost {
    /// Each decision on an arrival or a wake-up: the critical path.
    pub decisions: Vec<Duration>,
    /// All calls, including those off the critical path.
    pub total: Duration,
}

impl Cost {
    /// The 99th percentile of the critical path.
    pub fn p99(&self) -> Duration {
        let mut sorted = self.decisions.clone();
        sorted.sort_unstable();
        let at = (sorted.len() as f64 * 0.99).ceil() as usize;
        sorted.get(at.saturating_sub(1)).copied().unwrap_or_default()
    }
}

/// A policy that measures the one inside it and returns its answers.
pub(crate) struct Timed {
    inner: Box<dyn Policy>,
    cost: Arc<Mutex<Cost>>,
}

impl Timed {
    pub(crate) fn new(inner: Box<dyn Policy>) -> (Timed, Arc<Mutex<Cost>>) {
        let cost = Arc::new(Mutex::new(Cost::default()));
        (Timed { inner, cost: Arc::clone(&cost) }, cost)
    }

    fn spend<R>(&mut self, decision: bool, think: impl FnOnce(&mut dyn Policy) -> R) -> R {
        let before = cpu_time();
        let answer = think(&mut *self.inner);
        let spent = cpu_time().saturating_sub(before);
        let mut cost = self.cost.lock().expect("nobody panicked with it");
        cost.total += spent;
        if decision {
            cost.decisions.push(spent);
        }
        answer
    }
}

impl Policy for Timed {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn trusts(&self, participants: usize) -> Option<String> {
        self.inner.trusts(participants)
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        self.spend(!view.is_opening(), |policy| policy.decide(view))
    }

    fn admissible_lag(&self) -> u64 {
        self.inner.admissible_lag()
    }

    fn typical(&self, worker: WorkerId) -> Option<f64> {
        self.inner.typical(worker)
    }

    fn noise(&mut self, scale: f64) {
        self.inner.noise(scale);
    }

    fn lateness(&mut self, usual: Duration) {
        self.inner.lateness(usual);
    }

    fn grace(&mut self, view: &RoundView<'_>, pays: Duration) -> Duration {
        self.spend(false, |policy| policy.grace(view, pays))
    }

    fn closed(&mut self, record: &RoundRecord<'_>) {
        self.spend(false, |policy| policy.closed(record));
    }

    fn study(&mut self) {
        self.spend(false, |policy| policy.study());
    }

    fn late(&mut self, worker: WorkerId, base: Version, run_time: RunTime, load: f64) {
        self.spend(false, |policy| policy.late(worker, base, run_time, load));
    }
}

fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}
