//! The data ledger: tracks every sample, so that none is lost or used twice.
//!
//! The ledger works with positions in an epoch's order ([`crate::EpochOrder`]). It knows the ranges that are
//! used and those that wait to be handed out. The ranges in between belong to contributions
//! ([`crate::Contribution`]), whose ends are entered here. A returned range is handed out again before fresh
//! ones, to another worker if possible. A round waits for a range that was returned `patience` times, so that
//! slow samples are not starved. That wait has a bound, too (`patience.rs`).
//!
//! A worker may hold leases: ranges for later rounds, which it loads early (`leases.rs`). With an epoch barrier
//! ([`Ledger::with_epoch_barrier`]), only leases reach into the next epoch.
//!
//! Where data lives on workers ([`Ledger::with_homes`]), a range goes only to the worker at its home, so a
//! home whose worker is cut is underrepresented. Patience bounds the loss, and the ledger can weight the
//! home's contributions up to compensate ([`Ledger::reweighing`]).
//!
//! A sample is used once its round has closed with it: its gradient is in the update of every shard of the
//! round. Some blocks never see it where shards may be left behind ([`crate::Shards`]) or where contributions
//! count before they are whole ([`crate::Coordinator::with_partial_pushes`]). It is still used once, and is
//! not handed out again for these blocks: each block's update is a mean over the samples that reached it, and
//! the log lists them (`Closed`). The same holds where a gradient in shared memory turns out not to be finite
//! in part, which ends its worker. A contribution that reached too few blocks for its round is dropped on all
//! shards, and its samples are handed out again.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    Handout, HeldRange, WorkerId, contributions::LedgerEntry, homes::Homes, leases::Lease,
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

/// Counts of the samples so far, by outcome. For a stream ([`Ledger::stream`]), they are sums of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SampleCounts {
    /// In an update.
    pub used: u64,
    /// Computed in full and then not used.
    pub dropped: u64,
    /// Given back and handed out again.
    pub requeued: u64,
    /// The part of the used samples that stragglers had finished when they were cut.
    #[serde(default)]
    pub salvaged: u64,
}

/// The ledger's state at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerReport {
    /// Epochs of which every sample was used exactly once.
    pub epochs: u32,
    /// Whether the ledger balances: every sample of every begun epoch is used once, held by one worker (as work
    /// or as a lease), or waiting. None is lost or counted twice.
    pub balanced: bool,
    /// Ranges of begun epochs that are not used yet.
    pub unused: Vec<SampleRange>,
}

/// Errors in a saved ledger.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LedgerError {
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

/// Hands out sample ranges and accounts for them.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// Samples in an epoch; 0 for a stream.
    samples: u32,
    /// Set where workers bring their own data.
    stream: Option<Stream>,
    /// Epochs that may be handed out; `None` for no limit.
    limit: Option<u32>,
    patience: u32,
    /// Whether an epoch begins only when the one before is complete.
    barrier: bool,
    /// Epochs completed, all numbered below `open`'s first.
    complete: u32,
    /// Used ranges of begun epochs that are not complete, merged, by epoch.
    open: BTreeMap<u32, BTreeMap<u32, u32>>,
    homes: Homes,
    /// Keyed by epoch and start, so older samples go first.
    returned: BTreeMap<(u32, u32), Returned>,
    /// Workers whose last work was not used.
    missed: BTreeSet<WorkerId>,
    counts: SampleCounts,
}

#[derive(Debug, Clone, Copy)]
struct Returned {
    end: u32,
    returns: u32,
    by: WorkerId,
}

/// Data that workers bring: only the weights of contributions are counted.
#[derive(Debug, Clone, Copy)]
struct Stream {
    /// Samples of a portion, nominally.
    batch: u32,
    /// The sum of the weights used.
    used: f64,
}

/// The part of a ledger that a checkpoint keeps. Ranges that were held are handed out again after a resume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerState {
    samples: u32,
    complete: u32,
    used: Vec<SampleRange>,
    counts: SampleCounts,
}

/// Placeholder for the worker that returned a range which nobody had begun to compute in this run.
const NOBODY: WorkerId = WorkerId(u32::MAX);

/// The most ranges in a portion. More small ranges are spread over several workers.
const MOST_RANGES: usize = 8;

impl Ledger {
    /// Returns after which a round waits for a range.
    pub const PATIENCE: u32 = 3;

    /// A ledger for epochs of `samples` samples. Hands out at most `limit` epochs.
    pub fn new(samples: u32, limit: Option<u32>) -> Self {
        Ledger {
            samples,
            stream: None,
            limit,
            patience: Self::PATIENCE,
            barrier: false,
            complete: 0,
            open: BTreeMap::new(),
            homes: Homes::new(samples, 1, 0),
            returned: BTreeMap::new(),
            missed: BTreeSet::new(),
            counts: SampleCounts::default(),
        }
    }

    /// A ledger for workers that bring their own streams of data. It never ends and has no epochs. All portions
    /// are positions `0..batch`, which stand for any samples, and nothing is handed out twice. A contribution
    /// may have any positive weight; [`Self::counts`] has the sum of the weights used.
    pub fn stream(batch: u32) -> Self {
        let stream = Some(Stream { batch: batch.max(1), used: 0.0 });
        Ledger { stream, ..Ledger::new(0, None) }
    }

