//! Data connections: parameters in from every shard, gradients out to every shard.

use std::{
    io::{Read, Write},
    ops::Range,
    thread,
};

use paceline_core::Version;
use paceline_params::{WireType, narrow};
use paceline_shm::View;
use paceline_wire::{
    BlockingReader, BlockingWriter, Connect, FrameError, Transport,
    frame::{BlockHead, Header, Values},
    message::{FromData, Invitation, Job, Role, ToData},
};

use crate::{buffer::Buffer, client::greet, memory::Memory};

/// A shard's part of a large model is moved by a thread of its own; below this many elements
/// starting one costs more than it saves.
const THREAD_ELEMS: usize = 1 << 20;

/// The connections to all shards.
pub(crate) struct DataPlane {
    links: Vec<Link>,
    /// Values that are so many rounds old are asked for even where a shard is behind.
    max_stale: u64,
}

struct Link {
    reader: BlockingReader<Box<dyn Read + Send>>,
    writer: BlockingWriter<Box<dyn Write + Send>>,
    /// This shard's blocks: number, and elements of the flat vector.
    blocks: Vec<(u32, Range<usize>)>,
    elements: Range<usize>,
    wire: WireType,
    /// A block on its way out, where it travels as halves.
    halves: Vec<u16>,
    /// Where the shard publishes, if it shares memory with this worker.
    views: Vec<View>,
    /// The round for which its values were fetched last.
    fetched: Option<Version>,
}

impl DataPlane {
    /// Connects to every shard; returns where gradients are to be computed, too: in memory shared
    /// with shards of this host, if `transport` lets them.
    pub(crate) fn connect(
        connect: &dyn Connect,
        addresses: &[String],
        token: &str,
        job: &Job,
        transport: Transport,
    ) -> Result<(Self, Vec<Buffer>), FrameError> {
        let &Job { worker, session, ref layout, wire, max_stale, .. } = job;
        let mut memory = Memory::new(layout.total(), transport == Transport::Auto);
        let mut links = Vec::with_capacity(addresses.len());
        for (shard, address) in (0..).zip(addresses) {
            let role = Role::Data { worker, session, shard };
            let (reader, mut writer, invitation) =
                greet::<Option<Invitation>>(connect, address, token, role)?;
            let blocks = layout.shard_blocks(shard).map(|block| (block, layout.block_range(block)));
            let elements = layout.shard_range(shard);
            let come = || writer.message(&ToData::Memory);
            let views = memory.join(invitation.as_ref(), session, elements.len(), come)?;
            let (blocks, halves, fetched) = (blocks.collect(), Vec::new(), None);
            links.push(Link { reader, writer, blocks, elements, wire, halves, views, fetched });
        }
        Ok((DataPlane { links, max_stale }, memory.into_buffers()))
    }

    /// Fills `params` with version `wanted` or a newer one; returns which it is, `None` where the
    /// shards gave different ones (the wanted one is gone then). Of shards that are `behind` the values
    /// that are there do, or whatever they have if those are too old.
    pub(crate) fn pull(
        &mut self,
        wanted: Version,
        behind: &[u32],
        params: &mut [f32],
    ) -> Result<Option<Version>, FrameError> {
        let mut rest = params;
        let mut parts = Vec::with_capacity(self.links.len());
        for (shard, link) in (0..).zip(&mut self.links) {
            let (part, tail) = rest.split_at_mut(link.elements.len());
            rest = tail;
            let version = match behind.contains(&shard) {
                false => wanted,
                true if link.is_recent(wanted, self.max_stale) => continue,
                true => Version(0),
            };
            // All shards are asked before any is listened to.
            link.ask(version, !link.views.is_empty())?;
            link.fetched = Some(wanted);
            parts.push((link, (version, part)));
        }
        let versions = each(parts, |(link, (version, part))| {
            let found = link.read(version, part)?;
            Ok((version == wanted).then_some(found))
        })?;
        let mut versions = versions.into_iter().flatten();
        let first = versions.next();
        Ok(first.filter(|first| versions.all(|version| version == *first)))
    }

