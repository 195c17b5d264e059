//! A data connection to one shard.

use std::{
    io::{Read, Write},
    ops::Range,
    sync::Arc,
};

use paceline_core::{ContributionId, Version};
use paceline_params::{Layout, WireType};
use paceline_shm::Publisher;
use paceline_wire::{
    BlockingReader, BlockingWriter, FrameError,
    frame::{BlockHead, Header},
    message::{FromData, ToData},
};

use crate::{
    buffer::Buffer,
    early::{BUCKET_ELEMS, EarlyBlock},
    requests::RequestWriter,
};

/// The connection, and the part of the parameters that it carries.
pub(crate) struct ShardConnection {
    reader: BlockingReader<Box<dyn Read + Send>>,
    requests: Arc<RequestWriter>,
    /// `Cancelled` frames that come before the answer to the current pull.
    earlier_cancels: u64,
    /// `Cancelled` frames read so far.
    confirmed: u64,
    /// This shard's blocks: number, and elements of the flat vector.
    blocks: Vec<(u32, Range<usize>)>,
    elements: Range<usize>,
    wire: WireType,
    /// The contribution that was begun and is not whole yet.
    begun: Option<Begun>,
    /// The shard's published segments, if it shares memory with this worker.
    publisher: Option<Arc<Publisher>>,
}

/// A contribution of which some blocks were sent.
struct Begun {
    id: ContributionId,
    /// Which of the shard's blocks were sent.
    sent: Vec<bool>,
}

/// A shard's answer to a pull.
pub(crate) enum Answer {
    /// The version is in this segment.
    Published(Version, u32),
    /// Blocks follow; the header of the first one is already read.
    Blocks(Header),
}

impl ShardConnection {
    pub(crate) fn new(
        reader: BlockingReader<Box<dyn Read + Send>>,
        writer: BlockingWriter<Box<dyn Write + Send>>,
        (layout, shard): (&Layout, u32),
        wire: WireType,
        publisher: Option<Arc<Publisher>>,
    ) -> Self {
        let blocks = layout.shard_blocks(shard).map(|block| (block, layout.block_range(block)));
        ShardConnection {
            reader,
            requests: Arc::new(RequestWriter::new(writer, wire)),
            earlier_cancels: 0,
            confirmed: 0,
            blocks: blocks.collect(),
            elements: layout.shard_range(shard),
            wire,
            begun: None,
            publisher,
        }
    }

    /// The writing direction, for the thread that cancels pulls.
    pub(crate) fn requests(&self) -> Arc<RequestWriter> {
        Arc::clone(&self.requests)
    }

    pub(crate) fn publisher(&self) -> Option<Arc<Publisher>> {
        self.publisher.clone()
    }

