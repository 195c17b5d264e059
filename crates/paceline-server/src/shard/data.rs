//! A worker's data connection: gradients in, parameters out.

use std::{
    ops::Range,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use paceline_core::{ContributionId, LeaveReason, Version, WorkerId};
use paceline_params::{Half, Layout, Lease, WireType, all_finite};
use paceline_shm::HandoverListener;
use paceline_wire::{
    FrameError, FrameReader, FrameWriter,
    frame::{BlockHead, Header, encode_control},
    message::{FromData, FromShard, ToData},
};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit},
    time::timeout,
};

use crate::input::leave_reason;

use super::{
    LocalShard, Parts, Place, ShardInbox, Staged, Store,
    sharing::{Shared, SharingError},
    store::Published,
};

/// A worker that takes longer to receive an answer is slow by itself: another worker gets its permit.
const OVERDUE: Duration = Duration::from_millis(100);

/// Errors of a worker on a data connection. They cost that connection.
#[derive(Debug, Error)]
pub(crate) enum DataError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("block {got} is none of shard {shard}, which has blocks {} to {}", .blocks.start, .blocks.end - 1)]
    WrongBlock { got: u32, shard: u32, blocks: Range<u32> },
    #[error("block {block} of {id} came twice")]
    Repeated { block: u32, id: ContributionId },
    #[error("block {block} came as {got}, this run's wire type is {expected}")]
    WrongType { block: u32, got: WireType, expected: WireType },
    #[error("block {block} has {got} values, expected {expected}")]
    WrongLength { block: u32, got: usize, expected: usize },
    #[error("block {block} is of {got}, the contribution began as {expected}")]
    Mixed { block: u32, got: ContributionId, expected: ContributionId },
    #[error("contribution {got} came after {last}")]
    Backwards { got: ContributionId, last: ContributionId },
    #[error("gradient of {tensor} in {id} is not finite at element {element}{hint}")]
    NotFinite { tensor: String, element: usize, id: ContributionId, hint: &'static str },
    #[error("a gradient in shared memory came inside contribution {0}")]
    Inside(ContributionId),
    #[error(transparent)]
    Sharing(#[from] SharingError),
    #[error("the shard has stopped")]
    Stopped,
}

impl DataError {
    /// The flat vector's element `at` is not finite.
    pub(crate) fn not_finite(
        layout: &Layout,
        id: ContributionId,
        at: usize,
        hint: &'static str,
    ) -> Self {
        let (tensor, range) = layout
            .tensor_ranges()
            .find(|(_, range)| range.contains(&at))
            .expect("tensors tile the flat vector");
        let (tensor, element) = (tensor.name.clone(), at - range.start);
        DataError::NotFinite { tensor, element, id, hint }
    }

    /// The reason for which its worker leaves.
    pub(crate) fn why(&self) -> LeaveReason {
        match self {
            DataError::Frame(error) => leave_reason(error),
            DataError::Stopped => LeaveReason::Disconnected,
            DataError::NotFinite { .. } => LeaveReason::NotFinite(self.to_string()),
            error => LeaveReason::Misbehaved(error.to_string()),
        }
    }
}

/// A contribution of which some blocks have arrived.
struct Partial {
    id: ContributionId,
    /// The shard's blocks, where they have arrived.
    parts: Vec<Option<Lease>>,
    /// Blocks that have not arrived.
    missing: usize,
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
    /// Its last contribution that was whole.
    last: Option<ContributionId>,
    turn: Arc<Semaphore>,
    /// The listener over which the worker may share memory, until it does.
    listener: Option<HandoverListener>,
    /// The memory that the worker shares.
    shared: Option<Shared>,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> DataConnection<R, W> {
    pub(crate) fn new(
        (worker, session): (WorkerId, u64),
        (store, shard): LocalShard,
        (reader, writer): (FrameReader<R>, FrameWriter<W>),
        listener: Option<HandoverListener>,
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
            listener,
            shared,
        }
    }

    /// Serves until the worker closes the connection or is no longer admitted. An error is reported to the
    /// coordinator before the worker is told, so that the coordinator learns it before the worker reacts.
    pub(crate) async fn serve(mut self, report: impl FnOnce(&DataError)) {
        let (store, worker, session) = (Arc::clone(&self.store), self.worker, self.session);
        let outcome = tokio::select! {
            outcome = self.exchange() => outcome,
            () = store.dismissal(worker, session) => return,
        };
        if let Err(error) = outcome {
            report(&error);
            // The worker may no longer read it.
            let error = FromData::Error(error.to_string());
            let _ = timeout(self.store.patience, self.writer.message(&error)).await;
        }
    }

    async fn exchange(&mut self) -> Result<(), DataError> {
        let mut partial = None;
        let mut lookahead = None;
        loop {
            let frame = match lookahead.take() {
                Some(frame) => frame,
                None => read_frame(&mut self.reader).await,
            };
            match frame {
                Err(FrameError::Closed) if partial.is_none() => return Ok(()),
                Err(error) => return Err(error.into()),
                Ok(Frame::Block(wire, values)) => {
                    partial = self.block(partial, wire, values).await?;
                }
                Ok(Frame::Message(message, bytes)) => {
                    // A pull is counted with its answer: the request may be sent a round earlier, before the
                    // version exists.
                    if !matches!(message, ToData::Pull { .. }) {
                        self.store.traffic.received(bytes);
                    }
                    match message {
                        ToData::Pull { version, shared } => {
                            lookahead = Some(self.pull(version, shared, bytes).await?);
                        }
                        ToData::Abandon { .. } => partial = None,
                        ToData::Memory => self.share()?,
                        ToData::Push { id, segment } => {
                            if let Some(partial) = &partial {
                                return Err(DataError::Inside(partial.id));
                            }
                            self.push(id, segment).await?;
                        }
                        ToData::Cancel => self.confirm_cancel().await?,
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
        let id = ContributionId(head.key);
        let blocks = self.store.layout.shard_blocks(self.store.index);
        check_block(&self.store, head.block, &blocks, (wire, values))?;
        let mut partial = match partial {
            Some(partial) if partial.id == id => partial,
            Some(partial) => {
                let (block, expected) = (head.block, partial.id);
                return Err(DataError::Mixed { block, got: id, expected });
            }
            None => Partial {
                id,
                place: self.begin(id).await?,
                parts: blocks.clone().map(|_| None).collect(),
                missing: blocks.len(),
            },
        };
        let here = &mut partial.parts[(head.block - blocks.start) as usize];
        if here.is_some() {
            return Err(DataError::Repeated { block: head.block, id });
        }
        let mut part = self.store.pool.lease(values).expect("a place has room for every block");
        self.reader.values(wire, &mut part).await?;
        // Counted before the shard learns of it, or its round might end without these bytes.
        let bytes = Header::Block(wire, values).frame_len();
        self.store.carry(bytes).await;
        self.store.traffic.received(bytes);
        let at = self.store.layout.block_range(head.block).start;
        check_finite(&self.store.layout, wire, at, id, &part)?;
        *here = Some(part);
        partial.missing -= 1;
        if partial.missing > 0 {
            return Ok(Some(partial));
        }
        let parts = partial.parts.into_iter().flatten().collect();
        self.stage(id, Parts::Received(parts), partial.place)?;
        Ok(None)
    }

    fn stage(&mut self, id: ContributionId, parts: Parts, place: Place) -> Result<(), DataError> {
        self.last = Some(id);
        let (worker, session) = (self.worker, self.session);
        let staged = Staged { worker, id, session, parts, _place: Some(place) };
        self.shard.send(ShardInbox::Staged(staged)).map_err(|_| DataError::Stopped)?;
        // The shard receives the contribution before any command of the coordinator about it.
        self.store.say(FromShard::Staged { worker, session, id });
        Ok(())
    }

    /// The worker has connected to the listener to which it was invited.
    fn share(&mut self) -> Result<(), DataError> {
        let invited = self.listener.take().zip(self.store.sharing.as_ref());
        let (listener, sharing) = invited.ok_or(SharingError::NotInvited)?;
        self.shared = sharing.accept(&listener, self.session)?;
        Ok(())
    }

    /// A whole contribution is in the worker's memory, and stays there. Values that are not finite are found
    /// when it is folded: a check here would be one more pass over all of it.
    async fn push(&mut self, id: ContributionId, segment: u32) -> Result<(), DataError> {
        let shared = self.shared.as_ref().ok_or(SharingError::NotInvited)?;
        let view = shared.view(segment)?;
        let place = self.begin(id).await?;
        self.store.traffic.shared(self.store.bytes());
        self.stage(id, Parts::Mapped { view, share: 1.0 }, place)
    }

    /// Waits for a place. Ids of whole contributions only increase, so one that is pushed twice counts once. One
    /// that was abandoned may begin again.
    async fn begin(&mut self, id: ContributionId) -> Result<Place, DataError> {
        if let Some(last) = self.last.filter(|last| id <= *last) {
            return Err(DataError::Backwards { got: id, last });
        }
        Ok(Place { _turn: permit(&self.turn).await?, _room: permit(&self.store.room).await? })
    }

    async fn confirm_cancel(&mut self) -> Result<(), DataError> {
        let reply = encode_control(&FromData::Cancelled)?;
        self.store.traffic.sent(reply.len());
        Ok(self.writer.raw(&reply).await?)
    }

    /// Answers a pull request, a frame of `bytes` bytes, unless the worker cancels it. Returns the frame that
    /// follows the request.
    async fn pull(
        &mut self,
        version: Version,
        shared: bool,
        bytes: usize,
    ) -> Result<Result<Frame, FrameError>, DataError> {
        let reading = pin!(read_frame(&mut self.reader));
        let mut lookahead = Lookahead { reading, frame: None };
        let shared = shared && self.shared.is_some();
        let ready = tokio::select! {
            biased;
            ready = ready(&self.store, version, shared) => Some(ready?),
            () = lookahead.cancelled() => None,
        };
        self.store.traffic.received(bytes);
        if let Some(ready) = ready {
            let mut answer = Answer { store: &self.store, writer: &mut self.writer };
            let stop = AtomicBool::new(false);
            let mut sending = pin!(answer.send(ready, shared, &stop));
            tokio::select! {
                biased;
                sent = &mut sending => sent?,
                () = lookahead.cancelled() => {
                    stop.store(true, Ordering::Relaxed);
                    sending.await?;
                }
            }
        }
        Ok(lookahead.into_frame().await)
    }
}

/// A worker's next frame: the header of a block, with its number of values, whose head and values are still
/// to be read; or a message, with the bytes of its frame.
enum Frame {
    Block(WireType, usize),
    Message(ToData, usize),
}

async fn read_frame<R: AsyncRead + Unpin>(
    reader: &mut FrameReader<R>,
) -> Result<Frame, FrameError> {
    match reader.header().await? {
        Header::Block(wire, values) => Ok(Frame::Block(wire, values)),
        Header::Control(len) => {
            let message = reader.control(len).await?;
            Ok(Frame::Message(message, Header::Control(len).frame_len()))
        }
        Header::Chunk(_) => Err(FrameError::WrongKind { expected: "block or control" }),
    }
}

/// The frame after a pull request, read while the request is answered.
struct Lookahead<'a, F> {
    reading: Pin<&'a mut F>,
    frame: Option<Result<Frame, FrameError>>,
}

impl<F: Future<Output = Result<Frame, FrameError>>> Lookahead<'_, F> {
    /// Completes once the worker cancels its request; never if it sends something else.
    async fn cancelled(&mut self) {
        if self.frame.is_none() {
            self.frame = Some(self.reading.as_mut().await);
        }
        if !matches!(self.frame, Some(Ok(Frame::Message(ToData::Cancel, _)))) {
            std::future::pending::<()>().await;
        }
    }

    async fn into_frame(self) -> Result<Frame, FrameError> {
        match self.frame {
            Some(frame) => frame,
            None => self.reading.await,
        }
    }
}

/// A version that can be sent, and the permit to send its blocks.
struct Ready<'a> {
    published: Published,
    permit: Option<SemaphorePermit<'a>>,
}

/// Waits for the version and for a permit to send it. Only a few workers are sent blocks at a time: together
/// they would share the link and the cores of this host, and no worker would begin before the last.
async fn ready(store: &Store, version: Version, shared: bool) -> Result<Ready<'_>, DataError> {
    let published = match store.earlier(version) {
        Some(published) => published,
        None => {
            let mut published = store.published.subscribe();
            let is_ready = |p: &Published| p.version >= version && p.blocks.is_some();
            published.wait_for(is_ready).await.map_err(|_| DataError::Stopped)?.clone()
        }
    };
    let permit = match published.segment {
        Some(_) if shared => None,
        _ => Some(store.answers.acquire().await.map_err(|_| DataError::Stopped)?),
    };
    Ok(Ready { published, permit })
}

/// Sends the answer to one pull request.
struct Answer<'a, W> {
    store: &'a Store,
    writer: &'a mut FrameWriter<W>,
}

