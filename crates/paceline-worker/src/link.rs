//! A data connection to one shard.

use std::{
    io::{Read, Write},
    ops::Range,
    sync::Arc,
};

use paceline_core::Version;
use paceline_params::{WireType, narrow};
use paceline_shm::Publisher;
use paceline_wire::{
    BlockingReader, BlockingWriter, FrameError,
    frame::{BlockHead, Header, Values},
    message::{FromData, ToData},
};

use crate::buffer::Buffer;

/// The connection, and what of the parameters goes over it.
pub(crate) struct Link {
    pub(crate) reader: BlockingReader<Box<dyn Read + Send>>,
    pub(crate) writer: BlockingWriter<Box<dyn Write + Send>>,
    /// This shard's blocks: number, and elements of the flat vector.
    pub(crate) blocks: Vec<(u32, Range<usize>)>,
    pub(crate) elements: Range<usize>,
    pub(crate) wire: WireType,
    /// A block on its way out, where it travels as halves.
    pub(crate) halves: Vec<u16>,
    /// Where the shard publishes, if it shares memory with this worker.
    pub(crate) publisher: Option<Arc<Publisher>>,
}

/// How a pull is answered.
pub(crate) enum Answer {
    /// This version is in that segment.
    Published(Version, u32),
    /// Blocks follow, of which the first one's header is read.
    Blocks(Header),
}

impl Link {
    /// What an answer has to send: all values, unless they are in shared memory.
    pub(crate) fn answer_bytes(&self) -> usize {
        if self.publisher.is_some() { 0 } else { self.elements.len() * self.wire.size() }
    }

    /// Asks for a version; where memory is shared, that will do.
    pub(crate) fn ask(&mut self, version: Version) -> Result<(), FrameError> {
        self.writer.message(&ToData::Pull { version, shared: self.publisher.is_some() })
    }

    /// How what was asked for is answered.
    pub(crate) fn answer(&mut self) -> Result<Answer, FrameError> {
        let header = self.reader.header()?;
        let Header::Control(len) = header else { return Ok(Answer::Blocks(header)) };
        match self.reader.control(len)? {
            FromData::Error(error) => Err(FrameError::Refused(error)),
            FromData::Published { version, segment } => Ok(Answer::Published(version, segment)),
        }
    }

    /// The same, and asks again if that is something older than `wanted`, as far as it says so.
    pub(crate) fn answer_since(&mut self, wanted: Version) -> Result<Answer, FrameError> {
        match self.answer()? {
            Answer::Published(version, _) if version < wanted => {
                self.ask(wanted)?;
                self.answer()
            }
            answer => Ok(answer),
        }
    }

    /// Copies what an answer says, and asks again if that was something older than `wanted`.
    pub(crate) fn take_since(
        &mut self,
        answer: Answer,
        wanted: Version,
        part: &mut [f32],
    ) -> Result<Version, FrameError> {
        let found = self.take(answer, wanted, part)?;
        if found >= wanted {
            return Ok(found);
        }
        self.ask(wanted)?;
        let answer = self.answer()?;
        self.take(answer, wanted, part)
    }

    /// Copies what an answer says; what is wanted by now is `wanted`.
    pub(crate) fn take(
        &mut self,
        answer: Answer,
        wanted: Version,
        part: &mut [f32],
    ) -> Result<Version, FrameError> {
        let (version, segment) = match answer {
            Answer::Blocks(header) => return self.read_blocks(header, part),
            Answer::Published(version, segment) => (version, segment),
        };
        let publisher = self.publisher.as_ref();
        let view = publisher
            .and_then(|publisher| publisher.view(segment))
            .ok_or_else(|| FrameError::Unexpected(format!("parameters in segment {segment}")))?;
        if view.read_version(version.0, part) {
            return Ok(version);
        }
        // It was overwritten meanwhile. Blocks are not: they are sent whole.
        self.writer.message(&ToData::Pull { version: wanted, shared: false })?;
        let header = self.reader.header()?;
        self.read_blocks(header, part)
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

    pub(crate) fn write(
        &mut self,
        base: Version,
        gradient: &Buffer,
        is_over: impl Fn() -> bool,
    ) -> Result<bool, FrameError> {
        if let Some(segment) = gradient.segment().filter(|_| self.publisher.is_some()) {
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
            publisher: None,
        };
        let mut part = [0.0; 2];
        let answer = link.answer().map_err(|error| error.to_string())?;
        let found = link.take_since(answer, Version(3), &mut part);
        found.map(|_| part).map_err(|error| error.to_string())
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
