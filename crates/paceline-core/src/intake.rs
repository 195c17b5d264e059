//! A worker's parameters as they arrive, where values of slow shards may be stale.
//!
//! The rule is that of [`Shards`]: the worker does not wait for a shard that answers too late, and keeps the
//! shard's old values until new ones arrive or the old ones are too stale.

use crate::{ShardId, Shards, Time, Version};

/// The version that a worker holds of each shard's values, and the newer versions that it waits for.
pub struct Intake {
    wait: Shards,
    max_stale: u64,
    /// The version held of each shard's values, unless it is too stale.
    held: Vec<Option<Version>>,
    /// Whether a request to this shard is pending.
    asked: Vec<bool>,
    wanted: Version,
    /// The shards whose newest values are wanted.
    told: Vec<ShardId>,
    /// The shards that do not have the wanted version.
    behind: Vec<u32>,
}

impl Intake {
    /// Waits for new values as `wait` decides, which must request anew each time ([`Shards::asked_anew`]).
    /// Old values may be used for `max_stale` rounds.
    pub fn new(wait: Shards, max_stale: u64) -> Intake {
        let shards = wait.count();
        Intake {
            wait,
            max_stale,
            held: vec![None; shards],
            asked: vec![false; shards],
            wanted: Version(0),
            told: Vec::new(),
            behind: Vec::new(),
        }
    }

    /// A shard will send values that were not requested here.
    pub fn is_coming(&mut self, shard: ShardId) {
        self.asked[shard.0 as usize] = true;
    }

    /// Begins work on `wanted`, a version that the shards in `behind` do not have. Returns the requests to
    /// send: each shard with the oldest version that it may answer with. For a shard in `behind` the held
    /// values suffice; if they are too stale, it may answer with any version.
    pub fn want(&mut self, wanted: Version, behind: &[u32], now: Time) -> Vec<(ShardId, Version)> {
        self.wanted = wanted;
        self.behind = behind.to_vec();
        self.told = self.wait.update(|shard| !behind.contains(&shard.0), now);
        for &shard in &self.told {
            let held = self.held[shard.0 as usize].map_or(0, |held| held.0);
            self.wait.caught_up(shard, wanted.0.saturating_sub(held + 1));
        }
        let oldest = Version(wanted.0.saturating_sub(self.max_stale));
        let mut wants: Vec<(ShardId, Version)> =
            self.told.iter().map(|&shard| (shard, wanted)).collect();
        for &shard in behind {
            let Some(held) = self.held.get_mut(shard as usize) else { continue };
            if held.is_none_or(|held| held < oldest) {
                *held = None;
                wants.push((ShardId(shard), Version(0)));
            }
        }
        wants.retain(|(shard, _)| !std::mem::replace(&mut self.asked[shard.0 as usize], true));
        wants
    }

    /// A shard has answered with version `found`. Returns the version to request next, if that answer was to
    /// an older request.
    pub fn landed(&mut self, shard: ShardId, found: Version, now: Time) -> Option<Version> {
        let index = shard.0 as usize;
        self.asked[index] = false;
        self.held[index] = Some(found.min(self.wanted));
        match self.wanted.0.saturating_sub(found.0) {
            0 => {
                // A shard that is behind has no request under the rule.
                let _ = self.wait.answered(shard, now);
                None
            }
            missed => {
                self.wait.caught_up(shard, missed - 1);
                self.asked[index] = self.told.contains(&shard);
                self.asked[index].then_some(self.wanted)
            }
        }
    }

    /// Decides whether enough shards have answered. Returns the shard that is waited for only because of the
    /// staleness bound, if there is one, and how many rounds old its values are.
    pub fn advance(&mut self, now: Time) -> Option<(ShardId, u64)> {
        self.wait.advance(now)
    }

