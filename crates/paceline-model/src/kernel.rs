//! The loops on a decision's critical path, vectorised to the processor's full width.
//!
//! Loops are written out, since closures handed to iterators would be compiled for the narrowest
//! vectors. The results here do not depend on the width. (Matrix products sum in an order that depends
//! on the processor, so a replay is bit-identical only on the same kind of processor.)

use pulp::{Arch, Simd, WithSimd};

use crate::{
    math::{exp, ln},
    mixture::PARTS,
};

/// A mixture of three logistics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogisticMixture {
    pub(crate) shares: [f32; PARTS],
    pub(crate) locations: [f32; PARTS],
    pub(crate) per_scales: [f32; PARTS],
}

/// Adds the log density (if `observed`) or the log survival at `y` for every shift, down to `least`.
/// `narrower` divides all scales except the last component's.
pub(crate) fn judge(
    parts: &LogisticMixture,
    y: f32,
    observed: bool,
    (shifts, narrower): (&[f32], &[f32]),
    least: f32,
    into: &mut [f32],
) {
    match observed {
        true => {
            Arch::new().dispatch(AddLikelihoods::<true> { parts, y, shifts, narrower, least, into })
        }
        false => Arch::new().dispatch(AddLikelihoods::<false> {
            parts,
            y,
            shifts,
            narrower,
            least,
            into,
        }),
    }
}

struct AddLikelihoods<'a, const OBSERVED: bool> {
    parts: &'a LogisticMixture,
    y: f32,
    shifts: &'a [f32],
    narrower: &'a [f32],
    least: f32,
    into: &'a mut [f32],
}

#[inline(always)]
fn term<const OBSERVED: bool>(share: f32, off: f32, per_scale: f32) -> f32 {
    let above = 1.0 / (1.0 + exp(off * per_scale));
    share * if OBSERVED { above * (1.0 - above) * per_scale } else { above }
}

impl<const OBSERVED: bool> WithSimd for AddLikelihoods<'_, OBSERVED> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let AddLikelihoods { parts: LogisticMixture { shares, locations, per_scales }, y, .. } =
            self;
        for ((into, shift), narrower) in self.into.iter_mut().zip(self.shifts).zip(self.narrower) {
            let off = y - shift;
            let core = term::<OBSERVED>(shares[0], off - locations[0], per_scales[0] * narrower);
            let shoulder =
                term::<OBSERVED>(shares[1], off - locations[1], per_scales[1] * narrower);
            let stall = term::<OBSERVED>(shares[2], off - locations[2], per_scales[2]);
            *into += ln(core + shoulder + stall).max(self.least);
        }
    }
}

/// A shift of a group's workers, in log time, and its probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ShiftCase {
    pub(crate) shift: f32,
    /// One over the factor by which their spread widens, except for stalls.
    pub(crate) narrower: f32,
    pub(crate) weight: f32,
}

/// Moments evaluated together.
pub(crate) const LANES: usize = 32;

/// Adds the survival probabilities at each moment, over all cases.
pub(crate) fn survive(
    parts: &LogisticMixture,
    cases: &[ShiftCase],
    moments: &[f32; LANES],
    into: &mut [f32; LANES],
) {
    Arch::new().dispatch(AddSurvivals { parts, cases, moments, into });
}

struct AddSurvivals<'a> {
    parts: &'a LogisticMixture,
    cases: &'a [ShiftCase],
    moments: &'a [f32; LANES],
    into: &'a mut [f32; LANES],
}

impl WithSimd for AddSurvivals<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let mut sums = *self.into;
        for &ShiftCase { shift, narrower, weight } in self.cases {
            for part in 0..PARTS {
                let share = weight * self.parts.shares[part];
                let at = self.parts.locations[part] + shift;
                let narrows = if part == PARTS - 1 { 1.0 } else { narrower };
                let per_scale = self.parts.per_scales[part] * narrows;
                for (sum, moment) in sums.iter_mut().zip(self.moments) {
                    *sum += share / (1.0 + exp((moment - at) * per_scale));
                }
            }
        }
        *self.into = sums;
    }
}

/// The evidence of one group about its own factor and the cluster's, by cell.
pub(crate) struct Evidence {
    /// Likelihood of each total shift, relative to the largest.
    likely: Vec<f32>,
    /// Likelihood of each cell of the cluster's factor, summed over the group's own.
    over_own: Vec<f32>,
}

impl Evidence {
    /// Computes the evidence from log likelihoods of total shifts, and adds its logarithm to each of
    /// the cluster's cells.
    pub(crate) fn weigh(seen: &[f32], own: &[f32], cluster: &mut [f32]) -> Evidence {
        let mut evidence =
            Evidence { likely: vec![0.0; seen.len()], over_own: vec![0.0; cluster.len()] };
        Arch::new().dispatch(WeighEvidence { seen, own, cluster, evidence: &mut evidence });
        evidence
    }

    /// Adds the posterior of total shifts, given that of the cluster's cells.
    pub(crate) fn spread(&self, own: &[f32], cluster: &[f32], into: &mut [f32]) {
        Arch::new().dispatch(SpreadEvidence { evidence: self, own, cluster, into });
    }
}

struct WeighEvidence<'a> {
    seen: &'a [f32],
    own: &'a [f32],
    cluster: &'a mut [f32],
    evidence: &'a mut Evidence,
}

impl WithSimd for WeighEvidence<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let mut most = f32::NEG_INFINITY;
        for &log in self.seen {
            most = most.max(log);
        }
        for (likely, log) in self.evidence.likely.iter_mut().zip(self.seen) {
            // Smaller likelihoods are negligible, and products must stay normal numbers: subnormals
            // take a hundred times as long.
            *likely = exp((log - most).max(-40.0));
        }
        // The inner loop runs over the cluster's cells, so that no sum runs along a vector.
        let over_own = &mut self.evidence.over_own[..];
        for (cell, &mass) in self.own.iter().enumerate() {
            for (sum, likely) in over_own.iter_mut().zip(&self.evidence.likely[cell..]) {
                *sum += mass * likely;
            }
        }
        for (log, sum) in self.cluster.iter_mut().zip(over_own) {
            *sum = sum.max(f32::MIN_POSITIVE);
            *log += ln(*sum);
        }
    }
}

struct SpreadEvidence<'a> {
    evidence: &'a Evidence,
    own: &'a [f32],
    cluster: &'a [f32],
    into: &'a mut [f32],
}

impl WithSimd for SpreadEvidence<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        for (cell, (weight, sum)) in self.cluster.iter().zip(&self.evidence.over_own).enumerate() {
            let weight = weight / sum;
            let likely = &self.evidence.likely[cell..];
            for ((into, own), likely) in self.into[cell..].iter_mut().zip(self.own).zip(likely) {
                *into += weight * own * likely;
            }
        }
    }
}
