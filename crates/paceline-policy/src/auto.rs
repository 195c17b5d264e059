//! `auto`: a mixture of experts that stops inside the round, and the default.
//!
//! **Experts.** Models under the renewal rule ([`Filter`](crate::Filter), [`Bdsgd`](crate::Bdsgd),
//! [`Empirical`](crate::Empirical), and their mixture [`Blend`], which leads at first) and plain fixed
//! counts, from a few up to all. One leads the round. Afterwards each is credited with its counterfactual
//! earnings at the run's rate λ: gain − λ·time, in units of what a usual round gains, clipped to what a
//! full round would gain. A model's stop is found by running its rule over the closed round, off the
//! critical path; a count's is an order statistic.
//!
//! **One-sided feedback.** An expert that would have waited beyond the cut cannot be scored; it keeps
//! its score. So playing an expert reveals every expert that stops no later: a feedback graph in which
//! any two experts are joined (independence number 1). Audits ([`Audit`]) reveal the rest: rounds
//! chosen before they open wait for all workers, but not beyond the moment after which arrivals could not
//! pay, within a budget of a fixed share of all gains. The same moment bounds every leader.
//!
//! **Measurement overrules scores.** Scores are counterfactual, so waiting for all workers is also
//! tried ([`FullSyncTrial`]), and kept if it measurably gains more.
//!
//! **Floor.** In the long run the mixture does not fall behind full sync: `floor.rs` states the theorem.
//!
//! **Comparator and regret.** The comparator is the best single expert over the last rounds, in
//! earnings at the λ in force; scores forget with a memory of W = 50 scored rounds, since clusters
//! change. The leader is replaced when another is ahead of it by three standard deviations of its
//! lead and 0.1 earnings. So over any window of W rounds its regret to an expert that was scored is
//! at most about 3·σ·√W + 1.1, σ being the deviation of a round's difference: O(√W) per window. This
//! bounds tracking, not the regret of a whole run: a steady lead below about (3·σ·√W + 0.1)/W per round
//! goes unnoticed. Audits cost about 1 % of all gains on top. An expert that always waits longer is scored
//! in the next audit, at most 384 rounds later while the budget lasts.

use std::{sync::Arc, time::Duration};

use paceline_core::{Decision, Policy, RoundRecord, RoundView, RunTime, Time, Version, WorkerId};
use paceline_model::Model;

use crate::{
    audit::{Audit, censored_after},
    backlog::{Backlog, Lesson},
    belief::{Belief, Forecast},
    closed::ClosedRound,
    floor::{Floor, Outcome},
    learned::{best_wait, follow, not_worth_waiting},
    objective::{Gain, Objective},
    patience::Patience,
    predict::{Blend, Predictor},
    rate::GainRate,
    scene::{Scene, whole_portions},
    stop::break_even,
    trial::FullSyncTrial,
};

/// Rounds that the scores remember.
const MEMORY: f64 = 50.0;
/// The lead over the leader that an expert needs to replace it: in standard deviations of the
/// difference, and in earnings.
const MARGIN: (f64, f64) = (3.0, 0.1);
/// Least rounds in which an expert must have been scored.
const ENOUGH: f64 = 3.0;
/// Least variance assumed for a difference, since a few rounds may agree by chance.
const NOISE: f64 = 1e-3;
/// While full sync does best, the policy learns from one round in [`CALM`], and from fewer in
/// proportion if rounds are shorter than [`THINKING`] times the system's lateness: on a busy host
/// learning costs the workers time.
const CALM: u64 = 8;
const THINKING: f64 = 20.0;
/// Least time before a cut, in multiples of the system's lateness: shorter times say nothing about workers.
const LEAST: u32 = 5;
/// Least gain of a usual round, as a share of a full round's.
const LEAST_GAIN: f64 = 1e-3;
/// Full sync is tried only if by its score it gains at most this much less than the leader, as a share of
/// a usual round's gain: a score may be wrong, but not by that much.
const PLAUSIBLE: f64 = 0.25;
/// Rounds that must be whole wait this many times as long as would pay: only a longer round proves that cuts
/// gain.
const PROOF: f64 = 4.0;
/// The expert that waits for all.
const FULL: Expert = Expert::AllBut(0);
/// Shares of the participants that the fixed counts wait for, besides all and all but one.
const SHARES: [f64; 12] = [0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.75, 0.85, 0.9, 0.95, 0.98];

