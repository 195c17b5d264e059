//! How long what stragglers have finished is worth waiting for.
//!
//! At the cut every straggler answers at once: it pushes the micro-batches that it has finished, or
//! says that it has none; the one it is at is not waited for. How long answers take is learned. They
//! are worth it if what the stragglers have said to have finished is more than the run makes in the
//! meantime, λ times the usual wait; the grace itself is longer, for it ends when all who have
//! finished something have answered, and only one of those who does not answer (stopped, or cut off)
//! makes a round wait for its end. Who answers after longer than a round takes was stopped, and tells
//! nothing of the others.

use std::time::Duration;

use crate::{RoundView, Time};

/// Rounds that λ remembers, and answers that their delay does.
const MEMORY: f64 = 30.0;
/// Before any answer is known: this share of the round.
const GUESS: f64 = 0.1;
/// Usual deviations that an answer may be late.
const DEVIATIONS: f64 = 4.0;
/// Usual deviations beyond which an answer counts as if it came then: it must not spoil the grace for
/// all.
const FARTHEST: f64 = 8.0;
/// The shortest grace.
const LEAST: Duration = Duration::from_micros(100);

/// What a run has learned of its own pace.
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
    /// The grace, if one pays.
    pub(crate) fn worthwhile(&self, view: &RoundView<'_>) -> Duration {
        let share = |done: u32| f64::from(done.min(view.partial)) / f64::from(view.partial);
        let finished: f64 = view
            .outstanding()
            .map(|(_, work)| f64::from(work.samples) * share(work.finished(view.partial)))
            .sum();
        let elapsed = view.now.since(view.opened).as_secs_f64();
        let (delay, off) = self.delay.unwrap_or((0.0, GUESS * elapsed / DEVIATIONS));
        let arrived: f64 = view.arrivals.iter().map(|a| a.weight).sum();
        let rate = match self.seconds > 0.0 {
            true => self.weight / self.seconds,
            false => arrived / elapsed.max(1e-9),
        };
        match finished > rate * (delay + off) {
            true => Time::span(delay + DEVIATIONS * off).max(LEAST),
            false => Duration::ZERO,
        }
    }

    /// A straggler's finished part is here, so long after the cut.
    pub(crate) fn answered(&mut self, after: Duration) {
        let after = after.as_secs_f64();
        if self.rounds > 0.0 && after > self.seconds / self.rounds {
            return;
        }
        let (mean, off) = self.delay.unwrap_or((after, after));
        let after = after.min(mean + FARTHEST * off.max(LEAST.as_secs_f64()));
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
        // If all are that late, that is learned.
        (0..300).for_each(|_| grace.answered(ms(30)));
        assert!(grace.delay.expect("answers came").0 > 0.025);
    }
}
