//! Homes of the data: one for all workers, or several with one part of the data each.

use std::ops::Range;

use crate::{SampleRange, WorkerId, home};

/// The largest weight of a sample. The smallest is its inverse.
const MOST_WORTH: f64 = 8.0;

/// The parts of the data, the rest of each that is not handed out, and how much of each was used.
#[derive(Debug, Clone)]
pub(crate) struct Homes {
    samples: u32,
    homes: Vec<Home>,
    reweighs: bool,
}

#[derive(Debug, Clone)]
struct Home {
    positions: Range<u32>,
    /// The samples not handed out in the home's current epoch, or all of its next epoch.
    fresh: SampleRange,
    /// Recently used samples, averaged over one epoch's worth of samples across all homes.
    used: f64,
}

impl Homes {
    /// `homes` equal parts, with nothing handed out from `epoch` on.
    pub(crate) fn new(samples: u32, homes: u32, epoch: u32) -> Homes {
        let new = |part| {
            let positions = home(samples, part, homes);
            let fresh = SampleRange { epoch, start: positions.start, end: positions.end };
            Home { used: f64::from(positions.end - positions.start), positions, fresh }
        };
        Homes { samples, homes: (0..homes).map(new).collect(), reweighs: false }
    }

    /// From now on, a sample from an underrepresented home weighs more.
    pub(crate) fn reweigh(&mut self) {
        self.reweighs = true;
    }

    pub(crate) fn count(&self) -> usize {
        self.homes.len()
    }

    /// The first epoch that some home has not handed out completely.
    pub(crate) fn first_epoch(&self) -> u32 {
        self.homes.iter().map(|home| home.fresh.epoch).min().unwrap_or(0)
    }

    fn of(&self, worker: WorkerId) -> usize {
        worker.0 as usize % self.homes.len()
    }

    /// Whether a position is at `worker`'s home.
    pub(crate) fn has(&self, worker: WorkerId, position: u32) -> bool {
        self.homes[self.of(worker)].positions.contains(&position)
    }

    /// The samples of its current epoch that `worker`'s home has not handed out.
    pub(crate) fn fresh(&self, worker: WorkerId) -> SampleRange {
        self.homes[self.of(worker)].fresh
    }

    /// Takes the next of these samples, at most `want`.
    pub(crate) fn take(&mut self, worker: WorkerId, want: u32) -> SampleRange {
        let home = self.of(worker);
        let Home { positions, fresh, .. } = &mut self.homes[home];
        let range = SampleRange { end: fresh.start.saturating_add(want).min(fresh.end), ..*fresh };
        fresh.start = range.end;
        if fresh.start == fresh.end {
            let (start, end) = (positions.start, positions.end);
            *fresh = SampleRange { epoch: range.epoch + 1, start, end };
        }
        range
    }

    /// The samples of a begun `epoch` that no home has handed out.
    pub(crate) fn unread(&self, epoch: u32) -> impl Iterator<Item = SampleRange> {
        self.homes.iter().filter(move |home| home.fresh.epoch <= epoch).map(move |home| {
            let start = match home.fresh.epoch == epoch {
                true => home.fresh.start,
                false => home.positions.start,
            };
            SampleRange { epoch, start, end: home.positions.end }
        })
    }

    /// Splits a range into pieces that belong to one home each.
    pub(crate) fn split(&self, range: SampleRange) -> impl Iterator<Item = SampleRange> {
        let pieces = self.homes.iter().map(move |home| SampleRange {
            epoch: range.epoch,
            start: range.start.max(home.positions.start),
            end: range.end.min(home.positions.end),
        });
        pieces.filter(|piece| piece.start < piece.end)
    }

    /// A range was used in an update.
    pub(crate) fn used(&mut self, range: SampleRange) {
        if !self.reweighs {
            return;
        }
        // A sample fades by 1/e once an epoch's worth of further samples is used.
        let fade = (-f64::from(range.len()) / f64::from(self.samples)).exp();
        for home in &mut self.homes {
            home.used *= fade;
            if home.positions.contains(&range.start) {
                home.used += f64::from(range.len());
            }
        }
    }

    /// The weight of a sample at `worker`'s home: the home's share of the data over its share of the used
    /// samples, within bounds.
    pub(crate) fn worth(&self, worker: WorkerId) -> f64 {
        if !self.reweighs {
            return 1.0;
        }
        let home = &self.homes[self.of(worker)];
        let heard = home.used / self.homes.iter().map(|home| home.used).sum::<f64>();
        let due = f64::from(home.positions.end - home.positions.start) / f64::from(self.samples);
        (due / heard).clamp(1.0 / MOST_WORTH, MOST_WORTH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_heard_less_counts_for_more_within_bounds() {
        let mut homes = Homes::new(100, 4, 0);
        let used = |homes: &mut Homes, worker, times| {
            for _ in 0..times {
                let range = homes.take(WorkerId(worker), 5);
                homes.used(range);
            }
        };
        used(&mut homes, 1, 100);
        assert_eq!(homes.worth(WorkerId(1)), 1.0);
        homes.reweigh();
        for _ in 0..100 {
            used(&mut homes, 3, 1);
            (0..3).for_each(|worker| used(&mut homes, worker, 2));
        }
        let worth = homes.worth(WorkerId(3)) / homes.worth(WorkerId(0));
        assert!((worth - 2.0).abs() < 0.3, "{worth}");
        used(&mut homes, 0, 1_000);
        assert_eq!(homes.worth(WorkerId(3)), MOST_WORTH);
    }
}
