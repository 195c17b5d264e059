//! State shared by a shard's thread and its data connections: room for contributions, and the published
//! version.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use paceline_core::{ContributionId, Version, WorkerId};
use paceline_params::{BufferPool, Half, Layout, Lease, WireType};
use paceline_shm::View;
use paceline_wire::{
    frame::Values,
    message::{FromShard, ShardSpec},
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use super::{ShardReport, sharing::Sharing, traffic::Traffic};
use crate::{credits::at_once, faults::ShardFaults};

/// Sends a shard's reports to the coordinator, including an error that ends the shard.
pub(crate) type Report = Box<dyn Fn(Result<ShardReport, String>) + Send + Sync>;

/// A whole contribution to one shard, not yet folded.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) worker: WorkerId,
    pub(crate) id: ContributionId,
    /// The worker's session that sent it.
    pub(crate) session: u64,
    pub(crate) parts: Parts,
    /// Its place, held until it is dropped; `None` in tests of the arithmetic.
    pub(crate) _place: Option<Place>,
}

/// Where a contribution's values are.
#[derive(Debug)]
pub(crate) enum Parts {
    /// Received and checked, one buffer for each of the shard's blocks.
    Received(Vec<Lease>),
    /// In memory of its worker, which may change it: checked in a copy when it is folded.
    Mapped {
        view: Arc<View>,
        /// The share of its weight that counts.
        share: f32,
    },
}

/// A contribution's place in the bounded staging memory, and its worker's turn: a worker has one
/// contribution at a time on a shard.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) _turn: OwnedSemaphorePermit,
    pub(crate) _room: OwnedSemaphorePermit,
}

/// A version and its blocks; without blocks while it is being made.
#[derive(Debug, Clone, Default)]
pub(crate) struct Published {
    pub(crate) version: Version,
    pub(crate) blocks: Option<Arc<[Outgoing]>>,
    /// The shared segment that also holds it, if there is one.
    pub(crate) segment: Option<u32>,
}

/// A block of parameters, as it is sent to workers.
#[derive(Debug, Clone)]
pub(crate) enum Outgoing {
    F32(Arc<Vec<f32>>),
    Half(Half, Arc<[u16]>),
}

impl Outgoing {
    pub(crate) fn values(&self) -> Values<'_> {
        match self {
            Outgoing::F32(values) => values.as_slice().into(),
            Outgoing::Half(half, bits) => Values::half(*half, bits),
        }
    }
}

/// Shared by a shard's thread and the tasks of its data connections.
pub(crate) struct Store {
    pub(crate) index: u32,
    pub(crate) layout: Layout,
    pub(crate) wire: WireType,
    pub(crate) pool: Arc<BufferPool>,
    /// One permit for each contribution that may be staged.
    pub(crate) room: Arc<Semaphore>,
    /// One permit for each pull that may be answered by TCP at the same time.
    pub(crate) answers: Semaphore,
    pub(crate) published: watch::Sender<Published>,
    history: History,
    pub(crate) traffic: Traffic,
    /// How long a peer may delay a frame that it must send or receive.
    pub(crate) patience: Duration,
    /// Injected faults, if any.
    pub(crate) faults: Option<Arc<dyn ShardFaults>>,
    /// The memory shared with workers of this host, if they may share it.
    pub(crate) sharing: Option<Arc<Sharing>>,
    /// Sends reports to the coordinator.
    report: Report,
    sessions: Mutex<BTreeMap<WorkerId, Session>>,
    sessions_changed: Notify,
}

/// The newest versions, for workers that load every version in order.
struct History {
    most: usize,
    versions: Mutex<VecDeque<Published>>,
}

impl History {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Published>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An admitted worker, or one that was.
#[derive(Debug)]
struct Session {
    number: u64,
    /// Whether the worker is gone.
    gone: bool,
    /// Whether its data connection has come.
    connected: bool,
}

impl Store {
    pub(crate) fn new(
        spec: &ShardSpec,
        sharing: Option<Arc<Sharing>>,
        faults: Option<Arc<dyn ShardFaults>>,
        report: Report,
    ) -> Self {
        // A block may be shorter; a buffer for it need not be.
        let blocks = spec.layout.shard_blocks(spec.index).len();
        let bytes = blocks * spec.layout.block_elems() * size_of::<f32>();
        let room = spec.staging as usize;
        Store {
            index: spec.index,
            layout: spec.layout.clone(),
            wire: spec.wire,
            pool: Arc::new(BufferPool::new(room * bytes)),
            room: Arc::new(Semaphore::new(room)),
            answers: Semaphore::new(at_once((spec.layout.total() * spec.wire.size()) as u64)),
            published: watch::Sender::new(Published::default()),
            history: History { most: spec.history as usize, versions: Mutex::default() },
            traffic: Traffic::default(),
            patience: spec.patience,
            faults,
            sharing,
            report,
            sessions: Mutex::default(),
            sessions_changed: Notify::new(),
        }
    }