    /// Sends `gradient`, computed from `base`, to all shards that are not `behind`; gives up between
    /// blocks once `is_over` says so. Returns whether all was sent.
    pub(crate) fn push(
        &mut self,
        base: Version,
        behind: &[u32],
        gradient: &Buffer,
        is_over: impl Fn() -> bool + Sync,
    ) -> Result<bool, FrameError> {
        let links = (0..).zip(&mut self.links).filter(|(shard, _)| !behind.contains(shard));
        let links = links.map(|(_, link)| (link, gradient)).collect();
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
    /// Whether the values that are there are at most so many rounds old.
    fn is_recent(&self, wanted: Version, max_stale: u64) -> bool {
        self.fetched.is_some_and(|fetched| wanted.0.saturating_sub(fetched.0) <= max_stale)
    }

    fn ask(&mut self, version: Version, shared: bool) -> Result<(), FrameError> {
        self.writer.message(&ToData::Pull { version, shared })
    }

    /// Reads what was asked for; what was asked for is `wanted`.
    fn read(&mut self, wanted: Version, part: &mut [f32]) -> Result<Version, FrameError> {
        let header = self.reader.header()?;
        let Header::Control(len) = header else { return self.read_blocks(header, part) };
        match self.reader.control(len)? {
            FromData::Error(error) => Err(FrameError::Refused(error)),
            FromData::Published { version, segment } => {
                let view = self.views.get(segment as usize).ok_or_else(|| {
                    FrameError::Unexpected(format!("parameters in segment {segment}"))
                })?;
                if view.read_version(version.0, part) {
                    return Ok(version);
                }
                // It was overwritten meanwhile. Blocks are not: they are sent whole.
                self.ask(wanted, false)?;
                let header = self.reader.header()?;
                self.read_blocks(header, part)
            }
        }
    }

    /// Reads all blocks, of which the first one's header is read already.
    fn read_blocks(&mut self, first: Header, part: &mut [f32]) -> Result<Version, FrameError> {
        let mut version = None;
        let mut first = Some(first);
        for (block, range) in &self.blocks {
            let header = first.take().map_or_else(|| self.reader.header(), Ok)?;
            let (wire, values) = match header {
                Header::Block(wire, values) => (wire, values),
                Header::Control(len) => return Err(unexpected(self.reader.control(len)?)),
            };
            let head = self.reader.block_head()?;
            if head.block != *block || wire != self.wire || values != range.len() {
                let error = format!(
                    "{head:?} of {values} {wire} values where block {block} of {} {} was due",
                    range.len(),
                    self.wire
                );
                return Err(FrameError::Unexpected(error));
            }
            let start = range.start - self.elements.start;
            self.reader.values(wire, &mut part[start..start + values])?;
            version = Some(head.version);
        }
        Ok(Version(version.unwrap_or_default()))
    }

    fn write(
        &mut self,
        base: Version,
        gradient: &Buffer,
        is_over: impl Fn() -> bool,
    ) -> Result<bool, FrameError> {
        if let Some(segment) = gradient.segment().filter(|_| !self.views.is_empty()) {
            let sent = self.writer.message(&ToData::Push { base, segment });
            return sent.map(|()| true).map_err(|error| self.reason(error));
        }
        for (i, (block, range)) in self.blocks.iter().enumerate() {
            if i > 0 && is_over() {
                self.writer.message(&ToData::Abandon { base })?;
                return Ok(false);
            }
            let head = BlockHead { version: base.0, block: *block };
            let values = match self.wire {
                WireType::F32 => Values::from(&gradient[range.clone()]),
                WireType::Half(half) => {
                    self.halves.resize(range.len(), 0);
                    narrow(half, &gradient[range.clone()], &mut self.halves);
                    Values::half(half, &self.halves)
                }
            };
            if let Err(error) = self.writer.block(head, values) {
                return Err(self.reason(error));
            }
        }
        Ok(true)
    }

    /// A shard that closes the connection has said why; that is worth more than "broken pipe".
    fn reason(&mut self, error: FrameError) -> FrameError {
        match self.reader.message::<FromData>() {
            Ok(FromData::Error(why)) => FrameError::Refused(why),
            _ => error,
        }
    }
}

fn unexpected(said: FromData) -> FrameError {
    match said {
        FromData::Error(error) => FrameError::Refused(error),
        said => FrameError::Unexpected(format!("{said:?} where blocks were due")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use paceline_params::Half;

    use super::*;

    const BF16: WireType = WireType::Half(Half::Bf16);

    /// What becomes of a pull of one block of two values, as bf16, that is answered by these bytes.
    fn pulled(answer: Vec<u8>) -> Result<[f32; 2], String> {
        let mut link = Link {
            reader: BlockingReader::new(Box::new(Cursor::new(answer))),
            writer: BlockingWriter::new(Box::new(std::io::sink())),
            blocks: vec![(0, 0..2)],
            elements: 0..2,
            wire: BF16,
            halves: Vec::new(),
            views: Vec::new(),
            fetched: None,
        };
        let mut part = [0.0; 2];
        link.read(Version(3), &mut part).map(|_| part).map_err(|error| error.to_string())
    }

    fn block(wire: WireType, values: usize) -> Vec<u8> {
        let head = BlockHead { version: 3, block: 0 }.encode(wire, values);
        [head.to_vec(), [0x80, 0x3f].repeat(values * wire.size() / 2)].concat()
    }

    #[test]
    fn blocks_of_another_type_or_length_are_refused_and_named() {
        assert_eq!(pulled(block(BF16, 2)), Ok([1.0, 1.0]));
        let due = "where block 0 of 2 bf16 was due";
        for (wire, values) in [(BF16, 3), (BF16, 0), (WireType::F32, 2), (WireType::F32, 1)] {
            let error = pulled(block(wire, values)).unwrap_err();
            assert!(error.contains(&format!("of {values} {wire} values {due}")), "{error}");
        }
        let error = pulled(block(WireType::Half(Half::F16), 2)).unwrap_err();
        assert!(error.contains(&format!("of 2 f16 values {due}")), "{error}");
        let mut short = block(BF16, 2);
        short.pop();
        assert_eq!(pulled(short), Err("connection closed inside a frame".to_owned()));
        let error = pulled(vec![3, 0, 0, 0, 19, 0, 0, 0]).unwrap_err();
        assert!(error.contains("19 bytes is not a head and whole bf16 values"), "{error}");
    }
}
