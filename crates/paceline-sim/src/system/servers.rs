//! What shards are at: folding, updating, or nothing at all.

use std::{collections::BTreeSet, ops::Range, time::Duration};

use paceline_core::{Round, ShardId, Time};

use super::SystemSpec;

/// Which kinds of shards have a part in something, by their place in [`SystemSpec::kinds`].
pub(super) type Present = [bool; 2];

/// All shards. Those of a kind do the same at the same moments.
#[derive(Debug, Clone)]
pub(super) struct Servers {
    kinds: Vec<Kind>,
}

#[derive(Debug, Clone)]
struct Kind {
    shards: Range<u32>,
    /// Going over its part once.
    pass: Duration,
    /// Until when it is folding what was accepted, and updating.
    busy: Time,
    stops: Option<Stops>,
}

/// A stop before an update, every so many rounds.
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
        let kind = |(shards, slow): (Range<u32>, bool)| Kind {
            shards,
            pass: if slow { spec.pass().mul_f64(spec.slow_fold) } else { spec.pass() },
            busy: Time::ZERO,
            stops: stops.filter(|_| slow),
        };
        Servers { kinds: spec.kinds().map(kind).collect() }
    }

    /// The kinds of these shards, of which it has all or none.
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

    /// How many shards these are.
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

    /// These fold a contribution that was accepted.
    pub(super) fn fold(&mut self, present: Present, at: Time) {
        for (kind, _) in self.kinds.iter_mut().zip(present).filter(|(_, here)| *here) {
            kind.busy = kind.busy.max(at) + kind.pass;
        }
    }

    /// These make the update of a round that closes; returns when each kind will have made it.
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
