//! A deep generative state-space model of the joint run-times of a cluster, with amortised inference;
//! the predictor of the policy `bdsgd`.
//!
//! **Generative model.** In round t the latent state is the cluster's factor c and a factor d of each
//! group of workers (a node, a switch), in units of the cluster's spread. A neural transition
//! (`nets.rs`) predicts the next value of each: a mixture of three logistics (it stays, it returns to
//! its usual value, it jumps), from its current value and a recurrent memory. A neural emission
//! predicts, for every worker, a mixture of three logistics of its *log* run-time (a core, a shoulder, a
//! stall) about its own level, c and d, from a recurrent memory of the worker: run-times are positive,
//! with power-law tails. Given c and d workers are independent; c and d correlate them. Groups are
//! found from the data ([`Grouping`]).
//!
//! **Inference.** An inference network gives the posterior of c, and given c that of every d, from the
//! recurrent memories' expectation and a summary of the round: from the most likely shift of the
//! round's residuals, the information behind it, and the expected shift, it computes how far to trust
//! the one against the other (`inference.rs`). Weights are shared over workers and groups, so workers
//! may join and leave, and n is arbitrary.
//!
//! **Learning.** Gradient steps on the evidence lower bound, over windows of 16 rounds ([`Fit`]), with
//! rounds cut at random so that the networks learn from censored rounds. A censored time counts by its
//! survival probability. Online ([`Tracker`]), levels, spreads and the factors' variability follow at
//! once; the weights follow by a few steps after every window.
//!
//! **Prediction.** [`Outlook`]: joint samples for the paper's rule; for stopping inside the round the
//! same distribution, conditioned on arrivals and silences.
//!
//! **Where it follows the paper** (Teng and Wood, Bayesian Distributed SGD): latent state with neural
//! transition and emission, amortised recurrent inference over a lag window, the evidence lower
//! bound, sorted joint posterior-predictive samples. **Where it departs**: one set of weights shared
//! over workers instead of dense layers from latent state to all n, so that a model survives a worker
//! that joins and scales to thousands; log run-times and heavy tails instead of Gaussians; censored
//! times by survival instead of draws (`impute` is the paper's method, for comparison); linear parts
//! stay linear (levels, spreads, a Kalman gain that the inference network corrects), so that a few
//! thousand weights suffice; groups are found by correlation, outside the evidence lower bound, and a
//! group stays until its members are found in another; weights adapt online.
//!
//! **Large clusters are sampled**: a pass of a fit uses at most 160 workers of a trace, adaptation 96,
//! and inside a round 12 members represent a group and 48 workers those without a group. Levels,
//! spreads and memories are kept for every worker.
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

pub use file::{FittedTrace, Model, ModelError, ModelManifest, hash};
pub use fit::{Fit, FitOptions, FitPass, Sequence};
pub use grouping::Grouping;
pub use outlook::Outlook;
pub use tracker::{Tracker, TrackerOptions};
pub use weights::{Tensor, Weights};

/// One round as observed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// The workers that took part, ascending.
    pub workers: Vec<u32>,
    /// The logarithm of each worker's run-time in seconds, or of its lower bound.
    pub log_times: Vec<f32>,
    /// Whether each is a run-time, not a lower bound.
    pub observed: Vec<bool>,
}

impl Seen {
    /// The round of every `stride`-th worker, at most `workers` of them, renumbered.
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
