//! The learning rates that workers send with their contributions.

use std::collections::BTreeMap;

use paceline_core::{ContributionId, Version, WorkerId};
use thiserror::Error;

/// The learning rates of a contribution, one for each parameter group.
#[derive(Debug, Clone)]
struct Given {
    worker: WorkerId,
    /// The version that the contribution was computed from.
    base: Version,
    rates: Vec<f32>,
}

/// The learning rates of announced contributions, and those of the open round.
///
/// A round has the rates of the first contribution that it accepted among those computed from the newest
/// version: a late contribution carries the rates of its own round.
#[derive(Debug, Default)]
pub(super) struct Rates {
    announced: BTreeMap<(WorkerId, ContributionId), Given>,
    open: Option<Given>,
    /// Whether a conflict was reported.
    warned: bool,
}

/// Two workers gave different learning rates for the same round.
#[derive(Debug, Error, PartialEq)]
#[error(
    "workers disagree on the learning rates of the round on {base}: {first} gives {used:?}, {second} gives \
     {ignored:?}; rounds use the rates of the contribution that is accepted first"
)]
pub(super) struct RateConflict {
    base: Version,
    first: WorkerId,
    used: Vec<f32>,
    second: WorkerId,
    ignored: Vec<f32>,
}

impl Rates {
    /// A worker announced a contribution computed from `base`, with these rates or none.
    pub(super) fn announce(
        &mut self,
        worker: WorkerId,
        id: ContributionId,
        base: Version,
        rates: Vec<f32>,
    ) {
        if !rates.is_empty() {
            self.announced.insert((worker, id), Given { worker, base, rates });
        }
    }

    /// A contribution counts in the open round. Returns the first conflict of the run.
    pub(super) fn accept(&mut self, worker: WorkerId, id: ContributionId) -> Option<RateConflict> {
        let given = self.announced.remove(&(worker, id))?;
        let Some(open) = self.open.as_ref().filter(|open| open.base >= given.base) else {
            self.open = Some(given);
            return None;
        };
        let conflicts = open.base == given.base && open.rates != given.rates;
        if !conflicts || std::mem::replace(&mut self.warned, true) {
            return None;
        }
        Some(RateConflict {
            base: open.base,
            first: open.worker,
            used: open.rates.clone(),
            second: worker,
            ignored: given.rates,
        })
    }

    /// The round closes. Takes its rates, and forgets contributions that are not `known` any more.
    pub(super) fn close(
        &mut self,
        known: impl Fn(WorkerId, ContributionId) -> bool,
    ) -> Option<Vec<f32>> {
        self.announced.retain(|&(worker, id), _| known(worker, id));
        self.open.take().map(|given| given.rates)
    }
}

/// Checks the rates in a worker's report: none, or one for each of the `groups`.
pub(super) fn check_rates(rates: &[f32], groups: usize) -> Result<(), String> {
    if !rates.is_empty() && rates.len() != groups {
        let found = rates.len();
        return Err(format!("it gave {found} learning rates for {groups} parameter groups"));
    }
    match rates.iter().position(|&rate| !(rate >= 0.0 && rate.is_finite())) {
        Some(group) => {
            let rate = rates[group];
            Err(format!("its learning rate {rate} for parameter group {group} is not a rate"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Announces and accepts a contribution of `worker` from version `base`.
    fn arrive(rates: &mut Rates, worker: u32, base: u64, given: &[f32]) -> Option<RateConflict> {
        let (worker, id) = (WorkerId(worker), ContributionId(base));
        rates.announce(worker, id, Version(base), given.to_vec());
        rates.accept(worker, id)
    }

    #[test]
    fn a_round_has_the_rates_of_the_first_that_it_accepted() {
        let mut rates = Rates::default();
        assert_eq!(arrive(&mut rates, 4, 7, &[]), None);
        assert_eq!(arrive(&mut rates, 2, 7, &[0.5, 0.1]), None);
        assert_eq!(arrive(&mut rates, 1, 7, &[0.5, 0.1]), None);
        let conflict = arrive(&mut rates, 0, 7, &[0.5, 0.2]).unwrap();
        assert_eq!(
            conflict.to_string(),
            "workers disagree on the learning rates of the round on v7: w2 gives [0.5, 0.1], w0 gives \
             [0.5, 0.2]; rounds use the rates of the contribution that is accepted first"
        );
        assert_eq!(arrive(&mut rates, 3, 7, &[0.9, 0.9]), None, "once is enough");
        assert_eq!(rates.close(|_, _| true), Some(vec![0.5, 0.1]));
        assert_eq!(rates.close(|_, _| true), None, "the next round has none yet");
    }

    #[test]
    fn a_late_contribution_does_not_bring_back_old_rates() {
        let mut rates = Rates::default();
        assert_eq!(arrive(&mut rates, 0, 6, &[0.6]), None);
        assert_eq!(arrive(&mut rates, 1, 7, &[0.7]), None);
        assert_eq!(arrive(&mut rates, 2, 6, &[0.6]), None);
        assert_eq!(rates.close(|_, _| true), Some(vec![0.7]));
    }

    #[test]
    fn forgotten_contributions_leave_nothing_behind() {
        let mut rates = Rates::default();
        let id = ContributionId(3);
        rates.announce(WorkerId(0), id, Version(3), vec![0.1]);
        rates.announce(WorkerId(1), id, Version(3), vec![0.1]);
        assert_eq!(rates.close(|worker, _| worker == WorkerId(1)), None);
        assert_eq!(rates.announced.len(), 1);
    }

    #[test]
    fn rates_are_checked() {
        assert_eq!(check_rates(&[], 2), Ok(()));
        assert_eq!(check_rates(&[0.0, 0.1], 2), Ok(()));
        let error = check_rates(&[0.1], 2).unwrap_err();
        assert_eq!(error, "it gave 1 learning rates for 2 parameter groups");
        for wrong in [f32::NAN, f32::INFINITY, -0.1] {
            let error = check_rates(&[0.1, wrong], 2).unwrap_err();
            assert!(error.ends_with("for parameter group 1 is not a rate"), "{error}");
        }
    }
}
