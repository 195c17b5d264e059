//! Push credits: which workers may push, given the shards' staging memory and the capacity of a link. Shards
//! limit their concurrent answers to pulls by the same number.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use paceline_core::{ContributionId, Time, WorkerId};

/// Contributions pushed at the same time, whatever their size: enough to keep a link busy while one ends and
/// the next begins, too few for their first segments to overflow its queue.
const SIDE_BY_SIDE: usize = 4;
/// Small contributions may all be pushed at the same time, up to this many bytes in total.
const AT_ONCE: u64 = 1 << 20;
/// A push that takes this many times the usual duration is slow by itself and no longer blocks others.
const OVERDUE: u32 = 3;
/// No push is overdue sooner than this.
const PATIENCE: Duration = Duration::from_millis(20);

/// How many workers may move `bytes` bytes each at the same time.
pub(crate) fn at_once(bytes: u64) -> usize {
    SIDE_BY_SIDE.max((AT_ONCE / bytes.max(1)) as usize)
}

/// Permission to push. A worker that has it holds a place on *all* shards, so two half-pushed contributions
/// can never wait for each other. The number of concurrent pushes is limited: the first segments of more
/// would overflow a link's queue and be retransmitted 200 ms later.
///
/// A worker pushes one contribution after the other, so it never needs more than one place: its place for
/// older work serves the newer.
#[derive(Debug)]
pub(crate) struct Credits {
    /// Places in the staging memory.
    places: usize,
    at_once: usize,
    holders: BTreeMap<WorkerId, Holder>,
    /// Workers that wait to push. Empty while a place and a turn are free.
    waiting: VecDeque<(WorkerId, ContributionId)>,
    /// Smoothed duration of a push.
    usual: Duration,
}

#[derive(Debug)]
struct Holder {
    id: ContributionId,
    /// When it was told to push; `None` if its place was reserved.
    since: Option<Time>,
}

impl Credits {
    /// With `places` places, for contributions of `bytes` bytes.
    pub(crate) fn new(places: usize, bytes: u64) -> Self {
        let at_once = at_once(bytes);
        let (holders, waiting) = (BTreeMap::new(), VecDeque::new());
        Credits { places, at_once, holders, waiting, usual: Duration::ZERO }
    }

    /// Reserves a place at the start of the work, if all `workers` may push at the same time.
    pub(crate) fn reserve(&mut self, worker: WorkerId, id: ContributionId, workers: usize) -> bool {
        let room = self.holders.contains_key(&worker) || self.holders.len() < self.places;
        let granted = workers <= self.places.min(self.at_once) && room;
        if granted {
            self.holders.insert(worker, Holder { id, since: None });
        }
        granted
    }

    /// A worker has computed its contribution and asks to push. Returns whether to tell it that it may: it
    /// already knows if its place was reserved, and is told later if it must wait.
    pub(crate) fn request(&mut self, worker: WorkerId, id: ContributionId, now: Time) -> bool {
        if let Some(held) = self.holders.get_mut(&worker) {
            let known = held.id == id;
            if !known {
                *held = Holder { id, since: Some(now) };
            }
            return !known;
        }
        if self.has_turn(now) {
            self.holders.insert(worker, Holder { id, since: Some(now) });
            return true;
        }
        self.waiting.push_back((worker, id));
        false
    }

    /// A worker's contribution was accepted, dropped or given up, and so were all earlier ones.
    pub(crate) fn release(&mut self, worker: WorkerId, id: ContributionId, now: Time) {
        self.waiting.retain(|&(waiting, wanted)| waiting != worker || wanted > id);
        if self.holders.get(&worker).is_some_and(|held| held.id <= id)
            && let Some(Holder { since: Some(since), .. }) = self.holders.remove(&worker)
        {
            let took = now.since(since);
            self.usual = if self.usual.is_zero() { took } else { (7 * self.usual + took) / 8 };
        }
    }

    /// The worker that may push next, if there is a turn.
    pub(crate) fn next(&mut self, now: Time) -> Option<(WorkerId, ContributionId)> {
        let (worker, id) = *self.waiting.front().filter(|_| self.has_turn(now))?;
        self.waiting.pop_front();
        self.holders.insert(worker, Holder { id, since: Some(now) });
        Some((worker, id))
    }

