//! The connection between a coordinator and a shard that lives in another process: messages, and
//! the blocks that follow some of them.

use paceline_params::{Block, Layout, OptimizerSpec, WireType};
use paceline_wire::{
    FrameError, FrameReader, FrameWriter,
    frame::{BlockHead, Header},
    message::{FromShard, ToShard},
};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{ShardCommand, ShardReport};

/// What a shard's blocks look like, to whoever reads them.
#[derive(Debug, Clone)]
pub(crate) struct BlockShape {
    lengths: Vec<usize>,
    slots: usize,
}

impl BlockShape {
    pub(crate) fn new(layout: &Layout, shard: u32, optimizer: &OptimizerSpec) -> Self {
        let blocks = layout.shard_blocks(shard);
        BlockShape {
            lengths: blocks.map(|block| layout.block_range(block).len()).collect(),
            slots: optimizer.slot_names().len(),
        }
    }
}

pub(crate) async fn write_command<W: AsyncWrite + Unpin>(
    writer: &mut FrameWriter<W>,
    command: &ShardCommand,
) -> Result<(), FrameError> {
    write(writer, &command.message, &command.blocks).await
}

pub(crate) async fn write_report<W: AsyncWrite + Unpin>(
    writer: &mut FrameWriter<W>,
    report: &ShardReport,
) -> Result<(), FrameError> {
    write(writer, &report.message, &report.blocks).await
}

pub(crate) async fn read_command<R: AsyncRead + Unpin>(
    reader: &mut FrameReader<R>,
) -> Result<ShardCommand, FrameError> {
    let message: ToShard = reader.message().await?;
    let blocks = match &message {
        ToShard::Init(spec) if spec.index >= spec.layout.shards() => {
            let error = format!("shard {} of {}", spec.index, spec.layout.shards());
            return Err(FrameError::Unexpected(error));
        }
        ToShard::Init(spec) => {
            let shape = BlockShape::new(&spec.layout, spec.index, &spec.optimizer);
            read_blocks(reader, &shape).await?
        }
        _ => Vec::new(),
    };
    Ok(ShardCommand { message, blocks })
}

pub(crate) async fn read_report<R: AsyncRead + Unpin>(
    reader: &mut FrameReader<R>,
    shape: &BlockShape,
) -> Result<ShardReport, FrameError> {
    let message = reader.message().await?;
    let blocks = match message {
        FromShard::Snapshot { .. } => read_blocks(reader, shape).await?,
        _ => Vec::new(),
    };
    Ok(ShardReport { message, blocks })
}

/// A block's values go as its frame 0, its optimiser slots as frames 1, 2, …
async fn write<W: AsyncWrite + Unpin, T: Serialize>(
    writer: &mut FrameWriter<W>,
    message: &T,
    blocks: &[Block],
) -> Result<(), FrameError> {
    writer.message(message).await?;
    for (index, block) in (0..).zip(blocks) {
        let slots = block.slots().iter().map(|slot| slot.as_slice());
        for (version, values) in (0..).zip(std::iter::once(block.values()).chain(slots)) {
            writer.block(BlockHead { version, block: index }, values).await?;
        }
    }
    writer.flush().await
}

async fn read_blocks<R: AsyncRead + Unpin>(
    reader: &mut FrameReader<R>,
    shape: &BlockShape,
) -> Result<Vec<Block>, FrameError> {
    let mut blocks = Vec::with_capacity(shape.lengths.len());
    for (index, &len) in (0..).zip(&shape.lengths) {
        let mut frames = Vec::with_capacity(1 + shape.slots);
        for slot in 0..=shape.slots as u64 {
            frames.push(read_values(reader, BlockHead { version: slot, block: index }, len).await?);
        }
        let values = frames.remove(0);
        blocks.push(Block::restore(values, frames));
    }
    Ok(blocks)
}

async fn read_values<R: AsyncRead + Unpin>(
    reader: &mut FrameReader<R>,
    due: BlockHead,
    len: usize,
) -> Result<Vec<f32>, FrameError> {
    match reader.header().await? {
        Header::Block(WireType::F32, values) if values == len => {}
        Header::Block(wire, values) => {
            let error =
                format!("block {} of {values} {wire} values, expected {len} f32", due.block);
            return Err(FrameError::Unexpected(error));
        }
        Header::Control(_) => return Err(FrameError::WrongKind { expected: "block" }),
    }
    let head = reader.block_head().await?;
    if head != due {
        return Err(FrameError::Unexpected(format!("{head:?} where {due:?} was due")));
    }
    let mut values = vec![0.0; len];
    reader.values(WireType::F32, &mut values).await?;
    Ok(values)
}
