//! The admitted workers, and the channel to each.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use paceline_core::{MAX_WORKERS, Time, WorkerId};
use paceline_wire::{frame::encode_control, message::ToWorker};
use tokio::sync::mpsc::UnboundedSender;

/// The queue of frames to a worker. Dropping it ends the connection.
pub(crate) type Outbox = UnboundedSender<Arc<[u8]>>;

/// An admitted worker.
#[derive(Debug)]
struct Peer {
    session: u64,
    name: String,
    outbox: Outbox,
    /// When one of its heartbeats was last answered.
    answered: Option<Time>,
}

/// All admitted workers.
#[derive(Debug)]
pub(crate) struct Workers {
    /// A worker may ask for a number below this one.
    wishable: u32,
    peers: BTreeMap<WorkerId, Peer>,
    /// Expelled workers, by session, until their connections have ended: the reason is on its way to them.
    leaving: BTreeSet<(WorkerId, u64)>,
}

impl Workers {
    /// For a run that expects `expected` workers.
    pub(crate) fn new(expected: usize) -> Self {
        let wishable = roomy(expected).min(MAX_WORKERS as usize) as u32;
        Workers { wishable, peers: BTreeMap::new(), leaving: BTreeSet::new() }
    }

    /// The number of a new worker: the one that it asks for if that is free and small, else the lowest free
    /// one. Run-time predictors hold state for every number up to the largest, so a request alone must not
    /// make that large.
    pub(crate) fn number(&self, wish: Option<u32>) -> WorkerId {
        let free = |worker: &WorkerId| !self.peers.contains_key(worker);
        let lowest = || (0..).map(WorkerId).find(free).expect("there are more numbers than peers");
        wish.map(WorkerId).filter(|w| w.0 < self.wishable && free(w)).unwrap_or_else(lowest)
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

    /// Tells a worker why it is expelled, if its connection is still open.
    pub(crate) fn expel(&mut self, worker: WorkerId, why: String) {
        let Some(peer) = self.peers.get(&worker) else { return };
        if !peer.outbox.is_closed() {
            self.leaving.insert((worker, peer.session));
            self.send(worker, &ToWorker::Expelled(why));
        }
    }

    /// The connection of a removed worker has ended.
    pub(crate) fn gone(&mut self, worker: WorkerId, session: u64) {
        self.leaving.remove(&(worker, session));
    }

    /// Whether any worker is still connected.
    pub(crate) fn any_connected(&self) -> bool {
        !self.peers.is_empty() || !self.leaving.is_empty()
    }

    /// Removes a worker, which closes its connection. Returns its name.
    pub(crate) fn remove(&mut self, worker: WorkerId) -> String {
        self.peers.remove(&worker).map(|peer| peer.name).unwrap_or_default()
    }

    /// Whether `session` is this worker's current session.
    pub(crate) fn is_current(&self, worker: WorkerId, session: u64) -> bool {
        self.peers.get(&worker).is_some_and(|peer| peer.session == session)
    }

    pub(crate) fn send(&self, worker: WorkerId, message: &ToWorker) {
        self.send_frame(worker, encode(message));
    }

    /// Sends the same message to many workers, encoded once.
    pub(crate) fn send_all(&self, workers: impl IntoIterator<Item = WorkerId>, message: &ToWorker) {
        let frame = encode(message);
        for worker in workers {
            self.send_frame(worker, Arc::clone(&frame));
        }
    }

    /// Answers a heartbeat, but not before `least` has passed since the last answer: a worker that floods the
    /// server and does not read must not fill its memory.
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

/// Room for a few more workers than the run expects: others may join.
pub(crate) fn roomy(expected: usize) -> usize {
    expected.saturating_mul(2).saturating_add(8)
}

/// A message as a frame. A worker cannot continue without a message that is too long for one, and is told so
/// instead.
fn encode(message: &ToWorker) -> Arc<[u8]> {
    let frame = encode_control(message).or_else(|error| {
        tracing::error!("failed to tell a worker: {error}");
        encode_control(&ToWorker::Expelled(format!("the server has a message for it: {error}")))
    });
    frame.expect("a short message fits in a frame").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_gets_the_number_it_wishes_for_unless_somebody_has_it() {
        let mut workers = Workers::new(2);
        let outbox = tokio::sync::mpsc::unbounded_channel().0;
        workers.add(WorkerId(1), 7, String::new(), outbox);
        assert_eq!(workers.number(Some(3)), WorkerId(3));
        assert_eq!(workers.number(Some(1)), WorkerId(0));
        assert_eq!(workers.number(None), WorkerId(0));
        assert_eq!(workers.number(Some(u32::MAX)), WorkerId(0));
    }

    #[test]
    fn a_wish_for_a_large_number_gets_the_lowest_free_one() {
        let workers = Workers::new(3);
        assert_eq!(workers.number(Some(65_535)), WorkerId(0), "the run expects 3 workers");
        assert_eq!(workers.number(Some(13)), WorkerId(13), "there is room for late comers");
        assert_eq!(workers.number(Some(14)), WorkerId(0));
        assert_eq!(Workers::new(usize::MAX).number(Some(MAX_WORKERS)), WorkerId(0));
    }

    #[test]
    fn a_flood_of_signs_of_life_gets_an_answer_now_and_then() {
        let mut workers = Workers::new(2);
        let (outbox, mut frames) = tokio::sync::mpsc::unbounded_channel();
        workers.add(WorkerId(1), 7, String::new(), outbox);
        let least = Duration::from_millis(250);
        for millis in 0..1000 {
            let sent = Duration::from_millis(millis);
            workers.answer(WorkerId(1), sent, Time::ZERO + sent, least);
        }
        let answers = std::iter::from_fn(|| frames.try_recv().ok());
        let heard = [0, 250, 500, 750]
            .map(|millis| encode(&ToWorker::Heard { sent: Duration::from_millis(millis) }));
        assert_eq!(answers.collect::<Vec<Arc<[u8]>>>(), heard);
    }
}
