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
    /// of no use, and the coordinator has heard if it did not. It has heard before anybody sends
    /// anything newer.
    pub(crate) fn send(
        &self,
        mailbox: &Mailbox,
        base: Version,
        say: Say<'_>,
    ) -> Result<Option<bool>, FrameError> {
        let state = &mut *self.lock();
        let Some(task) = state.finished.task.take_if(|task| task.base == base) else {
            return Ok(None);
        };
        let sent = self.send_finished(state, &task, mailbox, say)?;
        if !sent {
            say(FromWorker::Aborted { base, done: state.finished.done })?;
        }
        Ok(Some(sent))
    }

    fn send_finished(
        &self,
        State { data, finished }: &mut State,
        task: &Task,
        mailbox: &Mailbox,
        say: Say<'_>,
    ) -> Result<bool, FrameError> {
        let base = task.base;
        let (done, until) = (finished.done, self.until);
        let weight = part_of(task.portion.len(), done, self.micro_batches);
        let enough = if self.salvages() { weight > 0 } else { done == self.micro_batches };
        if !enough || mailbox.is_over(base, until) {
            return Ok(false);
        }
        let square = self.norms.then(|| norm_squared(&finished.gradient));
        let (weight, loss) = (f64::from(weight), finished.loss);
        let stale = data.stale().to_vec();
        say(FromWorker::Done { base, weight, loss, square, stale })?;
        if !task.push_at_once && !mailbox.may_push(base, until) {
            return Ok(false);
        }
        finished.pushed = true;
        let gradient = &mut finished.gradient;
        data.push(base, &task.behind, gradient, || mailbox.is_over(base, until))
    }

    /// Answers every cut at once, until the run is over.
    pub(crate) fn answer_cuts(&self, mailbox: &Mailbox, say: Say<'_>) {
        let mut last = None;
        while let Some(base) = mailbox.next_cut(last) {
            last = Some(base);
            if let Err(error) = self.send(mailbox, base, say) {
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
    use std::{sync::mpsc, thread, time::Duration};

    use paceline_core::{Portion, SampleRange, WorkerId};
    use paceline_shm::Segment;
    use paceline_wire::message::ToWorker;
    use proptest::prelude::*;

    use super::*;

    fn task(base: u64) -> Task {
        let range = SampleRange { epoch: 0, start: 0, end: 8 };
        let (base, portion) = (Version(base), Portion::new(range));
        Task { base, portion, push_at_once: true, behind: Vec::new() }
    }

    #[test]
    fn what_comes_of_a_cut_is_said_before_anything_newer() {
        let outbox =
            Outbox::new(DataPlane::nowhere(), vec![Buffer::default()], 2, Until::Close, false);
        let mailbox = Mailbox::default();
        let (said, heard) = mpsc::channel();
        outbox.begin(&task(1));
        mailbox.deliver(WorkerId(0), ToWorker::Cut { base: Version(1) });
        thread::scope(|scope| {
            let slow = said.clone();
            let (outbox, mailbox) = (&outbox, &mailbox);
            let (asked, answers) = mpsc::channel();
            scope.spawn(move || {
                let say = |message| {
                    asked.send(()).unwrap();
                    thread::sleep(Duration::from_millis(50));
                    slow.send(message).unwrap();
                    Ok(())
                };
                outbox.answer_cuts(mailbox, &say);
            });
            answers.recv().unwrap();
            // The next round's work is done while the answer is on its way.
            outbox.begin(&task(2));
            outbox.add(0.0, &mut Buffer::default());
            let say = |message| {
                said.send(message).unwrap();
                Ok(())
            };
            outbox.send(mailbox, Version(2), &say).unwrap();
            mailbox.deliver(WorkerId(0), ToWorker::Stop(String::new()));
        });
        drop(said);
        let bases: Vec<u64> = heard
            .iter()
            .map(|message| match message {
                FromWorker::Aborted { base, .. } | FromWorker::Done { base, .. } => base.0,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(bases, [1, 2]);
    }

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
