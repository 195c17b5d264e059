//! What a virtual worker is at.

use std::sync::Arc;

use paceline_core::{Portion, Time, Version};

/// One worker's present work, and when it is free for the next.
#[derive(Debug, Clone, Default)]
pub(crate) struct Worker {
    pub(crate) task: Option<Task>,
    /// It completes the micro-batch it was cut in.
    pub(crate) free_at: Time,
    /// Seconds spent computing, whatever became of it.
    pub(crate) busy: f64,
}

/// Work on a version.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) base: Version,
    pub(crate) portion: Portion,
    /// The parameters it computes from.
    pub(crate) params: Arc<Vec<f32>>,
    pub(crate) began: Time,
    /// Seconds after which each of its micro-batches is done.
    pub(crate) ends: Vec<f64>,
    /// Micro-batches done.
    pub(crate) done: u32,
}

impl Task {
    /// When so many of its micro-batches are done.
    pub(crate) fn end(&self, part: u32) -> Time {
        self.began + Time::span(self.ends[part as usize - 1])
    }
}
