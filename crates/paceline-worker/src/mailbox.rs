//! The mailbox: messages of the coordinator that the worker has not acted on yet.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use paceline_core::{ContributionId, Portion, Version, WorkerId};
use paceline_wire::message::ToWorker;

/// Work that the coordinator has given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Task {
    /// The contribution that it is for.
    pub(crate) id: ContributionId,
    pub(crate) base: Version,
    pub(crate) portion: Portion,
    pub(crate) push_at_once: bool,
    /// Shards that are behind: the worker uses their last values and sends them no gradients.
    pub(crate) behind: Vec<u32>,
}

/// The event after which a contribution can no longer count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// Its round is cut.
    Cut,
    /// Its round is closed: stragglers push their finished micro-batches.
    Close,
    /// The end of the run: later rounds admit it.
    End,
}

/// The worker's next action.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Task(Task),
    /// A round has closed: the version that it makes can be loaded.
    Follow(Version),
    /// The run is over, with the coordinator's reason, or the connection is lost.
    Stop(Result<String, String>),
}

/// Closes that are remembered for a user's loop.
const CLOSES: usize = 256;

/// The close of a round, as its workers are told of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Closed {
    /// The version that the round was computed from.
    pub base: Version,
    /// The weight of this worker's contribution that it used; 0 if it used none.
    pub used: f64,
    /// The number of contributions.
    pub accepted: u32,
    /// Total weight of the update.
    pub weight: f64,
    /// From the round's opening to its cut.
    pub cut_after: Duration,
    /// Why the round was cut.
    pub reason: String,
    /// Epochs of which every sample was used.
    pub epochs: u32,
}

/// Filled by the thread that reads the control connection, emptied by the one that computes.
#[derive(Default)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
    changed: Condvar,
    /// For the thread that answers cuts; other messages do not concern it.
    cut: Condvar,
    /// For the thread that waits for parameters, which needs every answer of a shard.
    answered: Condvar,
    /// Called after every change, for a user's loop that waits elsewhere.
    watcher: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Debug, Default)]
struct State {
    task: Option<Task>,
    may_push: Option<ContributionId>,
    cut: Option<Version>,
    stop: Option<Result<String, String>>,
    /// Whether the run has failed.
    failed: bool,
    /// The last round that closed.
    over: Option<Version>,
    /// The last closes, oldest first.
    closes: VecDeque<Closed>,
    /// The last contribution that was announced: its version and weight.
    sent: Option<(Version, f64)>,
    /// Messages for a user's loop.
    user: VecDeque<ToWorker>,
    closed: u64,
    used: u64,
    /// Answers of shards so far.
    answers: u64,
    leases: Vec<Portion>,
    /// Complete epochs.
    epochs: u32,
}

impl Mailbox {
    /// An empty mailbox, in a run of which `epochs` epochs are complete.
    pub(crate) fn new(epochs: u32) -> Mailbox {
        let state = Mutex::new(State { epochs, ..State::default() });
        Mailbox { state, ..Mailbox::default() }
    }

    pub(crate) fn deliver(&self, me: WorkerId, message: ToWorker) {
        let mut state = self.lock();
        let (cut, stopped) = (state.cut, state.stop.is_some());
        match message {
            ToWorker::Work { id, base, portion, push_at_once, behind } => {
                if state.leases.first() == Some(&portion) {
                    state.leases.remove(0);
                }
                // Newer work replaces older: that round is over.
                state.task = Some(Task { id, base, portion, push_at_once, behind });
            }
            ToWorker::Leases(leases) => {
                state.leases = leases;
            }
            ToWorker::Push { id } => state.may_push = Some(id),
            ToWorker::Cut { base } => state.cut = Some(base),
            ToWorker::Closed { base, accepted, weight, members, cut_after, reason, epochs } => {
                state.epochs = epochs;
                state.closed += 1;
                state.over = Some(base);
                let byte = members.get(me.0 as usize / 8).copied().unwrap_or(0);
                let used = byte >> (me.0 % 8) & 1 == 1;
                state.used += u64::from(used);
                let sent = state.sent.filter(|(to, _)| used && *to == base);
                let used = sent.map_or(0.0, |(_, weight)| weight);
                let closed = Closed { base, used, accepted, weight, cut_after, reason, epochs };
                state.closes.push_back(closed);
                if state.closes.len() > CLOSES {
                    state.closes.pop_front();
                }
            }
            message @ (ToWorker::Records { .. }
            | ToWorker::Mismatch { .. }
            | ToWorker::SendState { .. }
            | ToWorker::StateReady { .. }) => {
                state.user.push_back(message);
            }
            ToWorker::Stop(why) => state.stop = Some(Ok(why)),
            ToWorker::Failed(why) => (state.stop, state.failed) = (Some(Ok(why)), true),
            // The reading thread has recorded it; there is nothing to act on.
            ToWorker::Heard { .. } => return,
            ToWorker::Expelled(why) => state.stop = Some(Err(format!("shown out: {why}"))),
        }
        if (cut, stopped) != (state.cut, state.stop.is_some()) {
            self.cut.notify_one();
        }
        self.changed.notify_all();
        self.answered.notify_one();
        drop(state);
        self.tell_watcher();
    }

