//! Frames: eight bytes of header, then a control message, a block of values, or a chunk of bytes. No I/O here.
//!
//! Every length read from the wire is bounded before anything is allocated for it.

use paceline_params::{Half, WireType};
use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;

/// The version of the protocol. Both ends send it first; they must agree.
pub const PROTOCOL: u16 = 8;

/// Bytes of the preamble, which either end sends before any frame: `PCLN`, the protocol's version, two zero
/// bytes.
pub const PREAMBLE_LEN: usize = 8;

/// Bytes of a frame's header: kind, three zero bytes, payload length (little-endian).
pub const HEADER_LEN: usize = 8;

/// Bytes at the start of a block frame's payload: version or contribution, block, four zero bytes.
pub const BLOCK_HEAD_LEN: usize = 16;

/// The longest control message from a peer that is not admitted yet.
pub const MAX_HELLO: usize = 4 << 10;

/// The longest control message, for its sender and its receiver. The longest that a run needs is a shard's
/// part of a close: at most 11 bytes per worker.
pub const MAX_CONTROL: usize = 4 << 20;

/// The longest block, in bytes of data.
pub const MAX_BLOCK: usize = 64 << 20;

/// The longest chunk of a state, in bytes.
pub const MAX_CHUNK: usize = 1 << 20;

const MAGIC: [u8; 4] = *b"PCLN";
const KIND_CONTROL: u8 = 1;
const KIND_F32: u8 = 2;
const KIND_BF16: u8 = 3;
const KIND_F16: u8 = 4;
const KIND_CHUNK: u8 = 5;

/// Number of 16-bit values that are read at once before they are widened: few enough to stay in the cache.
pub(crate) const HALF_CHUNK: usize = 1 << 15;

/// Errors in reading or writing a frame. They cost the connection.
#[derive(Debug, Error)]
pub enum FrameError {
    /// The connection failed.
    #[error("connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The peer closed the connection between frames.
    #[error("connection closed by the peer")]
    Closed,
    /// The peer closed the connection inside a frame.
    #[error("connection closed inside a frame")]
    Truncated,
    /// The peer does not speak this protocol at all.
    #[error("not a paceline peer: it began with {0:02x?}")]
    NotPaceline([u8; 4]),
    /// The peer speaks another version.
    #[error("protocol version {theirs} is not spoken here (this is version {PROTOCOL})")]
    WrongVersion {
        /// The peer's version.
        theirs: u16,
    },
    /// An unknown frame kind.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// Bytes that must be zero are not.
    #[error("reserved bytes of a frame header are not zero")]
    Reserved,
    /// The length exceeds the bound.
    #[error("frame of {len} bytes passes the bound of {limit}")]
    TooLong {
        /// The length in the header.
        len: usize,
        /// The bound.
        limit: usize,
    },
    /// A frame of the wrong kind at this point.
    #[error("expected a {expected} frame")]
    WrongKind {
        /// The kind that was expected.
        expected: &'static str,
    },
    /// A control message that cannot be decoded.
    #[error("malformed message: {0}")]
    Malformed(#[from] postcard::Error),
    /// A control message with bytes after its end.
    #[error("{0} bytes after the end of a message")]
    TrailingBytes(usize),
    /// A block's payload is not a whole number of values.
    #[error("block payload of {len} bytes is not a head and whole {wire} values")]
    RaggedBlock {
        /// The length in the header.
        len: usize,
        /// The type of its values.
        wire: WireType,
    },
    /// A message that is not allowed at this point of the conversation.
    #[error("unexpected message: {0}")]
    Unexpected(String),
    /// The other end refused the connection, for this reason.
    #[error("refused: {0}")]
    Refused(String),
}

/// The content that a header announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// A control message of this many bytes.
    Control(usize),
    /// A block head, and this many values of that type after it.
    Block(WireType, usize),
    /// A chunk of a state, of this many bytes.
    Chunk(usize),
}

impl Header {
    /// Reads a header; control messages may be `limit` bytes long.
    pub fn decode(bytes: [u8; HEADER_LEN], limit: usize) -> Result<Header, FrameError> {
        let [kind, a, b, c, len @ ..] = bytes;
        if [a, b, c] != [0; 3] {
            return Err(FrameError::Reserved);
        }
        let len = u32::from_le_bytes(len) as usize;
        match kind {
            KIND_CONTROL => bounded(len, limit).map(Header::Control),
            KIND_F32 => Self::block(WireType::F32, len),
            KIND_BF16 => Self::block(WireType::Half(Half::Bf16), len),
            KIND_F16 => Self::block(WireType::Half(Half::F16), len),
            KIND_CHUNK => bounded(len, MAX_CHUNK).map(Header::Chunk),
            other => Err(FrameError::UnknownKind(other)),
        }
    }

    fn block(wire: WireType, len: usize) -> Result<Header, FrameError> {
        let data = bounded(len, BLOCK_HEAD_LEN + MAX_BLOCK)?
            .checked_sub(BLOCK_HEAD_LEN)
            .filter(|data| data % wire.size() == 0)
            .ok_or(FrameError::RaggedBlock { len, wire })?;
        Ok(Header::Block(wire, data / wire.size()))
    }

