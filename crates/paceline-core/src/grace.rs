//! How long what stragglers have finished is worth waiting for.
//!
//! At the cut every straggler answers at once: it pushes the micro-batches that it has finished, or
//! says that it has none; the one it is at is not waited for. How long answers take is learned. They
//! are worth it if what the stragglers have said to have finished is more than the run makes in the
//! meantime, λ times the usual wait; the grace itself is longer, for it ends when all have answered,
//! and only somebody who does not answer (stopped, or cut off) makes a round wait for its end.

use std::time::Duration;

use crate::{RoundView, Time};

/// Rounds that λ remembers, and answers that their delay does.
const MEMORY: f64 = 30.0;
/// Before any answer is known: this share of the round.
const GUESS: f64 = 0.1;
/// Usual deviations that an answer may be late.
const DEVIATIONS: f64 = 4.0;
/// The shortest grace.
const LEAST: Duration = Duration::from_micros(100);

/// What a run has learned of its own pace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Grace {
    weight: f64,
    seconds: f64,
    /// The last close.
    closed: Option<Time>,
    /// From a cut to an answer, in seconds: mean and mean deviation.
    delay: Option<(f64, f64)>,
}

impl Grace {
    /// The grace, if one pays.
    pub(crate) fn worthwhile(&self, view: &RoundView<'_>) -> Duration {
        let share = |done: u32| f64::from(done.min(view.partial)) / f64::from(view.partial);
        let finished: f64 =
            view.outstanding().map(|(_, work)| f64::from(work.samples) * share(work.done)).sum();
        let elapsed = view.now.since(view.opened).as_secs_f64();
        let (delay, off) = self.delay.unwrap_or((0.0, GUESS * elapsed / DEVIATIONS));
        let arrived: f64 = view.arrivals.iter().map(|a| a.contribution.weight).sum();
        let rate = match self.seconds > 0.0 {
            true => self.weight / self.seconds,
            false => arrived / elapsed.max(1e-9),
        };
        match finished > rate * delay {
            true => Time::span(delay + DEVIATIONS * off).max(LEAST),
            false => Duration::ZERO,
        }
    }

    /// A straggler's finished part is here, so long after the cut.
    pub(crate) fn answered(&mut self, after: Duration) {
        let after = after.as_secs_f64();
        let (mean, off) = self.delay.unwrap_or((after, after));
        let step = 1.0 / MEMORY;
        let off = off + step * ((after - mean).abs() - off);
        self.delay = Some((mean + step * (after - mean), off));
    }

    /// A round closed with this weight.
    pub(crate) fn closed(&mut self, weight: f64, opened: Time, now: Time) {
        let keep = 1.0 - 1.0 / MEMORY;
        let began = self.closed.unwrap_or(opened);
        self.weight = keep * self.weight + weight;
        self.seconds = keep * self.seconds + now.since(began).as_secs_f64();
        self.closed = Some(now);
    }
}
