//! One round's work: pull, compute in micro-batches, push, and stop when it is of no use.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use paceline_core::{Costs, EpochOrder, OrderSpec, Version};
use paceline_shm::Kept;
use paceline_wire::{FrameError, message::FromWorker};

use crate::{
    buffer::Buffer,
    faults::WorkerFaults,
    mailbox::{Mailbox, Task},
    outbox::{Outbox, Say},
};

/// Progress is told no more often than that: it would cost more than it helps.
const NEWS: Duration = Duration::from_millis(2);

/// What a worker computes.
pub trait Compute {
    /// These are the parameters to compute from, from element `at` on; the others stay as they are.
    fn load(&mut self, at: usize, params: &[f32]);

    /// All parameters, which stay as they are until `params` is dropped. Who can compute from them where
    /// they are, in memory shared with the shards, keeps them until it is to let go of them.
    fn keep(&mut self, params: Kept) {
        self.load(0, &params);
    }

    /// Drops what it keeps: others are coming, for which there is no room before.
    fn let_go(&mut self) {}

    /// Empties `gradient` before a round, or before each of its micro-batches.
    fn clear(&mut self, gradient: &mut [f32]) {
        gradient.fill(0.0);
    }

    /// Adds the *sum* over `samples` of the gradient of the loss to `gradient` and returns the sum
    /// of the loss.
    fn gradient(&mut self, samples: &[u32], gradient: &mut [f32]) -> f64;

    /// The same for as long as it is `wanted`; `None` if it was given up, and `gradient` then holds
    /// nothing of value. Whoever asks often, layer by layer, is free for the next round at once
    /// when this one is cut.
    fn gradient_while(
        &mut self,
        samples: &[u32],
        gradient: &mut [f32],
        wanted: &dyn Fn() -> bool,
    ) -> Option<f64> {
        wanted().then(|| self.gradient(samples, gradient))
    }

    /// What every sample costs, in any unit, if they are not alike: its length, for example.
    fn costs(&self) -> Option<Arc<[f32]>> {
        None
    }
}

/// What a worker did, for its own log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Rounds it took part in to the end.
    pub finished: u64,
    /// Rounds it was cut short in, and pushed what it had finished.
    pub salvaged: u64,
    /// Rounds it was cut short in with nothing to show.
    pub aborted: u64,
    /// Rounds that closed while it was there.
    pub closed: u64,
    /// Rounds its contribution was used in.
    pub used: u64,
}

/// Everything one round's work needs.
pub(crate) struct Bench<'a> {
    pub(crate) compute: &'a mut dyn Compute,
    pub(crate) outbox: &'a Outbox,
    pub(crate) mailbox: &'a Mailbox,
    pub(crate) faults: Option<Box<dyn WorkerFaults>>,
    pub(crate) orders: OrderSpec,
    /// Samples of a whole round's work.
    pub(crate) batch: u32,
    pub(crate) costs: Option<Costs>,
    pub(crate) micro_batches: u32,
    /// A newer version than the work was given on will do.
    pub(crate) any_newer: bool,
    /// One micro-batch's sum, where micro-batches count one by one; else that of all so far.
    pub(crate) gradient: Buffer,
    pub(crate) order: EpochOrder,
}

/// How a round's work ended.
pub(crate) enum Ended {
    Pushed,
    /// What was finished was pushed at the cut.
    Salvaged,
    /// It was of no use any more.
    Aborted,
}

impl Bench<'_> {
    /// Does one round's work and says to the coordinator what comes of it.
    pub(crate) fn work(&mut self, task: &Task, say: Say<'_>) -> Result<Ended, FrameError> {
        let base = task.base;
        if !self.pull(base, &task.behind)? {
            say(FromWorker::Aborted { base, done: 0 })?;
            return Ok(Ended::Aborted);
        }
        self.outbox.begin(task);
        self.compute(task, say)?;
        Ok(match self.outbox.send(self.mailbox, base, say)? {
            Some(true) => Ended::Pushed,
            Some(false) => Ended::Aborted,
            None => Ended::Salvaged,
        })
    }

    /// Fetches the parameters; false if that version is gone. A newer one does where rounds do not wait
    /// for each other, if all shards give the same.
    fn pull(&mut self, base: Version, behind: &[u32]) -> Result<bool, FrameError> {
        loop {
            match self.outbox.lock().data.pull(base, behind, self.compute)? {
                Some(found) if found == base || self.any_newer => return Ok(true),
                None if self.any_newer => {}
                _ => return Ok(false),
            }
        }
    }

    /// Computes micro-batch after micro-batch until all are done or the round is over.
    fn compute(&mut self, task: &Task, say: Say<'_>) -> Result<(), FrameError> {
        let Task { base, portion, .. } = task;
        if let Some(epoch) = portion.epoch().filter(|&epoch| epoch != self.order.epoch()) {
            self.order = self.orders.epoch(epoch);
        }
        let samples = portion.samples(&self.order).ok_or_else(|| {
            let all = self.orders.samples;
            FrameError::Unexpected(format!("work on {portion} of {all} samples"))
        })?;
        let mut said = Instant::now();
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
            if part + 1 < self.micro_batches && said.elapsed() >= NEWS {
                said = Instant::now();
                say(FromWorker::Progress { base: *base, done: part + 1 })?;
            }
        }
        Ok(())
    }
}

/// Part `part` of `samples` cut into `parts` parts that differ by at most one sample. Part of the
/// contract of exact mode: a reference must cut the same way.
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
