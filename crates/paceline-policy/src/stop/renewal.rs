//! The renewal rule: a round goes on exactly while some further wait is worth more than λ a second.
//!
//! Two families of further waits are weighed, over a grid of moments up to the last at which even
//! everybody arriving could pay:
//! - until a moment t, or until all are in: the gain of Σ pᵢ(t) more, time ∫ (1 − Π pᵢ);
//! - until the next arrival, or t: gain 1 − Π(1 − pᵢ(t)) times the mean weight, time ∫ Π(1 − pᵢ).
//!
//! pᵢ(t) is the chance that i, silent until now, arrives by t. The rule is asked again after
//! arrivals, so the true value of going on is at least that of either.
//!
//! With salvage, finished micro-batches count at the cut: j of m are done by t if the whole takes
//! at most t·m/j, so the expected share done is the mean of pᵢ(t·m/j) over j.

use crate::{
    objective::Gain,
    predict::Predictor,
    scene::{Scene, Silent},
};

const GRID: usize = 20;
const FIRST: f64 = 1e-3;
/// The most silent workers that are summed over; of more, every k-th.
const SAMPLE: usize = 48;

/// A further wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Plan {
    /// Expected gain less λ times the wait.
    pub(crate) value: f64,
    /// Seconds from now until it would stop.
    pub(crate) wait: f64,
    /// Arrivals expected by then.
    pub(crate) arrivals: f64,
}

/// The best further wait at `rate` gain per second. A value of 0 or less means stop.
pub(crate) fn best_plan(predictor: &dyn Predictor, gain: &Gain, scene: &Scene, rate: f64) -> Plan {
    let count = scene.silent.len();
    let stride = count.div_ceil(SAMPLE).max(1);
    let silent: Vec<Silent> = scene.silent.iter().step_by(stride).copied().collect();
    let times = count as f64 / silent.len().max(1) as f64;
    let total = scene.missing();
    let gained = scene.gained();
    let worth = |weight: f64| gain.of(gained + weight) - gain.of(gained);
    let one = worth(total / count.max(1) as f64);
    let waits = grid(worth(total) / rate);
    let arrives = Arrives::of(predictor, &silent, &waits);
    let done_now: f64 = silent.iter().map(|s| s.weight * scene.share_done(s)).sum();

    let mut best = Plan { value: 0.0, wait: 0.0, arrivals: 0.0 };
    let (mut before, mut some_left, mut none_in) = (0.0, 1.0, 1.0);
    let (mut until_all, mut until_first) = (0.0, 0.0);
    for (g, &wait) in waits.iter().enumerate() {
        let (mut weight, mut arrivals, mut all, mut none) = (0.0, 0.0, 1.0, 1.0);
        for (i, s) in silent.iter().enumerate() {
            let p = arrives.by(i, g);
            weight += s.weight
                * match scene.partial {
                    0 | 1 => p,
                    m => share_done(predictor, s, wait, m),
                };
            arrivals += p;
            all *= p;
            none *= 1.0 - p;
        }
        if stride > 1 {
            (all, none) = (all.powf(times), none.powf(times));
        }
        until_all += 0.5 * (some_left + (1.0 - all)) * (wait - before);
        until_first += 0.5 * (none_in + none) * (wait - before);
        (before, some_left, none_in) = (wait, 1.0 - all, none);
        let to_moment = worth(times * (weight - done_now)) - rate * until_all;
        let to_first = match scene.partial {
            0 | 1 => one * (1.0 - none) - rate * until_first,
            _ => f64::NEG_INFINITY,
        };
        if to_moment.max(to_first) > best.value {
            best = match to_moment >= to_first {
                true => Plan { value: to_moment, wait, arrivals: times * arrivals },
                false => Plan { value: to_first, wait, arrivals: 1.0 },
            };
        }
    }
    best
}

/// Moments from now up to the last that could pay, closer together at first.
fn grid(last: f64) -> [f64; GRID] {
    let ratio = (1.0 / FIRST).powf(1.0 / (GRID - 1) as f64);
    let mut wait = FIRST * last;
    [(); GRID].map(|()| {
        let this = wait;
        wait *= ratio;
        this
    })
}

/// The chances that the silent arrive by each of the moments.
struct Arrives(Vec<[f64; GRID]>);

impl Arrives {
    fn of(predictor: &dyn Predictor, silent: &[Silent], waits: &[f64; GRID]) -> Arrives {
        // Those who began together, usually all, have the same moments.
        let mut of = (f64::NAN, f64::NAN);
        let mut moments = [0.0; GRID + 1];
        let mut survival = [0.0; GRID + 1];
        let chances = silent.iter().map(|s| {
            if (s.elapsed, s.load) != of {
                of = (s.elapsed, s.load);
                moments[0] = s.elapsed.max(1e-9).ln();
                let later = moments[1..].iter_mut().zip(waits);
                later.for_each(|(moment, wait)| *moment = (s.elapsed + wait / s.load).ln());
            }
            predictor.survivals(s.worker, &moments, &mut survival);
            let now = survival[0].max(1e-12);
            let mut chances = [0.0; GRID];
            let later = chances.iter_mut().zip(&survival[1..]);
            later.for_each(|(p, later)| *p = (1.0 - later / now).clamp(0.0, 1.0));
            chances
        });
        Arrives(chances.collect())
    }

    fn by(&self, silent: usize, moment: usize) -> f64 {
        self.0[silent][moment]
    }
}

/// Of a silent worker's micro-batches, the share expected to be done `wait` from now.
///
/// With j of m done after e seconds at an even pace, the whole takes from e·m/(j+1) to e·m/j; the
/// prediction says where in between.
fn share_done(predictor: &dyn Predictor, s: &Silent, wait: f64, m: u32) -> f64 {
    let (done, all) = (f64::from(s.done), f64::from(m));
    let survival = |x: f64| predictor.survival(s.worker, x.max(1e-9).ln());
    let least = s.elapsed * all / (done + 1.0);
    let most = if s.done == 0 { f64::INFINITY } else { s.elapsed * all / done };
    let from = survival(least);
    let to = if most.is_finite() { survival(most) } else { 0.0 };
    let by = |j: u32| {
        let whole = (s.elapsed + wait / s.load) * all / f64::from(j);
        if whole <= least {
            0.0
        } else if whole >= most {
            1.0
        } else if from - to > 1e-9 {
            ((from - survival(whole)) / (from - to)).clamp(0.0, 1.0)
        } else {
            // Nothing is known of times like these.
            if most.is_finite() { (whole - least) / (most - least) } else { 1.0 - least / whole }
        }
    };
    (s.done + 1..=m).map(by).sum::<f64>() / all + done / all
}

/// The moment, in seconds since the opening, after which even everybody's arrival at once, `all` the
/// samples there are, could not make the round as good as the run's rate.
pub(crate) fn break_even(gain: &Gain, all: f64, rate: f64, overhead: f64) -> f64 {
    gain.of(all) / rate - overhead
}
