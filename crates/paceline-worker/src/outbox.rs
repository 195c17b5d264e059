//! The outbox: the gradient of one round on its way to the shards.
//!
//! Two threads may send it. The thread that computes sends it when all micro-batches are done. The thread
//! that answers cuts sends the finished micro-batches while another one is still being computed, and
//! cancels a pull that is under way.
//!
//! Two locks keep these threads apart. `progress` is held only briefly, so a cut is answered whatever the
//! other thread does. `transfer` is held through pulls and pushes. A thread that needs both takes `progress`
//! first, and only while a task is being computed: `transfer` is free then, or held for one block that leaves
//! early.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_core::Version;
use paceline_params::{add_scaled, norm_squared};
use paceline_wire::{FrameError, message::FromWorker};

use crate::{
    buffer::Buffer,
    data::{DataPlane, PullCanceller, Pulled},
    early::{EarlyBlock, EarlyPush},
    mailbox::{Mailbox, Task, Until},
    work::{Finished, Source, part_of},
};

/// Sends a message to the coordinator.
pub(crate) type Report<'a> = &'a dyn Fn(FromWorker) -> Result<(), FrameError>;

/// One round's task, its finished micro-batches, and the connections to the shards.
pub(crate) struct Outbox {
    progress: Mutex<Progress>,
    transfer: Mutex<Transfer>,
    canceller: PullCanceller,
    early: Arc<[EarlyBlock]>,
    /// Micro-batches of a whole task, in reports to the coordinator.
    micro_batches: u32,
    until: Until,
    /// Elements of the gradient, whose norm is reported; those behind them only travel with it. `None` if
    /// no norms are reported.
    norms: Option<usize>,
}

/// The progress of the current task.
#[derive(Default)]
struct Progress {
    /// The task under way; `None` before the first, between tasks, and once a thread reports its end.
    task: Option<Task>,
    /// Whether the task's parameters are being pulled.
    pulling: bool,
    /// Micro-batches that the task is computed in.
    parts: u32,
    /// Micro-batches that are done.
    done: u32,
    /// Samples behind them.
    weight: f64,
    /// The sum of their losses, if all are known.
    loss: Option<f64>,
    learning_rates: Vec<f32>,
}

impl Progress {
    /// Takes out the task from `base`, unless another thread has. The thread that gets it reports on it.
    fn take(&mut self, base: Version) -> Option<Task> {
        self.task.take_if(|task| task.base == base)
    }
}

/// The connections, and the buffers of gradients to send over them.
struct Transfer {
    data: DataPlane,
    buffers: GradientBuffers,
}

/// The sum over the micro-batches that are done, and the buffers that it alternates with.
#[derive(Default)]
struct GradientBuffers {
    sum: Buffer,
    /// Whether the sum was pushed. Shards of this host may read it in place until they answer the pull that
    /// follows the next push.
    pushed: bool,
    /// Where gradients are shared: the buffer pushed before this one, or an unused one.
    spare: Option<Buffer>,
}

impl Outbox {
    /// `buffers` are the ones not used for computing.
    pub(crate) fn new(
        data: DataPlane,
        mut buffers: Vec<Buffer>,
        micro_batches: u32,
        until: Until,
        norms: Option<usize>,
    ) -> Outbox {
        let sum = buffers.pop().unwrap_or_default();
        let buffers = GradientBuffers { sum, pushed: false, spare: buffers.pop() };
        Outbox {
            progress: Mutex::default(),
            canceller: data.canceller(),
            early: data.early_blocks().into(),
            transfer: Mutex::new(Transfer { data, buffers }),
            micro_batches,
            until,
            norms,
        }
    }

    /// Whether micro-batches that are finished at a cut are pushed.
    pub(crate) fn salvages(&self) -> bool {
        self.until == Until::Close
    }

    /// Begins a task, whose parameters are to be pulled.
    pub(crate) fn begin(&self, task: &Task) {
        *self.progress() = Progress {
            task: Some(task.clone()),
            pulling: true,
            loss: Some(0.0),
            ..Progress::default()
        };
    }

    /// The task is computed in this many micro-batches.
    pub(crate) fn split(&self, parts: u32) {
        self.progress().parts = parts;
    }

    /// Pulls version `wanted`: for `task`, unless that is cut, or for no task.
    pub(crate) fn pull(
        &self,
        mailbox: &Mailbox,
        wanted: Version,
        task: Option<&Task>,
        source: &mut dyn Source,
    ) -> Result<Pulled, FrameError> {
        let is_cut = || task.is_some_and(|task| mailbox.is_cut(task.base));
        let behind = task.map_or(&[][..], |task| &task.behind);
        self.transfer().data.pull(wanted, behind, source, is_cut)
    }

