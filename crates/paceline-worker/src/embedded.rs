//! A worker inside a training loop of the user's own.
//!
//! The worker's loop runs on a thread of its own and is the one that native workers run. Where a native
//! worker computes, it lends the gradient's buffer to the user's loop and waits. The two meet in a
//! [`Rendezvous`]: one side hands over tasks and versions, the other gradients.
//!
//! In a run whose shards average gradients ([`Job::follow`]), a version is the mean gradient of the round
//! before it. Every version is loaded in order, and waits until the user's loop takes it: a loop that was
//! slow, or evaluated for a while, replays what it missed.

mod handoff;
mod rendezvous;
mod user_loop;
mod versions;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use paceline_core::{Portion, Version};
use paceline_wire::{
    Connect,
    message::{FromWorker, Job, ToWorker},
};

use crate::{
    client::{Control, Prepared, PullWait, WorkerConfig, WorkerError, run_source},
    mailbox::Closed,
    work::{Finished, Tally},
};

pub use handoff::Assignment;
use rendezvous::{Rendezvous, State};
use user_loop::UserLoop;

/// A worker whose gradients a training loop of the user's own computes.
pub struct Embedded {
    job: Job,
    meeting: Arc<Rendezvous>,
    control: Control,
    ready: Mutex<Option<mpsc::Sender<Joining>>>,
    thread: Mutex<Option<JoinHandle<Result<Tally, WorkerError>>>>,
}

/// How a worker begins, once it has the state of the run.
#[derive(Debug, Clone, Copy)]
pub struct Joining {
    /// The version of the worker's state.
    pub version: Version,
    /// Samples in its data; `None` for a stream.
    pub samples: Option<u32>,
    /// Portions to lease before their rounds.
    pub ahead: u32,
    /// Whether it may [`clear`](Embedded::clear) what it has written. Blocks then leave only once the
    /// contribution is whole.
    pub clears: bool,
}

/// What the user's loop can do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// Compute.
    Work(Assignment),
    /// Take this version, which was loaded.
    Loaded(Version),
    /// Neither: nothing has happened for as long as the caller was willing to wait.
    Nothing,
    /// The run is over, for this reason; an error if it is over for this worker alone.
    Ended(Result<String, String>),
}

impl Embedded {
    /// Joins the run at `config.address`. The worker gets work after [`Self::ready`].
    pub fn join(
        config: WorkerConfig,
        connect: Box<dyn Connect + Send>,
        wait: PullWait,
    ) -> Result<Self, WorkerError> {
        let meeting = Arc::new(Rendezvous::default());
        let (joined, joining) = mpsc::channel();
        let (ready, starts) = mpsc::channel();
        let here = Arc::clone(&meeting);
        let work = move || {
            let meeting = Arc::clone(&here);
            let outcome = run_source(&config, &*connect, wait, move |job, control| {
                let _ = joined.send((job.clone(), control.clone()));
                let joining = starts.recv();
                let joining = joining.map_err(|_| "the training loop ended".to_owned())?;
                Ok(prepare(meeting, job, joining))
            });
            here.end(&outcome);
            outcome
        };
        let thread = thread::Builder::new()
            .name("worker".to_owned())
            .spawn(work)
            .expect("failed to start a thread");
        let Ok((job, control)) = joining.recv() else {
            let failed = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let silent = || WorkerError::Lost("the worker ended while it joined".to_owned());
            return Err(failed.err().unwrap_or_else(silent));
        };
        let watcher = Arc::clone(&meeting);
        control.mailbox.watch(Box::new(move || watcher.wake()));
        let (ready, thread) = (Mutex::new(Some(ready)), Mutex::new(Some(thread)));
        Ok(Embedded { job, meeting, control, ready, thread })
    }

    /// The run, as the coordinator describes it.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The worker has its data and the state of the run: it may be given work.
    pub fn ready(&self, joining: Joining) {
        if let Some(ready) = lock(&self.ready).take() {
            let _ = ready.send(joining);
        }
    }

    /// The state was replaced by the run's state of this version. Older versions need not be taken.
    pub fn restored(&self, version: Version) {
        self.meeting.lock().versions.restore(version);
    }

