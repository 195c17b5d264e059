//! The renewal rule: a round waits exactly while some further wait gains more than λ per second.
//!
//! Two families of further waits are weighed, over a grid of moments up to the last at which even
//! all workers arriving could pay:
//! - until a moment t, or until all are in: the gain of Σ pᵢ(t) more, time ∫ (1 − Π pᵢ);
//! - until the next arrival, or t: gain 1 − Π(1 − pᵢ(t)) times the mean weight, time ∫ Π(1 − pᵢ).
//!
//! pᵢ(t) is the chance that i, silent until now, arrives by t. The rule is asked again after
//! arrivals, so the true value of waiting is at least that of either.
//!
//! With salvage, finished micro-batches count at the cut: j of m are done by t if the whole takes
//! at most t·m/j, so the expected share done is the mean of pᵢ(t·m/j) over j. A worker that has finished
//! one has shown its pace: while it keeps that pace, the ends of its next micro-batches are known, and
//! those moments are weighed as well.

use crate::{
    objective::Gain,
    predict::Predictor,
    scene::{MicroBatchPace, Scene, Silent},
};

const GRID: usize = 20;
const FIRST: f64 = 1e-3;
/// Most silent workers to sum over; of more, every k-th.
const SAMPLE: usize = 48;
/// Most moments from paces to weigh: the next ones.
const FORETOLD: usize = 24;

/// Tolerance for rounding: a micro-batch due at a moment is done at that moment.
const NEARLY: f64 = 1.0 - 1e-9;

/// A further wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WaitPlan {
    /// Expected gain less λ times the wait.
    pub(crate) value: f64,
    /// Seconds from now until it would stop.
    pub(crate) wait: f64,
    /// Arrivals expected by then.
    pub(crate) arrivals: f64,
}

/// The best further wait at `rate` gain per second. A value of 0 or less means stop.
pub(crate) fn best_plan(
    predictor: &dyn Predictor,
    gain: &Gain,
    scene: &Scene,
    rate: f64,
) -> WaitPlan {
    let count = scene.silent.len();
    let stride = count.div_ceil(SAMPLE).max(1);
    let silent: Vec<Silent> = scene.silent.iter().step_by(stride).copied().collect();
    let times = count as f64 / silent.len().max(1) as f64;
    let total = scene.missing();
    let gained = scene.gained();
    let worth = |weight: f64| gain.value(gained + weight) - gain.value(gained);
    let one = worth(total / count.max(1) as f64);
    let waits = moments(worth(total) / rate, &silent, scene.partial);
    let arrives = Arrives::new(predictor, &silent, &waits, scene.partial);
    let done_now: f64 = silent.iter().map(|s| s.weight * scene.share_done(s)).sum();

    let mut best = WaitPlan { value: 0.0, wait: 0.0, arrivals: 0.0 };
    let (mut before, mut some_left, mut none_in) = (0.0, 1.0, 1.0);
    // Workers with a pace arrive at a known moment, not before it.
    let mut foretold_before = if silent.iter().any(|s| s.pace.is_some()) { 0.0 } else { 1.0 };
    let (mut until_all, mut until_first) = (0.0, 0.0);
    for (g, &wait) in waits.iter().enumerate() {
        let (mut weight, mut arrivals, mut all, mut none) = (0.0, 0.0, 1.0, 1.0);
        let mut foretold = 1.0;
        for (i, s) in silent.iter().enumerate() {
            let p = arrives.by(i, g);
            weight += s.weight
                * match scene.partial {
                    0 | 1 => p,
                    m => share_done(predictor, s, wait, m),
                };
            arrivals += p;
            *(if s.pace.is_some() { &mut foretold } else { &mut all }) *= p;
            none *= 1.0 - p;
        }
        if stride > 1 {
            (all, none) = (all.powf(times), none.powf(times));
        }
        until_all += 0.5 * (some_left + (1.0 - all * foretold_before)) * (wait - before);
        until_first += 0.5 * (none_in + none) * (wait - before);
        (before, some_left, none_in) = (wait, 1.0 - all * foretold, none);
        foretold_before = foretold;
        let to_moment = worth(times * (weight - done_now)) - rate * until_all;
        let to_first = match scene.partial {
            0 | 1 => one * (1.0 - none) - rate * until_first,
            _ => f64::NEG_INFINITY,
        };
        if to_moment.max(to_first) > best.value {
            best = match to_moment >= to_first {
                true => WaitPlan { value: to_moment, wait, arrivals: times * arrivals },
                false => WaitPlan { value: to_first, wait, arrivals: 1.0 },
            };
        }
    }
    best
}

/// Moments from now up to the last that could pay, denser at first, and those at which the next
/// micro-batches are due.
fn moments(last: f64, silent: &[Silent], m: u32) -> Vec<f64> {
    let next = |s: &Silent| {
        let s = *s;
        let ends =
            move |pace: MicroBatchPace| (1..=m - s.done).map(move |j| s.wait_until(pace.end(j)));
        s.pace.map(ends).into_iter().flatten()
    };
    let mut waits: Vec<f64> = silent.iter().flat_map(next).collect();
    waits.retain(|wait| (FIRST * last..last).contains(wait));
    if waits.len() > FORETOLD {
        waits.select_nth_unstable_by(FORETOLD, f64::total_cmp);
        waits.truncate(FORETOLD);
    }
    let ratio = (1.0 / FIRST).powf(1.0 / (GRID - 1) as f64);
    waits.extend((0..GRID).map(|g| FIRST * last * ratio.powi(g as i32)));
    waits.sort_unstable_by(f64::total_cmp);
    waits
}

