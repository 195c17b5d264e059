//! The data ledger: which samples are whose, and that none is lost or used twice.
//!
//! It speaks of positions in an epoch's order ([`crate::EpochOrder`]). A range belongs to exactly
//! one holder until it is used, given back, or its holder is dead. A range that was given back
//! goes out again before fresh ones, to somebody else if there is a choice; one given back
//! `patience` times is waited for, so that no sample is starved by being slow.
//!
//! Where data lives on workers ([`Ledger::with_homes`]) a range goes to whoever is at its home only,
//! so a home that is cut is heard less. Patience bounds how much less, and the ledger can weigh what
//! comes of it up by as much ([`Ledger::reweighing`]).
//!
//! A sample is used once its round has closed with it: its gradient is in the update of every shard
//! that the round has. Where shards may be left behind ([`crate::Shards`]), or where contributions count
//! before they are whole ([`crate::Coordinator::with_partial_pushes`]), some blocks never see it. It is
//! used all the same, once, and not handed out again for their sake: each block's update is a mean over
//! the samples that reached it, and the log says which those were (`Closed`). So it is where a gradient
//! in shared memory turns out not finite in part, which ends its worker. A contribution that
//! reached too few blocks for its round is dropped whole, where it came as well, and its samples go
//! out again.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    Portion, Version, WorkerId,
    event::{is_one, one},
    homes::Homes,
};

/// Positions `start..end` in the order of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SampleRange {
    /// The epoch, from 0.
    pub epoch: u32,
    /// First position.
    pub start: u32,
    /// One past the last position.
    pub end: u32,
}

impl SampleRange {
    /// How many samples.
    #[expect(clippy::len_without_is_empty, reason = "a range in the ledger is never empty")]
    pub fn len(&self) -> u32 {
        self.end - self.start
    }
}

impl fmt::Display for SampleRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {} [{}, {})", self.epoch, self.start, self.end)
    }
}

/// Samples handed to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Whose.
    pub worker: WorkerId,
    /// Which samples.
    pub portion: Portion,
    /// They were given back so often that their round must wait for them.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub waited_for: bool,
    /// What a sample of it counts for in an update.
    #[serde(skip_serializing_if = "is_one", default = "one")]
    pub worth: f64,
}

/// What became of the samples so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SampleCounts {
    /// In an update.
    pub used: u64,
    /// Computed in full and then not used.
    pub dropped: u64,
    /// Given back and handed out again.
    pub requeued: u64,
    /// Of those used: what stragglers had finished when they were cut.
    #[serde(default)]
    pub salvaged: u64,
}

/// The books at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerReport {
    /// Epochs of which every sample was used exactly once.
    pub epochs: u32,
    /// Whether the books balance: every sample of every begun epoch is used once, held by one
    /// worker, or waiting; none twice, none lost.
    pub balanced: bool,
    /// Ranges of begun epochs that are not used yet.
    pub unused: Vec<SampleRange>,
}

/// What cannot be in a ledger.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LedgerError {
    /// The worker holds no range computed from that version.
    #[error("{worker} holds no samples for {base}")]
    NotHeld {
        /// Who.
        worker: WorkerId,
        /// For which version.
        base: Version,
    },
    /// The worker holds one already for that version.
    #[error("{worker} already holds samples for {base}")]
    AlreadyHeld {
        /// Who.
        worker: WorkerId,
        /// For which version.
        base: Version,
    },
    /// A saved state does not fit this data set.
    #[error("ledger of {found} samples does not fit a data set of {expected}")]
    WrongSize {
        /// Samples in the saved state.
        found: u32,
        /// Samples in the data set.
        expected: u32,
    },
    /// A saved state says a sample was used twice or lies outside its epoch.
    #[error("ledger is damaged at {0}")]
    Damaged(SampleRange),
}

/// Hands out sample ranges and keeps account of them.
#[derive(Debug, Clone)]
pub struct Ledger {
    samples: u32,
    /// Epochs that may be handed out; `None` is no end.
    limit: Option<u32>,
    patience: u32,
    /// Epochs completed, all numbered below `open`'s first.
    complete: u32,
    /// Used ranges of begun epochs that are not complete, merged, by epoch.
    open: BTreeMap<u32, BTreeMap<u32, u32>>,
    homes: Homes,
    held: BTreeMap<(WorkerId, Version), Held>,
    /// Keyed by epoch and start, so older samples go first.
    returned: BTreeMap<(u32, u32), Returned>,
    /// Of whom nothing came the last time.
    missed: BTreeSet<WorkerId>,
    counts: SampleCounts,
}

