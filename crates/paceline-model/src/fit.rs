//! Fitting: gradient steps on the evidence lower bound, window by window through traces.

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};
use rand_distr::{Distribution, StandardNormal};

use crate::{
    Seen, Weights,
    nets::Nets,
    state::{Mode, ModelState},
    tape::Tape,
    weights::Adam,
};

/// The rounds of one cluster, in order.
pub type Sequence = Vec<Seen>;

/// Rounds that gradients reach back over: the lag window.
pub(crate) const WINDOW: usize = 16;

/// Rate of the moving average of the weights.
const AVERAGE: f32 = 0.01;

/// Rounds before the held-out ones that warm up the state.
const WARM_UP: usize = 256;

/// Factor on the step size of the transition networks, which learn from rare events.
const RARE: f32 = 4.0;

/// Options of a fit.
#[derive(Debug, Clone, PartialEq)]
pub struct FitOptions {
    /// Seed of the initial weights and of all draws.
    pub seed: u64,
    /// Most passes over the data.
    pub epochs: usize,
    /// Initial step size; it falls along a cosine.
    pub rate: f32,
    /// The share of each sequence, at its end, that is held out.
    pub held_out: f64,
    /// Passes without a better held-out bound before the fit stops.
    pub patience: usize,
    /// Windows per step.
    pub batch: usize,
    /// Most workers per pass; of more, each pass draws this many at random.
    pub workers: usize,
}

impl Default for FitOptions {
    fn default() -> Self {
        FitOptions {
            seed: 0,
            epochs: 30,
            rate: 1.5e-3,
            held_out: 0.1,
            patience: 6,
            batch: 6,
            workers: 160,
        }
    }
}

/// The result of one pass over the data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FitPass {
    /// Its number, from 1.
    pub epoch: usize,
    /// The evidence lower bound on fitted rounds, in nats per run-time.
    pub fitted: f64,
    /// The evidence lower bound on held-out rounds, in nats per run-time.
    pub held_out: f64,
    /// Whether the held-out bound is the best so far.
    pub best: bool,
}

/// A fit in progress.
pub struct Fit {
    options: FitOptions,
    sequences: Vec<Sequence>,
    weights: Weights,
    /// The moving average of the weights, which is steadier than any step and becomes the result.
    average: Weights,
    adam: Adam,
    rng: Xoshiro256PlusPlus,
    tape: Tape,
    epoch: usize,
    steps: usize,
    best: (f64, Weights),
    since_best: usize,
}

impl Fit {
    /// Begins with initial weights, or continues from given ones.
    pub fn new(sequences: Vec<Sequence>, options: FitOptions, from: Option<Weights>) -> Fit {
        let goes_on = from.is_some();
        let weights = from.unwrap_or_else(|| Weights::start(options.seed));
        let rng = Xoshiro256PlusPlus::seed_from_u64(options.seed ^ 0x5eed);
        let adam = Adam::new(&weights, options.rate);
        let best = (f64::NEG_INFINITY, weights.clone());
        let tape = Tape::default();
        let average = weights.clone();
        let mut fit = Fit {
            options,
            sequences,
            weights,
            average,
            adam,
            rng,
            tape,
            epoch: 0,
            steps: 0,
            best,
            since_best: 0,
        };
        // Given weights stay unless a pass does better.
        if goes_on {
            fit.best.0 = fit.held_out();
        }
        fit
    }

    /// The held-out bound of the best weights so far.
    pub fn held_out_by_best(&self) -> f64 {
        self.best.0
    }

    /// The best weights so far, by the held-out bound.
    pub fn best(&self) -> &Weights {
        &self.best.1
    }

