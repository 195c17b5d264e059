//! Connections in their handshake: accepted, and not admitted yet. Their number is bounded.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::{
    sync::{AcquireError, OwnedSemaphorePermit, Semaphore, oneshot},
    time::{Instant, sleep_until},
};

/// The most connections in their handshake at once. Further ones wait in the kernel's queue.
pub(crate) const MAX_HANDSHAKES: usize = 256;

/// While that many are open, the oldest must make room for the next after this long. An honest peer
/// introduces itself as soon as it runs. Of 256 workers that were started at once on two busy cores, some
/// took longer than 250 ms.
const CROWDED: Duration = Duration::from_secs(2);

/// The open handshakes, as the accept loop knows them.
pub(crate) struct Handshakes {
    places: Arc<Semaphore>,
    /// The start of each and the channel that tells it to make room, oldest first.
    open: VecDeque<(Instant, oneshot::Sender<()>)>,
}

/// One connection's handshake. Dropping it makes room for another.
pub(crate) struct Handshake {
    _place: OwnedSemaphorePermit,
    /// Resolves when this one must make room.
    pub(crate) displaced: oneshot::Receiver<()>,
}

impl Handshakes {
    pub(crate) fn new() -> Self {
        Handshakes { places: Arc::new(Semaphore::new(MAX_HANDSHAKES)), open: VecDeque::new() }
    }

    /// Begins a handshake as soon as there is room. Makes room if the oldest takes too long.
    pub(crate) async fn begin(&mut self) -> Handshake {
        let place = self.room().await.expect("the places are never closed");
        let (displace, displaced) = oneshot::channel();
        self.open.push_back((Instant::now(), displace));
        Handshake { _place: place, displaced }
    }

    async fn room(&mut self) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.open.retain(|(_, displace)| !displace.is_closed());
        let place = Arc::clone(&self.places).acquire_owned();
        tokio::pin!(place);
        if let Some((began, _)) = self.open.front() {
            tokio::select! {
                biased;
                place = &mut place => return place,
                () = sleep_until(*began + CROWDED) => {}
            }
        }
        if self.places.available_permits() == 0
            && let Some((_, displace)) = self.open.pop_front()
        {
            let _ = displace.send(());
        }
        place.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_makes_room_and_only_when_there_is_none() {
        let mut handshakes = Handshakes::new();
        let mut open = VecDeque::new();
        for _ in 0..MAX_HANDSHAKES {
            open.push_back(handshakes.begin().await);
        }
        // A finished handshake makes room at once.
        open.remove(3);
        open.push_back(handshakes.begin().await);
        assert!(open.iter_mut().all(|one| one.displaced.try_recv().is_err()));
        // Otherwise only the oldest is told to make room, after a while.
        let began = Instant::now();
        let mut oldest = open.pop_front().unwrap();
        let leaves = async {
            (&mut oldest.displaced).await.unwrap();
            tokio::task::yield_now().await;
            drop(oldest);
        };
        let (_newest, ()) = tokio::join!(handshakes.begin(), leaves);
        assert!(began.elapsed() < 60 * CROWDED);
        assert!(open.iter_mut().all(|one| one.displaced.try_recv().is_err()));
    }
}
