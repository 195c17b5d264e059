//! The place where the worker's loop and the user's loop meet.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{Turn, handoff::Handoff, lock, versions::Versions};
use crate::{client::WorkerError, work::Tally};

/// How often a wait for the worker's loop asks whether to go on.
const LOOK: Duration = Duration::from_millis(100);

/// The state that the two loops share, and their waits for each other.
#[derive(Default)]
pub(super) struct Rendezvous {
    state: Mutex<State>,
    changed: Condvar,
}

/// What the two loops hand over: versions one way, gradients the other.
#[derive(Default)]
pub(super) struct State {
    pub(super) versions: Versions,
    pub(super) handoff: Handoff,
    pub(super) ended: Option<Result<String, String>>,
}

impl Rendezvous {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The state has changed.
    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Something that waits depend on has changed beside the state.
    pub(super) fn wake(&self) {
        drop(self.lock());
        self.notify();
    }

    /// Waits while `waits`.
    pub(super) fn wait_while(
        &self,
        waits: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'_, State> {
        self.changed.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while `waits`, at most for `patience`.
    pub(super) fn wait_at_most(
        &self,
        patience: Duration,
        waits: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'_, State> {
        let waited = self.changed.wait_timeout_while(self.lock(), patience, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until `holds`, until the worker's loop has ended, or until `goes_on` says no.
    pub(super) fn until<'a>(
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

    /// Waits, at most for `patience`, until there is a `turn` or the run is over.
    pub(super) fn wait(&self, patience: Duration, turn: impl Fn(&State) -> Option<Turn>) -> Turn {
        let waits = |state: &mut State| state.ended.is_none() && turn(state).is_none();
        let state = self.wait_at_most(patience, waits);
        let ended = || state.ended.clone().map(Turn::Ended);
        turn(&state).or_else(ended).unwrap_or(Turn::Nothing)
    }

    /// The worker's loop has ended.
    pub(super) fn end(&self, outcome: &Result<Tally, WorkerError>) {
        let ended = match outcome {
            Ok(_) => Ok("the run is over".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        self.lock().ended = Some(ended);
        self.notify();
    }
}