    /// One more pass; `None` when the fit has stopped. `watch` is called with the share done.
    pub fn pass(&mut self, mut watch: impl FnMut(f64)) -> Option<FitPass> {
        if self.epoch >= self.options.epochs || self.since_best >= self.options.patience {
            return None;
        }
        self.epoch += 1;
        let progress = (self.epoch - 1) as f32 / self.options.epochs as f32;
        let rate = self.options.rate * (0.5 + 0.5 * (std::f32::consts::PI * progress).cos());
        let rate = rate.max(0.05 * self.options.rate);
        self.adam.set_rates(rate, RARE * rate);

        let mut runs: Vec<SequenceRun> = Vec::new();
        for sequence in &self.sequences {
            let split = split(sequence.len(), self.options.held_out);
            let pick = subset(sequence, self.options.workers, &mut self.rng);
            runs.push(SequenceRun { rounds: pick, split, at: 0, state: ModelState::default() });
        }
        let total: usize = runs.iter().map(|run| run.split).sum();
        let (mut fitted, mut done) = (BoundSum::default(), 0);
        let (mut windows, mut grads) = (0, Grads::new());
        loop {
            let open: Vec<usize> =
                (0..runs.len()).filter(|&i| runs[i].at < runs[i].split).collect();
            if open.is_empty() {
                break;
            }
            let run = &mut runs[open[self.rng.random_range(0..open.len())]];
            let to = (run.at + WINDOW).min(run.split);
            let cut = Cutting::draw(&mut self.rng);
            let mut seen: Vec<Seen> = Vec::with_capacity(WINDOW);
            for round in &run.rounds[run.at..to] {
                seen.push(cut.apply(round, &mut self.rng));
            }
            let windowed = window(
                &mut self.tape,
                &self.weights,
                Some(&mut grads),
                &mut run.state,
                &seen,
                &run.rounds[run.at..to],
                &mut self.rng,
            );
            windowed.residuals.iter().for_each(|round| run.state.find_groups(round));
            windows += 1;
            if windows % self.options.batch == 0 {
                self.step(&std::mem::take(&mut grads));
            }
            // The first windows only find levels, if there are enough others.
            if run.at >= 2 * WINDOW || run.split <= 3 * WINDOW {
                fitted.add(windowed.score);
            }
            done += to - run.at;
            run.at = to;
            watch(done as f64 / total as f64);
        }
        if !grads.is_empty() {
            self.step(&grads);
        }
        let held_out = self.held_out();
        let best = held_out > self.best.0;
        if best {
            self.best = (held_out, self.average.clone());
            self.since_best = 0;
        } else {
            self.since_best += 1;
        }
        Some(FitPass { epoch: self.epoch, fitted: fitted.mean(), held_out, best })
    }

    fn step(&mut self, grads: &Grads) {
        self.adam.step(&mut self.weights, grads);
        self.steps += 1;
        self.average.follow(&self.weights, AVERAGE.max(1.0 / self.steps as f32));
    }

    /// The bound on held-out rounds, after a warm-up on the rounds before. Draws and workers are always
    /// the same, so that passes compare.
    fn held_out(&mut self) -> f64 {
        let mut score = BoundSum::default();
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        for sequence in &self.sequences {
            let split = split(sequence.len(), self.options.held_out);
            let rounds = subset(sequence, self.options.workers, &mut rng);
            let mut state = ModelState::default();
            let mut at = split.saturating_sub(WARM_UP);
            while at < rounds.len() {
                let to = if at < split { (at + WINDOW).min(split) } else { at + WINDOW };
                let seen = &rounds[at..to.min(rounds.len())];
                let (tape, weights) = (&mut self.tape, &self.average);
                let windowed = window(tape, weights, None, &mut state, seen, seen, &mut rng);
                windowed.residuals.iter().for_each(|round| state.find_groups(round));
                if at >= split {
                    score.add(windowed.score);
                }
                at = to;
            }
        }
        score.mean()
    }
}

/// The number of fitted rounds.
fn split(rounds: usize, held_out: f64) -> usize {
    ((rounds as f64 * (1.0 - held_out)) as usize).clamp(1.min(rounds), rounds)
}

/// A sequence during one pass.
struct SequenceRun {
    rounds: Sequence,
    split: usize,
    at: usize,
    state: ModelState,
}

/// A sum of evidence lower bounds, and its number of run-times.
#[derive(Debug, Clone, Copy, Default)]
struct BoundSum {
    bound: f64,
    count: f64,
}

impl BoundSum {
    fn add(&mut self, other: BoundSum) {
        self.bound += other.bound;
        self.count += other.count;
    }

    fn mean(&self) -> f64 {
        self.bound / self.count.max(1.0)
    }
}

/// The result of a window of rounds.
#[derive(Debug, Default)]
pub(crate) struct Windowed {
    score: BoundSum,
    /// Residuals of each round, from which groups are found.
    residuals: Vec<Vec<(usize, f64)>>,
}

