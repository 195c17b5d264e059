//! A worker inside a training loop of the user's own.
//!
//! The worker's loop runs on a thread of its own and is the one that native workers run. Where a native
//! worker computes, it lends the gradient's buffer to the user's loop and waits. The two meet in a
//! [`Rendezvous`]: one side hands over tasks and versions, the other gradients.
//!
//! In a run whose shards average gradients ([`Job::follow`]), a version is the mean gradient of the round
//! before it. Every version is loaded in order, and waits until the user's loop takes it: a loop that was
//! slow, or evaluated for a while, replays what it missed.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use paceline_core::{Portion, Version};
use paceline_params::{add_scaled, all_finite, copy_scaled};
use paceline_shm::Kept;
use paceline_wire::{
    Connect, FrameError,
    message::{FromWorker, Job, ToWorker},
};

use crate::{
    buffer::Buffer,
    client::{Control, Prepared, PullWait, WorkerConfig, WorkerError, run_source},
    early::{EarlyBlock, EarlyPush, WholeBlocks},
    mailbox::{Closed, Task},
    work::{Finished, Source, Tally},
};

/// Memory for versions that wait for the user's loop: 4 at least, 64 at most. A loop that missed more takes
/// the state of another worker.
const WAITING_BYTES: usize = 256 << 20;

