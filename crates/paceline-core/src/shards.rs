//! The shards of a round: those that are up to date when it opens.
//!
//! A round opens on the shards that have applied the previous round's update in time; the others are behind.
//! No update of the round reaches a shard that is behind, so its backlog does not grow. It takes part again
//! in the round after it has answered. The wait for answers is decided as for workers, by a policy over
//! response times (`wait.rs`). The round always waits for a shard that has missed `most_stale` updates.
//!
//! The same rule serves other waits for several shards: a worker's wait for the values it pulls, and the
//! coordinator's wait for the parts of a contribution.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    Announcement, Arrival, ContributionId, Decision, Handout, MachineError, Policy, Round,
    RoundView, SampleRange, ShardId, Time, WorkerId, roster::Terms, wait::Wait,
};

/// Shards that update side by side, some perhaps slower than others.
pub struct Shards {
    /// The wait, in which participants are shards, rounds are updates and samples are blocks.
    wait: Wait,
    /// Whether the policy has stopped waiting for answers to the last update.
    decided: bool,
    blocks: Vec<u32>,
    /// The pending answer of each shard, if there is one.
    owed: Vec<Option<Owed>>,
    /// Updates that each shard without a pending answer has missed: it was not asked, or answered too late.
    missed: Vec<u64>,
    /// Whether shards that have not answered are asked again the next time.
    anew: bool,
    /// The shards that the last update was sent to.
    told: Vec<ShardId>,
    /// The least number of fresh blocks of a round.
    least: u32,
    most_stale: u64,
    fresh: BTreeSet<ShardId>,
    /// Whether an update is under way and too few shards have answered.
    waits: bool,
}

#[derive(Debug, Clone, Copy)]
struct Owed {
    id: ContributionId,
    /// Updates that have gone by without its answer.
    missed: u64,
}

/// Waits for all shards.
struct Everyone;

impl Policy for Everyone {
    fn name(&self) -> String {
        "all".to_owned()
    }

    fn decide(&mut self, _view: &RoundView<'_>) -> Decision {
        Decision::WAIT
    }
}

impl Shards {
    /// `shards` shards, all of which are waited for.
    pub fn all(shards: u32) -> Shards {
        Shards::new(&vec![1; shards as usize], Box::new(Everyone), 0, 0)
    }

    /// Shards with the given numbers of `blocks`. Waits for them as `policy` decides, but always until
    /// `least` blocks are fresh and for shards that have missed `most_stale` updates.
    pub fn new(blocks: &[u32], policy: Box<dyn Policy>, least: u32, most_stale: u64) -> Shards {
        Shards::build(blocks, policy, least, most_stale, false)
    }

    /// The same for independent requests: a shard that has not answered the last one is still sent the next.
    pub fn asked_anew(
        blocks: &[u32],
        policy: Box<dyn Policy>,
        least: u32,
        most_stale: u64,
    ) -> Shards {
        Shards::build(blocks, policy, least, most_stale, true)
    }

    fn build(
        blocks: &[u32],
        policy: Box<dyn Policy>,
        least: u32,
        most_stale: u64,
        anew: bool,
    ) -> Shards {
        let lag = policy.admissible_lag();
        let terms = Terms { quorum: 1, partial: 1, micro_batches: 1, batch: 0, lag };
        Shards {
            wait: Wait::new(policy, Round(0), terms),
            decided: true,
            anew,
            told: Vec::new(),
            blocks: blocks.iter().map(|&blocks| blocks.max(1)).collect(),
            owed: vec![None; blocks.len()],
            missed: vec![0; blocks.len()],
            least,
            most_stale,
            fresh: (0..blocks.len() as u32).map(ShardId).collect(),
            waits: false,
        }
    }

    /// The shards of the open round, or of the next.
    pub fn fresh(&self) -> &BTreeSet<ShardId> {
        &self.fresh
    }

