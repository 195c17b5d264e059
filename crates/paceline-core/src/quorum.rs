//! The watch over the number of live workers: whether a round may open, and how long the run may stay below
//! the quorum.

use std::time::Duration;

use crate::{RoundConfig, StopReason, Time};

/// Watches the number of live workers.
#[derive(Debug)]
pub(crate) struct QuorumWatch {
    quorum: usize,
    grace: Duration,
    /// The workers that the first round waits for, and until when.
    expected: usize,
    join_grace: Duration,
    /// Whether the first round has opened.
    begun: bool,
    short_since: Option<Time>,
}

impl QuorumWatch {
    /// For a run that has no workers yet, at time zero.
    pub(crate) fn new(config: &RoundConfig) -> Self {
        QuorumWatch {
            quorum: config.quorum.max(1),
            grace: config.quorum_grace,
            expected: config.expected,
            join_grace: config.join_grace,
            begun: false,
            short_since: Some(Time::ZERO),
        }
    }

    /// A round opens.
    pub(crate) fn opened(&mut self) {
        self.begun = true;
    }

    /// Whether `live` workers are enough to open a round.
    pub(crate) fn is_enough(&self, live: usize, now: Time) -> bool {
        let begun = self.begun || live >= self.expected || now >= self.join_deadline();
        live >= self.quorum && begun
    }

    /// There are `live` workers now.
    pub(crate) fn observe(&mut self, live: usize, now: Time) {
        let short = live < self.quorum;
        self.short_since = short.then(|| self.short_since.unwrap_or(now));
    }

    /// The reason to stop, once the run has been below the quorum for longer than the grace.
    pub(crate) fn lost(&self, live: usize, now: Time) -> Option<StopReason> {
        let lost = self.deadline().is_some_and(|deadline| now >= deadline);
        lost.then(|| StopReason::QuorumLost {
            live: live as u32,
            quorum: self.quorum as u32,
            grace: self.grace(),
        })
    }

    /// The next moment at which the first round may open, or the run must stop, even if nothing happens.
    pub(crate) fn next_wake(&self, live: usize) -> Option<Time> {
        let join = (!self.begun && live > 0).then(|| self.join_deadline());
        [join, self.deadline()].into_iter().flatten().min()
    }

    fn join_deadline(&self) -> Time {
        Time::ZERO + self.join_grace
    }

    fn deadline(&self) -> Option<Time> {
        self.short_since.map(|since| since + self.grace())
    }

    fn grace(&self) -> Duration {
        if self.begun { self.grace } else { self.join_grace }
    }
}