/// The probabilities that silent workers arrive by each of the moments.
struct Arrives {
    chances: Vec<f64>,
    moments: usize,
}

impl Arrives {
    fn new(predictor: &dyn Predictor, silent: &[Silent], waits: &[f64], m: u32) -> Arrives {
        // Workers that began together, usually all, share the same moments.
        let mut of = (f64::NAN, f64::NAN);
        let mut moments = vec![0.0; waits.len() + 1];
        let mut survival = vec![0.0; waits.len() + 1];
        let mut chances = Vec::with_capacity(silent.len() * waits.len());
        for s in silent {
            if let Some(pace) = s.pace {
                let whole = pace.end(m - s.done) * NEARLY;
                let comes = |wait: &f64| f64::from(s.after(*wait) >= whole);
                chances.extend(waits.iter().map(comes));
                continue;
            }
            if (s.elapsed, s.load) != of {
                of = (s.elapsed, s.load);
                moments[0] = s.elapsed.max(1e-9).ln();
                let later = moments[1..].iter_mut().zip(waits);
                later.for_each(|(moment, wait)| *moment = s.after(*wait).ln());
            }
            predictor.survivals(s.worker, &moments, &mut survival);
            let now = survival[0].max(1e-12);
            chances.extend(survival[1..].iter().map(|later| (1.0 - later / now).clamp(0.0, 1.0)));
        }
        Arrives { chances, moments: waits.len() }
    }

    fn by(&self, silent: usize, moment: usize) -> f64 {
        self.chances[silent * self.moments + moment]
    }
}

/// The share of a silent worker's micro-batches expected to be done `wait` from now.
///
/// With j of m done after e seconds at an even pace, the whole takes from e·m/(j+1) to e·m/j; the
/// prediction gives the distribution in between.
fn share_done(predictor: &dyn Predictor, s: &Silent, wait: f64, m: u32) -> f64 {
    let (done, all) = (f64::from(s.done), f64::from(m));
    if let Some(pace) = s.pace {
        let more = (s.after(wait) / NEARLY - pace.last) / pace.each.max(1e-9);
        return (done + more.max(0.0).floor()).min(all) / all;
    }
    let survival = |x: f64| predictor.survival(s.worker, x.max(1e-9).ln());
    let least = s.elapsed * all / (done + 1.0);
    let most = if s.done == 0 { f64::INFINITY } else { s.elapsed * all / done };
    let from = survival(least);
    let to = if most.is_finite() { survival(most) } else { 0.0 };
    let by = |j: u32| {
        let whole = s.after(wait) * all / f64::from(j);
        if whole <= least {
            0.0
        } else if whole >= most {
            1.0
        } else if from - to > 1e-9 {
            ((from - survival(whole)) / (from - to)).clamp(0.0, 1.0)
        } else {
            // The prediction does not cover these times.
            if most.is_finite() { (whole - least) / (most - least) } else { 1.0 - least / whole }
        }
    };
    (s.done + 1..=m).map(by).sum::<f64>() / all + done / all
}

/// The moment, in seconds since the opening, after which even the arrival of all workers at once, with
/// `all` samples, could not pay: neither bring the round up to the run's rate, nor gain enough for the time since a
/// moment when the round had `gained` so much. What it took until then is spent.
pub(crate) fn break_even(
    gain: &Gain,
    (gained, since): (f64, f64),
    all: f64,
    rate: f64,
    overhead: f64,
) -> f64 {
    let whole = gain.value(all);
    (whole / rate - overhead).max(since + (whole - gained) / rate)
}

#[cfg(test)]
mod tests {
    use paceline_core::WorkerId;

    use super::*;
    use crate::{objective::Objective, predict::Empirical, scene::Arrived};

    /// One worker has arrived after 2 s; the other has done 3 of 4 micro-batches, of `whole` seconds.
    fn scene(whole: Option<f64>) -> Scene {
        let (weight, elapsed) = (8.0, 2.0);
        let pace = whole.map(|whole| MicroBatchPace { last: 0.75 * whole, each: 0.25 * whole });
        let silent = Silent { worker: WorkerId(1), elapsed, load: 1.0, weight, done: 3, pace };
        Scene {
            elapsed,
            arrived: vec![Arrived { worker: WorkerId(0), run_time: 2.0, weight }],
            silent: vec![silent],
            partial: 4,
        }
    }

    #[test]
    fn a_worker_that_keeps_its_pace_is_waited_for_exactly() {
        let plan = |whole, rate| {
            let gain = Gain::new(Objective::Samples);
            best_plan(&Empirical::default(), &gain, &scene(Some(whole)), rate)
        };
        let due = plan(2.25, 6.0);
        assert!((due.wait - 0.25).abs() < 1e-6, "{due:?}");
        assert!((due.value - (2.0 - 6.0 * 0.25)).abs() < 0.05, "{due:?}");
        assert_eq!(due.arrivals, 1.0);
        // Its last quarter is worth 2 samples, and in 0.4 s the run makes more.
        assert_eq!(plan(2.4, 6.0).value, 0.0);
    }

    #[test]
    fn moments_are_those_of_a_grid_and_of_paces() {
        let silent = scene(Some(2.25)).silent;
        let waits = moments(4.0, &silent, 4);
        assert!(waits.is_sorted() && waits.len() == GRID + 1);
        assert!(waits.iter().any(|wait| (wait - 0.25).abs() < 1e-12));
        assert!((waits[GRID] - 4.0).abs() < 1e-9);
        assert_eq!(moments(4.0, &scene(None).silent, 4).len(), GRID);
    }
}
