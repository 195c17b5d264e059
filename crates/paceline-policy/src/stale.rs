//! `async` and `stale:S`: a round per arrival, without cuts (the baselines of Chen et al. 2016; the
//! bound is that of stale-synchronous training, Ho et al. 2013).
//!
//! The round machine is the same: contributions from older versions are admissible, and a round closes
//! with the first arrival and those that came during the last update. With a bound, it waits for
//! workers that would fall behind it.

use paceline_core::{CutReason, Decision, Policy, RoundView};

/// Closes at every arrival, unless a worker's version would become older than the bound.
#[derive(Debug, Clone, Copy)]
pub struct Stale {
    /// Most versions that a contribution may be behind; `None` for no bound.
    pub bound: Option<u64>,
}

impl Policy for Stale {
    fn name(&self) -> String {
        match self.bound {
            None => "async".to_owned(),
            Some(bound) => format!("stale:{bound}"),
        }
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        let arrived = view.arrivals.len();
        let too_old =
            |bound| view.outstanding().any(|(_, work)| work.base.0 + bound <= view.round.base().0);
        match arrived > 0 && !self.bound.is_some_and(too_old) {
            true => Decision::cut(CutReason::Count { wanted: arrived as u32 }),
            false => Decision::WAIT,
        }
    }

    fn admissible_lag(&self) -> u64 {
        self.bound.unwrap_or(u64::MAX)
    }
}
