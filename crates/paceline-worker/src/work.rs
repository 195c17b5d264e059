//! One round's work: pull, compute in micro-batches, push, and stop when it is of no use.

use paceline_core::EpochOrder;
use paceline_wire::{FrameError, message::FromWorker};

use crate::{
    data::DataPlane,
    mailbox::{Mailbox, Task},
    slowness::Slowness,
};

/// What a worker computes.
pub trait Compute {
    /// These are the parameters to compute from.
    fn load(&mut self, params: &[f32]);

    /// Empties `gradient` before a round's first micro-batch.
    fn clear(&mut self, gradient: &mut [f32]) {
        gradient.fill(0.0);
    }

    /// Adds the *sum* over `samples` of the gradient of the loss to `gradient` and returns the sum
    /// of the loss.
    fn gradient(&mut self, samples: &[u32], gradient: &mut [f32]) -> f64;
}

/// What a worker did, for its own log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Rounds it took part in to the end.
    pub finished: u64,
    /// Rounds it was cut short in.
    pub aborted: u64,
    /// Rounds that closed while it was there.
    pub closed: u64,
    /// Rounds its contribution was used in.
    pub used: u64,
}

/// Everything one round's work needs.
pub(crate) struct Bench<'a> {
    pub(crate) compute: &'a mut dyn Compute,
    pub(crate) data: DataPlane,
    pub(crate) mailbox: &'a Mailbox,
    pub(crate) slowness: Slowness,
    pub(crate) seed: u64,
    pub(crate) samples: u32,
    pub(crate) micro_batches: u32,
    pub(crate) params: Vec<f32>,
    pub(crate) gradient: Vec<f32>,
    pub(crate) order: EpochOrder,
}

/// How a round's work ended.
pub(crate) enum Ended {
    Pushed,
    /// After so many micro-batches it was of no use any more.
    Aborted(u32),
}

impl Bench<'_> {
    /// Does one round's work and says to the coordinator what comes of it.
    pub(crate) fn work(
        &mut self,
        task: Task,
        say: &dyn Fn(FromWorker) -> Result<(), FrameError>,
    ) -> Result<Ended, FrameError> {
        let base = task.base;
        let ended = self.attempt(task, say)?;
        if let Ended::Aborted(done) = ended {
            say(FromWorker::Aborted { base, done })?;
        }
        Ok(ended)
    }

    fn attempt(
        &mut self,
        task: Task,
        say: &dyn Fn(FromWorker) -> Result<(), FrameError>,
    ) -> Result<Ended, FrameError> {
        let Task { base, push_at_once, .. } = task;
        if self.data.pull(base, &mut self.params)? != Some(base) {
            return Ok(Ended::Aborted(0));
        }
        self.compute.load(&self.params);
        let (done, loss) = self.compute(task, say)?;
        let mailbox = self.mailbox;
        if done < self.micro_batches || mailbox.is_over(base) {
            return Ok(Ended::Aborted(done));
        }
        say(FromWorker::Done { base, weight: f64::from(task.range.len()), loss })?;
        if !push_at_once && !mailbox.may_push(base) {
            return Ok(Ended::Aborted(done));
        }
        match self.data.push(base, &self.gradient, || mailbox.is_over(base))? {
            true => Ok(Ended::Pushed),
            false => Ok(Ended::Aborted(done)),
        }
    }

    /// Computes micro-batch after micro-batch until all are done or the round is over; returns how
    /// many and the sum of their loss.
    fn compute(
        &mut self,
        task: Task,
        say: &dyn Fn(FromWorker) -> Result<(), FrameError>,
    ) -> Result<(u32, f64), FrameError> {
        let Task { base, range, .. } = task;
        if self.order.epoch() != range.epoch {
            self.order = EpochOrder::new(self.seed, range.epoch, self.samples);
        }
        let samples = self.order.samples(range.start, range.end).ok_or_else(|| {
            FrameError::Unexpected(format!("work on {range} of {} samples", self.samples))
        })?;
        self.compute.clear(&mut self.gradient);
        let pace = self.slowness.round(base);
        let mut loss = 0.0;
        for part in 0..self.micro_batches {
            if self.mailbox.is_over(base) {
                return Ok((part, loss));
            }
            let micro = micro_batch(samples, part, self.micro_batches);
            pace.micro_batch(self.micro_batches, || {
                loss += self.compute.gradient(micro, &mut self.gradient);
            });
            if part + 1 < self.micro_batches {
                say(FromWorker::Progress { base, done: part + 1 })?;
            }
        }
        Ok((self.micro_batches, loss))
    }

    /// An order that is nobody's yet.
    pub(crate) fn no_order() -> EpochOrder {
        EpochOrder::new(0, u32::MAX, 0)
    }
}

/// Part `part` of `samples` cut into `parts` parts that differ by at most one sample. Part of the
/// contract of exact mode: a reference must cut the same way.
pub fn micro_batch(samples: &[u32], part: u32, parts: u32) -> &[u32] {
    let cut = |part: u32| (samples.len() as u64 * u64::from(part) / u64::from(parts)) as usize;
    &samples[cut(part)..cut(part + 1)]
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
