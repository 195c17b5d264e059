//! Trying full sync for a few rounds, and comparing what it really brings.
//!
//! Experts are compared by what they would have earned in rounds that were played otherwise. That is
//! right as long as a cut changes nothing but the round's end. Where workers share cores it does:
//! whoever is cut has spent the others' time for nothing, and is still at it when they begin anew. So
//! now and then all are waited for in several rounds on end, and the rates are compared as they are
//! measured, with the rounds just before. Who wins twice in a row is stayed with; then the other is
//! tried, less and less often. A trial that brings clearly less is given up, and so is one in which a
//! round takes half as long again as is usual: it costs no more than that half. Where rounds are short,
//! and the system's timing counts for more than the workers', trials are longer and more patient, and
//! one that is won suffices.

use std::collections::VecDeque;

/// Rounds of a trial, after one in which the last way ends.
const ROUNDS: u32 = 8;
/// Rounds shorter than this many seconds are chance, mostly: so many times as many make a trial, and a
/// pause, up to [`MOST`].
const SHORT: f64 = 0.06;
const MOST: f64 = 8.0;
/// Rounds before the first trial, and between a win and the next.
const SOON: u64 = 24;
/// So many times as long between trials after each that is lost.
const RARER: u64 = 2;
/// A trial wins by this much, and is given up when it is as much behind.
const MARGIN: f64 = 1.05;
/// Rounds after which it can be given up.
const FIRST: u32 = 2;
/// All are waited for so many times as long as rounds take now, while that is on trial; and the second
/// number more for each time that trials are longer.
const PATIENCE: [f64; 2] = [1.5, 0.25];
/// Where less than this share of the work is cut there is nothing to win.
const CUT: f64 = 0.02;

/// Gains and seconds of some rounds: few enough that what a gain is worth hardly changes meanwhile.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    weight: f64,
    seconds: f64,
    rounds: u32,
}

impl Sum {
    fn add(&mut self, weight: f64, seconds: f64) {
        self.weight += weight;
        self.seconds += seconds;
        self.rounds += 1;
    }

    fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.weight / self.seconds } else { 0.0 }
    }
}

/// Which of two ways to go: as the experts say, or waiting for all.
#[derive(Debug, Clone)]
pub(crate) struct Trial {
    /// The way that is stayed with is to wait for all.
    whole: bool,
    /// The other way, on trial: what it brought. The first round is the last way's.
    trying: Option<Sum>,
    /// The last rounds of the way that is stayed with.
    lately: VecDeque<(f64, f64)>,
    /// By how much trials and pauses are longer, since rounds are short.
    times: u32,
    since: u64,
    gap: u64,
    won: bool,
}

impl Default for Trial {
    fn default() -> Self {
        Trial {
            whole: false,
            trying: None,
            lately: VecDeque::new(),
            times: 1,
            since: 0,
            gap: SOON,
            won: false,
        }
    }
}

impl Trial {
    /// Whether all are waited for now.
    pub(crate) fn waits_for_all(&self) -> bool {
        self.whole != self.trying.is_some()
    }

    /// For how many times the usual length of a round all are waited for, if that is on trial.
    pub(crate) fn patience(&self) -> Option<f64> {
        let [usual, more] = PATIENCE;
        let patience = usual + more * f64::from(self.times - 1);
        (!self.whole && self.trying.is_some()).then_some(patience)
    }

    /// Whether there is no need to learn from every round.
    pub(crate) fn is_calm(&self) -> bool {
        self.whole && self.trying.is_none()
    }

    /// A round brought `weight` of the samples that were `possible`, and took so many seconds with all
    /// that belongs to it; `all` says whether everybody came.
    pub(crate) fn closed(&mut self, weight: f64, possible: f64, seconds: f64, all: bool) {
        if self.patience().is_some() && !all && self.times == 1 {
            return self.end(false);
        }
        if let Some(mut sum) = self.trying {
            // The first shows what the last way left behind.
            if sum.rounds == 0 {
                sum = Sum { rounds: 1, ..Sum::default() };
            } else {
                sum.add(weight, seconds);
            }
            self.trying = Some(sum);
            self.judge(sum);
            return;
        }
        self.since += 1;
        self.lately.push_back((weight, seconds));
        while self.lately.len() > (ROUNDS * self.times) as usize {
            self.lately.pop_front();
        }
        let usual = self.usual();
        let mean = usual.seconds / f64::from(usual.rounds);
        self.times = (SHORT / mean.max(1e-9)).ceil().clamp(1.0, MOST) as u32;
        let cuts = usual.weight < (1.0 - CUT) * possible * f64::from(usual.rounds);
        if self.since >= self.gap * u64::from(self.times) && (self.whole || cuts) {
            self.trying = Some(Sum::default());
        }
    }