    /// Bytes of the whole frame, this header included.
    pub fn frame_len(self) -> usize {
        HEADER_LEN
            + match self {
                Header::Control(len) | Header::Chunk(len) => len,
                Header::Block(wire, values) => BLOCK_HEAD_LEN + wire.size() * values,
            }
    }

    /// Writes a header.
    pub fn encode(self) -> [u8; HEADER_LEN] {
        let kind = match self {
            Header::Control(_) => KIND_CONTROL,
            Header::Block(WireType::F32, _) => KIND_F32,
            Header::Block(WireType::Half(Half::Bf16), _) => KIND_BF16,
            Header::Block(WireType::Half(Half::F16), _) => KIND_F16,
            Header::Chunk(_) => KIND_CHUNK,
        };
        let len = u32::try_from(self.frame_len() - HEADER_LEN);
        let len = len.expect("frames are bounded far below 4 GiB").to_le_bytes();
        [kind, 0, 0, 0, len[0], len[1], len[2], len[3]]
    }
}

fn bounded(len: usize, limit: usize) -> Result<usize, FrameError> {
    if len > limit {
        return Err(FrameError::TooLong { len, limit });
    }
    Ok(len)
}

/// The block that the values of a block frame belong to, and its version or contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHead {
    /// For parameters, their version; for a gradient, the id of its contribution.
    pub key: u64,
    /// The block.
    pub block: u32,
}

impl BlockHead {
    /// Reads a block head.
    pub fn decode(bytes: [u8; BLOCK_HEAD_LEN]) -> Result<BlockHead, FrameError> {
        let (version, rest) = bytes.split_at(8);
        let (block, reserved) = rest.split_at(4);
        if reserved != [0; 4] {
            return Err(FrameError::Reserved);
        }
        Ok(BlockHead {
            key: u64::from_le_bytes(version.try_into().expect("eight bytes")),
            block: u32::from_le_bytes(block.try_into().expect("four bytes")),
        })
    }

    /// Header and head of a block frame of `values` values, which follow them.
    pub fn encode(self, wire: WireType, values: usize) -> [u8; HEADER_LEN + BLOCK_HEAD_LEN] {
        let mut bytes = [0; HEADER_LEN + BLOCK_HEAD_LEN];
        bytes[..8].copy_from_slice(&Header::Block(wire, values).encode());
        bytes[8..16].copy_from_slice(&self.key.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.block.to_le_bytes());
        bytes
    }
}

/// A block's values, as they are sent.
#[derive(Debug, Clone, Copy)]
pub struct Values<'a> {
    wire: WireType,
    bytes: &'a [u8],
}

impl<'a> Values<'a> {
    /// 16-bit values.
    pub fn half(half: Half, bits: &'a [u16]) -> Self {
        Values { wire: WireType::Half(half), bytes: bytemuck::cast_slice(bits) }
    }

    /// The header of their frame.
    pub fn header(self) -> Header {
        Header::Block(self.wire, self.bytes.len() / self.wire.size())
    }

    /// The header and head of their frame, and the bytes that follow.
    pub(crate) fn parts(self, head: BlockHead) -> ([u8; HEADER_LEN + BLOCK_HEAD_LEN], &'a [u8]) {
        (head.encode(self.wire, self.bytes.len() / self.wire.size()), self.bytes)
    }
}

impl<'a> From<&'a [f32]> for Values<'a> {
    fn from(values: &'a [f32]) -> Self {
        Values { wire: WireType::F32, bytes: bytemuck::cast_slice(values) }
    }
}

/// This end's preamble.
pub fn preamble() -> [u8; PREAMBLE_LEN] {
    preamble_of(PROTOCOL)
}

/// The preamble of any version of the protocol.
pub fn preamble_of(protocol: u16) -> [u8; PREAMBLE_LEN] {
    let [m0, m1, m2, m3] = MAGIC;
    let [v0, v1] = protocol.to_le_bytes();
    [m0, m1, m2, m3, v0, v1, 0, 0]
}

/// Checks the other end's preamble.
pub fn check_preamble(bytes: [u8; PREAMBLE_LEN]) -> Result<(), FrameError> {
    let [m0, m1, m2, m3, v0, v1, ..] = bytes;
    if [m0, m1, m2, m3] != MAGIC {
        return Err(FrameError::NotPaceline([m0, m1, m2, m3]));
    }
    match u16::from_le_bytes([v0, v1]) {
        PROTOCOL => Ok(()),
        theirs => Err(FrameError::WrongVersion { theirs }),
    }
}

/// A whole control frame. A message that its receiver would refuse for its length
/// ([`MAX_CONTROL`]) is refused here.
pub fn encode_control<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut frame = postcard::to_extend(message, vec![0; HEADER_LEN])?;
    let len = bounded(frame.len() - HEADER_LEN, MAX_CONTROL)?;
    frame[..HEADER_LEN].copy_from_slice(&Header::Control(len).encode());
    Ok(frame)
}

