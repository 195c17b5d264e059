//! Messages in transit.

use std::{collections::BTreeMap, ops::Range};

use paceline_core::{ContributionId, Time, Version, WorkerId};

use super::task::Task;

/// A message to or from a group of workers or shards.
pub(super) enum Message {
    /// Workers request parameters from the shards.
    Pull(Vec<(WorkerId, Task)>),
    /// The coordinator tells stragglers of a cut.
    Cut(Version, Vec<(WorkerId, ContributionId)>),
    /// Stragglers tell the coordinator that they have stopped.
    Aborted(Vec<(WorkerId, ContributionId)>),
    /// These shards have applied the update.
    Applied(Range<u32>),
}

/// Messages by arrival time; those of the same time in the order in which they were sent.
#[derive(Default)]
pub(super) struct Post {
    messages: BTreeMap<(Time, u64), Message>,
    sent: u64,
}

impl Post {
    pub(super) fn send(&mut self, message: Message, at: Time) {
        self.messages.insert((at, self.sent), message);
        self.sent += 1;
    }

    /// When the next message arrives.
    pub(super) fn next(&self) -> Option<Time> {
        self.messages.keys().next().map(|&(at, _)| at)
    }

    /// Removes and returns a message that has arrived by now.
    pub(super) fn arrived(&mut self, now: Time) -> Option<Message> {
        self.messages.first_entry().filter(|entry| entry.key().0 <= now).map(|entry| entry.remove())
    }
}