/// An expert of the mixture.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Expert {
    /// All models, as a mixture.
    Blend,
    /// One of the models, by its place in the mixture.
    Model(usize),
    /// Waits for this share of the participants.
    Share(f64),
    /// Waits for all but this many.
    AllBut(usize),
}

impl Expert {
    fn count(&self, participants: usize) -> Option<usize> {
        let n = participants;
        match self {
            Expert::Blend | Expert::Model(_) => None,
            Expert::Share(share) => Some(((share * n as f64).ceil() as usize).clamp(1, n.max(1))),
            Expert::AllBut(few) => Some(n.saturating_sub(*few).max(1)),
        }
    }
}

/// The mixture.
pub struct Auto {
    experts: Vec<Expert>,
    models: Blend,
    scores: Vec<ExpertScore>,
    leader: usize,
    gain: Gain,
    /// Arrivals at the moment when the leader would have cut, if the round is audited.
    led_to: Option<usize>,
    /// What the leader expected when it was first asked in this round.
    forecast: Option<Forecast>,
    rate: GainRate,
    audit: Audit,
    patience: Patience,
    trial: FullSyncTrial,
    floor: Floor,
    /// Micro-batches per contribution if they count one by one, else 1.
    partial: u32,
    recent: RecentArrivals,
    backlog: Backlog,
    /// How late the system's timers usually fire.
    lateness: Duration,
}

/// An expert's discounted earnings beyond the leader's.
#[derive(Debug, Clone, Copy, Default)]
struct ExpertScore {
    sum: f64,
    square: f64,
    rounds: f64,
}

impl ExpertScore {
    /// A lower confidence bound on its lead over the leader.
    fn ahead(&self) -> f64 {
        if self.rounds < ENOUGH {
            return f64::NEG_INFINITY;
        }
        let spread = (self.square - self.sum * self.sum / self.rounds).max(0.0);
        let variance = spread * self.rounds / (self.rounds - 1.0) + NOISE * self.rounds;
        self.sum - MARGIN.0 * variance.sqrt() - MARGIN.1
    }
}

/// Arrivals of recent rounds at their close, so that the policy is not asked long before.
#[derive(Debug, Clone, Default)]
struct RecentArrivals {
    least: f64,
    spread: f64,
}

impl RecentArrivals {
    fn closed(&mut self, accepted: f64) {
        let off = (accepted - self.least).abs() / accepted.max(1.0);
        self.spread = 0.9 * self.spread + 0.1 * off.min(1.0);
        self.least = accepted.min(self.least + 0.1 * (accepted - self.least).max(0.0));
    }

    /// Arrivals before which a question is useless: most of the recent minimum, more if it varies
    /// little.
    fn skip(&self) -> usize {
        let share = if self.spread < 0.1 { 0.9 } else { 0.6 };
        (share * self.least) as usize
    }
}

impl Auto {
    /// The mixture for this objective, with this model of joint run-times among the experts.
    pub fn new(model: &Arc<Model>, objective: Objective) -> Auto {
        let models = Blend::of_all(model);
        let mut experts = vec![Expert::Blend];
        experts.extend((0..models.parts()).map(Expert::Model));
        experts.extend([FULL, Expert::AllBut(1)]);
        experts.extend(SHARES.map(Expert::Share));
        let scores = vec![ExpertScore::default(); experts.len()];
        Auto {
            experts,
            models,
            scores,
            leader: 0,
            gain: Gain::new(objective),
            led_to: None,
            forecast: None,
            rate: GainRate::default(),
            audit: Audit::default(),
            patience: Patience::default(),
            trial: FullSyncTrial::default(),
            floor: Floor::default(),
            partial: 1,
            recent: RecentArrivals::default(),
            backlog: Backlog::default(),
            lateness: Duration::ZERO,
        }
    }

    /// The beliefs about the round that is open, until its record is handed over.
    pub fn belief(&self, participants: usize) -> Belief {
        let asked = !self.backlog.holds_a_round();
        Belief {
            part: self.leader_name(participants),
            forecast: self.forecast.filter(|_| asked),
            cut_was_due: self.audit.cut_was_due().filter(|_| asked),
            tries_full_sync: self.trial.patience().is_some(),
        }
    }