/// How often a wait for the worker's loop asks whether to go on.
const LOOK: Duration = Duration::from_millis(100);

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
                Ok(meeting.prepare(job, joining))
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
        let mut state = self.meeting.lock();
        state.taken = version;
        state.loaded.retain(|loaded| loaded.version > version);
        // Versions between the state and the ones that wait are pulled again.
        if state.loaded.front().is_none_or(|first| first.version > version.next()) {
            state.loaded.clear();
            state.newest = version;
        }
    }

    /// Waits, at most for `patience`, until there is work on the version that the user's loop took last, or a
    /// version to take.
    pub fn next(&self, patience: Duration) -> Turn {
        let turn = self.meeting.wait(patience, |state| {
            if let Some(loaded) = state.loaded.front() {
                return Some(Turn::Loaded(loaded.version));
            }
            let task = state.task.as_ref().filter(|task| task.base == state.taken);
            task.filter(|_| state.parts.is_none()).cloned().map(Turn::Work)
        });
        if let Turn::Work(work) = &turn {
            self.meeting.lock().given = Some(work.number);
        }
        turn
    }

    /// Waits, at most for `patience`, until there is a version to take.
    pub fn next_version(&self, patience: Duration) -> Turn {
        self.meeting
            .wait(patience, |state| state.loaded.front().map(|loaded| Turn::Loaded(loaded.version)))
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
        let taken = self.meeting.lock().taken;
        self.control.mailbox.newest_closed().is_some_and(|base| base.next() > taken)
    }

    /// Whether the version after the one taken last is waiting. False if it is not loaded yet, or was lost.
    pub fn is_next_waiting(&self) -> bool {
        let state = self.meeting.lock();
        state.loaded.front().is_some_and(|first| first.version == state.taken.next())
    }

    /// The newest version that was loaded.
    pub fn newest(&self) -> Version {
        self.meeting.lock().newest
    }

    /// The version that the user's loop took last.
    pub fn taken(&self) -> Version {
        self.meeting.lock().taken
    }

    /// Takes the oldest version that waits. `read` sees its values, in the order of the layout.
    pub fn take<T>(&self, read: impl FnOnce(Version, &[f32]) -> T) -> Option<T> {
        let mut state = self.meeting.lock();
        let Loaded { version, values } = state.loaded.pop_front()?;
        state.taken = version;
        let read = match &values {
            Values::Own(values) => read(version, values),
            Values::Kept(values) => read(version, values),
        };
        if let Values::Own(values) = values {
            state.spare = values;
        }
        Some(read)
    }

    /// Begins to compute the current work, in `parts` micro-batches. False if it is no longer wanted.
    pub fn begin(&self, parts: u32) -> bool {
        self.begin_while(parts, &mut || true)
    }

    /// As [`Self::begin`]. Gives up the wait for the worker's loop when `goes_on` says so.
    pub fn begin_while(&self, parts: u32, goes_on: &mut dyn FnMut() -> bool) -> bool {
        let mut state = self.meeting.lock();
        if !state.is_wanted() {
            return false;
        }
        state.parts = Some(parts.max(1));
        self.meeting.changed.notify_all();
        // The buffer is lent a moment later.
        let lent = |state: &State| state.buffer.is_some() || state.task.is_none();
        let mut state = self.meeting.until(state, goes_on, lent);
        if state.buffer.is_none() {
            state.parts = None;
        }
        state.buffer.is_some()
    }

    /// Adds `scale` times `values` to the gradient of the current micro-batch, from element `at` on, which
    /// gets no other values: over TCP they may leave at once. Returns whether all of it is finite; `None` if the
    /// work is no longer wanted.
    ///
    /// # Panics
    /// If `values` reaches past the end.
    pub fn write(&self, at: usize, values: &[f32], scale: f32) -> Option<bool> {
        let mut state = self.meeting.lock();
        let adds = state.adds;
        let part = &mut state.buffer.as_mut()?[at..at + values.len()];
        let finite = if adds {
            add_scaled(part, scale, values);
            all_finite(part).is_ok()
        } else {
            copy_scaled(part, scale, values)
        };
        // Values that are not finite never leave early: the loop may still give up the contribution.
        if finite {
            self.meeting.note_written(&mut state, at..at + values.len());
        }
        Some(finite)
    }

    /// The current micro-batch is computed again from its start: the pass that wrote some of its gradient ended
    /// before its end. False if what it wrote was added to earlier micro-batches, and stays there.
    pub fn restart(&self) -> bool {
        let mut state = self.meeting.lock();
        state.whole.withdraw();
        !state.adds
    }

    /// The elements from `at` on have no gradient in the current micro-batch.
    pub fn skip(&self, at: usize, len: usize) -> bool {
        let mut state = self.meeting.lock();
        let adds = state.adds;
        let Some(buffer) = &mut state.buffer else { return false };
        if !adds {
            buffer[at..at + len].fill(0.0);
        }
        self.meeting.note_written(&mut state, at..at + len);
        true
    }

    /// Removes everything that was written from element `at` on, in earlier micro-batches too where they are
    /// added up. Only for workers that joined with [`Joining::clears`]: else it may have left already.
    pub fn clear(&self, at: usize, len: usize) {
        if let Some(buffer) = &mut self.meeting.lock().buffer {
            buffer[at..at + len].fill(0.0);
        }
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
        if state.buffer.is_none() {
            return false;
        }
        state.finished = Some(Finished { weight, loss, learning_rates });
        self.meeting.changed.notify_all();
        // The worker's loop takes the buffer, and lends it again for the next micro-batch.
        let taken = |state: &State| state.finished.is_none();
        let state = self.meeting.until(state, goes_on, taken);
        if state.left == 0 {
            return true;
        }
        let lent = |state: &State| state.buffer.is_some() || state.task.is_none();
        self.meeting.until(state, goes_on, lent).buffer.is_some()
    }

    /// Whether the work that the user's loop was given no longer counts.
    pub fn is_cut(&self) -> bool {
        let state = self.meeting.lock();
        state.given.is_some() && !state.is_wanted() || state.ended.is_some()
    }

    /// Gives up the work that the user's loop was given: its next contribution is for a later round.
    pub fn forget(&self) {
        let mut state = self.meeting.lock();
        (state.given, state.parts) = (None, None);
        drop(state);
        self.meeting.changed.notify_all();
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
        let (state, ended) = (self.meeting.lock(), |state: &State| state.ended.is_some());
        let waiting = |state: &mut State| !ended(state) && !mailbox.has_user_message();
        drop(self.meeting.changed.wait_timeout_while(state, patience, waiting));
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the worker's loop and the user's loop meet.
#[derive(Default)]
struct Rendezvous {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Values of the version that is being loaded.
    filling: Option<Values>,
    /// Versions that the user's loop has not taken, oldest first.
    loaded: VecDeque<Loaded>,
    newest: Version,
    /// Whether any version was loaded. The first task's is, where versions are parameters.
    has_loaded: bool,
    taken: Version,
    /// A buffer to load the next version in.
    spare: Vec<f32>,
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
    ended: Option<Result<String, String>>,
}

impl State {
    /// Whether the work that the user's loop was given still counts.
    fn is_wanted(&self) -> bool {
        self.task.as_ref().is_some_and(|task| Some(task.number) == self.given)
    }
}

struct Loaded {
    version: Version,
    values: Values,
}

enum Values {
    Own(Vec<f32>),
    Kept(Kept),
}

impl Rendezvous {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn wake(&self) {
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Waits until `holds`, until the worker's loop has ended, or until `goes_on` says no.
    fn until<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        goes_on: &mut dyn FnMut() -> bool,
        holds: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        loop {
            let waits = |state: &mut State| state.ended.is_none() && !holds(state);
            let waited = self.changed.wait_timeout_while(state, LOOK, waits);
            let (now, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            if !waited.timed_out() {
                return now;
            }
            drop(now);
            let ends = !goes_on();
            state = self.lock();
            if ends {
                return state;
            }
        }
    }

    fn wait(&self, patience: Duration, turn: impl Fn(&State) -> Option<Turn>) -> Turn {
        let waits = |state: &mut State| state.ended.is_none() && turn(state).is_none();
        let waited = self.changed.wait_timeout_while(self.lock(), patience, waits);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let ended = || state.ended.clone().map(Turn::Ended);
        turn(&state).or_else(ended).unwrap_or(Turn::Nothing)
    }

    /// These elements of the gradient are final.
    fn note_written(&self, state: &mut State, written: Range<usize>) {
        if state.whole.note(written) {
            self.changed.notify_all();
        }
    }

    fn prepare(self: Arc<Self>, job: &Job, joining: Joining) -> Prepared {
        let Joining { version, samples, ahead, clears } = joining;
        let mut state = self.lock();
        (state.taken, state.newest) = (version, version);
        drop(state);
        let version_bytes = job.layout.total().max(1) * size_of::<f32>();
        let most_waiting = (WAITING_BYTES / version_bytes).clamp(4, 64);
        let source = UserLoop {
            meeting: self,
            keeps_all: job.follow,
            most_waiting,
            clears,
            block: Vec::new(),
        };
        Prepared { source: Box::new(source), costs: None, samples, ahead }
    }

    fn end(&self, outcome: &Result<Tally, WorkerError>) {
        let ended = match outcome {
            Ok(_) => Ok("the run is over".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        self.lock().ended = Some(ended);
        self.changed.notify_all();
    }
}

/// The user's loop, as the worker's loop sees it.
struct UserLoop {
    meeting: Arc<Rendezvous>,
    /// Whether versions are means, none of which may be skipped.
    keeps_all: bool,
    /// Versions that may wait for the user's loop.
    most_waiting: usize,
    /// Whether what is written may be cleared again.
    clears: bool,
    /// Values of the block that is being sent. A copy, still in the cache, so that the user's loop can write
    /// meanwhile.
    block: Vec<f32>,
}

impl UserLoop {
    /// Waits until the user's loop makes `ready` hold, or the work is no longer `wanted`.
    fn until(
        &self,
        wanted: &dyn Fn() -> bool,
        ready: impl Fn(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        let waits = |state: &mut State| wanted() && !ready(state);
        let waited = self.meeting.changed.wait_while(self.meeting.lock(), waits);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends blocks as they become whole, until the micro-batch is done or no longer `wanted`.
    fn send_early(
        &mut self,
        early: EarlyPush<'_>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<(), FrameError> {
        loop {
            let due = |state: &State| state.finished.is_some() || state.whole.is_due();
            if !due(&self.until(wanted, due)) {
                return Ok(());
            }
            while let Some(block) = self.take_block() {
                if !wanted() || !early.send(block, &self.block)? {
                    return Ok(());
                }
            }
            if self.meeting.lock().finished.is_some() {
                break;
            }
        }
        if self.meeting.lock().whole.is_withdrawn() { early.withdraw() } else { Ok(()) }
    }

    /// Copies the next block to send, unless the micro-batch is done: the rest then leaves from where it is.
    /// Returns its number.
    fn take_block(&mut self) -> Option<u32> {
        let mut state = self.meeting.lock();
        if state.finished.is_some() {
            return None;
        }
        let EarlyBlock { number, elements } = state.whole.pop()?;
        self.block.clear();
        self.block.extend_from_slice(&state.buffer.as_ref()?[elements]);
        Some(number)
    }
}

impl Source for UserLoop {
    fn load(&mut self, at: usize, values: &[f32]) {
        let mut state = self.meeting.lock();
        let mut filling = match state.filling.take() {
            Some(Values::Own(filling)) => filling,
            _ => std::mem::take(&mut state.spare),
        };
        drop(state);
        filling.resize(filling.len().max(at + values.len()), 0.0);
        filling[at..at + values.len()].copy_from_slice(values);
        self.meeting.lock().filling = Some(Values::Own(filling));
    }

    fn keep(&mut self, values: Kept) {
        self.meeting.lock().filling = Some(Values::Kept(values));
    }

    fn let_go(&mut self) {
        let mut state = self.meeting.lock();
        let mut spare = std::mem::take(&mut state.spare);
        for Loaded { values, .. } in &mut state.loaded {
            if let Values::Kept(kept) = values {
                spare.clear();
                spare.extend_from_slice(kept);
                *values = Values::Own(std::mem::take(&mut spare));
            }
        }
        state.spare = spare;
    }

    fn loaded(&mut self, version: Version) {
        let mut state = self.meeting.lock();
        let Some(values) = state.filling.take() else { return };
        (state.newest, state.has_loaded) = (state.newest.max(version), true);
        if self.keeps_all && version <= state.taken {
            // The state was restored meanwhile, and has this version.
            return;
        }
        if !self.keeps_all || state.loaded.len() >= self.most_waiting {
            state.loaded.clear();
        }
        state.loaded.push_back(Loaded { version, values });
        self.meeting.changed.notify_all();
    }

    fn follows(&self) -> Option<Version> {
        let state = self.meeting.lock();
        (self.keeps_all || state.has_loaded).then_some(state.newest)
    }

    fn begin(&mut self, task: &Task, samples: &[u32], wanted: &dyn Fn() -> bool) -> Option<u32> {
        // A loop that still computes something older is let finish that first.
        let mut state = self.until(wanted, |state| state.parts.is_none());
        state.tasks += 1;
        state.task = Some(Assignment {
            base: task.base,
            portion: task.portion.clone(),
            samples: samples.into(),
            number: state.tasks,
        });
        state.complete = false;
        self.meeting.changed.notify_all();
        drop(state);
        let mut state = self.until(wanted, |state| state.parts.is_some());
        let parts = state.parts.filter(|_| wanted())?;
        state.left = parts;
        Some(parts)
    }

    fn part(
        &mut self,
        _samples: &[u32],
        gradient: &mut Buffer,
        first: bool,
        early: Option<EarlyPush<'_>>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Finished>, FrameError> {
        let early = early.filter(|_| !self.clears);
        let mut state = self.meeting.lock();
        state.left -= 1;
        state.adds = !first;
        state.whole.begin(early.map(|early| early.blocks()).unwrap_or_default());
        state.buffer = Some(std::mem::take(gradient));
        self.meeting.changed.notify_all();
        drop(state);
        let sent = early.map_or(Ok(()), |early| self.send_early(early, wanted));
        let mut state = self.until(&|| sent.is_ok() && wanted(), |state| state.finished.is_some());
        *gradient = state.buffer.take().unwrap_or_default();
        let finished = state.finished.take();
        state.complete = finished.is_some() && state.left == 0;
        self.meeting.changed.notify_all();
        drop(state);
        sent.map(|()| finished)
    }

    fn end(&mut self) {
        let mut state = self.meeting.lock();
        state.task = None;
        // A loop that has not finished learns that its work no longer counts.
        if state.complete {
            (state.given, state.parts) = (None, None);
        }
        self.meeting.changed.notify_all();
    }
}
