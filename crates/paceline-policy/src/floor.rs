//! A floor under `auto`: in the long run it does not fall behind full sync.
//!
//! **Setting.** With all its workers round i gains f_i, which takes t_i seconds, overhead included. `auto` gains
//! A_i ≤ f_i in s_i ≤ t_i seconds. Sums are in full rounds: a_i = A_i/f_i. Let x_i = t_i/f_i. Rounds are
//! exchangeable: μ is the mean of x_i given everything before the round opens, and full sync gains 1/μ per
//! second. A round is *whole* if it was chosen to wait for all before it opened: an audit, a trial, or by the
//! rule below. Other rounds are *learnt*, and so are whole ones that gave up a worker. The floor begins with the
//! round after `auto` has gained r₀ full rounds, and rounds are counted from there.
//!
//! **Rule.** Two accounts say how many full rounds `auto` is behind over the learnt rounds, and the lower one
//! counts:
//! - *missed*: Σ (1 − a_i). Full sync takes no less time.
//! - *proven*: Σ (s_i/(L·f_i) − a_i): what full sync gains in the time, at most, less what `auto` gained.
//!
//! While it is above C + α·r before round r, rounds are whole.
//!
//! **Lower bound L of μ.** A round that is whole by the rule shows x_i, or less where a worker was given up. For any
//! bet c in (0, 1] the product of 1 + c·(x_i/m − 1) over these rounds is a non-negative supermartingale where m ≥ μ,
//! however heavy the tail of x_i, and so is the mean over several bets. By Ville's inequality it stays below 1/δ
//! for ever with probability 1 − δ. L is the greatest m for which it does not.
//!
//! **Theorem.** With probability 1 − δ, after every round r at once,
//! Σ a_i ≥ Σ s_i/(μ·f_i) − (C + 1) − α·r − Z_r, with sums over rounds 1 to r. Z_r is the luck of full sync itself, a
//! martingale of mean 0: Σ (t_i/(μ·f_i) − 1) over all rounds, or over the whole ones.
//!
//! *Proof.* Before the last learnt round opened, the lower account was at most C + α·r, and the round added at most 1
//! to `missed`. If that was the lower one: Σ a_i ≥ r − C − 1 − α·r, and r = Σ t_i/(μ·f_i) − Z_r, where t_i ≥ s_i.
//! If `proven` was, and L ≤ μ, then the claim holds over the learnt rounds, and a whole round that gave up
//! nobody adds 1 = s_i/(μ·f_i) less its luck. ∎
//!
//! **Price.** To prove that learnt cuts gain more takes about ln(1/δ)/ln g whole rounds, where they gain g times as
//! much per second. That costs four to ten full rounds' gain in all, and no rule can prove it for much less. Hence
//! r₀: short runs are not made to pay, and audits and trials guard them without a theorem.
//!
//! **Changes.** When the cluster becomes faster, L is too high. A CUSUM of whole rounds against L notices, and
//! the bound begins anew, while the accounts go on. The theorem holds from change to change; what is lost
//! until a change is noticed comes on top.

/// α: the share of all rounds that `auto` may fall behind.
const ALPHA: f64 = 0.02;
/// C: full rounds that it may fall behind besides.
const CREDIT: f64 = 5.0;
/// r₀: full rounds that it has gained when the floor begins.
const FROM: f64 = 2000.0;
/// δ: the probability that the bound fails.
const DOUBT: f64 = 0.1;
/// The bets and their shares. High ones prove much from few rounds, low ones serve where a few rounds are much
/// longer than most.
const BETS: [(f64, f64); 4] = [(1.0, 0.6), (0.6, 0.14), (0.3, 0.13), (0.1, 0.13)];
/// The bet that whole rounds have become shorter, and what it has to win.
const CHANGE: (f64, f64) = (0.5, 400.0);
/// Most whole rounds that the bound is from.
const MOST: usize = 200;