    /// The time at which [`Self::next`] may return a worker although nothing was released.
    pub(crate) fn next_wake(&self, now: Time) -> Option<Time> {
        if self.waiting.is_empty() || self.holders.len() >= self.places {
            return None;
        }
        let overdue = self.overdue();
        let moments = self.holders.values().filter_map(|held| Some(held.since? + overdue));
        moments.filter(|&at| at > now).min()
    }

    fn overdue(&self) -> Duration {
        PATIENCE.max(OVERDUE * self.usual)
    }

    fn has_turn(&self, now: Time) -> bool {
        let overdue = self.overdue();
        let pushing = self
            .holders
            .values()
            .filter(|held| held.since.is_none_or(|since| now < since + overdue));
        self.holders.len() < self.places && pushing.count() < self.at_once
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: u64 = 4_000_000;

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn with_room_for_all_everyone_pushes_at_once() {
        let mut credits = Credits::new(2, LARGE);
        assert!(credits.reserve(WorkerId(0), ContributionId(0), 2));
        assert!(credits.reserve(WorkerId(1), ContributionId(0), 2));
        let kept = credits.reserve(WorkerId(1), ContributionId(1), 2);
        assert!(kept, "the next round's work keeps the place");
        assert!(!credits.request(WorkerId(1), ContributionId(1), at(0)), "it need not be told");
        assert!(!credits.reserve(WorkerId(2), ContributionId(1), 3));
    }

    #[test]
    fn with_too_little_room_those_who_are_done_push_in_turn() {
        let mut credits = Credits::new(1, LARGE);
        let id = ContributionId(4);
        for worker in 0..3 {
            assert!(!credits.reserve(WorkerId(worker), id, 3));
        }
        assert!(credits.request(WorkerId(2), id, at(0)));
        assert!(!credits.request(WorkerId(0), id, at(0)));
        assert!(!credits.request(WorkerId(1), id, at(0)));
        credits.release(WorkerId(0), id, at(1));
        assert_eq!(credits.next(at(1)), None, "it gave up waiting");
        credits.release(WorkerId(2), id, at(1));
        assert_eq!(credits.next(at(1)), Some((WorkerId(1), id)));
        credits.release(WorkerId(1), id, at(2));
        assert_eq!(credits.next(at(2)), None);
        assert!(credits.request(WorkerId(0), id, at(2)));
    }

    #[test]
    fn a_place_for_older_work_serves_the_newer_and_is_never_lost() {
        let mut credits = Credits::new(1, LARGE);
        let (old, new) = (ContributionId(4), ContributionId(5));
        // Requested before its round was cut, received after.
        assert!(credits.request(WorkerId(0), old, at(0)));
        assert!(!credits.reserve(WorkerId(0), new, 2));
        assert!(!credits.request(WorkerId(1), new, at(0)));
        let told = credits.request(WorkerId(0), new, at(0));
        assert!(told, "what it was told before was for older work");
        credits.release(WorkerId(0), old, at(1));
        assert_eq!(credits.next(at(1)), None, "it pushes the newer");
        credits.release(WorkerId(0), new, at(1));
        assert_eq!(credits.next(at(1)), Some((WorkerId(1), new)));
    }

    #[test]
    fn large_contributions_are_paced_and_small_ones_are_not() {
        let id = ContributionId(0);
        let granted = |bytes: u64| {
            let mut credits = Credits::new(200, bytes);
            assert!(!credits.reserve(WorkerId(0), id, 400));
            (0..100).filter(|&worker| credits.request(WorkerId(worker), id, at(0))).count()
        };
        assert_eq!(granted(LARGE), SIDE_BY_SIDE);
        assert_eq!(granted(4_000), 100);
    }

    #[test]
    fn whoever_pushes_slowly_holds_nobody_up() {
        let mut credits = Credits::new(200, LARGE);
        let id = ContributionId(0);
        for worker in 0..20 {
            credits.request(WorkerId(worker), id, at(0));
        }
        credits.release(WorkerId(0), id, at(10));
        assert_eq!(credits.next(at(10)), Some((WorkerId(4), id)));
        assert_eq!(credits.next(at(10)), None);
        // Three pushes make no progress.
        let wake = credits.next_wake(at(10)).unwrap();
        assert_eq!(wake, at(30));
        let next = std::iter::from_fn(|| credits.next(wake)).count();
        assert_eq!(next, 3);
        // The others wait, and nothing will change for a while.
        assert!(credits.next_wake(wake).is_some_and(|at| at > wake));
    }
}
