//! One task: pull, compute in micro-batches, push, and stop when the round is cut.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use paceline_core::{Costs, EpochOrder, OrderSpec, Version};
use paceline_shm::Kept;
use paceline_wire::{FrameError, message::FromWorker};

use crate::{
    buffer::Buffer,
    data::Pulled,
    early::EarlyPush,
    faults::WorkerFaults,
    mailbox::{Mailbox, Task},
    outbox::{Outbox, Report},
};

/// The least time between two progress reports: more frequent ones would cost more than they help.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(2);

/// A worker's computation: the model and its data.
pub trait Compute {
    /// Loads parameters to compute from, starting at element `at`. The others do not change.
    fn load(&mut self, at: usize, params: &[f32]);

    /// All parameters, which do not change until `params` is dropped. An implementation that can compute
    /// from them in place, in memory shared with the shards, keeps them until [`Self::let_go`].
    fn keep(&mut self, params: Kept) {
        self.load(0, &params);
    }

    /// Drops the kept parameters: the next version needs their memory.
    fn let_go(&mut self) {}

    /// Empties `gradient` before a round, or before each of its micro-batches.
    fn clear(&mut self, gradient: &mut [f32]) {
        gradient.fill(0.0);
    }

    /// Adds the *sum* over `samples` of the gradient of the loss to `gradient` and returns the sum
    /// of the loss.
    fn gradient(&mut self, samples: &[u32], gradient: &mut [f32]) -> f64;

    /// Like [`Self::gradient`], for as long as it is `wanted`. `None` if it was given up; `gradient` then
    /// holds no valid values. An implementation that calls `wanted` often, layer by layer, is free for the
    /// next round as soon as this one is cut.
    fn gradient_while(
        &mut self,
        samples: &[u32],
        gradient: &mut [f32],
        wanted: &dyn Fn() -> bool,
    ) -> Option<f64> {
        wanted().then(|| self.gradient(samples, gradient))
    }

    /// The cost of every sample, in any unit, if samples differ: its length, for example.
    fn costs(&self) -> Option<Arc<[f32]>> {
        None
    }
}

/// Where the parts of tasks are computed: by a [`Compute`], or by a training loop of the user's own
/// ([`crate::Embedded`]).
pub(crate) trait Source {
    /// Loads values of a version, starting at element `at`.
    fn load(&mut self, at: usize, values: &[f32]);

    /// All values of a version, in place. They do not change until `values` is dropped.
    fn keep(&mut self, values: Kept);

    /// Drops the values that it keeps: the next version needs their memory.
    fn let_go(&mut self);

    /// All values of this version are loaded.
    fn loaded(&mut self, _version: Version) {}

    /// The last version loaded, if every version must be loaded in order.
    fn follows(&self) -> Option<Version> {
        None
    }

    /// Begins a task; returns the number of micro-batches to compute it in. `None` if it is no longer
    /// `wanted`.
    fn begin(&mut self, _task: &Task, samples: &[u32], wanted: &dyn Fn() -> bool) -> Option<u32>;

    /// Computes the next micro-batch, on `samples`, for as long as it is `wanted`. `first` says that
    /// `gradient` holds the values of another task or micro-batch; else the sum goes on. Values that are final
    /// may be sent with `early`, if it is given. An error is one of sending them.
    fn part(
        &mut self,
        samples: &[u32],
        gradient: &mut Buffer,
        first: bool,
        early: Option<EarlyPush<'_>>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Finished>, FrameError>;

    /// The task is over: computed, or no longer wanted.
    fn end(&mut self) {}
}

/// A micro-batch that is done.
#[derive(Debug, Clone)]
pub(crate) struct Finished {
    /// Samples behind it.
    pub(crate) weight: f64,
    /// Sum of their loss, if it is known.
    pub(crate) loss: Option<f64>,
    /// The learning rate of each parameter group, if the worker decides it.
    pub(crate) learning_rates: Vec<f32>,
}

/// A [`Compute`] as the source of a fixed number of micro-batches per task.
pub(crate) struct Native {
    pub(crate) compute: Box<dyn Compute>,
    pub(crate) micro_batches: u32,
}

impl Source for Native {
    fn load(&mut self, at: usize, values: &[f32]) {
        self.compute.load(at, values);
    }