    /// The leading expert, by the name of its policy.
    fn leader_name(&self, participants: usize) -> String {
        match &self.experts[self.leader] {
            _ if self.waits_for_all() => "full".to_owned(),
            Expert::Blend => self.models.name().to_owned(),
            Expert::Model(place) => self.models.part(*place).name().to_owned(),
            other => match other.count(participants) {
                Some(count) if count < participants => format!("static:{count}"),
                _ => "full".to_owned(),
            },
        }
    }

    /// The earnings that each expert would have had in a closed round, if known.
    fn earnings(&mut self, record: &RoundRecord<'_>, closed: &ClosedRound) -> Vec<Option<f64>> {
        let n = closed.participants();
        let overhead = self.rate.overhead();
        let gain = self.gain;
        let rate = self.rate.or_now(&gain, record.weight, seconds(record.closed, record.opened));
        let all = gain.value(closed.all());
        // Where a usual round gains little of what it could, small differences decide.
        let unit = (rate * (self.rate.typical() + overhead)).min(all).max(LEAST_GAIN * all);
        let earn = |count: usize, time: f64| {
            let brings = gain.value(closed.brings(count, time));
            (brings - rate * (time + overhead)).clamp(-all, all) / unit
        };
        // A round that waits for all has no leader.
        let leader = Some(self.leader).filter(|_| !self.waits_for_all());
        let rethink = record.round.0.is_multiple_of(models_every(n));
        let played = match (self.led_to, self.audit.cut_was_due()) {
            (Some(count), Some(cut)) => earn(count, seconds(cut, record.opened)),
            _ => earn(closed.arrived(), seconds(record.cut, record.opened)),
        };
        let mut earnings = Vec::with_capacity(self.experts.len());
        for (index, expert) in self.experts.iter().enumerate() {
            let stop = match expert {
                _ if Some(index) == leader => None,
                Expert::Blend | Expert::Model(_) if !rethink => None,
                Expert::Blend => model_stop(&mut self.models, &gain, closed, rate),
                Expert::Model(place) => {
                    model_stop(self.models.part_mut(*place), &gain, closed, rate)
                }
                other => other.count(n).and_then(|count| Some((count, closed.arrival(count)?))),
            };
            earnings.push(match Some(index) == leader {
                true => Some(played),
                false => stop.map(|(count, time)| earn(count, time)),
            });
        }
        earnings
    }

    fn score(&mut self, earnings: &[Option<f64>]) {
        let leader = self.leader;
        let Some(played) = earnings[leader] else { return };
        let keep = 1.0 - 1.0 / MEMORY;
        for (score, earned) in self.scores.iter_mut().zip(earnings) {
            // An unscored round does not discount a score, so that rare audits count.
            let Some(earned) = earned else {
                continue;
            };
            let ahead = earned - played;
            score.sum = keep * score.sum + ahead;
            score.square = keep * score.square + ahead * ahead;
            score.rounds = keep * score.rounds + 1.0;
        }
        let best = (0..self.scores.len())
            .filter(|&expert| expert != leader)
            .max_by(|&a, &b| self.scores[a].ahead().total_cmp(&self.scores[b].ahead()))
            .expect("there are several experts");
        if self.scores[best].ahead() > 0.0 {
            self.leader = best;
            for score in &mut self.scores {
                (score.sum, score.square, score.rounds) = (0.0, 0.0, 0.0);
            }
        }
    }

    /// Whether this round waits for all: full sync is tried or kept, or the floor is reached.
    fn waits_for_all(&self) -> bool {
        self.trial.waits_for_all() || self.floor.is_reached()
    }

    /// Whether full sync may gain more than its score says.
    fn full_may_pay(&self) -> bool {
        let of = |score: &ExpertScore| score.rounds >= 1.0 && score.sum > -PLAUSIBLE * score.rounds;
        let mut all = self.experts.iter().zip(&self.scores);
        all.any(|(expert, score)| *expert == FULL && of(score))
    }