    /// Waits, at most for `patience`, until there is work on the version that the user's loop took last, or a
    /// version to take.
    pub fn next(&self, patience: Duration) -> Turn {
        let turn = self.meeting.wait(patience, |state| {
            let State { versions, handoff, .. } = state;
            let work = || handoff.task_on(versions.taken()).cloned().map(Turn::Work);
            versions.first().map(Turn::Loaded).or_else(work)
        });
        if let Turn::Work(work) = &turn {
            self.meeting.lock().handoff.give(work);
        }
        turn
    }

    /// Waits, at most for `patience`, until there is a version to take.
    pub fn next_version(&self, patience: Duration) -> Turn {
        self.meeting.wait(patience, |state| state.versions.first().map(Turn::Loaded))
    }

    /// The reason why the run is over, if it is; an error if it is over for this worker alone.
    pub fn ended(&self) -> Option<Result<String, String>> {
        let ended = self.meeting.lock().ended.clone()?;
        Some(match self.control.mailbox.stop_reason(Duration::ZERO) {
            Some(Ok(why)) => ended.map(|_| why),
            _ => ended,
        })
    }

    /// Whether the run is over for all workers because it failed.
    pub fn has_failed(&self) -> bool {
        self.control.mailbox.has_failed()
    }

    /// Whether a round has closed whose version the user's loop has not taken.
    pub fn is_behind(&self) -> bool {
        let taken = self.taken();
        self.control.mailbox.newest_closed().is_some_and(|base| base.next() > taken)
    }

    /// Whether the version after the one taken last is waiting. False if it is not loaded yet, or was lost.
    pub fn is_next_waiting(&self) -> bool {
        let versions = &self.meeting.lock().versions;
        versions.first() == Some(versions.taken().next())
    }

    /// The newest version that was loaded.
    pub fn newest(&self) -> Version {
        self.meeting.lock().versions.newest()
    }

    /// The version that the user's loop took last.
    pub fn taken(&self) -> Version {
        self.meeting.lock().versions.taken()
    }

    /// Takes the oldest version that waits. `read` sees its values, in the order of the layout.
    pub fn take<T>(&self, read: impl FnOnce(Version, &[f32]) -> T) -> Option<T> {
        self.meeting.lock().versions.take(read)
    }

    /// Begins to compute the current work, in `parts` micro-batches. False if it is no longer wanted.
    pub fn begin(&self, parts: u32) -> bool {
        self.begin_while(parts, &mut || true)
    }

    /// As [`Self::begin`]. Gives up the wait for the worker's loop when `goes_on` says so.
    pub fn begin_while(&self, parts: u32, goes_on: &mut dyn FnMut() -> bool) -> bool {
        let mut state = self.meeting.lock();
        if !state.handoff.request(parts) {
            return false;
        }
        self.meeting.notify();
        // The buffer is lent a moment later.
        self.meeting.until(state, goes_on, is_lent_or_over).handoff.has_begun()
    }

    /// Adds `scale` times `values` to the gradient of the current micro-batch, from element `at` on, which
    /// gets no other values: over TCP they may leave at once. Returns whether all of it is finite; `None` if the
    /// work is no longer wanted.
    ///
    /// # Panics
    /// If `values` reaches past the end.
    pub fn write(&self, at: usize, values: &[f32], scale: f32) -> Option<bool> {
        let mut state = self.meeting.lock();
        let finite = state.handoff.write(at, values, scale)?;
        // Values that are not finite never leave early: the loop may still give up the contribution.
        if finite && state.handoff.note_written(at..at + values.len()) {
            self.meeting.notify();
        }
        Some(finite)
    }

    /// The current micro-batch is computed again from its start: the pass that wrote some of its gradient ended
    /// before its end. False if what it wrote was added to earlier micro-batches, and stays there.
    pub fn restart(&self) -> bool {
        self.meeting.lock().handoff.restart()
    }

    /// The elements from `at` on have no gradient in the current micro-batch.
    pub fn skip(&self, at: usize, len: usize) -> bool {
        let mut state = self.meeting.lock();
        let lent = state.handoff.skip(at..at + len);
        if lent && state.handoff.note_written(at..at + len) {
            self.meeting.notify();
        }
        lent
    }

    /// Removes everything that was written from element `at` on, in earlier micro-batches too where they are
    /// added up. Only for workers that joined with [`Joining::clears`]: else it may have left already.
    pub fn clear(&self, at: usize, len: usize) {
        self.meeting.lock().handoff.clear(at..at + len);
    }

