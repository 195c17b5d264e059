//! Frames over a plain blocking byte stream, for workers, which use threads.

use std::io::{ErrorKind, IoSlice, Read, Write};

use paceline_params::{WireType, widen};
use serde::{Serialize, de::DeserializeOwned};

use crate::frame::{
    BLOCK_HEAD_LEN, BlockHead, FrameError, HALF_CHUNK, HEADER_LEN, Header, MAX_CHUNK, MAX_CONTROL,
    PREAMBLE_LEN, Values, check_preamble, decode_control, encode_control, preamble,
};

/// Reads frames.
#[derive(Debug)]
pub struct BlockingReader<R> {
    inner: R,
    halves: Vec<u16>,
}

impl<R: Read> BlockingReader<R> {
    /// Reads from `inner`.
    pub fn new(inner: R) -> Self {
        BlockingReader { inner, halves: Vec::new() }
    }

    /// Reads and checks the peer's preamble.
    pub fn preamble(&mut self) -> Result<(), FrameError> {
        let mut bytes = [0; PREAMBLE_LEN];
        self.exact(&mut bytes)?;
        check_preamble(bytes)
    }

    /// The next frame's header; [`FrameError::Closed`] if the stream ends before it.
    pub fn header(&mut self) -> Result<Header, FrameError> {
        let mut bytes = [0; HEADER_LEN];
        let first = loop {
            match self.inner.read(&mut bytes) {
                Ok(0) => return Err(FrameError::Closed),
                Ok(n) => break n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        };
        self.exact(&mut bytes[first..])?;
        Header::decode(bytes, MAX_CONTROL)
    }

    /// The control message of `len` bytes that a header announced.
    pub fn control<T: DeserializeOwned>(&mut self, len: usize) -> Result<T, FrameError> {
        let mut payload = vec![0; len];
        self.exact(&mut payload)?;
        decode_control(&payload)
    }

    /// The next frame, which must be a control message.
    pub fn message<T: DeserializeOwned>(&mut self) -> Result<T, FrameError> {
        match self.header()? {
            Header::Control(len) => self.control(len),
            _ => Err(FrameError::WrongKind { expected: "control" }),
        }
    }

    /// The next frame, which must be a chunk of a state: appends it to `bytes` and returns its length.
    pub fn chunk(&mut self, bytes: &mut Vec<u8>) -> Result<usize, FrameError> {
        let Header::Chunk(len) = self.header()? else {
            return Err(FrameError::WrongKind { expected: "chunk" });
        };
        let before = bytes.len();
        bytes.resize(before + len, 0);
        self.exact(&mut bytes[before..])?;
        Ok(len)
    }

    /// The head of the block that a header announced.
    pub fn block_head(&mut self) -> Result<BlockHead, FrameError> {
        let mut bytes = [0; BLOCK_HEAD_LEN];
        self.exact(&mut bytes)?;
        BlockHead::decode(bytes)
    }

    /// The values of a block, after its head.
    pub fn values(&mut self, wire: WireType, values: &mut [f32]) -> Result<(), FrameError> {
        let WireType::Half(half) = wire else {
            return self.exact(bytemuck::cast_slice_mut(values));
        };
        let mut halves = std::mem::take(&mut self.halves);
        for part in values.chunks_mut(HALF_CHUNK) {
            halves.resize(part.len(), 0);
            self.exact(bytemuck::cast_slice_mut(&mut halves))?;
            widen(half, &halves, part);
        }
        self.halves = halves;
        Ok(())
    }

    /// Skips the rest of the frame that `header` announced.
    pub fn skip(&mut self, header: Header) -> Result<(), FrameError> {
        let rest = (header.frame_len() - HEADER_LEN) as u64;
        match std::io::copy(&mut self.inner.by_ref().take(rest), &mut std::io::sink())? {
            skipped if skipped == rest => Ok(()),
            _ => Err(FrameError::Truncated),
        }
    }

    fn exact(&mut self, bytes: &mut [u8]) -> Result<(), FrameError> {
        match self.inner.read_exact(bytes) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => Err(FrameError::Truncated),
            Err(e) => Err(e.into()),
        }
    }
}

/// Writes frames.
#[derive(Debug)]
pub struct BlockingWriter<W> {
    inner: W,
}

impl<W: Write> BlockingWriter<W> {
    /// Writes to `inner`.
    pub fn new(inner: W) -> Self {
        BlockingWriter { inner }
    }

    /// Sends the preamble.
    pub fn preamble(&mut self) -> Result<(), FrameError> {
        Ok(self.inner.write_all(&preamble())?)
    }

    /// Sends a control message.
    pub fn message<T: Serialize>(&mut self, message: &T) -> Result<(), FrameError> {
        Ok(self.inner.write_all(&encode_control(message)?)?)
    }

    /// Sends a chunk of a state, of at most [`MAX_CHUNK`] bytes.
    pub fn chunk(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
        debug_assert!(bytes.len() <= MAX_CHUNK);
        self.inner.write_all(&Header::Chunk(bytes.len()).encode())?;
        Ok(self.inner.write_all(bytes)?)
    }

    /// Sends a block: one vectored write without copying the values, if the socket takes it.
    pub fn block<'a>(
        &mut self,
        head: BlockHead,
        values: impl Into<Values<'a>>,
    ) -> Result<(), FrameError> {
        let (head, data) = values.into().parts(head);
        let mut written = 0;
        while written < head.len() {
            let parts = [IoSlice::new(&head[written..]), IoSlice::new(data)];
            match self.inner.write_vectored(&parts) {
                Ok(0) => return Err(FrameError::Truncated),
                Ok(n) => written += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(self.inner.write_all(&data[written - head.len()..])?)
    }
}
