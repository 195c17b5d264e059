//! Finished work on its way to the shards.
//!
//! Whoever is first sends it: the thread that computes, when all is done; or the thread that listens
//! for cuts, which sends the micro-batches that are finished while another is still being computed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use paceline_core::Version;
use paceline_params::{add_scaled, norm_squared};
use paceline_wire::{FrameError, message::FromWorker};

use crate::{
    buffer::Buffer,
    data::DataPlane,
    mailbox::{Mailbox, Task, Until},
    work::part_of,
};

/// Says something to the coordinator.
pub(crate) type Say<'a> = &'a dyn Fn(FromWorker) -> Result<(), FrameError>;

/// One round's finished micro-batches, and the connections that they leave by.
pub(crate) struct Outbox {
    state: Mutex<State>,
    micro_batches: u32,
    until: Until,
    /// Norms of gradient sums are reported.
    norms: bool,
}

pub(crate) struct State {
    pub(crate) data: DataPlane,
    finished: Finished,
}

/// The sum over the micro-batches that are done.
#[derive(Default)]
struct Finished {
    /// The work that is under way; none before, between, and once somebody sends it.
    task: Option<Task>,
    done: u32,
    loss: f64,
    gradient: Buffer,
    /// The gradient was pushed. Shards of this host may read it where it is until they answer the
    /// pull that follows the next push.
    pushed: bool,
    /// Where gradients are shared: what was pushed before this one, or nothing of value.
    spare: Option<Buffer>,
}

impl Outbox {
    /// `buffers` are those that are not being computed in.
    pub(crate) fn new(
        data: DataPlane,
        mut buffers: Vec<Buffer>,
        micro_batches: u32,
        until: Until,
        norms: bool,
    ) -> Outbox {
        let finished = Finished {
            gradient: buffers.pop().unwrap_or_default(),
            spare: buffers.pop(),
            ..Finished::default()
        };
        let state = Mutex::new(State { data, finished });
        Outbox { state, micro_batches, until, norms }
    }

    /// Whether what is finished at a cut is pushed.
    pub(crate) fn salvages(&self) -> bool {
        self.until == Until::Close
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work begins.
    pub(crate) fn begin(&self, task: &Task) {
        let finished = &mut self.lock().finished;
        (finished.task, finished.done, finished.loss) = (Some(task.clone()), 0, 0.0);
    }

    /// A micro-batch is done: its sum is in `gradient`, or that of all so far where they do not count
    /// one by one. False if the rest is of no use: what was there has been sent.
    pub(crate) fn add(&self, loss: f64, gradient: &mut Buffer) -> bool {
        let finished = &mut self.lock().finished;
        if finished.task.is_none() {
            return false;
        }
        finished.done += 1;
        finished.loss += loss;
        let first = if self.salvages() { 1 } else { self.micro_batches };
        if finished.done == first {
            finished.take(gradient);
        } else if self.salvages() {
            add_scaled(&mut finished.gradient, 1.0, gradient);
        }
        true
    }

    /// Sends what is there. `None` if somebody else has; else whether all of it went out before it was
    /// of no use, or how many micro-batches were done if it did not.
    pub(crate) fn send(
        &self,
        mailbox: &Mailbox,
        base: Version,
        say: Say<'_>,
    ) -> Result<Option<Result<(), u32>>, FrameError> {
        let State { data, finished } = &mut *self.lock();
        let Some(task) = finished.task.take_if(|task| task.base == base) else { return Ok(None) };
        let (done, until) = (finished.done, self.until);
        let weight = part_of(task.portion.len(), done, self.micro_batches);
        let enough = if self.salvages() { weight > 0 } else { done == self.micro_batches };
        if !enough || mailbox.is_over(base, until) {
            return Ok(Some(Err(done)));
        }
        let square = self.norms.then(|| norm_squared(&finished.gradient));
        let (weight, loss) = (f64::from(weight), finished.loss);
        let stale = data.stale().to_vec();
        say(FromWorker::Done { base, weight, loss, square, stale })?;
        if !task.push_at_once && !mailbox.may_push(base, until) {
            return Ok(Some(Err(done)));
        }
        finished.pushed = true;
        let gradient = &mut finished.gradient;
        let sent = data.push(base, &task.behind, gradient, || mailbox.is_over(base, until))?;
        Ok(Some(if sent { Ok(()) } else { Err(done) }))
    }

    /// Answers every cut at once, until the run is over.
    pub(crate) fn answer_cuts(&self, mailbox: &Mailbox, say: Say<'_>) {
        let mut last = None;
        while let Some(base) = mailbox.next_cut(last) {
            last = Some(base);
            let answered = match self.send(mailbox, base, say) {
                Ok(Some(Err(done))) => say(FromWorker::Aborted { base, done }),
                answered => answered.map(drop),
            };
            if let Err(error) = answered {
                return mailbox.hang_up(error.to_string());
            }
        }
    }
}

impl Finished {
    /// Takes a gradient over and leaves another buffer to compute in: never the one that was pushed
    /// last, which shards may still read.
    fn take(&mut self, gradient: &mut Buffer) {
        std::mem::swap(&mut self.gradient, gradient);
        if std::mem::take(&mut self.pushed)
            && let Some(spare) = &mut self.spare
        {
            std::mem::swap(spare, gradient);
        }
        gradient.resize(self.gradient.len());
    }
}

#[cfg(test)]
mod tests {
    use paceline_shm::Segment;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_pushed_last_is_never_computed_in(pushes in prop::collection::vec(any::<bool>(), 0..50)) {
            let shared =
                |index| Buffer::Shared { index, segment: Segment::new(1).expect("a page") };
            let mut gradient = shared(0);
            let mut finished =
                Finished { gradient: shared(1), spare: Some(shared(2)), ..Finished::default() };
            let mut last = None;
            for push in pushes {
                prop_assert!(last.is_none() || gradient.segment() != last);
                finished.take(&mut gradient);
                prop_assert!(last.is_none() || gradient.segment() != last);
                if push {
                    finished.pushed = true;
                    last = finished.gradient.segment();
                }
            }
        }
    }
}
