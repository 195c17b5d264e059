//! The workers as the coordinator knows them: how to reach each, and who may push.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use paceline_core::{Version, WorkerId};
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
}

/// Everybody who is let in.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    peers: BTreeMap<WorkerId, Peer>,
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
        self.peers.insert(worker, Peer { session, name, outbox });
    }

    pub(crate) fn name(&self, worker: WorkerId) -> &str {
        self.peers.get(&worker).map_or("", |peer| &peer.name)
    }

    /// Forgets a worker, which closes its connection.
    pub(crate) fn remove(&mut self, worker: WorkerId) {
        self.peers.remove(&worker);
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
#[derive(Debug)]
pub(crate) struct PushSlots {
    capacity: usize,
    holders: BTreeSet<WorkerId>,
    waiting: VecDeque<(WorkerId, Version)>,
}

impl PushSlots {
    pub(crate) fn new(capacity: usize) -> Self {
        PushSlots { capacity, holders: BTreeSet::new(), waiting: VecDeque::new() }
    }

    /// Reserves a place at the start of the work, if there is one for every one of `workers`.
    pub(crate) fn reserve(&mut self, worker: WorkerId, workers: usize) -> bool {
        self.waiting.retain(|&(waiting, _)| waiting != worker);
        let room = self.holders.contains(&worker) || self.holders.len() < self.capacity;
        let granted = workers <= self.capacity && room;
        match granted {
            true => self.holders.insert(worker),
            false => self.holders.remove(&worker),
        };
        granted
    }

    /// A worker is done and wants to push. Whether it may, now; else it is told later.
    pub(crate) fn request(&mut self, worker: WorkerId, base: Version) -> bool {
        if self.holders.contains(&worker) {
            return false;
        }
        if self.holders.len() < self.capacity && self.waiting.is_empty() {
            return self.holders.insert(worker);
        }
        self.waiting.push_back((worker, base));
        false
    }

    /// A contribution was taken, dropped or given up. Returns who may push next.
    pub(crate) fn release(&mut self, worker: WorkerId) -> Option<(WorkerId, Version)> {
        self.waiting.retain(|&(waiting, _)| waiting != worker);
        if !self.holders.remove(&worker) {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.holders.insert(next.0);
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
    fn with_room_for_all_everyone_pushes_at_once() {
        let mut slots = PushSlots::new(2);
        assert!(slots.reserve(WorkerId(0), 2));
        assert!(slots.reserve(WorkerId(1), 2));
        assert!(slots.reserve(WorkerId(1), 2), "the next round's work keeps the place");
        assert!(!slots.reserve(WorkerId(2), 3));
    }

    #[test]
    fn with_too_little_room_those_who_are_done_push_in_turn() {
        let mut slots = PushSlots::new(1);
        let base = Version(4);
        for worker in 0..3 {
            assert!(!slots.reserve(WorkerId(worker), 3));
        }
        assert!(slots.request(WorkerId(2), base));
        assert!(!slots.request(WorkerId(0), base));
        assert!(!slots.request(WorkerId(1), base));
        assert_eq!(slots.release(WorkerId(0)), None, "it gave up waiting");
        assert_eq!(slots.release(WorkerId(2)), Some((WorkerId(1), base)));
        assert_eq!(slots.release(WorkerId(1)), None);
        assert!(slots.request(WorkerId(0), base));
    }
}
