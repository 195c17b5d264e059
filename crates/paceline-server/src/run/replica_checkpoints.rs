//! Checkpoints of runs whose workers keep the parameters: a worker's state, with the ledger of the same version.

use std::{collections::BTreeMap, time::Duration};

use paceline_core::{LedgerState, NoiseScale, Time, Version};

use super::Run;
use crate::{checkpoints, input::Input};

/// The most versions whose ledgers are kept while a checkpoint waits for a state. Every round moves as many
/// bytes as the model has, so a state is on its way for a few rounds.
const MOMENTS: usize = 1024;

/// How long the last checkpoint of a run waits for a worker's state.
const LAST_STATE: Duration = Duration::from_secs(10);

/// What a checkpoint needs beside a worker's state, for the last versions.
#[derive(Default)]
pub(super) struct ReplicaCheckpoints {
    moments: BTreeMap<Version, Moment>,
    /// The checkpoint that is due: of this version or a newer one.
    wanted: Option<Version>,
    /// Since when the end of the run has waited for a state.
    ending: Option<Time>,
    gave_up: bool,
}

/// The run right after a version was published.
#[derive(Debug, Clone)]
pub(super) struct Moment {
    pub(super) step: u64,
    pub(super) ledger: LedgerState,
    pub(super) noise: NoiseScale,
}

impl ReplicaCheckpoints {
    /// The version that a worker's state must have at least.
    pub(super) fn wanted(&self) -> Option<Version> {
        self.wanted
    }

    fn keep(&mut self, version: Version, moment: Moment) {
        if self.wanted.is_none() {
            self.moments.clear();
        }
        self.moments.insert(version, moment);
        while self.moments.len() > MOMENTS {
            self.moments.pop_first();
        }
    }

    /// The moment of a state of this version, if a checkpoint is due and can have it.
    fn take(&mut self, version: Version) -> Option<Moment> {
        self.wanted.filter(|wanted| *wanted <= version)?;
        let moment = self.moments.get(&version).cloned()?;
        self.wanted = None;
        Some(moment)
    }
}

impl Run {
    /// Whether a checkpoint holds the state of a worker.
    pub(super) fn saves_worker_states(&self) -> bool {
        self.offer.is_some() && self.config.keeps_history() && self.config.checkpoints.is_some()
    }

    /// The last version's moment, which ends when the next round opens.
    pub(super) fn moment(&self) -> Moment {
        Moment {
            step: self.updates.step,
            ledger: self.core.ledger().state(),
            noise: self.core.noise().clone(),
        }
    }

    /// A version was published. A worker's state of it may follow, or may be there already.
    pub(super) fn keep_moment(&mut self) {
        if self.saves_worker_states() {
            let moment = self.moment();
            self.replica_checkpoints.keep(self.updates.version, moment);
            self.take_replica_checkpoint();
        }
    }

    /// A checkpoint is due: of the last version, or of a newer one.
    pub(super) fn want_replica_checkpoint(&mut self) {
        if self.saves_worker_states() {
            self.replica_checkpoints.wanted.get_or_insert(self.updates.version);
            self.take_replica_checkpoint();
            self.ask_for_state();
        }
    }

    /// Writes a checkpoint of the newest state, if one is due and the state is new enough.
    pub(super) fn take_replica_checkpoint(&mut self) {
        if self.snapshots.checkpointing {
            return;
        }
        let Some(config) = self.config.checkpoints.clone() else { return };
        let Some(state) = self.states.newest.clone() else { return };
        let Some(moment) = self.replica_checkpoints.take(state.version) else { return };
        let version = state.version;
        let (step, saved) = (moment.step, self.saved_state(moment));
        let tensors = self.layout.tensors();
        let described = checkpoints::of_worker(&self.config, tensors, &state, step, &saved);
        self.snapshots.checkpointing = true;
        let write = move || {
            state.check()?;
            checkpoints::write(&config, &described)
        };
        self.beside(write, move |result| Input::Checkpointed { version, result });
    }

    /// Whether the end of the run waits for a worker's state of the last version. It does not if no worker is
    /// left to send one.
    pub(super) fn awaits_last_state(&mut self) -> bool {
        let (now, version) = (self.now(), self.updates.version);
        let since = *self.replica_checkpoints.ending.get_or_insert(now);
        self.replica_checkpoints.wanted = Some(version);
        self.want_replica_checkpoint();
        if self.snapshots.checkpointing {
            return true;
        }
        let is_over = now.since(since) > LAST_STATE;
        if is_over && !std::mem::replace(&mut self.replica_checkpoints.gave_up, true) {
            tracing::warn!(
                "no worker sent its state of {version} in time: the last checkpoint is older"
            );
        }
        !is_over && self.core.machine().live().len() > 0
    }
}

#[cfg(test)]
mod tests {
    use paceline_core::Ledger;

    use super::*;

    fn moment(step: u64) -> Moment {
        let ledger = Ledger::new(100, None).state();
        Moment { step, ledger, noise: NoiseScale::default() }
    }

    #[test]
    fn a_state_is_paired_with_the_ledger_of_its_version() {
        let mut kept = ReplicaCheckpoints::default();
        (0..4).for_each(|version| kept.keep(Version(version), moment(version)));
        assert!(kept.take(Version(3)).is_none(), "none is due");
        kept.wanted = Some(Version(3));
        (4..8).for_each(|version| kept.keep(Version(version), moment(version)));
        assert!(kept.take(Version(2)).is_none(), "too old");
        assert!(kept.take(Version(8)).is_none(), "not published yet");
        assert_eq!(kept.take(Version(5)).unwrap().step, 5);
        assert_eq!(kept.wanted(), None);
        kept.keep(Version(8), moment(8));
        assert_eq!(kept.moments.len(), 1);
    }
}