    /// The other shards.
    pub fn left_out(&self) -> impl Iterator<Item = ShardId> {
        self.numbers().filter(|shard| !self.fresh.contains(shard))
    }

    /// The number of shards.
    pub fn count(&self) -> usize {
        self.blocks.len()
    }

    /// The shards that are behind, and how many updates each has missed.
    pub fn behind(&self) -> impl Iterator<Item = (ShardId, u64)> {
        let owed = (0..).map(ShardId).zip(&self.owed);
        owed.filter_map(|(shard, owed)| owed.map(|owed| (shard, owed.missed)))
    }

    /// Whether enough shards have applied the last update for a round to open.
    pub fn is_ready(&self) -> bool {
        !self.waits
    }

    /// Starts an update on the fresh shards for which `among` holds, and ends the wait for the last one.
    /// Returns the shards to tell.
    pub fn update(&mut self, among: impl Fn(ShardId) -> bool, now: Time) -> Vec<ShardId> {
        self.catch_up(now);
        if !self.decided {
            self.decide(now);
        }
        let is_told = |shard: &ShardId| self.anew || self.fresh.contains(shard);
        let told: Vec<ShardId> =
            self.numbers().filter(|shard| is_told(shard) && among(*shard)).collect();
        if self.anew {
            self.drop_questions();
        }
        self.waits = !told.is_empty();
        self.told.clone_from(&told);
        if !self.waits {
            return told;
        }
        self.wait.open(now);
        self.decided = false;
        for &ShardId(shard) in &told {
            let range = SampleRange { epoch: 0, start: 0, end: self.blocks[shard as usize] };
            let handout = Handout::new(WorkerId(shard), range);
            let roster = &mut self.wait.roster;
            let base = roster.round.base();
            let id = roster.contributions.give(handout, base, &Arc::default(), now).id;
            let owed = &mut self.owed[shard as usize];
            let missed = owed.map_or(self.missed[shard as usize], |owed| owed.missed);
            *owed = Some(Owed { id, missed });
        }
        told
    }

    /// Answers to earlier requests no longer count.
    fn drop_questions(&mut self) {
        for (index, owed) in self.owed.iter_mut().enumerate() {
            if let Some(Owed { id, missed }) = owed.take() {
                // A request that was still waited for is not yet counted as missed.
                self.missed[index] = missed + u64::from(self.waits);
                self.wait.roster.contributions.remove(WorkerId(index as u32), id);
            }
        }
    }

