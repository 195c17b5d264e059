//! A contribution: the work that a worker is given, and its states until it is used or dropped.
//!
//! The core owns the contribution from the moment it is handed out until its samples are used or
//! returned. Its bytes never pass through the core: they stay with the shards, under its id.
//!
//! ```text
//! Given ─► Computing ─► Announced ─► Staged ─► Accepted ─► used
//!   └──────────┴────────────┼───────────┘ (a round is open: no stop at Staged)
//!                           ├─► Late       its round closed first; its bytes are dropped
//!                           └─► Abandoned  its worker stopped or left
//! ```
//!
//! [`State::may_become`] is the law. A report that would break it is refused, so messages that cross on
//! the wire (an abort and a push, a discard and a staged report) have one outcome.

use std::{collections::BTreeSet, fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    Blocks, ContributionId, MachineError, Portion, RunTime, SampleRange, ShardId, Time, Version,
    WorkerId,
    event::{is_one, one},
};

/// Work handed to a worker, as it is told and logged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// The contribution that comes of it.
    #[serde(default)]
    pub id: ContributionId,
    /// The worker.
    pub worker: WorkerId,
    /// The samples.
    pub portion: Portion,
    /// Its samples were returned so often that the round must wait for them.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub waited_for: bool,
    /// The weight of each of its samples in an update.
    #[serde(skip_serializing_if = "is_one", default = "one")]
    pub worth: f64,
}

/// A range of samples, and how often it was handed out without being used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldRange {
    /// The samples.
    pub range: SampleRange,
    /// How often it was returned.
    pub returns: u32,
}

/// Samples for one worker, before they become a contribution.
#[derive(Debug, Clone, PartialEq)]
pub struct Handout {
    /// The worker.
    pub worker: WorkerId,
    /// The samples. Never empty.
    pub ranges: Vec<HeldRange>,
    /// The round must wait for them.
    pub waited_for: bool,
    /// The weight of each of its samples in an update.
    pub worth: f64,
    /// Whether its contribution may have any positive weight: the samples are the worker's own.
    pub any_weight: bool,
    /// The contribution that already holds the same samples. One of the two will count.
    pub twin: Option<ContributionId>,
}

impl Handout {
    /// A range that was not handed out before.
    pub fn new(worker: WorkerId, range: SampleRange) -> Handout {
        let ranges = vec![HeldRange { range, returns: 0 }];
        Handout { worker, ranges, waited_for: false, worth: 1.0, any_weight: false, twin: None }
    }

    pub(crate) fn samples(&self) -> u32 {
        self.ranges.iter().map(|held| held.range.len()).sum()
    }

    pub(crate) fn portion(&self) -> Portion {
        Portion::of(&self.ranges)
    }
}

/// A worker's report on the gradient sum that it has pushed, or is pushing, to the shards.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Announcement {
    /// The contribution.
    pub id: ContributionId,
    /// Samples behind the sum. The update divides by the sum of weights, so unequal batches are weighted
    /// correctly.
    pub weight: f64,
    /// Sum of the loss over those samples, if the worker knows it.
    pub loss: Option<f64>,
    /// Squared norm of the gradient sum, where the run asks for it.
    pub square: Option<f64>,
}

/// The states of a contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Handed out. Its worker has reported nothing yet.
    Given,
    /// Its worker has finished some of its micro-batches.
    Computing,
    /// Its worker has announced its weight and loss. Some shards may hold their part.
    Announced,
    /// Complete on the shards, waiting for the next round to open.
    Staged,
    /// In the sum of the open round.
    Accepted,
    /// Its round closed without it, or another holder of its samples was faster. Shards drop the parts that
    /// still arrive.
    Late,
    /// Its worker stopped or left.
    Abandoned,
}

impl State {
    /// The law: the states that may follow each state.
    pub fn may_become(self, next: State) -> bool {
        use State::{Abandoned, Accepted, Announced, Computing, Given, Late, Staged};
        match next {
            Given => false,
            Computing => matches!(self, Given | Computing),
            Announced => matches!(self, Given | Computing),
            Staged => self == Announced,
            Accepted => matches!(self, Announced | Staged),
            Late => matches!(self, Given | Computing | Announced),
            Abandoned => matches!(self, Given | Computing | Announced | Staged | Late),
        }
    }

    /// Whether it may still arrive in a round.
    pub fn may_arrive(self) -> bool {
        self.may_become(State::Late)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Given => "given",
            State::Computing => "computing",
            State::Announced => "announced",
            State::Staged => "staged",
            State::Accepted => "accepted",
            State::Late => "late",
            State::Abandoned => "abandoned",
        })
    }
}

