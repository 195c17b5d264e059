//! Checkpoints of offered models whose parameters the shards keep. A snapshot has to wait for a worker's record
//! of the same version, which says how learning rates and schedulers stand.

use std::time::Duration;

use paceline_core::{Time, Version};
use paceline_params::Block;

use super::Run;
use crate::config::SavedState;

/// How long the last snapshot of a run waits for a record.
const LAST_RECORD: Duration = Duration::from_secs(1);

/// A snapshot of all shards that waits for the record of its version.
pub(super) struct AwaitingRecord {
    pub(super) version: Version,
    pub(super) step: u64,
    pub(super) blocks: Vec<Block>,
    pub(super) saved: SavedState,
    pub(super) since: Time,
}

impl Run {
    /// Writes a checkpoint of this snapshot, once there is a record.
    pub(super) fn await_record(&mut self, snapshot: AwaitingRecord) {
        self.snapshots.checkpointing = true;
        self.snapshots.awaiting_record = Some(snapshot);
        self.pair_with_record();
    }

    /// Writes the checkpoint of the snapshot that waits, if its record is there or will not come.
    pub(super) fn pair_with_record(&mut self) {
        let snapshots = &mut self.snapshots;
        let Some(AwaitingRecord { version, since, .. }) = snapshots.awaiting_record else { return };
        if !self.has_record(version) && self.may_get_record(version, since) {
            return;
        }
        let Some(waiting) = self.snapshots.awaiting_record.take() else { return };
        let AwaitingRecord { step, blocks, mut saved, .. } = waiting;
        saved.record = self.replicas.newest_record(version).and_then(|(_, record)| {
            let text = std::str::from_utf8(record).ok()?;
            Some(text.to_owned())
        });
        self.checkpoint(version, step, &blocks, &saved);
    }

    fn has_record(&self, version: Version) -> bool {
        self.replicas.newest_record(version).is_some_and(|(of, _)| of == version)
    }

    /// Whether a worker may still send the record of this version: it does before it contributes to the next
    /// round, and never if its optimizer's settings are not known to it.
    fn may_get_record(&self, version: Version, since: Time) -> bool {
        let is_ending = self.ending.reason.is_some();
        let comes_in_time = !is_ending
            || self.replicas.newest_record(version).is_some()
                && self.core.machine().live().len() > 0
                && self.now().since(since) <= LAST_RECORD;
        self.offer.is_some() && self.updates.version == version && comes_in_time
    }
}
