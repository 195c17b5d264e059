//! The workers as the coordinator knows them: how to reach each, and who may push.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use paceline_core::{Time, Version, WorkerId};
use paceline_wire::{frame::encode_control, message::ToWorker};
use tokio::sync::mpsc::UnboundedSender;

/// Where frames for a worker go; dropping it ends the connection.
pub(crate) type Outbox = UnboundedSender<Arc<[u8]>>;

/// A worker that is let in.
#[derive(Debug)]
struct Peer {
    session: u64,
    name: String,
    outbox: Outbox,
    /// When a sign of life of it was answered last.
    answered: Option<Time>,
}

/// Everybody who is let in.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    peers: BTreeMap<WorkerId, Peer>,
    /// Those who were shown out, by session, until their connections have ended: why is on its way.
    leaving: BTreeSet<(WorkerId, u64)>,
}

impl Workers {
    /// The number a worker gets: the one it wishes for if that is free, else the lowest free one.
    pub(crate) fn number(&self, wish: Option<u32>) -> WorkerId {
        let free = |worker: &WorkerId| !self.peers.contains_key(worker);
        let lowest = || (0..).map(WorkerId).find(free).expect("there are more numbers than peers");
        wish.map(WorkerId).filter(|w| w.0 < MAX_WORKERS && free(w)).unwrap_or_else(lowest)
    }

    pub(crate) fn len(&self) -> usize {
        self.peers.len()
    }

    pub(crate) fn add(&mut self, worker: WorkerId, session: u64, name: String, outbox: Outbox) {
        self.peers.insert(worker, Peer { session, name, outbox, answered: None });
    }

    pub(crate) fn name(&self, worker: WorkerId) -> &str {
        self.peers.get(&worker).map_or("", |peer| &peer.name)
    }

    /// Tells a worker why it is forgotten, if it can still hear it.
    pub(crate) fn expel(&mut self, worker: WorkerId, why: String) {
        let Some(peer) = self.peers.get(&worker) else { return };
        if !peer.outbox.is_closed() {
            self.leaving.insert((worker, peer.session));
            self.send(worker, &ToWorker::Expelled(why));
        }
    }

    /// A connection has ended of somebody who is forgotten.
    pub(crate) fn gone(&mut self, worker: WorkerId, session: u64) {
        self.leaving.remove(&(worker, session));
    }

    /// Whether anybody has a connection yet.
    pub(crate) fn any_connected(&self) -> bool {
        !self.peers.is_empty() || !self.leaving.is_empty()
    }

    /// Forgets a worker, which closes its connection; returns its name.
    pub(crate) fn remove(&mut self, worker: WorkerId) -> String {
        self.peers.remove(&worker).map(|peer| peer.name).unwrap_or_default()
    }

    /// Whether `session` is this worker's present incarnation.
    pub(crate) fn is_current(&self, worker: WorkerId, session: u64) -> bool {
        self.peers.get(&worker).is_some_and(|peer| peer.session == session)
    }

    pub(crate) fn send(&self, worker: WorkerId, message: &ToWorker) {
        self.send_frame(worker, encode_control(message).into());
    }

    /// The same message to many, encoded once.
    pub(crate) fn send_all(&self, workers: impl IntoIterator<Item = WorkerId>, message: &ToWorker) {
        let frame: Arc<[u8]> = encode_control(message).into();
        for worker in workers {
            self.send_frame(worker, Arc::clone(&frame));
        }
    }

    /// Answers a sign of life, but not before `least` has passed since the last answer: who floods
    /// us and does not read must not fill our memory.
    pub(crate) fn answer(&mut self, worker: WorkerId, sent: Duration, now: Time, least: Duration) {
        let Some(peer) = self.peers.get_mut(&worker) else { return };
        if peer.answered.is_none_or(|last| now >= last + least) {
            peer.answered = Some(now);
            self.send(worker, &ToWorker::Heard { sent });
        }
    }

    pub(crate) fn everyone(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.peers.keys().copied()
    }

    fn send_frame(&self, worker: WorkerId, frame: Arc<[u8]>) {
        if let Some(peer) = self.peers.get(&worker) {
            // A connection that has just ended is reported by its reader.
            let _ = peer.outbox.send(frame);
        }
    }
}

/// The most workers a run takes: worker numbers index a bit set that is sent to all.
pub(crate) const MAX_WORKERS: u32 = 1 << 16;

/// Places for contributions in the shards' staging memory. Whoever pushes holds one on *all*
/// shards, so two half-pushed contributions can never wait for each other.
///
/// A worker does one thing after the other, so it never needs more than one place: what it holds
/// for older work serves the newer.
#[derive(Debug)]
pub(crate) struct PushSlots {
    capacity: usize,
    /// Who holds a place, for work on which version.
    holders: BTreeMap<WorkerId, Version>,
    /// Never anybody while there is a free place.
    waiting: VecDeque<(WorkerId, Version)>,
}

