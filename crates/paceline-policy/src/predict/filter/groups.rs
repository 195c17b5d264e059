//! Groups of workers that speed up and slow down together, each with a factor of its own.

use paceline_model::Grouping;

use super::common::{CommonFactor, Sight};
use crate::predict::residuals::ResidualDistribution;

/// Most members that a group's factor is estimated from; of more, every k-th.
const SAMPLE: usize = 16;
/// The factor of one group.
#[derive(Debug, Clone, Default)]
struct GroupFactor {
    common: CommonFactor,
    /// Its factor in the round last looked at.
    factor: f64,
}

/// The factors of all groups.
#[derive(Debug, Clone, Default)]
pub(super) struct GroupFactors {
    grouping: Grouping,
    /// One per group of the grouping.
    groups: Vec<GroupFactor>,
}

impl GroupFactors {
    /// The factor of a worker's group; 0 if it is in none.
    pub(super) fn factor(&self, worker: usize) -> f64 {
        self.grouping.group_of(worker).map_or(0.0, |group| self.groups[group].factor)
    }

    /// Resets every factor to its expectation for a new round.
    pub(super) fn expect(&mut self) {
        for group in &mut self.groups {
            group.factor = group.common.expected();
        }
    }

    /// Whether there are any.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Discards conclusions from silence: no group is slower than expected. Returns whether that
    /// changed anything.
    pub(super) fn expect_no_worse(&mut self) -> bool {
        let mut changed = false;
        for group in &mut self.groups {
            let expected = group.common.expected();
            if group.factor > expected {
                group.factor = expected;
                changed = true;
            }
        }
        changed
    }

    /// Fits every group's factor to its members' sights: residuals less the common factor.
    /// `sight_of` is `None` for absent workers.
    pub(super) fn fit(
        &mut self,
        reference: &ResidualDistribution,
        sight_of: impl Fn(usize) -> Option<Sight>,
        learn: bool,
    ) {
        let mut sights = Vec::new();
        for (group, members) in self.groups.iter_mut().zip(self.grouping.groups()) {
            sights.clear();
            let stride = members.len().div_ceil(SAMPLE).max(1);
            let sample = members.iter().step_by(stride);
            sights.extend(sample.filter_map(|&worker| sight_of(worker)));
            if sights.is_empty() {
                group.factor = group.common.expected();
                continue;
            }
            group.factor = group.common.fit(&sights, reference);
            if learn {
                group.common.learn(group.factor);
            }
        }
    }

    /// Learns a round's residuals (less common factor and level, in spreads).
    pub(super) fn learn(&mut self, residuals: impl Iterator<Item = (usize, f64)>) {
        if let Some(before) = self.grouping.learn(residuals) {
            let old = std::mem::take(&mut self.groups);
            let was = |group: Option<usize>| group.map(|group| old[group].clone());
            self.groups = before.into_iter().map(|group| was(group).unwrap_or_default()).collect();
        }
    }

    /// The members of each group.
    #[cfg(test)]
    pub(super) fn members(&self) -> Vec<Vec<usize>> {
        self.grouping.groups().to_vec()
    }
}
