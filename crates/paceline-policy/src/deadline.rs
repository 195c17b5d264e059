//! `deadline:T` and `dropcompute`: all workers stop at a fixed or profiled moment, as in Anytime
//! Minibatch and DropCompute. With salvage, micro-batches finished by then count.

use std::time::Duration;

use paceline_core::{CutReason, Decision, Policy, RoundRecord, RoundView, Time};

use crate::{patience::Patience, rate::GainRate};

/// Cuts this long after the round opened.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(pub Duration);

impl Policy for Deadline {
    fn name(&self) -> String {
        format!("deadline:{}", self.0.as_secs_f64())
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        at_deadline(self.0, view)
    }
}

/// Waits for all workers in its first rounds, as far as `Patience` allows, then keeps the deadline that
/// would have been best for them.
#[derive(Debug, Clone)]
pub struct DropCompute {
    profile: u32,
    rounds: u32,
    times: Vec<f64>,
    partial: u32,
    rate: GainRate,
    patience: Patience,
    deadline: Option<Duration>,
}

impl DropCompute {
    /// Rounds to profile by default.
    pub const PROFILE: u32 = 20;

    /// A policy that profiles this many rounds.
    pub fn new(profile: u32) -> DropCompute {
        DropCompute {
            profile,
            rounds: 0,
            times: Vec::new(),
            partial: 1,
            rate: GainRate::default(),
            patience: Patience::default(),
            deadline: None,
        }
    }

    /// The deadline with the most work per second: Σ of the shares done by it, over the deadline plus
    /// the time between rounds.
    fn best_deadline(&self) -> Option<Duration> {
        let m = f64::from(self.partial);
        let done = |deadline: f64| -> f64 {
            let share = |x: f64| (deadline * m / x).floor().min(m) / m;
            let all: f64 = self.times.iter().map(|&x| share(x)).sum();
            all / (deadline + self.rate.overhead())
        };
        let mut candidates: Vec<f64> = self.times.clone();
        candidates.sort_unstable_by(f64::total_cmp);
        candidates.dedup();
        // Every run-time is a candidate, up to a few hundred of them.
        let stride = candidates.len().div_ceil(256).max(1);
        candidates
            .into_iter()
            .rev()
            .step_by(stride)
            .max_by(|&a, &b| done(a).total_cmp(&done(b)))
            .map(Time::span)
    }
}

impl Policy for DropCompute {
    fn name(&self) -> String {
        match self.profile == DropCompute::PROFILE {
            true => "dropcompute".to_owned(),
            false => format!("dropcompute:{}", self.profile),
        }
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        self.partial = view.partial;
        self.rate.opened(view.round, view.opened);
        match self.deadline {
            Some(deadline) => at_deadline(deadline, view),
            None => {
                let all = Decision::Wait { until: None, arrivals: view.outstanding_count() };
                self.patience.limited(all, view, &self.rate)
            }
        }
    }

    fn closed(&mut self, record: &RoundRecord<'_>) {
        if self.deadline.is_some() {
            return;
        }
        self.rate.closed(record);
        self.patience.closed(record);
        self.times.extend(record.run_times.iter().map(|(_, time)| time.bound().as_secs_f64()));
        self.rounds += 1;
        if self.rounds >= self.profile {
            self.deadline = self.best_deadline();
            self.times = Vec::new();
        }
    }
}

fn at_deadline(deadline: Duration, view: &RoundView<'_>) -> Decision {
    let at = view.opened + deadline;
    match view.now >= at && !view.arrivals.is_empty() {
        true => Decision::cut(CutReason::Deadline),
        // Without an arrival by the deadline, the first arrival ends the round.
        false if view.now >= at => Decision::WAIT,
        false => Decision::Wait { until: Some(at), arrivals: usize::MAX },
    }
}