impl PushSlots {
    pub(crate) fn new(capacity: usize) -> Self {
        PushSlots { capacity, holders: BTreeMap::new(), waiting: VecDeque::new() }
    }

    /// Reserves a place at the start of the work, if there is one for every one of `workers`.
    pub(crate) fn reserve(&mut self, worker: WorkerId, base: Version, workers: usize) -> bool {
        let room = self.holders.contains_key(&worker) || self.holders.len() < self.capacity;
        let granted = workers <= self.capacity && room;
        if granted {
            self.holders.insert(worker, base);
        }
        granted
    }

    /// A worker is done and wants to push. Whether to tell it that it may; it knows already if its
    /// place was reserved, and is told later if there is none now.
    pub(crate) fn request(&mut self, worker: WorkerId, base: Version) -> bool {
        if let Some(held) = self.holders.get_mut(&worker) {
            return std::mem::replace(held, base) != base;
        }
        if self.holders.len() < self.capacity {
            self.holders.insert(worker, base);
            return true;
        }
        self.waiting.push_back((worker, base));
        false
    }

    /// A worker's contribution from `base` was taken, dropped or given up, and so is all before.
    /// Returns who may push next.
    pub(crate) fn release(
        &mut self,
        worker: WorkerId,
        base: Version,
    ) -> Option<(WorkerId, Version)> {
        self.waiting.retain(|&(waiting, wanted)| waiting != worker || wanted > base);
        if self.holders.get(&worker).is_none_or(|&held| held > base) {
            return None;
        }
        self.holders.remove(&worker);
        let next = self.waiting.pop_front()?;
        self.holders.insert(next.0, next.1);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_gets_the_number_it_wishes_for_unless_somebody_has_it() {
        let mut workers = Workers::default();
        let outbox = tokio::sync::mpsc::unbounded_channel().0;
        workers.add(WorkerId(1), 7, String::new(), outbox);
        assert_eq!(workers.number(Some(3)), WorkerId(3));
        assert_eq!(workers.number(Some(1)), WorkerId(0));
        assert_eq!(workers.number(None), WorkerId(0));
        assert_eq!(workers.number(Some(u32::MAX)), WorkerId(0));
    }

    #[test]
    fn a_flood_of_signs_of_life_gets_an_answer_now_and_then() {
        let mut workers = Workers::default();
        let (outbox, mut frames) = tokio::sync::mpsc::unbounded_channel();
        workers.add(WorkerId(1), 7, String::new(), outbox);
        let least = Duration::from_millis(250);
        for millis in 0..1000 {
            let sent = Duration::from_millis(millis);
            workers.answer(WorkerId(1), sent, Time::ZERO + sent, least);
        }
        let answers = std::iter::from_fn(|| frames.try_recv().ok());
        let heard = [0, 250, 500, 750].map(|millis| {
            encode_control(&ToWorker::Heard { sent: Duration::from_millis(millis) }).into()
        });
        assert_eq!(answers.collect::<Vec<Arc<[u8]>>>(), heard);
    }

    #[test]
    fn with_room_for_all_everyone_pushes_at_once() {
        let mut slots = PushSlots::new(2);
        assert!(slots.reserve(WorkerId(0), Version(0), 2));
        assert!(slots.reserve(WorkerId(1), Version(0), 2));
        assert!(slots.reserve(WorkerId(1), Version(1), 2), "the next round's work keeps the place");
        assert!(!slots.request(WorkerId(1), Version(1)), "it need not be told");
        assert!(!slots.reserve(WorkerId(2), Version(1), 3));
    }

    #[test]
    fn with_too_little_room_those_who_are_done_push_in_turn() {
        let mut slots = PushSlots::new(1);
        let base = Version(4);
        for worker in 0..3 {
            assert!(!slots.reserve(WorkerId(worker), base, 3));
        }
        assert!(slots.request(WorkerId(2), base));
        assert!(!slots.request(WorkerId(0), base));
        assert!(!slots.request(WorkerId(1), base));
        assert_eq!(slots.release(WorkerId(0), base), None, "it gave up waiting");
        assert_eq!(slots.release(WorkerId(2), base), Some((WorkerId(1), base)));
        assert_eq!(slots.release(WorkerId(1), base), None);
        assert!(slots.request(WorkerId(0), base));
    }

    #[test]
    fn a_place_for_older_work_serves_the_newer_and_is_never_lost() {
        let mut slots = PushSlots::new(1);
        let (old, new) = (Version(4), Version(5));
        // Said before its round was cut, heard after.
        assert!(slots.request(WorkerId(0), old));
        assert!(!slots.reserve(WorkerId(0), new, 2));
        assert!(!slots.request(WorkerId(1), new));
        assert!(slots.request(WorkerId(0), new), "what it was told before was for older work");
        assert_eq!(slots.release(WorkerId(0), old), None, "it pushes the newer");
        assert_eq!(slots.release(WorkerId(0), new), Some((WorkerId(1), new)));
    }
}