    fn keep(&mut self, values: Kept) {
        self.compute.keep(values);
    }

    fn let_go(&mut self) {
        self.compute.let_go();
    }

    fn begin(&mut self, _task: &Task, _samples: &[u32], _wanted: &dyn Fn() -> bool) -> Option<u32> {
        Some(self.micro_batches)
    }

    fn part(
        &mut self,
        samples: &[u32],
        gradient: &mut Buffer,
        first: bool,
        _early: Option<EarlyPush<'_>>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Finished>, FrameError> {
        if first {
            self.compute.clear(gradient);
        }
        let loss = self.compute.gradient_while(samples, gradient, wanted);
        let weight = samples.len() as f64;
        Ok(loss.map(|loss| Finished { weight, loss: Some(loss), learning_rates: Vec::new() }))
    }
}

/// A worker's counts of rounds, for its own log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Rounds that it completed.
    pub finished: u64,
    /// Rounds in which it was cut and pushed its finished micro-batches.
    pub salvaged: u64,
    /// Rounds in which it was cut with nothing to push.
    pub aborted: u64,
    /// Rounds that closed while it took part.
    pub closed: u64,
    /// Rounds that used its contribution.
    pub used: u64,
}

impl Tally {
    pub(crate) fn count(&mut self, ended: &Ended) {
        match ended {
            Ended::Pushed => self.finished += 1,
            Ended::Salvaged => self.salvaged += 1,
            Ended::Aborted => self.aborted += 1,
        }
    }
}

/// Runs one task after the other.
pub(crate) struct TaskRunner<'a> {
    pub(crate) source: &'a mut dyn Source,
    pub(crate) outbox: &'a Outbox,
    pub(crate) mailbox: &'a Mailbox,
    pub(crate) faults: Option<Box<dyn WorkerFaults>>,
    /// The order of the samples; `None` for a stream.
    pub(crate) orders: Option<OrderSpec>,
    /// Samples of a whole task.
    pub(crate) batch: u32,
    pub(crate) costs: Option<Costs>,
    /// Whether a newer version than the task's may be used.
    pub(crate) any_newer: bool,
    /// The sum of one micro-batch, where micro-batches count one by one; else the sum of all so far.
    pub(crate) gradient: Buffer,
    pub(crate) order: EpochOrder,
    /// Micro-batches of a task, as the coordinator knows them.
    pub(crate) parts: u32,
}

/// How a task ended.
pub(crate) enum Ended {
    Pushed,
    /// The finished micro-batches were pushed at the cut.
    Salvaged,
    /// Nothing was pushed: the round was over before.
    Aborted,
}