/// A closed round, in units of what a full one would have gained.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    /// Share of a full round's gain.
    pub(crate) share: f64,
    /// Seconds, overhead included, by the gain of a full round.
    pub(crate) seconds: f64,
    /// Whether it was chosen to wait for all before it opened.
    pub(crate) whole: bool,
}

/// The accounts and the bound.
#[derive(Debug, Clone, Default)]
pub(crate) struct Floor {
    /// What was gained before the floor began.
    early: f64,
    rounds: u64,
    missed: f64,
    /// The lower account at the last change, and the sums of the learnt rounds since.
    before: f64,
    seconds: f64,
    gained: f64,
    /// Seconds of whole rounds since the last change.
    whole: Vec<f64>,
    /// L, and how many whole rounds it is from; 0 while nothing is proven.
    least: f64,
    least_of: usize,
    /// What the bet on a change has won.
    shorter: f64,
}

impl Floor {
    /// Whether the next round must be whole.
    pub(crate) fn is_reached(&self) -> bool {
        self.behind() > self.credit()
    }

    /// Full rounds that `auto` may be behind.
    fn credit(&self) -> f64 {
        CREDIT + ALPHA * self.rounds as f64
    }

    /// Full rounds that `auto` is behind, at most.
    fn behind(&self) -> f64 {
        match self.least > 0.0 {
            true => self.missed.min(self.before + self.seconds / self.least - self.gained),
            false => self.missed,
        }
    }

    pub(crate) fn closed(&mut self, outcome: Outcome) {
        let Outcome { share, seconds, whole } = outcome;
        if self.early < FROM {
            self.early += share;
            return;
        }
        if whole && self.is_reached() {
            self.show(seconds);
        }
        self.rounds += 1;
        if !whole || share < 1.0 {
            self.missed += (1.0 - share).max(0.0);
            self.seconds += seconds;
            self.gained += share;
        }
        // Before, no proof is needed.
        if self.missed > self.credit() && self.least_of < self.whole.len() {
            self.least_of = self.whole.len();
            self.least = least_mean(&self.whole);
        }
    }

    /// A whole round took this long.
    fn show(&mut self, seconds: f64) {
        let (bet, enough) = CHANGE;
        if self.least > 0.0 {
            self.shorter =
                self.shorter.max(1.0) * (1.0 + bet * (1.0 - seconds / self.least)).max(0.0);
        }
        if self.shorter > enough {
            let behind = self.behind();
            let Floor { early, rounds, .. } = *self;
            *self = Floor { early, rounds, missed: behind, before: behind, ..Floor::default() };
        }
        if self.whole.len() < MOST {
            self.whole.push(seconds);
        }
    }
}

