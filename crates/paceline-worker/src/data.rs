//! Data connections: parameters in from every shard, gradients out to every shard.

use std::{
    io::{Read, Write},
    ops::Range,
    thread,
};

use paceline_core::Version;
use paceline_params::{WireType, narrow};
use paceline_wire::{
    BlockingReader, BlockingWriter, Connect, FrameError,
    frame::{BlockHead, Header, Values},
    message::{FromData, Job, Role, ToData},
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
    wire: WireType,
    /// A block on its way out, where it travels as halves.
    halves: Vec<u16>,
}

impl DataPlane {
    /// Connects to every shard.
    pub(crate) fn connect(
        connect: &dyn Connect,
        addresses: &[String],
        token: &str,
        job: &Job,
    ) -> Result<Self, FrameError> {
        let &Job { worker, session, ref layout, wire, .. } = job;
        let link = |(shard, address): (u32, &String)| {
            let role = Role::Data { worker, session, shard };
            let (reader, writer, ()) = greet(connect, address, token, role)?;
            let blocks = layout.shard_blocks(shard).map(|block| (block, layout.block_range(block)));
            let elements = layout.shard_range(shard);
            let (blocks, halves) = (blocks.collect(), Vec::new());
            Ok(Link { reader, writer, blocks, elements, wire, halves })
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
            let (wire, values) = match self.reader.header()? {
                Header::Block(wire, values) => (wire, values),
                Header::Control(len) => {
                    let FromData::Error(error) = self.reader.control(len)?;
                    return Err(FrameError::Refused(error));
                }
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
        gradient: &[f32],
        is_over: impl Fn() -> bool,
    ) -> Result<bool, FrameError> {
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
                // A shard that closes the connection has said why; that is worth more than
                // "broken pipe".
                let said = self.reader.message::<FromData>();
                return Err(said.map_or(error, |FromData::Error(why)| FrameError::Refused(why)));
            }
        }
        Ok(true)
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
        };
        let mut part = [0.0; 2];
        link.read(&mut part).map(|_| part).map_err(|error| error.to_string())
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