    /// The current micro-batch is done, with the weight of its samples, the sum of their loss if it is
    /// known, and the learning rates if the shards step the optimizer. Returns whether the next one, or for
    /// the last one the whole contribution, may still count.
    pub fn finish(&self, weight: f64, loss: Option<f64>, learning_rates: Vec<f32>) -> bool {
        self.finish_while(weight, loss, learning_rates, &mut || true)
    }

    /// As [`Self::finish`]. Gives up the wait for the worker's loop when `goes_on` says so.
    pub fn finish_while(
        &self,
        weight: f64,
        loss: Option<f64>,
        learning_rates: Vec<f32>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> bool {
        let mut state = self.meeting.lock();
        if !state.handoff.finish(Finished { weight, loss, learning_rates }) {
            return false;
        }
        self.meeting.notify();
        // The worker's loop takes the buffer, and lends it again for the next micro-batch.
        let taken = |state: &State| !state.handoff.is_finished();
        let state = self.meeting.until(state, goes_on, taken);
        if state.handoff.is_last() {
            return true;
        }
        self.meeting.until(state, goes_on, is_lent_or_over).handoff.is_lent()
    }

    /// Whether the work that the user's loop was given no longer counts.
    pub fn is_cut(&self) -> bool {
        let state = self.meeting.lock();
        state.handoff.is_cut() || state.ended.is_some()
    }

    /// Gives up the work that the user's loop was given: its next contribution is for a later round.
    pub fn forget(&self) {
        self.meeting.lock().handoff.forget();
        self.meeting.notify();
    }

    /// Portions leased to this worker for later rounds, in order.
    pub fn leases(&self) -> Vec<Portion> {
        self.control.mailbox.leases()
    }

    /// Epochs of which every sample was used.
    pub fn epochs(&self) -> u32 {
        self.control.mailbox.epochs()
    }

    /// The epoch of the round that made `version`. `None` until the coordinator has told of the round before.
    pub fn epoch_of(&self, version: Version) -> Option<u32> {
        let Some(before) = version.0.checked_sub(2).map(Version) else { return Some(0) };
        let mailbox = &self.control.mailbox;
        match mailbox.closed(before) {
            Some(closed) => Some(closed.epochs),
            None if before < self.job.version => Some(self.job.epochs),
            None => {
                mailbox.newest_closed().filter(|closed| *closed > before).map(|_| mailbox.epochs())
            }
        }
    }

    /// The close of the round on `base`, if it is one of the last.
    pub fn closed(&self, base: Version) -> Option<Closed> {
        self.control.mailbox.closed(base)
    }

    /// The coordinator's messages to the user's loop since the last call.
    pub fn messages(&self) -> Vec<ToWorker> {
        self.control.mailbox.take_user_messages()
    }

    /// Waits, at most for `patience`, until the coordinator has a message for the user's loop.
    pub fn wait_for_message(&self, patience: Duration) {
        let mailbox = &self.control.mailbox;
        let waits = |state: &mut State| state.ended.is_none() && !mailbox.has_user_message();
        drop(self.meeting.wait_at_most(patience, waits));
    }

    /// Sends the coordinator a message of the user's loop.
    pub fn send(&self, message: FromWorker) -> Result<(), WorkerError> {
        Ok(self.control.sender.send(message)?)
    }

    /// Leaves the run. Returns the worker's counts of rounds.
    pub fn leave(&self) -> Result<Tally, WorkerError> {
        *lock(&self.ready) = None;
        let sender = &self.control.sender;
        self.control.mailbox.leave(|| drop(sender.send(FromWorker::Bye)));
        let thread = lock(&self.thread).take();
        match thread {
            Some(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => Ok(Tally::default()),
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        let _ = self.leave();
    }
}

fn prepare(meeting: Arc<Rendezvous>, job: &Job, joining: Joining) -> Prepared {
    let Joining { version, samples, ahead, clears } = joining;
    meeting.lock().versions.begin(version, job.follow, job.layout.total());
    let source = Box::new(UserLoop::new(meeting, clears));
    Prepared { source, costs: None, samples, ahead }
}

/// Whether the user's loop may write, or has nothing to write.
fn is_lent_or_over(state: &State) -> bool {
    state.handoff.is_lent() || state.handoff.is_over()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
