//! The memory that a gradient is computed in.

use std::ops::{Deref, DerefMut};

use paceline_shm::Segment;

/// A gradient's values, in this process's own memory or in memory that shards of the same host read.
#[derive(Debug)]
pub(crate) enum Buffer {
    Private(Vec<f32>),
    Shared { index: u32, segment: Segment },
}

impl Buffer {
    /// The number of its segment, for shards that share memory.
    pub(crate) fn segment(&self) -> Option<u32> {
        match self {
            Buffer::Private(_) => None,
            Buffer::Shared { index, .. } => Some(*index),
        }
    }

    /// Sets the length of a private buffer; a shared one has its length from the start.
    pub(crate) fn resize(&mut self, len: usize) {
        match self {
            Buffer::Private(values) => values.resize(len, 0.0),
            Buffer::Shared { segment, .. } => debug_assert_eq!(segment.len(), len),
        }
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Buffer::Private(Vec::new())
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Buffer::Private(values) => values,
            Buffer::Shared { segment, .. } => segment,
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        match self {
            Buffer::Private(values) => values,
            Buffer::Shared { segment, .. } => segment,
        }
    }
}