/// One contribution.
#[derive(Debug, Clone, PartialEq)]
pub struct Contribution {
    /// Its id.
    pub id: ContributionId,
    /// The worker that computes it.
    pub worker: WorkerId,
    /// The version that it is computed from.
    pub base: Version,
    /// When the worker could begin: at the round's opening, or later where it joined later.
    pub started: Time,
    /// Samples that the worker was given.
    pub samples: u32,
    /// Micro-batches that the worker has reported finished.
    pub done: u32,
    /// When it reported the last of them.
    pub done_at: Time,
    /// The first progress report: micro-batches finished, and when.
    pub first: Option<(u32, Time)>,
    /// The weight of each of its samples in an update.
    pub worth: f64,
    /// Whether it may have any positive weight, not only that of its samples.
    any_weight: bool,
    /// Whether it was announced after a cut, of a round in which finished micro-batches count.
    pub(crate) past_cut: bool,
    state: State,
    /// The worker's announcement, and when it came.
    announced: Option<(Announcement, Time)>,
    /// The round must not be cut without it: its samples were returned too often.
    pub(crate) waited_for: bool,
    /// The round must not be cut without it: a shard that may miss no more pushes has not received its part.
    pub(crate) awaits_shard: bool,
    /// It has taken far longer than usual.
    pub(crate) overdue: bool,
    /// The shards of its round.
    pub(crate) shards: Arc<BTreeSet<ShardId>>,
    /// The shards that hold their part.
    pub(crate) staged: BTreeSet<ShardId>,
    /// The blocks that it is complete on, once it is accepted.
    pub(crate) blocks: Blocks,
    /// The samples that it holds. Empty once they are used or returned.
    pub(crate) ranges: Vec<HeldRange>,
    /// The other contribution with the same samples.
    pub(crate) twin: Option<ContributionId>,
    /// When its round was cut, if the round closed without it.
    pub(crate) cut: Option<Time>,
    /// The weight of each of its samples in its round, once it is accepted.
    pub(crate) counts: f64,
    /// Whether it was accepted into a round after its own.
    pub(crate) folded: bool,
}

