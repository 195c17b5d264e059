//! The work that the worker's loop hands to the user's loop: an assignment, and the gradient's buffer for one
//! micro-batch after the other.

use std::{ops::Range, sync::Arc};

use paceline_core::{Portion, Version};
use paceline_params::{add_scaled, all_finite, copy_scaled};

use crate::{
    buffer::Buffer,
    early::{EarlyBlock, WholeBlocks},
    mailbox::Task,
    work::Finished,
};

/// Work for the user's loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The version to compute from.
    pub base: Version,
    /// The samples, as positions in the epoch's order.
    pub portion: Portion,
    /// The samples, as indices into the data.
    pub samples: Arc<[u32]>,
    /// Tells this work from other work on the same version.
    number: u64,
}

/// The current task, and its gradient while it is computed.
#[derive(Default)]
pub(super) struct Handoff {
    task: Option<Assignment>,
    /// Tasks so far.
    tasks: u64,
    /// The number of the task that the user's loop was given.
    given: Option<u64>,
    /// Micro-batches that the user's loop computes the task in, once it has begun.
    parts: Option<u32>,
    /// Micro-batches to come after the current one.
    left: u32,
    /// The gradient's buffer, while the user's loop may write to it.
    buffer: Option<Buffer>,
    /// Whether values are added to the micro-batches before.
    adds: bool,
    /// What can be sent of the gradient while the user's loop writes the rest.
    whole: WholeBlocks,
    finished: Option<Finished>,
    /// Whether the last micro-batch is done.
    complete: bool,
}

/// The user's side.
impl Handoff {
    /// The task, if it is on `version` and not begun.
    pub(super) fn task_on(&self, version: Version) -> Option<&Assignment> {
        let task = self.task.as_ref().filter(|task| task.base == version);
        task.filter(|_| self.parts.is_none())
    }

    /// The user's loop was given this work.
    pub(super) fn give(&mut self, work: &Assignment) {
        self.given = Some(work.number);
    }

    /// Whether the work that the user's loop was given still counts.
    fn is_wanted(&self) -> bool {
        self.task.as_ref().is_some_and(|task| Some(task.number) == self.given)
    }

    /// Whether the user's loop was given work that no longer counts.
    pub(super) fn is_cut(&self) -> bool {
        self.given.is_some() && !self.is_wanted()
    }

    /// Whether there is no task.
    pub(super) fn is_over(&self) -> bool {
        self.task.is_none()
    }

    /// Whether the user's loop may write to the gradient.
    pub(super) fn is_lent(&self) -> bool {
        self.buffer.is_some()
    }

    /// The user's loop is ready to compute, in `parts` micro-batches. False if the work is no longer wanted.
    pub(super) fn request(&mut self, parts: u32) -> bool {
        let wanted = self.is_wanted();
        if wanted {
            self.parts = Some(parts.max(1));
        }
        wanted
    }

    /// The wait for the buffer is over. Without it, the work is not begun.
    pub(super) fn has_begun(&mut self) -> bool {
        if self.buffer.is_none() {
            self.parts = None;
        }
        self.buffer.is_some()
    }

    /// Adds `scale` times `values` to the gradient, from element `at` on. Returns whether all of it is finite;
    /// `None` if the buffer is not lent.
    pub(super) fn write(&mut self, at: usize, values: &[f32], scale: f32) -> Option<bool> {
        let part = &mut self.buffer.as_mut()?[at..at + values.len()];
        Some(if self.adds {
            add_scaled(part, scale, values);
            all_finite(part).is_ok()
        } else {
            copy_scaled(part, scale, values)
        })
    }

    /// These elements have no gradient in the current micro-batch. False if the buffer is not lent.
    pub(super) fn skip(&mut self, elements: Range<usize>) -> bool {
        let Some(buffer) = &mut self.buffer else { return false };
        if !self.adds {
            buffer[elements].fill(0.0);
        }
        true
    }

    /// These elements of the gradient are final. Returns whether there is now enough to send, and was not
    /// before.
    pub(super) fn note_written(&mut self, elements: Range<usize>) -> bool {
        self.whole.note(elements)
    }

    /// Removes what was written to these elements.
    pub(super) fn clear(&mut self, elements: Range<usize>) {
        if let Some(buffer) = &mut self.buffer {
            buffer[elements].fill(0.0);
        }
    }

    /// The micro-batch is computed again from its start. False if what was written of it stays there.
    pub(super) fn restart(&mut self) -> bool {
        self.whole.withdraw();
        !self.adds
    }

    /// The micro-batch is done. False if the buffer is not lent.
    pub(super) fn finish(&mut self, finished: Finished) -> bool {
        let lent = self.is_lent();
        if lent {
            self.finished = Some(finished);
        }
        lent
    }

    /// Whether no micro-batch comes after the current one.
    pub(super) fn is_last(&self) -> bool {
        self.left == 0
    }

    /// The user's loop gives up the work that it was given.
    pub(super) fn forget(&mut self) {
        (self.given, self.parts) = (None, None);
    }
}

/// The worker's side.
impl Handoff {
    /// The micro-batches that the user's loop computes the task in, if it has begun one.
    pub(super) fn parts(&self) -> Option<u32> {
        self.parts
    }

    /// Hands over a task.
    pub(super) fn assign(&mut self, task: &Task, samples: &[u32]) {
        self.tasks += 1;
        self.task = Some(Assignment {
            base: task.base,
            portion: task.portion.clone(),
            samples: samples.into(),
            number: self.tasks,
        });
        self.complete = false;
    }

    /// The first of `parts` micro-batches comes next.
    pub(super) fn start(&mut self, parts: u32) {
        self.left = parts;
    }

    /// Lends the gradient's buffer for a micro-batch, the `first` or a later one. Of its gradient, `blocks` may
    /// be sent early.
    pub(super) fn lend(&mut self, gradient: Buffer, first: bool, blocks: Arc<[EarlyBlock]>) {
        self.left -= 1;
        self.adds = !first;
        self.whole.begin(blocks);
        self.buffer = Some(gradient);
    }

    /// Takes the buffer back, with the result of the micro-batch if it is done.
    pub(super) fn take_back(&mut self) -> (Buffer, Option<Finished>) {
        let finished = self.finished.take();
        self.complete = finished.is_some() && self.left == 0;
        (self.buffer.take().unwrap_or_default(), finished)
    }

    /// Whether the micro-batch is done, and the buffer not taken back.
    pub(super) fn is_finished(&self) -> bool {
        self.finished.is_some()
    }

    /// Whether enough blocks are whole to send them.
    pub(super) fn is_due(&self) -> bool {
        self.whole.is_due()
    }

    /// Whether the micro-batch was started again, so that the blocks that were sent are not final.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.whole.is_withdrawn()
    }

    /// Copies the next block to send to `values`, unless the micro-batch is done: the rest then leaves from
    /// where it is. Returns its number.
    pub(super) fn take_block(&mut self, values: &mut Vec<f32>) -> Option<u32> {
        if self.finished.is_some() {
            return None;
        }
        let EarlyBlock { number, elements } = self.whole.pop()?;
        values.clear();
        values.extend_from_slice(&self.buffer.as_ref()?[elements]);
        Some(number)
    }

    /// The task is over. A loop that has not finished it learns that its work no longer counts.
    pub(super) fn end(&mut self) {
        self.task = None;
        if self.complete {
            self.forget();
        }
    }
}