    /// Elements of the flat vector that the shard holds.
    pub(crate) fn elements(&self) -> Range<usize> {
        self.elements.clone()
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// The blocks that may be sent before the gradient is whole: none of a small part, or of one in shared
    /// memory, where writing the gradient is the transfer.
    pub(crate) fn early_blocks(&self) -> impl Iterator<Item = EarlyBlock> {
        let pays = self.publisher.is_none() && self.elements.len() > BUCKET_ELEMS;
        let block = |(number, elements): &(u32, Range<usize>)| EarlyBlock {
            number: *number,
            elements: elements.clone(),
        };
        self.blocks.iter().filter(move |_| pays).map(block)
    }

    /// Whether this block is the shard's.
    pub(crate) fn has_block(&self, block: u32) -> bool {
        self.blocks
            .first()
            .zip(self.blocks.last())
            .is_some_and(|(first, last)| (first.0..=last.0).contains(&block))
    }

    /// Bytes of an answer: all values, unless they are in shared memory.
    pub(crate) fn answer_bytes(&self) -> usize {
        if self.publisher.is_some() { 0 } else { self.elements.len() * self.wire.size() }
    }

    /// Requests a version, in shared memory if possible, unless `is_over`. Returns whether it did. A cancel
    /// that comes after `is_over` returned false finds the request.
    pub(crate) fn request(
        &mut self,
        version: Version,
        is_over: impl Fn() -> bool,
    ) -> Result<bool, FrameError> {
        let shared = self.publisher.is_some();
        self.send_request(&ToData::Pull { version, shared }, is_over)
    }

    fn send_request(
        &mut self,
        pull: &ToData,
        is_over: impl Fn() -> bool,
    ) -> Result<bool, FrameError> {
        let mut requests = self.requests.lock();
        if is_over() {
            return Ok(false);
        }
        self.earlier_cancels = requests.cancels() - self.confirmed;
        requests.pull(pull)?;
        Ok(true)
    }

    /// The answer to the last request; `None` if it was cancelled.
    pub(crate) fn answer(&mut self) -> Result<Option<Answer>, FrameError> {
        while self.earlier_cancels > 0 {
            self.skip_frame()?;
        }
        let header = self.reader.header()?;
        let Header::Control(len) = header else { return Ok(Some(Answer::Blocks(header))) };
        match self.reader.control(len)? {
            FromData::Error(error) => Err(FrameError::Refused(error)),
            FromData::Published { version, segment } => {
                self.requests.lock().finish_pull();
                Ok(Some(Answer::Published(version, segment)))
            }
            FromData::Cancelled => {
                self.confirmed += 1;
                Ok(None)
            }
        }
    }

    /// Skips a frame of an answer that was cancelled.
    fn skip_frame(&mut self) -> Result<(), FrameError> {
        match self.reader.header()? {
            header @ Header::Block(..) => self.reader.skip(header),
            Header::Chunk(_) => Err(FrameError::WrongKind { expected: "block" }),
            Header::Control(len) => match self.reader.control(len)? {
                FromData::Error(error) => Err(FrameError::Refused(error)),
                FromData::Published { .. } => Ok(()),
                FromData::Cancelled => {
                    self.confirmed += 1;
                    self.earlier_cancels -= 1;
                    Ok(())
                }
            },
        }
    }

    /// Like [`Self::answer`], but requests `wanted` again if the shard has published an older version.
    pub(crate) fn answer_since(
        &mut self,
        wanted: Version,
        is_over: impl Fn() -> bool,
    ) -> Result<Option<Answer>, FrameError> {
        match self.answer()? {
            Some(Answer::Published(version, _)) if version < wanted => {
                if self.request(wanted, is_over)? { self.answer() } else { Ok(None) }
            }
            answer => Ok(answer),
        }
    }

    /// Copies the values of an answer, and requests `wanted` again if they are older. Returns their
    /// version; `None` if the pull was cancelled or `is_over`.
    pub(crate) fn copy_since(
        &mut self,
        answer: Answer,
        wanted: Version,
        part: &mut [f32],
        is_over: impl Fn() -> bool,
    ) -> Result<Option<Version>, FrameError> {
        match self.copy(answer, wanted, part, &is_over)? {
            Some(found) if found < wanted => {}
            copied => return Ok(copied),
        }
        if !self.request(wanted, &is_over)? {
            return Ok(None);
        }
        let Some(answer) = self.answer()? else { return Ok(None) };
        self.copy(answer, wanted, part, is_over)
    }

    /// Copies the values of an answer. If they are overwritten meanwhile, requests `wanted` as blocks.
    pub(crate) fn copy(
        &mut self,
        answer: Answer,
        wanted: Version,
        part: &mut [f32],
        is_over: impl Fn() -> bool,
    ) -> Result<Option<Version>, FrameError> {
        let (version, segment) = match answer {
            Answer::Blocks(header) => return self.read_blocks(header, part),
            Answer::Published(version, segment) => (version, segment),
        };
        let publisher = self.publisher.as_ref();
        let view = publisher
            .and_then(|publisher| publisher.view(segment))
            .ok_or_else(|| FrameError::Unexpected(format!("parameters in segment {segment}")))?;
        if view.read_version(version.0, part) {
            return Ok(Some(version));
        }
        if !self.send_request(&ToData::Pull { version: wanted, shared: false }, is_over)? {
            return Ok(None);
        }
        match self.answer()? {
            None => Ok(None),
            Some(Answer::Blocks(header)) => self.read_blocks(header, part),
            Some(Answer::Published(..)) => Err(FrameError::WrongKind { expected: "block" }),
        }
    }

    /// Reads all blocks; the header of the first one is already read. `None` if the shard stops before the
    /// last.
    fn read_blocks(
        &mut self,
        first: Header,
        part: &mut [f32],
    ) -> Result<Option<Version>, FrameError> {
        let mut version = None;
        let mut first = Some(first);
        for (block, range) in &self.blocks {
            let header = first.take().map_or_else(|| self.reader.header(), Ok)?;
            let (wire, values) = match header {
                Header::Block(wire, values) => (wire, values),
                Header::Control(len) => match self.reader.control(len)? {
                    FromData::Cancelled => {
                        self.confirmed += 1;
                        return Ok(None);
                    }
                    message => return Err(unexpected(message)),
                },
                Header::Chunk(_) => return Err(FrameError::WrongKind { expected: "block" }),
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
            version = Some(head.key);
        }
        self.requests.lock().finish_pull();
        Ok(Some(Version(version.unwrap_or_default())))
    }

    /// Sends the shard's part of a contribution. Stops between two blocks once `is_over`, and returns whether
    /// all was sent.
    pub(crate) fn push(
        &mut self,
        id: ContributionId,
        gradient: &Buffer,
        is_over: impl Fn() -> bool,
    ) -> Result<bool, FrameError> {
        self.write_gradient(id, gradient, is_over).map_err(|error| self.reason(error))
    }

    fn write_gradient(
        &mut self,
        id: ContributionId,
        gradient: &Buffer,
        is_over: impl Fn() -> bool,
    ) -> Result<bool, FrameError> {
        let mut requests = self.requests.lock();
        if let Some(segment) = gradient.segment().filter(|_| self.publisher.is_some()) {
            return requests.message(&ToData::Push { id, segment }).map(|()| true);
        }
        let early = self.begun.take().filter(|begun| begun.id == id);
        let mut begun = early.is_some();
        for (i, (block, range)) in self.blocks.iter().enumerate() {
            if early.as_ref().is_some_and(|early| early.sent[i]) {
                continue;
            }
            if begun && is_over() {
                return requests.message(&ToData::Abandon { id }).map(|()| false);
            }
            begun = true;
            let head = BlockHead { key: id.0, block: *block };
            requests.block(head, &gradient[range.clone()])?;
        }
        Ok(true)
    }

    /// Sends a block of a contribution before the others are computed, unless it is the last one missing: that
    /// one leaves with [`Self::push`].
    pub(crate) fn push_early(
        &mut self,
        id: ContributionId,
        block: u32,
        values: &[f32],
    ) -> Result<(), FrameError> {
        let index = (block - self.blocks[0].0) as usize;
        let unsent = || vec![false; self.blocks.len()];
        let Begun { sent, .. } = self.begun.get_or_insert_with(|| Begun { id, sent: unsent() });
        if sent.iter().filter(|sent| !**sent).count() == 1 {
            return Ok(());
        }
        sent[index] = true;
        let head = BlockHead { key: id.0, block };
        let requests = Arc::clone(&self.requests);
        let mut requests = requests.lock();
        requests.block(head, values).map_err(|error| self.reason(error))
    }

    /// Tells the shard to drop the blocks of a contribution that is not whole, if there is one.
    pub(crate) fn abandon(&mut self) -> Result<(), FrameError> {
        match self.begun.take() {
            Some(Begun { id, .. }) => {
                let requests = Arc::clone(&self.requests);
                let mut requests = requests.lock();
                requests.message(&ToData::Abandon { id }).map_err(|error| self.reason(error))
            }
            None => Ok(()),
        }
    }

    /// A shard that closes the connection sends the reason first, which is more useful than "broken pipe".
    fn reason(&mut self, error: FrameError) -> FrameError {
        match self.reader.message::<FromData>() {
            Ok(FromData::Error(why)) => FrameError::Refused(why),
            _ => error,
        }
    }
}

fn unexpected(message: FromData) -> FrameError {
    match message {
        FromData::Error(error) => FrameError::Refused(error),
        message => FrameError::Unexpected(format!("{message:?} where blocks were due")),
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Cursor, sync::Mutex};

    use paceline_params::{Half, TensorSpec};
    use paceline_wire::frame::encode_control;

    use super::*;

    const BF16: WireType = WireType::Half(Half::Bf16);

    /// A connection for one block of two bf16 values, on which the shard sends these bytes.
    fn connection(answer: Vec<u8>) -> ShardConnection {
        let layout = Layout::new(vec![TensorSpec::new("w", [2])], 2, 1).unwrap();
        let reader = BlockingReader::new(Box::new(Cursor::new(answer)) as Box<_>);
        let writer = BlockingWriter::new(Box::new(std::io::sink()) as Box<_>);
        ShardConnection::new(reader, writer, (&layout, 0), BF16, None)
    }

    /// Requests version 3 and reads the answer; `None` if the pull was cancelled.
    fn pull(connection: &mut ShardConnection) -> Result<Option<[f32; 2]>, FrameError> {
        assert!(connection.request(Version(3), || false)?);
        read(connection)
    }

    fn read(connection: &mut ShardConnection) -> Result<Option<[f32; 2]>, FrameError> {
        let mut part = [0.0; 2];
        let Some(answer) = connection.answer()? else { return Ok(None) };
        let found = connection.copy_since(answer, Version(3), &mut part, || false)?;
        Ok(found.map(|_| part))
    }

    /// The result of a pull that the shard answers with these bytes.
    fn pulled(answer: Vec<u8>) -> Result<[f32; 2], String> {
        let pulled = pull(&mut connection(answer)).map_err(|error| error.to_string())?;
        Ok(pulled.expect("nobody cancels"))
    }

    fn cancelled() -> Vec<u8> {
        encode_control(&FromData::Cancelled).unwrap()
    }

    fn block(wire: WireType, values: usize) -> Vec<u8> {
        let head = BlockHead { key: 3, block: 0 }.encode(wire, values);
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

    #[test]
    fn a_cancelled_answer_is_skipped_wherever_it_stops() {
        let whole = block(BF16, 2);
        // The shard stopped before the first block, or had sent all of them.
        for sent in [vec![], whole.clone()] {
            let mut connection = connection([sent, cancelled(), whole.clone()].concat());
            assert!(connection.request(Version(3), || false).unwrap());
            connection.requests().cancel_pull().unwrap();
            assert_eq!(pull(&mut connection).unwrap(), Some([1.0, 1.0]));
        }
    }

    #[test]
    fn a_cancel_that_meets_the_end_of_an_answer_spoils_no_later_pull() {
        let whole = block(BF16, 2);
        let mut connection = connection([&whole[..], &cancelled(), &whole].concat());
        assert!(connection.request(Version(3), || false).unwrap());
        connection.requests().cancel_pull().unwrap();
        assert!(read(&mut connection).unwrap().is_some(), "the answer was under way");
        assert_eq!(pull(&mut connection).unwrap(), Some([1.0, 1.0]));
        connection.requests().cancel_pull().unwrap();
        assert_eq!(connection.requests.lock().cancels(), 1, "there is nothing to cancel");
    }

    #[test]
    fn a_pull_that_is_cancelled_twice_in_a_row_is_told_apart() {
        let mut connection = connection([cancelled(), cancelled(), block(BF16, 2)].concat());
        for _ in 0..2 {
            assert!(connection.request(Version(3), || false).unwrap());
            connection.requests().cancel_pull().unwrap();
        }
        assert_eq!(read(&mut connection).unwrap(), None);
        assert_eq!(pull(&mut connection).unwrap(), Some([1.0, 1.0]));
    }

    /// What a connection has sent.
    #[derive(Clone, Default)]
    struct Sent(Arc<Mutex<Vec<u8>>>);

    impl Write for Sent {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Sent {
        /// The frames since the last call: the contribution, with the block's number unless it is abandoned.
        fn take(&self) -> Vec<(u64, Option<u32>)> {
            let bytes = std::mem::take(&mut *self.0.lock().unwrap());
            let len = bytes.len() as u64;
            let mut cursor = Cursor::new(bytes);
            let mut frames = Vec::new();
            while cursor.position() < len {
                let mut reader = BlockingReader::new(&mut cursor);
                frames.push(match reader.header().unwrap() {
                    Header::Block(wire, values) => {
                        let head = reader.block_head().unwrap();
                        let mut bits = vec![0.0; values];
                        reader.values(wire, &mut bits).unwrap();
                        assert!(bits.iter().all(|value| *value == head.block as f32));
                        (head.key, Some(head.block))
                    }
                    Header::Control(len) => match reader.control(len).unwrap() {
                        ToData::Abandon { id } => (id.0, None),
                        other => panic!("{other:?}"),
                    },
                    Header::Chunk(_) => panic!("a chunk"),
                });
            }
            frames
        }
    }

    /// A connection to the second of two shards, with blocks 3 to 5, and what it sends.
    fn pushing(wire: WireType) -> (ShardConnection, Sent) {
        let layout = Layout::new(vec![TensorSpec::new("w", [12])], 2, 2).unwrap();
        let sent = Sent::default();
        let reader = BlockingReader::new(Box::new(std::io::empty()) as Box<_>);
        let writer = BlockingWriter::new(Box::new(sent.clone()) as Box<_>);
        (ShardConnection::new(reader, writer, (&layout, 1), wire, None), sent)
    }

    /// A gradient whose values are the numbers of their blocks.
    fn numbers() -> Buffer {
        Buffer::Private((0..12).map(|at| (at / 2) as f32).collect())
    }

    #[test]
    fn a_push_sends_what_has_not_left_and_the_last_block_never_leaves_early() {
        for wire in [WireType::F32, BF16] {
            let (mut connection, sent) = pushing(wire);
            let id = ContributionId(7);
            for block in [5, 3, 4] {
                connection.push_early(id, block, &[block as f32; 2]).unwrap();
            }
            assert_eq!(sent.take(), [(7, Some(5)), (7, Some(3))]);
            assert!(connection.push(id, &numbers(), || false).unwrap());
            assert_eq!(sent.take(), [(7, Some(4))]);
            assert!(connection.push(ContributionId(8), &numbers(), || false).unwrap());
            assert_eq!(sent.take(), [(8, Some(3)), (8, Some(4)), (8, Some(5))]);
        }
    }

    #[test]
    fn what_has_left_is_abandoned_once() {
        let (mut connection, sent) = pushing(WireType::F32);
        let id = ContributionId(7);
        connection.abandon().unwrap();
        assert_eq!(sent.take(), [], "nothing has left");
        connection.push_early(id, 4, &[4.0; 2]).unwrap();
        assert!(!connection.push(id, &numbers(), || true).unwrap());
        connection.abandon().unwrap();
        assert_eq!(sent.take(), [(7, Some(4)), (7, None)]);
        connection.push_early(id, 4, &[4.0; 2]).unwrap();
        connection.abandon().unwrap();
        connection.abandon().unwrap();
        assert_eq!(sent.take(), [(7, Some(4)), (7, None)]);
    }

    #[test]
    fn nothing_is_requested_for_a_round_that_is_over() {
        let mut connection = connection(Vec::new());
        assert!(!connection.request(Version(3), || true).unwrap());
        connection.requests().cancel_pull().unwrap();
        assert_eq!(connection.requests.lock().cancels(), 0);
    }
}