impl Contribution {
    pub(crate) fn new(
        id: ContributionId,
        handout: Handout,
        base: Version,
        shards: Arc<BTreeSet<ShardId>>,
        now: Time,
    ) -> Contribution {
        Contribution {
            id,
            worker: handout.worker,
            base,
            started: now,
            samples: handout.samples(),
            done: 0,
            done_at: now,
            first: None,
            worth: handout.worth,
            any_weight: handout.any_weight,
            past_cut: false,
            state: State::Given,
            announced: None,
            waited_for: handout.waited_for,
            awaits_shard: false,
            overdue: false,
            shards,
            staged: BTreeSet::new(),
            blocks: Blocks::All,
            ranges: handout.ranges,
            twin: handout.twin,
            cut: None,
            counts: handout.worth,
            folded: false,
        }
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Its worker's announcement, if there is one yet.
    pub fn announcement(&self) -> Option<&Announcement> {
        self.announced.as_ref().map(|(announcement, _)| announcement)
    }

    /// When its worker announced it.
    pub fn announced_at(&self) -> Option<Time> {
        self.announced.map(|(_, at)| at)
    }

    /// Samples behind it. Zero before it is announced.
    pub fn weight(&self) -> f64 {
        self.announcement().map_or(0.0, |announcement| announcement.weight)
    }

    /// Whether it covers only a part of its samples. Where the weight does not tell, every contribution that
    /// may be a part counts as one.
    pub(crate) fn is_partial(&self) -> bool {
        match self.any_weight {
            true => self.past_cut,
            false => self.weight() < f64::from(self.samples),
        }
    }

    /// How many of `parts` micro-batches were announced. None before the announcement.
    pub(crate) fn pushed(&self, parts: u32) -> u32 {
        let share = |a: &Announcement| a.weight / f64::from(self.samples.max(1));
        self.announcement().map_or(0, |announcement| {
            ((share(announcement) * f64::from(parts)).ceil() as u32).clamp(1, parts)
        })
    }

    pub(crate) fn become_state(&mut self, next: State) -> Result<(), MachineError> {
        if !self.state.may_become(next) {
            let &mut Contribution { id, worker, state: from, .. } = self;
            return Err(MachineError::Transition { worker, id, from, to: next });
        }
        self.state = next;
        Ok(())
    }

    /// The worker announces what it pushes. The announcement of a late contribution is recorded and changes
    /// nothing.
    pub(crate) fn announce(
        &mut self,
        announcement: Announcement,
        now: Time,
    ) -> Result<(), MachineError> {
        let &mut Contribution { id, worker, samples, .. } = self;
        let Announcement { weight, loss, square, .. } = announcement;
        let is_known = self.any_weight || weight <= f64::from(samples);
        if !(weight > 0.0 && weight.is_finite() && is_known) {
            return Err(MachineError::BadWeight { worker, weight, samples });
        }
        if let Some(loss) = loss.filter(|loss| !loss.is_finite()) {
            return Err(MachineError::BadLoss { worker, loss });
        }
        if let Some(square) = square.filter(|square| !(*square >= 0.0 && square.is_finite())) {
            return Err(MachineError::BadSquare { worker, square });
        }
        if self.announced.is_some() {
            return Err(MachineError::AnnouncedTwice { worker, id });
        }
        if self.state != State::Late {
            self.become_state(State::Announced)?;
        }
        self.announced = Some((announcement, now));
        Ok(())
    }

    /// Whether it is announced and every shard of its round holds its part.
    pub(crate) fn is_outstanding(&self, oldest: Version, round: Version) -> bool {
        let is_given_up = self.overdue && self.base < round;
        self.base >= oldest && self.state.may_arrive() && !is_given_up
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.announced.is_some() && self.shards.is_subset(&self.staged)
    }

    /// How long it has taken by `now`. A lower bound if it covers only a part of its samples.
    pub(crate) fn run_time(&self, now: Time) -> RunTime {
        let elapsed = now.since(self.started);
        match self.is_partial() {
            true => RunTime::Censored { at_least: elapsed },
            false => RunTime::Observed(elapsed),
        }
    }

    /// Keeps the first `samples` of its ranges, and returns the rest.
    pub(crate) fn keep_first(&mut self, samples: u32) -> Vec<HeldRange> {
        let mut left = samples.max(1);
        let mut rest = Vec::new();
        for held in &mut self.ranges {
            let HeldRange { range, returns } = *held;
            held.range.end = range.end.min(range.start.saturating_add(left));
            left -= held.range.len();
            if held.range.end < range.end {
                let range = SampleRange { start: held.range.end, ..range };
                rest.push(HeldRange { range, returns });
            }
        }
        self.ranges.retain(|held| held.range.len() > 0);
        rest
    }
}

/// A contribution accepted into the open round, as policies see it.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    /// The worker.
    pub worker: WorkerId,
    /// Samples behind it.
    pub weight: f64,
    /// When it was complete on the shards.
    pub at: Time,
    /// How long it took; censored if only a part of the work was salvaged.
    pub run_time: RunTime,
    /// The share of its work that arrived. More than 1 where a stream's contribution weighs more than a nominal
    /// portion.
    pub share: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transitions_that_are_allowed() {
        use State::*;
        let all = [Given, Computing, Announced, Staged, Accepted, Late, Abandoned];
        let table = [
            (Given, vec![Computing, Announced, Late, Abandoned]),
            (Computing, vec![Computing, Announced, Late, Abandoned]),
            (Announced, vec![Staged, Accepted, Late, Abandoned]),
            (Staged, vec![Accepted, Abandoned]),
            (Accepted, vec![]),
            (Late, vec![Abandoned]),
            (Abandoned, vec![]),
        ];
        for (from, expected) in table {
            let to: Vec<State> = all.into_iter().filter(|&to| from.may_become(to)).collect();
            assert_eq!(to, expected, "from {from}");
        }
    }

    #[test]
    fn of_a_salvaged_contribution_the_first_samples_stay_and_the_rest_goes() {
        let range = |start, end| SampleRange { epoch: 0, start, end };
        let held = |start, end, returns| HeldRange { range: range(start, end), returns };
        let ranges = vec![held(0, 4, 2), held(10, 16, 0)];
        let handout = Handout { ranges, ..Handout::new(WorkerId(0), range(0, 1)) };
        let now = Time::ZERO;
        let (id, base) = (ContributionId(0), Version(0));
        let mut contribution = Contribution::new(id, handout, base, Arc::default(), now);
        assert_eq!(contribution.keep_first(6), [held(12, 16, 0)]);
        assert_eq!(contribution.ranges, [held(0, 4, 2), held(10, 12, 0)]);
        assert_eq!(contribution.keep_first(3), [held(3, 4, 2), held(10, 12, 0)]);
        assert_eq!(contribution.ranges, [held(0, 3, 2)]);
    }
}
