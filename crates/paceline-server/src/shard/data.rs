//! A worker's data connection: gradients in, parameters out.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use paceline_core::{LeaveReason, Version, WorkerId};
use paceline_params::{Half, Layout, Lease, WireType, all_finite};
use paceline_shm::Meeting;
use paceline_wire::{
    FrameError, FrameReader, FrameWriter,
    frame::{BlockHead, Header, encode_control},
    message::{FromData, ToData},
};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::input::leave_reason;

use super::{
    LocalShard, Parts, Place, ShardInbox, Staged, Store,
    sharing::{Shared, SharingError},
    store::Published,
};

/// An answer to a pull that takes longer no longer counts among those that are given at a time.
const OVERDUE: Duration = Duration::from_millis(100);

/// What a worker can get wrong on a data connection. It costs that connection.
#[derive(Debug, Error)]
pub(crate) enum DataError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("block {got} came where block {expected} of shard {shard} was due")]
    WrongBlock { got: u32, expected: u32, shard: u32 },
    #[error("block {block} came as {got}, this run's wire type is {expected}")]
    WrongType { block: u32, got: WireType, expected: WireType },
    #[error("block {block} has {got} values, expected {expected}")]
    WrongLength { block: u32, got: usize, expected: usize },
    #[error("block {block} is from {got}, the contribution began with {expected}")]
    MixedVersions { block: u32, got: Version, expected: Version },
    #[error("a contribution from {got} came after one from {last}")]
    Backwards { got: Version, last: Version },
    #[error("gradient of {tensor} from {base} is not finite at element {element}{hint}")]
    NotFinite { tensor: String, element: usize, base: Version, hint: &'static str },
    #[error("a gradient in shared memory came inside a contribution from {0}")]
    Inside(Version),
    #[error(transparent)]
    Sharing(#[from] SharingError),
    #[error("the shard has stopped")]
    Stopped,
}

impl DataError {
    /// The flat vector's element `at` is not finite.
    pub(crate) fn not_finite(
        layout: &Layout,
        base: Version,
        at: usize,
        hint: &'static str,
    ) -> Self {
        let (tensor, range) = layout
            .tensor_ranges()
            .find(|(_, range)| range.contains(&at))
            .expect("tensors tile the flat vector");
        let (tensor, element) = (tensor.name.clone(), at - range.start);
        DataError::NotFinite { tensor, element, base, hint }
    }

    /// Why its worker is gone.
    pub(crate) fn why(&self) -> LeaveReason {
        match self {
            DataError::Frame(error) => leave_reason(error),
            DataError::Stopped => LeaveReason::Disconnected,
            DataError::NotFinite { .. } => LeaveReason::NotFinite(self.to_string()),
            error => LeaveReason::Misbehaved(error.to_string()),
        }
    }
}

/// A contribution of which some blocks have come.
struct Partial {
    base: Version,
    parts: Vec<Lease>,
    place: Place,
}

/// One worker's data connection to one shard.
pub(crate) struct DataConnection<R, W> {
    worker: WorkerId,
    session: u64,
    store: Arc<Store>,
    shard: mpsc::Sender<ShardInbox>,
    reader: FrameReader<R>,
    writer: FrameWriter<W>,
    /// What its last contribution was computed from.
    last: Option<Version>,
    turn: Arc<Semaphore>,
    /// Where it may share memory with the shard.
    meeting: Option<Meeting>,
    /// What it shares.
    shared: Option<Shared>,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> DataConnection<R, W> {
    pub(crate) fn new(
        (worker, session): (WorkerId, u64),
        (store, shard): LocalShard,
        (reader, writer): (FrameReader<R>, FrameWriter<W>),
        meeting: Option<Meeting>,
    ) -> Self {
        let (last, turn, shared) = (None, Arc::new(Semaphore::new(1)), None);
        DataConnection {
            worker,
            session,
            store,
            shard,
            reader,
            writer,
            last,
            turn,
            meeting,
            shared,
        }
    }

    /// Serves until the worker closes the connection or is no longer let in. What is wrong with it
    /// is reported before it is told: what it does then must not be heard first.
    pub(crate) async fn serve(mut self, report: impl FnOnce(&DataError)) {
        let (store, worker, session) = (Arc::clone(&self.store), self.worker, self.session);
        let outcome = tokio::select! {
            outcome = self.exchange() => outcome,
            () = store.admission(worker, session, false) => return,
        };
        if let Err(error) = outcome {
            report(&error);
            // The worker may be past hearing it.
            let error = FromData::Error(error.to_string());
            let _ = timeout(self.store.patience, self.writer.message(&error)).await;
        }
    }

    async fn exchange(&mut self) -> Result<(), DataError> {
        let mut partial = None;
        loop {
            match self.reader.header().await {
                Err(FrameError::Closed) if partial.is_none() => return Ok(()),
                Err(error) => return Err(error.into()),
                Ok(Header::Block(wire, values)) => {
                    partial = self.block(partial, wire, values).await?;
                }
                Ok(Header::Control(len)) => {
                    let message = self.reader.control(len).await?;
                    let bytes = Header::Control(len).frame_len();
                    // A question counts with its answer: it may be asked before the version is there, in
                    // the round before.
                    if !matches!(message, ToData::Pull { .. }) {
                        self.store.traffic.received(bytes);
                    }
                    match message {
                        ToData::Pull { version, shared } => {
                            self.pull(version, shared, bytes).await?;
                        }
                        ToData::Abandon { .. } => partial = None,
                        ToData::Memory => self.share()?,
                        ToData::Push { base, segment } => {
                            if let Some(partial) = &partial {
                                return Err(DataError::Inside(partial.base));
                            }
                            self.push(base, segment).await?;
                        }
                    }
                }
            }
        }
    }

    async fn block(
        &mut self,
        partial: Option<Partial>,
        wire: WireType,
        values: usize,
    ) -> Result<Option<Partial>, DataError> {
        let head = self.reader.block_head().await?;
        let base = Version(head.version);
        let due = self.store.layout.shard_blocks(self.store.index);
        let expected = due.start + partial.as_ref().map_or(0, |p| p.parts.len() as u32);
        check_block(&self.store, head.block, expected, (wire, values))?;
        let mut partial = match partial {
            Some(partial) if partial.base == base => partial,
            Some(partial) => {
                let (block, expected) = (head.block, partial.base);
                return Err(DataError::MixedVersions { block, got: base, expected });
            }
            None => Partial { base, parts: Vec::new(), place: self.begin(base).await? },
        };
        let mut part = self.store.pool.lease(values).expect("a place has room for every block");
        self.reader.values(wire, &mut part).await?;
        // Before the shard hears of it, or its round might be over without these bytes.
        let bytes = Header::Block(wire, values).frame_len();
        self.store.carry(bytes).await;
        self.store.traffic.received(bytes);
        let at = self.store.layout.block_range(head.block).start;
        check_finite(&self.store.layout, wire, at, base, &part)?;
        partial.parts.push(part);
        if partial.parts.len() < due.len() {
            return Ok(Some(partial));
        }
        self.stage(base, Parts::Received(partial.parts), partial.place)?;
        Ok(None)
    }

    fn stage(&self, base: Version, parts: Parts, place: Place) -> Result<(), DataError> {
        let (worker, session) = (self.worker, self.session);
        let staged = Staged { worker, base, session, parts, _place: Some(place) };
        self.shard.send(ShardInbox::Staged(staged)).map_err(|_| DataError::Stopped)
    }

    /// The worker has come to the meeting it was invited to.
    fn share(&mut self) -> Result<(), DataError> {
        let invited = self.meeting.take().zip(self.store.sharing.as_ref());
        let (meeting, sharing) = invited.ok_or(SharingError::NotInvited)?;
        self.shared = sharing.meet(&meeting, self.session)?;
        Ok(())
    }

    /// A whole contribution is in the worker's memory, and stays there. What is not finite in it is
    /// found when it is folded: to look for it here would be one more pass over all of it.
    async fn push(&mut self, base: Version, segment: u32) -> Result<(), DataError> {
        let shared = self.shared.as_ref().ok_or(SharingError::NotInvited)?;
        let view = shared.view(segment)?;
        let place = self.begin(base).await?;
        self.store.traffic.shared(self.store.bytes());
        self.stage(base, Parts::Mapped { view, share: 1.0 }, place)
    }

    /// Waits for a place. Versions only go forward: what is pushed twice is counted once.
    async fn begin(&mut self, base: Version) -> Result<Place, DataError> {
        match self.last.replace(base) {
            Some(last) if base <= last => return Err(DataError::Backwards { got: base, last }),
            _ => {}
        }
        Ok(Place { _turn: permit(&self.turn).await?, _room: permit(&self.store.room).await? })
    }

    /// Answers a question of so many `bytes`, once it can be.
    async fn pull(
        &mut self,
        version: Version,
        shared: bool,
        bytes: usize,
    ) -> Result<(), DataError> {
        let mut published = self.store.published.subscribe();
        let ready = published
            .wait_for(|published| published.version >= version && published.blocks.is_some())
            .await
            .map_err(|_| DataError::Stopped)?
            .clone();
        self.store.traffic.received(bytes);
        if let Some(segment) = ready.segment.filter(|_| shared && self.shared.is_some()) {
            let frame = encode_control(&FromData::Published { version: ready.version, segment })?;
            self.store.traffic.sent(frame.len());
            self.store.traffic.fresh(ready.blocks.map_or(0, |blocks| blocks.len()));
            self.store.traffic.shared(self.store.bytes());
            return self.writer.raw(&frame).await.map_err(DataError::from);
        }
        self.answer(ready).await
    }

    /// Sends a version's blocks, with a few others at a time: all at once they would share the link and
    /// the cores of this host, and nobody would begin before the last. Who takes long is slow by
    /// itself, and holds nobody up.
    async fn answer(&mut self, ready: Published) -> Result<(), DataError> {
        let store = Arc::clone(&self.store);
        let turn = store.answers.acquire().await.map_err(|_| DataError::Stopped)?;
        let sending = self.send(ready);
        tokio::pin!(sending);
        match timeout(OVERDUE, &mut sending).await {
            Ok(sent) => sent,
            Err(_) => {
                drop(turn);
                sending.await
            }
        }
    }

    async fn send(&mut self, ready: Published) -> Result<(), DataError> {
        let first = self.store.layout.shard_blocks(self.store.index).start;
        for (block, values) in (first..).zip(ready.blocks.iter().flat_map(|b| b.iter())) {
            let values = values.values();
            let head = BlockHead { version: ready.version.0, block };
            // Before the worker has it, or its round might be over without these bytes.
            let bytes = values.header().frame_len();
            self.store.carry(bytes).await;
            self.store.traffic.sent(bytes);
            self.store.traffic.fresh(1);
            self.writer.block(head, values).await?;
        }
        Ok(self.writer.flush().await?)
    }
}

async fn permit(of: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, DataError> {
    Arc::clone(of).acquire_owned().await.map_err(|_| DataError::Stopped)
}

fn check_block(
    store: &Store,
    got: u32,
    expected: u32,
    (wire, values): (WireType, usize),
) -> Result<(), DataError> {
    if got != expected || got >= store.layout.blocks() {
        return Err(DataError::WrongBlock { got, expected, shard: store.index });
    }
    if wire != store.wire {
        return Err(DataError::WrongType { block: got, got: wire, expected: store.wire });
    }
    match store.layout.block_range(got).len() {
        len if len == values => Ok(()),
        expected => Err(DataError::WrongLength { block: got, got: values, expected }),
    }
}

/// Checked while the values, which begin at `at` of the flat vector and came as `wire`, are still in
/// the cache, and before anybody counts on them.
fn check_finite(
    layout: &Layout,
    wire: WireType,
    at: usize,
    base: Version,
    values: &[f32],
) -> Result<(), DataError> {
    let Err(index) = all_finite(values) else { return Ok(()) };
    let hint = match wire {
        WireType::Half(Half::F16) if values[index].is_infinite() => {
            " as f16, which ends at 65504; use --wire bf16"
        }
        _ => "",
    };
    Err(DataError::not_finite(layout, base, at + index, hint))
}
