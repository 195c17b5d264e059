//! The connection between a coordinator and a shard in another process: messages, and the blocks that follow
//! some of them.

use std::{collections::VecDeque, time::Duration};

use paceline_params::{Block, Layout, OptimizerGroups, WireType};
use paceline_wire::{
    FrameError, FrameReader, FrameWriter,
    frame::{BlockHead, Header},
    message::{FromShard, ToShard},
};
use serde::Serialize;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc::UnboundedReceiver,
    time::timeout,
};

use super::{ShardCommand, ShardReport};
use crate::error::ServerError;

/// The lengths and slots of a shard's blocks, for reading them.
#[derive(Debug, Clone)]
pub(crate) struct BlockShape {
    lengths: Vec<usize>,
    slots: usize,
}

impl BlockShape {
    pub(crate) fn new(layout: &Layout, shard: u32, optimizer: &OptimizerGroups) -> Self {
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

/// Writes reports as they come, and a heartbeat after `idle` without one. A report with blocks is written
/// block by block, with messages in between, so that they need not wait for it.
pub(crate) async fn write_reports<W: AsyncWrite + Unpin>(
    writer: &mut FrameWriter<W>,
    reports: &mut UnboundedReceiver<Result<ShardReport, String>>,
    idle: Duration,
) -> Result<(), ServerError> {
    // `written` counts the frames of the first large report that are written.
    let (mut large, mut written) = (VecDeque::<ShardReport>::new(), 0);
    loop {
        let report = match large.is_empty() {
            true => match timeout(idle, reports.recv()).await {
                Ok(Some(report)) => Some(report),
                Ok(None) => return Ok(()),
                Err(_) => Some(Ok(FromShard::Alive.into())),
            },
            false => reports.try_recv().ok(),
        };
        match report.transpose().map_err(ServerError::Shard)? {
            Some(report) if report.blocks.is_empty() => writer.message(&report.message).await?,
            Some(report) => large.push_back(report),
            None => {
                let first = &large[0];
                if written == 0 {
                    writer.message(&first.message).await?;
                }
                let frames = 1 + first.blocks[0].slots().len();
                write_frame(writer, &first.blocks, written / frames, written % frames).await?;
                written += 1;
                if written == frames * first.blocks.len() {
                    large.pop_front();
                    written = 0;
                }
            }
        }
        writer.flush().await?;
    }
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

/// Reads reports. Messages may come between the blocks of a report.
pub(crate) struct ReportReader<R> {
    reader: FrameReader<R>,
    shape: BlockShape,
    /// A report whose blocks are arriving: its whole blocks, and frames of the next.
    begun: Option<(ShardReport, Vec<Vec<f32>>)>,
}

impl<R: AsyncRead + Unpin> ReportReader<R> {
    pub(crate) fn new(reader: FrameReader<R>, shape: BlockShape) -> Self {
        ReportReader { reader, shape, begun: None }
    }

    pub(crate) async fn next(&mut self) -> Result<ShardReport, FrameError> {
        loop {
            let header = self.reader.header().await?;
            let Header::Control(len) = header else {
                if let Some(report) = self.block(header).await? {
                    return Ok(report);
                }
                continue;
            };
            let report = ShardReport::from(self.reader.control::<FromShard>(len).await?);
            match (&report.message, &self.begun) {
                (FromShard::Snapshot { .. }, Some(_)) => {
                    let error = "a snapshot inside of another".to_owned();
                    return Err(FrameError::Unexpected(error));
                }
                (FromShard::Snapshot { .. }, None) if !self.shape.lengths.is_empty() => {
                    self.begun = Some((report, Vec::new()))
                }
                _ => return Ok(report),
            }
        }
    }

    /// Takes in a frame of a block. Returns the report that it completes, if it does.
    async fn block(&mut self, header: Header) -> Result<Option<ShardReport>, FrameError> {
        let Some((report, frames)) = &mut self.begun else {
            return Err(FrameError::WrongKind { expected: "control" });
        };
        let (index, slot) = (report.blocks.len(), frames.len());
        let due = BlockHead { key: slot as u64, block: index as u32 };
        frames.push(read_values(&mut self.reader, header, due, self.shape.lengths[index]).await?);
        if frames.len() > self.shape.slots {
            let values = frames.remove(0);
            report.blocks.push(Block::restore(values, std::mem::take(frames)));
        }
        let whole = report.blocks.len() == self.shape.lengths.len();
        Ok(self.begun.take_if(|_| whole).map(|(report, _)| report))
    }
}

/// A block's values are its frame 0, its optimiser slots are frames 1, 2, …
async fn write<W: AsyncWrite + Unpin, T: Serialize>(
    writer: &mut FrameWriter<W>,
    message: &T,
    blocks: &[Block],
) -> Result<(), FrameError> {
    writer.message(message).await?;
    for (index, block) in blocks.iter().enumerate() {
        for frame in 0..=block.slots().len() {
            write_frame(writer, blocks, index, frame).await?;
        }
    }
    writer.flush().await
}

async fn write_frame<W: AsyncWrite + Unpin>(
    writer: &mut FrameWriter<W>,
    blocks: &[Block],
    block: usize,
    frame: usize,
) -> Result<(), FrameError> {
    let head = BlockHead { key: frame as u64, block: block as u32 };
    let values = match frame {
        0 => blocks[block].values(),
        slot => &blocks[block].slots()[slot - 1],
    };
    writer.block(head, values).await
}

async fn read_blocks<R: AsyncRead + Unpin>(
    reader: &mut FrameReader<R>,
    shape: &BlockShape,
) -> Result<Vec<Block>, FrameError> {
    let mut blocks = Vec::with_capacity(shape.lengths.len());
    for (index, &len) in (0..).zip(&shape.lengths) {
        let mut frames = Vec::with_capacity(1 + shape.slots);
        for slot in 0..=shape.slots as u64 {
            let (header, due) = (reader.header().await?, BlockHead { key: slot, block: index });
            frames.push(read_values(reader, header, due, len).await?);
        }
        let values = frames.remove(0);
        blocks.push(Block::restore(values, frames));
    }
    Ok(blocks)
}

async fn read_values<R: AsyncRead + Unpin>(
    reader: &mut FrameReader<R>,
    header: Header,
    due: BlockHead,
    len: usize,
) -> Result<Vec<f32>, FrameError> {
    match header {
        Header::Block(WireType::F32, values) if values == len => {}
        Header::Block(wire, values) => {
            let error =
                format!("block {} of {values} {wire} values, expected {len} f32", due.block);
            return Err(FrameError::Unexpected(error));
        }
        _ => return Err(FrameError::WrongKind { expected: "block" }),
    }
    let head = reader.block_head().await?;
    if head != due {
        return Err(FrameError::Unexpected(format!("{head:?} where {due:?} was due")));
    }
    let mut values = vec![0.0; len];
    reader.values(WireType::F32, &mut values).await?;
    Ok(values)
}

#[cfg(test)]
mod tests {
    use paceline_core::{BlockClose, Blocks, Version, WorkerId};
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    #[tokio::test]
    async fn a_close_that_is_too_long_for_a_frame_is_not_sent() {
        let members: Vec<_> = (0..400_000).map(|worker| (WorkerId(worker), 1.0)).collect();
        let closes = vec![BlockClose { blocks: Blocks::All, members }];
        let mut sent = Vec::new();
        let command = ToShard::Close { closes, apply: None }.into();
        let error = write_command(&mut FrameWriter::new(&mut sent), &command).await.unwrap_err();
        assert!(error.to_string().contains("passes the bound of 4194304"), "{error}");
        assert!(sent.is_empty());
    }

    #[tokio::test]
    async fn messages_do_not_wait_for_the_blocks_of_a_snapshot() {
        let optimizer = paceline_params::OptimizerSpec::MOMENTUM.into();
        let block = |value| Block::restore(vec![value; 500], vec![vec![-value; 500]]);
        let snapshot = |version| ShardReport {
            message: FromShard::Snapshot { version: Version(version) },
            blocks: vec![block(version as f32), block(2.0), block(3.0)],
        };
        let tensors = vec![paceline_params::TensorSpec::new("w", [1500])];
        let shape = BlockShape::new(&Layout::new(tensors, 500, 1).unwrap(), 0, &optimizer);
        // The stream buffers only a few bytes that are not read yet.
        let (here, there) = tokio::io::duplex(100);
        let (say, mut reports) = unbounded_channel();
        say.send(Ok(snapshot(4))).unwrap();
        say.send(Ok(FromShard::Ready.into())).unwrap();
        say.send(Ok(snapshot(5))).unwrap();
        let writes = tokio::spawn(async move {
            let mut writer = FrameWriter::new(here);
            write_reports(&mut writer, &mut reports, Duration::from_secs(60)).await
        });
        let mut reader = ReportReader::new(FrameReader::new(there, 1 << 20), shape);
        let mut next = async || reader.next().await.unwrap();
        assert_eq!(next().await.message, FromShard::Ready, "it overtakes");
        for version in [4, 5] {
            let report = next().await;
            assert_eq!(report.message, FromShard::Snapshot { version: Version(version) });
            assert_eq!(report.blocks.len(), 3);
            assert_eq!(report.blocks[0].values(), [version as f32; 500]);
            assert_eq!(*report.blocks[2].slots()[0], [-3.0; 500]);
            // Sent while the second snapshot is on its way.
            if version == 4 {
                say.send(Ok(FromShard::Alive.into())).unwrap();
                assert_eq!(next().await.message, FromShard::Alive);
            }
        }
        drop(say);
        writes.await.unwrap().unwrap();
    }
}