    /// The ledger of a saved run whose workers bring streams.
    pub fn resume_stream(state: &LedgerState, batch: u32) -> Result<Self, LedgerError> {
        if state.samples != 0 {
            return Err(LedgerError::WrongSize { found: state.samples, expected: 0 });
        }
        let stream = Some(Stream { batch: batch.max(1), used: state.counts.used as f64 });
        Ok(Ledger { stream, counts: state.counts, ..Ledger::new(0, None) })
    }

    /// Returns after which a round waits for a range, instead of [`Self::PATIENCE`].
    pub fn with_patience(self, patience: u32) -> Self {
        Ledger { patience, ..self }
    }

    /// No sample of an epoch is handed out as work before every sample of the epoch before is used. Samples of
    /// the next epoch may be leased before that ([`crate::Coordinator::lease_ahead`]).
    pub fn with_epoch_barrier(self) -> Self {
        Ledger { barrier: true, ..self }
    }

    /// The data lives on workers, in `homes` equal parts: worker `w` has part `w` modulo `homes`
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

    /// Weights contributions up where their home is used less than its share of the data.
    pub fn reweighing(mut self) -> Self {
        self.homes.reweigh();
        self
    }

    /// The ledger of a saved run, over `samples` samples and up to `limit` epochs in total.
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
        // Unused ranges wait; fresh ranges begin with the first untouched epoch.
        let begun = ledger.open.keys().next_back().map_or(state.complete, |last| last + 1);
        for epoch in state.complete..begun {
            for gap in ledger.gaps(epoch) {
                let back = Returned { end: gap.end, returns: 0, by: NOBODY };
                ledger.returned.insert((epoch, gap.start), back);
            }
            ledger.open.entry(epoch).or_default();
        }
        ledger.homes = Homes::new(samples, 1, begun);
        ledger.counts = state.counts;
        Ok(ledger)
    }

    /// The state for a checkpoint.
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

    /// Up to `want` samples for `worker`; `None` when none are left to hand out (others may still
    /// return some). `want` of 0 gets nothing.
    pub fn take(&mut self, worker: WorkerId, want: u32) -> Option<Handout> {
        let ranges = self.next_ranges(worker, want, false);
        (!ranges.is_empty()).then(|| self.begin(worker, ranges))
    }

    /// Up to `want` samples that `worker` may load before a round needs them. They may be of an epoch that
    /// may not begin yet.
    pub(crate) fn lease(&mut self, worker: WorkerId, want: u32) -> Option<Lease> {
        let ranges = self.next_ranges(worker, want, true);
        (!ranges.is_empty()).then_some(ranges)
    }

    /// A lease becomes the work of `worker`.
    pub(crate) fn begin(&self, worker: WorkerId, ranges: Lease) -> Handout {
        // If the worker's last work was not used, the round does not wait for it: another worker gets the
        // samples next.
        let may_wait = self.delivers(worker) || !self.data_moves();
        let waited_for = may_wait && ranges.iter().any(|held| held.returns >= self.patience);
        let worth = self.homes.worth(worker);
        Handout { worker, ranges, waited_for, worth, any_weight: self.stream.is_some(), twin: None }
    }

    /// Takes back a lease that did not become work. Its samples were not begun, so handing them out again does
    /// not count as requeuing.
    pub(crate) fn take_back(&mut self, lease: Lease) {
        self.enter(LedgerEntry::Returned { ranges: lease, by: NOBODY });
    }

    /// Whether samples of `epoch` may be handed out as work.
    pub(crate) fn may_begin(&self, epoch: u32) -> bool {
        !self.barrier || epoch <= self.complete
    }

    /// Whether any worker may get any sample.
    pub(crate) fn data_moves(&self) -> bool {
        self.homes.count() == 1
    }

    /// Whether the last work of `worker` led to an accepted contribution.
    pub(crate) fn delivers(&self, worker: WorkerId) -> bool {
        !self.missed.contains(&worker)
    }

    /// Ranges of one epoch with `want` samples in total, or with all that are left.
    fn next_ranges(&mut self, worker: WorkerId, mut want: u32, ahead: bool) -> Vec<HeldRange> {
        if let Some(Stream { batch, .. }) = self.stream {
            let range = SampleRange { epoch: 0, start: 0, end: batch };
            return vec![HeldRange { range, returns: 0 }];
        }
        let mut ranges: Vec<HeldRange> = Vec::new();
        while want > 0 && ranges.len() < MOST_RANGES {
            let epoch = ranges.first().map(|held| held.range.epoch);
            let Some(held) = self.next_range(worker, want, epoch, ahead) else { break };
            want -= held.range.len();
            ranges.push(held);
        }
        ranges
    }

    fn next_range(
        &mut self,
        worker: WorkerId,
        want: u32,
        epoch: Option<u32>,
        ahead: bool,
    ) -> Option<HeldRange> {
        let of_epoch =
            |of: u32| epoch.is_none_or(|epoch| epoch == of) && (ahead || self.may_begin(of));
        let fresh = self.homes.fresh(worker);
        let fresh_left =
            self.limit.is_none_or(|limit| fresh.epoch < limit) && of_epoch(fresh.epoch);
        let at_home = |start: u32| self.homes.has(worker, start);
        let mine = |key: &(u32, u32)| of_epoch(key.0) && at_home(key.1);
        // With homes, only this worker can compute the range.
        let only = !self.data_moves();
        let others = self.returned.iter().find(|(key, r)| (only || r.by != worker) && mine(key));
        // With a barrier, the epoch of a returned range must be completed before fresh ranges of a later one.
        let goes_first = |epoch: u32| !fresh_left || self.barrier && epoch < fresh.epoch;
        let own = || self.returned.iter().find(|(key, _)| goes_first(key.0) && mine(key));
        if let Some((&key, &back)) = others.or_else(own) {
            return Some(self.take_returned(key, back, want));
        }
        if !fresh_left {
            return None;
        }
        let range = self.homes.take(worker, want);
        self.open.entry(range.epoch).or_default();
        Some(HeldRange { range, returns: 0 })
    }

    fn take_returned(
        &mut self,
        (epoch, start): (u32, u32),
        back: Returned,
        want: u32,
    ) -> HeldRange {
        self.returned.remove(&(epoch, start));
        let end = start.saturating_add(want).min(back.end);
        if end < back.end {
            self.returned.insert((epoch, end), back);
        }
        if back.by != NOBODY {
            self.counts.requeued += u64::from(end - start);
        }
        HeldRange { range: SampleRange { epoch, start, end }, returns: back.returns }
    }

    /// Enters the outcome of samples that were handed out.
    ///
    /// # Panics
    /// If a sample is used twice: only one of the contributions that hold it counts.
    pub(crate) fn enter(&mut self, entry: LedgerEntry) {
        match entry {
            LedgerEntry::Used { ranges, weight, salvaged } => match &mut self.stream {
                Some(stream) => {
                    stream.used += weight;
                    self.counts.used = stream.used.round() as u64;
                    let part = if salvaged { weight.round() as u64 } else { 0 };
                    self.counts.salvaged = self.counts.salvaged.saturating_add(part);
                }
                None => self.use_ranges(&ranges, salvaged),
            },
            LedgerEntry::Returned { .. } if self.stream.is_some() => {}
            LedgerEntry::Returned { ranges, by } => {
                for HeldRange { range: SampleRange { epoch, start, end }, returns } in ranges {
                    self.returned.insert((epoch, start), Returned { end, returns, by });
                }
            }
            LedgerEntry::Missed(worker) => drop(self.missed.insert(worker)),
            LedgerEntry::Delivered(worker) | LedgerEntry::Left(worker) => {
                self.missed.remove(&worker);
            }
        }
    }

    fn use_ranges(&mut self, ranges: &[HeldRange], salvaged: bool) {
        for &HeldRange { range, .. } in ranges {
            assert!(self.mark(range), "{range} is used twice");
            self.homes.used(range);
            self.counts.used += u64::from(range.len());
            self.counts.salvaged += if salvaged { u64::from(range.len()) } else { 0 };
        }
    }

    /// `samples` samples were computed in full and then not used.
    pub(crate) fn count_dropped(&mut self, samples: u64) {
        self.counts.dropped = self.counts.dropped.saturating_add(samples);
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

    /// Counts of the samples so far, by outcome.
    pub fn counts(&self) -> SampleCounts {
        self.counts
    }

    /// The ledger's state, checked from scratch, while workers hold the ranges in `held`.
    pub fn report(&self, held: impl Iterator<Item = SampleRange>) -> LedgerReport {
        let unused: Vec<SampleRange> =
            self.open.keys().flat_map(|&epoch| self.gaps(epoch)).collect();
        let balanced = self.stream.is_some() || self.balances(&unused, held);
        LedgerReport { epochs: self.complete, balanced, unused }
    }

    /// Held, returned and fresh ranges of begun epochs must tile the unused samples exactly.
    fn balances(&self, unused: &[SampleRange], held: impl Iterator<Item = SampleRange>) -> bool {
        let mut pending: Vec<(u32, Range<u32>)> = Vec::new();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ledger_of_a_stream_does_not_grow() {
        let mut ledger = Ledger::stream(8);
        for round in 0..1_000_000 {
            let Handout { worker, ranges, any_weight, .. } =
                ledger.take(WorkerId(round % 4), 3).expect("a stream has no end");
            assert!(any_weight && ranges[0].range.len() == 8);
            ledger.enter(match round % 3 {
                0 => LedgerEntry::Returned { ranges, by: worker },
                1 => LedgerEntry::Missed(worker),
                _ => LedgerEntry::Used { ranges, weight: 0.75, salvaged: false },
            });
        }
        assert_eq!(ledger.counts().used, 250_000, "333,333 times 0.75");
        assert!(ledger.returned.is_empty() && ledger.open.is_empty());
        assert!(ledger.missed.len() <= 4);
    }
}
