//! A worker's data connection: gradients in, parameters out.

use std::sync::{Arc, mpsc};

use paceline_core::{Version, WorkerId};
use paceline_params::{Layout, Lease, all_finite};
use paceline_wire::{
    FrameError, FrameReader, FrameWriter,
    frame::{BlockHead, Header},
    message::{FromData, ToData},
};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::OwnedSemaphorePermit,
};

use super::{ShardInbox, Staged, Store};

/// What a worker can get wrong on a data connection. It costs that connection.
#[derive(Debug, Error)]
pub(crate) enum DataError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("block {got} came where block {expected} of shard {shard} was due")]
    WrongBlock { got: u32, expected: u32, shard: u32 },
    #[error("block {block} has {got} values, expected {expected}")]
    WrongLength { block: u32, got: usize, expected: usize },
    #[error("block {block} is from {got}, the contribution began with {expected}")]
    MixedVersions { block: u32, got: Version, expected: Version },
    #[error("gradient of {tensor} from {base} is not finite at element {element}")]
    NotFinite { tensor: String, element: usize, base: Version },
    #[error("the shard has stopped")]
    Stopped,
}

/// A contribution of which some blocks have come.
struct Partial {
    base: Version,
    parts: Vec<Lease>,
    permit: OwnedSemaphorePermit,
}

/// One worker's data connection to one shard.
pub(crate) struct DataConnection<R, W> {
    pub(crate) worker: WorkerId,
    pub(crate) session: u64,
    pub(crate) store: Arc<Store>,
    pub(crate) shard: mpsc::Sender<ShardInbox>,
    pub(crate) reader: FrameReader<R>,
    pub(crate) writer: FrameWriter<W>,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> DataConnection<R, W> {
    /// Serves until the worker closes the connection or is no longer let in; says what was wrong
    /// before giving up on it.
    pub(crate) async fn serve(mut self) -> Result<(), DataError> {
        let (store, worker, session) = (Arc::clone(&self.store), self.worker, self.session);
        let outcome = tokio::select! {
            outcome = self.exchange() => outcome,
            () = store.admission(worker, session, false) => return Ok(()),
        };
        if let Err(error) = &outcome {
            // The worker may be past hearing it.
            let _ = self.writer.message(&FromData::Error(error.to_string())).await;
        }
        outcome
    }

    async fn exchange(&mut self) -> Result<(), DataError> {
        let mut partial = None;
        loop {
            match self.reader.header().await {
                Err(FrameError::Closed) => return Ok(()),
                Err(error) => return Err(error.into()),
                Ok(Header::Block(values)) => {
                    partial = self.block(partial, values).await?;
                }
                Ok(Header::Control(len)) => match self.reader.control(len).await? {
                    ToData::Pull { version } => self.pull(version).await?,
                    ToData::Abandon { .. } => partial = None,
                },
            }
        }
    }

    async fn block(
        &mut self,
        partial: Option<Partial>,
        values: usize,
    ) -> Result<Option<Partial>, DataError> {
        let head = self.reader.block_head().await?;
        let base = Version(head.version);
        let due = self.store.layout.shard_blocks(self.store.index);
        let expected = due.start + partial.as_ref().map_or(0, |p| p.parts.len() as u32);
        check_block(&self.store.layout, self.store.index, head.block, expected, values)?;
        let mut partial = match partial {
            Some(partial) if partial.base == base => partial,
            Some(partial) => {
                let (block, expected) = (head.block, partial.base);
                return Err(DataError::MixedVersions { block, got: base, expected });
            }
            None => {
                let room = Arc::clone(&self.store.room).acquire_owned().await;
                let permit = room.map_err(|_| DataError::Stopped)?;
                Partial { base, parts: Vec::with_capacity(due.len()), permit }
            }
        };
        let mut part =
            self.store.pool.lease(values).expect("a permit reserves a contribution's buffers");
        self.reader.values(&mut part).await?;
        check_finite(&self.store.layout, head.block, base, &part)?;
        partial.parts.push(part);
        if partial.parts.len() < due.len() {
            return Ok(Some(partial));
        }
        let staged = Staged {
            worker: self.worker,
            base,
            session: self.session,
            parts: partial.parts,
            _room: Some(partial.permit),
        };
        self.shard.send(ShardInbox::Staged(staged)).map_err(|_| DataError::Stopped)?;
        Ok(None)
    }

    async fn pull(&mut self, version: Version) -> Result<(), DataError> {
        let mut published = self.store.published.subscribe();
        let ready = published
            .wait_for(|published| published.version >= version && published.blocks.is_some())
            .await
            .map_err(|_| DataError::Stopped)?
            .clone();
        let first = self.store.layout.shard_blocks(self.store.index).start;
        for (block, values) in (first..).zip(ready.blocks.iter().flat_map(|b| b.iter())) {
            let head = BlockHead { version: ready.version.0, block };
            self.writer.block(head, values).await?;
        }
        Ok(self.writer.flush().await?)
    }
}

fn check_block(
    layout: &Layout,
    shard: u32,
    got: u32,
    expected: u32,
    values: usize,
) -> Result<(), DataError> {
    if got != expected || got >= layout.blocks() {
        return Err(DataError::WrongBlock { got, expected, shard });
    }
    match layout.block_range(got).len() {
        len if len == values => Ok(()),
        expected => Err(DataError::WrongLength { block: got, got: values, expected }),
    }
}

/// Checked while the values are still in the cache, and before anybody counts on them.
fn check_finite(
    layout: &Layout,
    block: u32,
    base: Version,
    values: &[f32],
) -> Result<(), DataError> {
    let Err(index) = all_finite(values) else { return Ok(()) };
    let flat = layout.block_range(block).start + index;
    let (tensor, range) = layout
        .tensor_ranges()
        .find(|(_, range)| range.contains(&flat))
        .expect("tensors tile the flat vector");
    Err(DataError::NotFinite { tensor: tensor.name.clone(), element: flat - range.start, base })
}
