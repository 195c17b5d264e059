//! Online use of a model: it processes each round, predicts the next, and adapts.

use std::sync::Arc;

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};

use crate::{
    Model, Outlook, Seen, Weights,
    fit::{Grads, WINDOW, window},
    nets::Nets,
    standing::beyond,
    state::{Mode, ModelState},
    tape::Tape,
    weights::Adam,
};

/// Step size of online adaptation.
const RATE: f32 = 1e-3;
/// Steps after each window.
const STEPS: usize = 3;
/// Most workers used by adaptation; of more, every k-th.
const LOOKED_AT: usize = 96;
/// Rounds whose shifts are kept for late reports.
const LATEST: usize = 64;

/// Options to turn features off, or to use the paper's method, for comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrackerOptions {
    /// The weights stay as they were fitted.
    pub frozen: bool,
    /// Censored run-times are replaced by draws from the prediction beyond their bound and then treated
    /// as observed, as the paper does, instead of counting by their survival probability.
    pub impute: bool,
}

/// A model following a cluster.
pub struct Tracker {
    weights: Weights,
    options: TrackerOptions,
    state: ModelState,
    tape: Tape,
    outlook: Outlook,
    rng: Xoshiro256PlusPlus,
    adam: Adam,
    /// The rounds since the last adaptation, and the state before them, of the sampled workers.
    since: (ModelState, Vec<Seen>),
    /// Every `stride`-th worker is sampled.
    stride: u32,
    /// The sum of each worker's common factors in the last rounds.
    moved: Vec<(u64, Vec<(u32, f32)>)>,
    rounds: u64,
}

impl Tracker {
    /// A tracker before its first round.
    pub fn new(model: &Arc<Model>, options: TrackerOptions) -> Tracker {
        let weights = model.weights.clone();
        Tracker {
            adam: Adam::new(&weights, RATE),
            weights,
            options,
            state: ModelState::default(),
            tape: Tape::default(),
            outlook: Outlook::default(),
            rng: Xoshiro256PlusPlus::seed_from_u64(0),
            since: Default::default(),
            stride: 1,
            moved: Vec::new(),
            rounds: 0,
        }
    }

    /// Rounds processed.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// The prediction of the next round.
    pub fn outlook(&self) -> &Outlook {
        &self.outlook
    }

    /// The prediction, to be conditioned on the open round.
    pub fn outlook_mut(&mut self) -> &mut Outlook {
        &mut self.outlook
    }

    /// Learns from a closed round. `key` identifies the round in late reports.
    pub fn learn(&mut self, key: u64, seen: &Seen) {
        if seen.workers.is_empty() {
            return;
        }
        let imputed = self.options.impute.then(|| self.impute(seen));
        let seen = imputed.as_ref().unwrap_or(seen);
        self.state.admit(seen);
        self.tape.clear();
        let nets = Nets::load(&self.weights, &mut self.tape);
        let mut carry = self.state.load(&mut self.tape);
        let mut mode = Mode { noise: None, truth: None, predicted: Some(&self.outlook) };
        let stepped = self.state.step(&mut self.tape, &nets, &mut carry, seen, &mut mode);
        self.state.store(&carry, &self.tape, 1);
        self.state.find_groups(&stepped.residuals);
        self.remember(key, seen, stepped.moved);
        self.rounds += 1;
        if !self.options.frozen {
            self.adapt(seen);
        }
        self.tape.clear();
        let nets = Nets::load(&self.weights, &mut self.tape);
        self.outlook = Outlook::from_state(&self.state, &nets, &mut self.tape);
    }

    /// A censored run-time became known.
    pub fn late(&mut self, key: u64, worker: u32, log_time: f32) {
        let round = self.moved.iter().rev().find(|(round, _)| *round == key);
        let found = round.and_then(|(_, moved)| {
            let at = moved.binary_search_by_key(&worker, |(worker, _)| *worker).ok()?;
            Some(moved[at].1)
        });
        if let Some(moved) = found {
            let (standing, worker) = (&mut self.state.standing, worker as usize);
            let location = standing.level[worker] + standing.late[worker] * standing.spread[worker];
            let residual = standing.residual(worker, log_time - moved, location, true);
            standing.learn(worker, log_time - moved, residual);
        }
    }

    fn remember(&mut self, key: u64, seen: &Seen, moved: Vec<f32>) {
        // Only workers that may still report.
        let late = seen.workers.iter().zip(moved).zip(&seen.observed);
        let late = late.filter(|(_, observed)| !**observed).map(|((&w, moved), _)| (w, moved));
        self.moved.push((key, late.collect()));
        if self.moved.len() > LATEST {
            self.moved.remove(0);
        }
    }

    /// Collects rounds, and after each window takes a few steps on them. The schedule depends on the
    /// number of rounds alone, so that a replay adapts identically.
    fn adapt(&mut self, seen: &Seen) {
        let (before, rounds) = &mut self.since;
        if before.standing.workers() > 0 {
            rounds.push(seen.every(self.stride, before.standing.workers()));
        }
        if rounds.len() >= WINDOW {
            for _ in 0..STEPS {
                let mut state = before.clone();
                let mut grads = Grads::new();
                let (tape, weights) = (&mut self.tape, &self.weights);
                window(tape, weights, Some(&mut grads), &mut state, rounds, rounds, &mut self.rng);
                self.adam.step(&mut self.weights, &grads);
            }
        }
        if rounds.len() >= WINDOW || before.standing.workers() == 0 {
            self.stride = self.state.standing.workers().div_ceil(LOOKED_AT).max(1) as u32;
            self.since = (self.state.every(self.stride as usize), Vec::new());
        }
    }

    /// Replaces censored run-times by draws, as the paper does.
    fn impute(&mut self, seen: &Seen) -> Seen {
        let mut imputed = seen.clone();
        for (i, &worker) in seen.workers.iter().enumerate().filter(|(i, _)| !seen.observed[*i]) {
            let bound = seen.log_times[i];
            imputed.observed[i] = true;
            imputed.log_times[i] = match self.rounds {
                0 => bound + 0.1 * beyond(0.0),
                _ => self.outlook.beyond(worker, bound, self.rng.random()),
            };
        }
        imputed
    }
}