#[derive(Debug, Clone)]
struct Held {
    parts: Vec<Part>,
    /// It is in the open round's sum: its holder's death no longer matters.
    accepted: bool,
    /// Only the finished part of it is.
    salvaged: bool,
}

/// A range, and how often it was given back.
#[derive(Debug, Clone, Copy)]
struct Part {
    range: SampleRange,
    times: u32,
}

#[derive(Debug, Clone, Copy)]
struct Returned {
    end: u32,
    times: u32,
    by: WorkerId,
}

/// What a checkpoint keeps of a ledger. Ranges that were held go out again after a resume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerState {
    samples: u32,
    complete: u32,
    used: Vec<SampleRange>,
    counts: SampleCounts,
}

/// Whose what a resumed run has left is.
const NOBODY: WorkerId = WorkerId(u32::MAX);

/// The most ranges in a portion: many small ones are rather handed to several.
const MOST_PARTS: usize = 8;

impl Ledger {
    /// A range given back this often is waited for.
    pub const PATIENCE: u32 = 3;

    /// Books for epochs of `samples` samples; at most `limit` epochs are handed out.
    pub fn new(samples: u32, limit: Option<u32>) -> Self {
        Ledger {
            samples,
            limit,
            patience: Self::PATIENCE,
            complete: 0,
            open: BTreeMap::new(),
            homes: Homes::new(samples, 1, 0),
            held: BTreeMap::new(),
            returned: BTreeMap::new(),
            missed: BTreeSet::new(),
            counts: SampleCounts::default(),
        }
    }

    /// A range given back this often is waited for, instead of [`Self::PATIENCE`].
    pub fn with_patience(self, patience: u32) -> Self {
        Ledger { patience, ..self }
    }

    /// The data lives on workers, in so many equal parts: worker `w` has part `w` modulo their number
    /// ([`crate::home`]).
    pub fn with_homes(mut self, homes: u32) -> Self {
        self.homes = Homes::new(self.samples, homes.max(1), self.homes.first_epoch());
        let returned = std::mem::take(&mut self.returned);
        for ((epoch, start), back) in returned {
            for range in self.homes.split(SampleRange { epoch, start, end: back.end }) {
                let back = Returned { end: range.end, ..back };
                self.returned.insert((epoch, range.start), back);
            }
        }
        self
    }

    /// What comes of a home that is heard less than its share of the data counts for more.
    pub fn reweighing(mut self) -> Self {
        self.homes.reweigh();
        self
    }

    /// The books of a saved run, over `samples` samples and up to `limit` epochs in all.
    pub fn resume(
        state: &LedgerState,
        samples: u32,
        limit: Option<u32>,
    ) -> Result<Self, LedgerError> {
        if state.samples != samples {
            return Err(LedgerError::WrongSize { found: state.samples, expected: samples });
        }
        let mut ledger = Ledger::new(samples, limit);
        ledger.complete = state.complete;
        for &range in &state.used {
            let inside = range.start < range.end && range.end <= samples;
            if !inside || range.epoch < state.complete || !ledger.mark(range) {
                return Err(LedgerError::Damaged(range));
            }
        }
        // Whatever was not used waits; fresh ranges begin with the first epoch nobody has touched.
        let begun = ledger.open.keys().next_back().map_or(state.complete, |last| last + 1);
        for epoch in state.complete..begun {
            for gap in ledger.gaps(epoch) {
                let back = Returned { end: gap.end, times: 0, by: NOBODY };
                ledger.returned.insert((epoch, gap.start), back);
            }
            ledger.open.entry(epoch).or_default();
        }
        ledger.homes = Homes::new(samples, 1, begun);
        ledger.counts = state.counts;
        Ok(ledger)
    }

    /// What a checkpoint must keep.
    pub fn state(&self) -> LedgerState {
        let used = self.open.iter().flat_map(|(&epoch, used)| {
            used.iter().map(move |(&start, &end)| SampleRange { epoch, start, end })
        });
        LedgerState {
            samples: self.samples,
            complete: self.complete,
            used: used.collect(),
            counts: self.counts,
        }
    }

    /// Up to `want` samples for `worker` to compute from `base`; `None` when none are left to hand
    /// out (others may still give some back). `want` of 0 gets nothing.
    pub fn take(
        &mut self,
        worker: WorkerId,
        base: Version,
        want: u32,
    ) -> Result<Option<Work>, LedgerError> {
        if self.held.contains_key(&(worker, base)) {
            return Err(LedgerError::AlreadyHeld { worker, base });
        }
        let parts = self.next_parts(worker, want);
        let Some(first) = parts.first() else { return Ok(None) };
        let mut portion = Portion::new(first.range);
        for part in &parts[1..] {
            portion.push(part.range);
        }
        // Somebody else is waited for rather than one of whom nothing came the last time.
        let may_wait = self.delivers(worker) || self.homes.count() > 1;
        let waited_for = may_wait && parts.iter().any(|part| part.times >= self.patience);
        self.held.insert((worker, base), Held { parts, accepted: false, salvaged: false });
        let worth = self.homes.worth(worker);
        Ok(Some(Work { worker, portion, waited_for, worth }))
    }

