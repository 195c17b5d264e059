//! Predictors: distributions of every worker's run-time before and during a round.

mod bdsgd;
mod blend;
mod elfving;
mod empirical;
mod filter;
mod normal;
mod residuals;
mod scale;

pub use bdsgd::Bdsgd;
pub use blend::Blend;
pub use elfving::Elfving;
pub use empirical::Empirical;
pub use filter::Filter;
use paceline_core::{Round, RunTime, Version, WorkerId};

use crate::scene::Scene;

/// Predicts run-times. One file (or folder) per predictor.
///
/// Laws:
/// - Every run-time and every silence, in and out, is that of a whole portion. Loads are not seen:
///   [`Scene`], `ClosedRound` and the policies convert.
/// - [`Predictor::survival`] falls from 1 towards 0 as time grows.
/// - Censored run-times count by their survival probability, never as if they had ended. So do those of
///   salvaged workers.
pub trait Predictor: Send {
    /// The name as users write it.
    fn name(&self) -> &'static str;

    /// Whether it can predict the very first round.
    fn knows_beginnings(&self) -> bool {
        false
    }

    /// Updates its view of the open round by the arrivals and silences so far.
    fn look(&mut self, scene: &Scene);

    /// Resets to the expectation for a round of which nothing has been seen.
    fn expect(&mut self) {}

    /// Switches to an alternative view of the same evidence, if there is one: silence is weaker
    /// evidence than its likelihood suggests, so a cut must hold under both views.
    fn doubt(&mut self) -> bool {
        false
    }

    /// The probability that `worker` takes longer than e to the `log_elapsed` seconds in the round
    /// last looked at. Not conditioned on its silence so far; the stopping rule does that.
    fn survival(&self, worker: WorkerId, log_elapsed: f64) -> f64;

    /// [`survival`](Self::survival) at several moments.
    fn survivals(&self, worker: WorkerId, log_elapsed: &[f64], into: &mut [f64]) {
        let moments = into.iter_mut().zip(log_elapsed);
        moments.for_each(|(into, &moment)| *into = self.survival(worker, moment));
    }

    /// Joint draws of the log run-times of these workers in a round of which nothing has been seen,
    /// one vector per draw; `None` if workers are predicted one by one.
    fn draws(&self, _workers: &[WorkerId], _count: usize) -> Option<Vec<Vec<f32>>> {
        None
    }

    /// A worker's usual run-time in seconds, if the predictor knows workers individually.
    fn typical(&self, _worker: WorkerId) -> Option<f64> {
        None
    }

    /// A round closed with these run-times, in worker order.
    fn learn(&mut self, round: Round, run_times: &[(WorkerId, RunTime)]);

    /// A censored run-time became known.
    fn late(&mut self, _worker: WorkerId, _base: Version, _run_time: RunTime) {}
}

pub(crate) fn log_seconds(run_time: RunTime) -> f64 {
    run_time.bound().as_secs_f64().max(1e-9).ln()
}

/// Shows a predictor a round that was cut after `cut` seconds.
#[cfg(test)]
fn show(predictor: &mut dyn Predictor, round: u64, times: &[f64], cut: f64) {
    use std::time::Duration;

    let run_times: Vec<(WorkerId, RunTime)> = times
        .iter()
        .enumerate()
        .map(|(worker, &x)| {
            let time = match x <= cut {
                true => RunTime::Observed(Duration::from_secs_f64(x)),
                false => RunTime::Censored { at_least: Duration::from_secs_f64(cut) },
            };
            (WorkerId(worker as u32), time)
        })
        .collect();
    predictor.learn(Round(round), &run_times);
}