impl<W: AsyncWrite + Unpin> Answer<'_, W> {
    async fn send(
        &mut self,
        Ready { published, permit }: Ready<'_>,
        shared: bool,
        stop: &AtomicBool,
    ) -> Result<(), DataError> {
        if let Some(segment) = published.segment.filter(|_| shared) {
            let version = published.version;
            let frame = encode_control(&FromData::Published { version, segment })?;
            self.store.traffic.sent(frame.len());
            self.store.traffic.fresh(published.blocks.map_or(0, |blocks| blocks.len()));
            self.store.traffic.shared(self.store.bytes());
            return Ok(self.writer.raw(&frame).await?);
        }
        let mut sending = pin!(self.send_blocks(published, stop));
        match timeout(OVERDUE, &mut sending).await {
            Ok(sent) => sent,
            Err(_) => {
                drop(permit);
                sending.await
            }
        }
    }

    /// Sends a version's blocks until `stop` is set.
    async fn send_blocks(
        &mut self,
        published: Published,
        stop: &AtomicBool,
    ) -> Result<(), DataError> {
        let first = self.store.layout.shard_blocks(self.store.index).start;
        for (block, values) in (first..).zip(published.blocks.iter().flat_map(|b| b.iter())) {
            let values = values.values();
            let head = BlockHead { key: published.version.0, block };
            let bytes = values.header().frame_len();
            self.store.carry(bytes).await;
            if stop.load(Ordering::Relaxed) {
                break;
            }
            // Counted before the worker has it, or its round might end without these bytes.
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
    blocks: &Range<u32>,
    (wire, values): (WireType, usize),
) -> Result<(), DataError> {
    if !blocks.contains(&got) {
        return Err(DataError::WrongBlock { got, shard: store.index, blocks: blocks.clone() });
    }
    if wire != store.wire {
        return Err(DataError::WrongType { block: got, got: wire, expected: store.wire });
    }
    match store.layout.block_range(got).len() {
        len if len == values => Ok(()),
        expected => Err(DataError::WrongLength { block: got, got: values, expected }),
    }
}

/// Checks the values, which begin at `at` of the flat vector and were sent as `wire`, while they are still in
/// the cache and before they count.
fn check_finite(
    layout: &Layout,
    wire: WireType,
    at: usize,
    id: ContributionId,
    values: &[f32],
) -> Result<(), DataError> {
    let Err(index) = all_finite(values) else { return Ok(()) };
    let hint = match wire {
        WireType::Half(Half::F16) if values[index].is_infinite() => {
            " as f16, which ends at 65504; use --wire bf16"
        }
        _ => "",
    };
    Err(DataError::not_finite(layout, id, at + index, hint))
}
