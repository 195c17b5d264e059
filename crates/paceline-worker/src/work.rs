//! One task: pull, compute in micro-batches, push, and stop when the round is cut.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use paceline_core::{Costs, EpochOrder, OrderSpec};
use paceline_shm::Kept;
use paceline_wire::{FrameError, message::FromWorker};

use crate::{
    buffer::Buffer,
    data::Pulled,
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

/// Runs one task after the other.
pub(crate) struct TaskRunner<'a> {
    pub(crate) compute: &'a mut dyn Compute,
    pub(crate) outbox: &'a Outbox,
    pub(crate) mailbox: &'a Mailbox,
    pub(crate) faults: Option<Box<dyn WorkerFaults>>,
    pub(crate) orders: OrderSpec,
    /// Samples of a whole task.
    pub(crate) batch: u32,
    pub(crate) costs: Option<Costs>,
    pub(crate) micro_batches: u32,
    /// Whether a newer version than the task's may be used.
    pub(crate) any_newer: bool,
    /// The sum of one micro-batch, where micro-batches count one by one; else the sum of all so far.
    pub(crate) gradient: Buffer,
    pub(crate) order: EpochOrder,
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
        let pulled = self.pull(task)?;
        if !pulled || !self.outbox.start_computing() {
            self.outbox.abort(base, report)?;
            return Ok(Ended::Aborted);
        }
        self.compute(task, report)?;
        Ok(match self.outbox.send(self.mailbox, base, report)? {
            Some(true) => Ended::Pushed,
            Some(false) => Ended::Aborted,
            None => Ended::Salvaged,
        })
    }

    /// Fetches the parameters; false if that version is gone or the round was cut. A newer version is used
    /// where rounds do not wait for each other, if all shards send the same one.
    fn pull(&mut self, task: &Task) -> Result<bool, FrameError> {
        loop {
            match self.outbox.pull(self.mailbox, task, self.compute)? {
                Pulled::Loaded(found) => return Ok(found == task.base || self.any_newer),
                Pulled::Mixed if self.any_newer => {}
                Pulled::Mixed | Pulled::Cancelled => return Ok(false),
            }
        }
    }

    /// Computes the micro-batches in order until all are done or the round is over.
    fn compute(&mut self, task: &Task, report: Report<'_>) -> Result<(), FrameError> {
        let Task { id, base, portion, .. } = task;
        if let Some(epoch) = portion.epoch().filter(|&epoch| epoch != self.order.epoch()) {
            self.order = self.orders.epoch(epoch);
        }
        let samples = portion.samples(&self.order).ok_or_else(|| {
            let all = self.orders.samples;
            FrameError::Unexpected(format!("work on {portion} of {all} samples"))
        })?;
        let mut reported = Instant::now();
        for part in 0..self.micro_batches {
            let micro = micro_batch(&samples, part, self.micro_batches);
            if part == 0 || self.outbox.salvages() {
                self.compute.clear(&mut self.gradient);
            }
            let share = match &self.costs {
                Some(costs) => costs.share(micro),
                None => micro.len() as f64 / f64::from(self.batch.max(1)),
            };
            let wanted = || !self.mailbox.is_cut(*base);
            let began = Instant::now();
            let loss = self.compute.gradient_while(micro, &mut self.gradient, &wanted);
            let rest = |time| self.mailbox.rest(*base, time);
            let faults = self.faults.as_mut();
            let usable =
                faults.is_none_or(|faults| faults.after_micro_batch(*base, share, began, &rest));
            match loss.filter(|_| usable) {
                Some(loss) if self.outbox.add(loss, &mut self.gradient) => {}
                _ => return Ok(()),
            }
            if part + 1 < self.micro_batches && reported.elapsed() >= PROGRESS_INTERVAL {
                reported = Instant::now();
                report(FromWorker::Progress { id: *id, done: part + 1 })?;
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
