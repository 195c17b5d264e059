//! `blend`: the mixture of several predictors, weighted by how well each has predicted rounds.
//!
//! After every round each predictor is shown the round as it looked at its first arrival, at half of its
//! arrivals and at four fifths of them, and scored by the log-likelihood of the rest. Scores are discounted,
//! and the weights are their softmax. Workers of a round depend on each other and no predictor knows
//! how, so a round counts as √m observations for m silent workers, the softmax is tempered by [`TRUST`], and no
//! weight falls below a share of [`FLOOR`]: a predictor that fails after a change is not alone.
//!
//! The mixture is of survival probabilities before the round, so within a round the silence itself moves
//! weight to the predictors that expected it.

use std::sync::Arc;

use paceline_core::{Round, RunTime, Version, WorkerId};
use paceline_model::{Model, TrackerOptions};

use super::{Bdsgd, Empirical, Filter, Predictor, log_seconds};
use crate::scene::{Arrived, Scene, Silent};

/// Rounds that scores remember.
const MEMORY: f64 = 30.0;
/// The weight of a score in the softmax.
const TRUST: f64 = 0.5;
/// The share of the weight that all predictors have in common.
const FLOOR: f64 = 0.2;
/// Half-width of the interval of log run-time within which a predicted run-time is right.
const WIDTH: f64 = 0.05;
/// Least likelihood of an observation, so that one surprise does not decide.
const LEAST: f64 = 3e-3;
/// Most silent workers that a score is taken over; of more, every k-th.
const SAMPLE: usize = 96;

/// A mixture of predictors.
pub struct Blend {
    parts: Vec<Part>,
}

/// A predictor with its score and its weight.
struct Part {
    predictor: Box<dyn Predictor>,
    score: f64,
    weight: f64,
}

impl Blend {
    /// A mixture of [`Filter`], [`Bdsgd`] with this model, and [`Empirical`].
    pub fn of_all(model: &Arc<Model>) -> Blend {
        Blend::new(vec![
            Box::new(Filter::default()),
            Box::new(Bdsgd::new(model, TrackerOptions::default())),
            Box::new(Empirical::default()),
        ])
    }

    /// A mixture of these, with equal weights at first.
    pub fn new(predictors: Vec<Box<dyn Predictor>>) -> Blend {
        let weight = 1.0 / predictors.len() as f64;
        let part = |predictor| Part { predictor, score: 0.0, weight };
        Blend { parts: predictors.into_iter().map(part).collect() }
    }

    /// The number of predictors.
    pub(crate) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// One of the predictors.
    pub(crate) fn part(&self, place: usize) -> &dyn Predictor {
        &*self.parts[place].predictor
    }

    /// One of the predictors, to be shown a scene.
    pub(crate) fn part_mut(&mut self, place: usize) -> &mut dyn Predictor {
        &mut *self.parts[place].predictor
    }

    fn score(&mut self, run_times: &[(WorkerId, RunTime)]) {
        let order = InOrder::new(run_times);
        for part in &mut self.parts {
            let seen = order.moments().map(|count| order.score(&mut *part.predictor, count));
            let (sum, moments) =
                seen.fold((0.0, 0.0), |(sum, count), one| (sum + one, count + 1.0));
            if moments > 0.0 {
                part.score = (1.0 - 1.0 / MEMORY) * part.score + sum / moments;
            }
        }
        let most = self.parts.iter().map(|part| part.score).fold(f64::NEG_INFINITY, f64::max);
        let trust = |part: &Part| (TRUST * (part.score - most)).exp();
        let all: f64 = self.parts.iter().map(trust).sum();
        let least = FLOOR / self.parts.len() as f64;
        for part in &mut self.parts {
            part.weight = least + (1.0 - FLOOR) * trust(part) / all;
        }
    }
}

/// A closed round: log run-times or their bounds, arrivals first.
struct InOrder {
    times: Vec<(WorkerId, f64)>,
    arrived: usize,
}

impl InOrder {
    fn new(run_times: &[(WorkerId, RunTime)]) -> InOrder {
        let mut order = run_times.to_vec();
        order.sort_by_key(|&(worker, time)| (time.is_censored(), time.bound(), worker));
        let arrived = order.iter().filter(|(_, time)| !time.is_censored()).count();
        let times = order.into_iter().map(|(worker, time)| (worker, log_seconds(time)));
        InOrder { times: times.collect(), arrived }
    }

    /// Counts of arrivals at which the round is looked at.
    fn moments(&self) -> impl Iterator<Item = usize> + use<> {
        let most = self.arrived.min(self.times.len().saturating_sub(1));
        let mut counts = vec![1, self.arrived.div_ceil(2), (4 * self.arrived).div_ceil(5)];
        counts.dedup();
        counts.retain(|count| (1..=most).contains(count));
        counts.into_iter()
    }

