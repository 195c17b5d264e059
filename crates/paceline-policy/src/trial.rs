//! Trials of full sync for a few rounds, compared by measured rates.
//!
//! Experts are compared by counterfactual earnings in rounds that another expert led. That is right as
//! long as a cut changes nothing but the round's end. Where workers share cores it changes more: a
//! worker that is cut has used the others' cores for nothing, and still does when they begin the next
//! round. So now and then several consecutive rounds wait for all workers, and their measured rate is
//! compared with that of the rounds just before. The mode that wins twice in a row is kept; then the
//! other is tried, less and less often, and only while the score of full sync, which audits keep known, is not
//! far behind. A trial that gains clearly less ends early, and so does one in
//! which a round takes half as long again as usual: it costs no more than that half. Where rounds are
//! short, and the system's timing matters more than the workers', trials are longer and more patient,
//! and one win suffices.

use std::{collections::VecDeque, time::Duration};

/// Rounds of a trial, after a first one that still shows the previous mode.
const ROUNDS: u32 = 8;
/// Rounds shorter than this many times the system's lateness are mostly noise: trials and pauses have more
/// rounds in proportion, up to [`MOST`] times as many.
const SHORT: f64 = 60.0;
const MOST: f64 = 8.0;
/// Rounds before the first trial, and between a win and the next.
const SOON: u64 = 24;
/// Factor on the pause between trials after each loss.
const RARER: u64 = 2;
/// Ratio of rates by which a trial wins, and by which it is lost early.
const MARGIN: f64 = 1.05;
/// Rounds after which a trial can be lost early.
const FIRST: u32 = 2;
/// Longest wait for all workers during a trial, in usual round lengths; the second number is added for
/// each further multiple of the trial's length.
const PATIENCE: [f64; 2] = [1.5, 0.25];
/// If less than this share of the work is cut, full sync has nothing to gain.
const CUT: f64 = 0.02;

/// Gains and seconds of a few rounds, over which the value of a gain hardly changes.
#[derive(Debug, Clone, Copy, Default)]
struct GainSum {
    weight: f64,
    seconds: f64,
    rounds: u32,
}

impl GainSum {
    fn add(&mut self, weight: f64, seconds: f64) {
        self.weight += weight;
        self.seconds += seconds;
        self.rounds += 1;
    }

    fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.weight / self.seconds } else { 0.0 }
    }
}

/// Chooses between two modes: following the experts, or waiting for all.
#[derive(Debug, Clone)]
pub(crate) struct FullSyncTrial {
    /// The current mode waits for all.
    whole: bool,
    /// The gains of the other mode while it is on trial.
    trying: Option<GainSum>,
    /// The last rounds of the current mode.
    lately: VecDeque<(f64, f64)>,
    /// Factor on the length of trials and pauses, for short rounds.
    times: u32,
    since: u64,
    gap: u64,
    won: bool,
}

impl Default for FullSyncTrial {
    fn default() -> Self {
        FullSyncTrial {
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

impl FullSyncTrial {
    /// Whether rounds wait for all now.
    pub(crate) fn waits_for_all(&self) -> bool {
        self.whole != self.trying.is_some()
    }

    /// Longest wait for all, in usual round lengths, while full sync is on trial.
    pub(crate) fn patience(&self) -> Option<f64> {
        let [usual, more] = PATIENCE;
        let patience = usual + more * f64::from(self.times - 1);
        (!self.whole && self.trying.is_some()).then_some(patience)
    }

    /// Whether the policy need not learn from every round.
    pub(crate) fn is_calm(&self) -> bool {
        self.whole && self.trying.is_none()
    }

    /// A round gained `weight` of the `possible` samples in `seconds`, overhead included; `all` says
    /// whether every worker arrived, `pays` whether full sync may gain more than the experts. `lateness` is
    /// the system's.
    pub(crate) fn closed(
        &mut self,
        weight: f64,
        possible: f64,
        seconds: f64,
        all: bool,
        pays: bool,
        lateness: Duration,
    ) {
        if self.patience().is_some() && !all && self.times == 1 {
            return self.end(false);
        }
        if let Some(mut sum) = self.trying {
            // The first round still shows the previous mode.
            if sum.rounds == 0 {
                sum = GainSum { rounds: 1, ..GainSum::default() };
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
        let short = SHORT * lateness.as_secs_f64();
        self.times = (short / mean.max(1e-9)).ceil().clamp(1.0, MOST) as u32;
        let cuts = usual.weight < (1.0 - CUT) * possible * f64::from(usual.rounds);
        if self.since >= self.gap * u64::from(self.times) && (self.whole || (cuts && pays)) {
            self.trying = Some(GainSum::default());
        }
    }

    fn usual(&self) -> GainSum {
        let mut sum = GainSum::default();
        self.lately.iter().for_each(|&(weight, seconds)| sum.add(weight, seconds));
        sum
    }

    fn judge(&mut self, sum: GainSum) {
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
        // One win may be chance, unless it is over many rounds.
        self.gap = if won { SOON } else { self.gap * RARER };
        self.won = won && !self.won;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENESS: Duration = Duration::from_millis(1);

    /// Rounds, out of `rounds`, that waited for all, where full sync gains `whole` samples per second
    /// and the experts gain `free`.
    fn waited(rounds: usize, whole: impl Fn(usize) -> f64, free: f64) -> usize {
        let mut trial = FullSyncTrial::default();
        let waits = (0..rounds).map(|round| {
            let waits = trial.waits_for_all();
            match waits {
                true => trial.closed(100.0, 100.0, 100.0 / whole(round), true, true, LATENESS),
                false => trial.closed(80.0, 100.0, 80.0 / free, false, true, LATENESS),
            }
            waits
        });
        waits.filter(|waits| *waits).count()
    }

    #[test]
    fn the_mode_with_the_higher_measured_rate_is_kept() {
        assert!(waited(1000, |_| 1.1, 1.0) > 850);
        assert!(waited(1000, |_| 0.7, 1.0) < 20);
        assert!(waited(1000, |_| 1.0, 1.0) < 60);
    }

    #[test]
    fn many_short_rounds_make_a_trial() {
        let mut trial = FullSyncTrial::default();
        let mut lasted = |seconds: f64| {
            while trial.waits_for_all() {
                trial.closed(100.0, 100.0, seconds, true, true, LATENESS);
            }
            while !trial.waits_for_all() {
                trial.closed(80.0, 100.0, 0.8 * seconds, false, true, LATENESS);
            }
            let mut rounds = 0;
            while trial.waits_for_all() && rounds < 1000 {
                trial.closed(100.0, 100.0, seconds, true, true, LATENESS);
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
    fn a_trial_in_which_a_worker_does_not_arrive_ends() {
        let mut trial = FullSyncTrial::default();
        while !trial.waits_for_all() {
            trial.closed(80.0, 100.0, 1.0, false, true, LATENESS);
        }
        trial.closed(90.0, 100.0, 1.5, false, true, LATENESS);
        assert!(!trial.waits_for_all());
    }

    #[test]
    fn where_nothing_is_cut_nothing_is_tried() {
        let mut trial = FullSyncTrial::default();
        for _ in 0..500 {
            trial.closed(99.0, 100.0, 1.0, true, true, LATENESS);
            assert!(!trial.waits_for_all());
        }
    }
}
