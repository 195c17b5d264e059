//! Where a gradient is computed.

use std::ops::{Deref, DerefMut};

use paceline_shm::Segment;

/// A gradient's values: this process's own, or where shards of the same host read them.
#[derive(Debug)]
pub(crate) enum Buffer {
    Private(Vec<f32>),
    Shared { index: u32, segment: Segment },
}

impl Buffer {
    /// Which of the segments it is, for shards that have them.
    pub(crate) fn segment(&self) -> Option<u32> {
        match self {
            Buffer::Private(_) => None,
            Buffer::Shared { index, .. } => Some(*index),
        }
    }

    /// Makes it as long as it must be, if it can be of any length.
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