impl TaskRunner<'_> {
    /// Runs a task and reports to the coordinator how it ended.
    pub(crate) fn run(&mut self, task: &Task, report: Report<'_>) -> Result<Ended, FrameError> {
        let base = task.base;
        self.outbox.begin(task);
        let pulled = self.pull_task(task)?;
        if !pulled || !self.outbox.start_computing() {
            self.outbox.abort(base, report)?;
            return Ok(Ended::Aborted);
        }
        let computed = self.compute(task, report);
        self.source.end();
        computed?;
        Ok(match self.outbox.send(self.mailbox, base, report)? {
            Some(true) => Ended::Pushed,
            Some(false) => Ended::Aborted,
            None => Ended::Salvaged,
        })
    }

    /// Fetches the parameters; false if that version is gone or the round was cut. A newer version is used
    /// where rounds do not wait for each other, if all shards send the same one.
    fn pull_task(&mut self, task: &Task) -> Result<bool, FrameError> {
        let Some(mut loaded) = self.source.follows() else {
            let found = self.pull(task.base, Some(task))?;
            return Ok(found.is_some_and(|found| found == task.base || self.any_newer));
        };
        while loaded < task.base {
            match self.pull(loaded.next(), Some(task))? {
                Some(found) => loaded = found,
                None => return Ok(false),
            }
        }
        Ok(loaded == task.base)
    }

    /// Loads every version up to `version`, whether or not the worker has a task.
    pub(crate) fn follow(&mut self, version: Version) -> Result<(), FrameError> {
        while self.source.follows().is_some_and(|loaded| loaded < version) {
            let next = self.source.follows().map_or(version, Version::next);
            if self.pull(next, None)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Loads `wanted` or, where it is gone, a newer version. `None` if the task that it is for was cut.
    fn pull(
        &mut self,
        wanted: Version,
        task: Option<&Task>,
    ) -> Result<Option<Version>, FrameError> {
        loop {
            match self.outbox.pull(self.mailbox, wanted, task, self.source)? {
                Pulled::Loaded(found) => {
                    self.source.loaded(found);
                    return Ok(Some(found));
                }
                Pulled::Mixed if self.any_newer => {}
                Pulled::Mixed | Pulled::Cancelled => return Ok(None),
            }
        }
    }

    /// Computes the micro-batches in order until all are done or the round is over.
    fn compute(&mut self, task: &Task, report: Report<'_>) -> Result<(), FrameError> {
        let Task { id, base, portion, .. } = task;
        let samples = match &self.orders {
            Some(orders) => {
                if let Some(epoch) = portion.epoch().filter(|&epoch| epoch != self.order.epoch()) {
                    self.order = orders.epoch(epoch);
                }
                portion.samples(&self.order).ok_or_else(|| {
                    let all = orders.samples;
                    FrameError::Unexpected(format!("work on {portion} of {all} samples"))
                })?
            }
            None => Vec::new(),
        };
        let wanted = || !self.mailbox.is_cut(*base);
        // The wait for a user's loop counts: its first micro-batch is then reported at once.
        let mut reported = Instant::now();
        let Some(parts) = self.source.begin(task, &samples, &wanted) else { return Ok(()) };
        self.outbox.split(parts);
        if parts != self.parts && self.outbox.salvages() {
            self.parts = parts;
            report(FromWorker::Split { parts })?;
        }
        for part in 0..parts {
            let micro = micro_batch(&samples, part, parts);
            let first = part == 0 || self.outbox.salvages();
            let share = match &self.costs {
                Some(costs) => costs.share(micro),
                None => micro.len() as f64 / f64::from(self.batch.max(1)),
            };
            let began = Instant::now();
            let is_final = parts == 1 || !self.outbox.salvages() && part + 1 == parts;
            let early = self.outbox.early_push(task).filter(|_| is_final);
            let finished = self.source.part(micro, &mut self.gradient, first, early, &wanted)?;
            let rest = |time| self.mailbox.rest(*base, time);
            let faults = self.faults.as_mut();
            let usable =
                faults.is_none_or(|faults| faults.after_micro_batch(*base, share, began, &rest));
            let Some(finished) = finished.filter(|_| usable) else { return Ok(()) };
            if !self.outbox.add(finished, &mut self.gradient) {
                return Ok(());
            }
            if part + 1 < parts && reported.elapsed() >= PROGRESS_INTERVAL {
                reported = Instant::now();
                report(FromWorker::Progress { id: *id, done: self.outbox.done() })?;
            }
        }
        Ok(())
    }
}

/// Part `part` of `samples`, split into `parts` parts that differ by at most one sample. This is part of the
/// contract of exact mode: a reference must split the same way.
pub fn micro_batch(samples: &[u32], part: u32, parts: u32) -> &[u32] {
    let cut = |part: u32| part_of(samples.len() as u32, part, parts) as usize;
    &samples[cut(part)..cut(part + 1)]
}

/// Samples in the first `done` of `parts` micro-batches of `samples`.
pub fn part_of(samples: u32, done: u32, parts: u32) -> u32 {
    (u64::from(samples) * u64::from(done) / u64::from(parts)) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn micro_batches_tile_the_samples_evenly(len in 0..200u32, parts in 1..17u32) {
            let samples: Vec<u32> = (0..len).collect();
            let cut: Vec<&[u32]> = (0..parts).map(|p| micro_batch(&samples, p, parts)).collect();
            prop_assert_eq!(&cut.concat(), &samples);
            let longest = cut.iter().map(|c| c.len()).max().unwrap();
            prop_assert!(cut.iter().all(|c| c.len() + 1 >= longest));
        }
    }
}