/// The greatest mean against which the bets have won enough; 0 if there is none.
fn least_mean(shown: &[f64]) -> f64 {
    let has_won = |m: f64| {
        let logs = BETS.map(|(bet, share)| {
            let won: f64 = shown.iter().map(|x| (bet * (x / m - 1.0)).ln_1p()).sum();
            share.ln() + won
        });
        let most = logs.into_iter().fold(f64::NEG_INFINITY, f64::max);
        most + logs.map(|log| (log - most).exp()).iter().sum::<f64>().ln() >= -DOUBT.ln()
    };
    let (mut low, mut high) = (0.0, shown.iter().copied().fold(0.0, f64::max));
    for _ in 0..20 {
        let middle = f64::midpoint(low, high);
        *(if has_won(middle) { &mut low } else { &mut high }) = middle;
    }
    low
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

    use super::*;

    const RUNS: u64 = 100;

    fn begun() -> Floor {
        Floor { early: FROM, ..Floor::default() }
    }

    /// Runs of rounds that take `draw` seconds, 1 in the mean, if they are whole, as one in `audits` is. Learnt
    /// rounds gain a share of it all in a share of the time. Returns the share of runs that break the theorem, and
    /// the mean of what runs gain per second over what full sync gains.
    fn play(
        (share, took): (f64, f64),
        audits: u64,
        draw: fn(&mut ChaCha8Rng) -> f64,
    ) -> (f64, f64) {
        let (runs, rounds) = (RUNS, 2000_u64);
        let (mut broken, mut rates) = (0, 0.0);
        for run in 0..runs {
            let mut random = ChaCha8Rng::seed_from_u64(run);
            let mut floor = begun();
            let (mut gained, mut seconds) = (0.0, 0.0);
            // Full sync's luck, in all rounds and in whole ones.
            let mut luck = (0.0, 0.0);
            let mut is_broken = false;
            for round in 1..=rounds {
                let whole = floor.is_reached() || round.is_multiple_of(audits);
                let time = draw(&mut random);
                let (share, seconds_now) = if whole { (1.0, time) } else { (share, took * time) };
                floor.closed(Outcome { share, seconds: seconds_now, whole });
                (gained, seconds) = (gained + share, seconds + seconds_now);
                luck.0 += time - 1.0;
                luck.1 += if whole { time - 1.0 } else { 0.0 };
                let bound = CREDIT + 1.0 + ALPHA * round as f64 + luck.0.max(luck.1);
                is_broken |= seconds - gained > bound;
            }
            broken += u64::from(is_broken);
            rates += gained / seconds * (luck.0 / rounds as f64 + 1.0);
        }
        (broken as f64 / runs as f64, rates / runs as f64)
    }

    fn uniform(random: &mut ChaCha8Rng) -> f64 {
        0.5 + random.random::<f64>()
    }

    /// Tail exponent 1.5: the mean exists, and the variance does not.
    fn heavy(random: &mut ChaCha8Rng) -> f64 {
        (1.0 - random.random::<f64>()).powf(-1.0 / 1.5) / 3.0
    }

    #[test]
    fn the_floor_holds_where_cuts_are_worse_than_full_sync() {
        // Three standard deviations more than the theorem's share.
        let most = DOUBT + 3.0 * (DOUBT * (1.0 - DOUBT) / RUNS as f64).sqrt();
        for audits in [5, u64::MAX] {
            for learnt in [(0.3, 0.9), (0.8, 0.9), (0.94, 0.97)] {
                for draw in [uniform, heavy] {
                    let (broken, rate) = play(learnt, audits, draw);
                    assert!(broken <= most, "{learnt:?}, audits {audits}: {broken}");
                    assert!(rate > 0.95, "{learnt:?}, audits {audits}: {rate:.3} of full sync");
                }
            }
        }
    }

    #[test]
    fn cuts_that_gain_are_proven_to_gain_and_then_left_alone() {
        for (learnt, worth) in [((0.9, 0.4), 2.1), ((0.3, 0.1), 2.7), ((0.9, 0.75), 1.16)] {
            let (broken, rate) = play(learnt, u64::MAX, uniform);
            assert_eq!(broken, 0.0);
            assert!(rate > worth, "{learnt:?}: {rate:.3}");
        }
    }

    #[test]
    fn the_bound_is_below_the_mean_and_approaches_it() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let shown: Vec<f64> = (0..MOST).map(|_| uniform(&mut random)).collect();
        let bounds = [3, 10, 50, MOST].map(|count| least_mean(&shown[..count]));
        assert!(
            bounds.is_sorted() && bounds[0] > 0.2 && bounds[3] > 0.9 && bounds[3] < 1.0,
            "{bounds:?}"
        );
        assert_eq!(least_mean(&[]), 0.0);
    }

    #[test]
    fn a_cluster_that_becomes_faster_ends_the_bound_and_keeps_the_account() {
        let mut floor = begun();
        let whole = |seconds| Outcome { share: 1.0, seconds, whole: true };
        (0..20).for_each(|_| floor.closed(Outcome { share: 0.5, seconds: 9.0, whole: false }));
        (0..40).for_each(|_| floor.closed(whole(10.0)));
        let (least, behind) = (floor.least, floor.behind());
        assert!(least > 9.0 && behind < floor.missed, "{floor:?}");
        (0..60).for_each(|_| floor.closed(whole(4.0)));
        assert!(floor.least < 4.0, "{floor:?}");
        assert!(floor.missed >= behind && floor.missed <= 10.0, "{floor:?}");
    }
}
