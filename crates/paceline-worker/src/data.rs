//! Data connections: parameters in from every shard, gradients out to every shard.

use std::{
    io::{Read, Write},
    ops::Range,
    thread,
};

use paceline_core::{Version, WorkerId};
use paceline_params::Layout;
use paceline_wire::{
    BlockingReader, BlockingWriter, Connect, FrameError,
    frame::{BlockHead, Header},
    message::{FromData, Role, ToData},
};

use crate::client::greet;

/// A shard's part of a large model is moved by a thread of its own; below this many elements
/// starting one costs more than it saves.
const THREAD_ELEMS: usize = 1 << 20;

/// The connections to all shards.
pub(crate) struct DataPlane {
    links: Vec<Link>,
}

struct Link {
    reader: BlockingReader<Box<dyn Read + Send>>,
    writer: BlockingWriter<Box<dyn Write + Send>>,
    /// This shard's blocks: number, and elements of the flat vector.
    blocks: Vec<(u32, Range<usize>)>,
    elements: Range<usize>,
}

impl DataPlane {
    /// Connects to every shard.
    pub(crate) fn connect(
        connect: &dyn Connect,
        addresses: &[String],
        layout: &Layout,
        token: &str,
        (worker, session): (WorkerId, u64),
    ) -> Result<Self, FrameError> {
        let link = |(shard, address): (u32, &String)| {
            let role = Role::Data { worker, session, shard };
            let (reader, writer, ()) = greet(connect, address, token, role)?;
            let blocks = layout.shard_blocks(shard).map(|block| (block, layout.block_range(block)));
            let elements = layout.shard_range(shard);
            Ok(Link { reader, writer, blocks: blocks.collect(), elements })
        };
        let links = (0..).zip(addresses).map(link).collect::<Result<_, FrameError>>()?;
        Ok(DataPlane { links })
    }

    /// Fills `params` with version `wanted` or a newer one; returns which it is, `None` where the
    /// shards gave different ones (the wanted one is gone then).
    pub(crate) fn pull(
        &mut self,
        wanted: Version,
        params: &mut [f32],
    ) -> Result<Option<Version>, FrameError> {
        // All shards are asked before any is listened to.
        for link in &mut self.links {
            link.writer.message(&ToData::Pull { version: wanted })?;
        }
        let mut rest = params;
        let mut parts = Vec::with_capacity(self.links.len());
        for link in &mut self.links {
            let (part, tail) = rest.split_at_mut(link.elements.len());
            rest = tail;
            parts.push((link, part));
        }
        let versions = each(parts, |(link, part)| link.read(part))?;
        let first = versions.first().copied();
        Ok(first.filter(|first| versions.iter().all(|version| version == first)))
    }

    /// Sends `gradient`, computed from `base`, to all shards; gives up between blocks once
    /// `is_over` says so. Returns whether all was sent.
    pub(crate) fn push(
        &mut self,
        base: Version,
        gradient: &[f32],
        is_over: impl Fn() -> bool + Sync,
    ) -> Result<bool, FrameError> {
        let links = self.links.iter_mut().map(|link| (link, gradient)).collect();
        let sent = each(links, |(link, gradient)| link.write(base, gradient, &is_over))?;
        Ok(sent.into_iter().all(|sent| sent))
    }
}

/// Does the same on every shard: side by side where there is enough to move, else in turn.
fn each<'a, S: Send, T: Send>(
    parts: Vec<(&'a mut Link, S)>,
    job: impl Fn((&'a mut Link, S)) -> Result<T, FrameError> + Sync,
) -> Result<Vec<T>, FrameError> {
    let small = parts.iter().all(|(link, _)| link.elements.len() < THREAD_ELEMS);
    if small || parts.len() == 1 {
        return parts.into_iter().map(job).collect();
    }
    let job = &job;
    thread::scope(|scope| {
        let threads: Vec<_> =
            parts.into_iter().map(|part| scope.spawn(move || job(part))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

impl Link {
    fn read(&mut self, part: &mut [f32]) -> Result<Version, FrameError> {
        let mut version = None;
        for (block, range) in &self.blocks {
            let values = match self.reader.header()? {
                Header::Block(values) => values,
                Header::Control(len) => {
                    let FromData::Error(error) = self.reader.control(len)?;
                    return Err(FrameError::Refused(error));
                }
            };
            let head = self.reader.block_head()?;
            if head.block != *block || values != range.len() {
                let error = format!("{head:?} of {values} values where block {block} was due");
                return Err(FrameError::Unexpected(error));
            }
            let start = range.start - self.elements.start;
            self.reader.values(&mut part[start..start + values])?;
            version = Some(head.version);
        }
        Ok(Version(version.unwrap_or_default()))
    }

    fn write(
        &mut self,
        base: Version,
        gradient: &[f32],
        is_over: impl Fn() -> bool,
    ) -> Result<bool, FrameError> {
        for (i, (block, range)) in self.blocks.iter().enumerate() {
            if i > 0 && is_over() {
                self.writer.message(&ToData::Abandon { base })?;
                return Ok(false);
            }
            let head = BlockHead { version: base.0, block: *block };
            if let Err(error) = self.writer.block(head, &gradient[range.clone()]) {
                // A shard that closes the connection has said why; that is worth more than
                // "broken pipe".
                let said = self.reader.message::<FromData>();
                return Err(said.map_or(error, |FromData::Error(why)| FrameError::Refused(why)));
            }
        }
        Ok(true)
    }
}