    /// Whether anything came of what `worker` was given last.
    pub(crate) fn delivers(&self, worker: WorkerId) -> bool {
        !self.missed.contains(&worker)
    }

    /// Ranges of one epoch that come to `want` samples, or to all there are.
    fn next_parts(&mut self, worker: WorkerId, mut want: u32) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        while want > 0 && parts.len() < MOST_PARTS {
            let epoch = parts.first().map(|part| part.range.epoch);
            let Some(part) = self.next_part(worker, want, epoch) else { break };
            want -= part.range.len();
            parts.push(part);
        }
        parts
    }

    fn next_part(&mut self, worker: WorkerId, want: u32, epoch: Option<u32>) -> Option<Part> {
        let of_epoch = |of: u32| epoch.is_none_or(|epoch| epoch == of);
        let fresh = self.homes.fresh(worker);
        let fresh_left =
            self.limit.is_none_or(|limit| fresh.epoch < limit) && of_epoch(fresh.epoch);
        let at_home = |start: u32| self.homes.has(worker, start);
        let mine = |key: &(u32, u32)| of_epoch(key.0) && at_home(key.1);
        // Nobody else can do what lives with one.
        let only = self.homes.count() > 1;
        let others = self.returned.iter().find(|(key, r)| (only || r.by != worker) && mine(key));
        let own = || self.returned.iter().find(|(key, _)| !fresh_left && mine(key));
        if let Some((&key, &back)) = others.or_else(own) {
            return Some(self.take_returned(key, back, want));
        }
        if !fresh_left {
            return None;
        }
        let range = self.homes.take(worker, want);
        self.open.entry(range.epoch).or_default();
        Some(Part { range, times: 0 })
    }

    fn take_returned(&mut self, (epoch, start): (u32, u32), back: Returned, want: u32) -> Part {
        self.returned.remove(&(epoch, start));
        let end = start.saturating_add(want).min(back.end);
        if end < back.end {
            self.returned.insert((epoch, end), back);
        }
        if back.by != NOBODY {
            self.counts.requeued += u64::from(end - start);
        }
        Part { range: SampleRange { epoch, start, end }, times: back.times }
    }

    /// What `worker` computed from `base` is in the open round's sum. It is used once the round
    /// closes ([`Self::close`]); a run that ends before that hands the samples out again.
    ///
    /// Of a salvaged contribution only the first `samples` are in; others get the rest, and begin with
    /// it. It was not reached yet, so it does not count as given back.
    pub fn accept(
        &mut self,
        worker: WorkerId,
        base: Version,
        samples: u32,
    ) -> Result<(), LedgerError> {
        let held =
            self.held.get_mut(&(worker, base)).ok_or(LedgerError::NotHeld { worker, base })?;
        held.accepted = true;
        self.missed.remove(&worker);
        let mut left = samples.max(1);
        let mut rest = Vec::new();
        for part in &mut held.parts {
            let Part { range, times } = *part;
            part.range.end = range.end.min(range.start.saturating_add(left));
            left -= part.range.len();
            if part.range.end < range.end {
                rest.push(Part { range: SampleRange { start: part.range.end, ..range }, times });
            }
        }
        held.parts.retain(|part| part.range.len() > 0);
        held.salvaged = !rest.is_empty();
        rest.into_iter().for_each(|part| self.put_back(part, worker));
        Ok(())
    }

    fn put_back(&mut self, part: Part, by: WorkerId) {
        let Part { range: SampleRange { epoch, start, end }, times } = part;
        self.returned.insert((epoch, start), Returned { end, times, by });
    }

    /// The open round is closed: everything accepted is used.
    pub fn close(&mut self) -> Result<(), LedgerError> {
        let accepted: Vec<(WorkerId, Version)> =
            self.held.iter().filter(|(_, held)| held.accepted).map(|(&key, _)| key).collect();
        for (worker, base) in accepted {
            let Held { parts, salvaged, .. } = self.release(worker, base)?;
            for Part { range, .. } in parts {
                if !self.mark(range) {
                    return Err(LedgerError::Damaged(range));
                }
                self.homes.used(range);
                self.counts.used += u64::from(range.len());
                self.counts.salvaged += if salvaged { u64::from(range.len()) } else { 0 };
            }
        }
        Ok(())
    }

    /// The samples that `worker` held for `base` will not be used; others get them.
    pub fn give_back(&mut self, worker: WorkerId, base: Version) -> Result<(), LedgerError> {
        let Held { parts, .. } = self.release(worker, base)?;
        self.missed.insert(worker);
        for part in parts {
            self.put_back(Part { times: part.times + 1, ..part }, worker);
        }
        Ok(())
    }

    /// So many samples were computed in full and then not used.
    pub fn count_dropped(&mut self, samples: u64) {
        self.counts.dropped += samples;
    }

    /// `worker` is dead: everything it held goes back, except what is in the open round's sum.
    pub fn forget(&mut self, worker: WorkerId) {
        let bases: Vec<Version> = self.held_by(worker).collect();
        for base in bases {
            self.give_back(worker, base).expect("the key was just read");
        }
        self.missed.remove(&worker);
    }

    /// The versions for which `worker` holds samples that are not accepted.
    pub fn held_by(&self, worker: WorkerId) -> impl Iterator<Item = Version> {
        self.held
            .range((worker, Version(0))..=(worker, Version(u64::MAX)))
            .filter(|(_, held)| !held.accepted)
            .map(|(&(_, base), _)| base)
    }

    fn release(&mut self, worker: WorkerId, base: Version) -> Result<Held, LedgerError> {
        self.held.remove(&(worker, base)).ok_or(LedgerError::NotHeld { worker, base })
    }

    /// Enters a range as used; false if any of it was used before.
    fn mark(&mut self, range: SampleRange) -> bool {
        let used = self.open.entry(range.epoch).or_default();
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&s, &e)) = used.range(..=range.start).next_back() {
            if e > range.start {
                return false;
            }
            if e == range.start {
                used.remove(&s);
                start = s;
            }
        }
        if let Some((&s, &e)) = used.range(range.start..).next() {
            if s < range.end {
                return false;
            }
            if s == range.end {
                used.remove(&s);
                end = e;
            }
        }
        used.insert(start, end);
        while self.open.get(&self.complete).and_then(|u| u.get(&0)) == Some(&self.samples) {
            self.open.remove(&self.complete);
            self.complete += 1;
        }
        true
    }

    fn gaps(&self, epoch: u32) -> Vec<SampleRange> {
        let mut gaps = Vec::new();
        let mut start = 0;
        for (&s, &e) in self.open.get(&epoch).into_iter().flatten() {
            if start < s {
                gaps.push(SampleRange { epoch, start, end: s });
            }
            start = e;
        }
        if start < self.samples {
            gaps.push(SampleRange { epoch, start, end: self.samples });
        }
        gaps
    }

    /// Whether every sample of the `limit` epochs is used.
    pub fn is_finished(&self) -> bool {
        self.limit.is_some_and(|limit| self.complete >= limit)
    }

    /// Epochs of which every sample was used.
    pub fn epochs(&self) -> u32 {
        self.complete
    }

    /// What became of the samples so far.
    pub fn counts(&self) -> SampleCounts {
        self.counts
    }

    /// The books, checked from scratch.
    pub fn report(&self) -> LedgerReport {
        let unused: Vec<SampleRange> =
            self.open.keys().flat_map(|&epoch| self.gaps(epoch)).collect();
        LedgerReport { epochs: self.complete, balanced: self.balances(&unused), unused }
    }

    /// Held, returned and fresh ranges of begun epochs must tile exactly what is not used.
    fn balances(&self, unused: &[SampleRange]) -> bool {
        let mut pending: Vec<(u32, Range<u32>)> = Vec::new();
        let held = self.held.values().flat_map(|held| &held.parts).map(|part| part.range);
        pending.extend(held.map(|range| (range.epoch, range.start..range.end)));
        pending.extend(self.returned.iter().map(|(&(e, start), r)| (e, start..r.end)));
        let fresh = self.open.keys().flat_map(|&epoch| self.homes.unread(epoch));
        pending.extend(fresh.map(|range| (range.epoch, range.start..range.end)));
        pending.sort_by_key(|(epoch, range)| (*epoch, range.start));
        let mut tiles: Vec<SampleRange> = Vec::new();
        for (epoch, range) in pending {
            match tiles.last_mut() {
                Some(last) if last.epoch == epoch && range.start < last.end => return false,
                Some(last) if last.epoch == epoch && range.start == last.end => {
                    last.end = range.end;
                }
                _ => tiles.push(SampleRange { epoch, start: range.start, end: range.end }),
            }
        }
        tiles == unused
    }
}