    fn learn(&mut self, record: &RoundRecord<'_>) {
        let closed = ClosedRound::new(record, self.partial);
        let gain = self.gain;
        let rate = self.rate.or_now(&gain, record.weight, seconds(record.closed, record.opened));
        let audited = self.audit.cut_was_due().is_some();
        let calm = if self.trial.is_calm() { CALM } else { 1 };
        let typical = self.rate.typical() + self.rate.overhead();
        let thinking = THINKING * self.lateness.as_secs_f64();
        let short = if typical > 0.0 { (thinking / typical).ceil().clamp(1.0, 64.0) } else { 1.0 };
        let learns = record.round.0.is_multiple_of(calm.max(short as u64)) || audited;
        if learns {
            let earnings = self.earnings(record, &closed);
            self.score(&earnings);
        }
        (self.led_to, self.forecast) = (None, None);
        let is_test = audited || self.trial.patience().is_some();
        match is_test {
            true => self.rate.passed(record),
            false => self.rate.closed(record),
        }
        self.patience.closed(record);
        let took = seconds(record.closed, record.opened) + self.rate.overhead();
        let all = closed.arrived() == closed.participants();
        let (gained, possible) = (self.gain.value(record.weight), self.gain.value(closed.all()));
        let outcome = Outcome {
            share: if all { 1.0 } else { gained / possible },
            seconds: took / possible,
            whole: self.waits_for_all() || self.audit.audits(record.round),
        };
        if !self.floor.is_reached() {
            let pays = self.full_may_pay();
            self.trial.closed(gained, possible, took, all, pays, self.lateness);
        }
        self.floor.closed(outcome);
        let all_gain = gain.value(closed.all());
        let worth = self.audit.closed(record, &gain, all_gain, rate);
        self.recent.closed(closed.arrived() as f64);
        if learns {
            let mut run_times = whole_portions(record);
            if let Some(until) = worth {
                censored_after(&mut run_times, until);
            }
            self.models.learn(record.round, &run_times);
        }
    }
}

/// Rounds between scores of the models that do not lead: with many workers these cost the most, and
/// a single round is less subject to chance.
fn models_every(participants: usize) -> u64 {
    (participants as u64 / 1000).clamp(1, 8)
}

/// Where a model's rule would have stopped in a closed round: arrivals and seconds. `None` if it would
/// have waited beyond the cut.
fn model_stop(
    predictor: &mut dyn Predictor,
    gain: &Gain,
    closed: &ClosedRound,
    rate: f64,
) -> Option<(usize, f64)> {
    let (mut count, mut elapsed) = (1, 0.0);
    // Each step covers half of the expected arrivals, so a few steps suffice.
    for _ in 0..64 {
        let scene = closed.scene(count, elapsed);
        if scene.silent.is_empty() {
            return Some((closed.arrived(), scene.elapsed));
        }
        let plan = best_wait(predictor, gain, &scene, rate);
        if plan.value <= 0.0 {
            return Some((scene.arrived.len(), scene.elapsed));
        }
        let next = scene.arrived.len() + ((plan.arrivals / 2.0) as usize).max(1);
        let until = scene.elapsed + plan.wait;
        match closed.arrival(next) {
            Some(at) if at <= until => (count, elapsed) = (next, at),
            _ if until > closed.end() => return None,
            _ => (count, elapsed) = (scene.arrived.len(), until),
        }
    }
    None
}

fn seconds(later: Time, earlier: Time) -> f64 {
    later.since(earlier).as_secs_f64()
}

impl Policy for Auto {
    fn name(&self) -> String {
        "auto".to_owned()
    }

