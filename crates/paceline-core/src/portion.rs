//! A portion of samples: one worker's work in one round.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{EpochOrder, HeldRange, SampleRange};

/// Ranges of one epoch, in order, none empty. Usually one; more where it takes up returned ranges.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Portion(Vec<SampleRange>);

impl Portion {
    /// One range.
    pub fn new(range: SampleRange) -> Portion {
        Portion(vec![range])
    }

    /// The samples of a lease or handout, which has ranges of one epoch.
    pub(crate) fn of(ranges: &[HeldRange]) -> Portion {
        let mut portion = Portion::new(ranges[0].range);
        for held in &ranges[1..] {
            portion.push(held.range);
        }
        portion
    }

    /// Adds a range if it belongs to the same epoch. Returns whether it did.
    pub fn push(&mut self, range: SampleRange) -> bool {
        let Some(last) = self.0.last_mut() else { return false };
        match (last.epoch == range.epoch, last.end == range.start) {
            (true, true) => last.end = range.end,
            (true, false) => self.0.push(range),
            (false, _) => return false,
        }
        true
    }

    /// The ranges.
    pub fn ranges(&self) -> &[SampleRange] {
        &self.0
    }

    /// Number of samples.
    #[expect(clippy::len_without_is_empty, reason = "a portion is never empty")]
    pub fn len(&self) -> u32 {
        self.0.iter().map(SampleRange::len).fold(0, u32::saturating_add)
    }

    /// The epoch; `None` for a portion without ranges, which only the wire can produce.
    pub fn epoch(&self) -> Option<u32> {
        self.0.first().map(|range| range.epoch)
    }

    /// The sample numbers in the epoch's order; `None` if the portion does not fit that order.
    pub fn samples(&self, order: &EpochOrder) -> Option<Vec<u32>> {
        let mut samples = Vec::new();
        for range in &self.0 {
            if range.epoch != order.epoch() {
                return None;
            }
            samples.extend_from_slice(order.samples(range.start, range.end)?);
        }
        (!samples.is_empty()).then_some(samples)
    }
}

impl fmt::Display for Portion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            write!(f, "{}{range}", if i > 0 { " and " } else { "" })?;
        }
        Ok(())
    }
}
