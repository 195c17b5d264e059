//! The user's loop, as the worker's loop sees it.

use std::sync::{Arc, MutexGuard};

use paceline_core::Version;
use paceline_shm::Kept;
use paceline_wire::FrameError;

use super::rendezvous::{Rendezvous, State};
use crate::{
    buffer::Buffer,
    early::EarlyPush,
    mailbox::Task,
    work::{Finished, Source},
};

/// Where the worker's loop has its micro-batches computed, across a [`Rendezvous`].
pub(super) struct UserLoop {
    meeting: Arc<Rendezvous>,
    /// Whether what is written may be cleared again.
    clears: bool,
    /// Values of the block that is being sent. A copy, still in the cache, so that the user's loop can write
    /// meanwhile.
    block: Vec<f32>,
}

impl UserLoop {
    pub(super) fn new(meeting: Arc<Rendezvous>, clears: bool) -> Self {
        UserLoop { meeting, clears, block: Vec::new() }
    }

    /// Waits until the user's loop makes `ready` hold, or the work is no longer `wanted`.
    fn until(
        &self,
        wanted: &dyn Fn() -> bool,
        ready: impl Fn(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        self.meeting.wait_while(|state| wanted() && !ready(state))
    }

    /// Sends blocks as they become whole, until the micro-batch is done or no longer `wanted`.
    fn send_early(
        &mut self,
        early: EarlyPush<'_>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<(), FrameError> {
        loop {
            let due = |state: &State| state.handoff.is_finished() || state.handoff.is_due();
            if !due(&self.until(wanted, due)) {
                return Ok(());
            }
            while let Some(block) = self.take_block() {
                if !wanted() || !early.send(block, &self.block)? {
                    return Ok(());
                }
            }
            if self.meeting.lock().handoff.is_finished() {
                break;
            }
        }
        if self.meeting.lock().handoff.is_withdrawn() { early.withdraw() } else { Ok(()) }
    }

    /// Copies the next block to send. Returns its number.
    fn take_block(&mut self) -> Option<u32> {
        self.meeting.lock().handoff.take_block(&mut self.block)
    }
}

impl Source for UserLoop {
    fn load(&mut self, at: usize, values: &[f32]) {
        let mut filling = self.meeting.lock().versions.take_filling();
        filling.resize(filling.len().max(at + values.len()), 0.0);
        filling[at..at + values.len()].copy_from_slice(values);
        self.meeting.lock().versions.fill(filling);
    }

    fn keep(&mut self, values: Kept) {
        self.meeting.lock().versions.keep(values);
    }

    fn let_go(&mut self) {
        self.meeting.lock().versions.let_go();
    }

    fn loaded(&mut self, version: Version) {
        let mut state = self.meeting.lock();
        if state.versions.loaded(version) {
            self.meeting.notify();
        }
    }

    fn follows(&self) -> Option<Version> {
        self.meeting.lock().versions.follows()
    }

    fn begin(&mut self, task: &Task, samples: &[u32], wanted: &dyn Fn() -> bool) -> Option<u32> {
        // A loop that still computes something older is let finish that first.
        let mut state = self.until(wanted, |state| state.handoff.parts().is_none());
        state.handoff.assign(task, samples);
        self.meeting.notify();
        drop(state);
        let mut state = self.until(wanted, |state| state.handoff.parts().is_some());
        let parts = state.handoff.parts().filter(|_| wanted())?;
        state.handoff.start(parts);
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
        let blocks = early.map(|early| early.blocks()).unwrap_or_default();
        state.handoff.lend(std::mem::take(gradient), first, blocks);
        self.meeting.notify();
        drop(state);
        let sent = early.map_or(Ok(()), |early| self.send_early(early, wanted));
        let finished = |state: &State| state.handoff.is_finished();
        let mut state = self.until(&|| sent.is_ok() && wanted(), finished);
        let (buffer, finished) = state.handoff.take_back();
        *gradient = buffer;
        self.meeting.notify();
        drop(state);
        sent.map(|()| finished)
    }

    fn end(&mut self) {
        let mut state = self.meeting.lock();
        state.handoff.end();
        self.meeting.notify();
    }
}