    /// The log-likelihood of the rest of the round when `count` had arrived, per √ of the number of silent
    /// workers.
    fn score(&self, predictor: &mut dyn Predictor, count: usize) -> f64 {
        let (early, silent) = self.times.split_at(count);
        let now = early[count - 1].1;
        let elapsed = now.exp();
        let arrived =
            early.iter().map(|&(worker, at)| Arrived { worker, run_time: at.exp(), weight: 1.0 });
        let waits = silent.iter().map(|&(worker, _)| Silent {
            worker,
            elapsed,
            load: 1.0,
            weight: 1.0,
            done: 0,
            pace: None,
        });
        predictor.look(&Scene {
            elapsed,
            arrived: arrived.collect(),
            silent: waits.collect(),
            partial: 1,
        });
        let stride = silent.len().div_ceil(SAMPLE).max(1);
        let (mut sum, mut sampled) = (0.0, 0.0);
        for (place, &(worker, at)) in silent.iter().enumerate().step_by(stride) {
            let mut survival = [0.0; 3];
            let before =
                if self.arrived > count + place { (at - WIDTH).max(now) } else { at.max(now) };
            predictor.survivals(worker, &[now, before, at + WIDTH], &mut survival);
            let [until_now, until_then, after] = survival;
            let likely = match self.arrived > count + place {
                true => until_then - after,
                false => until_then,
            };
            sum += (likely / until_now.max(f64::MIN_POSITIVE)).max(LEAST).ln();
            sampled += 1.0;
        }
        sum / sampled * (silent.len() as f64).sqrt()
    }
}

impl Predictor for Blend {
    fn name(&self) -> &'static str {
        "blend"
    }

    fn knows_beginnings(&self) -> bool {
        true
    }

    fn look(&mut self, scene: &Scene) {
        self.parts.iter_mut().for_each(|part| part.predictor.look(scene));
    }

    fn expect(&mut self) {
        self.parts.iter_mut().for_each(|part| part.predictor.expect());
    }

    fn doubt(&mut self) -> bool {
        // Every part must take its other view.
        let doubts = self.parts.iter_mut().map(|part| part.predictor.doubt());
        doubts.fold(false, |any, doubts| any | doubts)
    }

    fn survival(&self, worker: WorkerId, log_elapsed: f64) -> f64 {
        let parts = self.parts.iter();
        parts.map(|part| part.weight * part.predictor.survival(worker, log_elapsed)).sum()
    }

    fn survivals(&self, worker: WorkerId, log_elapsed: &[f64], into: &mut [f64]) {
        let mut one = vec![0.0; into.len()];
        into.fill(0.0);
        for part in &self.parts {
            part.predictor.survivals(worker, log_elapsed, &mut one);
            into.iter_mut().zip(&one).for_each(|(sum, one)| *sum += part.weight * one);
        }
    }

    fn typical(&self, worker: WorkerId) -> Option<f64> {
        self.parts.iter().find_map(|part| part.predictor.typical(worker))
    }

    fn learn(&mut self, round: Round, run_times: &[(WorkerId, RunTime)]) {
        // The first round shows them what a run-time is.
        if round > Round(0) {
            self.score(run_times);
        }
        self.parts.iter_mut().for_each(|part| part.predictor.learn(round, run_times));
    }

    fn late(&mut self, worker: WorkerId, base: Version, run_time: RunTime) {
        self.parts.iter_mut().for_each(|part| part.predictor.late(worker, base, run_time));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::show;

    fn blend() -> Blend {
        Blend::new(vec![Box::<Filter>::default(), Box::<Empirical>::default()])
    }

    /// Every worker keeps its own pace.
    #[test]
    fn the_predictor_that_knows_workers_gains_weight_where_they_differ() {
        let mut blend = blend();
        for round in 0..60 {
            let noise = |worker: u64| 1.0 + 0.01 * ((7 * worker + 3 * round) % 5) as f64;
            let times: Vec<f64> = (0..8).map(|w| noise(w) * (1.0 + w as f64)).collect();
            show(&mut blend, round, &times, 6.5);
        }
        assert!(blend.parts[0].weight > 0.8, "{}", blend.parts[0].weight);
        let sum: f64 = blend.parts.iter().map(|part| part.weight).sum();
        assert!((sum - 1.0).abs() < 1e-9);
        assert!(blend.parts[1].weight >= FLOOR / 2.0);
    }

    #[test]
    fn it_predicts_between_its_parts() {
        let mut blend = blend();
        for round in 0..20 {
            let times: Vec<f64> = (0..6).map(|w| 1.0 + 0.1 * w as f64).collect();
            show(&mut blend, round, &times, f64::INFINITY);
        }
        blend.expect();
        let (worker, moments) = (WorkerId(2), [0.9f64.ln(), 1.2f64.ln(), 1.4f64.ln()]);
        let mut found = [0.0; 3];
        blend.survivals(worker, &moments, &mut found);
        for (moment, found) in moments.into_iter().zip(found) {
            let both = [0, 1].map(|index| blend.part(index).survival(worker, moment));
            assert!(found >= both[0].min(both[1]) - 1e-12 && found <= both[0].max(both[1]) + 1e-12);
            assert!((found - blend.survival(worker, moment)).abs() < 1e-12);
        }
    }
}