    fn usual(&self) -> Sum {
        let mut sum = Sum::default();
        self.lately.iter().for_each(|&(weight, seconds)| sum.add(weight, seconds));
        sum
    }

    fn judge(&mut self, sum: Sum) {
        let (tried, usual, rounds) = (sum.rate(), self.usual().rate(), sum.rounds - 1);
        let lost = rounds >= FIRST * self.times && tried * MARGIN < usual;
        if !lost && rounds < ROUNDS * self.times {
            return;
        }
        self.end(!lost && tried > usual * MARGIN);
    }

    fn end(&mut self, won: bool) {
        (self.trying, self.since) = (None, 0);
        if won && (self.won || self.times > 1) {
            self.whole = !self.whole;
            self.lately.clear();
        }
        // One win may be chance, or the moment's, unless many rounds made it.
        self.gap = if won { SOON } else { self.gap * RARER };
        self.won = won && !self.won;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds in which all were waited for, of so many, where that brings `whole` samples a second and
    /// the experts' way `free`.
    fn waited(rounds: usize, whole: impl Fn(usize) -> f64, free: f64) -> usize {
        let mut trial = Trial::default();
        let waits = (0..rounds).map(|round| {
            let waits = trial.waits_for_all();
            match waits {
                true => trial.closed(100.0, 100.0, 100.0 / whole(round), true),
                false => trial.closed(80.0, 100.0, 80.0 / free, false),
            }
            waits
        });
        waits.filter(|waits| *waits).count()
    }

    #[test]
    fn what_really_brings_more_is_stayed_with() {
        assert!(waited(1000, |_| 1.1, 1.0) > 850);
        assert!(waited(1000, |_| 0.7, 1.0) < 20);
        assert!(waited(1000, |_| 1.0, 1.0) < 60);
    }

    #[test]
    fn many_short_rounds_make_a_trial() {
        let mut trial = Trial::default();
        let mut lasted = |seconds: f64| {
            while trial.waits_for_all() {
                trial.closed(100.0, 100.0, seconds, true);
            }
            while !trial.waits_for_all() {
                trial.closed(80.0, 100.0, 0.8 * seconds, false);
            }
            let mut rounds = 0;
            while trial.waits_for_all() && rounds < 1000 {
                trial.closed(100.0, 100.0, seconds, true);
                rounds += 1;
            }
            (rounds, trial.times)
        };
        assert_eq!(lasted(1.0), (ROUNDS + 1, 1));
        assert_eq!(lasted(0.025), (3 * ROUNDS + 1, 3));
        assert_eq!(lasted(0.001), (8 * ROUNDS + 1, 8));
    }

    #[test]
    fn a_change_is_noticed_both_ways() {
        assert!(waited(4000, |round| if round < 1000 { 1.1 } else { 0.5 }, 1.0) < 2500);
        assert!(waited(4000, |round| if round < 1000 { 0.5 } else { 1.2 }, 1.0) > 1500);
    }

    #[test]
    fn a_trial_in_which_somebody_does_not_come_is_over() {
        let mut trial = Trial::default();
        while !trial.waits_for_all() {
            trial.closed(80.0, 100.0, 1.0, false);
        }
        trial.closed(90.0, 100.0, 1.5, false);
        assert!(!trial.waits_for_all());
    }

    #[test]
    fn where_nothing_is_cut_nothing_is_tried() {
        let mut trial = Trial::default();
        for _ in 0..500 {
            trial.closed(99.0, 100.0, 1.0, true);
            assert!(!trial.waits_for_all());
        }
    }
}
