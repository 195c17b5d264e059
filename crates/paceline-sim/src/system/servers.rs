//! The shards' work: folding, updating, and stops.

use std::{collections::BTreeSet, ops::Range, time::Duration};

use paceline_core::{Round, ShardId, Time};

use super::SystemSpec;

/// Which kinds of shards take part, by index in [`SystemSpec::kinds`].
pub(super) type Present = [bool; 2];

/// All shards. Shards of one kind do the same at the same moments.
#[derive(Debug, Clone)]
pub(super) struct Servers {
    kinds: Vec<ShardKind>,
}

#[derive(Debug, Clone)]
struct ShardKind {
    shards: Range<u32>,
    /// Time for one pass over a shard's parameters.
    pass: Duration,
    /// Until when it folds and updates.
    busy: Time,
    stops: Option<Stops>,
}

/// Stops before an update, once per `every` rounds.
#[derive(Debug, Clone, Copy)]
struct Stops {
    every: u64,
    lasts: Duration,
    next: Round,
}

impl Servers {
    pub(super) fn new(spec: &SystemSpec) -> Servers {
        let every = u64::from(spec.stop_every);
        let stops =
            (every > 0).then_some(Stops { every, lasts: spec.stop_for, next: Round(every) });
        let kind = |(shards, slow): (Range<u32>, bool)| ShardKind {
            shards,
            pass: if slow { spec.pass().mul_f64(spec.slow_fold) } else { spec.pass() },
            busy: Time::ZERO,
            stops: stops.filter(|_| slow),
        };
        Servers { kinds: spec.kinds().map(kind).collect() }
    }

    /// The kinds of these shards, which include all or none of each kind.
    pub(super) fn present(&self, shards: &BTreeSet<ShardId>) -> Present {
        let mut present = [false; 2];
        for (kind, present) in self.kinds.iter().zip(&mut present) {
            *present = shards.contains(&ShardId(kind.shards.start));
        }
        present
    }

    /// The shards of other kinds.
    pub(super) fn absent(&self, present: Present) -> Vec<u32> {
        self.among(present.map(|here| !here)).flatten().collect()
    }

    /// The number of shards of these kinds.
    pub(super) fn count(&self, present: Present) -> u32 {
        self.among(present).map(|shards| shards.len() as u32).sum()
    }

    /// The shards of these kinds, kind by kind.
    pub(super) fn among(&self, present: Present) -> impl Iterator<Item = Range<u32>> + use<'_> {
        self.kinds
            .iter()
            .zip(present)
            .filter(|(_, here)| *here)
            .map(|(kind, _)| kind.shards.clone())
    }

    /// Shards of these kinds fold an accepted contribution.
    pub(super) fn fold(&mut self, present: Present, at: Time) {
        for (kind, _) in self.kinds.iter_mut().zip(present).filter(|(_, here)| *here) {
            kind.busy = kind.busy.max(at) + kind.pass;
        }
    }

    /// Shards of these kinds apply the update of a closed round; returns when each kind is done.
    pub(super) fn update(
        &mut self,
        present: Present,
        round: Round,
        at: Time,
    ) -> Vec<(Range<u32>, Time)> {
        let kinds = self.kinds.iter_mut().zip(present).filter(|(_, here)| *here);
        kinds
            .map(|(kind, _)| {
                if let Some(stops) = &mut kind.stops
                    && round >= stops.next
                {
                    stops.next = Round(round.0 + stops.every);
                    kind.busy = kind.busy.max(at) + stops.lasts;
                }
                kind.busy = kind.busy.max(at) + kind.pass;
                (kind.shards.clone(), kind.busy)
            })
            .collect()
    }
}