    /// Publishes a version, and keeps it for workers that will miss it.
    pub(crate) fn publish(&self, published: Published) {
        if self.history.most > 0 {
            let mut versions = self.history.lock();
            versions.push_back(Published { segment: None, ..published.clone() });
            while versions.len() > self.history.most {
                versions.pop_front();
            }
        }
        self.published.send_replace(published);
    }

    /// An earlier version, if it is kept.
    pub(crate) fn earlier(&self, version: Version) -> Option<Published> {
        let newest = self.published.borrow().version;
        let versions = self.history.lock();
        versions.iter().find(|kept| kept.version == version && version < newest).cloned()
    }

    /// Sends the coordinator a message.
    pub(crate) fn say(&self, message: FromShard) {
        self.report(message.into());
    }

    /// Sends the coordinator a report with its blocks.
    pub(crate) fn report(&self, report: ShardReport) {
        (self.report)(Ok(report));
    }

    /// Reports an error that ends the shard.
    pub(crate) fn fail(&self, error: String) {
        (self.report)(Err(error));
    }

    /// Bytes of the shard's part of the parameters, in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.layout.shard_range(self.index).len() * size_of::<f32>()
    }

    /// Waits until `bytes` bytes, in or out, have passed a link that is slowed on purpose.
    pub(crate) async fn carry(&self, bytes: usize) {
        if let Some(passed) = self.faults.as_ref().and_then(|faults| faults.passed_at(bytes)) {
            tokio::time::sleep_until(passed.into()).await;
        }
    }

    pub(crate) fn admit(&self, worker: WorkerId, session: u64) {
        self.sessions().insert(worker, Session { number: session, gone: false, connected: false });
        self.sessions_changed.notify_waiters();
    }

    pub(crate) fn forget(&self, worker: WorkerId) {
        if let Some(held) = self.sessions().get_mut(&worker) {
            held.gone = true;
        }
        self.sessions_changed.notify_waiters();
    }

    pub(crate) fn is_admitted(&self, worker: WorkerId, session: u64) -> bool {
        self.sessions().get(&worker).is_some_and(|held| held.number == session && !held.gone)
    }

    fn has_left(&self, worker: WorkerId, session: u64) -> bool {
        self.sessions().get(&worker).is_some_and(|held| held.number == session && held.gone)
    }

    /// The number of admitted workers.
    pub(crate) fn admitted(&self) -> usize {
        self.sessions().values().filter(|held| !held.gone).count()
    }

    /// Claims the session's one data connection; false if it is taken.
    pub(crate) fn connect(&self, worker: WorkerId, session: u64) -> bool {
        let mut sessions = self.sessions();
        let held = sessions.get_mut(&worker).filter(|held| held.number == session && !held.gone);
        held.is_some_and(|held| !std::mem::replace(&mut held.connected, true))
    }

    /// Waits until the session is admitted, as a worker may connect before the coordinator's command arrives.
    /// False if the worker has left already.
    pub(crate) async fn admission(&self, worker: WorkerId, session: u64) -> bool {
        let known = || self.is_admitted(worker, session) || self.has_left(worker, session);
        self.sessions_until(known).await;
        self.is_admitted(worker, session)
    }

    /// Waits until the session is no longer admitted.
    pub(crate) async fn dismissal(&self, worker: WorkerId, session: u64) {
        self.sessions_until(|| !self.is_admitted(worker, session)).await;
    }

    async fn sessions_until(&self, holds: impl Fn() -> bool) {
        loop {
            let changed = self.sessions_changed.notified();
            tokio::pin!(changed);
            // Registered before the check, so that no change is missed in between.
            changed.as_mut().enable();
            if holds() {
                return;
            }
            changed.await;
        }
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, BTreeMap<WorkerId, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
