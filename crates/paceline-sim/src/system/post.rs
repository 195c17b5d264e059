//! Messages under way.

use std::{collections::BTreeMap, ops::Range};

use paceline_core::{Time, Version, WorkerId};

use super::task::Task;

/// What is under way to many workers or from them.
pub(super) enum Message {
    /// Requests for parameters, at the shards.
    Pull(Vec<(WorkerId, Task)>),
    /// A cut, at its stragglers.
    Cut(Version, Vec<WorkerId>),
    /// That they have stopped, at the coordinator.
    Aborted(Version, Vec<WorkerId>),
    /// The update is applied on these shards.
    Applied(Range<u32>),
}

/// Messages by the moment they are there; those of one moment in the order they were sent in.
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

    /// When the next is there.
    pub(super) fn next(&self) -> Option<Time> {
        self.messages.keys().next().map(|&(at, _)| at)
    }

    /// One that is there by now.
    pub(super) fn arrived(&mut self, now: Time) -> Option<Message> {
        self.messages.first_entry().filter(|entry| entry.key().0 <= now).map(|entry| entry.remove())
    }
}