/// Gradients by all weights; empty at first.
pub(crate) type Grads = Vec<Vec<f32>>;

/// Processes a window of rounds; adds the gradients of its mean loss if requested.
pub(crate) fn window(
    tape: &mut Tape,
    weights: &Weights,
    grads: Option<&mut Grads>,
    state: &mut ModelState,
    seen: &[Seen],
    truth: &[Seen],
    rng: &mut Xoshiro256PlusPlus,
) -> Windowed {
    tape.clear();
    seen.iter().for_each(|round| state.admit(round));
    let nets = Nets::load(weights, tape);
    let mut carry = state.load(tape);
    let mut loss = None;
    let mut count = 0;
    let mut residuals = Vec::with_capacity(seen.len());
    let mut noise = || -> f32 { StandardNormal.sample(rng) };
    for (seen, truth) in seen.iter().zip(truth).filter(|(seen, _)| !seen.workers.is_empty()) {
        let mut mode = Mode { noise: Some(&mut noise), truth: Some(truth), predicted: None };
        let stepped = state.step(tape, &nets, &mut carry, seen, &mut mode);
        let of_round = stepped.loss.expect("a loss was asked for");
        loss = Some(match loss {
            Some(loss) => tape.add(loss, of_round),
            None => of_round,
        });
        count += seen.workers.len();
        residuals.push(stepped.residuals);
    }
    let Some(loss) = loss else { return Windowed::default() };
    let score = BoundSum { bound: -f64::from(tape.value(loss)[0]), count: count as f64 };
    if let Some(grads) = grads {
        let mean = tape.scale(loss, 1.0 / count as f32);
        let found = tape.gradients(mean, &nets.weights);
        match grads.is_empty() {
            true => *grads = found,
            false => {
                let all = grads.iter_mut().flatten().zip(found.iter().flatten());
                all.for_each(|(sum, grad)| *sum += grad);
            }
        }
    }
    state.store(&carry, tape, seen.len());
    Windowed { score, residuals }
}

/// How rounds are cut while fitting, so that the networks learn from censored rounds.
#[derive(Debug, Clone, Copy)]
enum Cutting {
    None,
    /// About this share arrives.
    Share(f32),
}

impl Cutting {
    fn draw(rng: &mut Xoshiro256PlusPlus) -> Cutting {
        match rng.random_bool(0.4) {
            true => Cutting::None,
            false => Cutting::Share(rng.random_range(0.5..1.0)),
        }
    }

    fn apply(self, round: &Seen, rng: &mut Xoshiro256PlusPlus) -> Seen {
        let Cutting::Share(share) = self else { return round.clone() };
        let mut times: Vec<f32> = round.log_times.clone();
        if times.is_empty() {
            return round.clone();
        }
        let share = (share + rng.random_range(-0.1..0.1f32)).clamp(0.1, 1.0);
        let last = ((times.len() as f32 * share) as usize).min(times.len() - 1);
        let cut = *times.select_nth_unstable_by(last, f32::total_cmp).1;
        let mut seen = round.clone();
        for (y, observed) in seen.log_times.iter_mut().zip(&mut seen.observed) {
            if *y > cut {
                (*y, *observed) = (cut, false);
            }
        }
        seen
    }
}

/// The sequence of at most `most` workers, drawn at random and renumbered.
fn subset(sequence: &Sequence, most: usize, rng: &mut Xoshiro256PlusPlus) -> Sequence {
    let workers = sequence.iter().flat_map(|round| &round.workers).max().map_or(0, |w| w + 1);
    if workers as usize <= most {
        return sequence.clone();
    }
    let mut number = vec![None; workers as usize];
    let mut left = most;
    for (worker, number) in number.iter_mut().enumerate() {
        let rest = workers as usize - worker;
        if rng.random_range(0..rest) < left {
            *number = Some((most - left) as u32);
            left -= 1;
        }
    }
    let pick = |round: &Seen| {
        let mut picked = Seen::default();
        for (i, &worker) in round.workers.iter().enumerate() {
            if let Some(worker) = number[worker as usize] {
                picked.workers.push(worker);
                picked.log_times.push(round.log_times[i]);
                picked.observed.push(round.observed[i]);
            }
        }
        picked
    };
    sequence.iter().map(pick).collect()
}