    /// Calls `watcher` after every change.
    pub(crate) fn watch(&self, watcher: Box<dyn Fn() + Send + Sync>) {
        drop(self.watcher.set(watcher));
        self.tell_watcher();
    }

    fn tell_watcher(&self) {
        if let Some(watcher) = self.watcher.get() {
            watcher();
        }
    }

    /// Ends the worker's loop, as the end of the run does. `say_so` comes before anything that the loop says
    /// when it ends.
    pub(crate) fn leave(&self, say_so: impl FnOnce()) {
        let mut state = self.lock();
        state.stop.get_or_insert(Ok("the worker left".to_owned()));
        say_so();
        drop(state);
        self.cut.notify_one();
        self.changed.notify_all();
        self.answered.notify_one();
        self.tell_watcher();
    }

    /// A contribution from `base` of this weight is announced.
    pub(crate) fn note_sent(&self, base: Version, weight: f64) {
        self.lock().sent = Some((base, weight));
    }

    /// The version that the last closed round was computed from.
    pub(crate) fn newest_closed(&self) -> Option<Version> {
        self.lock().over
    }

    /// The close of the round on `base`, if it is one of the last.
    pub(crate) fn closed(&self, base: Version) -> Option<Closed> {
        self.lock().closes.iter().rev().find(|closed| closed.base == base).cloned()
    }

    /// Takes the messages for a user's loop.
    pub(crate) fn take_user_messages(&self) -> Vec<ToWorker> {
        self.lock().user.drain(..).collect()
    }

    pub(crate) fn has_user_message(&self) -> bool {
        !self.lock().user.is_empty()
    }

    /// A shard has answered a pull, or its connection has failed.
    pub(crate) fn note_answer(&self) {
        self.lock().answers += 1;
        self.answered.notify_one();
    }

    /// Answers of shards so far.
    pub(crate) fn answers(&self) -> u64 {
        self.lock().answers
    }