    /// The parameters are loaded. False if a cut has ended the task.
    pub(crate) fn start_computing(&self) -> bool {
        let mut progress = self.progress();
        progress.pulling = false;
        progress.task.is_some()
    }

    /// Gives up the task from `base` with nothing to push, and reports that unless another thread has.
    pub(crate) fn abort(&self, base: Version, report: Report<'_>) -> Result<(), FrameError> {
        let mut progress = self.progress();
        match progress.take(base) {
            Some(Task { id, .. }) => {
                let done = self.reported(&progress);
                report(FromWorker::Aborted { id, done })
            }
            None => Ok(()),
        }
    }

    /// The right to send blocks before all of the gradient is computed, in the last micro-batch of `task` if
    /// they are added up, where the shards have room for every worker at once.
    pub(crate) fn early_push(&self, task: &Task) -> Option<EarlyPush<'_>> {
        let may = task.push_at_once && !self.early.is_empty();
        may.then_some(EarlyPush { outbox: self, base: task.base })
    }

    pub(crate) fn early_blocks(&self) -> Arc<[EarlyBlock]> {
        Arc::clone(&self.early)
    }

    /// Sends a block of the task from `base`. False if the task is over: another thread has reported on it.
    pub(crate) fn send_early(
        &self,
        base: Version,
        block: u32,
        values: &[f32],
    ) -> Result<bool, FrameError> {
        let progress = self.progress();
        let Some(id) = progress.task.as_ref().filter(|task| task.base == base).map(|task| task.id)
        else {
            return Ok(false);
        };
        let mut transfer = self.transfer();
        drop(progress);
        transfer.data.push_early(id, block, values).map(|()| true)
    }

    /// Takes back the blocks that were sent early: their values have changed.
    pub(crate) fn withdraw_early(&self) -> Result<(), FrameError> {
        self.transfer().data.abandon()
    }

    /// A micro-batch is done. `gradient` is its sum where micro-batches count one by one, else the sum of all
    /// so far. False if further work can no longer count: the finished part has been sent.
    pub(crate) fn add(&self, finished: Finished, gradient: &mut Buffer) -> bool {
        let mut progress = self.progress();
        if progress.task.is_none() {
            return false;
        }
        progress.done += 1;
        progress.weight += finished.weight;
        progress.loss = progress.loss.zip(finished.loss).map(|(sum, loss)| sum + loss);
        progress.learning_rates = finished.learning_rates;
        let first = if self.salvages() { 1 } else { progress.parts };
        if progress.done == first {
            self.transfer().buffers.take(gradient);
        } else if self.salvages() {
            add_scaled(&mut self.transfer().buffers.sum, 1.0, gradient);
        }
        true
    }

    /// Micro-batches that are done, in the run's number of micro-batches per task.
    pub(crate) fn done(&self) -> u32 {
        self.reported(&self.progress())
    }

    fn reported(&self, progress: &Progress) -> u32 {
        let done = part_of(self.micro_batches, progress.done, progress.parts.max(1));
        done.max(u32::from(progress.done > 0))
    }

    /// Sends the finished micro-batches of the task from `base`. `None` if another thread has; else whether
    /// all of the gradient was sent before it could no longer count. If it was not, this reports so. The
    /// coordinator receives the report on this task before either thread sends anything newer.
    pub(crate) fn send(
        &self,
        mailbox: &Mailbox,
        base: Version,
        report: Report<'_>,
    ) -> Result<Option<bool>, FrameError> {
        let mut progress = self.progress();
        let Some(task) = progress.take(base) else { return Ok(None) };
        let done = self.reported(&progress);
        let whole = progress.done == progress.parts;
        let finished = Finished {
            weight: progress.weight,
            loss: progress.loss,
            learning_rates: std::mem::take(&mut progress.learning_rates),
        };
        let transfer = &mut *self.transfer();
        drop(progress);
        let counts = if self.salvages() { finished.weight > 0.0 } else { whole };
        let sent = counts && self.send_finished(transfer, &task, finished, mailbox, report)?;
        if !sent {
            transfer.data.abandon()?;
            report(FromWorker::Aborted { id: task.id, done })?;
        }
        Ok(Some(sent))
    }

    fn send_finished(
        &self,
        Transfer { data, buffers }: &mut Transfer,
        task: &Task,
        Finished { weight, loss, learning_rates }: Finished,
        mailbox: &Mailbox,
        report: Report<'_>,
    ) -> Result<bool, FrameError> {
        let (id, base, until) = (task.id, task.base, self.until);
        if mailbox.is_over(base, until) {
            return Ok(false);
        }
        let square = self.norms.map(|elems| norm_squared(&buffers.sum[..elems]));
        let stale = data.stale().to_vec();
        mailbox.note_sent(base, weight);
        report(FromWorker::Done { id, weight, loss, square, stale, learning_rates })?;
        if !task.push_at_once && !mailbox.may_push(task, until) {
            return Ok(false);
        }
        buffers.pushed = true;
        data.push(task, &mut buffers.sum, || mailbox.is_over(base, until))
    }

    /// Answers every cut at once, until the run is over.
    pub(crate) fn answer_cuts(&self, mailbox: &Mailbox, report: Report<'_>) {
        let mut last = None;
        while let Some(base) = mailbox.next_cut(last) {
            last = Some(base);
            if let Err(error) = self.answer_cut(mailbox, base, report) {
                return mailbox.hang_up(error.to_string());
            }
        }
    }

    /// Ends a pull, or sends the finished micro-batches. Where these do not count one by one, the computing
    /// thread answers the cut.
    fn answer_cut(
        &self,
        mailbox: &Mailbox,
        base: Version,
        report: Report<'_>,
    ) -> Result<(), FrameError> {
        let mut progress = self.progress();
        if progress.pulling
            && let Some(Task { id, .. }) = progress.take(base)
        {
            report(FromWorker::Aborted { id, done: 0 })?;
            // Under the lock, or the next task's pull might be cancelled.
            return self.canceller.cancel();
        }
        drop(progress);
        if self.salvages() {
            self.send(mailbox, base, report)?;
        }
        Ok(())
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn transfer(&self) -> MutexGuard<'_, Transfer> {
        self.transfer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GradientBuffers {
    /// Takes over a gradient and leaves another buffer to compute in: never the one pushed last, which shards
    /// may still read.
    fn take(&mut self, gradient: &mut Buffer) {
        std::mem::swap(&mut self.sum, gradient);
        if std::mem::take(&mut self.pushed)
            && let Some(spare) = &mut self.spare
        {
            std::mem::swap(spare, gradient);
        }
        gradient.resize(self.sum.len());
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use paceline_core::{ContributionId, Portion, SampleRange, WorkerId};
    use paceline_shm::Segment;
    use paceline_wire::message::ToWorker;
    use proptest::prelude::*;

    use super::*;

    fn task(base: u64) -> Task {
        let range = SampleRange { epoch: 0, start: 0, end: 8 };
        let (base, portion) = (Version(base), Portion::new(range));
        let id = ContributionId(100 + base.0);
        Task { id, base, portion, push_at_once: true, behind: Vec::new() }
    }

    #[test]
    fn a_cut_is_answered_before_anything_newer_is_sent() {
        let outbox =
            Outbox::new(DataPlane::nowhere(), vec![Buffer::default()], 2, Until::Close, None);
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
            assert!(outbox.start_computing());
            let finished = Finished { weight: 1.0, loss: None, learning_rates: Vec::new() };
            outbox.split(1);
            outbox.add(finished, &mut Buffer::default());
            let say = |message| {
                said.send(message).unwrap();
                Ok(())
            };
            outbox.send(mailbox, Version(2), &say).unwrap();
            mailbox.deliver(WorkerId(0), ToWorker::Stop(String::new()));
        });
        drop(said);
        let ids: Vec<u64> = heard
            .iter()
            .map(|message| match message {
                FromWorker::Aborted { id, .. } | FromWorker::Done { id, .. } => id.0,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(ids, [101, 102]);
    }

    proptest! {
        #[test]
        fn the_buffer_that_was_pushed_last_is_never_computed_in(pushes in prop::collection::vec(any::<bool>(), 0..50)) {
            let shared =
                |index| Buffer::Shared { index, segment: Segment::new(1).expect("a page") };
            let mut gradient = shared(0);
            let mut buffers =
                GradientBuffers { sum: shared(1), spare: Some(shared(2)), pushed: false };
            let mut last = None;
            for push in pushes {
                prop_assert!(last.is_none() || gradient.segment() != last);
                buffers.take(&mut gradient);
                prop_assert!(last.is_none() || gradient.segment() != last);
                if push {
                    buffers.pushed = true;
                    last = buffers.sum.segment();
                }
            }
        }
    }
}
