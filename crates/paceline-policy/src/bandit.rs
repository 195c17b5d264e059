//! `bandit`: learns the count with no model (Q10).
//!
//! The arms are the counts 1 … n. Waiting for c shows the arrival time of every count up to c, so
//! one play informs all arms below it. Arms above are only known to be later: the rule optimistically
//! assumes that they come right after the last seen, and tries the next few as often as an upper
//! confidence bound allows.

use paceline_core::{Decision, Policy, RoundRecord, RoundView, Time};

use crate::{
    learned::not_worth_waiting, objective::Gain, patience::Patience, rate::GainRate,
    scene::in_order,
};

/// Rounds that an arm remembers.
const MEMORY: f64 = 50.0;
/// Width of the confidence bound after one observation, as a share of the arm's time.
const OPTIMISM: f64 = 0.15;

/// One count, with the time to reach it.
#[derive(Debug, Clone, Copy, Default)]
struct Arm {
    seconds: f64,
    weight: f64,
}

/// The bandit over counts.
#[derive(Debug, Clone, Default)]
pub struct Bandit {
    arms: Vec<Arm>,
    rate: GainRate,
    patience: Patience,
    wanted: usize,
}

impl Bandit {
    /// The count with the best optimistic rate.
    fn choose(&self, participants: usize) -> usize {
        if self.arms.is_empty() {
            return participants;
        }
        let overhead = self.rate.overhead();
        let (mut best, mut best_rate) = (participants, 0.0);
        let (mut earliest, mut weight): (f64, f64) = (0.0, 0.0);
        for count in 1..=participants {
            if let Some(arm) = self.arms.get(count - 1).filter(|arm| arm.weight > 0.05) {
                earliest = earliest.max(arm.seconds / arm.weight);
                weight = arm.weight;
            } else {
                weight *= 0.5;
            }
            let hopeful = earliest * (1.0 - OPTIMISM / (weight + 1.0).sqrt());
            let rate = count as f64 / (hopeful + overhead);
            if rate > best_rate && weight > 0.05 {
                (best, best_rate) = (count, rate);
            }
        }
        best
    }
}

impl Policy for Bandit {
    fn name(&self) -> String {
        "bandit".to_owned()
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        if self.rate.opened(view.round, view.opened) {
            self.wanted = self.choose(view.participants());
        }
        let decision = view.wait_for(self.wanted);
        let Decision::Wait { arrivals, .. } = decision else { return decision };
        if view.arrivals.is_empty() || view.now <= view.opened {
            return Decision::WAIT;
        }
        // A count alone would wait for ever on a stall, so the wait ends when arrivals cannot pay.
        let gained: f64 = view.arrivals.iter().map(|a| a.weight).sum();
        let missing: f64 = view.outstanding().map(|(_, work)| f64::from(work.samples)).sum();
        let elapsed = view.now.since(view.opened).as_secs_f64();
        let rate = self.rate.or_now(&Gain::default(), gained, elapsed);
        let left = (gained + missing) / rate - self.rate.overhead() - elapsed;
        if left <= 0.0 {
            return not_worth_waiting(view);
        }
        let until = Some(view.now + Time::span(left));
        self.patience.limited(Decision::Wait { until, arrivals }, view, &self.rate)
    }

    fn closed(&mut self, record: &RoundRecord<'_>) {
        self.rate.closed(record);
        self.patience.closed(record);
        let keep = 1.0 - 1.0 / MEMORY;
        for arm in &mut self.arms {
            *arm = Arm { seconds: keep * arm.seconds, weight: keep * arm.weight };
        }
        let order = in_order(record);
        self.arms.resize(self.arms.len().max(order.len()), Arm::default());
        for (arm, (_, time)) in self.arms.iter_mut().zip(order) {
            if !time.is_censored() {
                arm.seconds += time.bound().as_secs_f64();
                arm.weight += 1.0;
            }
        }
    }
}
