//! What one worker is at.

use std::time::Duration;

use paceline_core::{Time, Version, Work};

use super::servers::Present;

/// The last work that a worker heard of, and how far it is with it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Task {
    /// The version it computes from; `None` before its first.
    pub(super) base: Option<Version>,
    /// Whether something still comes of it.
    pub(super) alive: bool,
    /// When the coordinator gave it.
    pub(super) given: Time,
    /// How long computing takes.
    pub(super) compute: Duration,
    /// Samples behind it.
    pub(super) samples: u32,
    /// The shards that its round has.
    pub(super) shards: Present,
    /// Shards of which parameters, or to which the gradient, have still to get.
    pub(super) left: u32,
    /// When it had its parameters.
    pub(super) pulled: Time,
}

impl Task {
    /// What is handed out at `given`.
    pub(super) fn new(
        work: &Work,
        base: Version,
        shards: Present,
        compute: Duration,
        given: Time,
    ) -> Task {
        Task {
            base: Some(base),
            alive: true,
            given,
            compute,
            samples: work.portion.len(),
            shards,
            left: 0,
            pulled: given,
        }
    }

    /// Nothing comes of work on `base`, whether or not the worker had heard of it.
    pub(super) fn given_up(base: Version) -> Task {
        Task { base: Some(base), ..Task::default() }
    }

    /// Whether it is work on that version, and something still comes of it.
    pub(super) fn is_at(&self, base: Version) -> bool {
        self.alive && self.base == Some(base)
    }

    /// Its time so far: pull, compute, push.
    pub(super) fn split(&self, arrived: Time) -> [Duration; 3] {
        let push = arrived.since(self.pulled + self.compute);
        [self.pulled.since(self.given), self.compute, push]
    }
}
