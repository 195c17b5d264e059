//! The grace after a cut: how long a round waits for the finished micro-batches of stragglers.
//!
//! At the cut every straggler answers at once: it pushes the micro-batches that it has finished, or reports
//! that it has none. It abandons the micro-batch in progress. The run learns how long answers take. A grace
//! pays if the stragglers report more finished samples than the run processes during the usual delay of an
//! answer, at its throughput λ. The grace itself is longer than that delay: it ends early once all stragglers
//! with finished work have answered, so it runs to its end only if one of them is suspended or disconnected.
//! An answer that takes longer than a round comes from a suspended worker and is not learned from.

use std::time::Duration;

use crate::{RoundView, Time};

/// Rounds that λ averages over, and answers that the delay averages over.
const MEMORY: f64 = 30.0;
/// The grace before the first answer, as a share of the round so far.
const GUESS: f64 = 0.1;
/// How late an answer may be, in mean deviations.
const DEVIATIONS: f64 = 4.0;
/// Mean deviations at which a delay is clamped, so that one outlier does not lengthen every later grace.
const FARTHEST: f64 = 8.0;
/// The shortest grace, as a share of the round so far, and the least deviation, as a share of the delay.
const LEAST: f64 = 1e-3;
const LEAST_DEVIATION: f64 = 0.05;

/// The run's throughput, and the delay of stragglers' answers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Grace {
    weight: f64,
    seconds: f64,
    rounds: f64,
    /// The last close.
    closed: Option<Time>,
    /// From a cut to an answer, in seconds: mean and mean deviation.
    delay: Option<(f64, f64)>,
}

impl Grace {
    /// The grace, or zero if none pays.
    pub(crate) fn worthwhile(&self, view: &RoundView<'_>) -> Duration {
        let share = |work| f64::from(view.finished(work)) / f64::from(view.partial);
        let finished: f64 =
            view.outstanding().map(|(_, work)| f64::from(work.samples) * share(work)).sum();
        let elapsed = view.now.since(view.opened).as_secs_f64();
        let (delay, off) = self.delay.unwrap_or((0.0, GUESS * elapsed / DEVIATIONS));
        let arrived: f64 = view.arrivals.iter().map(|a| a.weight).sum();
        let rate = match self.seconds > 0.0 {
            true => self.weight / self.seconds,
            false => arrived / elapsed.max(1e-9),
        };
        match finished > rate * (delay + off) {
            true => Time::span((delay + DEVIATIONS * off).max(LEAST * elapsed)),
            false => Duration::ZERO,
        }
    }

    /// A straggler's finished part arrived this long after the cut.
    pub(crate) fn answered(&mut self, after: Duration) {
        let after = after.as_secs_f64();
        if self.rounds > 0.0 && after > self.seconds / self.rounds {
            return;
        }
        let (mean, off) = self.delay.unwrap_or((after, after));
        let after = after.min(mean + FARTHEST * off.max(LEAST_DEVIATION * mean));
        let step = 1.0 / MEMORY;
        let off = off + step * ((after - mean).abs() - off);
        self.delay = Some((mean + step * (after - mean), off));
    }

    /// A round closed with this weight.
    pub(crate) fn closed(&mut self, weight: f64, opened: Time, now: Time) {
        let keep = 1.0 - 1.0 / MEMORY;
        let began = self.closed.unwrap_or(opened);
        self.rounds = keep * self.rounds + 1.0;
        self.weight = keep * self.weight + weight;
        self.seconds = keep * self.seconds + now.since(began).as_secs_f64();
        self.closed = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_was_stopped_does_not_spoil_the_grace_of_others() {
        let mut grace = Grace::default();
        let ms = Duration::from_millis;
        for round in 1..=100 {
            grace.closed(100.0, Time::ZERO, Time::ZERO + ms(40 * round));
            grace.answered(ms(2));
        }
        let before = grace.delay.expect("answers came");
        grace.answered(ms(8000));
        assert_eq!(grace.delay, Some(before), "it was stopped");
        grace.answered(ms(30));
        let (mean, off) = grace.delay.expect("answers came");
        assert!(mean < 0.003 && off < 0.001, "{mean} {off}");
        // If all answers are that late, the delay adapts.
        (0..300).for_each(|_| grace.answered(ms(30)));
        assert!(grace.delay.expect("answers came").0 > 0.025);
    }
}
