//! A deep generative state-space model of the joint run-times of a cluster, with amortised inference:
//! what the policy `bdsgd` predicts with.
//!
//! **Generative model.** In round t the latent state is the cluster's factor c and a factor d of each
//! group of workers (a node, a switch), in units of the cluster's spread. A neural transition
//! (`nets.rs`) says where each goes next: a mixture of three logistics (it stays, it returns to a place
//! of its own, it jumps), from where it is and a recurrent memory of where it was. A neural emission
//! says, for every worker, a mixture of three logistics of its *log* run-time (a core, a shoulder, a
//! stall) about its own level, c and d, from a recurrent memory of the worker: run-times are positive,
//! and tails are those of a power law. Given c and d workers are independent; c and d are what
//! correlates them. Groups are found from the data ([`Grouping`]).
//!
//! **Inference.** An inference network gives the posterior of c, and given c that of every d, from the
//! recurrent memories' expectation and a summary of the round: it is told the most likely shift of the
//! round's residuals, the information behind it, and what was expected, and says how far to trust the
//! one against the other (`inference.rs`). Weights are shared over workers and groups, so workers may
//! come and go and n may be anything.
//!
//! **Learning.** Gradient steps on the evidence lower bound, over windows of 16 rounds ([`Fit`]), with
//! rounds cut at random so that the networks know what censoring does. A censored time counts by its
//! survival probability. While it runs ([`Tracker`]), levels, spreads and how lively the factors are
//! follow at once; the weights follow by a few steps after every window.
//!
//! **Prediction.** [`Outlook`]: joint samples for the paper's rule; for stopping inside the round the
//! same distribution weighed by who has arrived and who has not.
//!
//! **Where it follows the paper** (Teng and Wood, Bayesian Distributed SGD): latent state with neural
//! transition and emission, amortised recurrent inference over a lag window, the evidence lower
//! bound, sorted joint posterior-predictive samples. **Where it departs**: one set of weights shared
//! over workers instead of dense layers from latent state to all n, so that a model survives a worker
//! that joins and scales to thousands; log run-times and heavy tails instead of Gaussians; censored
//! times by survival instead of draws (`impute` is the paper's way, for comparison); what is linear is
//! left linear (levels, spreads, a Kalman gain that the inference network corrects), so that a few
//! thousand weights do; who belongs to which group is found by correlation, outside the evidence lower
//! bound, and a group stays until its members are found in another; adaptation while it runs.
//!
//! **Among many workers some stand for all**: a pass of a fit looks at no more than 160 workers of a
//! trace, adaptation at 96, and inside a round a group is judged by 12 of its members and those without
//! one by 48. Levels, spreads and memories are every worker's own.
//!
//! Since weights are shared and units divided out, a model fitted on n workers in one unit serves any
//! number in any other: the manifest states both, and a difference is no error.

mod factor;
mod file;
mod fit;
mod grouping;
mod inference;
mod kernel;
mod math;
mod mixture;
mod nets;
mod outlook;
mod shift;
mod standing;
mod state;
mod tape;
mod tracker;
mod weights;

pub use file::{Manifest, Model, ModelError, Source, hash};
pub use fit::{Fit, FitOptions, Pass, Sequence};
pub use grouping::Grouping;
pub use outlook::Outlook;
pub use tracker::{Tracker, TrackerOptions};
pub use weights::{Tensor, Weights};

/// One round as it was seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// Who took part, ascending.
    pub workers: Vec<u32>,
    /// The logarithm of each one's run-time in seconds, or of what is known to be a lower bound.
    pub log_times: Vec<f32>,
    /// Whether it is the run-time itself.
    pub observed: Vec<bool>,
}

impl Seen {
    /// Of every `stride`-th worker below the `workers`-th of these, numbered anew.
    fn every(&self, stride: u32, workers: usize) -> Seen {
        let mut picked = Seen::default();
        for (i, &worker) in self.workers.iter().enumerate() {
            let number = worker / stride;
            if worker.is_multiple_of(stride) && (number as usize) < workers {
                picked.workers.push(number);
                picked.log_times.push(self.log_times[i]);
                picked.observed.push(self.observed[i]);
            }
        }
        picked
    }
}
