//! States that workers exchange through the server: the newest is kept, and a worker that has a newer one is
//! asked for it when another needs it. No round waits for any of this.

mod donors;

use std::collections::{BTreeMap, BTreeSet};

use paceline_core::{Time, Version, WorkerId};
use paceline_wire::message::ToWorker;

use super::Run;
use crate::{
    input::{StateCall, StateGrant},
    state::StateBlob,
};
use donors::Donors;

/// The most states that are received at once, besides the one that is kept.
const MAX_UPLOADS: usize = 2;

/// How long an asked worker may take to begin its upload, in multiples of the liveness. It sends its state
/// between two steps.
const DONOR_PATIENCE: u32 = 3;

/// The states of a run.
pub(super) struct States {
    /// The newest.
    pub(super) newest: Option<StateBlob>,
    /// The longest that is taken.
    bound: u64,
    /// Workers that wait for a state of at least this version.
    waiting: BTreeMap<WorkerId, Version>,
    pub(super) donors: Donors,
    /// The worker that was asked, and when.
    asked: Option<(WorkerId, Time)>,
    /// Workers that are sending a state, by session.
    uploading: BTreeSet<(WorkerId, u64)>,
}

impl States {
    /// No state yet, or the first, each of at most `bound` bytes.
    pub(super) fn new(bound: u64, first: Option<StateBlob>) -> Self {
        States {
            newest: first,
            bound,
            waiting: BTreeMap::new(),
            donors: Donors::default(),
            asked: None,
            uploading: BTreeSet::new(),
        }
    }

    /// Whether a worker waits for a state.
    pub(super) fn waits(&self, worker: WorkerId) -> bool {
        self.waiting.contains_key(&worker)
    }
}

impl Run {
    /// A worker needs a state of at least this version.
    pub(super) fn want_state(&mut self, worker: WorkerId, at_least: Version) -> Result<(), String> {
        if self.offer.is_none() {
            return Err("it asked for a state, and this run keeps none".to_owned());
        }
        self.check_version(at_least)?;
        self.states.waiting.insert(worker, at_least);
        self.tell_waiting();
        self.ask_for_state();
        Ok(())
    }

    /// A shard publishes a version before the coordinator hears of it from all shards.
    fn check_version(&self, version: Version) -> Result<(), String> {
        match version.0 <= self.updates.version.0 + 1 {
            true => Ok(()),
            false => Err(format!("there is no {version} yet, only {}", self.updates.version)),
        }
    }

    /// Tells the waiting workers for which the newest state is new enough.
    fn tell_waiting(&mut self) {
        let Some(version) = self.states.newest.as_ref().map(|blob| blob.version) else { return };
        let served = |_: &WorkerId, at_least: &mut Version| *at_least <= version;
        let served: Vec<WorkerId> =
            self.states.waiting.extract_if(.., served).map(|(worker, _)| worker).collect();
        self.members.workers.send_all(served, &ToWorker::StateReady { version });
    }

    /// Asks a worker for its state, if others or a checkpoint wait for one and nobody is asked.
    pub(super) fn ask_for_state(&mut self) {
        let waiting = self.states.waiting.values().max().copied();
        let Some(at_least) = waiting.max(self.replica_checkpoints.wanted()) else { return };
        if self.states.asked.is_some() {
            return;
        }
        if let Some(donor) =
            self.states.donors.best(|worker| !self.states.waiting.contains_key(&worker))
        {
            self.states.asked = Some((donor, self.now()));
            self.members.workers.send(donor, &ToWorker::SendState { at_least });
        }
    }

    /// Asks another worker, if the one that was asked does not begin.
    pub(super) fn look_at_donor(&mut self, now: Time) {
        let patience = DONOR_PATIENCE * self.config.liveness;
        let Some((donor, at)) = self.states.asked else { return };
        let began = self.states.uploading.iter().any(|(worker, _)| *worker == donor);
        if !began && now.since(at) > patience {
            self.pass_over(donor);
        }
    }

    /// The worker did not send its state; another is asked, if there is one.
    fn pass_over(&mut self, donor: WorkerId) {
        self.states.asked = None;
        self.states.donors.pass_over(donor);
        self.ask_for_state();
    }

    /// A worker asks to send or fetch a state.
    pub(super) fn grant_state(&mut self, call: StateCall) {
        let StateCall { worker, session, upload, reply } = call;
        let granted = match upload {
            _ if !self.members.workers.is_current(worker, session) => {
                Err(format!("{worker} is not let in"))
            }
            _ if self.offer.is_none() => Err("this run keeps no states".to_owned()),
            Some(version) => self.grant_upload((worker, session), version),
            None => {
                let newest = self.states.newest.clone().map(StateGrant::Download);
                newest.ok_or_else(|| "there is no state yet".to_owned())
            }
        };
        let is_upload = matches!(granted, Ok(StateGrant::Upload { .. }));
        if reply.send(granted).is_ok() && is_upload {
            self.states.uploading.insert((worker, session));
        }
    }

    fn grant_upload(&self, from: (WorkerId, u64), version: Version) -> Result<StateGrant, String> {
        self.check_version(version)?;
        let uploading = &self.states.uploading;
        if uploading.contains(&from) {
            return Err(format!("{} is sending a state already", from.0));
        }
        match uploading.len() < MAX_UPLOADS {
            true => Ok(StateGrant::Upload { version, bound: self.states.bound }),
            false => Err(format!("{MAX_UPLOADS} workers are sending states already")),
        }
    }

    /// An upload has ended, with a state or without.
    pub(super) fn uploaded(&mut self, worker: WorkerId, session: u64, blob: Option<StateBlob>) {
        self.states.uploading.remove(&(worker, session));
        let is_current = self.members.workers.is_current(worker, session);
        let was_asked = is_current && self.states.asked.is_some_and(|(donor, _)| donor == worker);
        let newest = self.states.newest.as_ref().map(|blob| blob.version);
        match blob {
            Some(blob) => {
                if was_asked {
                    self.states.asked = None;
                }
                if newest.is_none_or(|newest| newest < blob.version) {
                    self.states.newest = Some(blob);
                    self.take_replica_checkpoint();
                }
                self.tell_waiting();
                self.ask_for_state();
            }
            None if was_asked => self.pass_over(worker),
            None => {}
        }
    }

    /// A worker has left.
    pub(super) fn forget_state(&mut self, worker: WorkerId) {
        self.states.waiting.remove(&worker);
        self.states.donors.forget(worker);
        if self.states.asked.is_some_and(|(donor, _)| donor == worker) {
            self.states.asked = None;
            self.ask_for_state();
        }
    }
}
