//! Who may push when: room in the shards' memory, and as many at once as a link can take. As many are
//! answered at once when they pull.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use paceline_core::{ContributionId, Time, WorkerId};

/// So many contributions are pushed side by side, whatever their size: enough to keep a link busy while
/// one ends and the next begins, too few for their first segments to overflow its queue.
const SIDE_BY_SIDE: usize = 4;
/// Small ones go all at once, up to so many bytes.
const AT_ONCE: u64 = 1 << 20;
/// Whoever takes so many times as long as is usual is slow by itself, and holds nobody up.
const OVERDUE: u32 = 3;
/// No push is overdue before that.
const PATIENCE: Duration = Duration::from_millis(20);

/// How many may move so many bytes each at once.
pub(crate) fn at_once(bytes: u64) -> usize {
    SIDE_BY_SIDE.max((AT_ONCE / bytes.max(1)) as usize)
}

/// Leave to push. Whoever has it holds a place on *all* shards, so two half-pushed contributions can
/// never wait for each other; and only so many push at once, since the first segments of more would be
/// lost in the queue of a link and be sent again a fifth of a second later.
///
/// A worker does one thing after the other, so it never needs more than one place: what it holds
/// for older work serves the newer.
#[derive(Debug)]
pub(crate) struct Credits {
    /// Places in the staging memory.
    places: usize,
    at_once: usize,
    holders: BTreeMap<WorkerId, Holder>,
    /// Never anybody while there is a free place and a turn.
    waiting: VecDeque<(WorkerId, ContributionId)>,
    /// How long a push takes, smoothed.
    usual: Duration,
}

#[derive(Debug)]
struct Holder {
    id: ContributionId,
    /// When it was told to push; not known of one whose place was reserved.
    since: Option<Time>,
}

impl Credits {
    /// With so many places, for contributions of so many bytes.
    pub(crate) fn new(places: usize, bytes: u64) -> Self {
        let at_once = at_once(bytes);
        let (holders, waiting) = (BTreeMap::new(), VecDeque::new());
        Credits { places, at_once, holders, waiting, usual: Duration::ZERO }
    }

    /// Reserves a place at the start of the work, if every one of `workers` may push at once.
    pub(crate) fn reserve(&mut self, worker: WorkerId, id: ContributionId, workers: usize) -> bool {
        let room = self.holders.contains_key(&worker) || self.holders.len() < self.places;
        let granted = workers <= self.places.min(self.at_once) && room;
        if granted {
            self.holders.insert(worker, Holder { id, since: None });
        }
        granted
    }

    /// A worker is done and wants to push. Whether to tell it that it may; it knows already if its
    /// place was reserved, and is told later if it is not its turn now.
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

    /// A worker's contribution was taken, dropped or given up, and so were all before it.
    pub(crate) fn release(&mut self, worker: WorkerId, id: ContributionId, now: Time) {
        self.waiting.retain(|&(waiting, wanted)| waiting != worker || wanted > id);
        if self.holders.get(&worker).is_some_and(|held| held.id <= id)
            && let Some(Holder { since: Some(since), .. }) = self.holders.remove(&worker)
        {
            let took = now.since(since);
            self.usual = if self.usual.is_zero() { took } else { (7 * self.usual + took) / 8 };
        }
    }

    /// Who may push next, if it is somebody's turn.
    pub(crate) fn next(&mut self, now: Time) -> Option<(WorkerId, ContributionId)> {
        let (worker, id) = *self.waiting.front().filter(|_| self.has_turn(now))?;
        self.waiting.pop_front();
        self.holders.insert(worker, Holder { id, since: Some(now) });
        Some((worker, id))
    }

    /// When [`Self::next`] may have somebody although nothing was released.
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
        // Said before its round was cut, heard after.
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
        // Three do not move any more.
        let wake = credits.next_wake(at(10)).unwrap();
        assert_eq!(wake, at(30));
        let next = std::iter::from_fn(|| credits.next(wake)).count();
        assert_eq!(next, 3);
        // Others wait, and nothing will change for a while.
        assert!(credits.next_wake(wake).is_some_and(|at| at > wake));
    }
}