    fn trusts(&self, participants: usize) -> Option<String> {
        Some(self.belief(participants).to_string())
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        if view.is_opening() || view.arrivals.is_empty() {
            return Decision::WAIT;
        }
        self.study();
        let new = self.rate.opened(view.round, view.opened);
        self.partial = view.partial;
        let least = view.opened + LEAST * self.lateness;
        if view.now < least {
            return Decision::Wait { until: Some(least), arrivals: usize::MAX };
        }
        let missing = self.recent.skip().max(1).saturating_sub(view.arrivals.len());
        if new && missing > 0 {
            let typical = Time::span(self.rate.typical());
            let until = (!typical.is_zero()).then(|| view.opened + typical);
            return Decision::Wait { until, arrivals: missing };
        }
        if view.now <= view.opened {
            return Decision::WAIT;
        }
        let scene = Scene::from_view(view);
        let gain = self.gain;
        let rate = self.rate.or_now(&gain, scene.gained(), scene.elapsed);
        let overhead = self.rate.overhead();
        let last = view.arrivals.last().map_or(0.0, |arrival| seconds(arrival.at, view.opened));
        let all = scene.gained() + scene.missing();
        let mut latest = break_even(&gain, (gain.value(scene.gained()), last), all, rate, overhead);
        if self.floor.is_reached() {
            latest *= PROOF;
        }
        if let Some(patience) = self.trial.patience() {
            latest = latest.min(patience * self.rate.typical());
        }
        let leader = match self.waits_for_all() {
            true => &FULL,
            false => &self.experts[self.leader],
        };
        let predictor: Option<&mut dyn Predictor> = match leader {
            Expert::Blend => Some(&mut self.models),
            Expert::Model(place) => Some(self.models.part_mut(*place)),
            _ => None,
        };
        let decision = match (leader, predictor) {
            (_, Some(predictor)) => {
                let plan = best_wait(predictor, &gain, &scene, rate);
                self.forecast.get_or_insert(Forecast {
                    rate,
                    arrivals: scene.arrived.len() as f64 + plan.arrivals,
                    cut: Some(scene.elapsed + plan.wait),
                });
                match plan.value > 0.0 {
                    true => self.patience.bounded(follow(&plan, view), view, &self.rate),
                    false => not_worth_waiting(view),
                }
            }
            _ if scene.elapsed >= latest => not_worth_waiting(view),
            (other, None) => {
                let count = other.count(view.participants()).unwrap_or(1);
                self.forecast.get_or_insert(Forecast { rate, arrivals: count as f64, cut: None });
                match view.wait_for(count) {
                    Decision::Wait { arrivals, .. } => {
                        let left = Time::span(latest - scene.elapsed);
                        Decision::Wait { until: Some(view.now + left), arrivals }
                    }
                    cut => cut,
                }
            }
        };
        if let Decision::Wait { .. } = decision {
            return decision;
        }
        match self.audit.instead_of_cut(view, &scene, &gain, &self.rate) {
            Some(until) => {
                self.led_to.get_or_insert(view.arrivals.len());
                Decision::Wait { until: Some(until), arrivals: usize::MAX }
            }
            None => decision,
        }
    }

    fn closed(&mut self, record: &RoundRecord<'_>) {
        self.study();
        self.backlog.closed(record);
    }

    fn study(&mut self) {
        for lesson in self.backlog.take() {
            match lesson {
                Lesson::Closed(kept) => self.learn(&kept.record()),
                Lesson::Late { worker, base, run_time } => {
                    self.models.late(worker, base, run_time);
                }
            }
        }
    }

    fn typical(&self, worker: WorkerId) -> Option<f64> {
        self.models.typical(worker)
    }

    fn noise(&mut self, scale: f64) {
        self.gain.learn(scale);
    }

    fn lateness(&mut self, usual: Duration) {
        self.lateness = usual;
    }

    fn late(&mut self, worker: WorkerId, base: Version, run_time: RunTime, load: f64) {
        self.backlog.late(worker, base, run_time, load);
    }
}

#[cfg(test)]
mod tests {
    use paceline_sim::{Recorded, Replay};
    use paceline_trace::{Cell, Trace, Unit, hindsight};

    use super::*;

    /// A mixture that wrongly believes in waiting for half.
    fn misled() -> Auto {
        let mut auto = Auto::new(&Model::prior(), Objective::Samples);
        auto.leader = auto
            .experts
            .iter()
            .position(|expert| matches!(expert, Expert::Share(share) if *share == 0.5))
            .expect("half is among the counts");
        auto
    }

    #[test]
    fn a_leader_that_cuts_too_early_is_replaced_though_longer_waits_are_never_seen() {
        let mut trace = Trace::of_size("even", Unit::Relative, 10);
        for round in 0..800 {
            let row = (0..10).map(|i| {
                Cell::Observed(1.0 + 0.05 * i as f64 / 10.0 + 0.001 * ((round * 7 + i) % 5) as f64)
            });
            trace.push_round(row.collect::<Vec<_>>());
        }
        let outcome = Replay::default().run(&mut Recorded::new(&trace, 0), 800, Box::new(misled()));
        let late = &outcome.rounds[600..];
        let accepted: f64 = late.iter().map(|round| round.accepted).sum();
        let seconds: f64 = late.iter().map(|round| round.seconds).sum();
        let share = accepted / seconds / hindsight(&trace, 0.0, 1).full_rate;
        assert!(share > 0.97, "{share:.3} of full sync, trusting {:?}", late[199].trusts);
    }
}
