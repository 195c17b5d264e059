//! Traffic counters of a shard's data connections.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use paceline_core::ShardCounts;

/// Frames and bytes since the counters were last taken. Each is a plain sum, so they need no mutual ordering.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    bytes_shared: AtomicU64,
    frames_in: AtomicU64,
    frames_out: AtomicU64,
    blocks_fresh: AtomicU64,
}

impl Traffic {
    /// A frame was received.
    pub(crate) fn received(&self, bytes: usize) {
        self.frames_in.fetch_add(1, Relaxed);
        self.bytes_in.fetch_add(bytes as u64, Relaxed);
    }

    /// A frame is sent.
    pub(crate) fn sent(&self, bytes: usize) {
        self.frames_out.fetch_add(1, Relaxed);
        self.bytes_out.fetch_add(bytes as u64, Relaxed);
    }

    /// A worker gets `blocks` blocks of parameters.
    pub(crate) fn fresh(&self, blocks: usize) {
        self.blocks_fresh.fetch_add(blocks as u64, Relaxed);
    }

    /// A gradient or parameters are read from shared memory.
    pub(crate) fn shared(&self, bytes: usize) {
        self.bytes_shared.fetch_add(bytes as u64, Relaxed);
    }

    /// Takes the counts and resets them.
    pub(crate) fn take(&self) -> ShardCounts {
        ShardCounts {
            bytes_in: self.bytes_in.swap(0, Relaxed),
            bytes_out: self.bytes_out.swap(0, Relaxed),
            bytes_shared: self.bytes_shared.swap(0, Relaxed),
            frames_in: self.frames_in.swap(0, Relaxed),
            frames_out: self.frames_out.swap(0, Relaxed),
            blocks_fresh: self.blocks_fresh.swap(0, Relaxed),
            ..ShardCounts::default()
        }
    }
}
