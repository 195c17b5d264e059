//! Predictors: what is known of every worker's run-time before and during a round.

mod bdsgd;
mod elfving;
mod empirical;
mod filter;
mod normal;
mod residuals;
mod scale;

pub use bdsgd::Bdsgd;
pub use elfving::Elfving;
pub use empirical::Empirical;
pub use filter::Filter;
use paceline_core::{Round, RunTime, Version, WorkerId};

use crate::scene::Scene;

/// Predicts run-times. One file (or folder) per predictor.
///
/// Laws:
/// - Every run-time and every silence, in and out, is that of a whole portion. Loads stay outside:
///   [`Scene`], [`ClosedRound`](crate::closed::ClosedRound) and the policies convert.
/// - [`Predictor::survival`] falls from 1 towards 0 as time grows.
/// - Censored run-times count by their survival probability, never as if they had ended. So do those of
///   salvaged workers.
pub trait Predictor: Send {
    /// As the user would write it.
    fn name(&self) -> &'static str;

    /// Whether it has something to say of the very first round.
    fn knows_beginnings(&self) -> bool {
        false
    }

    /// Takes in what arrivals and silence so far say of the open round as a whole.
    fn look(&mut self, scene: &Scene);

    /// Goes back to what is expected of a round of which nothing has been seen.
    fn expect(&mut self) {}

    /// Another reading of the same signs, if there is one: what silence says of a round is weaker
    /// evidence than a likelihood makes of it, so a cut must be right under both.
    fn doubt(&mut self) -> bool {
        false
    }

    /// The probability that `worker` takes longer than e to the `log_elapsed` seconds in the round
    /// last looked at. Not conditioned on how long it has been silent; the stopping rule does that.
    fn survival(&self, worker: WorkerId, log_elapsed: f64) -> f64;

    /// The same for several moments at once.
    fn survivals(&self, worker: WorkerId, log_elapsed: &[f64], into: &mut [f64]) {
        let moments = into.iter_mut().zip(log_elapsed);
        moments.for_each(|(into, &moment)| *into = self.survival(worker, moment));
    }

    /// Joint draws of the log run-times of these workers in a round of which nothing has been seen,
    /// one vector a draw; `None` where workers are taken one by one.
    fn draws(&self, _workers: &[WorkerId], _count: usize) -> Option<Vec<Vec<f32>>> {
        None
    }

    /// How long a worker usually takes, in seconds, where that is known for each.
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

/// Shows a predictor a round in which nobody later than `cut` seconds was seen.
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