/// The message in the payload of a control frame.
pub fn decode_control<T: DeserializeOwned>(payload: &[u8]) -> Result<T, FrameError> {
    let (message, rest) = postcard::take_from_bytes(payload)?;
    match rest.len() {
        0 => Ok(message),
        trailing => Err(FrameError::TrailingBytes(trailing)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use paceline_core::{BlockClose, Blocks, MAX_WORKERS, WorkerId};

    use super::*;
    use crate::{
        message::{FromWorker, Hello, ToShard, ToWorker},
        offer::Offer,
    };

    #[track_caller]
    fn refused(bytes: [u8; 8], error: &str) {
        let got = Header::decode(bytes, MAX_HELLO).unwrap_err().to_string();
        assert!(got.contains(error), "{got}");
    }

    #[test]
    fn headers_that_lie_are_refused_before_anything_is_allocated() {
        refused([9, 0, 0, 0, 1, 0, 0, 0], "unknown frame kind 9");
        refused([1, 0, 7, 0, 1, 0, 0, 0], "reserved");
        refused([1, 0, 0, 0, 255, 255, 255, 255], "passes the bound of 4096");
        refused([2, 0, 0, 0, 255, 255, 255, 255], "passes the bound");
        refused([2, 0, 0, 0, 15, 0, 0, 0], "not a head and whole f32");
        refused([2, 0, 0, 0, 18, 0, 0, 0], "not a head and whole f32");
        refused([3, 0, 0, 0, 17, 0, 0, 0], "not a head and whole bf16");
        refused([4, 0, 0, 0, 255, 255, 255, 255], "passes the bound");
        refused([4, 0, 0, 0, 1, 0, 0, 0], "not a head and whole f16");
        refused([5, 0, 0, 0, 1, 0, 16, 0], "frame of 1048577 bytes passes the bound of 1048576");
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_before_it_is_sent() {
        // A byte vector is encoded as its length, four bytes here, and its bytes.
        let fits = vec![0u8; MAX_CONTROL - 4];
        let frame = encode_control(&fits).unwrap();
        let header = Header::decode(frame[..HEADER_LEN].try_into().unwrap(), MAX_CONTROL).unwrap();
        assert_eq!(header, Header::Control(MAX_CONTROL));
        let error = encode_control(&vec![0u8; MAX_CONTROL - 3]).unwrap_err();
        assert_eq!(error.to_string(), "frame of 4194305 bytes passes the bound of 4194304");
    }

    #[test]
    fn the_largest_close_fits_in_frames_shard_by_shard() {
        // Each shard's block closes with its own membership, of as many workers as a run may have.
        let members: Vec<_> = (0..MAX_WORKERS).map(|worker| (WorkerId(worker), 1.0)).collect();
        let close =
            |block| BlockClose { blocks: Blocks::Only([block].into()), members: members.clone() };
        let closes: Vec<BlockClose> = (0..128).map(close).collect();
        let whole = ToShard::Close { closes: closes.clone(), apply: None };
        assert!(matches!(encode_control(&whole), Err(FrameError::TooLong { .. })));
        // Each further shard adds a few bytes to the frames of the others.
        let part: Vec<BlockClose> = closes.iter().map(|close| close.within(3..4)).collect();
        let frame = encode_control(&ToShard::Close { closes: part, apply: None }).unwrap();
        assert!(frame.len() < 12 * members.len() + 128 * 4, "{} bytes", frame.len());
    }

    #[test]
    fn preambles_of_strangers_and_other_versions_are_told_apart() {
        assert!(check_preamble(preamble()).is_ok());
        let next = PROTOCOL + 1;
        let other = check_preamble(preamble_of(next)).unwrap_err().to_string();
        assert!(other.contains(&format!("version {next} is not spoken here")), "{other}");
        let stranger = check_preamble(*b"GET / HT").unwrap_err().to_string();
        assert!(stranger.contains("not a paceline peer"), "{stranger}");
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused_and_never_panic(
            header in any::<[u8; 8]>(),
            head in any::<[u8; 16]>(),
            payload in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = Header::decode(header, MAX_CONTROL);
            let _ = BlockHead::decode(head);
            let _ = check_preamble(header);
            let _ = decode_control::<Hello>(&payload);
            let _ = decode_control::<FromWorker>(&payload);
            let _ = decode_control::<ToWorker>(&payload);
            let _ = decode_control::<Offer>(&payload);
        }

        #[test]
        fn what_is_encoded_decodes_to_the_same(
            version: u64,
            block: u32,
            wire in prop::sample::select(WireType::ALL.to_vec()),
            values in 0..1000usize,
        ) {
            let head = BlockHead { key: version, block };
            let bytes = head.encode(wire, values);
            let header = Header::decode(bytes[..8].try_into().unwrap(), 0).unwrap();
            prop_assert_eq!(header, Header::Block(wire, values));
            prop_assert_eq!(header.frame_len(), bytes.len() + values * wire.size());
            prop_assert_eq!(BlockHead::decode(bytes[8..].try_into().unwrap()).unwrap(), head);
        }
    }
}