    /// Shards without usable values.
    pub fn missing(&self) -> impl Iterator<Item = ShardId> + '_ {
        let held = (0..).zip(&self.held);
        held.filter(|(_, held)| held.is_none()).map(|(shard, _)| ShardId(shard))
    }

    /// Whether the work may begin.
    pub fn is_ready(&self) -> bool {
        self.wait.is_ready() && self.held.iter().all(Option::is_some)
    }

    /// The next moment at which [`Self::advance`] must be called even if nothing happens.
    pub fn next_wake(&self) -> Option<Time> {
        self.wait.next_wake()
    }

    /// Shards that have the wanted version while the worker uses older values.
    pub fn stale(&self) -> impl Iterator<Item = u32> + '_ {
        let held = (0..).zip(&self.held);
        let old = held.filter(|(_, held)| **held != Some(self.wanted)).map(|(shard, _)| shard);
        old.filter(|shard| !self.behind.contains(shard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shards::tests::{First, at};

    fn ready(intake: &mut Intake, ms: u64) -> bool {
        intake.advance(at(ms));
        intake.is_ready()
    }

    #[test]
    fn old_values_do_until_they_are_too_old_and_slow_ones_land_as_they_come() {
        let wait = Shards::asked_anew(&[1, 1], Box::new(First(1)), 1, 2);
        let mut intake = Intake::new(wait, 2);
        let (quick, slow) = (ShardId(0), ShardId(1));
        let v = Version;
        assert_eq!(intake.want(v(5), &[], at(0)), [(quick, v(5)), (slow, v(5))]);
        assert_eq!(intake.landed(quick, v(5), at(1)), None);
        assert!(!ready(&mut intake, 1), "nothing at all is here of the slow one");
        assert_eq!(intake.landed(slow, v(5), at(9)), None);
        assert!(ready(&mut intake, 9));
        for round in 6..8 {
            // The slow shard's answer to version 6 is on its way all the time.
            let asked = intake.want(v(round), &[], at(10 * round));
            assert_eq!(asked.contains(&(slow, v(6))), round == 6, "{asked:?}");
            intake.landed(quick, v(round), at(10 * round + 1));
            assert!(ready(&mut intake, 10 * round + 1), "{round}");
            assert_eq!(intake.stale().collect::<Vec<_>>(), [1]);
        }
        // With version 8 its values would be three rounds old.
        intake.want(v(8), &[], at(80));
        intake.landed(quick, v(8), at(81));
        assert!(!ready(&mut intake, 81));
        assert_eq!(intake.landed(slow, v(6), at(82)), Some(v(8)), "the newest is wanted");
        assert!(ready(&mut intake, 82), "two rounds old will do");
    }

    #[test]
    fn what_is_coming_anyway_is_not_asked_for_and_asked_for_again_if_it_is_old() {
        let mut intake = Intake::new(Shards::asked_anew(&[1, 1], Box::new(First(2)), 2, 2), 2);
        let (ahead, other) = (ShardId(0), ShardId(1));
        assert_eq!(intake.missing().collect::<Vec<_>>(), [ahead, other]);
        intake.is_coming(ahead);
        assert_eq!(intake.want(Version(5), &[], at(0)), [(other, Version(5))]);
        assert_eq!(intake.landed(other, Version(5), at(1)), None);
        assert_eq!(
            intake.landed(ahead, Version(4), at(2)),
            Some(Version(5)),
            "it was asked too soon"
        );
        assert!(!ready(&mut intake, 2));
        assert_eq!(intake.landed(ahead, Version(5), at(3)), None);
        assert!(ready(&mut intake, 3) && intake.missing().next().is_none());
    }

    #[test]
    fn who_is_behind_is_asked_for_anything_where_nothing_of_use_is_here() {
        let mut intake = Intake::new(Shards::asked_anew(&[1, 1], Box::new(First(2)), 2, 2), 2);
        assert_eq!(
            intake.want(Version(9), &[1], at(0)),
            [(ShardId(0), Version(9)), (ShardId(1), Version(0))]
        );
        assert_eq!(intake.landed(ShardId(0), Version(9), at(1)), None);
        assert!(!ready(&mut intake, 1));
        assert_eq!(intake.landed(ShardId(1), Version(8), at(2)), None);
        assert!(ready(&mut intake, 2));
        assert_eq!(intake.stale().count(), 0, "nobody has newer ones");
        assert_eq!(intake.want(Version(10), &[1], at(3)), [(ShardId(0), Version(10))]);
    }
}
