//! Frames over a tokio byte stream.

use std::io::IoSlice;

use paceline_params::{WireType, widen};
use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::frame::{
    BLOCK_HEAD_LEN, BlockHead, FrameError, HALF_CHUNK, HEADER_LEN, Header, MAX_CHUNK, MAX_CONTROL,
    PREAMBLE_LEN, Values, check_preamble, decode_control, encode_control, preamble,
};

/// Reads frames. Refuses control messages over `limit` bytes.
#[derive(Debug)]
pub struct FrameReader<R> {
    inner: R,
    limit: usize,
    payload: Vec<u8>,
    halves: Vec<u16>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads from `inner`, with control messages of at most `limit` bytes.
    pub fn new(inner: R, limit: usize) -> Self {
        FrameReader { inner, limit, payload: Vec::new(), halves: Vec::new() }
    }

    /// Reads from another view of the same stream, such as a buffered one.
    pub fn map<S>(self, view: impl FnOnce(R) -> S) -> FrameReader<S> {
        let FrameReader { inner, limit, payload, halves } = self;
        FrameReader { inner: view(inner), limit, payload, halves }
    }

    /// The peer is admitted: longer messages are allowed from now on.
    pub fn trust(&mut self) {
        self.limit = MAX_CONTROL;
    }

    /// Reads and checks the peer's preamble.
    pub async fn preamble(&mut self) -> Result<(), FrameError> {
        let mut bytes = [0; PREAMBLE_LEN];
        self.begin(&mut bytes).await?;
        check_preamble(bytes)
    }

    /// The next frame's header; [`FrameError::Closed`] if the stream ends before it.
    pub async fn header(&mut self) -> Result<Header, FrameError> {
        let mut bytes = [0; HEADER_LEN];
        self.begin(&mut bytes).await?;
        Header::decode(bytes, self.limit)
    }

    /// The control message of `len` bytes that a header announced.
    pub async fn control<T: DeserializeOwned>(&mut self, len: usize) -> Result<T, FrameError> {
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(len, 0);
        self.exact(&mut payload).await?;
        let message = decode_control(&payload);
        self.payload = payload;
        message
    }

    /// The next frame, which must be a control message.
    pub async fn message<T: DeserializeOwned>(&mut self) -> Result<T, FrameError> {
        match self.header().await? {
            Header::Control(len) => self.control(len).await,
            _ => Err(FrameError::WrongKind { expected: "control" }),
        }
    }

    /// The next frame, which must be a chunk of a state: appends it to `bytes` and returns its length.
    pub async fn chunk(&mut self, bytes: &mut Vec<u8>) -> Result<usize, FrameError> {
        let Header::Chunk(len) = self.header().await? else {
            return Err(FrameError::WrongKind { expected: "chunk" });
        };
        let before = bytes.len();
        bytes.resize(before + len, 0);
        self.exact(&mut bytes[before..]).await?;
        Ok(len)
    }

    /// The head of the block that a header announced.
    pub async fn block_head(&mut self) -> Result<BlockHead, FrameError> {
        let mut bytes = [0; BLOCK_HEAD_LEN];
        self.exact(&mut bytes).await?;
        BlockHead::decode(bytes)
    }

    /// The values of a block, after its head.
    pub async fn values(&mut self, wire: WireType, values: &mut [f32]) -> Result<(), FrameError> {
        let WireType::Half(half) = wire else {
            return self.exact(bytemuck::cast_slice_mut(values)).await;
        };
        let mut halves = std::mem::take(&mut self.halves);
        for part in values.chunks_mut(HALF_CHUNK) {
            halves.resize(part.len(), 0);
            self.exact(bytemuck::cast_slice_mut(&mut halves)).await?;
            widen(half, &halves, part);
        }
        self.halves = halves;
        Ok(())
    }

    /// Fills `bytes`. A stream that ends before the first byte is closed, not truncated.
    async fn begin(&mut self, bytes: &mut [u8]) -> Result<(), FrameError> {
        match self.inner.read(bytes).await? {
            0 => Err(FrameError::Closed),
            first => self.exact(&mut bytes[first..]).await,
        }
    }

    async fn exact(&mut self, bytes: &mut [u8]) -> Result<(), FrameError> {
        match self.inner.read_exact(bytes).await {
            Ok(_) => Ok(()),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(FrameError::Truncated),
            Err(e) => Err(e.into()),
        }
    }
}

/// Writes frames.
#[derive(Debug)]
pub struct FrameWriter<W> {
    inner: W,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    /// Writes to `inner`.
    pub fn new(inner: W) -> Self {
        FrameWriter { inner }
    }

    /// Sends the preamble.
    pub async fn preamble(&mut self) -> Result<(), FrameError> {
        self.raw(&preamble()).await
    }

    /// Sends a control message.
    pub async fn message<T: Serialize>(&mut self, message: &T) -> Result<(), FrameError> {
        self.raw(&encode_control(message)?).await
    }

    /// Sends encoded frames.
    pub async fn raw(&mut self, frames: &[u8]) -> Result<(), FrameError> {
        self.inner.write_all(frames).await?;
        Ok(self.inner.flush().await?)
    }

    /// Sends a block: one vectored write without copying the values, if the socket takes it.
    pub async fn block<'a>(
        &mut self,
        head: BlockHead,
        values: impl Into<Values<'a>>,
    ) -> Result<(), FrameError> {
        let (head, data) = values.into().parts(head);
        let mut written = 0;
        while written < head.len() {
            let parts = [IoSlice::new(&head[written..]), IoSlice::new(data)];
            written += match self.inner.write_vectored(&parts).await? {
                0 => return Err(FrameError::Truncated),
                n => n,
            };
        }
        self.inner.write_all(&data[written - head.len()..]).await?;
        Ok(())
    }

    /// Sends a chunk of a state, of at most [`MAX_CHUNK`] bytes.
    pub async fn chunk(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
        debug_assert!(bytes.len() <= MAX_CHUNK);
        self.inner.write_all(&Header::Chunk(bytes.len()).encode()).await?;
        self.raw(bytes).await
    }

    /// Sends all buffered bytes, if there are any.
    pub async fn flush(&mut self) -> Result<(), FrameError> {
        Ok(self.inner.flush().await?)
    }
}