    /// Waits until there are more answers of shards than `seen`, `base` is cut, or `time` is over, if it is
    /// given.
    pub(crate) fn await_answer(&self, base: Version, seen: u64, time: Option<Duration>) {
        let mut state = self.lock();
        let waits = |state: &State| state.answers == seen && !state.is_cut(base);
        match time {
            Some(time) => {
                drop(self.answered.wait_timeout_while(state, time, |state| waits(state)));
            }
            None => {
                while waits(&state) {
                    state = self.answered.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// The connection is gone; no more messages will come.
    pub(crate) fn hang_up(&self, error: String) {
        let mut state = self.lock();
        state.stop.get_or_insert(Err(error));
        self.cut.notify_one();
        self.changed.notify_all();
        self.answered.notify_one();
        drop(state);
        self.tell_watcher();
    }

    /// Waits for the next action. A worker that loads every version, the last of which is `loaded`, follows
    /// closed rounds.
    pub(crate) fn next(&self, loaded: Option<Version>) -> Next {
        let mut state = self.lock();
        loop {
            let closed = state.over.map(Version::next);
            if let Some(closed) =
                closed.filter(|closed| loaded.is_some_and(|loaded| loaded < *closed))
                && !matches!(state.stop, Some(Err(_)))
            {
                return Next::Follow(closed);
            }
            if let Some(stop) = &state.stop {
                return Next::Stop(stop.clone());
            }
            if let Some(task) = state.task.take() {
                return Next::Task(task);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether to stop computing from `base`.
    pub(crate) fn is_cut(&self, base: Version) -> bool {
        self.lock().is_cut(base)
    }

    /// Waits for `time`, or until `base` is cut. Returns whether all of it passed.
    pub(crate) fn rest(&self, base: Version, time: Duration) -> bool {
        let wanted = |state: &mut State| !state.is_cut(base);
        let rested = self.changed.wait_timeout_while(self.lock(), time, wanted);
        rested.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Whether a contribution from `base` can no longer count.
    pub(crate) fn is_over(&self, base: Version, until: Until) -> bool {
        self.lock().is_over(base, until)
    }

    /// Waits for the cut of a round after `last`; `None` when the run is over.
    pub(crate) fn next_cut(&self, last: Option<Version>) -> Option<Version> {
        let mut state = self.lock();
        loop {
            if state.stop.is_some() {
                return None;
            }
            if state.cut > last {
                return state.cut;
            }
            state = self.cut.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for permission to push the contribution of a task; false once it can no longer count.
    pub(crate) fn may_push(&self, task: &Task, until: Until) -> bool {
        let mut state = self.lock();
        loop {
            if state.is_over(task.base, until) {
                return false;
            }
            if state.may_push == Some(task.id) {
                return true;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The reason why the work is over, if the coordinator sends one within `patience`. An error if the run
    /// continues without this worker.
    pub(crate) fn stop_reason(&self, patience: Duration) -> Option<Result<String, String>> {
        let running = |state: &mut State| state.stop.is_none();
        let waited = self.changed.wait_timeout_while(self.lock(), patience, running);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.stop.clone()
    }

    /// Whether the coordinator said that the run has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.lock().failed
    }

    /// The portions of the worker's next rounds, in order.
    pub(crate) fn leases(&self) -> Vec<Portion> {
        self.lock().leases.clone()
    }

    /// Complete epochs.
    pub(crate) fn epochs(&self) -> u32 {
        self.lock().epochs
    }

    /// Rounds that closed while this worker took part, and those among them that used its work.
    pub(crate) fn rounds(&self) -> (u64, u64) {
        let state = self.lock();
        (state.closed, state.used)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_cut(&self, base: Version) -> bool {
        self.is_over(base, Until::Cut)
    }

    fn is_over(&self, base: Version, until: Until) -> bool {
        let told = match until {
            Until::Cut => self.cut,
            Until::Close => self.over,
            Until::End => None,
        };
        self.stop.is_some()
            || told.is_some_and(|told| told >= base)
            || self.task.as_ref().is_some_and(|task| task.base > base)
    }
}

#[cfg(test)]
mod tests {
    use paceline_core::SampleRange;

    use super::*;

    fn portion(start: u32) -> Portion {
        Portion::new(SampleRange { epoch: 0, start, end: start + 1 })
    }

    fn work(base: u64) -> ToWorker {
        ToWorker::Work {
            id: ContributionId(base),
            base: Version(base),
            portion: portion(0),
            push_at_once: true,
            behind: Vec::new(),
        }
    }

    fn closed(base: u64, members: Vec<u8>) -> ToWorker {
        ToWorker::Closed {
            base: Version(base),
            accepted: 1,
            weight: 1.0,
            members,
            cut_after: Duration::ZERO,
            reason: String::new(),
            epochs: 1,
        }
    }

    #[test]
    fn work_leaves_the_leases() {
        let (me, mailbox) = (WorkerId(0), Mailbox::new(1));
        mailbox.deliver(me, ToWorker::Leases(vec![portion(0), portion(5)]));
        assert_eq!(mailbox.leases(), [portion(0), portion(5)]);
        mailbox.deliver(me, work(0));
        assert_eq!(mailbox.leases(), [portion(5)], "the first lease is work now");
        mailbox.deliver(me, work(1));
        assert_eq!(mailbox.leases(), [portion(5)], "that work was not leased");
        assert_eq!(mailbox.epochs(), 1);
    }

    #[test]
    fn a_cut_or_newer_work_or_the_end_makes_work_useless() {
        let me = WorkerId(0);
        let mailbox = Mailbox::default();
        mailbox.deliver(me, work(3));
        let Next::Task(task) = mailbox.next(None) else { panic!("it was given work") };
        assert_eq!(task.base, Version(3));
        assert!(!mailbox.is_cut(Version(3)));
        mailbox.deliver(me, ToWorker::Cut { base: Version(2) });
        assert!(!mailbox.is_cut(Version(3)));
        mailbox.deliver(me, ToWorker::Cut { base: Version(3) });
        assert!(mailbox.is_cut(Version(3)));
        assert!(!mailbox.may_push(&task, Until::Cut));
        assert!(!mailbox.is_over(Version(3), Until::Close), "what is finished can be salvaged");
        mailbox.deliver(me, closed(3, vec![]));
        assert!(!mailbox.may_push(&task, Until::Close));
        mailbox.deliver(me, work(5));
        assert!(mailbox.is_over(Version(4), Until::Close));
        mailbox.deliver(me, ToWorker::Stop("done".to_owned()));
        assert_eq!(mailbox.next(None), Next::Stop(Ok("done".to_owned())));
    }

    #[test]
    fn a_run_that_failed_ends_like_others_and_says_so() {
        let (mailbox, me) = (Mailbox::default(), WorkerId(0));
        mailbox.deliver(me, ToWorker::Failed("quorum lost".to_owned()));
        assert_eq!(mailbox.next(None), Next::Stop(Ok("quorum lost".to_owned())));
        assert!(mailbox.has_failed());
        mailbox.hang_up("closed".to_owned());
        assert_eq!(mailbox.next(None), Next::Stop(Ok("quorum lost".to_owned())));
    }

    #[test]
    fn a_rest_ends_with_the_round() {
        let mailbox = Mailbox::default();
        assert!(mailbox.rest(Version(0), Duration::from_millis(1)), "nothing happens");
        std::thread::scope(|scope| {
            let rests = scope.spawn(|| mailbox.rest(Version(0), Duration::from_secs(60)));
            mailbox.deliver(WorkerId(0), ToWorker::Cut { base: Version(0) });
            assert!(!rests.join().unwrap());
        });
    }

    #[test]
    fn a_worker_is_told_whether_it_was_used() {
        let mailbox = Mailbox::default();
        for members in [vec![0, 0b10], vec![], vec![0xff, 0xfd]] {
            mailbox.deliver(WorkerId(9), closed(0, members));
        }
        assert_eq!(mailbox.rounds(), (3, 1));
    }
}
