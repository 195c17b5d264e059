//! A worker's current work.

use std::time::Duration;

use paceline_core::{ContributionId, Time, Version, Work};

use super::servers::Present;

/// The last work that a worker heard of, and its progress.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Task {
    /// The version it computes from; `None` before the worker's first work.
    pub(super) base: Option<Version>,
    /// The contribution that comes of it.
    pub(super) id: ContributionId,
    /// Whether the work can still become a contribution.
    pub(super) alive: bool,
    /// When the coordinator handed it out.
    pub(super) given: Time,
    /// How long computing takes.
    pub(super) compute: Duration,
    /// Number of samples.
    pub(super) samples: u32,
    /// The shards of its round.
    pub(super) shards: Present,
    /// Transfers outstanding: shards still to pull from, or to push to.
    pub(super) left: u32,
    /// When the worker had its parameters.
    pub(super) pulled: Time,
}

impl Task {
    /// Work handed out at `given`.
    pub(super) fn new(
        work: &Work,
        base: Version,
        shards: Present,
        compute: Duration,
        given: Time,
    ) -> Task {
        Task {
            base: Some(base),
            id: work.id,
            alive: true,
            given,
            compute,
            samples: work.portion.len(),
            shards,
            left: 0,
            pulled: given,
        }
    }

    /// Abandoned work on `base`, whether or not the worker had heard of it.
    pub(super) fn given_up(base: Version) -> Task {
        Task { base: Some(base), ..Task::default() }
    }

    /// Whether it is work on `base` that can still become a contribution.
    pub(super) fn is_at(&self, base: Version) -> bool {
        self.alive && self.base == Some(base)
    }

    /// Its time until arrival, split into pull, compute and push.
    pub(super) fn split(&self, arrived: Time) -> [Duration; 3] {
        let push = arrived.since(self.pulled + self.compute);
        [self.pulled.since(self.given), self.compute, push]
    }
}