    fn numbers(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.blocks.len() as u32).map(ShardId)
    }

    /// A shard has answered the last update that it was sent.
    pub fn answered(&mut self, shard: ShardId, now: Time) -> Result<(), MachineError> {
        self.heard(shard, now).map(|_| self.missed[shard.0 as usize] = 0)
    }

    /// A shard has answered too late: its missed updates stay counted.
    pub fn answered_in_vain(&mut self, shard: ShardId, now: Time) -> Result<(), MachineError> {
        self.heard(shard, now).map(|missed| self.missed[shard.0 as usize] = missed)
    }

    /// Takes in an answer. Returns how many updates the shard has missed.
    fn heard(&mut self, shard: ShardId, now: Time) -> Result<u64, MachineError> {
        self.catch_up(now);
        let worker = WorkerId(shard.0);
        let Some(Owed { id, missed }) = self.owed.get_mut(shard.0 as usize).and_then(Option::take)
        else {
            return Err(MachineError::Unknown(worker));
        };
        let weight = f64::from(self.blocks[shard.0 as usize]);
        let contributions = &mut self.wait.roster.contributions;
        let answer = Announcement { id, weight, loss: None, square: None };
        contributions.announce(worker, answer, now)?;
        let Some(answer) = contributions.remove(worker, id) else { return Ok(missed) };
        if self.decided || answer.base < self.wait.roster.round.base() {
            self.wait.late(&answer, now);
        } else {
            let run_time = answer.run_time(now);
            let arrival = Arrival { worker, weight, at: now, run_time, share: 1.0 };
            self.wait.accept(answer, arrival);
        }
        Ok(missed)
    }

    /// The policy has stopped waiting, or no shard is left to wait for.
    fn decide(&mut self, now: Time) {
        self.decided = true;
        let weight = self.wait.roster.weight();
        self.wait.close(now, now, weight);
    }

    fn ask_policy(&mut self, now: Time) {
        if self.wait.ask(now).is_none() {
            return;
        }
        match self.wait.roster.arrivals.is_empty() {
            true => self.wait.ask_later(None, 1),
            false => self.decide(now),
        }
    }

    /// Asks the policy at the times that it chose, as of those times.
    fn catch_up(&mut self, now: Time) {
        while !self.decided
            && let Some(at) = self.wait.overdue(now)
        {
            self.ask_policy(at);
        }
    }

    /// A shard that has not answered and has reached the staleness bound, with the updates that it has
    /// missed.
    pub fn at_bound(&self) -> Option<(ShardId, u64)> {
        self.behind().find(|&(_, missed)| missed >= self.most_stale)
    }

    /// The values held of a shard with a pending answer are at most `missed` updates old.
    pub fn caught_up(&mut self, shard: ShardId, missed: u64) {
        if let Some(owed) = self.owed.get_mut(shard.0 as usize).and_then(Option::as_mut) {
            owed.missed = missed;
        }
    }

    /// Decides whether enough shards have answered. Returns the shard that the round waits for only because
    /// of the staleness bound, if there is one, with the updates that it has missed.
    pub fn advance(&mut self, now: Time) -> Option<(ShardId, u64)> {
        if !self.waits {
            return None;
        }
        self.catch_up(now);
        if !self.decided {
            match self.wait.roster.is_anyone_outstanding() {
                true => self.ask_policy(now),
                false => self.decide(now),
            }
        }
        if !self.decided {
            return None;
        }
        let bound = self.at_bound();
        // With independent requests, only the shards that were asked count.
        let counts = |shard: &ShardId| !self.anew || self.told.contains(shard);
        let all = self.numbers().filter(counts).map(|ShardId(shard)| shard as usize);
        let (mut fresh, mut most) = (0, 0);
        for shard in all {
            most += self.blocks[shard];
            fresh += if self.owed[shard].is_none() { self.blocks[shard] } else { 0 };
        }
        if bound.is_some() || fresh < self.least.min(most) {
            return bound;
        }
        self.waits = false;
        for owed in self.owed.iter_mut().flatten() {
            owed.missed += 1;
        }
        let answered = |&ShardId(shard): &ShardId| self.owed[shard as usize].is_none();
        self.fresh = self.numbers().filter(answered).collect();
        None
    }

    /// The next moment at which [`Self::advance`] must be called even if nothing happens.
    pub fn next_wake(&self) -> Option<Time> {
        self.wait.next_wake().filter(|_| self.waits && !self.decided)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::CutReason;

    /// Waits for this many shards.
    pub(crate) struct First(pub(crate) usize);

    impl Policy for First {
        fn name(&self) -> String {
            "first".to_owned()
        }

        fn decide(&mut self, view: &RoundView<'_>) -> Decision {
            match view.arrivals.len() >= self.0 {
                true => Decision::cut(CutReason::Deadline),
                false => Decision::WAIT,
            }
        }
    }

    pub(crate) fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    fn fresh(shards: &Shards) -> Vec<u32> {
        shards.fresh().iter().map(|shard| shard.0).collect()
    }

    #[test]
    fn all_are_waited_for_unless_something_else_is_asked() {
        let mut shards = Shards::all(2);
        assert!(shards.is_ready());
        shards.update(|_| true, at(0));
        shards.answered(ShardId(1), at(1)).unwrap();
        shards.advance(at(1));
        assert!(!shards.is_ready());
        assert!(shards.answered(ShardId(1), at(2)).is_err(), "it owes nothing");
        assert!(shards.answered(ShardId(7), at(2)).is_err(), "there is no such shard");
        shards.answered(ShardId(0), at(2)).unwrap();
        shards.advance(at(2));
        assert!(shards.is_ready());
        assert_eq!(fresh(&shards), [0, 1]);
    }

    #[test]
    fn a_round_has_as_many_fresh_blocks_as_are_asked_for() {
        let mut shards = Shards::new(&[1, 2, 5], Box::new(First(1)), 6, 9);
        shards.update(|_| true, at(0));
        for (shard, ready) in [(1, false), (0, false), (2, true)] {
            shards.answered(ShardId(shard), at(1)).unwrap();
            shards.advance(at(1));
            assert_eq!(shards.is_ready(), ready, "{shard}");
        }
        shards.update(|_| true, at(2));
        shards.answered(ShardId(2), at(3)).unwrap();
        shards.answered(ShardId(0), at(3)).unwrap();
        shards.advance(at(3));
        assert_eq!(fresh(&shards), [0, 2]);
    }

    #[test]
    fn a_slow_shard_is_left_behind_comes_back_and_is_waited_for_at_the_bound() {
        let mut shards = Shards::new(&[4, 4, 4], Box::new(First(2)), 8, 3);
        let round = |shards: &mut Shards, ms: u64| {
            shards.update(|_| true, at(ms));
            shards.answered(ShardId(0), at(ms + 1)).unwrap();
            shards.answered(ShardId(2), at(ms + 1)).unwrap();
            shards.advance(at(ms + 1))
        };
        for (i, missed) in [(0, 1), (1, 2), (2, 3)] {
            assert_eq!(round(&mut shards, 10 * i), None);
            assert!(shards.is_ready());
            assert_eq!(fresh(&shards), [0, 2]);
            assert_eq!(shards.behind().collect::<Vec<_>>(), [(ShardId(1), missed)]);
        }
        // It has missed three updates: the fourth waits for it and names it.
        assert_eq!(round(&mut shards, 30), Some((ShardId(1), 3)));
        assert!(!shards.is_ready());
        shards.answered(ShardId(1), at(39)).unwrap();
        assert_eq!(shards.advance(at(39)), None);
        assert!(shards.is_ready());
        assert_eq!(fresh(&shards), [0, 1, 2]);
        assert_eq!(shards.behind().count(), 0);
    }

    #[test]
    fn who_does_not_answer_a_question_is_asked_the_next_and_waited_for_at_the_bound() {
        let mut shards = Shards::asked_anew(&[1, 1], Box::new(First(1)), 1, 2);
        for i in 0..2 {
            shards.update(|_| true, at(10 * i));
            shards.answered(ShardId(0), at(10 * i + 1)).unwrap();
            assert_eq!(shards.advance(at(10 * i + 1)), None);
            assert!(shards.is_ready());
            assert_eq!(fresh(&shards), [0]);
        }
        shards.update(|_| true, at(20));
        shards.answered(ShardId(0), at(21)).unwrap();
        assert_eq!(shards.advance(at(21)), Some((ShardId(1), 2)));
        assert!(!shards.is_ready());
        // An unanswered request is dropped: the next one starts anew.
        shards.update(|_| true, at(30));
        shards.answered(ShardId(1), at(31)).unwrap();
        assert_eq!(shards.advance(at(31)), None);
        assert!(shards.is_ready());
        assert_eq!(fresh(&shards), [1]);
        // Shards that are not asked are not waited for and do not count.
        for i in 0..5 {
            shards.update(|shard| shard == ShardId(1), at(40 + 10 * i));
            assert_eq!(shards.advance(at(40 + 10 * i)), None);
            assert!(!shards.is_ready());
            shards.answered(ShardId(1), at(41 + 10 * i)).unwrap();
            assert_eq!(shards.advance(at(41 + 10 * i)), None);
            assert!(shards.is_ready());
            assert_eq!(shards.behind().count(), 0);
        }
    }
}
