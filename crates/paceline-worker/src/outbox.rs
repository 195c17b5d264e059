//! Finished work on its way to the shards.
//!
//! Whoever is first sends it: the thread that computes, when all is done; or the thread that listens
//! for cuts, which sends the micro-batches that are finished while another is still being computed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use paceline_core::Version;
use paceline_params::{add_scaled, norm_squared};
use paceline_wire::{FrameError, message::FromWorker};

use crate::{
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
    gradient: Vec<f32>,
}

impl Outbox {
    pub(crate) fn new(data: DataPlane, micro_batches: u32, until: Until, norms: bool) -> Outbox {
        let state = Mutex::new(State { data, finished: Finished::default() });
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
    pub(crate) fn add(&self, loss: f64, gradient: &mut Vec<f32>) -> bool {
        let finished = &mut self.lock().finished;
        if finished.task.is_none() {
            return false;
        }
        finished.done += 1;
        finished.loss += loss;
        let first = if self.salvages() { 1 } else { self.micro_batches };
        if finished.done == first {
            std::mem::swap(&mut finished.gradient, gradient);
            gradient.resize(finished.gradient.len(), 0.0);
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
        say(FromWorker::Done { base, weight, loss, square })?;
        if !task.push_at_once && !mailbox.may_push(base, until) {
            return Ok(Some(Err(done)));
        }
        let sent = data.push(base, &finished.gradient, || mailbox.is_over(base, until))?;
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
